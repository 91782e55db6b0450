"""Stopping with a guarantee: coverage and cost over α, for any doctor that gives probabilities."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from math import inf, nan
from typing import Any

import numpy as np
from markupsafe import Markup
from pydantic import Field

from workup.core.episode import Ending, Episode
from workup.core.errors import RolloutError, UserError
from workup.core.statistics import LEVEL, SHARE, Estimate, Floats, interval
from workup.loops.evaluation.arms import labels
from workup.loops.evaluation.loop import Evaluation
from workup.loops.evaluation.stopping import Stopping as StoppingRow
from workup.metrics import conformal
from workup.report.sheets import Sheet
from workup.rl.rollout import play_all
from workup.rl.running import run_to_end
from workup.runs.settings import PolicySettings, mapping, with_user_config
from workup.studies.base import plots
from workup.studies.base.arms import on_the_same_cases
from workup.studies.base.result import Cell, Result, Section, plain, sheet
from workup.studies.base.task import Numbers, SourceSettings, Study, StudyTask

PROMISED = "promised"
DIVIDED = (
    "By α: means over divisions of the same cases into calibration and test; in brackets where "
    "95\u00a0% of the divisions lie."
)
BY_CASE = "Over all cases, without any division; in brackets the 95\u00a0% interval by case."


class Settings(SourceSettings):
    """Which promises are kept, on how many cases."""

    n: int = Field(1000, ge=1, description="cases to test on")
    calibration: int = Field(500, ge=1, description="cases to calibrate on")
    alphas: Numbers = Field(
        "0.02,0.05,0.1,0.2,0.3",
        validate_default=True,
        description="the promised errors, within 0 and 1",
    )
    divisions: int = Field(
        100, ge=2, description="how often the cases are divided anew into calibration and test"
    )


@dataclass(frozen=True, slots=True)
class StoppedAt:
    """A policy that stops with the promise 1 − α: means over divisions, and their spread.

    `saved`: how many more questions a doctor with a fixed number of them needs for the same
    accuracy of the most probable disease; NaN where no fixed number reaches it. If the rule asks
    3.4 and a fixed number needs 6.8, it is 3.4.
    """

    policy: str
    alpha: float
    threshold: Estimate
    coverage: Estimate
    size: Estimate
    questions: Estimate
    accuracy: Estimate
    single: Estimate
    saved: float


@dataclass(frozen=True, slots=True)
class FixedBudget:
    """A policy stopped after `budget` questions: the mean number asked, and who was right."""

    policy: str
    budget: int
    questions: float
    accuracy: Estimate


@dataclass(frozen=True)
class StoppingStudy(Result):
    """Every policy at every α, and after every fixed number of questions."""

    titled = "Stopping on {source}"

    source: str
    seed: int
    calibration: int
    tested: int
    divisions: int
    stopped: tuple[StoppedAt, ...]
    fixed: tuple[FixedBudget, ...]
    left_out: Mapping[str, int]

    def notes(self) -> Sequence[str]:
        return [
            f"{policy}: {count:,} episodes failed and are left out"
            for policy, count in self.left_out.items()
            if count
        ]

    def sections(self) -> Sequence[Section]:
        columns: Mapping[str, Callable[[StoppedAt], Cell]] = {
            "policy": lambda row: row.policy,
            "α": lambda row: f"{row.alpha:g}",
            "coverage": lambda row: plain(row.coverage, 3),
            "set size": lambda row: plain(row.size),
            "one disease": lambda row: plain(row.single),
            "questions": lambda row: plain(row.questions),
            "accuracy": lambda row: plain(row.accuracy, 3),
            "questions saved": lambda row: plain(Estimate.exact(row.saved), 1),
        }
        note = (
            "Coverage: the truth is in the named set. One disease: share of the sets with one "
            "member. Accuracy: the most probable disease is the true one. Saved: how many more "
            "questions a fixed number of them takes to reach this accuracy."
        )
        after: Mapping[str, Callable[[FixedBudget], Cell]] = {
            "policy": lambda row: row.policy,
            "after": lambda row: str(row.budget),
            "questions": lambda row: f"{row.questions:.2f}",
            "accuracy": lambda row: plain(row.accuracy, 3),
        }
        tables: list[Sheet] = [
            sheet("By α", self.stopped, columns, note, words=2),
            sheet("After a fixed number of questions", self.fixed, after, BY_CASE, words=2),
        ]
        return [Section("Coverage and cost", tables, self._figure, DIVIDED)]

    def _figure(self) -> Markup:
        def of(field: str) -> dict[str, list[tuple[float, Estimate]]]:
            found: dict[str, list[tuple[float, Estimate]]] = {}
            for row in self.stopped:
                found.setdefault(row.policy, []).append((row.alpha, getattr(row, field)))
            return found

        alphas = sorted({row.alpha for row in self.stopped})
        promised = [(a, Estimate.exact(1 - a)) for a in alphas]
        panels: Mapping[str, plots.Curves] = {
            "Coverage": {**of("coverage"), PROMISED: promised},
            "Questions": of("questions"),
            "Set size": of("size"),
        }
        ends = {"Coverage": (min(0.5, 1 - alphas[-1]), SHARE[1])}
        return plots.curves("Coverage, questions and set size over α", panels, "α", ends=ends)


@dataclass(frozen=True)
class PlayedEncounter:
    """One played case: what its sets are after each question, ready to be asked for any λ.

    `reach` holds for each t the λ below which the rule has stopped by then; `ranked` the sorted
    a_t, `truth` that of the true disease, `right` whether the most probable one is true. It is not
    where a belief ranks none before another, as one that could not be read.
    """

    case: str
    score: float
    reach: Sequence[float]
    ranked: Sequence[Floats]
    truth: Sequence[float]
    right: Sequence[bool]

    @classmethod
    def of(
        cls, case: str, spread: Sequence[Floats], truth: int | None, most: int
    ) -> PlayedEncounter:
        """From a_t after 0, 1, … and all questions, and the place of the truth."""
        ranked = [np.sort(a) for a in spread]
        reach = [float(a[most]) if len(a) > most else inf for a in ranked]
        return cls(
            case,
            conformal.score(spread, truth, most),
            np.maximum.accumulate(reach).tolist(),
            ranked,
            [conformal.UNLISTED if truth is None else float(a[truth]) for a in spread],
            [int(np.argmin(a)) == truth and (len(a) == 1 or bool(a.any())) for a in spread],
        )

    def at(self, threshold: float) -> tuple[float, float, float, float, float]:
        """(truth in the set, size, one disease, questions, most probable is right) on stopping."""
        t = min(bisect_right(self.reach, threshold), len(self.reach) - 1)
        size = int(np.searchsorted(self.ranked[t], threshold, side="right"))
        inside = self.truth[t] <= min(threshold, 1.0)  # no set holds a truth that is not listed
        return float(inside), float(size), float(size == 1), float(t), float(self.right[t])


def stopped(
    policy: str,
    encounters: Sequence[PlayedEncounter],
    settings: Settings,
    fixed: Sequence[FixedBudget],
) -> list[StoppedAt]:
    """The policy at every α. Raises UserError for an α that the calibration is too small for."""
    count = min(settings.calibration, len(encounters) - 1)
    rng = np.random.default_rng(settings.seed)
    orders = [rng.permutation(len(encounters)) for _ in range(settings.divisions)]
    rows = []
    for alpha in settings.alphas:
        thresholds, means = [], []
        for order in orders:
            scores = [encounters[k].score for k in order[:count]]
            thresholds.append(conformal.threshold(scores, alpha))
            found = [encounters[k].at(thresholds[-1]) for k in order[count:]]
            means.append(np.mean(found, axis=0))
        table = np.array(means)
        tested = len(encounters) - count
        inside, size, single, asked, right = (_over(column, tested) for column in table.T)
        rows.append(
            StoppedAt(
                policy,
                alpha,
                _over(np.array(thresholds), tested),
                inside,
                size,
                asked,
                right,
                single,
                _fixed_for(right.mean, fixed) - asked.mean,
            )
        )
    return rows


def budgets(policy: str, encounters: Sequence[PlayedEncounter], seed: int) -> list[FixedBudget]:
    """The policy after 0, 1, … questions; an encounter with fewer counts as it ended."""
    rows = []
    cases = [each.case for each in encounters]
    for budget in range(max(len(each.right) for each in encounters)):
        last = [min(budget, len(each.right) - 1) for each in encounters]
        right = [float(each.right[t]) for each, t in zip(encounters, last, strict=True)]
        found = interval(right, cases, bounds=SHARE, seed=seed)
        rows.append(FixedBudget(policy, budget, float(np.mean(last)), found))
    return rows


def _fixed_for(accuracy: float, fixed: Sequence[FixedBudget]) -> float:
    """How many questions a fixed number takes for this accuracy, between two of them in
    proportion; NaN where none has it."""
    for before, after in zip((None, *fixed), fixed, strict=False):
        if after.accuracy.mean >= accuracy:
            if before is None:
                return after.questions
            rise = after.accuracy.mean - before.accuracy.mean
            part = (accuracy - before.accuracy.mean) / rise
            return before.questions + part * (after.questions - before.questions)
    return nan


def _over(values: Floats, n: int) -> Estimate:
    """The mean over divisions, with where LEVEL of them lie."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(values.mean()), float(low), float(high), n, sd=float(values.std(ddof=1)))


def _encounters(
    evaluation: Evaluation, task: StudyTask, label: str
) -> tuple[list[PlayedEncounter], int]:
    """Every case that does not fail, played without a rule; and how many failed.

    Raises RolloutError, with the commonest reason, where all failed.
    """
    row, tested, held = evaluation.stopping, evaluation.examination, evaluation.calibrating
    assert isinstance(row, StoppingRow)
    assert held is not None
    jobs = [job for job, _ in (*tested.jobs(), *held.jobs())]
    tick, most, reasons = task.begin(len(jobs)), row.settings.most, Counter[str]()

    async def scored(episode: Episode) -> PlayedEncounter | None:
        found = None
        if episode.ending is not Ending.FAILED:
            try:
                found = PlayedEncounter.of(episode.case.id, *await row.spread(episode), most)
            except RolloutError as error:
                reasons[str(error)] += 1
        else:
            reasons[episode.reason] += 1
        tick()
        return found

    play = play_all(jobs, tested.environment, row.doctor, tested.play, tested.concurrency, scored)
    every = run_to_end(play)
    known = [each for each in every if each is not None]
    if not known:
        why = reasons.most_common(1)[0][0]
        raise RolloutError(f"{label}: all {len(every)} episodes failed: {why}")
    return known, len(every) - len(known)


def run(task: StudyTask) -> StoppingStudy:
    """Plays every policy once on all cases, and divides them again and again. Raises UserError."""
    s: Settings = task.settings
    if not all(0 < alpha < 1 for alpha in s.alphas):
        raise UserError("alphas: numbers between 0 and 1, as in alphas=0.05,0.1")
    conformal.need(s.calibration, min(s.alphas))
    names, rows, fixed = labels(task.words), list[StoppedAt](), list[FixedBudget]()
    values = on_the_same_cases(task.values, [*names])
    lost: dict[str, int] = {}
    for policy, label in names.items():
        evaluation = Evaluation.of(_settings(task, values, policy), "study")
        with closing(evaluation.supporting):
            encounters, lost[label] = _encounters(evaluation, task, label)
        own = budgets(label, encounters, s.seed)
        rows += stopped(label, encounters, s, own)
        fixed += own
    cases = len(encounters) + lost[label]  # the same ones for every policy
    count = min(s.calibration, cases - 1)
    sizes = (count, cases - count, s.divisions)
    return StoppingStudy(
        s.cases,
        s.seed,
        *sizes,
        tuple(rows),
        tuple(fixed),
        lost,
        restricted=evaluation.source.restricted,
    )


def _settings(task: StudyTask, values: Mapping[str, Any], policy: str) -> PolicySettings:
    """One policy's evaluation, with a row that stops. Raises UserError for several samples.

    Episodes of one case are alike, and the promise is about cases that are not.
    """
    stopping = mapping(task.others, "stopping")
    stopping |= {"alpha": min(task.settings.alphas), "calibration": task.settings.calibration}
    built = with_user_config(PolicySettings, {**values, "policy": policy, "stopping": stopping})
    if built.evaluation.samples > 1:
        raise UserError("evaluation.samples: one encounter of each case is divided; leave it out")
    return built


study = Study(
    "If a doctor stops as soon as it is sure enough, does the set that it names hold the truth as "
    "often as promised, and how many questions does that take? Every policy plays all cases once; "
    "they are divided into calibration and test many times.",
    run,
    Settings,
    of="policy",
)
