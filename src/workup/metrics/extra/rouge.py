"""ROUGE of the answer against the reference text (PM-16), for answers of several sentences."""

from __future__ import annotations

from collections.abc import Sequence

from workup.core.case import Case
from workup.core.episode import Episode
from workup.metrics import text_overlap
from workup.metrics.extra import Measure, Models, Values
from workup.metrics.metric import PAGED, Metric

_OVERLAP = "F1 of the {} that answer and reference text share"
METRICS = (
    Metric("rouge1", _OVERLAP.format("words"), "ROUGE-1", rank=710, where=PAGED),
    Metric(
        "rouge1_recall",
        "share of the reference text's words that the answer has",
        "ROUGE-1 recall",
        rank=711,
        where=PAGED,
    ),
    Metric("rouge2", _OVERLAP.format("pairs of words"), "ROUGE-2", rank=712, where=PAGED),
    Metric("rougeL", _OVERLAP.format("longest sequence"), "ROUGE-L", rank=713, where=PAGED),
)


def open(option: str, cases: Sequence[Case], models: Models) -> Measure:
    text_overlap.rouge("to be", ["to be"])  # a missing package shows before anything is played
    return measure


async def measure(episode: Episode, correct: bool) -> Values:
    return text_overlap.rouge(" ".join(episode.answer), text_overlap.references(episode.case))
