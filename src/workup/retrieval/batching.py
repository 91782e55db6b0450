"""Searches that are asked for at the same time, answered together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any
from weakref import WeakKeyDictionary

from workup.core.case import Passage
from workup.core.errors import RolloutError
from workup.models.worker import computing
from workup.retrieval import words
from workup.retrieval.fusion import Find

MOST = 128
"""Searches in one batch."""


async def _away(find: Find, queries: Sequence[str], k: int) -> Sequence[Sequence[Passage]]:
    """`find` in a thread that the event loop does not wait for at its end.

    A search may wait minutes for a server.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Sequence[Sequence[Passage]]] = loop.create_future()

    def tell(act: Callable[[Any], None], value: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(lambda: None if answer.done() else act(value))

    def work() -> None:
        try:
            tell(answer.set_result, find(queries, k))
        except Exception as error:
            tell(answer.set_exception, error)

    Thread(target=work, daemon=True).start()
    return await answer


@dataclass(frozen=True, slots=True)
class _Search:
    query: str
    k: int
    answer: asyncio.Future[Sequence[Passage]]


class BatchedRetriever:
    """A `Retriever` over something that answers several searches at once.

    While one batch is away, those who ask meanwhile wait for the next. An error is the error of
    that batch's searches alone. May be used from one event loop after another. `library` is what
    `workup.retrieval.open_retriever` opened, "" where something else is searched.

    A batch is answered in a thread. Where `find` asks no server (`here`) and a local policy samples
    in the event loop, it is answered in the loop itself. A thread's answer would come earlier or
    later in every run; other episodes would share the policy's next forward pass, and its
    log-probabilities would round differently.

    A `find` that takes less than a thread to start (`short`) is here too. Where no local policy
    samples, it answers each search at once.
    """

    def __init__(
        self,
        find: Find,
        most: int = MOST,
        library: str = "",
        *,
        here: bool = False,
        short: bool = False,
    ) -> None:
        self._find, self._most, self.library = find, most, library
        self._here, self._short = here or short, short
        self._waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, list[_Search]] = (
            WeakKeyDictionary()
        )
        self._busy: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = (
            WeakKeyDictionary()
        )

    async def search(self, query: str, k: int) -> Sequence[Passage]:
        """The best `k` passages; none for a query that is blank, or when `k` is 0."""
        asked = words.query(query)
        if not asked.strip() or k < 1:
            return []
        loop = asyncio.get_running_loop()
        if self._short and loop not in computing:
            return self._find([asked], k)[0]
        answer: asyncio.Future[Sequence[Passage]] = loop.create_future()
        self._waiting.setdefault(loop, []).append(_Search(asked, k, answer))
        if loop not in self._busy:
            self._busy[loop] = loop.create_task(self._serve(loop))
        return await answer

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting = self._waiting[loop]
        try:
            while waiting:
                batch, waiting[:] = waiting[: self._most], waiting[self._most :]
                await self._answer([asked for asked in batch if not asked.answer.done()])
        finally:
            del self._busy[loop]

    async def _answer(self, batch: Sequence[_Search]) -> None:
        """One call for all: the best passages for a smaller `k` are the first of a larger one."""
        if not batch:
            return
        queries, k = [asked.query for asked in batch], max(asked.k for asked in batch)
        try:
            if self._here and asyncio.get_running_loop() in computing:
                found = self._find(queries, k)
            else:
                found = await _away(self._find, queries, k)
            if len(found) != len(batch):
                raise RolloutError(f"the library answered {len(found)} of {len(batch)} queries")
        except Exception as error:
            for asked in batch:
                if not asked.answer.done():
                    asked.answer.set_exception(error)
            return
        for asked, passages in zip(batch, found, strict=True):
            if not asked.answer.done():
                asked.answer.set_result(passages[: asked.k])
