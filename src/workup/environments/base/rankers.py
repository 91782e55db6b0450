"""Anchors on rare diseases: doctors that name the first disease of an exact ranking.

The rankings are those of `workup.retrieval.hpo.rankings`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from workup.core.case import Case, Source
from workup.core.episode import Completion, Message, Turn
from workup.core.ports import Act, Doctor, Sampling
from workup.environments.base.anchors import Known, told
from workup.retrieval.hpo.rankings import NAMED, Ranking, Rankings

NONE = "unknown"  # what is named where a ranking is empty

Write = Callable[[Sequence[str]], str]  # at most NAMED ids, the first the best → a completion


class RankingDoctor:
    """Names the first of a ranking at once, by the disease's id. It asks and searches nothing.

    It ranks by what the opening tells (`known`) and by the findings that `past` revealed.
    """

    def __init__(self, ranking: Ranking, known: Known, write: Write) -> None:
        self.ranking, self.known, self.write = ranking, known, write

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        ranked = self.ranking(case, told(case, past, self.known(case)))[:NAMED]
        return Act((), Completion(self.write(ranked or (NONE,))))


def rankers(
    rankings: Rankings,
    source: Source,
    seed: int,
    known: Known,
    write: Write,
    *,
    own_paper: bool = False,
) -> dict[str, Doctor]:
    """A doctor for each of the `rankings`, by label (`Rankings.by_label`)."""
    found = rankings.by_label(source, seed, own_paper=own_paper)
    return {label: RankingDoctor(each, known, write) for label, each in found.items()}
