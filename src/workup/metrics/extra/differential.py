"""What the first ranked list holds, and what orders are worth: DiffAcc, #DDx and more (ES-14).

Models in the roles "ranking" and "examinations" judge, else the exact judges. Of several models in
one role each judges, and their mean counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from statistics import fmean

from workup.cases.clinic.catalogue import clinic_catalogue
from workup.cases.clinic.pathology import of_the_wing
from workup.core.case import Case
from workup.core.episode import Episode
from workup.environments.base.lists import ORDER, Said, take_apart
from workup.metrics.extra import Measure, Models, Values, averaged
from workup.metrics.measures import ddx
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


def open(option: str, cases: Sequence[Case], models: Models) -> Measure:
    """The measure; `option` is ignored.

    Where no model judges, hacks are known among the clinic's diseases alone, and the worth of an
    order in its pathology wing alone. So `hacks` and `worth` are undefined unless the diagnoses of
    all `cases` belong there; cases of another source share some names with the clinic.
    """
    ranking, examining = models.get(RANKING), models.get(EXAMINING)
    clinic = all(clinic_catalogue().find(case.truth.diagnosis) for case in cases)
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
        hacks=bool(ranking) or clinic,
        worth=bool(examining) or of_the_wing(cases),
    )


class _Differential:
    """The measures of one episode.

    - diff_acc: 0 or 1, whether the first turn's list holds the truth, hacks or not
    - initial: 0 or 1, whether it stands first there; accuracy (DxAcc) is that of the last answer
    - ddx: the length of that list; undefined where none could be read
    - hacks: the share of the turns' lists with a candidate that is a hack (ES-8)
    - worth: R_e / B_e of the turns with orders, their mean, within [−1, 1] (ES-7)

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
        said = [take_apart(turn.completion.text) for turn in episode.turns]
        return {
            "ddx": ddx(episode),
            **await self._placed(said, episode.case),
            **await self._appraised(episode, said),
        }

    async def _placed(self, said: Sequence[Said], case: Case) -> Values:
        """diff_acc, initial and hacks; of a turn without a list no judge is asked."""
        begun = bool(said) and bool(said[0].candidates)
        questions = [RankingQuestion(each.candidates, case) for each in said if each.candidates]
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

    async def _appraised(self, episode: Episode, said: Sequence[Said]) -> Values:
        """By the environment's own reading: a list alone may be an order or the end."""
        orders = [
            Ordered(each.examinations, each.candidates)
            for turn, each in zip(episode.turns, said, strict=True)
            if each.candidates and turn.action.kind == ORDER
        ]
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
