"""The same policy before different patients (PM-18, ProMed Table 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from workup.core.errors import UserError
from workup.core.statistics import Estimate
from workup.loops.evaluation.arms import labels
from workup.loops.staff import EXACT
from workup.report.live import Live
from workup.runs.estimates import difference, estimate
from workup.runs.settings import PolicySettings
from workup.studies import plots
from workup.studies.arms import Arm, Played, on_the_same_cases, play, settings_of
from workup.studies.likelihood import opened
from workup.studies.study import Section, Sheet, Study, plain, signed

EMBEDDED, DEFAULT, CHECKED, PERSONA = "embedded", "default", "checked", "persona"
METRICS = {"accuracy": 2, "questions": 1}


@dataclass(frozen=True, slots=True)
class Before:
    """One policy with one patient.

    Its metrics, and their paired differences to the reference patient.
    """

    policy: str
    patient: str
    level: Mapping[str, Estimate]
    change: Mapping[str, Estimate]


@dataclass(frozen=True)
class Simulators(Study):
    """How results depend on who plays the patient.

    `models` are the models of the roles, by role.
    """

    name: ClassVar[str] = "simulators"
    question: ClassVar[str] = (
        "Do the results depend on who plays the patient? The embedded patient tells recorded "
        "facts word for word; the others are language models: as they are, with a fact checker "
        "that sends answers back, and with a personality."
    )
    source: str
    seed: int
    models: Mapping[str, str]
    rows: tuple[Before, ...]

    @property
    def policies(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.policy for row in self.rows))

    @property
    def title(self) -> str:
        return f"Patient simulators on {self.source}"

    @property
    def facts(self) -> Mapping[str, str]:
        n = max(row.level["accuracy"].n for row in self.rows)
        who = {role.capitalize(): model for role, model in self.models.items()}
        head = {
            "Policies": ", ".join(self.policies),
            "Cases": self.source,
            "Episodes": f"{n:,} with each patient",
        }
        return {**head, **who, "Seed": str(self.seed)}

    def sections(self) -> Sequence[Section]:
        headings = ("policy", "patient", "n", "accuracy", "difference", "questions", "difference")
        rows = tuple(
            (row.policy, row.patient, str(row.level["accuracy"].n), *self._cells(row))
            for row in self.rows
        )
        note = (
            f"Difference: to the {DEFAULT} patient, paired by case. *: the interval leaves out 0."
        )
        caption = "Means, and paired differences, with 95\u00a0% intervals (bootstrap by case)."
        return [
            Section(
                "Accuracy by patient",
                (Sheet("By patient", headings, rows, note, 2),),
                self._figure(),
                caption,
            )
        ]

    def _cells(self, row: Before) -> list[str]:
        same = row.patient == DEFAULT
        return [
            text
            for metric, digits in METRICS.items()
            for text in (
                plain(row.level[metric], digits),
                "" if same else signed(row.change[metric], digits),
            )
        ]

    def _figure(self) -> Any:
        patients = list(dict.fromkeys(row.patient for row in self.rows))

        def series(kind: str, metric: str) -> dict[str, list[Estimate | None]]:
            found = {(row.policy, row.patient): getattr(row, kind)[metric] for row in self.rows}
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
        return plots.rows(
            "Accuracy and questions by patient", patients, panels, ends={"Accuracy": plots.SHARE}
        )

    def notes(self) -> Sequence[str]:
        return [
            (
                f"{row.policy}, {row.patient} patient: {row.level['accuracy'].missing} episodes "
                "failed and are left out"
            )
            for row in self.rows
            if row.level["accuracy"].missing
        ]

    def as_json(self) -> dict[str, Any]:
        rows = [
            {
                "policy": row.policy,
                "patient": row.patient,
                **{name: found.as_json() for name, found in row.level.items()},
                "difference": {name: found.as_json() for name, found in row.change.items()},
            }
            for row in self.rows
        ]
        return {
            "cases": self.source,
            "seed": self.seed,
            "models": dict(self.models),
            "reference": DEFAULT,
            "rows": rows,
        }


def arms(
    values: Mapping[str, Any], policies: Sequence[str], others: Sequence[str] = ()
) -> list[Arm]:
    """Every policy with the embedded patient and with those that models play.

    `others` are further patient models. Raises UserError if no model plays the patient, or the
    environment has none.
    """
    named, values = labels(policies), on_the_same_cases(values, policies)
    planned: list[Arm] = []
    for policy in policies:
        base = settings_of(values, policy)
        _check(base)
        for patient, changes in _patients(base, others).items():
            roles = {**(values.get("roles") or {}), **changes.pop("roles")}
            planned.append(
                Arm(named[policy], patient, settings_of(values, policy, roles=roles, **changes))
            )
    return planned


def _patients(base: PolicySettings, others: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What each patient changes in the settings."""
    patient, checker = (_played(base, role) for role in ("patient", "checker"))
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


def _played(settings: PolicySettings, role: str) -> str | None:
    spec = settings.roles.get(role, EXACT)
    return None if spec == EXACT else spec


def _check(base: PolicySettings) -> None:
    """Raises UserError where the environment has no patient."""
    _, environment, _ = opened(base.model_copy(update={"roles": {}}))
    if "patient" not in environment.roles.names:
        raise UserError(
            f"{base.policy}: its environment has no patient to replace; say environment=questioning"
        )


def study(
    values: Mapping[str, Any],
    policies: Sequence[str],
    others: Sequence[str],
    folder: Path,
    live: Live,
) -> Simulators:
    """Plays what is missing below `folder`, and compares it."""
    planned = arms(values, policies, others)
    base = settings_of(values, policies[0])
    models = {role: spec for role, spec in base.roles.items() if spec != EXACT}
    return compare(base.cases, base.seed, models, play(planned, folder, live))


def compare(source: str, seed: int, models: Mapping[str, str], played: Played) -> Simulators:
    """The comparison from the outcomes by (policy, patient); differences are paired by case."""
    rows = [
        Before(
            policy,
            patient,
            {metric: estimate(outcomes, metric, seed) for metric in METRICS},
            {
                metric: difference(outcomes, played[policy, DEFAULT], metric, seed)
                for metric in METRICS
            },
        )
        for (policy, patient), outcomes in played.items()
    ]
    return Simulators(source, seed, models, tuple(rows))
