"""The evaluations that a study compares, each a run folder below the study's.

So each can be resumed and has a report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workup.core.disk import slug
from workup.core.errors import UserError
from workup.loops.evaluation import loop as evaluation
from workup.loops.evaluation.arms import Steps
from workup.report.live import Live
from workup.runs import Outcome, Run
from workup.runs.folder import is_run
from workup.runs.policies import resolve
from workup.runs.policies.unseen import open_unseen
from workup.runs.settings import PolicySettings, furnished, in_full, merge

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
    own = {} if resolve(policy).is_run else PROMED
    merged["environment"] = {**own, **in_full(merged.get("environment"))}
    merged["evaluation"] = {**(values.get("evaluation") or {}), "anchors": False}
    return furnished(PolicySettings, merged)


def on_the_same_cases(values: Mapping[str, Any], policies: Sequence[str]) -> Mapping[str, Any]:
    """`values` with the split in which all of `policies` are evaluated, so that they compare.

    Raises UserError where they were trained on these cases in different splits.
    """
    asked, all_of_them = settings_of(values, policies[0]), [*map(resolve, policies)]
    return {**values, "split": open_unseen(asked.cases, all_of_them, asked.split)[1]}


def play(arms: Sequence[Arm], folder: Path, live: Live) -> Played:
    """Plays every arm in a run folder of its own below `folder`, or resumes it.

    What was changed in one of these with `workup resume` stays as it was changed. Raises UserError
    if such a folder holds another evaluation.
    """
    played: dict[tuple[str, str], Sequence[Outcome]] = {}
    quiet = Steps(live)
    for arm in arms:
        quiet.now = f"{arm.policy}, {arm.condition}"
        path = folder / "runs" / slug(f"{arm.policy}-{arm.condition}")
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
    ):  # by `workup resume`: results do not depend on these
        expected = merge(expected, {key: value for key, value in change.items() if key != "when"})
    if run.settings != expected:
        raise UserError(f"{run.path} holds an evaluation with other settings; choose another --out")
