"""What the first ranked list holds, and what orders are worth: DiffAcc, #DDx and more (ES-14).

Models in the roles "ranking" and "examinations" judge, else the exact judges.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from statistics import fmean

from workup.case import Case
from workup.cases.clinic.catalogue import clinic_catalogue
from workup.environments.base.lists import ORDER, Said, take_apart
from workup.episode import Episode
from workup.judges.assessor import Assessor
from workup.judges.exact import ExactExaminations, ExactRanking
from workup.judges.examinations import ExaminationJudge
from workup.judges.questions import Appraised, Ordered, Placed, Ranked, Standing
from workup.judges.ranking import RankingJudge
from workup.metrics.extra import Measure, Values
from workup.ports import Model

RANKING, EXAMINING = "ranking", "examinations"
ROLES = (RANKING, EXAMINING)


def open(option: str, cases: Sequence[Case], models: Mapping[str, Model]) -> Measure:
    """The measure; `option` is ignored.

    Where no model judges, candidates that the clinic does not know and examinations beyond the
    pathology wing cannot be judged: `hacks` and `worth` are undefined for cases of other sources.
    """
    ranking = models.get(RANKING)
    examining = models.get(EXAMINING)
    return _Differential(
        RankingJudge(ranking) if ranking else ExactRanking(),
        ExaminationJudge(examining) if examining else ExactExaminations(),
        hacks=bool(ranking),
        worth=bool(examining),
    )


class _Differential:
    """The measures of one episode.

    - diff_acc: 0 or 1, whether the first turn's list holds the truth, hacks or not
    - initial: 0 or 1, whether it stands first there; accuracy (DxAcc) is that of the last answer
    - ddx: the length of that list; undefined where none could be read
    - hacks: the share of the turns' lists with a candidate that is a hack (ES-8)
    - worth: R_e / B_e of the turns with orders, their mean, within [−1, 1] (ES-7)
    """

    def __init__(
        self,
        ranking: Assessor[Ranked, Placed],
        examining: Assessor[Ordered, Appraised],
        *,
        hacks: bool,
        worth: bool,
    ) -> None:
        self._ranking, self._examining = ranking, examining
        self._hacks, self._worth = hacks, worth

    async def __call__(self, episode: Episode, correct: bool) -> Values:
        """The measures by name. Raises RolloutError where a judge gives up."""
        said = [take_apart(turn.completion.text) for turn in episode.turns]
        placed = await asyncio.gather(*(self._placed(each, episode.case) for each in said))
        known = bool(clinic_catalogue().find(episode.case.truth.diagnosis))
        first, lists = placed[0] if placed else None, [each for each in placed if each]
        hacks = [float(bool(each.hacks)) for each in lists]
        return {
            "diff_acc": float(first is not None and Standing.SAME in first.standings),
            "initial": float(first is not None and first.standings[:1] == (Standing.SAME,)),
            "ddx": float(len(said[0].candidates)) if first else None,
            "hacks": fmean(hacks) if hacks and (known or self._hacks) else None,
            "worth": await self._appraised(episode, said) if known or self._worth else None,
        }

    async def _placed(self, said: Said, case: Case) -> Placed | None:
        """Where the turn's list holds the truth; None without one that could be read."""
        if not said.candidates:
            return None
        return await self._ranking.judge(Ranked(said.candidates, case))

    async def _appraised(self, episode: Episode, said: Sequence[Said]) -> float | None:
        """The mean worth of the turns with orders, as the environment read them.

        A list of candidates alone may be an order or the end: the turn's action says which.
        """
        orders = [
            Ordered(each.examinations, each.candidates)
            for turn, each in zip(episode.turns, said, strict=True)
            if each.candidates and turn.action.kind == ORDER
        ]
        verdicts = await asyncio.gather(*map(self._examining.judge, orders))
        return fmean(verdict.value for verdict in verdicts) if verdicts else None
