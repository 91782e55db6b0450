"""Accuracy and questions by the share of facts told at the outset (PM-17).

These are ProMed's Figs. 3 and 7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from markupsafe import Markup
from pydantic import Field

from workup.core.errors import UserError
from workup.core.statistics import SHARE
from workup.loops.evaluation.arms import labels
from workup.runs.settings import in_full
from workup.studies.base import arms, plots
from workup.studies.base.arms import Comparison, Played, StudyArm, on_the_same_cases, settings_of
from workup.studies.base.likelihood import opened
from workup.studies.base.result import Section
from workup.studies.base.task import Numbers, SourceSettings, Study, StudyTask


class Settings(SourceSettings):
    """What is told at the outset."""

    shares: Numbers = Field(
        "0,.25,.5,.75,1",
        validate_default=True,
        description="of the facts told at the outset, ascending",
    )


@dataclass(frozen=True)
class Information(Comparison):
    """The sweep over shares of the facts; an arm's condition is its share."""

    @property
    def title(self) -> str:
        return f"Initial information on {self.source}"

    def called(self, condition: str) -> str:
        return f"{float(condition):.0%} told"

    def sections(self) -> Sequence[Section]:
        caption = "Means with 95\u00a0% intervals (bootstrap by case)."
        tables = self.tables("By share of the facts told", "told")
        return [Section("Accuracy and questions", tables, self._figure, caption)]

    def _figure(self) -> Markup:
        panels = self.curves({"accuracy": "Accuracy", "questions": "Questions per case"})
        label = "Accuracy and questions against the share of facts told"
        x = "share of the facts told at the outset"
        return plots.curves(label, panels, x, ends={"Accuracy": SHARE})


def planned(
    values: Mapping[str, Any], policies: Sequence[str], shares: Sequence[float]
) -> list[StudyArm]:
    """Every policy at every share.

    Raises UserError for shares that are none, or not in ascending order.
    """
    inside = all(0 <= share <= 1 for share in shares)
    if not inside or any(a >= b for a, b in pairwise(shares)):
        said = ",".join(f"{share:g}" for share in shares)
        raise UserError(f"shares={said}: ascending numbers between 0 and 1, as in shares=0,0.5,1")
    short, values = labels(policies), on_the_same_cases(values, policies)
    asked = in_full(values.get("environment"))
    return [
        StudyArm(
            short[p], f"{share:g}", settings_of(values, p, environment={**asked, "share": share})
        )
        for p in policies
        for share in shares
    ]


def run(task: StudyTask) -> Information:
    """Plays what is missing of the sweep below the task's folder, and compares it.

    Raises UserError where the doctor would be told nothing at all: the consultation asks no
    question of its own.
    """
    every = planned(task.values, task.words, task.settings.shares)
    for arm in every[:: len(task.settings.shares)]:
        _, environment, cases = opened(arm.settings)
        if not environment.open(cases[0])[-1].content.strip():
            raise UserError(
                f"{arm.policy}: with {arm.condition} of the facts told nothing is put to the "
                "doctor; tell more"
            )
    played = arms.play(every, task.folder, task.live)
    return compare(every[0].settings.cases, every[0].settings.seed, played)


def compare(source: str, seed: int, played: Played) -> Information:
    """The sweep from the outcomes by (policy, share); changes are to the smallest share."""
    smallest = next(iter(played))[1]
    return Information(source, seed, smallest, arms.compared(played, smallest, seed))


study = Study(
    "Does a doctor that is told more ask less, and does it make up by its questions for what it "
    "was not told? Every case is played at every share of its facts; a larger share tells what a "
    "smaller one tells, and more.",
    run,
    Settings,
    of="policy",
)
