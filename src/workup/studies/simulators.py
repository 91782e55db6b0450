"""The same policy before different simulated patients (PM-18, ProMed Table 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from pydantic import Field

from workup.core.errors import UserError
from workup.core.statistics import SHARE
from workup.loops.evaluation.arms import labels
from workup.loops.supporting import EXACT
from workup.runs.settings import PolicySettings
from workup.studies.base import arms, plots
from workup.studies.base.arms import Comparison, Played, StudyArm, on_the_same_cases, settings_of
from workup.studies.base.likelihood import opened
from workup.studies.base.result import Section
from workup.studies.base.task import Names, SourceSettings, Study, StudyTask

EMBEDDED, DEFAULT, CHECKED, PERSONA = "embedded", "default", "checked", "persona"


class Settings(SourceSettings):
    """Who plays patients beside the models of the roles."""

    patients: Names = Field(
        (), description="further models as default patient, as in endpoint:NAME"
    )


@dataclass(frozen=True)
class Simulators(Comparison):
    """How results depend on who plays the patient, which is an arm's condition.

    `models` are the models of the roles, by role.
    """

    titled = "Patient simulators on {source}"

    models: Mapping[str, str]

    @property
    def facts(self) -> Mapping[str, str]:
        return {**super().facts, **{role.capitalize(): m for role, m in self.models.items()}}

    def called(self, condition: str) -> str:
        return f"{condition} patient"

    def sections(self) -> Sequence[Section]:
        caption = "Means, and paired differences, with 95\u00a0% intervals (bootstrap by case)."
        tables = self.tables("By patient", "patient")
        return [Section("Accuracy by patient", tables, self._figure, caption)]

    def _figure(self) -> Markup:
        patients = list(dict.fromkeys(arm.condition for arm in self.arms))

        def series(kind: str, metric: str) -> plots.Rows:
            found = {(arm.policy, arm.condition): getattr(arm, kind)[metric] for arm in self.arms}
            hidden = DEFAULT if kind == "change" else ""
            return {
                p: [None if who == hidden else found[p, who] for who in patients]
                for p in self.policies
            }

        panels = {
            "Accuracy": series("level", "accuracy"),
            f"Accuracy − that with {DEFAULT}": series("change", "accuracy"),
            "Questions per case": series("level", "questions"),
        }
        label = "Accuracy and questions by patient"
        return plots.rows(label, patients, panels, ends={"Accuracy": SHARE})


def planned(
    values: Mapping[str, Any], policies: Sequence[str], others: Sequence[str] = ()
) -> list[StudyArm]:
    """Every policy with the embedded patient and with those that models play.

    `others` are further patient models. Raises UserError if no model plays the patient, or the
    environment has none.
    """
    named, values = labels(policies), on_the_same_cases(values, policies)
    planned: list[StudyArm] = []
    for policy in policies:
        base = settings_of(values, policy)
        _check(base)
        for patient, changes in _patients(base, others).items():
            roles = {**(values.get("roles") or {}), **changes.pop("roles")}
            planned.append(
                StudyArm(
                    named[policy], patient, settings_of(values, policy, roles=roles, **changes)
                )
            )
    return planned


def _patients(base: PolicySettings, others: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What each patient changes in the settings."""
    specs = (base.roles.get(role, EXACT) for role in ("patient", "checker"))
    patient, checker = (None if spec == EXACT else spec for spec in specs)
    if patient is None:
        raise UserError(
            "the study compares patients: name a model as one, as in roles.patient=endpoint:NAME"
        )
    bare = {"patient": patient, "checker": EXACT}
    plain = {key: value for key, value in base.environment.items() if key != "persona"}
    speaking = {**plain, "persona": base.environment.get("persona") or "any"}
    found: dict[str, dict[str, Any]] = {
        EMBEDDED: {"roles": {"patient": EXACT, "checker": EXACT}, "environment": plain},
        DEFAULT: {"roles": bare, "environment": plain},
    }
    if checker is not None:
        roles = {"patient": patient, "checker": checker}
        found[CHECKED] = {"roles": roles, "environment": plain}
    found[PERSONA] = {"roles": bare, "environment": speaking}
    return found | {
        f"{DEFAULT}, {name}": {"roles": {**bare, "patient": name}, "environment": plain}
        for name in others
    }


def _check(base: PolicySettings) -> None:
    """Raises UserError where the environment has no patient."""
    _, environment, _ = opened(base.model_copy(update={"roles": {}}))
    if "patient" not in environment.roles.names:
        raise UserError(
            f"{base.policy}: its environment has no patient to replace; say environment=questioning"
        )


def run(task: StudyTask) -> Simulators:
    """Plays what is missing below the task's folder, and compares it."""
    every = planned(task.values, task.words, task.settings.patients)
    base = settings_of(task.values, task.words[0])
    models = {role: spec for role, spec in base.roles.items() if spec != EXACT}
    played = arms.play(every, task.folder, task.live)
    return compare(base.cases, base.seed, models, played)


def compare(source: str, seed: int, models: Mapping[str, str], played: Played) -> Simulators:
    """The comparison from the outcomes by (policy, patient)."""
    return Simulators(source, seed, DEFAULT, arms.compared(played, DEFAULT, seed), models)


study = Study(
    "Do the results depend on who plays the patient? The embedded patient tells recorded facts "
    "word for word; the others are language models: as they are, with a fact checker that sends "
    "answers back, and with a personality.",
    run,
    Settings,
    of="policy",
)
