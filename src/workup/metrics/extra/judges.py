"""What each judge of the diagnosis says, and the mean over the judges (ES-14).

Accuracy goes by the majority of `roles.judge`; this is each one's own figure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from workup.core.case import Case
from workup.core.episode import Episode
from workup.core.errors import UserError
from workup.metrics.extra import Measure, Models, Values, averaged
from workup.metrics.metric import PAGED, Metric
from workup.roles.judges.diagnosis import DiagnosisJudge
from workup.roles.judges.options import OptionJudge

JUDGE = "judge"
ROLES = PANELS = (JUDGE,)
METRICS = (
    Metric(
        "judged",
        "share of the judges that find the diagnosis right, averaged over the episodes",
        "found right",
        rank=400,
        where=PAGED,
    ),
)


def open(option: str, cases: Sequence[Case], models: Models) -> Measure:
    """The measure; `option` is ignored. Raises UserError where no model judges."""
    judges = {
        name: OptionJudge(DiagnosisJudge(model)) for name, model in models.get(JUDGE, {}).items()
    }
    if not judges:
        raise UserError(
            "measure 'judges' compares models: name them, as in roles.judge=endpoint:a,endpoint:b"
        )

    async def measure(episode: Episode, correct: bool) -> Values:
        """judged ∈ [0, 1]: the share of the judges that find the diagnosis right; 0 without one.

        Raises RolloutError where a judge gives up.
        """
        answer = episode.answer[0] if episode.answer else ""
        asked = [judge.same(answer, episode.case) for judge in judges.values() if answer]
        found = await asyncio.gather(*asked) if answer else [False] * len(judges)
        verdicts = zip(judges, found, strict=True)
        return averaged({name: {"judged": float(right)} for name, right in verdicts})

    return measure
