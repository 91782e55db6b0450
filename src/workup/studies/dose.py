"""Accuracy at growing doses of trouble, beside an exact doctor that knows the rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from workup.core.channel import Dose
from workup.core.errors import UserError
from workup.environments.base.encounter import CREDULOUS, GREEDY
from workup.loops.evaluation.arms import labels
from workup.loops.evaluation.loop import encounter
from workup.runs.policies import resolve
from workup.runs.settings import world
from workup.studies.base import arms
from workup.studies.base.arms import StudyArm, Sweep, ascending, on_the_same_cases, settings_of
from workup.studies.base.likelihood import opened
from workup.studies.base.task import Numbers, SourceSettings, Study, StudyTask


class Settings(SourceSettings):
    """How much trouble patients make."""

    doses: Numbers = Field(
        "0,.1,.2,.3,.4",
        validate_default=True,
        description="doses of trouble, ascending; differences are to the first",
    )


class DoseResponse(Sweep):
    """The sweep over doses."""

    by, heading = "dose of trouble", "dose"
    titled = "Dose of trouble on {source}"

    def called(self, condition: str) -> str:
        return f"dose {condition}"


def planned(
    values: Mapping[str, Any], policies: Sequence[str], doses: Sequence[float]
) -> list[StudyArm]:
    """Every policy at every dose, and both exact doctors in the encounter of the first policy.

    Raises UserError for doses outside [0, 1] or not in ascending order, and where nobody is asked.
    """
    ascending("doses", doses)
    short, values = labels(policies), on_the_same_cases(values, policies)
    places = {p: encounter(settings_of(values, p), resolve(p)).config for p in policies}
    for policy, place in places.items():
        if "dose" not in place:
            raise UserError(f"{policy}: its environment, {place['name']}, has no patient to ask")
    first = places[policies[0]]
    source, environment, _ = opened(settings_of(values, policies[0]))
    known = environment.about.anchors(source, 0)
    who = {short[p]: (p, places[p]) for p in policies if p != GREEDY}
    if GREEDY in known:
        who |= {GREEDY: (GREEDY, first), CREDULOUS: (CREDULOUS, first)}

    def arm(label: str, dose: float) -> StudyArm:
        name, place = who[label]
        place = {**place, "dose": dose}
        # Without any trouble there is nothing to know, and both exact doctors are the same one.
        if name == CREDULOUS and world(place, place).settings.rates == Dose():
            name = GREEDY
        own = settings_of(values, name, environment=place)
        return StudyArm(label, f"{dose:g}", own)

    return [arm(label, dose) for label in who for dose in doses]


def run(task: StudyTask) -> DoseResponse:
    """Plays what is missing of the sweep below the task's folder, and compares it."""
    every = planned(task.values, task.words, task.settings.doses)
    played = arms.play(every, task.folder, task.live)
    return DoseResponse.of(every[0].settings.cases, every[0].settings.seed, played)


study = Study(
    "How much accuracy do patients cost who withhold, forget, contradict themselves and fabricate? "
    "Every case is played at every dose; what happens at a small dose happens at a larger one "
    f"too. The doctor '{GREEDY}' knows the rates and weighs every answer by them; '{CREDULOUS}' "
    "believes what it hears.",
    run,
    Settings,
    of="policy",
)
