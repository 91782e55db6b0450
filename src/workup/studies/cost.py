"""How long Shapley values take (PM-21).

Their time against the tolerance ε, the number of facts and the size of the model.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import isnan, nan

import numpy as np
import torch
from markupsafe import Markup
from pydantic import Field

from workup.core.case import Case, Fact, Source
from workup.core.draws import seed_key
from workup.core.errors import RolloutError, UserError
from workup.core.ports import Environment, LanguageModel, Scorer
from workup.core.statistics import Estimate, interval
from workup.core.text import several
from workup.loops.evaluation.arms import labels
from workup.methods.promed.question_gains import Weighing
from workup.methods.promed.shapley import ShapleySettings, estimate
from workup.models.samplers import How
from workup.models.samplers.local import LocalModel, follow
from workup.report.sheets import Sheet
from workup.rl.running import run_to_end
from workup.runs.settings import PolicySettings
from workup.runs.words import DASH, decimal
from workup.studies.base import plots
from workup.studies.base.arms import settings_of
from workup.studies.base.likelihood import opened, weights
from workup.studies.base.result import Cell, Result, Section, plain, sheet
from workup.studies.base.task import Counts, Numbers, SourceSettings, Study, StudyTask
from workup.studies.noise import Settings as NoiseSettings
from workup.studies.noise import noise, spread

TINY = "tiny"
FAMILY = ((32, 1), (64, 2), (128, 4), (256, 6))  # width, layers
MIDDLE = 0.01  # the tolerance at which sizes of F and of models are compared


class Settings(SourceSettings):
    """What is varied."""

    n: int = Field(20, ge=1, description="test cases at most, evenly spaced")
    epsilons: Numbers = Field(
        "0.1,0.01,0.001", validate_default=True, description="tolerances in nats, descending"
    )
    sizes: Counts = Field("2,4,8,16,30", validate_default=True, description="numbers of facts")
    orders: int = Field(
        64, ge=2, description="orders of the facts at most, where ε does not stop before"
    )


@dataclass(frozen=True, slots=True)
class CostCondition:
    """What is varied: the tolerance, and how many facts F has (None: the case's own)."""

    epsilon: float
    facts: int | None = None


@dataclass(frozen=True, slots=True)
class Timed:
    """One estimate: seconds, orders, tokens through the model, and the mean standard error in nats.

    Seconds are of wall-clock time.
    """

    policy: str
    case: str
    condition: CostCondition
    facts: int
    seconds: float
    orders: int
    settled: bool
    tokens: int
    error: float


@dataclass(frozen=True, slots=True)
class ConditionFigures:
    """Means over the cases of one policy under one condition.

    `deviation` is the standard deviation of the seconds, `times` the ratio to the policy's first
    condition of its kind, `per_order` in milliseconds, `settled` the share that ε stopped, `error`
    the mean standard error of φ in nats.
    """

    policy: str
    condition: CostCondition
    seconds: Estimate
    deviation: float
    times: float
    orders: Estimate
    per_order: Estimate
    settled: float
    tokens: Estimate
    error: float


@dataclass(frozen=True)
class Cost(Result):
    """Every estimate that was timed, all in one session on one machine; `parameters` by policy.

    `left_out` counts estimates by the reason for which there are none.
    """

    titled = "Cost of Shapley values on {source}"

    source: str
    seed: int
    machine: str
    parameters: Mapping[str, int]
    most: int
    timed: tuple[Timed, ...]
    left_out: Mapping[str, int]

    @property
    def policies(self) -> tuple[str, ...]:
        return tuple(self.parameters)

    @property
    def facts(self) -> Mapping[str, str]:
        own = [each.facts for each in self.timed if each.condition.facts is None]
        return {
            "Policies": ", ".join(
                f"{name} ({_count(size)})" for name, size in self.parameters.items()
            ),
            "Cases": f"{len({each.case for each in self.timed}):,} of {self.source}",
            "Facts per case": f"{np.mean(own):.1f}, at most {max(own)}" if own else "–",
            "Orders": f"{self.most} at most, in antithetic pairs",
            "Machine": self.machine,
            "Seed": str(self.seed),
        }

    def of(self, policy: str, condition: CostCondition) -> list[Timed]:
        return [each for each in self.timed if (each.policy, each.condition) == (policy, condition)]

    def mean(self, policy: str, condition: CostCondition, of: Callable[[Timed], float]) -> Estimate:
        """The mean over cases."""
        own = self.of(policy, condition)
        return interval([float(of(e)) for e in own], [e.case for e in own], seed=self.seed)

    def ratio(self, one: tuple[str, CostCondition], other: tuple[str, CostCondition]) -> float:
        """The ratio of `one`'s time to `other`'s: the median over the cases that both have.

        A median is not affected by a short load of the machine.
        """
        ours, theirs = (
            {each.case: each.seconds for each in self.of(*side)} for side in (one, other)
        )
        both = [ours[case] / theirs[case] for case in ours if case in theirs]
        return float(np.median(both)) if both else float("nan")

    @property
    def epsilons(self) -> list[CostCondition]:
        found = {each.condition for each in self.timed if each.condition.facts is None}
        return sorted(found, key=lambda condition: -condition.epsilon)

    @property
    def sizes(self) -> list[CostCondition]:
        return sorted(
            {each.condition for each in self.timed if each.condition.facts is not None},
            key=lambda c: c.facts or 0,
        )

    @cached_property
    def rows(self) -> list[ConditionFigures]:
        """Every policy under every condition: first by tolerance, then by number of facts."""
        return [
            self._row(policy, condition, conditions[0])
            for conditions in (self.epsilons, self.sizes)
            for policy in (self.policies if conditions else ())
            for condition in conditions
        ]

    def _row(self, policy: str, condition: CostCondition, base: CostCondition) -> ConditionFigures:
        own = self.of(policy, condition)
        error = [each.error for each in own if np.isfinite(each.error)]
        spread = [each.seconds for each in own]
        return ConditionFigures(
            policy,
            condition,
            self.mean(policy, condition, lambda each: each.seconds),
            float(np.std(spread, ddof=1)) if len(own) > 1 else nan,
            self.ratio((policy, condition), (policy, base)),
            self.mean(policy, condition, lambda each: each.orders),
            self.mean(policy, condition, lambda each: 1e3 * each.seconds / each.orders),
            float(np.mean([each.settled for each in own])) if own else nan,
            self.mean(policy, condition, lambda each: each.tokens),
            float(np.mean(error)) if error else nan,
        )

    def sections(self) -> Sequence[Section]:
        whiskers = "Means over cases with 95\u00a0% intervals (bootstrap)."
        epsilons = [row for row in self.rows if row.condition.facts is None]
        sizes = [row for row in self.rows if row.condition.facts is not None]
        tolerance = self._times(
            "Time against ε, the cases' own facts",
            epsilons,
            {"ε": lambda row: f"{row.condition.epsilon:g}"},
            "Times: of the policy's first row, the median over cases. Error: the standard error "
            "of φ in nats, mean over facts. Stopped by ε: the others went on to the limit of "
            "orders. Few facts: every order once, and no error.",
        )
        facts = self._times(
            "Time against |F|",
            sizes,
            {"|F|": lambda row: str(row.condition.facts)},
            f"ε = {MIDDLE:g}. A case with fewer facts is filled up with facts of others, one "
            "with more is cut short.",
        )
        by_epsilon = partial(_curves, epsilons, lambda c: c.epsilon, "ε (nats)")
        by_size = partial(_curves, sizes, lambda c: float(c.facts or 0), "|F|")
        found = [
            Section("Tolerance", (tolerance,), by_epsilon, whiskers),
            Section("Number of facts", (facts,), by_size, whiskers),
        ]
        if len(self.policies) > 1 and self.epsilons:
            found.append(Section("Size of the model", (self._models(),), self._scale, whiskers))
        return found

    def _times(
        self,
        title: str,
        rows: Sequence[ConditionFigures],
        varied: Mapping[str, Callable[[ConditionFigures], str]],
        note: str,
    ) -> Sheet:
        columns: Mapping[str, Callable[[ConditionFigures], Cell]] = {
            "policy": lambda row: row.policy,
            **varied,
            "n": lambda row: row.seconds.n,
            "seconds per case": lambda row: plain(row.seconds, 4),
            "SD": lambda row: decimal(row.deviation, 4),
            "times": lambda row: decimal(row.times, 2),
            "orders": lambda row: plain(row.orders, 1),
            "stopped by ε": lambda row: DASH if isnan(row.settled) else f"{row.settled:.0%}",
            "tokens": lambda row: DASH if isnan(row.tokens.mean) else f"{row.tokens.mean:,.0f}",
            "error": lambda row: decimal(row.error, 3),
        }
        return sheet(title, rows, columns, note)

    def _middle(self) -> list[ConditionFigures]:
        """Every policy at the tolerance nearest to the one that models are compared at."""
        middle = min(self.epsilons, key=lambda c: abs(np.log(max(c.epsilon, 1e-9) / MIDDLE)))
        return [row for row in self.rows if row.condition == middle]

    def _models(self) -> Sheet:
        rows = self._middle()
        first = rows[0]
        columns: Mapping[str, Callable[[ConditionFigures], Cell]] = {
            "policy": lambda row: row.policy,
            "parameters": lambda row: _count(self.parameters[row.policy]),
            "seconds per case": lambda row: plain(row.seconds, 4),
            "times": lambda row: decimal(
                self.ratio((row.policy, row.condition), (first.policy, first.condition)), 2
            ),
            "orders": lambda row: plain(row.orders, 1),
            "ms per order": lambda row: plain(row.per_order, 2),
        }
        note = (
            "Times: of the first. Models stop after different numbers of orders; the last column "
            "does not depend on that."
        )
        title = f"Time against the size of the model, ε = {first.condition.epsilon:g}"
        return sheet(title, rows, columns, note)

    def _scale(self) -> Markup:
        rows = [(self.parameters[row.policy], row) for row in self._middle()]
        panels: Mapping[str, plots.Curves] = {
            "Seconds per case": {"": [(size, row.seconds) for size, row in rows]},
            "Milliseconds per order": {"": [(size, row.per_order) for size, row in rows]},
        }
        return plots.curves("Seconds against the size of the model", panels, "parameters", log=True)

    def notes(self) -> Sequence[str]:
        lost = [f"{count} estimates left out: {why}" for why, count in self.left_out.items()]
        return [
            *lost,
            (
                "Seconds are wall-clock time on this machine with whatever else it was doing; "
                "compare ratios."
            ),
        ]


def _curves(
    rows: Sequence[ConditionFigures], along: Callable[[CostCondition], float], x: str
) -> Markup:
    def series(field: str) -> plots.Curves:
        by: dict[str, list[tuple[float, Estimate]]] = {}
        for row in rows:
            by.setdefault(row.policy, []).append((along(row.condition), getattr(row, field)))
        return by

    panels = {"Seconds per case": series("seconds"), "Orders until it stopped": series("orders")}
    return plots.curves(f"Seconds and orders against {x}", panels, x, log=True)


def _count(parameters: int) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if parameters >= size:
            return f"{parameters / size:.2f} {unit}"
    return str(parameters)


@dataclass(frozen=True)
class Stopwatch:
    """What is timed: the cases, with others to fill them up from, under which conditions."""

    pool: Sequence[Case]
    weighing: Weighing
    cases: Sequence[Case]
    epsilons: Sequence[float]
    sizes: Sequence[int]
    most: int
    seed: int

    @property
    def conditions(self) -> list[CostCondition]:
        return [
            *map(CostCondition, self.epsilons),
            *(CostCondition(MIDDLE, size) for size in self.sizes),
        ]

    async def time(
        self, policies: Mapping[str, LanguageModel], tick: Callable[[], None]
    ) -> list[Timed | str]:
        """Every condition on every case, in an order that changes from case to case.

        Where there is no estimate, the reason.
        """
        scorers = {name: policy.scorer() for name, policy in policies.items()}
        both = [(name, condition) for condition in self.conditions for name in policies]
        found: list[Timed | str] = []
        for name in policies:  # the first forward passes of a model are slower than all others
            await self._estimate(name, scorers[name], self.cases[0], self.conditions[0])
        for number, case in enumerate(self.cases):
            turned = number % len(both)
            for name, condition in (*both[turned:], *both[:turned]):
                found.append(await self._estimate(name, scorers[name], case, condition))
                tick()
        return found

    async def _estimate(
        self, policy: str, scorer: Scorer, case: Case, condition: CostCondition
    ) -> Timed | str:
        scorer.refresh()
        facts = self._facts(case, condition.facts)
        if len(facts) < (condition.facts or 0):
            return f"fewer than {condition.facts} facts, also with those of other cases"
        game, tokens = self.weighing.game(case, facts, scorer), scorer.tokens
        plan = ShapleySettings(self.most, condition.epsilon)
        began = time.perf_counter()
        try:
            φ = await estimate(game, len(facts), plan, [seed_key("shapley", self.seed, case.id)])
        except RolloutError:
            return "the prompt does not fit the policy"
        seconds = time.perf_counter() - began
        error = float(np.mean(φ.errors)) if φ.errors else 0.0
        return Timed(
            policy,
            case.id,
            condition,
            len(facts),
            seconds,
            φ.permutations,
            φ.settled,
            scorer.tokens - tokens,
            error,
        )

    def _facts(self, case: Case, size: int | None) -> list[Fact]:
        """The case's own facts; or `size` facts, a random part of them.

        Facts of other cases fill up what is missing, as far as there are any.
        """
        own = list(self.weighing.of(case))
        if size is None:
            return own
        shuffled = [
            own[k]
            for k in np.random.default_rng(seed_key("cost", self.seed, case.id)).permutation(
                len(own)
            )
        ]
        if size <= len(own):
            return shuffled[:size]
        ratio = (size - len(own)) / max(1, len(own))
        missing = NoiseSettings(cases="", ratio=ratio, seed=self.seed)
        return [*shuffled, *noise(case, self.pool, own, missing)][:size]


def run(task: StudyTask) -> Cost:
    """Times every policy under every condition. Raises UserError."""
    s = task.settings
    if min(s.epsilons) < 0:
        raise UserError(f"epsilons={min(s.epsilons):g}: a tolerance is at least 0")
    every = [(label, settings_of(task.values, p)) for p, label in labels(task.words).items()]
    first = every[0][1]
    source, environment, played = opened(first)
    cases = [case for case in played if case.truth.facts]
    if not cases:
        raise UserError(f"{source.name}: no case has facts to weigh")
    torch.set_num_threads(first.threads)
    policies = {
        name: policy
        for label, each in every
        for name, policy in _open(label, each, source, environment).items()
    }
    epsilons = sorted(s.epsilons, reverse=True)
    pool, weighing = spread(source.test), Weighing(environment)
    watch = Stopwatch(pool, weighing, cases, epsilons, s.sizes, s.orders, s.seed)
    conditions = len(cases) * len(watch.conditions) * len(policies)
    found = run_to_end(watch.time(policies, task.begin(conditions, "estimate")))
    timed = tuple(each for each in found if isinstance(each, Timed))
    lost = Counter(each for each in found if isinstance(each, str))
    if not timed:
        raise UserError(f"no case can be timed; the first: {found[0]}")
    parameters = {name: policy.parameters for name, policy in policies.items()}
    return Cost(source.name, s.seed, _machine(), parameters, watch.most, timed, lost)


def _open(
    label: str, settings: PolicySettings, source: Source, environment: Environment
) -> dict[str, LanguageModel]:
    """One policy; for "tiny", several untrained ones of different sizes.

    The time does not depend on what they learned.
    """
    if settings.policy != TINY:
        return {label: weights(settings, source, environment)}
    from workup.models.tiny import TinySettings, build

    family: dict[str, LanguageModel] = {}
    for width, layers in FAMILY:
        model, tokenizer = build(
            source,
            environment.lessons.phrases,
            TinySettings(width=width, layers=layers),
            settings.seed,
        )
        family[f"tiny {width}×{layers}"] = LocalModel(follow(model.eval(), tokenizer, How()))
    return family


def _machine() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"CPU, {several(torch.get_num_threads(), 'thread')}"


study = Study(
    "How long does it take to weigh the facts of one case, and what does a finer tolerance, a "
    "longer record or a larger model add? All is timed in one session, the conditions in turn on "
    "every case: ratios hold where seconds do not.",
    run,
    Settings,
    of="policy",
)
