"""Share of the episodes in which a passage that was retrieved holds the diagnosis (C-MIG Eq. 14)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workup.case import Case
from workup.episode import Episode
from workup.ports import Model
from workup.signals.documents import doc_hit
from workup.signals.extra import Measure, Values


def open(option: str, cases: Sequence[Case], models: Mapping[str, Model]) -> Measure:
    return measure


async def measure(episode: Episode, correct: bool) -> Values:
    return {"doc_hit": doc_hit(episode)}
