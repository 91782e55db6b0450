"""The record of an episode that has been judged: training, evaluation and play make theirs here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from workup.core.episode import Ending, Score
from workup.core.ports import Environment
from workup.environments.base.anchors import BayesDiagnoser
from workup.metrics.measures import measure
from workup.runs.record import Outcome, Record


def with_score(record: Record, score: Score) -> Record:
    """`record` with its score, and among its measures those that the scoring has found."""
    found = {**record.measures, **score.measures}
    return replace(record, score=replace(score, measures={}), measures=found)


def measured_in(records: Iterable[Record | Outcome]) -> list[str]:
    """The names of all that was measured in these episodes, but for how they ended."""
    endings = {ending.name.lower() for ending in Ending}
    names = dict.fromkeys(name for record in records for name in record.measures)
    return [name for name in names if name not in endings]


def measured(
    record: Record,
    environment: Environment,
    costs: Mapping[str, float] | None = None,
    reader: BayesDiagnoser | None = None,
) -> Record:
    """`record` with the measures of its episode, before those that it already has.

    `environment`, `costs` and `reader` are those of `measure`. Without a verdict nothing is
    measured: the record stays as it is.
    """
    if record.correct is None:
        return record
    own = measure(record.episode, record.correct, environment, costs, reader)
    return replace(record, measures={**own, **record.measures})
