"""Accuracy and questions by the share of facts told at the outset (PM-17).

These are ProMed's Figs. 3 and 7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from workup.core.errors import UserError
from workup.loops.evaluation.arms import labels
from workup.runs.settings import in_full
from workup.studies.base import arms
from workup.studies.base.arms import StudyArm, Sweep, ascending, on_the_same_cases, settings_of
from workup.studies.base.likelihood import opened
from workup.studies.base.task import Numbers, SourceSettings, Study, StudyTask


class Settings(SourceSettings):
    """What is told at the outset."""

    shares: Numbers = Field(
        "0,.25,.5,.75,1",
        validate_default=True,
        description="of the facts told at the outset, ascending",
    )


class Information(Sweep):
    """The sweep over shares of the facts that are told at the outset."""

    by, heading = "share of the facts told", "told"
    titled = "Initial information on {source}"

    def called(self, condition: str) -> str:
        return f"{float(condition):.0%} told"


def planned(
    values: Mapping[str, Any], policies: Sequence[str], shares: Sequence[float]
) -> list[StudyArm]:
    """Every policy at every share.

    Raises UserError for shares that are none, or not in ascending order.
    """
    ascending("shares", shares)
    short, values = labels(policies), on_the_same_cases(values, policies)
    asked = in_full(values.get("environment"))

    def arm(policy: str, share: float) -> StudyArm:
        own = settings_of(values, policy, environment={**asked, "share": share})
        return StudyArm(short[policy], f"{share:g}", own)

    return [arm(policy, share) for policy in policies for share in shares]


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
    return Information.of(every[0].settings.cases, every[0].settings.seed, played)


study = Study(
    "Does a doctor that is told more ask less, and does it make up by its questions for what it "
    "was not told? Every case is played at every share of its facts; a larger share tells what a "
    "smaller one tells, and more.",
    run,
    Settings,
    of="policy",
)
