"""Figures over training: learning curves with the anchors, the reward's parts, the optimiser."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from workup.core.statistics import Estimate
from workup.metrics import measures, steps
from workup.report.plotting import (
    COLOURS,
    Drawing,
    Floats,
    Key,
    figure,
    fill,
    fill_key,
    panel,
    series,
    series_key,
    smooth,
    thin,
    tidy,
    whiskers,
)
from workup.report.tables import Ends
from workup.runs.words import TRAINED

PANELS = {each.name: each.curve for each in (steps.REWARD, *measures.METRICS) if each.curve}
"""Metrics with a figure over training, beside the anchors: name → title."""
HEALTH = {each.name: each.curve for each in steps.ENGINE if each.curve}
"""The same of what engines log."""
NOISE = 1e-12
"""Of a figure that is nearer to 0, only the rounding is left."""
HEIGHT, WIDE = 2.2, 4.2  # inches: of a panel, and how wide one is that stands alone
SHORT = {
    "random doctor": "random",
    "told information": "told",
    "random searcher": "random",
    "ideal searcher": "ideal",
    "credulous greedy": "credulous",
    "greedy information": "greedy",
    "full information": "full",
}
DASHES = {
    "random doctor": (0, (1, 2)),
    "told information": (0, (4, 2)),
    "random searcher": (0, (1, 2)),
    "ideal searcher": (0, (4, 2)),
    "credulous greedy": (0, (2, 2)),
    "greedy information": (0, (4, 2)),
    "full information": (0, ()),
}
OTHER = (0, (1, 4))
"""The dashes of an anchor that an environment from outside has."""


Course = Sequence[tuple[NDArray[np.int64], Floats]]
"""Lines one after the other: the steps before each point, and its height."""


@dataclass(frozen=True)
class Curve:
    """The steps of one run that a reward drove, numbered through over all its stages."""

    label: str
    lines: Sequence[Mapping[str, Any]]

    @property
    def window(self) -> int:
        """How many steps the thick lines are averaged over: a twenty-fifth of the run."""
        return max(1, 2 * (len(self.lines) // 50) + 1)

    @property
    def wide(self) -> int:
        """The same for what is noisier, two metrics against each other: a tenth of the run."""
        return max(1, 2 * (len(self.lines) // 20) + 1)

    def values(self, metric: str) -> list[float | None]:
        """One value per step; 0 for one that only rounding keeps from 0."""
        found = [_number(line.get(metric)) for line in self.lines]
        return [value and (0.0 if abs(value) < NOISE else value) for value in found]

    def parts(self, metric: str, number: int) -> list[float | None]:
        """The metric's mean in each of `number` parts of the steps, as equal as can be.

        A part where it is nowhere defined has None. Fewer steps than parts give no list at all.
        """
        if len(self.lines) < number:
            return []
        parts = np.array_split(np.array(self.values(metric), dtype=float), number)
        known = [part[~np.isnan(part)] for part in parts]
        return [float(part.mean()) if part.size else None for part in known]

    @property
    def spans(self) -> list[tuple[int, int]]:
        """(steps before it, steps until its end) of every stage."""
        starts = [0, *(before for before, _ in self.borders), len(self.lines)]
        return [*pairwise(starts)]

    def smoothed(self, values: Sequence[float | None], *, staged: bool) -> Course:
        """`values` averaged over the window, at as many steps as a figure shows.

        `staged`: every stage has a line of its own, and no mean reaches across its borders. So it
        is with the reward and its parts, as stages may pay for different things.
        """
        index = thin(len(values))
        course = []
        for start, stop in self.spans if staged else [(0, len(values))]:
            at = index[(index >= start) & (index < stop)]
            course.append((at, smooth(values[start:stop], self.window)[at - start]))
        return course

    @property
    def borders(self) -> list[tuple[int, str]]:
        """(steps before it, name) of every stage after the first."""
        stages = [line["stage"] for line in self.lines]
        return [
            (number, after)
            for number, (before, after) in enumerate(pairwise(stages), start=1)
            if before != after
        ]


def reinforced(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [line for line in lines if _number(line.get("reward")) is not None]


def updates_until(lines: Sequence[Mapping[str, Any]], doctor: str) -> int:
    """How many of the reinforced steps stand before the evaluation of `doctor`.

    It is "trained", after all of them, or named after a stage, at whose end it was evaluated.
    """
    if doctor == TRAINED:
        return len(reinforced(lines))
    ends = [number for number, line in enumerate(lines, start=1) if line["stage"] == doctor]
    return len(reinforced(lines[: max(ends, default=0)]))


def averaged(label: str, runs: Sequence[Sequence[Mapping[str, Any]]]) -> Curve:
    """The reinforced steps of one run, or the mean of several, as far as all of them have got.

    A metric's mean is over the runs that logged it in the step.
    """
    found = [reinforced(lines) for lines in runs]
    if len(found) == 1:
        return Curve(label, found[0])
    return Curve(label, [_mean(together) for together in zip(*found, strict=False)])


def _mean(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = dict.fromkeys(name for line in lines for name in line)
    known = {
        name: [value for line in lines if (value := _number(line.get(name))) is not None]
        for name in names
    }
    return {**lines[0], **{name: fmean(each) for name, each in known.items() if each}}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


Levels = Mapping[str, Mapping[str, Estimate]]  # doctor → metric → estimate


@figure
def learning(
    curve: Curve, levels: Levels, ends: Ends, places: Mapping[str, int] = MappingProxyType({})
) -> Drawing | None:
    """One panel per metric: every step thin, their mean thick, the anchors as labelled lines.

    The held-out evaluations of `ends` are points with their intervals: each stands behind as many
    steps as `places` has for it. The reward's line breaks where a stage begins, which may pay for
    something else.
    """
    shown = [
        metric for metric in PANELS if any(value is not None for value in curve.values(metric))
    ]
    panels = []
    for metric in shown:
        ax = panel(PANELS[metric], HEIGHT)
        _curve(ax, curve, metric, faint=True, color=COLOURS["after"])
        name = "return" if metric == "reward" else metric
        for end in ends.names:
            _evaluation(ax, places.get(end, 0), levels[end].get(name), hollow=end == ends.before)
        _anchors(
            ax,
            {
                doctor: levels[doctor][name].mean
                for doctor in ends.anchors
                if name in levels.get(doctor, ())
            },
        )
        _steps(ax, curve)
        panels.append(ax)
    return (
        Drawing("Learning curves with the anchors as horizontal lines", panels) if panels else None
    )


@figure
def overlaid(curves: Sequence[Curve]) -> Drawing | None:
    """The smoothed curves of several runs, one panel per metric."""
    shown = [
        metric
        for metric in PANELS
        if any(any(v is not None for v in curve.values(metric)) for curve in curves)
    ]
    panels = []
    for metric in shown:
        ax = panel(PANELS[metric], HEIGHT)
        for number, curve in enumerate(curves):
            _curve(ax, curve, metric, faint=False, **series(number))
        _steps(ax)
        panels.append(ax)
    keys = [series_key(curve.label, number) for number, curve in enumerate(curves)]
    return Drawing("Learning curves of the compared runs", panels, keys) if panels else None


@figure
def health(lines: Sequence[Mapping[str, Any]]) -> Drawing | None:
    """Loss by stage, and KL, entropy and speed where they were logged."""
    stages = list(dict.fromkeys(line["stage"] for line in lines))
    panels = []
    for stage in stages:
        curve = Curve(stage, [line for line in lines if line["stage"] == stage])
        for metric in (
            name for name in HEALTH if any(value is not None for value in curve.values(name))
        ):
            ax = panel(f"{HEALTH[metric]} · {stage}", HEIGHT)
            _curve(ax, curve, metric, faint=True, color=COLOURS["before"])
            _steps(ax)
            panels.append(ax)
    return Drawing("Loss, KL, entropy and speed over training", panels) if panels else None


@figure
def parts(curve: Curve, additive: bool) -> Drawing | None:
    """The reward's parts over training: stacked where they add up to it, else as separate lines."""
    names = list(dict.fromkeys(name for line in curve.lines for name in line.get("parts") or {}))
    if not names:
        return None
    ax = panel("", 2.6, WIDE)
    courses = {
        name: curve.smoothed(
            [(line.get("parts") or {}).get(name, 0.0) for line in curve.lines], staged=True
        )
        for name in names
    }
    keys = _stack(ax, courses) if additive else _lines(ax, courses)
    _curve(ax, curve, "reward", faint=False, color=COLOURS["ink"])
    ax.axhline(0, color=COLOURS["muted"], linewidth=0.6)
    _steps(ax, curve)
    return Drawing(
        "Where the reward came from, over training",
        [ax],
        [Key("reward", COLOURS["ink"], "━━"), *keys],
    )


def _stack(ax: Axes, courses: Mapping[str, Course]) -> list[Key]:
    """Positive parts are stacked upwards from zero, negative ones downwards."""
    keys = []
    for sign in (1, -1):
        bases: Sequence[Floats | float] = [0.0] * max(map(len, courses.values()))
        for number, (name, course) in enumerate(courses.items()):
            if (np.nanmean(np.concatenate([mean for _, mean in course])) < 0) == (sign < 0):
                tops = [b + np.nan_to_num(mean) for b, (_, mean) in zip(bases, course, strict=True)]
                for (at, _), base, top in zip(course, bases, tops, strict=True):
                    ax.fill_between(at + 1, base, top, linewidth=0, **fill(number))
                keys.append(fill_key(f"− {name}" if sign < 0 else name, number))
                bases = tops
    return keys


def _lines(ax: Axes, courses: Mapping[str, Course]) -> list[Key]:
    for number, course in enumerate(courses.values()):
        for at, mean in course:
            ax.plot(at + 1, mean, **series(number))
    return [series_key(name, number) for number, name in enumerate(courses)]


def _curve(ax: Axes, curve: Curve, metric: str, *, faint: bool, **look: Any) -> None:
    values = curve.values(metric)
    if all(value is None for value in values):
        return
    raw = np.array([np.nan if value is None else value for value in values])
    for at, mean in curve.smoothed(values, staged=metric == "reward"):
        if faint and curve.window > 1:
            ax.plot(at + 1, raw[at], alpha=0.25, linewidth=0.7, **look)
        ax.plot(at + 1, mean, linewidth=1.8, **look)


def _steps(ax: Axes, curve: Curve | None = None) -> None:
    """The axis of the steps, with the borders and names of the stages of `curve`."""
    tidy(ax)
    ax.set_xlabel("step")
    for before, name in curve.borders if curve else ():
        ax.axvline(before + 0.5, color=COLOURS["muted"], linewidth=0.6)
        style: dict[str, Any] = {
            "fontsize": 6.5,
            "color": COLOURS["muted"],
            "va": "top",
            "rotation": 90,
            # readable where curves pass below it
            "bbox": {"facecolor": COLOURS["paper"], "edgecolor": "none", "alpha": 0.8, "pad": 0.8},
            "zorder": 4,
        }
        ax.annotate(
            name,
            (before + 0.5, 0.98),
            (2, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            **style,
        )


def _evaluation(ax: Axes, place: int, estimate: Estimate | None, *, hollow: bool) -> None:
    """A held-out evaluation behind the step `place`."""
    if estimate is not None and math.isfinite(estimate.mean):
        marker: dict[str, Any] = {
            "fmt": "o",
            "markersize": 4,
            "markerfacecolor": COLOURS["paper" if hollow else "ink"],
            "color": COLOURS["ink"],
            "zorder": 5,
        }
        bars = whiskers([estimate])
        ax.errorbar([place], [estimate.mean], yerr=bars, linewidth=1, capsize=2, **marker)


def _anchors(ax: Axes, means: Mapping[str, float]) -> None:
    """A line per anchor, with its name to the right of the panel."""
    for doctor, mean in means.items():
        if math.isfinite(mean):
            dashes = DASHES.get(doctor, OTHER)
            ax.axhline(mean, color=COLOURS["muted"], linewidth=1, linestyle=dashes)
    beside(ax, means)


def beside(ax: Axes, places: Mapping[str, float], line: float = 0.09) -> None:
    """Doctors' names to the right of the panel, at these heights, moved apart where they overlap.

    A stroke leads from the height to a name, which stays beside the panel as long as there is room.
    A line of text takes the share `line` of the panel's height, whose limits are set before.
    """
    known = sorted((place, doctor) for doctor, place in places.items() if math.isfinite(place))
    low, high = ax.get_ylim()
    gap, ranks = line * (high - low), np.arange(len(known))
    moved = np.asarray(apart([place for place, _ in known], gap))
    moved = np.minimum(moved, high - gap * ranks[::-1])
    moved = np.maximum(moved, low + gap * ranks)
    across = ax.get_yaxis_transform()
    for (height, doctor), place in zip(known, moved, strict=True):
        style: dict[str, Any] = {
            "fontsize": 7,
            "color": COLOURS["muted"],
            "va": "center",
            "annotation_clip": False,
        }
        name = SHORT.get(doctor, doctor.replace("list of ", "list "))
        ax.annotate(name, (1.05, place), xycoords=("axes fraction", "data"), **style)
        stroke = Line2D([1, 1.04], [height, place], color=COLOURS["muted"], linewidth=0.6)
        stroke.set(transform=across, clip_on=False)
        ax.add_artist(stroke)


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Sorted `places`, moved as little as possible so that neighbours are at least `gap` apart.

    "As little as possible" is by least squares.
    """
    if len(places) < 2:
        return list(places)
    steps = gap * np.arange(len(places))
    return list(isotonic_regression(np.asarray(places) - steps).x + steps)
