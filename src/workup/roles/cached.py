"""A model behind the cache: no request is sent twice.

Equal requests at the same time are one call.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from workup.core.errors import UserError
from workup.core.ports import Model, Reply, Request
from workup.roles.account import Account, cost, most
from workup.roles.endpoint import Price
from workup.roles.replies import CanonicalRequest, Charge, asked


@dataclass(slots=True)
class _Flight:
    task: asyncio.Task[Reply]
    waiters: int = 0


class Cached:
    """`model` for one run: answered from the cache, charged to `account`.

    One instance serves any number of event loops. `replay` answers from the cache alone. `fresh`
    uses no answer of other runs, only its own, so that a resumed run pays nothing twice.
    """

    def __init__(
        self,
        model: Model,
        account: Account,
        price: Price | None = None,
        *,
        replay: bool = False,
        fresh: bool = False,
    ) -> None:
        self.model, self.account, self.price = model, account, price or Price()
        self.replay, self.fresh = replay, fresh
        self._flights: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Flight]] = (
            WeakKeyDictionary()
        )

    @property
    def name(self) -> str:
        return self.model.name

    async def complete(self, request: Request) -> Reply:
        """The reply from the cache, else the model's, which is then kept. Failures are not kept.

        Raises what the model raises, BudgetError before a call that the budget does not allow, and
        UserError if `replay` is set and the cache has no reply.
        """
        what = asked(self.name, request, self.account.run if self.fresh else "")
        found = self.account.replies.find(what.key)
        if found is None and self.replay:
            raise UserError(
                f"replay: no answer of {self.name} to this request as {request.role} (version "
                f"{request.version}, key {what.key}) is kept in {self.account.replies.path}; run "
                "once without replay to record it"
            )
        if found is None:
            found = await self._once(what, request)
        if found.cached:
            self.account.replies.hit(self.account.run, request.role, self.name)
        return found

    async def _once(self, what: CanonicalRequest, request: Request) -> Reply:
        """Sends a request, or waits for an equal one that is being sent.

        The call is cancelled when the last one stops waiting.
        """
        loop = asyncio.get_running_loop()
        flights = self._flights.setdefault(loop, {})
        flight = flights.get(what.key)
        joined = flight is not None
        if flight is None:
            flight = flights[what.key] = _Flight(loop.create_task(self._send(what, request)))
        flight.waiters += 1
        try:
            reply = await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if flights.get(what.key) is flight and (flight.task.done() or not flight.waiters):
                del flights[what.key]
            if not flight.waiters:
                flight.task.cancel()
        return replace(reply, cached=True) if joined else reply

    async def _send(self, what: CanonicalRequest, request: Request) -> Reply:
        account, amount = self.account, most(request, self.price)
        await account.reserve(amount)
        try:
            reply = await self.model.complete(request)
            charge = Charge(
                account.run,
                reply.prompt_tokens,
                reply.completion_tokens,
                cost(request, reply, self.price),
            )
            kept = account.replies.keep(what, reply, charge)
        except BaseException:
            account.release(amount)
            raise
        # Released when the charge is written, even if nobody waits for the reply any more.
        kept.add_done_callback(lambda _: account.release(amount))
        return await asyncio.wrap_future(kept)
