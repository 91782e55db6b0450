"""Figures over training: learning curves with the anchors drawn in, where the reward came from, and the optimiser's health."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.optimize import isotonic_regression

from workup.report.plotting import COLOURS, SERIES, Floats, figure, new, smooth, thin
from workup.runs.words import ANCHORS
from workup.statistics import Estimate

PANELS = {
    "reward": "Reward",
    "accuracy": "Accuracy",
    "questions": "Questions per case",
    "critical": "Critical share of what was found",
    "noise": "Noise share of what was found",
    "coverage": "Share of the findings found",
}
HEALTH = {
    "loss": "Loss",
    "kl": "KL to the reference",
    "entropy": "Entropy (nats)",
    "tokens_per_second": "Tokens per second",
}
SHORT = {"random doctor": "random", "told information": "told", "greedy information": "greedy", "full information": "full"}
DASHES = {
    "random doctor": (0, (1, 2)),
    "told information": (0, (4, 2)),
    "greedy information": (0, (4, 2)),
    "full information": (0, ()),
}


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
        return [_number(line.get(metric)) for line in self.lines]

    @property
    def borders(self) -> list[tuple[int, str]]:
        """(steps before it, name) of every stage after the first."""
        stages = [line["stage"] for line in self.lines]
        return [(number, after) for number, (before, after) in enumerate(pairwise(stages), start=1) if before != after]


def reinforced(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [line for line in lines if _number(line.get("reward")) is not None]


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


Levels = Mapping[str, Mapping[str, Estimate]]  # doctor → metric → estimate


@figure
def learning(curve: Curve, levels: Levels, ends: Levels) -> Figure | None:
    """One panel per metric: every step thin, their mean thick, the anchors as labelled lines, and the held-out
    evaluations before and after training (`ends`, in that order) as points with their intervals."""
    shown = [metric for metric in PANELS if any(value is not None for value in curve.values(metric))]
    if not shown:
        return None
    rows = math.ceil(len(shown) / 3)
    made, axes = new("Learning curves with the anchors as horizontal lines", rows, 3, 2.35 * rows)
    for ax, metric in zip(axes, shown, strict=False):
        ax.set_title(PANELS[metric])
        _curve(ax, curve, metric, COLOURS["after"], faint=True)
        _borders(ax, curve)
        name = "return" if metric == "reward" else metric
        _evaluations(ax, [end.get(name) for end in ends.values()], len(curve.lines))
        _anchors(ax, {doctor: levels[doctor][name].mean for doctor in levels if name in levels[doctor]})
    _tidy(axes, len(shown), "step")
    return made


@figure
def overlaid(curves: Sequence[Curve]) -> Figure | None:
    """The smoothed curves of several runs, one panel per metric."""
    shown = [metric for metric in PANELS if any(any(v is not None for v in curve.values(metric)) for curve in curves)]
    if not shown:
        return None
    rows = math.ceil(len(shown) / 3)
    made, axes = new("Learning curves of the compared runs", rows, 3, 2.35 * rows)
    for ax, metric in zip(axes, shown, strict=False):
        ax.set_title(PANELS[metric])
        for number, curve in enumerate(curves):
            _curve(ax, curve, metric, SERIES[number % len(SERIES)], faint=False)
    made.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    _tidy(axes, len(shown), "step")
    return made


@figure
def health(lines: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Loss by stage, and KL, entropy and speed where they were logged."""
    stages = list(dict.fromkeys(line["stage"] for line in lines))
    found = [
        (f"{title} · {stage}", Curve(stage, [line for line in lines if line["stage"] == stage]), metric)
        for stage in stages
        for metric, title in HEALTH.items()
    ]
    shown = [panel for panel in found if any(value is not None for value in panel[1].values(panel[2]))]
    if not shown:
        return None
    rows = math.ceil(len(shown) / 3)
    made, axes = new("Loss, KL, entropy and speed over training", rows, 3, 2.0 * rows)
    for ax, (title, curve, metric) in zip(axes, shown, strict=False):
        ax.set_title(title)
        _curve(ax, curve, metric, COLOURS["before"], faint=True)
    _tidy(axes, len(shown), "step")
    return made


@figure
def parts(curve: Curve, additive: bool) -> Figure | None:
    """The reward's parts over training: stacked where they add up to it, else as lines beside it."""
    names = list(dict.fromkeys(name for line in curve.lines for name in line.get("parts") or {}))
    if not names:
        return None
    made, (ax,) = new("Where the reward came from, over training", 1, 1, 2.6)
    series = [smooth([(line.get("parts") or {}).get(name, 0.0) for line in curve.lines], curve.window) for name in names]
    index = thin(len(curve.lines))
    _stack(ax, names, series, index) if additive else _lines(ax, names, series, index)
    total = smooth(curve.values("reward"), curve.window)
    ax.plot(index + 1, total[index], color=COLOURS["ink"], linewidth=1.8, label="reward")
    ax.axhline(0, color=COLOURS["muted"], linewidth=0.6)
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), reverse=True)
    _tidy([ax], 1, "step")
    return made


def _stack(ax: Axes, names: Sequence[str], series: Sequence[Floats], index: Any) -> None:
    """Positive parts pile up from zero, negative ones hang below it."""
    for sign in (1, -1):
        base = np.zeros(len(index))
        for number, (name, values) in enumerate(zip(names, series, strict=True)):
            if (np.nanmean(values) < 0) == (sign < 0):
                top = base + np.nan_to_num(values[index])
                label = f"− {name}" if sign < 0 else name
                ax.fill_between(index + 1, base, top, color=SERIES[number % 6], alpha=0.75, linewidth=0, label=label)
                base = top


def _lines(ax: Axes, names: Sequence[str], series: Sequence[Floats], index: Any) -> None:
    for number, (name, values) in enumerate(zip(names, series, strict=True)):
        ax.plot(index + 1, values[index], color=SERIES[number % 6], label=name)


def _curve(ax: Axes, curve: Curve, metric: str, colour: str, *, faint: bool) -> None:
    values = curve.values(metric)
    if all(value is None for value in values):
        return
    index = thin(len(values))
    if faint and curve.window > 1:
        raw = np.array([np.nan if value is None else value for value in values])
        ax.plot(index + 1, raw[index], color=colour, alpha=0.25, linewidth=0.7)
    ax.plot(index + 1, smooth(values, curve.window)[index], color=colour, linewidth=1.8, label=curve.label)


def _borders(ax: Axes, curve: Curve) -> None:
    for steps, name in curve.borders:
        ax.axvline(steps + 0.5, color=COLOURS["muted"], linewidth=0.6)
        ax.annotate(name, (steps + 0.5, 1), xycoords=("data", "axes fraction"), fontsize=6.5, color=COLOURS["muted"])


def _evaluations(ax: Axes, ends: Sequence[Estimate | None], steps: int) -> None:
    """Held-out evaluations: hollow before the first step, filled after the last."""
    for place, estimate in zip((0, steps), ends, strict=False):
        if estimate is not None and math.isfinite(estimate.mean):
            whiskers = np.nan_to_num([[estimate.mean - estimate.low], [estimate.high - estimate.mean]])
            face = COLOURS["paper"] if place == 0 else COLOURS["ink"]
            marker: dict[str, Any] = {"fmt": "o", "markersize": 4, "markerfacecolor": face, "color": COLOURS["ink"], "zorder": 5}
            ax.errorbar([place], [estimate.mean], yerr=whiskers, linewidth=1, capsize=2, **marker)


def _anchors(ax: Axes, means: Mapping[str, float]) -> None:
    """A line per anchor, with its name to the right of the panel; names that would touch are moved apart."""
    known = sorted((mean, doctor) for doctor, mean in means.items() if doctor in ANCHORS and math.isfinite(mean))
    for mean, doctor in known:
        ax.axhline(mean, color=COLOURS["muted"], linewidth=1, linestyle=DASHES[doctor])
    low, high = ax.get_ylim()
    places = apart([mean for mean, _ in known], 0.075 * (high - low))
    for (_, doctor), place in zip(known, places, strict=True):
        style: dict[str, Any] = {"fontsize": 7, "color": COLOURS["muted"], "va": "center", "annotation_clip": False}
        ax.annotate(SHORT[doctor], (1.015, place), xycoords=("axes fraction", "data"), **style)


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Sorted `places`, moved as little as possible (least squares) so that neighbours lie at least `gap` apart."""
    if len(places) < 2:
        return list(places)
    steps = gap * np.arange(len(places))
    return list(isotonic_regression(np.asarray(places) - steps).x + steps)


def _tidy(axes: Sequence[Axes], used: int, label: str) -> None:
    for ax in axes[used:]:
        ax.remove()
    for ax in axes[max(0, used - 3) : used]:
        ax.set_xlabel(label)
    for ax in axes[:used]:
        ax.margins(x=0.03)
        ax.locator_params(axis="y", nbins=5)
        ax.locator_params(axis="x", nbins=5, integer=True)
