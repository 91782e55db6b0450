"""Anchors on rare diseases: doctors that name the first disease of an exact ranking.

The rankings are those of `workup.retrieval.hpo.rankings`. Where terms can be asked for, two doctors
ask before they name it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from workup.core.case import Case, Source
from workup.core.draws import seed_key
from workup.core.episode import ASK, Completion, Message, Turn
from workup.core.ports import Act, Doctor, Environment, Sampling
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


class TermDoctor:
    """Asks for a term of the HPO in every turn but the last, then does what `last` does.

    It asks for the term of largest expected information (`TermQuestions`), or with a `seed` for one
    at random that no earlier answer settled. Nothing is asked for twice, not even what the patient
    does not understand. Without `own_paper` it uses nothing that rests on the case's own
    publication alone.
    """

    def __init__(
        self,
        rankings: Rankings,
        last: RankingDoctor,
        world: Environment,
        seed: int | None = None,
        *,
        own_paper: bool = False,
    ) -> None:
        self.rankings, self.last, self.world = rankings, last, world
        self.seed, self.own_paper = seed, own_paper

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        term = self._term(case, past) if len(past) < self.world.max_turns - 1 else ""
        if not term:
            return await self.last.act(case, opening, past, sampling)
        return Act((), Completion(self.world.write(ASK, term)))

    def present(self, case: Case, past: Sequence[Turn]) -> tuple[str, ...]:
        """The ids of the findings that the opening told and the turns revealed."""
        return tuple(chain(*told(case, past, self.last.known(case)).values()))

    def _term(self, case: Case, past: Sequence[Turn]) -> str:
        """The name of the term to ask for; "" where none is left."""
        questions, columns = self.rankings.questions()
        seen = [turn.observation for turn in past if turn.observation.item in columns]
        settled = frozenset[int]().union(*(questions.kinds(columns[each.item]) for each in seen))
        asked = (text for turn in past if turn.action.kind == ASK for text in turn.action.content)
        settled |= {columns[name] for name in asked if name in columns}
        if self.seed is not None:
            left = [name for name, column in columns.items() if column not in settled]
            draw = seed_key("term", self.seed, case.id, len(past))
            return left[draw % len(left)] if left else ""
        present = self.present(case, past)
        denied = [each.item for each in seen if each.understood and not each.evidence]
        return self.rankings.telling(case, present, denied, settled, own_paper=self.own_paper)
