"""Evaluations that a study compares, each a run folder below the study's: they can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Self

from markupsafe import Markup

from workup.core.disk import slug
from workup.core.errors import UserError
from workup.core.statistics import SHARE, Estimate
from workup.loops.evaluation import loop as evaluation
from workup.loops.evaluation.arms import Steps
from workup.report.live import Live
from workup.report.sheets import Sheet
from workup.runs import Outcome, Run
from workup.runs.estimates import difference, estimate
from workup.runs.folder import is_run
from workup.runs.policies import resolve
from workup.runs.policies.unseen import open_unseen
from workup.runs.settings import PolicySettings, in_full, mapping, merge, with_user_config
from workup.studies.base import plots
from workup.studies.base.result import (
    STARRED,
    Cell,
    Result,
    Section,
    for_each,
    plain,
    sheet,
    signed,
)

# ProMed's encounter: ten questions and the answer.
PROMED = {"name": "questioning", "max_turns": 11}
METRICS = {"accuracy": 2, "questions": 1}  # decimals


@dataclass(frozen=True, slots=True)
class StudyArm:
    """One evaluation: who plays, under which condition, and all its settings."""

    policy: str
    condition: str
    settings: PolicySettings


Columns = dict[str, Callable[["ArmFigures"], Cell]]
Played = Mapping[tuple[str, str], Sequence[Outcome]]  # (policy, condition) → outcomes by case


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """One policy under one condition, by metric.

    `change` is the difference to the study's base condition, `lead` that to the first policy; both
    are paired by case.
    """

    policy: str
    condition: str
    level: Mapping[str, Estimate]
    change: Mapping[str, Estimate]
    lead: Mapping[str, Estimate]


def compared(played: Played, base: str, seed: int) -> tuple[ArmFigures, ...]:
    """The figures of every arm; `base` is the condition that the others are compared with."""
    first = next(iter(played))[0]
    return tuple(
        ArmFigures(
            policy,
            condition,
            {metric: estimate(outcomes, metric, seed) for metric in METRICS},
            _differences(outcomes, played[policy, base], seed),
            _differences(outcomes, played[first, condition], seed),
        )
        for (policy, condition), outcomes in played.items()
    )


def _differences(
    ours: Sequence[Outcome], theirs: Sequence[Outcome], seed: int
) -> dict[str, Estimate]:
    return {metric: difference(ours, theirs, metric, seed) for metric in METRICS}


@dataclass(frozen=True)
class Comparison(Result):
    """Policies under several conditions, by policy and then by condition."""

    source: str
    seed: int
    base: str
    arms: tuple[ArmFigures, ...]

    @property
    def policies(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(arm.policy for arm in self.arms))

    @property
    def facts(self) -> Mapping[str, str]:
        n = max(arm.level["accuracy"].n for arm in self.arms)
        return {
            "Policies": ", ".join(self.policies),
            "Cases": self.source,
            "Episodes": f"{n:,} of each policy under each condition",
            "Seed": str(self.seed),
        }

    def called(self, condition: str) -> str:
        """A condition as tables name it."""
        return condition

    def curves(self, titles: Mapping[str, str]) -> Mapping[str, plots.Curves]:
        """A panel for each metric: every policy over the conditions, which are numbers."""
        return {
            title: {
                policy: [
                    (float(arm.condition), arm.level[metric])
                    for arm in self.arms
                    if arm.policy == policy
                ]
                for policy in self.policies
            }
            for metric, title in titles.items()
        }

    def tables(self, title: str, heading: str) -> list[Sheet]:
        """All arms; where there are several policies, then the differences to the first."""
        first, *others = self.policies

        def change(metric: str, arm: ArmFigures) -> str:
            same = arm.condition == self.base
            return "" if same else signed(arm.change[metric], METRICS[metric])

        who: Columns = {
            "policy": lambda arm: arm.policy,
            heading: lambda arm: self.called(arm.condition),
        }
        levels: Columns = {
            **who,
            "n": lambda arm: arm.level["accuracy"].n,
            **for_each(METRICS, lambda metric, arm: plain(arm.level[metric], METRICS[metric])),
            **for_each(METRICS, change, "{}, change"),
        }
        note = f"Change: to {self.called(self.base)}, paired by case. {STARRED}"
        shown = [sheet(title, self.arms, levels, note, words=2)]
        if others:
            rest = [arm for arm in self.arms if arm.policy != first]
            leads = for_each(METRICS, lambda m, arm: signed(arm.lead[m], METRICS[m]))
            note = "Under the same condition, paired by case."
            shown.append(sheet(f"Difference to {first}", rest, {**who, **leads}, note, words=2))
        return shown

    def notes(self) -> Sequence[str]:
        return [
            f"{arm.policy}, {self.called(arm.condition)}: {lost} episodes failed and are left out"
            for arm in self.arms
            if (lost := arm.level["accuracy"].missing)
        ]


@dataclass(frozen=True)
class Sweep(Comparison):
    """Policies over a number, which is an arm's condition; changes are to the smallest."""

    by: ClassVar[str]
    """What the number is, as in "dose of trouble"."""
    heading: ClassVar[str]
    """The heading of its column."""

    @classmethod
    def of(cls, source: str, seed: int, played: Played) -> Self:
        """The sweep from the outcomes by (policy, number), the smallest first."""
        smallest = next(iter(played))[1]
        return cls(source, seed, smallest, compared(played, smallest, seed))

    def sections(self) -> Sequence[Section]:
        caption = "Means with 95\u00a0% intervals (bootstrap by case)."
        tables = self.tables(f"By {self.by}", self.heading)
        return [Section("Accuracy and questions", tables, self._figure, caption)]

    def _figure(self) -> Markup:
        panels = self.curves({"accuracy": "Accuracy", "questions": "Questions per case"})
        label = f"Accuracy and questions against the {self.by}"
        return plots.curves(label, panels, self.by, ends={"Accuracy": SHARE})


def ascending(name: str, numbers: Sequence[float]) -> None:
    """Raises UserError for numbers that are not within [0, 1], or not in ascending order."""
    inside = all(0 <= number <= 1 for number in numbers)
    if not inside or any(a >= b for a, b in pairwise(numbers)):
        said = ",".join(f"{number:g}" for number in numbers)
        raise UserError(f"{name}={said}: ascending numbers between 0 and 1, as in {name}=0,.5,1")


def settings_of(values: Mapping[str, Any], policy: str, **changes: Any) -> PolicySettings:
    """`values` as the settings of an evaluation of `policy` without anchors; `changes` win.

    Studies are ProMed's, and so is the encounter, unless a run was trained in another or the user
    names one. Raises UserError, also for what would add rows to the policy's own.
    """
    merged = {**values, "policy": policy, **changes}
    asked = in_full(merged.get("environment"))
    ours = not resolve(policy).is_run and asked.get("name", PROMED["name"]) == PROMED["name"]
    merged["environment"] = {**(PROMED if ours else {}), **asked}
    merged["evaluation"] = {**mapping(values, "evaluation"), "anchors": False}
    built = with_user_config(PolicySettings, merged)
    more = {"conclude": built.conclude, "stopping.alpha": built.stopping.alpha}
    if added := next((key for key, value in more.items() if value is not None), ""):
        raise UserError(f"{added} adds a row to an evaluation, and a study has none: leave it out")
    return built


def on_the_same_cases(values: Mapping[str, Any], policies: Sequence[str]) -> Mapping[str, Any]:
    """`values` with the split in which all of `policies` are evaluated, so that they compare.

    Raises UserError where they were trained on these cases in different splits.
    """
    asked = settings_of(values, policies[0])
    return {**values, "split": open_unseen(asked.cases, [*map(resolve, policies)], asked.split)[1]}


def play(arms: Sequence[StudyArm], folder: Path, live: Live) -> Played:
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


def _check_same(arm: StudyArm, run: Run) -> None:
    expected = arm.settings.model_dump(mode="json")
    left_out = arm.settings.standing - run.settings["roles"].keys()
    expected["roles"] = {
        role: spec for role, spec in expected["roles"].items() if role not in left_out
    }
    # What `workup resume` changed: results do not depend on it.
    for change in run.config.get("changed", ()):
        expected = merge(expected, {key: value for key, value in change.items() if key != "when"})
    if run.settings != expected:
        raise UserError(f"{run.path} holds an evaluation with other settings; choose another --out")
