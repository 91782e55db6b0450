"""A run's account: what it may spend, what it has spent, and the most its open calls can cost."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future

from workup.core.errors import BudgetError
from workup.core.ports import Reply, Request
from workup.roles.endpoint import Price
from workup.roles.replies import CallCost, Replies

MILLION = 1_000_000
FRAME = 32  # tokens that a chat template puts around a message, at most
EXTRA = 512  # tokens that an endpoint adds to the messages, at most: how to answer in JSON


class Account:
    """The account of `run` in `replies`, for any number of threads and event loops.

    Before a call is sent, the most that it can cost is reserved. It is sent only if three sums stay
    within `budget`: this reservation, those of the calls in flight, and the cost of earlier calls
    (of earlier sessions too). Else it waits for calls in flight, which mostly cost less than was
    reserved. If none is left, BudgetError is raised.
    """

    def __init__(self, replies: Replies, run: str, budget: float | None = None) -> None:
        self.replies, self.run, self.budget = replies, run, budget
        self._lock = threading.Lock()
        self._queue: deque[tuple[float, Future[None]]] = deque()
        self._held, self._holders = 0.0, 0
        self._last, self._spent = 0, 0.0

    def costs(self) -> list[CallCost]:
        """What the run has taken so far, by role and model."""
        return self.replies.costs(self.run)

    def spent(self) -> float:
        """The money charged to the run so far, by all its sessions and processes."""
        with self._lock:
            return self._read()

    async def reserve(self, amount: float) -> None:
        """Reserves `amount`; `release` gives it back.

        Raises BudgetError when the budget does not allow it.
        """
        if self.budget is None or not amount:
            return
        granted: Future[None] = Future()
        with self._lock:
            self._queue.append((amount, granted))
        self._serve()
        try:
            await asyncio.wrap_future(granted)
        except asyncio.CancelledError:
            if granted.cancel():
                self._serve()  # requests behind it may need less
            elif granted.exception() is None:
                self.release(amount)
            raise

    def release(self, amount: float) -> None:
        """Ends a reservation, after the call is over and its charge is written."""
        if self.budget is None or not amount:
            return
        with self._lock:
            self._holders -= 1
            # Sums of floats need not come back to zero.
            self._held = self._held - amount if self._holders else 0.0
        self._serve()

    def _serve(self) -> None:
        """Grants or refuses requests in the order of arrival, as far as that can be decided now."""
        with self._lock:
            while self._queue:
                amount, granted = self._queue[0]
                fits = self._read() + self._held + amount <= (self.budget or 0.0)
                if not fits and self._holders and not granted.cancelled():
                    return
                self._queue.popleft()
                if not granted.set_running_or_notify_cancel():
                    continue
                if fits:
                    self._held, self._holders = self._held + amount, self._holders + 1
                    granted.set_result(None)
                else:
                    refusal = BudgetError(
                        f"the budget of {self.budget:g} does not allow the next call: "
                        f"{self._spent:.4g} are spent, and it may cost up to {amount:.4g}; raise "
                        "`budget` and resume (what was paid is kept and not asked again)"
                    )
                    granted.set_exception(refusal)

    def _read(self) -> float:
        """What the run has been charged, by other processes too."""
        self._last, more = self.replies.charged(self.run, self._last)
        self._spent += more
        return self._spent


def most(request: Request, price: Price) -> float:
    """The most that a call can cost.

    No tokenizer makes more tokens than there are bytes, and `max_tokens` limits the answer.
    """
    text = sum(
        len(message.content.encode("utf-8", "replace")) + FRAME for message in request.messages
    )
    read = text + len(request.schema.encode("utf-8", "replace")) + EXTRA
    return (price.input * read + price.output * request.max_tokens) / MILLION


def cost(request: Request, reply: Reply, price: Price) -> float:
    """The cost of a call; the most it can be where the endpoint does not report its tokens.

    It may report those that were read alone: then the answer is charged as if it were the longest.
    """
    if not reply.prompt_tokens:
        return most(request, price)
    untold = bool(reply.text) and not reply.completion_tokens
    written = request.max_tokens if untold else reply.completion_tokens
    return (price.input * reply.prompt_tokens + price.output * written) / MILLION
