"""What exact reasoning makes of an encounter: whether its findings were enough for the diagnosis.

An exact reader sees the presentation and what the doctor's questions revealed, and names the most
probable diagnosis by the source's own model of its cases. What the doctor answered plays no part.
"""

from __future__ import annotations

from collections.abc import Sequence

from workup.core.case import Case, Source
from workup.core.episode import Episode, Turn
from workup.core.ports import Environment
from workup.environments.base.anchors import BayesDiagnoser, exact_reader
from workup.metrics.metric import Metric

EXACT_READER = Metric(
    "exact_reader",
    "share of the episodes in which the true diagnosis is the most probable one, by the source's "
    "own model, given the presentation and what was found; what the doctor answered plays no part",
    "exact reader",
    undefined="where nothing can be asked for, or the source has no model of its cases",
    rank=15,
)


def reader_of(source: Source, environment: Environment) -> BayesDiagnoser | None:
    """The exact reader of episodes with cases of `source` in `environment`.

    None where nothing can be asked for in it, and where the source has no model of its cases.
    """
    return exact_reader(source, environment) if environment.about.asks else None


def read_right(episode: Episode, reader: BayesDiagnoser) -> bool:
    """Whether the reader names the truth, after all of the episode.

    Stored episodes can be read as well, with one exception: of cases whose diseases bear names of
    their own (`#renamed`) a run folder does not keep what the names mean.
    """
    return _right(reader, episode.case, episode.turns)


def read_right_after(episode: Episode, reader: BayesDiagnoser) -> list[bool]:
    """The same if the doctor had stopped after 0, 1, … and all of its questions."""
    case, turns = episode.case, episode.turns
    return [_right(reader, case, turns[:asked]) for asked in range(episode.questions + 1)]


def _right(reader: BayesDiagnoser, case: Case, past: Sequence[Turn]) -> bool:
    return reader.most_probable(reader.evidence(case, past)) == case.truth.diagnosis
