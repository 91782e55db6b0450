"""Learning curves of a running run: a few points of SVG per figure, drawn anew at every look.

The report's figures take matplotlib a second of processor time, which a running run would miss, and
hold style attributes, which the pages' security policy refuses.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workup.report.curves import HEALTH, PANELS, Curve, reinforced
from workup.report.plotting import smooth, thin
from workup.runs.words import number

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

    `last` is the value of the last step that has one, not smoothed.
    """

    title: str
    raw: str
    mean: str
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
    known = [value for value in values if value is not None]
    if not known:
        return None
    levels = _levels(anchors, "return" if metric == "reward" else metric)
    low, high = min([*known, *levels.values()]), max([*known, *levels.values()])
    span = high - low or 1.0
    index = [int(k) for k in thin(len(values))]
    averaged = smooth(values, curve.window)

    def points(row: Sequence[float | None]) -> str:
        return " ".join(
            f"{WIDTH * k / max(1, len(values) - 1):.1f},{HEIGHT * (high - value) / span:.1f}"
            for k in index
            if (value := row[k]) is not None and math.isfinite(value)
        )

    return Figure(
        title,
        points(values),
        points([float(value) for value in averaged]),
        told(metric, low),
        told(metric, high),
        told(metric, known[-1]),
        len(values),
        [
            Level(doctor, round(HEIGHT * (high - mean) / span, 1), told(metric, mean))
            for doctor, mean in levels.items()
        ],
    )


def told(metric: str, value: float) -> str:
    """A figure as in tables, but with digits to suit very large and very small ones."""
    if abs(value) >= 100:
        return f"{value:,.0f}".replace("-", "−")
    if abs(value) >= 0.005 or not value:
        return number(metric, value)
    return f"{value:.0e}".replace("-", "−")


def _levels(anchors: Mapping[str, Mapping[str, Any]], metric: str) -> dict[str, float]:
    """Means of the anchors, without those of the full-information doctor about what it asked."""
    means = {
        doctor: entry[metric].get("mean")
        for doctor, entry in anchors.items()
        if isinstance(entry.get(metric), Mapping)
        if doctor != "full information" or metric == "accuracy"
    }
    return {doctor: float(mean) for doctor, mean in means.items() if mean is not None}
