"""BLEU-4 of the answer against the reference text (PM-16), for answers of several sentences."""

from __future__ import annotations

from collections.abc import Sequence

from workup.core.case import Case
from workup.core.episode import Episode
from workup.metrics import text_overlap
from workup.metrics.extra import Measure, Models, Values
from workup.metrics.metric import PAGED, Metric

METRICS = (
    Metric(
        "bleu", "BLEU-4 of the answer against the reference text", "BLEU-4", rank=700, where=PAGED
    ),
)


def open(option: str, cases: Sequence[Case], models: Models) -> Measure:
    text_overlap.bleu("to be", ["to be"])  # a missing package shows before anything is played
    return measure


async def measure(episode: Episode, correct: bool) -> Values:
    return {
        "bleu": text_overlap.bleu(" ".join(episode.answer), text_overlap.references(episode.case))
    }
