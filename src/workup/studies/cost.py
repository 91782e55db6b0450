"""The cost of Shapley values: time against the tolerance ε, the number of facts, the model's size.

ProMed PM-21.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from workup.core.case import Case, Fact, Source
from workup.core.errors import RolloutError, UserError
from workup.core.ports import Environment, LanguageModel
from workup.core.statistics import Estimate, interval
from workup.methods.promed.shapley import ShapleySettings, estimate
from workup.models.samplers import How
from workup.models.samplers.local import LocalModel, follow
from workup.rl.rollout import seed_key
from workup.rl.running import run_to_end
from workup.runs.settings import PolicySettings
from workup.studies import plots
from workup.studies.likelihood import Likelihood, opened, weights
from workup.studies.noise import Injection, noise, spread
from workup.studies.study import Section, Sheet, Study, plain

TINY = "tiny"
FAMILY = ((32, 1), (64, 2), (128, 4), (256, 6))  # width, layers
SIZES = (2, 4, 8, 16, 30)
MOST = 64  # orders, where ε does not stop before
MIDDLE = 0.01  # the tolerance at which sizes of F and of models are compared


@dataclass(frozen=True, slots=True)
class Condition:
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
    condition: Condition
    facts: int
    seconds: float
    orders: int
    settled: bool
    tokens: int
    error: float


@dataclass(frozen=True)
class Cost(Study):
    """Every estimate that was timed, all in one session on one machine; `parameters` by policy."""

    name: ClassVar[str] = "cost"
    question: ClassVar[str] = (
        "How long does it take to weigh the facts of one case, and what does a finer tolerance, "
        "a longer record or a larger model add? All is timed in one session, the conditions in "
        "turn on every case: ratios hold where seconds do not."
    )
    source: str
    seed: int
    machine: str
    parameters: Mapping[str, int]
    most: int
    timed: tuple[Timed, ...]
    left_out: int

    @property
    def title(self) -> str:
        return f"Cost of Shapley values on {self.source}"

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

    def of(self, policy: str, condition: Condition) -> list[Timed]:
        return [each for each in self.timed if (each.policy, each.condition) == (policy, condition)]

    def mean(self, policy: str, condition: Condition, field: str) -> Estimate:
        """The mean over cases of a field of Timed."""
        own = self.of(policy, condition)
        return interval(
            [float(getattr(each, field)) for each in own],
            [each.case for each in own],
            seed=self.seed,
        )

    def ratio(self, one: tuple[str, Condition], other: tuple[str, Condition]) -> float:
        """The ratio of `one`'s time to `other`'s: the median over the cases that both have.

        A median is not affected by a short load of the machine.
        """
        ours, theirs = (
            {each.case: each.seconds for each in self.of(*side)} for side in (one, other)
        )
        both = [ours[case] / theirs[case] for case in ours if case in theirs]
        return float(np.median(both)) if both else float("nan")

    @property
    def epsilons(self) -> list[Condition]:
        found = {each.condition for each in self.timed if each.condition.facts is None}
        return sorted(found, key=lambda condition: -condition.epsilon)

    @property
    def sizes(self) -> list[Condition]:
        return sorted(
            {each.condition for each in self.timed if each.condition.facts is not None},
            key=lambda c: c.facts or 0,
        )

    def sections(self) -> Sequence[Section]:
        whiskers = "Means over cases with 95\u00a0% intervals (bootstrap)."
        figures = (
            self._figure(self.epsilons, "epsilon", "ε (nats)"),
            self._figure(self.sizes, "facts", "|F|"),
        )
        found = [
            Section("Tolerance", (self._by_epsilon(),), figures[0], whiskers),
            Section("Number of facts", (self._by_size(),), figures[1], whiskers),
        ]
        if len(self.policies) > 1:
            found.append(Section("Size of the model", (self._by_model(),), self._scale(), whiskers))
        return found

    def _figure(self, conditions: Sequence[Condition], along: str, x: str) -> Any:
        panels = {
            title: {
                p: [(getattr(c, along), self.mean(p, c, field)) for c in conditions]
                for p in self.policies
            }
            for title, field in {
                "Seconds per case": "seconds",
                "Orders until it stopped": "orders",
            }.items()
        }
        return plots.curves(f"Seconds and orders against {x}", panels, x, log=True)

    def _scale(self) -> Any:
        middle = self._middle
        series = [(self.parameters[p], self.mean(p, middle, "seconds")) for p in self.policies]
        per_order = [(self.parameters[p], self._per_order(p, middle)) for p in self.policies]
        panels = {"Seconds per case": {"": series}, "Milliseconds per order": {"": per_order}}
        return plots.curves("Seconds against the size of the model", panels, "parameters", log=True)

    def _per_order(self, policy: str, condition: Condition) -> Estimate:
        own = self.of(policy, condition)
        return interval(
            [1e3 * each.seconds / each.orders for each in own],
            [each.case for each in own],
            seed=self.seed,
        )

    @property
    def _middle(self) -> Condition:
        """The tolerance nearest to the one that models are compared at."""
        return min(
            self.epsilons, key=lambda condition: abs(np.log(max(condition.epsilon, 1e-9) / MIDDLE))
        )

    def _by_epsilon(self) -> Sheet:
        rows = [
            self._row(p, c, f"{c.epsilon:g}", self.epsilons[0])
            for p in self.policies
            for c in self.epsilons
        ]
        note = (
            "Times: of the policy's first row, the median over cases. Error: the standard error "
            "of φ in nats, mean over facts. Stopped by ε: the others went on to the limit of "
            "orders. Few facts: every order once, and no error."
        )
        return Sheet("Time against ε, the cases' own facts", _headings("ε"), tuple(rows), note)

    def _by_size(self) -> Sheet:
        rows = [
            self._row(p, c, str(c.facts), self.sizes[0]) for p in self.policies for c in self.sizes
        ]
        note = (
            f"ε = {MIDDLE:g}. A case with fewer facts is filled up with facts of others, one "
            "with more is cut short."
        )
        return Sheet("Time against |F|", _headings("|F|"), tuple(rows), note)

    def _row(
        self, policy: str, condition: Condition, value: str, base: Condition
    ) -> tuple[str, ...]:
        own = self.of(policy, condition)
        sd = f"{np.std([each.seconds for each in own], ddof=1):.4f}" if len(own) > 1 else "–"
        settled = f"{np.mean([each.settled for each in own]):.0%}"
        error = [each.error for each in own if np.isfinite(each.error)]
        times = f"{self.ratio((policy, condition), (policy, base)):.2f}"
        tokens = f"{self.mean(policy, condition, 'tokens').mean:,.0f}"
        figures = (
            plain(self.mean(policy, condition, "seconds"), 4),
            sd,
            times,
            plain(self.mean(policy, condition, "orders"), 1),
        )
        return (
            policy,
            value,
            str(len(own)),
            *figures,
            settled,
            tokens,
            f"{np.mean(error):.3f}" if error else "–",
        )

    def _by_model(self) -> Sheet:
        middle, first = self._middle, self.policies[0]
        rows = tuple(
            (
                policy,
                _count(self.parameters[policy]),
                plain(self.mean(policy, middle, "seconds"), 4),
                f"{self.ratio((policy, middle), (first, middle)):.2f}",
                plain(self.mean(policy, middle, "orders"), 1),
                plain(self._per_order(policy, middle), 2),
            )
            for policy in self.policies
        )
        note = (
            "Times: of the first. Models stop after different numbers of orders; the last column "
            "does not depend on that."
        )
        headings = ("policy", "parameters", "seconds per case", "times", "orders", "ms per order")
        return Sheet(
            f"Time against the size of the model, ε = {middle.epsilon:g}", headings, rows, note
        )

    def notes(self) -> Sequence[str]:
        lost = (
            [f"{self.left_out} estimates left out: the prompt does not fit the policy"]
            if self.left_out
            else []
        )
        return [
            *lost,
            (
                "Seconds are wall-clock time on this machine with whatever else it was doing; "
                "compare ratios."
            ),
        ]

    def as_json(self) -> dict[str, Any]:
        timed = [
            {
                "policy": each.policy,
                "case": each.case,
                "epsilon": each.condition.epsilon,
                "asked_facts": each.condition.facts,
                "facts": each.facts,
                "seconds": each.seconds,
                "orders": each.orders,
                "settled": each.settled,
                "tokens": each.tokens,
                "error": each.error if np.isfinite(each.error) else None,
            }
            for each in self.timed
        ]
        about = {
            "cases": self.source,
            "seed": self.seed,
            "machine": self.machine,
            "most": self.most,
            "left_out": self.left_out,
        }
        return {**about, "parameters": dict(self.parameters), "timed": timed}


def _headings(varied: str) -> tuple[str, ...]:
    return (
        "policy",
        varied,
        "n",
        "seconds per case",
        "SD",
        "times",
        "orders",
        "stopped by ε",
        "tokens",
        "error",
    )


def _count(parameters: int) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if parameters >= size:
            return f"{parameters / size:.2f} {unit}"
    return str(parameters)


@dataclass(frozen=True)
class Stopwatch:
    """What is timed: the cases, with others to fill them up from, under which conditions."""

    pool: Sequence[Case]
    environment: Environment
    cases: Sequence[Case]
    epsilons: Sequence[float]
    sizes: Sequence[int]
    most: int
    seed: int

    @property
    def conditions(self) -> list[Condition]:
        return [*map(Condition, self.epsilons), *(Condition(MIDDLE, size) for size in self.sizes)]

    async def time(
        self, policies: Mapping[str, LanguageModel], tick: Callable[[], None]
    ) -> list[Timed | None]:
        """Every condition on every case, in an order that changes from case to case.

        None if a prompt does not fit.
        """
        likelihoods = {
            name: Likelihood(policy.scorer(), self.environment) for name, policy in policies.items()
        }
        both = [(name, condition) for condition in self.conditions for name in policies]
        found: list[Timed | None] = []
        for name in policies:  # the first forward passes of a model are slower than all others
            await self._estimate(name, likelihoods[name], self.cases[0], self.conditions[0])
        for number, case in enumerate(self.cases):
            turned = number % len(both)
            for name, condition in (*both[turned:], *both[:turned]):
                found.append(await self._estimate(name, likelihoods[name], case, condition))
                tick()
        return found

    async def _estimate(
        self, policy: str, likelihood: Likelihood, case: Case, condition: Condition
    ) -> Timed | None:
        scorer = likelihood.scorer
        scorer.refresh()
        facts = self._facts(likelihood, case, condition.facts)
        game, tokens = likelihood.game(case, facts), scorer.tokens
        plan = ShapleySettings(self.most, condition.epsilon)
        began = time.perf_counter()
        try:
            φ = await estimate(game, len(facts), plan, [seed_key("shapley", self.seed, case.id)])
        except RolloutError:
            return None
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

    def _facts(self, likelihood: Likelihood, case: Case, size: int | None) -> list[Fact]:
        """The case's own facts; or `size` facts, a random part of them.

        Facts of other cases fill up what is missing.
        """
        own = list(likelihood.of(case))
        if size is None:
            return own
        shuffled = [
            own[k]
            for k in np.random.default_rng(seed_key("cost", self.seed, case.id)).permutation(
                len(own)
            )
        ]
        missing = Injection(ratio=max(0, size - len(own)) / max(1, len(own)), seed=self.seed)
        return [*shuffled, *noise(case, self.pool, own, missing)][:size]


def study(
    settings: Sequence[tuple[str, PolicySettings]],
    conditions: tuple[Sequence[float], Sequence[int], int],
    began: Callable[[int], None],
    tick: Callable[[], None],
) -> Cost:
    """Times (label, settings) policies at `conditions` (ε, |F|, orders at most).

    Raises UserError.
    """
    first = settings[0][1]
    source, environment, every = opened(first)
    cases = [case for case in (every[k] for k in range(len(every))) if case.truth.facts]
    if not cases:
        raise UserError(f"{source.name}: no case has facts to weigh")
    torch.set_num_threads(first.threads)
    policies = {
        name: policy
        for label, each in settings
        for name, policy in _open(label, each, source, environment).items()
    }
    watch = Stopwatch(spread(source.test), environment, cases, *conditions, first.seed)
    began(len(cases) * len(watch.conditions) * len(policies))
    found = run_to_end(watch.time(policies, tick))
    timed = tuple(each for each in found if each is not None)
    if not timed:
        raise UserError("no case fits the policy's context with its facts")
    parameters = {name: policy.parameters for name, policy in policies.items()}
    return Cost(
        source.name,
        first.seed,
        _machine(),
        parameters,
        watch.most,
        timed,
        len(found) - len(timed),
    )


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
    return f"CPU, {torch.get_num_threads()} thread{'s' if torch.get_num_threads() > 1 else ''}"
