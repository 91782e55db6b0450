"""The evaluations that a study compares, each a run folder below the study's.

So each can be resumed and has a report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workup.errors import UserError
from workup.evaluation import loop as evaluation
from workup.models.endpoint import ENDPOINT
from workup.policies import is_run_folder
from workup.policies.unseen import open_unseen
from workup.report.live import Face, Live
from workup.runs import Outcome, Run
from workup.runs.folder import is_run
from workup.settings import PolicySettings, furnished, in_full, merge

# ProMed's encounter: ten questions and the answer.
PROMED = {"name": "questioning", "max_turns": 11}


@dataclass(frozen=True, slots=True)
class Arm:
    """One evaluation: who plays, under which condition, and all its settings."""

    policy: str
    condition: str
    settings: PolicySettings


Played = Mapping[tuple[str, str], Sequence[Outcome]]  # (policy, condition) → outcomes by case


def settings_of(values: Mapping[str, Any], policy: str, **changes: Any) -> PolicySettings:
    """`values` as the settings of an evaluation of `policy` without anchors; `changes` win.

    Studies are ProMed's, and so is the encounter, unless a run was trained in another or the user
    names one. Raises UserError.
    """
    merged = {**values, "policy": policy, **changes}
    own = {} if is_run_folder(policy) else PROMED
    merged["environment"] = {**own, **in_full(merged.get("environment"))}
    merged["evaluation"] = {**(values.get("evaluation") or {}), "anchors": False}
    return furnished(PolicySettings, merged)


def on_the_same_cases(values: Mapping[str, Any], policies: Sequence[str]) -> Mapping[str, Any]:
    """`values` with the split in which all of `policies` are evaluated, so that they compare.

    Raises UserError where they were trained on these cases in different splits.
    """
    asked = settings_of(values, policies[0])
    return {**values, "split": open_unseen(asked.cases, policies, asked.split)[1]}


def labels(policies: Sequence[str]) -> dict[str, str]:
    """A short name for each policy; its whole name if two short ones are equal."""
    short = {
        policy: policy.removeprefix(ENDPOINT) if policy.startswith(ENDPOINT) else Path(policy).name
        for policy in policies
    }
    names = list(short.values())
    return {policy: name if names.count(name) == 1 else policy for policy, name in short.items()}


def play(arms: Sequence[Arm], folder: Path, live: Live) -> Played:
    """Plays every arm in a run folder of its own below `folder`, or resumes it.

    What was changed in one of these with `workup resume` stays as it was changed. Raises UserError
    if such a folder holds another evaluation.
    """
    played: dict[tuple[str, str], Sequence[Outcome]] = {}
    quiet = _Steps(live)
    for arm in arms:
        quiet.now = f"{arm.policy}, {arm.condition}"
        path = folder / "runs" / _slug(f"{arm.policy}-{arm.condition}")
        if is_run(path):
            _check_same(arm, Run.open(path))
            run = evaluation.resume(path, quiet)
        else:
            run = evaluation.start(arm.settings, path, quiet)
        with run:
            (doctor,) = run.doctors()
            played[arm.policy, arm.condition] = run.outcomes(doctor)
    return played


def _check_same(arm: Arm, run: Run) -> None:
    expected = arm.settings.model_dump(mode="json")
    left_out = arm.settings.standing - run.settings["roles"].keys()
    expected["roles"] = {
        role: spec for role, spec in expected["roles"].items() if role not in left_out
    }
    for change in run.config.get(
        "changed", ()
    ):  # by `workup resume`: the results do not follow from these
        expected = merge(expected, {key: value for key, value in change.items() if key != "when"})
    if run.settings != expected:
        raise UserError(f"{run.path} holds an evaluation with other settings; choose another --out")


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-." else "-" for c in name).strip("-.")


@dataclass
class _Steps(Face):
    """A `Live` that passes on the progress, and each note once.

    It shows no table and no report: the study has its own.
    """

    live: Live
    now: str = ""  # whom the next stage plays, and under which condition
    seen: set[str] = field(default_factory=set)

    def stage(self, name: str, total: int, *, done: int = 0, unit: str = "step") -> None:
        self.live.stage(self.now, total, done=done, unit=unit)

    def step(self, metrics: Mapping[str, Any]) -> None:
        self.live.step(metrics)

    def note(self, text: str) -> None:
        if text not in self.seen and not text.startswith("report "):
            self.seen.add(text)
            self.live.note(text)

    def table(self, summary: Mapping[str, Any]) -> None:
        pass
