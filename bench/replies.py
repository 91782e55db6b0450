"""Look-ups in the cache of answers per second, and writes.

A repeated epoch of judging needs 10,000 look-ups per second.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.figures import Figure
from workup.core.episode import Message
from workup.core.ports import Reply, Request
from workup.roles.account import Account
from workup.roles.cached import Cached
from workup.roles.endpoint import Endpoint, EndpointSettings
from workup.roles.replies import FILE, Charge, Replies, asked

ANSWERS, LOOKUPS, WANTED = 50_000, 20_000, 10_000
NOWHERE = Endpoint(EndpointSettings(base_url="http://localhost:9", model="m"))  # nothing is sent


def measure() -> list[Figure]:
    """By the processor's time: a machine that others use too makes no difference.

    The file not in memory: by the clock.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / FILE
        wrote = _write(path)
        order = random.Random(0).sample(range(ANSWERS), LOOKUPS)
        _forget(path)
        cold, warm = _look_up(path, order)
    return [
        Figure(
            "cached look-ups per processor second", warm, WANTED, "/s", warm / WANTED, 1.0, True
        ),
        Figure("cached look-ups, file not in memory", cold, WANTED, "/s", cold / WANTED, 1.0, True),
        Figure(
            "answers kept per processor second, 256 waiting",
            wrote,
            1_000,
            "/s",
            wrote / 1_000,
            1.0,
            True,
        ),
    ]


def _request(number: int) -> Request:
    """A judge's prompt of about 900 tokens."""
    return Request(
        "judge",
        "1",
        (Message("system", "rule " * 400), Message("user", f"{number} " + "word " * 400)),
        "{}" * 100,
    )


def _write(path: Path) -> float:
    """Answers kept per processor second by 256 callers at once.

    Each caller waits until its answer is on the disk.
    """
    replies, numbers = Replies(path), iter(range(ANSWERS))

    async def caller() -> None:
        for number in numbers:
            kept = replies.keep(
                asked(NOWHERE.name, _request(number)),
                Reply("because " * 25, 900, 60),
                Charge("r", 900, 60, 0.001),
            )
            await asyncio.wrap_future(kept)

    async def callers() -> None:
        await asyncio.gather(*(caller() for _ in range(256)))

    start = time.process_time()
    asyncio.run(callers())
    rate = ANSWERS / (time.process_time() - start)
    replies.close()
    return rate


def _look_up(path: Path, order: Sequence[int]) -> tuple[float, float]:
    """Look-ups through `Cached`.

    Counted per second in the first pass, and per second of processor time in the second.
    """
    replies = Replies(path)
    model = Cached(NOWHERE, Account(replies, "r"), replay=True)
    requests = [_request(number) for number in order]

    async def look(clock: Callable[[], float]) -> float:
        start = clock()
        for request in requests:
            await model.complete(request)
        return LOOKUPS / (clock() - start)

    first, second = asyncio.run(look(time.perf_counter)), asyncio.run(look(time.process_time))
    replies.close()
    return first, second


def _forget(path: Path) -> None:
    """Asks the system to drop the file from memory."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
