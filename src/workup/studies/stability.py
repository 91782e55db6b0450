"""Do Shapley values of facts agree with leave-one-out, and with themselves over draws of orders?

ProMed pays questions by Shapley values (PM-4, PM-6), which it estimates from a few orders per case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from workup.core.case import Case
from workup.core.errors import RolloutError, UserError
from workup.core.statistics import SHARE, Estimate, interval
from workup.methods.promed.shapley import (
    Coalition,
    Game,
    ShapleySettings,
    add_one_in,
    estimate,
    giveaways,
    leave_one_out,
    softmax,
)
from workup.rl.rollout import seed_key
from workup.rl.running import run_to_end
from workup.runs.settings import PolicySettings
from workup.studies import plots
from workup.studies.likelihood import Facts, Likelihood, opened, weights
from workup.studies.study import Section, Sheet, Study, plain

Array = NDArray[np.float64]
Values = tuple[float, ...]  # of a case's facts, in nats
LEAVE_ONE_OUT, SHUFFLED, ADD_ONE_IN = "leave one out", "leave one out, mean of draws", "add one in"
OTHERS = (LEAVE_ONE_OUT, SHUFFLED, ADD_ONE_IN)
LEAST = 4  # facts of a case: fewer have next to no ranking
PERMUTATIONS = 2_000
RANK = (-1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is drawn: `seeds` times as many orders as each of `orders` says, ascending.

    The orders of a smaller number are the first ones of a larger number. `facts` is `Likelihood`'s.
    """

    orders: tuple[int, ...] = (2, 4, 8, 16)
    seeds: int = 3
    facts: Facts = "hidden"
    seed: int = 0


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


@dataclass(frozen=True)
class Stability(Study):
    """The valued cases of one policy."""

    name: ClassVar[str] = "stability"
    question: ClassVar[str] = (
        "Do Shapley values rank a case's facts as leave-one-out does, and does another draw of "
        "orders rank them the same?"
    )
    policy: str
    source: str
    plan: Plan
    valued: tuple[Valued, ...]
    left_out: Mapping[str, int]
    telling: int  # facts that contain the answer

    @property
    def title(self) -> str:
        return f"Values of facts: {self.policy} on {self.source}"

    @property
    def facts(self) -> Mapping[str, str]:
        counts = [len(each.without) for each in self.valued]
        return {
            "Policy": self.policy,
            "Cases": f"{len(self.valued):,} of {self.source}",
            "Facts per case": f"{np.mean(counts):.1f} ({min(counts)} to {max(counts)})",
            "Draws": f"{self.plan.seeds}, of up to {self.plan.orders[-1]} orders each",
            "Seed": str(self.plan.seed),
        }

    # --- what facts do ---

    def together(self) -> Estimate:
        """v(F) − v(∅) over the orders of all draws, in nats: the sum of a case's values."""
        return self._over([sum(each.best) for each in self.valued])

    def raised(self) -> Estimate:
        """The share of cases in which all facts together raise the answer's probability."""
        return self._over([float(sum(each.best) > 0) for each in self.valued], SHARE)

    def spread(self) -> Estimate:
        """Standard deviation of a case's best Shapley values, in nats: how unlike its facts are."""
        return self._over([float(np.std(each.best)) for each in self.valued])

    # --- agreement with other values ---

    def agreement(self, other: str) -> Estimate:
        """Spearman's ρ of the best Shapley values and `other`: the mean over cases."""
        return self._over([spearman(each.best, each.other(other)) for each in self.valued], RANK)

    def same_top(self, other: str) -> Estimate:
        """The share of cases in which both put the same fact first."""
        return self._over([same_first(each.best, each.other(other)) for each in self.valued], SHARE)

    def chance(self, other: str) -> tuple[Chance, Chance]:
        """Of `agreement` and of `same_top`, by permutation within each case."""
        pairs = [(each.best, each.other(other)) for each in self.valued]
        return dealt(pairs, self.plan.seed)

    # --- agreement between draws ---

    def between(self, orders: int | None) -> Estimate:
        """ρ of two draws, the mean over pairs and cases; None: leave-one-out in two orders."""
        return self._over([_pairs(spearman, self._draws(v, orders)) for v in self.valued], RANK)

    def same_between(self, orders: int | None) -> Estimate:
        """How often two draws put the same fact first."""
        return self._over([_pairs(same_first, self._draws(v, orders)) for v in self.valued], SHARE)

    def with_leave_one_out(self, orders: int | None) -> Estimate:
        """ρ of one draw and leave-one-out in the record's order."""
        found = [
            _average([spearman(draw, each.without) for draw in self._draws(each, orders)])
            for each in self.valued
        ]
        return self._over(found, RANK)

    def moved(self, orders: int) -> Estimate:
        """Total variation between two draws' weights φ~ = softmax(φ): what is paid elsewhere."""
        return self._over([_pairs(distance, each.shapley[orders]) for each in self.valued], SHARE)

    def unequal(self, orders: int) -> Estimate:
        """Total variation between φ~ of one draw and equal weights."""
        found = [
            _average([distance(draw, (0.0,) * len(draw)) for draw in each.shapley[orders]])
            for each in self.valued
        ]
        return self._over(found, SHARE)

    def _draws(self, each: Valued, orders: int | None) -> tuple[Values, ...]:
        return each.shuffled if orders is None else each.shapley[orders]

    def _over(
        self, values: Sequence[float | None], bounds: tuple[float, float] | None = None
    ) -> Estimate:
        ids = [each.case for each in self.valued]
        return interval(values, ids, bounds=bounds, seed=self.plan.seed)

    # --- what is shown ---

    def sections(self) -> Sequence[Section]:
        k = self.plan.orders
        series: Mapping[str, plots.Curves] = {
            "ρ of two draws": {"Shapley": [(n, self.between(n)) for n in k]},
            "Same top fact": {"Shapley": [(n, self.same_between(n)) for n in k]},
        }
        ends = dict.fromkeys(series, plots.SHARE)
        figure = plots.curves("Shapley values of two draws", series, "orders", ends=ends)
        caption = "Means over cases with 95\u00a0% intervals (bootstrap by case)."
        return [
            Section("Values", (self._sizes(), self._agreement())),
            Section("Agreement between draws", (self._between(),), figure, caption),
        ]

    def _sizes(self) -> Sheet:
        rows = (
            ("all facts together, nats", plain(self.together())),
            ("share of cases in which they raise the answer", plain(self.raised())),
            ("standard deviation between a case's facts, nats", plain(self.spread())),
        )
        return Sheet("Shapley values", ("", "mean over cases"), rows, "All draws together.")

    def _agreement(self) -> Sheet:
        rows = []
        for other in OTHERS:
            ρ, top = self.chance(other)
            agreement, same = plain(self.agreement(other)), plain(self.same_top(other))
            rows.append((other, agreement, str(ρ), f"{ρ.p:.4f}", same, str(top), f"{top.p:.4f}"))
        headings = ("Shapley and", "ρ", "by chance", "p", "same top fact", "by chance", "p")
        note = (
            f"Shapley values from all {self.plan.seeds} draws of {self.plan.orders[-1]} orders. "
            "By chance: values dealt at random to each case's facts, mean and middle 95\u00a0% of "
            f"{PERMUTATIONS:,} deals; p: the share of deals that do as well."
        )
        return Sheet("Agreement with other values", headings, tuple(rows), note)

    def _between(self) -> Sheet:
        rows = [
            (
                f"Shapley, {n} order{'s' * (n > 1)}",
                plain(self.between(n)),
                plain(self.same_between(n)),
                plain(self.with_leave_one_out(n)),
                plain(self.moved(n)),
                plain(self.unequal(n)),
            )
            for n in self.plan.orders
        ]
        rows.append(
            (
                LEAVE_ONE_OUT,
                plain(self.between(None)),
                plain(self.same_between(None)),
                plain(self.with_leave_one_out(None)),
                "",
                "",
            )
        )
        headings = (
            "",
            "ρ of two draws",
            "same top fact",
            "ρ with leave one out",
            "φ~ moved",
            "φ~ unequal",
        )
        note = (
            "A draw of leave-one-out tells the facts in another order. Moved: total variation "
            "between the weights softmax(φ) of two draws; unequal: between them and equal weights."
        )
        return Sheet("Agreement between draws", headings, tuple(rows), note)

    def notes(self) -> Sequence[str]:
        lost = [f"{count} cases left out: {reason}" for reason, count in self.left_out.items()]
        line = f"{self.telling} facts contain the answer in so many words"
        return [*lost, *([line] if self.telling else [])]

    def as_json(self) -> dict[str, Any]:
        plan = self.plan
        agreement = {
            other: {
                "rho": self.agreement(other).as_json(),
                "top": self.same_top(other).as_json(),
                "chance": {
                    name: {"mean": by.mean, "low": by.low, "high": by.high, "p": by.p}
                    for name, by in zip(("rho", "top"), self.chance(other), strict=True)
                },
            }
            for other in OTHERS
        }
        draws = {
            str(n or LEAVE_ONE_OUT): {
                "rho": self.between(n).as_json(),
                "top": self.same_between(n).as_json(),
                "leave_one_out": self.with_leave_one_out(n).as_json(),
                **self._weights_json(n),
            }
            for n in (*plan.orders, None)
        }
        return {
            "policy": self.policy,
            "cases": self.source,
            "seed": plan.seed,
            "facts": plan.facts,
            "orders": list(plan.orders),
            "draws": plan.seeds,
            "together": self.together().as_json(),
            "raised": self.raised().as_json(),
            "spread": self.spread().as_json(),
            "agreement": agreement,
            "between": draws,
            "left_out": dict(self.left_out),
            "telling": self.telling,
            "valued": [_case_json(each) for each in self.valued],
        }

    def _weights_json(self, orders: int | None) -> dict[str, Any]:
        if orders is None:
            return {}
        return {"moved": self.moved(orders).as_json(), "unequal": self.unequal(orders).as_json()}


def _case_json(each: Valued) -> dict[str, Any]:
    best = each.best
    return {
        "case": each.case,
        "shapley": {str(n): [list(v) for v in draws] for n, draws in each.shapley.items()},
        LEAVE_ONE_OUT: list(each.without),
        "shuffled": [list(v) for v in each.shuffled],
        ADD_ONE_IN: list(each.alone),
        "rho": {other: spearman(best, each.other(other)) for other in OTHERS},
        "top": {other: same_first(best, each.other(other)) for other in OTHERS},
        "rho_of_draws": {str(n): _pairs(spearman, draws) for n, draws in each.shapley.items()},
    }


# --- measures ---


def spearman(ours: Values, theirs: Values) -> float | None:
    """Spearman's ρ, ties at their mean rank; None where either ranks nothing."""
    one, other = _standard(ours), _standard(theirs)
    return None if one is None or other is None else float(one @ other)


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
    return _average([measure(one, other) for one, other in combinations(draws, 2)])


def _average(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _mean(draws: Sequence[Values]) -> Values:
    return tuple(map(float, np.mean(draws, axis=0)))


# --- valuing ---


def study(
    settings: PolicySettings,
    label: str,
    plan: Plan,
    began: Callable[[int], None],
    tick: Callable[[], None],
) -> Stability:
    """Values the facts of the test cases; `began` gets their number. Raises UserError."""
    source, environment, cases = opened(settings)
    scorer = weights(settings, source, environment).scorer()
    likelihood = Likelihood(scorer, environment, plan.facts)
    began(len(cases))

    async def every() -> list[Valued | str]:
        found = []
        for case in cases:
            found.append(await value(case, likelihood, plan))
            tick()
        return found

    found = run_to_end(every())
    valued = tuple(each for each in found if isinstance(each, Valued))
    if not valued:
        raise UserError(f"{source.name}: no case could be valued; the first: {found[0]}")
    reasons = [each for each in found if isinstance(each, str)]
    counted = {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}
    kept = {each.case for each in valued}
    telling = sum(
        len(giveaways(likelihood.of(case), case.truth.diagnosis))
        for case in cases
        if case.id in kept
    )
    return Stability(label, source.name, plan, valued, counted, telling)


async def value(case: Case, likelihood: Likelihood, plan: Plan) -> Valued | str:
    """The case's facts, valued; or a reason why not, without any text of the case."""
    facts = likelihood.of(case)
    n = len(facts)
    if n < LEAST:
        return f"fewer than {LEAST} facts"
    game = likelihood.game(case, facts)
    seeds = [seed_key("shapley", plan.seed + draw, case.id) for draw in range(plan.seeds)]
    try:
        # The largest number first: the scorer remembers what the smaller ones ask for again.
        shapley = {
            orders: tuple([await _shapley(game, n, orders, seed) for seed in seeds])
            for orders in reversed(plan.orders)
        }
        shuffled = tuple([await _in_order(game, order) for order in _orders(case, n, plan)])
        without, alone = await leave_one_out(game, n), await add_one_in(game, n)
    except RolloutError:
        return "the prompt does not fit the policy"
    ascending = {orders: shapley[orders] for orders in plan.orders}
    return Valued(case.id, ascending, shuffled, without, alone)


async def _shapley(game: Game, n: int, orders: int, seed: int) -> Values:
    return (await estimate(game, n, ShapleySettings(orders, epsilon=0.0), [seed])).values


def _orders(case: Case, n: int, plan: Plan) -> Iterator[Coalition]:
    for draw in range(plan.seeds):
        rng = np.random.default_rng(seed_key("told", plan.seed + draw, case.id))
        yield tuple(rng.permutation(n).tolist())


async def _in_order(game: Game, order: Coalition) -> Values:
    """Leave-one-out of each fact where all are told in `order`."""

    async def told(coalitions: Sequence[Coalition]) -> Sequence[float]:
        return await game([tuple(order[place] for place in one) for one in coalitions])

    found = dict(zip(order, await leave_one_out(told, len(order)), strict=True))
    return tuple(found[fact] for fact in range(len(order)))
