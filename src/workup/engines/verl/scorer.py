"""Log-probabilities of given answers: live on verl's servers, frozen by its reference workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import chain

from workup.core.episode import Sample
from workup.engines.verl.policy import VerlPolicy
from workup.models.remembering import Remembering
from workup.models.scorer_trie import PathAnswer

ROWS = 1_024  # answers that the reference workers get at a time


class ServerScorer(Remembering):
    """A `Scorer` under the weights that play: the servers give the log-probability of each token.

    At most `at_once` answers are asked for at a time. The servers read every context whole, also
    where several begin alike: a request for a prompt's log-probabilities does not use the prefix
    cache.
    """

    def __init__(self, policy: VerlPolicy, at_once: int) -> None:
        # The server draws one token after the answer.
        super().__init__(policy, policy.context - 1)
        self.policy, self.at_once = policy, at_once

    async def _step(self) -> None:
        batch, self.waiting = self.waiting, []
        began, free = time.perf_counter(), asyncio.Semaphore(self.at_once)

        async def one(wanted: PathAnswer) -> float:
            async with free:
                return sum(await self.policy.known(_before(wanted), wanted.answer))

        values = await asyncio.gather(*map(one, batch))
        self.work.tokens += sum(len(_before(each)) + len(each.answer) for each in batch)
        self.work.forwards += len(batch)
        self.work.seconds += time.perf_counter() - began
        self._deliver(batch, values)


class ReferenceScorer(Remembering):
    """A `Scorer` under the weights that the stage began with.

    `compute(samples)` returns log P of the labelled tokens of each; it is verl's reference
    workers', and nothing else goes on in this process meanwhile.
    """

    def __init__(
        self, policy: VerlPolicy, compute: Callable[[Sequence[Sample]], Sequence[float]]
    ) -> None:
        super().__init__(policy, policy.context)
        self.compute = compute

    def refresh(self) -> None:
        """Does nothing: these weights do not change."""

    async def _step(self) -> None:
        batch, self.waiting = self.waiting, []
        began = time.perf_counter()
        values: list[float] = []
        for start in range(0, len(batch), ROWS):
            values += self.compute([_answered(each) for each in batch[start : start + ROWS]])
            self.work.forwards += 1
        self.work.tokens += sum(len(_before(each)) + len(each.answer) for each in batch)
        self.work.seconds += time.perf_counter() - began
        self._deliver(batch, values)


def _before(wanted: PathAnswer) -> tuple[int, ...]:
    return tuple(chain.from_iterable(wanted.path))


def _answered(wanted: PathAnswer) -> Sample:
    """The context and the answer, which alone is labelled."""
    before = _before(wanted)
    tokens = (*before, *wanted.answer)
    nothing = (0.0,) * len(tokens)
    mask = (False,) * len(before) + (True,) * len(wanted.answer)
    return Sample(tokens, mask, nothing, nothing, (0,) * len(tokens))
