"""What the first ranked list holds, and what orders are worth: DiffAcc, #DDx and more (ES-14).

Models in the roles "ranking" and "examinations" judge, else the exact judges. Of several models in
one role each judges, and their mean counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from statistics import fmean

from workup.cases.catalogue import built_in, rated
from workup.core.case import Case
from workup.core.episode import Episode
from workup.environments.base.lists import ORDER, candidates
from workup.metrics.extra import Measure, Models, Values, averaged
from workup.metrics.measures import DDX, ddx
from workup.metrics.metric import PAGED, Metric
from workup.roles.judges.assessor import Panel
from workup.roles.judges.exact import ExactExaminations, ExactRanking
from workup.roles.judges.examinations import ExaminationJudge
from workup.roles.judges.questions import (
    Appraised,
    CandidateStanding,
    Ordered,
    RankingQuestion,
    RankingVerdict,
)
from workup.roles.judges.ranking import RankingJudge

RANKING, EXAMINING = "ranking", "examinations"
ROLES = PANELS = (RANKING, EXAMINING)
EXACT = "exact"
METRICS = (
    Metric(
        "diff_acc",
        "share of the first turn's lists that hold the true diagnosis",
        "DiffAcc",
        rank=200,
    ),
    Metric(
        "initial",
        "share of the first turn's lists that have the true diagnosis first",
        "first in list",
        rank=210,
        where=PAGED,
    ),
    DDX,
    Metric(
        "hacks",
        "share of the lists with a candidate that contradicts the patient, is vague or does not "
        "exist",
        undefined="where no list could be read, or nobody knows the candidates",
        rank=240,
    ),
    Metric(
        "worth",
        "what the ordered examinations are worth, as a share of the most that they can be",
        "orders' worth",
        undefined="where nothing was ordered, or nobody knows what an order is worth",
        range=(-1.0, 1.0),
        rank=250,
    ),
)


def open(option: str, cases: Sequence[Case], models: Models) -> Measure:
    """The measure; `option` is ignored.

    Where no model judges, hacks are known among the clinic's diseases alone, and the worth of an
    order in its pathology wing alone. So `hacks` and `worth` are undefined unless the diagnoses of
    all `cases` belong there; cases of another source share some names with the clinic.
    """
    ranking, examining = models.get(RANKING), models.get(EXAMINING)
    known = all(built_in().find(case.truth.diagnosis) for case in cases)
    return _Differential(
        Panel(
            {name: RankingJudge(model) for name, model in ranking.items()}
            if ranking
            else {EXACT: ExactRanking()}
        ),
        Panel(
            {name: ExaminationJudge(model) for name, model in examining.items()}
            if examining
            else {EXACT: ExactExaminations()}
        ),
        hacks=bool(ranking) or known,
        worth=bool(examining) or rated(cases),
    )


class _Differential:
    """The measures of one episode.

    All but `ddx` are means over the judges of their role.
    """

    def __init__(
        self,
        ranking: Panel[RankingQuestion, RankingVerdict],
        examining: Panel[Ordered, Appraised],
        *,
        hacks: bool,
        worth: bool,
    ) -> None:
        self._ranking, self._examining = ranking, examining
        self._hacks, self._worth = hacks, worth

    async def __call__(self, episode: Episode, correct: bool) -> Values:
        """The measures by name. Raises RolloutError where a judge gives up."""
        return {
            "ddx": ddx(episode),
            **await self._placed(episode),
            **await self._appraised(episode),
        }

    async def _placed(self, episode: Episode) -> Values:
        """diff_acc, initial and hacks; of a turn without a list no judge is asked."""
        written = [candidates(turn.action) for turn in episode.turns]
        begun = any(written[:1])
        questions = [RankingQuestion(each, episode.case) for each in written if each]
        opinions = await asyncio.gather(*map(self._ranking.judge, questions))
        found = {}
        for judge in self._ranking.names:
            lists = [each.verdicts[judge] for each in opinions]
            first = lists[0].standings if begun else ()
            spoilt = [float(bool(each.hacks)) for each in lists]
            found[judge] = {
                "diff_acc": float(CandidateStanding.SAME in first),
                "initial": float(first[:1] == (CandidateStanding.SAME,)),
                "hacks": fmean(spoilt) if spoilt and self._hacks else None,
            }
        return averaged(found)

    async def _appraised(self, episode: Episode) -> Values:
        actions = [turn.action for turn in episode.turns if turn.action.kind == ORDER]
        orders = [Ordered(each.content, listed) for each in actions if (listed := candidates(each))]
        opinions = await asyncio.gather(*map(self._examining.judge, orders if self._worth else ()))
        return averaged(
            {
                judge: {
                    "worth": fmean(each.verdicts[judge].value for each in opinions)
                    if opinions
                    else None
                }
                for judge in self._examining.names
            }
        )
