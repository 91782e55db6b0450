"""Asks a paid endpoint through a run_models: `asking.py URL FOLDER FIRST LAST`.

It reports each answer that it has.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from workup.core.episode import Message
from workup.core.ports import Request
from workup.roles.config import Config
from workup.roles.endpoint import EndpointSettings, Price
from workup.roles.run_models import RunModels

RUN = "the run"


def question(number: int) -> Request:
    return Request("judge", "1", (Message("user", str(number)),))


async def main(url: str, folder: Path, numbers: range) -> None:
    endpoint = EndpointSettings(
        base_url=url, model="m", concurrency=8, price=Price(input=1_000_000, output=1_000_000)
    )
    run_models = RunModels(Config(endpoints={"it": endpoint}), RUN, cache=folder)
    model = run_models.open("endpoint:it")

    async def one(number: int) -> None:
        reply = await model.complete(question(number))
        print(number, reply.text, flush=True)

    await asyncio.gather(*map(one, numbers))
    run_models.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), range(int(sys.argv[3]), int(sys.argv[4]))))
