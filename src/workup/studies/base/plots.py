"""The figures of studies: curves with intervals, and rows of points with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, log10

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from workup.core.statistics import Estimate
from workup.report.plotting import (
    COLOURS,
    Drawing,
    Key,
    figure,
    panel,
    points,
    points_key,
    row_points,
    rowed,
    whiskers,
)
from workup.runs.words import powers

Ends = tuple[float, float]
NO_ENDS: Mapping[str, Ends] = {}
Curves = Mapping[str, Sequence[tuple[float, Estimate]]]  # series → (x, y)
Rows = Mapping[str, Sequence[Estimate | None]]  # series → one value for each row
HEIGHT = 2.6  # inches
APART = 0.16  # the least distance between two tick labels, as a share of the axis
DECADES = 2.5  # a logarithmic axis that spans more has ticks at powers of ten alone
TICKS = 7  # of such an axis, at most


@figure
def curves(
    label: str,
    panels: Mapping[str, Curves],
    x: str,
    *,
    ends: Mapping[str, Ends] = NO_ENDS,
    log: bool = False,
) -> Drawing | None:
    """A panel per title: every series is a line through its means, with whiskers.

    A series looks the same in all panels, and the legend has the series of all of them. `log` is
    for the horizontal axis. A panel ends where `ends` says. Of the others, one whose values span
    more than a factor of ten is logarithmic, and the rest begin at 0.
    """
    shown = {
        title: series
        for title, series in panels.items()
        if any(isfinite(found.mean) for through in series.values() for _, found in through)
    }
    if not shown:
        return None
    drawn, names = [], numbered(shown.values())
    for title, series in shown.items():
        ax = panel(title, HEIGHT)
        ax.set_xlabel(x)
        for name, through in series.items():
            _line(ax, [(at, found) for at, found in through if isfinite(found.mean)], names[name])
        every = [
            point for through in series.values() for point in through if isfinite(point[1].mean)
        ]
        _across(ax, sorted({at for at, _ in every}), log)
        _upright(ax, [found.mean for _, found in every], ends.get(title))
        drawn.append(ax)
    return Drawing(label, drawn, _keys(names))


def _across(ax: Axes, places: Sequence[float], log: bool) -> None:
    log = log and min(places) > 0  # a tolerance of 0 has no place on a logarithmic axis
    if log:
        ax.set_xscale("log")
    ax.minorticks_off()
    ax.margins(x=0.06)
    ax.set_xticks(places, _labels(places, log))


def _labels(places: Sequence[float], log: bool) -> list[str]:
    """One for each place, empty where it would touch the one before it; the last place has one."""
    at = np.log(places) if log else np.asarray(places)
    room = APART * (at[-1] - at[0])
    kept = [len(at) - 1]
    for place in range(len(at) - 2, -1, -1):
        if at[kept[-1]] - at[place] >= room:
            kept.append(place)
    return [_short(place) if number in kept else "" for number, place in enumerate(places)]


def _upright(ax: Axes, means: Sequence[float], ends: Ends | None) -> None:
    if ends is not None:
        ax.set_ylim(*_wide(ends))
    elif min(means) > 0 and max(means) > 10 * min(means):
        ax.set_yscale("log")
        low, high = ax.get_ylim()
        between = (1, 2, 5) if log10(high / low) <= DECADES else (1,)
        ax.yaxis.set_major_locator(LogLocator(subs=between, numticks=TICKS))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
        ax.yaxis.set_minor_locator(NullLocator())
    else:
        low, high = ax.get_ylim()
        ax.set_ylim(min(0, low), high + 0.05 * (high - min(0, low)))


def _short(value: float) -> str:
    """ "0.25", "4", "24 k", "1.5 M", "10⁻⁵" """
    for unit, size in ((" B", 1e9), (" M", 1e6), (" k", 1e3)):
        if value >= 10 * size or (value >= size > 1e3):
            return (
                f"{value / size:.2g}{unit}" if value < 100 * size else f"{value / size:.0f}{unit}"
            )
    return powers(f"{value:g}")


def _wide(ends: Ends) -> Ends:
    """A little more room, so that points at the ends are whole."""
    room = 0.03 * (ends[1] - ends[0])
    return ends[0] - room, ends[1] + room


def _line(ax: Axes, through: Sequence[tuple[float, Estimate]], number: int) -> None:
    found = [each for _, each in through]
    at, means = [x for x, _ in through], [each.mean for each in found]
    ax.errorbar(
        at,
        means,
        yerr=whiskers(found),
        linewidth=1.6,
        elinewidth=1,
        capsize=2,
        markersize=4.5,
        **points(number),
    )


@figure
def rows(
    label: str,
    names: Sequence[str],
    panels: Mapping[str, Rows],
    *,
    ends: Mapping[str, Ends] = NO_ENDS,
) -> Drawing | None:
    """A panel per title, a row per name: every series is a point with its interval.

    Points of one row are side by side. A panel ends where `ends` says; of the others, one that
    crosses 0 has a line there.
    """
    if not names or not panels:
        return None
    count = max(len(series) for series in panels.values())
    drawn, looks = [], numbered(panels.values())
    for title, series in panels.items():
        ax = panel(title, 0.5 + len(names) * (0.2 + 0.14 * count))
        for number, (name, found) in enumerate(series.items()):
            shift = 0.5 * ((number + 0.5) / len(series) - 0.5)
            known = {row + shift: each for row, each in enumerate(found) if each}
            known = {at: each for at, each in known.items() if isfinite(each.mean)}
            row_points(ax, list(known), list(known.values()), points(looks[name]))
        rowed(ax, names)
        if title in ends:
            ax.set_xlim(*_wide(ends[title]))
        elif ax.get_xlim()[0] < 0:
            ax.axvline(0, color=COLOURS["muted"], linewidth=0.8)
        ax.locator_params(axis="x", nbins=5)
        drawn.append(ax)
    return Drawing(label, drawn, _keys(looks))


def numbered(panels: Iterable[Iterable[str]]) -> dict[str, int]:
    """The series of all panels, each with the number of its look."""
    names = dict.fromkeys(name for series in panels for name in series)
    return {name: number for number, name in enumerate(names)}


def _keys(looks: Mapping[str, int]) -> list[Key]:
    """The legend of the series; empty for a single one."""
    keys = [points_key(name, number) for name, number in looks.items()]
    return keys if len(keys) > 1 else []
