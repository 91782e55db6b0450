"""Figures of the evaluations: accuracy by disease category, and accuracy against what was found."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from matplotlib.axes import Axes
from rich.cells import set_cell_size
from rich.console import Console
from rich.text import Text

from workup.core.statistics import Estimate
from workup.report.curves import WIDE, Curve
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
    smooth,
    thin,
    tidy,
    whiskers,
)
from workup.report.tables import Categories, Ends

Look = tuple[dict[str, Any], Key]  # for matplotlib, and for the legend
Looks = Mapping[str, Look]  # by doctor
MOST = 25  # categories drawn
LONGEST = 30  # columns of a line of a category's name; a Chinese character takes two
LANDMARKS = (
    ("X", "✖"),
    ("*", "★"),
    ("h", "⬢"),
    ("H", "⬣"),
    ("P", "✚"),
    ("v", "▼"),
    ("<", "◀"),
    (">", "▶"),
    ("^", "▲"),
    ("d", "⬧"),
    ("p", "⬟"),
)  # of the anchors: matplotlib's name, and how a key writes it
SHARES = {
    "coverage": "share of the findings found",
    "noise": "noise share of these",
    "critical": "critical share of these",
}


@figure
def by_category(found: Categories, looks: Looks) -> Drawing | None:
    """A row per category (the 25 most frequent): each doctor's accuracy with its interval."""
    groups = list(found.groups.items())[:MOST]
    if not groups:
        return None
    doctors = found.accuracies
    ax = panel("", 0.45 + len(groups) * (0.14 + 0.13 * len(doctors)), WIDE)
    for number, (doctor, estimates) in enumerate(doctors.items()):
        shift = 0.7 * ((number + 0.5) / len(doctors) - 0.5)
        row_points(
            ax, [row + shift for row in range(len(groups))], estimates[:MOST], looks[doctor][0]
        )
    rowed(ax, [f"{written(name)} ({size:,})" for name, size in groups])
    ax.set_xlim(-0.02, 1.02)
    ax.set_xlabel("accuracy")
    return Drawing("Accuracy by disease category", [ax], [looks[doctor][1] for doctor in doctors])


def written(name: str) -> str:
    """A row's name in at most two lines of at most `LONGEST` columns; what is longer is cut."""
    lines = [line.plain.rstrip() for line in Text(name).wrap(Console(), LONGEST)]
    if len(lines) > 2:
        lines[1:] = [set_cell_size(lines[1], LONGEST - 1).rstrip() + "…"]
    return "\n".join(lines)


@figure
def against_accuracy(
    doctors: Mapping[str, Mapping[str, Estimate]], looks: Looks, curve: Curve
) -> Drawing | None:
    """Coverage, noise and critical share against accuracy (CRAFT Fig. 2), as far as they are known.

    Every doctor is a point with its intervals; the training of `curve` is a path.
    """
    panels: list[Axes] = []
    drawn: set[str] = set()
    for name, title in SHARES.items():
        known = {
            doctor: metrics
            for doctor, metrics in doctors.items()
            if all(m in metrics and math.isfinite(metrics[m].mean) for m in ("accuracy", name))
        }
        if not known:
            continue  # nobody has it: an empty panel would tell nothing
        drawn |= known.keys()
        ax = panel(f"Accuracy against {name}", 2.5)
        _path(ax, curve, name)
        for doctor, metrics in known.items():
            x, y = metrics[name], metrics["accuracy"]
            ax.errorbar(
                [x.mean],
                [y.mean],
                xerr=whiskers([x]),
                yerr=whiskers([y]),
                linewidth=0.9,
                markersize=5.5,
                **looks[doctor][0],
            )
        ax.set_xlabel(title)
        ax.set_ylabel("accuracy")
        ax.grid(visible=True, axis="both")
        tidy(ax)
        ax.margins(0.08, 0.1)
        panels.append(ax)
    if not panels:
        return None
    low, high = (end(ax.get_ylim()[side] for ax in panels) for side, end in enumerate((min, max)))
    for ax in panels:
        ax.set_ylim(low, high)
    keys = [looks[doctor][1] for doctor in doctors if doctor in drawn]
    return Drawing("Accuracy against coverage, noise and critical share", panels, keys)


def looks(doctors: Sequence[str], ends: Ends) -> Looks:
    """The style of each doctor's points, the same in every figure of a page.

    The policy before training is hollow, anchors are grey.
    """
    numbers = count(1 if ends.after in doctors else 0)  # the first colour is that of `after`
    return {doctor: _look(doctor, ends, numbers) for doctor in doctors}


def _look(doctor: str, ends: Ends, numbers: Iterator[int]) -> Look:
    role = {ends.before: "before", ends.after: "after"}.get(doctor, "")
    if not role and doctor not in ends.anchors:
        number = next(numbers)
        return points(number), points_key(doctor, number)
    if role:
        marker, symbol, colour = "o", "○" if role == "before" else "●", COLOURS[role]
    else:
        place, colour = ends.anchors.index(doctor) % len(LANDMARKS), COLOURS["muted"]
        marker, symbol = LANDMARKS[place]
    face = {"markerfacecolor": COLOURS["paper"]} if role == "before" else {}
    return {"color": colour, "marker": marker, **face}, Key(doctor, colour, symbol)


def _path(ax: Axes, curve: Curve, name: str) -> None:
    if curve.lines:
        index = thin(len(curve.lines), 200)
        accuracy, other = (
            smooth(curve.values(metric), curve.wide)[index] for metric in ("accuracy", name)
        )
        ax.plot(other, accuracy, color=COLOURS["after"], alpha=0.35, linewidth=2.5)
