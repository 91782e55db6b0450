"""Figures of the evaluations: accuracy by disease category, and accuracy against what was found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workup.report.curves import SHORT, Curve, apart
from workup.report.plotting import COLOURS, Floats, figure, new, smooth, thin
from workup.statistics import Estimate

MOST = 25  # categories drawn


@figure
def by_category(names: Sequence[str], doctors: Mapping[str, Sequence[Estimate]]) -> Figure | None:
    """A row per category (at most 25): each doctor's accuracy with its interval; the first doctor hollow."""
    if not names:
        return None
    names = names[:MOST]
    made, (ax,) = new("Accuracy by disease category", 1, 1, 0.7 + 0.3 * len(names))
    rows = np.arange(len(names), dtype=float)
    for number, (doctor, estimates) in enumerate(doctors.items()):
        first = number == 0 and len(doctors) > 1
        _row_points(ax, rows + 0.14 * (1 if first else -1) * (len(doctors) > 1), estimates[:MOST], doctor, hollow=first)
    ax.set_yticks(rows, [f"{name}  (n = {next(iter(doctors.values()))[row].n})" for row, name in enumerate(names)])
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlim(-0.02, 1.02)
    ax.grid(visible=True, axis="x")
    ax.grid(visible=False, axis="y")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    ax.set_xlabel("accuracy")
    return made


def _row_points(ax: Axes, rows: Floats, estimates: Sequence[Estimate], doctor: str, *, hollow: bool) -> None:
    colour = COLOURS["before" if hollow else "after"]
    means = np.array([estimate.mean for estimate in estimates])
    ends = np.array([(estimate.mean - estimate.low, estimate.high - estimate.mean) for estimate in estimates]).T
    face = COLOURS["paper"] if hollow else colour
    marker: dict[str, Any] = {"fmt": "o", "markersize": 5, "markerfacecolor": face, "color": colour}
    ax.errorbar(means, rows, xerr=np.clip(np.nan_to_num(ends), 0, None), label=doctor, linewidth=1.2, **marker)


@figure
def against_accuracy(doctors: Mapping[str, Mapping[str, Estimate]], curve: Curve) -> Figure | None:
    """Coverage, noise and critical share against accuracy (CRAFT Fig. 2): every doctor a point, training a path."""
    titles = {"coverage": "share of the findings found", "noise": "noise share of these", "critical": "critical share of these"}
    if not any(_known(metrics, "accuracy", name) for metrics in doctors.values() for name in titles):
        return None
    made, axes = new("Accuracy against coverage, noise and critical share", 1, 3, 2.9, sharey=True)
    for ax, (name, title) in zip(axes, titles.items(), strict=True):
        _path(ax, curve, name)
        known = {doctor: metrics for doctor, metrics in doctors.items() if _known(metrics, "accuracy", name)}
        for doctor, metrics in known.items():
            _point(ax, metrics[name], metrics["accuracy"], doctor)
        ax.set_xlabel(title)
        ax.grid(visible=True, axis="both")
        ax.margins(0.16, 0.1)
        _label(ax, {doctor: (metrics[name].mean, metrics["accuracy"].mean) for doctor, metrics in known.items()})
    axes[0].set_ylabel("accuracy")
    return made


def _known(metrics: Mapping[str, Estimate], *names: str) -> bool:
    return all(name in metrics and math.isfinite(metrics[name].mean) for name in names)


def _path(ax: Axes, curve: Curve, name: str) -> None:
    if curve.lines:
        index = thin(len(curve.lines), 200)
        accuracy, other = (smooth(curve.values(metric), curve.wide)[index] for metric in ("accuracy", name))
        ax.plot(other, accuracy, color=COLOURS["after"], alpha=0.35, linewidth=2.5)


def _point(ax: Axes, x: Estimate, y: Estimate, doctor: str) -> None:
    colour = {"trained": COLOURS["after"], "warm start": COLOURS["before"], "untrained": COLOURS["before"]}
    xerr, yerr = (np.nan_to_num([[value.mean - value.low], [value.high - value.mean]]) for value in (x, y))
    marker: dict[str, Any] = {"fmt": "o", "markersize": 4.5, "color": colour.get(doctor, COLOURS["muted"])}
    ax.errorbar([x.mean], [y.mean], xerr=xerr, yerr=yerr, linewidth=0.9, **marker)


def _label(ax: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    """Every point's name to its upper right, names moved apart where they would touch."""
    ranked = sorted(points.items(), key=lambda pair: pair[1][1])
    low, high = ax.get_ylim()
    heights = apart([y for _, (_, y) in ranked], 0.07 * (high - low))
    for (doctor, (x, _)), height in zip(ranked, heights, strict=True):
        place: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7, "color": COLOURS["ink"]}
        ax.annotate(SHORT.get(doctor, doctor), (x, height), (5, 4), **place)
