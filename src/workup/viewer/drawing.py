"""Learning curves of a running run: a few points of SVG per figure, drawn anew at every look.

The report's figures take matplotlib a second of processor time, which a running run would miss, and
hold style attributes, which the pages' security policy refuses.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workup.metrics import known
from workup.report.curves import HEALTH, PANELS, Curve, reinforced
from workup.runs.words import number, powers

WIDTH, HEIGHT = 300.0, 90.0  # a figure's size in its own units


@dataclass(frozen=True, slots=True)
class Level:
    """An anchor's mean, as a horizontal line."""

    doctor: str
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric over the steps: the points of its lines, and what its axes say.

    The reward has a line for every stage. `last` is the value of the last step that has one, not
    smoothed.
    """

    title: str
    raw: Sequence[str]
    mean: Sequence[str]
    low: str
    high: str
    last: str
    steps: int
    levels: Sequence[Level]


def figures(
    lines: Sequence[Mapping[str, Any]],
    doctors: Mapping[str, Mapping[str, Any]],
    anchors: Collection[str],
) -> list[Figure]:
    """What the report draws of a training, with `anchors` among `doctors` (of summary.json)."""
    exact = {doctor: entry for doctor, entry in doctors.items() if doctor in anchors}
    curve = Curve("policy", reinforced(lines))
    made = [_figure(curve, metric, title, exact) for metric, title in PANELS.items()]
    for stage in dict.fromkeys(line["stage"] for line in lines):
        own = Curve(stage, [line for line in lines if line["stage"] == stage])
        made += [_figure(own, metric, f"{HEALTH[metric]} · {stage}", {}) for metric in HEALTH]
    return [figure for figure in made if figure is not None]


def _figure(
    curve: Curve, metric: str, title: str, anchors: Mapping[str, Mapping[str, Any]]
) -> Figure | None:
    values = curve.values(metric)
    defined = [value for value in values if value is not None]
    if not defined:
        return None
    levels = _levels(anchors, "return" if metric == "reward" else metric)
    low, high = min([*defined, *levels.values()]), max([*defined, *levels.values()])
    span = high - low or 1.0
    course = curve.smoothed(values, staged=metric == "reward")

    def points(places: Iterable[int], row: Iterable[float | None]) -> str:
        return " ".join(
            f"{WIDTH * k / max(1, len(values) - 1):.1f},{HEIGHT * (high - value) / span:.1f}"
            for k, value in zip(places, row, strict=True)
            if value is not None and math.isfinite(value)
        )

    return Figure(
        title,
        [points(at, [values[k] for k in at]) for at, _ in course],
        [points(at, mean) for at, mean in course],
        told(metric, low),
        told(metric, high),
        told(metric, defined[-1]),
        len(values),
        [
            Level(doctor, round(HEIGHT * (high - mean) / span, 1), told(metric, mean))
            for doctor, mean in levels.items()
        ],
    )


def told(metric: str, value: float) -> str:
    """A figure as in tables, but with digits to suit very large and very small ones.

    Shares alone are as in tables, however small.
    """
    if abs(value) >= 100:
        return f"{value:,.0f}".replace("-", "−")
    if abs(value) >= 0.005 or not value or known.metric(metric).share:
        return number(metric, value)
    return powers(f"{value:.1g}").replace("-", "−")


def _levels(anchors: Mapping[str, Mapping[str, Any]], metric: str) -> dict[str, float]:
    """Means of the anchors, without those of the full-information doctor about what it asked."""
    means = {
        doctor: entry[metric].get("mean")
        for doctor, entry in anchors.items()
        if isinstance(entry.get(metric), Mapping)
        if doctor != "full information" or metric == "accuracy"
    }
    return {doctor: float(mean) for doctor, mean in means.items() if mean is not None}
