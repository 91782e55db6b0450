"""The plane of evidence seeking: accuracy over questions, the first picture of every page.

What exact reasoning makes of the best and of random questions, stopped after each of them, is drawn
as two curves. Every policy is two points: its own answers, and an exact reader's of its episodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgba

from workup.core.statistics import Estimate
from workup.metrics.facts import COVERAGE
from workup.metrics.measures import SEARCHES
from workup.metrics.reading import EXACT_READER
from workup.report.curves import DASHES, OTHER, Levels, beside
from workup.report.outcomes import Look, Looks
from workup.report.plotting import COLOURS, Drawing, Key, figure, panel, tidy, whiskers
from workup.report.tables import Ends
from workup.runs.words import ORACLE, UNTRAINED

OWN, READ, ASKED = "accuracy", EXACT_READER.name, "questions"
HEIGHT, WIDTH = 2.9, 3.9  # inches
LINE = 0.055  # the share of the height that a line of text takes


@dataclass(frozen=True)
class Plane:
    """What is drawn: estimates by metric of each doctor that is a point, and what bounds them.

    `policies` have an estimate of READ where there is an exact reader; the other `anchors` have
    none. A level is the accuracy of an anchor whose questions mean nothing. A curve is as in
    summary.json (`loops.evaluation.stopped`). `actions` says what is counted.
    """

    policies: Levels
    anchors: Levels
    levels: Mapping[str, Estimate]
    curves: Mapping[str, Sequence[Mapping[str, Any]]]
    actions: str

    @classmethod
    def of(
        cls, levels: Levels, ends: Ends, stopped: Mapping[str, Sequence[Mapping[str, Any]]]
    ) -> Plane:
        """The plane of all doctors in `levels`.

        A policy before its warm start is left out, and so is who was given the whole record.
        """
        curves = {doctor: stopped[doctor] for doctor in ends.anchors if doctor in stopped}
        known = {doctor: each for doctor, each in levels.items() if _has(each, OWN)}
        asking = {doctor: each for doctor, each in known.items() if _has(each, ASKED)}
        skipped = {UNTRAINED} - set(ends.names)
        return cls(
            {
                doctor: each
                for doctor, each in asking.items()
                if doctor not in (*ends.anchors, *skipped) and not doctor.endswith(ORACLE)
            },
            {
                doctor: asking[doctor]
                for doctor in ends.anchors
                if doctor in asking and doctor not in curves
            },
            {
                doctor: known[doctor][OWN]
                for doctor in ends.anchors
                if doctor in known and doctor not in asking
            },
            curves,
            _actions(levels),
        )

    @property
    def title(self) -> str:
        return f"Accuracy over {self.actions}"

    @property
    def tells(self) -> bool:
        """Whether there is something to see: curves, or doctors that asked more and less."""
        asked = {each[ASKED].mean for each in (*self.policies.values(), *self.anchors.values())}
        return bool(self.curves) or len(asked) > 1

    @property
    def read(self) -> bool:
        """Whether an exact reader makes something else of some policy's episodes."""
        return any(_hollow(each) for each in self.policies.values())

    @property
    def caption(self) -> str:
        """How to read it: what the curves and the line are, what is filled, what is lost."""
        said = [
            "Curves: exact reasoning, stopped after each greedily chosen or random question."
            if self.curves
            else f"Higher is right more often, further left takes fewer {self.actions}."
        ]
        if self.levels:
            said.append("The line: exact reasoning on the whole record.")
        if self.read:
            said += [
                "Filled: a policy's own answers.",
                "Hollow: an exact reader's answers after the same questions.",
                "The gap between the two is lost in reading.",
            ]
            if self.curves:
                said.append("The way up to the greedy curve is lost in asking.")
        return " ".join([*said, "Intervals: 95\u00a0%."])


def _has(levels: Mapping[str, Estimate], metric: str) -> bool:
    return metric in levels and math.isfinite(levels[metric].mean)


def _hollow(levels: Mapping[str, Estimate]) -> Estimate | None:
    """The exact reader's point; None where it falls on the doctor's own."""
    return levels[READ] if _has(levels, READ) and levels[READ].mean != levels[OWN].mean else None


def _actions(levels: Levels) -> str:
    """What is counted: questions, where doctors do nothing else; where they search it is more."""
    measured = {metric for each in levels.values() for metric in each}
    asking = COVERAGE.name in measured and SEARCHES.name not in measured
    return "questions" if asking else "actions before the diagnosis"


def content(plane: Plane, looks: Looks, more: str = "") -> dict[str, Any]:
    """What a page's template shows of it; `more` stands behind the caption."""
    return {
        "plane": drawn(plane, looks),
        "plane_title": plane.title,
        "plane_caption": f"{plane.caption}{more}",
    }


@figure
def drawn(plane: Plane, looks: Looks) -> Drawing | None:
    """The picture; None where there is nothing to see. `looks` has the style of every point."""
    if not plane.tells:
        return None
    ax = panel("", HEIGHT, WIDTH)
    for doctor, curve in plane.curves.items():
        _curve(ax, curve, DASHES.get(doctor, OTHER))
    for estimate in plane.levels.values():
        ax.axhline(estimate.mean, color=COLOURS["muted"], linewidth=1)
    keys = []
    for doctor, metrics in {**plane.anchors, **plane.policies}.items():
        look, key = _filled(looks[doctor])
        keys.append(key)
        _points(ax, metrics, look)
    if plane.read:
        keys.append(Key("hollow: an exact reader", COLOURS["muted"], "○"))
    ax.set_xlabel(plane.actions)
    ax.set_ylabel("accuracy")
    ax.grid(visible=True, axis="both")
    tidy(ax, 8)
    ends = {doctor: curve[-1]["accuracy"]["mean"] for doctor, curve in plane.curves.items()}
    beside(ax, {**ends, **{doctor: each.mean for doctor, each in plane.levels.items()}}, LINE)
    return Drawing(plane.title, [ax], keys)


def _curve(ax: Axes, curve: Sequence[Mapping[str, Any]], dashes: Any) -> None:
    asked = [stop["questions"] for stop in curve]
    right = [Estimate.from_json(stop["accuracy"]) for stop in curve]
    muted = COLOURS["muted"]
    low, high = [each.low for each in right], [each.high for each in right]
    ax.fill_between(asked, low, high, color=muted, alpha=0.16, linewidth=0)
    means = [each.mean for each in right]
    ax.plot(asked, means, color=muted, linewidth=1.2, linestyle=dashes)
    ax.plot(asked, means, color=muted, linestyle="", marker="o", markersize=2)


def _filled(look: Look) -> Look:
    """The look of a doctor's own answers: hollow points are an exact reader's here."""
    style, key = look
    if "markerfacecolor" not in style:
        return look
    return {"color": style["color"], "marker": ">"}, Key(key.name, key.colour, "▶")


def _points(ax: Axes, metrics: Mapping[str, Estimate], look: Mapping[str, Any]) -> None:
    """A doctor's own answers and the exact reader's, joined by a line."""
    asked, pair = metrics[ASKED], [each for each in (metrics[OWN], _hollow(metrics)) if each]
    means = [each.mean for each in pair]
    ax.plot([asked.mean] * len(pair), means, color=look["color"], linewidth=0.9)
    for estimate, face in zip(pair, (look["color"], to_rgba(COLOURS["paper"], 0.75)), strict=False):
        made = ax.errorbar(
            [asked.mean],
            [estimate.mean],
            xerr=whiskers([asked]),
            yerr=whiskers([estimate]),
            linewidth=1.1,
            markersize=5.5,
            markerfacecolor=face,
            **look,
        )
        for bars in made[2]:
            bars.set_alpha(0.45)
