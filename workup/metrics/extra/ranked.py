"""Where the last ranked list has the truth: top-1, top-3, top-10 and the reciprocal rank.

A model in the role "ranking" judges, else names and codes decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workup.case import Case
from workup.environments.base.lists import take_apart
from workup.episode import Episode
from workup.judges.assessor import Assessor
from workup.judges.exact import ExactRanking
from workup.judges.questions import Placed, Ranked, Standing
from workup.judges.ranking import RankingJudge
from workup.metrics.extra import Measure, Values
from workup.ports import Model

RANKING = "ranking"
ROLES = (RANKING,)
TOP = (1, 3, 10)


def open(option: str, cases: Sequence[Case], models: Mapping[str, Model]) -> Measure:
    """The measure; `option` is ignored."""
    model = models.get(RANKING)
    judge: Assessor[Ranked, Placed] = RankingJudge(model) if model else ExactRanking()

    async def measure(episode: Episode, correct: bool) -> Values:
        """top_1, top_3, top_10 ∈ {0, 1} and reciprocal_rank ∈ [0, 1] of the last turn's list.

        All are 0 where that list does not hold the truth, or there is none. A diagnosis is a list
        of one. Raises RolloutError where the judge gives up.
        """
        place = await _place(judge, episode)
        found = {f"top_{k}": float(0 < place <= k) for k in TOP}
        return {**found, "reciprocal_rank": 1 / place if place else 0.0}

    return measure


async def _place(judge: Assessor[Ranked, Placed], episode: Episode) -> int:
    """Where the truth first stands in the last turn's list, from 1; 0 where it does not."""
    text = episode.turns[-1].completion.text if episode.turns else ""
    candidates = take_apart(text, ranked=True).candidates
    if not candidates:
        return 0
    standings = (await judge.judge(Ranked(candidates, episode.case))).standings
    return standings.index(Standing.SAME) + 1 if Standing.SAME in standings else 0
