"""BLEU-4 of the answer against the reference text (PM-16), for answers of several sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workup.case import Case
from workup.episode import Episode
from workup.metrics import text_overlap
from workup.metrics.extra import Measure, Values
from workup.ports import Model


def open(option: str, cases: Sequence[Case], models: Mapping[str, Model]) -> Measure:
    text_overlap.bleu("to be", ["to be"])  # a missing package shows before anything is played
    return measure


async def measure(episode: Episode, correct: bool) -> Values:
    return {
        "bleu": text_overlap.bleu(" ".join(episode.answer), text_overlap.references(episode.case))
    }
