"""The background task of a model that serves concurrent requests in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from weakref import WeakSet

computing: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
"""The event loops in which a local policy has sampled: each forward pass holds them up."""


class Worker:
    """Runs `step` again and again while any of `futures()` is awaited.

    Other tasks get their turn between two steps. `step` serves a batch and sets the results of its
    futures. If it raises, all awaited futures get the error; if the task is cancelled, they are
    cancelled. Then `forget` is called, after which `futures()` is empty. A later `wake` starts
    anew, in the event loop that runs then.
    """

    def __init__(
        self,
        futures: Callable[[], Iterable[asyncio.Future[Any]]],
        step: Callable[[], Awaitable[None]],
        forget: Callable[[], None],
    ) -> None:
        self.futures, self.step, self.forget = futures, step, forget
        self.task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Starts the task unless it runs. A caller that has added a future calls it."""
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while any(True for _ in self.futures()):
                # Twice: first the callers that a result woke, then the requests that they make.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                await self.step()
        except BaseException as error:
            for future in self.futures():
                if isinstance(error, Exception) and not future.done():
                    future.set_exception(error)
                future.cancel()
            self.forget()
            if not isinstance(error, Exception):
                raise
