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
from workup.roles.endpoint import Endpoint, Price, Usage
from workup.roles.replies import CanonicalRequest, Charge, asked


@dataclass(slots=True)
class _Flight:
    task: asyncio.Task[Reply]
    waiters: int = 0


class _AccountPayer:
    """Pays the attempts of one request, of `request.max_tokens` each, from `account`."""

    def __init__(
        self, account: Account, price: Price, what: CanonicalRequest, request: Request
    ) -> None:
        self._account, self._price, self._what, self._request = account, price, what, request
        self._most, self._reserved = most(request, price), False

    async def reserve(self) -> None:
        if not self._reserved:
            await self._account.reserve(self._most)
            self._reserved = True

    async def lost(self, usage: Usage) -> None:
        await self.keep(Reply("", usage.prompt_tokens, usage.completion_tokens), lost=True)

    async def keep(self, reply: Reply, *, lost: bool = False) -> Reply:
        """Charges `reply` and, unless it is `lost`, keeps it; returns when that is on the disk."""
        price = cost(self._request, reply, self._price)
        charge = Charge(self._account.run, reply.prompt_tokens, reply.completion_tokens, price)
        kept = self._account.replies.keep(self._what, reply, charge, lost=lost)
        # Released when the charge is written, even if nobody waits for the reply any more.
        self._reserved = False
        kept.add_done_callback(lambda _: self._account.release(self._most))
        return await asyncio.wrap_future(kept)

    def release(self) -> None:
        """Gives back what is reserved and not spent."""
        if self._reserved:
            self._reserved = False
            self._account.release(self._most)


class Cached:
    """`model` for one run: answered from the cache, charged to `account`.

    One instance serves any number of event loops. `replay` answers from the cache alone. `fresh`
    uses no answer of other runs, only its own, so that a resumed run pays nothing twice. What an
    endpoint answers in vain is charged too, and the budget is asked again before the next attempt.
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
        paid = found is None
        if found is None:
            found, paid = await self._once(what, request)
        if not paid:
            self.account.replies.hit(self.account.run, request.role, self.name)
        return found

    async def _once(self, what: CanonicalRequest, request: Request) -> tuple[Reply, bool]:
        """Sends a request, or waits for an equal one that is being sent: the reply, and who pays.

        The call is cancelled when the last one stops waiting. The reply of a call that was joined
        is not `cached`: whoever asks again after such a reply would ask once for each who waited.
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
        return reply, not joined

    async def _send(self, what: CanonicalRequest, request: Request) -> Reply:
        model, limited = self.model, request
        if isinstance(model, Endpoint):  # its settings may have a limit of their own
            limited = replace(request, max_tokens=model.settings.tokens(request.max_tokens))
        payer = _AccountPayer(self.account, self.price, what, limited)
        await payer.reserve()
        try:
            if isinstance(model, Endpoint):
                reply = await model.complete(request, payer)
            else:
                reply = await model.complete(request)
            return await payer.keep(reply)
        finally:
            payer.release()
