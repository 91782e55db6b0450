"""The anchor that writes ranked lists: the best list of a given length."""

from __future__ import annotations

from collections.abc import Sequence

from workup.core.case import Case, Evidence, Item, Knowledge
from workup.core.episode import Completion, Message, Turn
from workup.core.ports import Act, Sampling
from workup.environments.base.anchors import BayesDiagnoser
from workup.environments.base.ranked_teacher import (
    MOST_EXAMINATIONS,
    Lists,
    informative,
    learned,
    ranked,
)


class RankedDoctor(BayesDiagnoser):
    """Ranks at most `length` candidates and orders the most informative examinations, then ends.

    It ranks by the exact posterior, and leaves out candidates that are hardly possible: the best
    list of its length. It orders `orders` examinations in every turn but the last.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        items: Sequence[Item],
        world: Lists,
        length: int,
        orders: int = MOST_EXAMINATIONS,
    ) -> None:
        super().__init__(knowledge, items, world.write, world.known)
        self.world, self.length, self.orders = world, length, orders

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        evidence = self.evidence(case, past)
        candidates = ranked(self.knowledge, evidence, self.length)
        if len(past) >= self.world.max_turns - 1:
            return Act((), Completion(self.world.write_lists(candidates)))
        offered = self.world.offered(len(past))
        orders = informative(self.knowledge, evidence, offered, self.orders)
        return Act((), Completion(self.world.write_lists(candidates, orders)))

    def evidence(self, case: Case, past: Sequence[Turn]) -> Evidence:
        return learned(self.world, case, past)
