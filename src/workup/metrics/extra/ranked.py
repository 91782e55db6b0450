"""Where the last ranked list has the truth: top-1, top-3, top-10 and the reciprocal rank.

Models in the role "ranking" judge, and their mean counts; else names and codes do.
"""

from __future__ import annotations

from collections.abc import Sequence

from workup.core.case import Case
from workup.core.episode import Episode
from workup.environments.base.lists import candidates
from workup.metrics.extra import Measure, Models, Values, averaged
from workup.metrics.metric import PAGED, Metric
from workup.roles.judges.assessor import Panel
from workup.roles.judges.exact import ExactRanking
from workup.roles.judges.questions import CandidateStanding, RankingQuestion, RankingVerdict
from workup.roles.judges.ranking import RankingJudge

RANKING = "ranking"
ROLES = PANELS = (RANKING,)
TOP = (1, 3, 10)
METRICS = (
    *(
        Metric(
            f"top_{k}",
            f"share of the last lists with the true diagnosis among the first {k}"
            if k > 1
            else "share of the last lists with the true diagnosis first",
            f"top-{k}",
            rank=500 + number,
            where=PAGED,
        )
        for number, k in enumerate(TOP)
    ),
    Metric(
        "reciprocal_rank",
        "mean of 1 / the place of the true diagnosis in the last list, 0 where it is not in it",
        "MRR",
        rank=503,
        where=PAGED,
    ),
)


def open(option: str, cases: Sequence[Case], models: Models) -> Measure:
    """The measure; `option` is ignored."""
    ranking = {name: RankingJudge(model) for name, model in models.get(RANKING, {}).items()}
    judges: Panel[RankingQuestion, RankingVerdict] = Panel(ranking or {"exact": ExactRanking()})

    async def measure(episode: Episode, correct: bool) -> Values:
        """top_1, top_3, top_10 ∈ {0, 1} and reciprocal_rank ∈ [0, 1] of the last turn's list.

        All are 0 where that list does not hold the truth, or there is none. A diagnosis is a list
        of one. Raises RolloutError where the judge gives up.
        """
        listed = candidates(episode.turns[-1].action) if episode.turns else ()
        if not listed:
            return averaged({name: _values(0) for name in judges.names})
        placed = await judges.judge(RankingQuestion(listed, episode.case))
        same, found = CandidateStanding.SAME, dict[str, Values]()
        for name, each in placed.verdicts.items():
            place = each.standings.index(same) + 1 if same in each.standings else 0
            found[name] = _values(place)
        return averaged(found)

    return measure


def _values(place: int) -> Values:
    """`place` is where the truth first stands, from 1; 0 where it does not."""
    found = {f"top_{k}": float(0 < place <= k) for k in TOP}
    return {**found, "reciprocal_rank": 1 / place if place else 0.0}
