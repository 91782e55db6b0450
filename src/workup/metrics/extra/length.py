"""How much a policy writes: its own tokens per turn (ES-14)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from workup.core.case import Case
from workup.core.episode import Episode
from workup.metrics.extra import Measure, Models, Values
from workup.metrics.metric import COUNT, PAGED, Metric

METRICS = (
    Metric(
        "tokens_per_turn",
        "tokens that the policy wrote in a turn",
        "tokens a turn",
        undefined="where the doctor's tokens are not known, as an endpoint's",
        range=COUNT,
        rank=410,
        where=PAGED,
    ),
)


def open(option: str, cases: Sequence[Case], models: Models) -> Measure:
    """The measure; `option` is ignored."""

    async def measure(episode: Episode, correct: bool) -> Values:
        """tokens_per_turn; undefined for doctors without token ids (anchors, endpoints)."""
        counts = [len(turn.completion.tokens) for turn in episode.turns]
        return {"tokens_per_turn": fmean(counts) if any(counts) else None}

    return measure
