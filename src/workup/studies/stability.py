"""Whether facts' Shapley values are stable (PM-4).

Do they agree with leave-one-out, and with themselves over draws of orders? ProMed pays questions by
Shapley values (PM-4, PM-6), which it estimates from a few orders per case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from pydantic import Field

from workup.core.case import Case
from workup.core.draws import seed_key
from workup.core.errors import RolloutError, UserError
from workup.core.ports import Scorer
from workup.core.statistics import SHARE, Estimate, interval, mean_of
from workup.core.text import several
from workup.loops.evaluation.arms import labels
from workup.methods.promed.question_gains import Facts, Weighing
from workup.methods.promed.shapley import (
    Coalition,
    Game,
    ShapleySettings,
    add_one_in,
    estimate,
    leave_one_out,
    softmax,
)
from workup.rl.running import run_to_end
from workup.studies.base import plots
from workup.studies.base.arms import settings_of
from workup.studies.base.likelihood import TOLD, by_case, opened, weights
from workup.studies.base.result import INTERVALS, Result, Section, left_out, plain, sheet
from workup.studies.base.task import Counts, SourceSettings, Study, StudyTask

Array = NDArray[np.float64]
Values = tuple[float, ...]  # of a case's facts, in nats
LEAVE_ONE_OUT, SHUFFLED, ADD_ONE_IN = "leave one out", "leave one out, mean of draws", "add one in"
OTHERS = (LEAVE_ONE_OUT, SHUFFLED, ADD_ONE_IN)
LEAST = 4  # facts of a case: fewer have next to no ranking
PERMUTATIONS = 2_000
RANK = (-1.0, 1.0)


class Settings(SourceSettings):
    """What is drawn: `draws` times as many orders as each of `orders` says.

    The orders of a smaller number are the first ones of a larger number.
    """

    orders: Counts = Field(
        "2,4,8,16", validate_default=True, description="numbers of orders of the facts, ascending"
    )
    draws: int = Field(3, ge=2, description="how often so many orders are drawn")
    facts: Facts = Field("hidden", description=TOLD)


@dataclass(frozen=True, slots=True)
class Valued:
    """One case's facts, valued again and again.

    `shapley` has the Shapley values by the number of orders and then by draw; `shuffled` has
    leave-one-out for the facts told in a random order, by draw.
    """

    case: str
    shapley: Mapping[int, tuple[Values, ...]]
    shuffled: tuple[Values, ...]
    without: Values
    alone: Values

    @property
    def best(self) -> Values:
        """Shapley values from all orders of all draws."""
        return _mean(self.shapley[max(self.shapley)])

    def other(self, name: str) -> Values:
        """The values that `OTHERS` names."""
        found = {
            LEAVE_ONE_OUT: self.without,
            SHUFFLED: _mean(self.shuffled),
            ADD_ONE_IN: self.alone,
        }
        return found[name]


@dataclass(frozen=True, slots=True)
class Chance:
    """What a measure is where values are dealt to each case's facts at random.

    `low` and `high` hold 95 % of the means over cases. `p` is the share of deals whose mean is at
    least the measured one, which counts as a deal itself: at least 1 / (1 + PERMUTATIONS).
    """

    mean: float
    low: float
    high: float
    p: float

    def __str__(self) -> str:
        return plain(Estimate(self.mean, self.low, self.high, 0))


@dataclass(frozen=True, slots=True)
class Agreement:
    """How the best Shapley values and others of the same facts agree, and what chance gives."""

    other: str
    rho: Estimate
    top: Estimate
    rho_by_chance: Chance
    top_by_chance: Chance


@dataclass(frozen=True, slots=True)
class DrawnAgreement:
    """How two draws of `orders` orders agree, with each other and with leave-one-out.

    None for `orders` stands for leave-one-out in two orders of the facts, which has no weights.
    `moved` and `unequal` are total variations of softmax(φ): between two draws, and between one
    draw and equal weights.
    """

    orders: int | None
    rho: Estimate
    top: Estimate
    leave_one_out: Estimate
    moved: Estimate | None = None
    unequal: Estimate | None = None


@dataclass(frozen=True)
class Stability(Result):
    """The valued cases of one policy. `telling` counts facts that contain the answer."""

    titled = "Values of facts: {policy} on {source}"

    policy: str
    source: str
    settings: Settings
    valued: tuple[Valued, ...]
    left_out: Mapping[str, int]
    telling: int

    @property
    def facts(self) -> Mapping[str, str]:
        counts = [len(each.without) for each in self.valued]
        return {
            "Policy": self.policy,
            "Cases": f"{len(self.valued):,} of {self.source}",
            "Facts per case": f"{np.mean(counts):.1f} ({min(counts)} to {max(counts)})",
            "Draws": f"{self.settings.draws}, of up to {self.settings.orders[-1]} orders each",
            "Seed": str(self.settings.seed),
        }

    @cached_property
    def sizes(self) -> Mapping[str, Estimate]:
        """What facts do, over the cases; values are the best ones, in nats.

        `together` is v(F) − v(∅) over the orders of all draws: the sum of a case's values. `raised`
        is the share of cases in which that is positive, `spread` the standard deviation of a case's
        values.
        """
        return {
            "together": self._over([sum(each.best) for each in self.valued]),
            "raised": self._over([float(sum(each.best) > 0) for each in self.valued], SHARE),
            "spread": self._over([float(np.std(each.best)) for each in self.valued]),
        }

    @cached_property
    def agreements(self) -> Mapping[str, Agreement]:
        """By the values that the best Shapley values are compared with."""
        found = {}
        for other in OTHERS:
            pairs = [(each.best, each.other(other)) for each in self.valued]
            ρ = self._over([spearman(*pair) for pair in pairs], RANK)
            top = self._over([same_first(*pair) for pair in pairs], SHARE)
            found[other] = Agreement(other, ρ, top, *dealt(pairs, self.settings.seed))
        return found

    @cached_property
    def draws(self) -> list[DrawnAgreement]:
        """One for each number of orders; the last: leave-one-out in two orders."""
        return [self._drawn(orders) for orders in (*self.settings.orders, None)]

    def _drawn(self, orders: int | None) -> DrawnAgreement:
        every = [each.shuffled if orders is None else each.shapley[orders] for each in self.valued]
        ρ = self._over([_pairs(spearman, draws) for draws in every], RANK)
        top = self._over([_pairs(same_first, draws) for draws in every], SHARE)
        both = zip(every, self.valued, strict=True)
        left = [mean_of([spearman(draw, v.without) for draw in draws]) for draws, v in both]
        found = (orders, ρ, top, self._over(left, RANK))
        if orders is None:
            return DrawnAgreement(*found)
        moved = self._over([_pairs(distance, draws) for draws in every], SHARE)
        apart = [mean_of([distance(draw, (0.0,) * len(draw)) for draw in draws]) for draws in every]
        return DrawnAgreement(*found, moved, self._over(apart, SHARE))

    def _over(
        self, values: Sequence[float | None], bounds: tuple[float, float] | None = None
    ) -> Estimate:
        ids = [each.case for each in self.valued]
        return interval(values, ids, bounds=bounds, seed=self.settings.seed)

    def sections(self) -> Sequence[Section]:
        names = {
            "together": "all facts together, nats",
            "raised": "share of cases in which they raise the answer",
            "spread": "standard deviation between a case's facts, nats",
        }
        means = {"": lambda row: names[row[0]], "mean over cases": lambda row: row[1]}
        sizes = sheet("Shapley values", self.sizes.items(), means, "All draws together.")
        agreement = sheet(
            "Agreement with other values",
            self.agreements.values(),
            {
                "Shapley and": lambda row: row.other,
                "ρ": lambda row: row.rho,
                "ρ by chance": lambda row: str(row.rho_by_chance),
                "p of ρ": lambda row: f"{row.rho_by_chance.p:.4f}",
                "same top fact": lambda row: row.top,
                "top by chance": lambda row: str(row.top_by_chance),
                "p of top": lambda row: f"{row.top_by_chance.p:.4f}",
            },
            f"Shapley values from all {self.settings.draws} draws of {self.settings.orders[-1]} "
            "orders. By chance: values dealt at random to each case's facts, mean and middle "
            f"95\u00a0% of {PERMUTATIONS:,} deals; p: the share of deals that do as well.",
        )
        between = sheet(
            "Agreement between draws",
            self.draws,
            {
                "": lambda row: _called(row.orders),
                "ρ of two draws": lambda row: row.rho,
                "same top fact": lambda row: row.top,
                "ρ with leave one out": lambda row: row.leave_one_out,
                "φ~ moved": lambda row: row.moved or "",
                "φ~ unequal": lambda row: row.unequal or "",
            },
            "A draw of leave-one-out tells the facts in another order. Moved: total variation "
            "between the weights softmax(φ) of two draws; unequal: between them and equal weights.",
        )
        return [
            Section("Values", (sizes, agreement)),
            Section("Agreement between draws", (between,), self._figure, INTERVALS),
        ]

    def _figure(self) -> Markup:
        drawn = [(each.orders, each) for each in self.draws if each.orders is not None]
        series: Mapping[str, plots.Curves] = {
            "ρ of two draws": {"Shapley": [(n, each.rho) for n, each in drawn]},
            "Same top fact": {"Shapley": [(n, each.top) for n, each in drawn]},
        }
        ends = dict.fromkeys(series, SHARE)
        return plots.curves("Shapley values of two draws", series, "orders", ends=ends)

    def notes(self) -> Sequence[str]:
        line = f"{self.telling} facts contain the answer in so many words"
        return [*left_out(self.left_out), *([line] if self.telling else [])]


def _called(orders: int | None) -> str:
    if orders is None:
        return LEAVE_ONE_OUT
    return f"Shapley, {several(orders, 'order')}"


# --- measures ---


def spearman(ours: Values, theirs: Values) -> float | None:
    """Spearman's ρ, ties at their mean rank; None where either ranks nothing."""
    one, other = _standard(ours), _standard(theirs)
    if one is None or other is None:
        return None
    return round(float(np.clip(one @ other, *RANK)), 12)


def same_first(ours: Values, theirs: Values) -> float:
    """Whether both put the same fact first; with ties the chance of it, each broken at random."""
    return float(_first(ours) @ _first(theirs))


def distance(ours: Values, theirs: Values) -> float:
    """Total variation between softmax(ours) and softmax(theirs), from 0 to 1."""
    return float(np.abs(np.array(softmax(ours)) - np.array(softmax(theirs))).sum() / 2)


def dealt(pairs: Sequence[tuple[Values, Values]], seed: int) -> tuple[Chance, Chance]:
    """`spearman` and `same_first` of `pairs`, where the second values are dealt anew in each."""
    rng = np.random.default_rng(seed)
    rhos, tops = [], []
    for ours, theirs in pairs:
        deal = np.argsort(rng.random((1 + PERMUTATIONS, len(ours))), axis=1)
        deal[0] = np.arange(len(ours))  # as measured
        one, other = _standard(ours), _standard(theirs)
        if one is not None and other is not None:
            rhos.append(other[deal] @ one)
        tops.append(_first(theirs)[deal] @ _first(ours))
    return _chance(rhos), _chance(tops)


def _chance(by_case: Sequence[Array]) -> Chance:
    """Row 0 of each array is as measured, the others are deals."""
    if not by_case:
        return Chance(np.nan, np.nan, np.nan, np.nan)
    means = np.mean(by_case, axis=0)
    low, high = np.quantile(means[1:], (0.025, 0.975))
    enough = means >= means[0] - 1e-12  # equal but for rounding
    return Chance(float(means[1:].mean()), float(low), float(high), float(enough.mean()))


def _standard(values: Values) -> Array | None:
    """Ranks with mean 0 and length 1."""
    from scipy.stats import rankdata  # takes half a second to load

    ranks: Array = rankdata(values) - (len(values) + 1) / 2
    length = np.linalg.norm(ranks)
    return ranks / length if length else None


def _first(values: Values) -> Array:
    """Each fact's chance to be put first."""
    top: Array = (np.array(values) == max(values)).astype(float)
    top /= top.sum()
    return top


def _pairs(
    measure: Callable[[Values, Values], float | None], draws: Sequence[Values]
) -> float | None:
    return mean_of([measure(one, other) for one, other in combinations(draws, 2)])


def _mean(draws: Sequence[Values]) -> Values:
    return tuple(map(float, np.mean(draws, axis=0)))


# --- valuing ---


def run(task: StudyTask) -> Stability:
    """Values the facts of the test cases. Raises UserError."""
    settings, policy = task.settings, task.one
    if list(settings.orders) != sorted(set(settings.orders)):
        said = ",".join(map(str, settings.orders))
        raise UserError(f"orders={said}: numbers of orders, ascending, as in orders=2,4,8")
    evaluation = settings_of(task.values, policy)
    source, environment, cases = opened(evaluation)
    scorer = weights(evaluation, source, environment).scorer()
    weighing = Weighing(environment, facts=settings.facts)

    async def valued(case: Case) -> Valued | str:
        return await value(case, weighing, scorer, settings)

    found, lost = run_to_end(by_case(cases, valued, task.begin(len(cases))))
    kept = {each.case for each in found}
    telling = sum(weighing.giveaways(case) for case in cases if case.id in kept)
    return Stability(labels([policy])[policy], source.name, settings, found, lost, telling)


async def value(case: Case, weighing: Weighing, scorer: Scorer, settings: Settings) -> Valued | str:
    """The case's facts, valued; or a reason why not, without any text of the case."""
    facts = weighing.of(case)
    n = len(facts)
    if n < LEAST:
        return f"fewer than {LEAST} facts"
    game = weighing.game(case, facts, scorer)
    draws = range(settings.draws)
    seeds = [seed_key("shapley", settings.seed, draw, case.id) for draw in draws]
    try:
        # The largest number first: the scorer remembers what the smaller ones ask for again.
        shapley: dict[int, tuple[Values, ...]] = {}
        for orders in reversed(settings.orders):
            fixed = ShapleySettings(orders, epsilon=0.0)
            estimates = [await estimate(game, n, fixed, [seed]) for seed in seeds]
            shapley[orders] = tuple(each.values for each in estimates)
        shuffled = tuple([await _in_order(game, order) for order in _orders(case, n, settings)])
        without, alone = await leave_one_out(game, n), await add_one_in(game, n)
    except RolloutError:
        return "the prompt does not fit the policy"
    ascending = {orders: shapley[orders] for orders in settings.orders}
    return Valued(case.id, ascending, shuffled, without, alone)


def _orders(case: Case, n: int, settings: Settings) -> Iterator[Coalition]:
    for draw in range(settings.draws):
        rng = np.random.default_rng(seed_key("told", settings.seed, draw, case.id))
        yield tuple(rng.permutation(n).tolist())


async def _in_order(game: Game, order: Coalition) -> Values:
    """Leave-one-out of each fact where all are told in `order`."""

    async def told(coalitions: Sequence[Coalition]) -> Sequence[float]:
        return await game([tuple(order[place] for place in one) for one in coalitions])

    found = dict(zip(order, await leave_one_out(told, len(order)), strict=True))
    return tuple(found[fact] for fact in range(len(order)))


study = Study(
    "Do Shapley values rank a case's facts as leave-one-out does, and does another draw of orders "
    "rank them the same?",
    run,
    Settings,
    of="policy",
)
