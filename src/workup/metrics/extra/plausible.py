"""Are the ordered examinations plausible: the share that tells the candidates apart (ES-14).

Option: how often each order is judged, 3 by default, as in "plausible:5". By a model in the role
"examinations" with a temperature of 1, so that its judgements differ; else by the exact judge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from workup.cases.catalogue import rated
from workup.core.case import Case
from workup.core.episode import Episode
from workup.core.errors import UserError
from workup.core.ports import Model, Reply, Request
from workup.environments.base.lists import ORDER, candidates
from workup.metrics.extra import Measure, Models, Values
from workup.metrics.metric import Metric
from workup.roles.judges.assessor import Assessor
from workup.roles.judges.exact import ExactExaminations
from workup.roles.judges.examinations import ExaminationJudge
from workup.roles.judges.questions import Appraised, Ordered, Worth

EXAMINING = "examinations"
ROLES = (EXAMINING,)
REPEATS, MOST = 3, 100
METRICS = (
    Metric(
        "plausible",
        "share of the first turn's orders that tell the candidates apart",
        "plausible orders",
        undefined="where the first turn ordered nothing, or nobody knows what an order is worth",
        rank=260,
    ),
)


def open(option: str, cases: Sequence[Case], models: Models) -> Measure:
    """The measure; without a model it is undefined unless all `cases` are the pathology wing's.

    Raises UserError for an option that is no number from 1 to 100.
    """
    repeats = int(option or REPEATS) if (option or "0").isdecimal() else 0
    if not 1 <= repeats <= MOST:
        raise UserError(
            f"measure 'plausible:{option}': how often each order is judged is a number from 1 to "
            f"{MOST}, as in plausible:3"
        )
    model = next(iter(models.get(EXAMINING, {}).values()), None)
    judges: list[Assessor[Ordered, Appraised]] = []
    if model:
        judges = [ExaminationJudge(Draw(model, sample)) for sample in range(repeats)]
    elif rated(cases):
        judges = [ExactExaminations()]

    async def measure(episode: Episode, correct: bool) -> Values:
        """plausible ∈ [0, 1], of the first turn's orders; undefined where it ordered nothing.

        Raises RolloutError where a judge gives up.
        """
        turn = episode.turns[0] if episode.turns else None
        if turn is None or turn.action.kind != ORDER:
            return {"plausible": None}
        asked = Ordered(turn.action.content, candidates(turn.action))
        found = await asyncio.gather(*(judge.judge(asked) for judge in judges))
        passed = [worth is Worth.DIFFERENTIATES for each in found for worth in each.worths]
        return {"plausible": fmean(passed) if passed else None}

    return measure


class Draw:
    """A `Model` whose every answer is drawn with a temperature of 1: the `sample`-th draw."""

    def __init__(self, model: Model, sample: int) -> None:
        self._model, self._sample = model, sample

    @property
    def name(self) -> str:
        return self._model.name

    async def complete(self, request: Request) -> Reply:
        """Raises RolloutError where the model gives up."""
        drawn = replace(request, temperature=1.0, sample=self._sample)
        return await self._model.complete(drawn)
