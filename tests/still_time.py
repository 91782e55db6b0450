"""An event loop whose time passes only while nothing else happens.

The clock stands still as long as a request is on the wire, however slow the machine is. It jumps to
the next timer once all requests have their answers, but for those that the server lets hang. So a
wait of an hour takes no time, and lasts an hour exactly.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from waiting import HANG

from workup.core.ports import Request
from workup.roles.endpoint import Endpoint

Result = TypeVar("Result")


class Clock:
    """Seconds since the start, for one loop and the server on the other side."""

    def __init__(self) -> None:
        self.now = 0.0
        self._sent = 0  # requests on the wire, those that hang included
        self._hanging = 0
        self._lock, self._over = threading.Lock(), threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, main: Coroutine[Any, Any, Result]) -> Result:
        """`asyncio.run` by this clock."""
        with asyncio.Runner(loop_factory=lambda: _Loop(self)) as runner:
            self._loop = runner.get_loop()
            try:
                return runner.run(main)
            finally:
                self._over.set()

    def hang(self) -> str:
        """What a server calls to give no answer for as long as the loop runs."""
        with self._lock:
            self._hanging += 1
        assert self._loop is not None
        self._loop.call_soon_threadsafe(lambda: None)
        assert self._over.wait(HANG)
        return "too late"

    def sent(self) -> None:
        with self._lock:
            self._sent += 1

    def ended(self, *, hanging: bool) -> None:
        with self._lock:
            self._sent -= 1
            self._hanging -= hanging

    def passes(self) -> bool:
        """Whether nobody waits for anything but the time."""
        with self._lock:
            return self._sent == self._hanging and not self._over.is_set()


class Watched(Endpoint):
    """An endpoint that tells the clock what it has on the wire."""

    clock: Clock

    async def _send(self, line: Any, request: Request, payer: Any) -> Any:
        self.clock.sent()
        answered = False
        try:
            outcome = await super()._send(line, request, payer)
            answered = not isinstance(outcome, Exception) or "no answer within" not in str(outcome)
            return outcome
        finally:
            self.clock.ended(hanging=not answered)


class _Selector(selectors.DefaultSelector):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def select(self, timeout: float | None = None) -> Any:
        if not timeout:  # something is to be done at once, or there is nothing to be late for
            return super().select(timeout)
        if (ready := super().select(0)) or not self.clock.passes():
            return ready or super().select(None)
        self.clock.now += timeout
        return []


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, clock: Clock) -> None:
        super().__init__(_Selector(clock))
        self.clock = clock

    def time(self) -> float:
        return self.clock.now
