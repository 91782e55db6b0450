"""The figures of studies: curves with intervals, and rows of points with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from workup.report.plotting import COLOURS, SERIES, Floats, figure, new
from workup.statistics import Estimate

MARKERS = "osD^vP"
Ends = tuple[float, float]
NO_ENDS: Mapping[str, Ends] = {}
SHARE, MARK = (0.0, 1.0), (1.0, 5.0)
Curves = Mapping[str, Sequence[tuple[float, Estimate]]]  # series → (x, y)
Rows = Mapping[str, Sequence[Estimate | None]]  # series → one value for each row
HEIGHT = 3.0  # inches


@figure
def curves(
    label: str, panels: Mapping[str, Curves], x: str, *, ends: Mapping[str, Ends] = NO_ENDS, log: bool = False
) -> Figure | None:
    """A panel per title: every series a line through its means, with whiskers; `log` for the horizontal axis.

    A panel ends where `ends` says, else it begins at 0; one whose values span more than a factor of ten is logarithmic too.
    """
    shown = {title: series for title, series in panels.items() if any(map(_drawn, series.values()))}
    if not shown:
        return None
    made, axes = new(label, 1, len(shown), HEIGHT)
    for ax, (title, series) in zip(axes, shown.items(), strict=True):
        ax.set_title(title)
        ax.set_xlabel(x)
        for number, (name, points) in enumerate(series.items()):
            _line(ax, [(at, found) for at, found in points if isfinite(found.mean)], name, number)
        every = [point for points in series.values() for point in points if isfinite(point[1].mean)]
        _across(ax, sorted({at for at, _ in every}), log)
        _upright(ax, [found.mean for _, found in every], ends.get(title))
    _legend(made, axes[0], len(next(iter(shown.values()))))
    return made


def _across(ax: Axes, places: Sequence[float], log: bool) -> None:
    if log:
        ax.set_xscale("log")
    ax.minorticks_off()
    ax.set_xticks(places, [_short(place) for place in places])
    ax.margins(x=0.06)


def _upright(ax: Axes, means: Sequence[float], ends: Ends | None) -> None:
    if min(means) > 0 and max(means) > 10 * min(means):
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
        ax.yaxis.set_minor_locator(NullLocator())
    elif ends is not None:
        ax.set_ylim(*_wide(ends))
    else:
        low, high = ax.get_ylim()
        ax.set_ylim(min(0, low), high + 0.05 * (high - min(0, low)))


def _short(value: float) -> str:
    """ "0.25", "4", "24 k", "1.5 M" """
    for unit, size in ((" B", 1e9), (" M", 1e6), (" k", 1e3)):
        if value >= 10 * size or (value >= size > 1e3):
            return f"{value / size:.2g}{unit}" if value < 100 * size else f"{value / size:.0f}{unit}"
    return f"{value:g}"


def _wide(ends: Ends) -> Ends:
    """A little more room, so that points at the ends are whole."""
    room = 0.03 * (ends[1] - ends[0])
    return ends[0] - room, ends[1] + room


def _drawn(points: Sequence[tuple[float, Estimate]]) -> bool:
    return any(isfinite(found.mean) for _, found in points)


def _line(ax: Axes, points: Sequence[tuple[float, Estimate]], name: str, number: int) -> None:
    style: dict[str, Any] = {"color": SERIES[number % len(SERIES)], "marker": MARKERS[number % len(MARKERS)], "markersize": 4.5}
    whiskers = _whiskers([found for _, found in points])
    at, means = [x for x, _ in points], [found.mean for _, found in points]
    ax.errorbar(at, means, yerr=whiskers, label=name, linewidth=1.6, elinewidth=1, capsize=2, **style)


def _whiskers(found: Sequence[Estimate]) -> Floats:
    """How far each interval reaches below and above its mean; 0 where there is none."""
    ends: Floats = np.array([(each.mean - each.low, each.high - each.mean) for each in found], dtype=float).reshape(-1, 2).T
    return np.clip(np.nan_to_num(ends), 0, None)


@figure
def rows(label: str, names: Sequence[str], panels: Mapping[str, Rows], *, ends: Mapping[str, Ends] = NO_ENDS) -> Figure | None:
    """A panel per title, a row per name: every series a point with its interval, side by side within the row.

    A panel ends where `ends` says; one of the others that crosses 0 has a line there.
    """
    if not names or not panels:
        return None
    count = max(len(series) for series in panels.values())
    made, axes = new(label, 1, len(panels), 0.9 + len(names) * (0.22 + 0.16 * count), sharey=True)
    for ax, (title, series) in zip(axes, panels.items(), strict=True):
        ax.set_title(title)
        for number, (name, found) in enumerate(series.items()):
            shift = 0.5 * ((number + 0.5) / len(series) - 0.5)
            _points(ax, [(row + shift, each) for row, each in enumerate(found) if each and isfinite(each.mean)], name, number)
        ax.grid(visible=True, axis="x")
        ax.grid(visible=False, axis="y")
        if title in ends:
            ax.set_xlim(*_wide(ends[title]))
        elif ax.get_xlim()[0] < 0:
            ax.axvline(0, color=COLOURS["muted"], linewidth=0.8)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    _legend(made, axes[0], count)
    return made


def _points(ax: Axes, points: Sequence[tuple[float, Estimate]], name: str, number: int) -> None:
    style: dict[str, Any] = {"color": SERIES[number % len(SERIES)], "fmt": MARKERS[number % len(MARKERS)], "markersize": 5}
    whiskers = _whiskers([found for _, found in points])
    means, heights = [found.mean for _, found in points], [row for row, _ in points]
    ax.errorbar(means, heights, xerr=whiskers, label=name, linewidth=1.3, capsize=2, **style)


def _legend(made: Figure, ax: Axes, count: int) -> None:
    if count > 1:
        made.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=4)
