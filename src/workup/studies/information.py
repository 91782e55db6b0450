"""Accuracy and questions against the share of facts told at the outset (PM-17).

These are ProMed's Figs. 3 and 7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from workup.core.errors import UserError
from workup.core.statistics import Estimate
from workup.loops.evaluation.arms import labels
from workup.report.live import Live
from workup.runs import Outcome
from workup.runs.estimates import difference, estimate
from workup.runs.settings import in_full
from workup.studies import plots
from workup.studies.arms import Arm, Played, on_the_same_cases, play, settings_of
from workup.studies.likelihood import opened
from workup.studies.study import Section, Sheet, Study, plain, signed

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
METRICS = {"accuracy": 2, "questions": 1}  # decimals


@dataclass(frozen=True, slots=True)
class Point:
    """One policy at one share: its metrics, and their paired differences.

    The differences are to the smallest share and to the first policy.
    """

    policy: str
    share: float
    level: Mapping[str, Estimate]
    gain: Mapping[str, Estimate]
    lead: Mapping[str, Estimate]


@dataclass(frozen=True)
class Information(Study):
    """The sweep over shares of the facts; the points by policy, then by share."""

    name: ClassVar[str] = "information"
    question: ClassVar[str] = (
        "Does a doctor that is told more ask less, and does it make up by its questions for what "
        "it was not told? Every case is played at every share of its facts; a larger share tells "
        "what a smaller one tells, and more."
    )
    source: str
    seed: int
    points: tuple[Point, ...]

    @property
    def policies(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(point.policy for point in self.points))

    @property
    def title(self) -> str:
        return f"Initial information on {self.source}"

    @property
    def facts(self) -> Mapping[str, str]:
        n = max(point.level["accuracy"].n for point in self.points)
        return {
            "Policies": ", ".join(self.policies),
            "Cases": self.source,
            "Episodes": f"{n:,} at each share",
            "Seed": str(self.seed),
        }

    def sections(self) -> Sequence[Section]:
        caption = "Means with 95\u00a0% intervals (bootstrap by case)."
        return [Section("Accuracy and questions", tuple(self._sheets()), self._figure(), caption)]

    def _figure(self) -> Any:
        series = {
            policy: [point for point in self.points if point.policy == policy]
            for policy in self.policies
        }
        titles, x = (
            {"accuracy": "Accuracy", "questions": "Questions per case"},
            "share of the facts told at the outset",
        )
        panels = {
            title: {
                policy: [(point.share, point.level[metric]) for point in own]
                for policy, own in series.items()
            }
            for metric, title in titles.items()
        }
        return plots.curves(
            "Accuracy and questions against the share of facts told",
            panels,
            x,
            ends={"Accuracy": plots.SHARE},
        )

    def _sheets(self) -> list[Sheet]:
        several = len(self.policies) > 1
        headings = (
            "policy",
            "told",
            "n",
            *(text for metric in METRICS for text in (metric, f"{metric}, change")),
        )
        rows = tuple(
            (
                point.policy,
                f"{point.share:.0%}",
                str(point.level["accuracy"].n),
                *self._cells(point),
            )
            for point in self.points
        )
        note = "Change: to the smallest share, paired by case. *: the interval leaves out 0."
        lead = Sheet(
            f"Difference to {self.policies[0]}",
            ("policy", "told", *METRICS),
            tuple(
                (
                    point.policy,
                    f"{point.share:.0%}",
                    *(signed(point.lead[metric], digits) for metric, digits in METRICS.items()),
                )
                for point in self.points
                if point.policy != self.policies[0]
            ),
            "At the same share, paired by case.",
            2,
        )
        return [
            Sheet("By share of the facts told", headings, rows, note, 2),
            *([lead] if several else []),
        ]

    def _cells(self, point: Point) -> list[str]:
        first = point.share == min(other.share for other in self.points)
        return [
            text
            for metric, digits in METRICS.items()
            for text in (
                plain(point.level[metric], digits),
                "" if first else signed(point.gain[metric], digits),
            )
        ]

    def notes(self) -> Sequence[str]:
        return [
            (
                f"{point.policy}, {point.share:.0%} told: {point.level['accuracy'].missing} "
                "episodes failed and are left out"
            )
            for point in self.points
            if point.level["accuracy"].missing
        ]

    def as_json(self) -> dict[str, Any]:
        points = [
            {
                "policy": point.policy,
                "share": point.share,
                **{name: found.as_json() for name, found in point.level.items()},
                "change": {name: found.as_json() for name, found in point.gain.items()},
                "to_first_policy": {name: found.as_json() for name, found in point.lead.items()},
            }
            for point in self.points
        ]
        return {"cases": self.source, "seed": self.seed, "points": points}


def arms(values: Mapping[str, Any], policies: Sequence[str], shares: Sequence[float]) -> list[Arm]:
    """Every policy at every share.

    Raises UserError for shares that are none, or not in ascending order.
    """
    if (
        not shares
        or any(not 0 <= share <= 1 for share in shares)
        or any(a >= b for a, b in pairwise(shares))
    ):
        raise UserError(
            f"--shares {','.join(f'{share:g}' for share in shares)}: ascending numbers between 0 "
            "and 1, as in 0,0.5,1"
        )
    short, values = labels(policies), on_the_same_cases(values, policies)
    asked = in_full(values.get("environment"))
    return [
        Arm(short[p], f"{share:g}", settings_of(values, p, environment={**asked, "share": share}))
        for p in policies
        for share in shares
    ]


def study(
    values: Mapping[str, Any],
    policies: Sequence[str],
    shares: Sequence[float],
    folder: Path,
    live: Live,
) -> Information:
    """Plays what is missing of the sweep below `folder`, and compares it."""
    planned = arms(values, policies, shares)
    for first in planned[:: len(shares)]:
        _check_opening(first)
    return compare(planned[0].settings.cases, planned[0].settings.seed, play(planned, folder, live))


def _check_opening(arm: Arm) -> None:
    """Raises UserError if the doctor would be told nothing at all.

    The consultation asks no question of its own.
    """
    _, environment, cases = opened(arm.settings)
    if not environment.open(cases[0])[-1].content.strip():
        raise UserError(
            f"{arm.policy}: with {arm.condition} of the facts told nothing is put to the doctor; "
            "tell more"
        )


def compare(source: str, seed: int, played: Played) -> Information:
    """The sweep from the outcomes by (policy, share); differences are paired by case."""
    first, smallest = next(iter(played))
    points = [
        Point(
            policy,
            float(share),
            {metric: estimate(outcomes, metric, seed) for metric in METRICS},
            _differences(outcomes, played[policy, smallest], seed),
            _differences(outcomes, played[first, share], seed),
        )
        for (policy, share), outcomes in played.items()
    ]
    return Information(source, seed, tuple(points))


def _differences(
    ours: Sequence[Outcome], theirs: Sequence[Outcome], seed: int
) -> dict[str, Estimate]:
    return {metric: difference(ours, theirs, metric, seed) for metric in METRICS}
