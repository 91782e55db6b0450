"""What exact reasoning gets out of good and of random questions: accuracy after each of them.

The greedy and the random doctor are stopped after 0, 1, … of the questions that they asked in an
evaluation, and an exact reader names the diagnosis. These curves bound what a policy's questions
can be compared with.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from workup.core.case import Source
from workup.core.episode import Ending
from workup.core.ports import Environment
from workup.core.statistics import SHARE, interval
from workup.environments.base.anchors import BayesDiagnoser, GreedyDoctor, RandomDoctor
from workup.metrics.reading import read_right_after, reader_of
from workup.runs import Run

Curve = list[dict[str, Any]]


def curves(run: Run, source: Source, environment: Environment) -> dict[str, Curve]:
    """For summary.json: the curve of each such doctor that `run` evaluated, by label.

    It played the cases of `source` in `environment`.

    The k-th entry, from 0, is for doctors stopped after k questions: `questions`, the mean of how
    many they had asked by then, and `accuracy`, an estimate with its interval by case. An episode
    with fewer questions counts as it ended. A doctor whose episodes all failed has no curve. Empty
    where there is no exact reader.
    """
    reader = reader_of(source, environment)
    if reader is None:
        return {}
    evaluated = run.doctors()
    return {
        label: curve
        for label, doctor in environment.about.anchors(source, run.seed).items()
        if isinstance(doctor, GreedyDoctor | RandomDoctor) and label in evaluated
        # The reader's posterior is not that of a doctor with another channel (credulous greedy).
        if doctor.channel is reader.channel and (curve := _curve(run, label, reader))
    }


def _curve(run: Run, label: str, reader: BayesDiagnoser) -> Curve:
    read = {
        (record.episode.case.id, record.sample): read_right_after(record.episode, reader)
        for record in run.evaluated(label)
        if record.episode.ending is not Ending.FAILED
    }
    cases = [case for case, _ in read]
    most = max((len(verdicts) - 1 for verdicts in read.values()), default=-1)
    made = []
    for asked in range(most + 1):
        last = [min(asked, len(verdicts) - 1) for verdicts in read.values()]
        right = [float(each[k]) for each, k in zip(read.values(), last, strict=True)]
        found = interval(right, cases, bounds=SHARE, seed=run.seed)
        made.append({"questions": float(np.mean(last)), "accuracy": found.as_json()})
    return made
