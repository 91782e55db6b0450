"""Processor time of the driver for one completion through Ray, without a model.

Two calls as verl's client makes them: one to a router, one to a server, with a prompt of 1,300
tokens and a completion of 60; 256 at a time. It needs the environment of engine=verl:
`.venv-verl/bin/python -m bench.ray_calls`.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

CALLS, AT_ONCE, PROMPT, COMPLETION = 2000, 256, 1300, 60


def main() -> None:
    import ray

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)

    @ray.remote
    class Router:
        async def acquire(self, request: str) -> str:
            return "server"

    @ray.remote
    class Server:
        async def generate(self, prompt: list[int]) -> dict[str, Any]:
            return {"ids": prompt[:COMPLETION], "logprobs": [-1.0] * COMPLETION}

    router, server = Router.remote(), Server.remote()  # type: ignore[attr-defined]  # ray adds it

    async def several(number: int) -> None:
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(k: int) -> None:
            async with limit:
                await router.acquire.remote(str(k))
                await server.generate.remote(list(range(PROMPT)))

        await asyncio.gather(*map(one, range(number)))

    asyncio.run(several(100))  # the first calls start processes
    for _ in range(2):
        began = time.process_time()
        asyncio.run(several(CALLS))
        print(f"{(time.process_time() - began) / CALLS * 1e3:.2f} ms per completion")


if __name__ == "__main__":
    main()
