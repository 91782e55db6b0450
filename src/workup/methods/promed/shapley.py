"""The Shapley value of each fact for a model's answer (ProMed), and the gain of each question.

A game gives each coalition S of facts its worth v(S) in nats. For a language model v(S) =
log P_θ(A* | Q, S) (PM-4). The Shapley value φ of a fact is its mean marginal contribution over all
orders in which the facts can join. A coalition is a tuple of the facts' places in the order of
joining, because a language model may read the same facts differently in another order. Many
coalitions are asked for in one call. A scorer can then compute shared prefixes once: the coalitions
of one order are one path of a trie.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise, permutations
from math import comb, factorial, inf
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from workup.core.case import Fact
from workup.core.episode import Episode
from workup.core.ports import Scorer, ScoreRequest
from workup.core.text import neutralise, normalise
from workup.environments.base.lexical import chinese

Array = NDArray[np.float64]
Coalition = tuple[int, ...]
Truncation = Literal["none", "literal", "zero"]
Game = Callable[[Sequence[Coalition]], Awaitable[Sequence[float]]]  # coalitions → their worth, nats

MOST_FACTS = 10  # the most that are enumerated: 1,024 coalitions


@dataclass(frozen=True, slots=True)
class ShapleySettings:
    """How φ is estimated (PM-4).

    At most `permutations` orders are drawn, `at_once` of them asked for together. With `antithetic`
    each second order is the one before it backwards; the two are one draw. After each draw but the
    first, sampling stops if the mean over facts of the absolute change of φ is below `epsilon`
    nats. Orders that were asked for already still count. Small games are not sampled: if n! ≤
    `permutations`, every order is taken once.

    `truncation` skips the facts after the first S_j, j = 1 … n, with |v(S_j) − v(F)| < `epsilon`; ∅
    is not tested. "literal" leaves the running means of the skipped facts unchanged; "zero" counts
    a contribution of 0. Both are biased, and save nothing if an order is scored in one forward
    pass. So "none" is the default.

    "literal" with `antithetic` off is the loop of Algorithm 1 as printed. Orders are drawn one by
    one, and the same one may come again, in small games too. Sampling stops after the k-th order,
    k ≥ 2, if Σ_f of the absolute change of φ, divided by k − 1, is below `epsilon`. At k = 1 the
    printed test divides by 0.
    """

    permutations: int = 16
    epsilon: float = 0.01
    antithetic: bool = True
    truncation: Truncation = "none"
    at_once: int = 4

    def __post_init__(self) -> None:
        if self.permutations < 1 or self.at_once < 1 or self.epsilon < 0:
            raise ValueError(
                f"{self}: permutations and at_once must be at least 1, epsilon at least 0"
            )

    @property
    def draws_at_once(self) -> int:
        return 1 if self.truncation == "literal" else max(1, self.at_once // (1 + self.antithetic))


@dataclass(frozen=True, slots=True)
class Shapley:
    """φ of each fact in nats, and its standard error (0 if exact, ∞ from a single draw).

    `permutations` is the number of orders taken. `settled` says whether the stop test passed before
    the plan's limit. Without truncation the values sum to v(F) − v(∅), averaged over the orders.
    """

    values: tuple[float, ...]
    errors: tuple[float, ...]
    permutations: int = 0
    settled: bool = True


# --- the games ---


def answer_game(
    scorer: Scorer,
    request: ScoreRequest,
    pieces: Sequence[str],
    order: Literal["permutation", "canonical"],
) -> Game:
    """v(S) = log P_θ(A* | Q, S): the total log-probability of the request's answer.

    The context is the request's opening and the `pieces` of S. With `order` "permutation" the facts
    stand in the order of joining, so that the coalitions of one order share a prefix; each fact is
    then measured as the last one said (PM-5). With "canonical" they stand in the record's order, so
    that equal sets are equal prompts and are scored once.
    """

    async def worth(coalitions: Sequence[Coalition]) -> Sequence[float]:
        shown = (
            coalitions
            if order == "permutation"
            else [tuple(sorted(coalition)) for coalition in coalitions]
        )
        contexts = tuple(tuple(pieces[place] for place in coalition) for coalition in shown)
        return (await scorer.score(replace(request, contexts=contexts))).totals

    return worth


def pieces(facts: Sequence[Fact]) -> tuple[str, ...]:
    """Each fact as a line of the prompt, neutralised: no text in it can act as a tag or token."""
    return tuple(f"\n{neutralise(fact.text)}" for fact in facts)


def giveaways(facts: Sequence[Fact], answer: str) -> list[Fact]:
    """The facts that contain `answer` as whole words; their φ says nothing about evidence.

    A run warns of them and counts them.
    """
    wanted = normalise(answer)
    if chinese(wanted):  # written without spaces between words
        return [fact for fact in facts if wanted in normalise(fact.text)]
    return [fact for fact in facts if wanted and f" {wanted} " in f" {normalise(fact.text)} "]


# --- exact values, and simpler ones ---


async def exact(game: Game, n: int) -> Shapley:
    """φ by enumeration: φ_f = Σ_{S ⊆ F∖f} |S|! (n−|S|−1)! / n! · (v(S ∪ f) − v(S)).

    Coalitions are given in ascending order. Raises ValueError for more than MOST_FACTS facts.
    """
    if n > MOST_FACTS:
        raise ValueError(f"{n} facts are too many to enumerate: at most {MOST_FACTS}")
    sets = np.arange(2**n)  # as bit masks: fact f is in S if bit f is set
    v = np.array(await game([tuple(f for f in range(n) if s >> f & 1) for s in range(2**n)]))
    weight = np.array(
        [
            1 / (n * comb(n - 1, size)) if size < n else 0.0
            for size in map(int.bit_count, range(2**n))
        ]
    )
    without = [sets[sets >> f & 1 == 0] for f in range(n)]
    return Shapley(
        tuple(float(weight[S] @ (v[S | 1 << f] - v[S])) for f, S in enumerate(without)), (0.0,) * n
    )


async def leave_one_out(game: Game, n: int) -> tuple[float, ...]:
    """v(F) − v(F∖f) of each fact (PM-20), n + 1 coalitions."""
    everyone = tuple(range(n))
    whole, *rest = await game([everyone, *(everyone[:f] + everyone[f + 1 :] for f in everyone)])
    return tuple(whole - less for less in rest)


async def add_one_in(game: Game, n: int) -> tuple[float, ...]:
    """v({f}) − v(∅) of each fact (PM-20), n + 1 coalitions."""
    nobody, *singles = await game([(), *((f,) for f in range(n))])
    return tuple(alone - nobody for alone in singles)


# --- Monte Carlo ---


async def estimate(game: Game, n: int, plan: ShapleySettings, seed: Sequence[int]) -> Shapley:
    """φ by Monte Carlo over random orders; the same seed gives the same orders."""
    if n == 0:
        return Shapley((), ())
    everything = plan.truncation != "literal" and factorial(n) <= plan.permutations
    each: Iterator[tuple[Coalition, ...]] = ((order,) for order in permutations(range(n)))
    draws = each if everything else _draws(n, plan, seed)
    running = _Running(n, plan)
    while together := list(islice(draws, plan.permutations if everything else plan.draws_at_once)):
        walks = iter(await _walks(game, [order for draw in together for order in draw]))
        for draw in together:
            running.add([(order, next(walks)) for order in draw])
        if running.settled and not everything:
            break
    errors = np.zeros(n) if everything and plan.truncation == "none" else running.errors
    return Shapley(
        tuple(map(float, running.means)),
        tuple(map(float, errors)),
        running.count,
        everything or running.settled,
    )


def _draws(n: int, plan: ShapleySettings, seed: Sequence[int]) -> Iterator[tuple[Coalition, ...]]:
    """Random orders, each with its mirror image if the plan says so and the limit allows both."""
    rng = np.random.default_rng(seed)
    left = plan.permutations
    while left:
        order = tuple(map(int, rng.permutation(n)))
        draw = (order, order[::-1])[: min(left, 1 + plan.antithetic)]
        left -= len(draw)
        yield draw


async def _walks(game: Game, orders: Sequence[Coalition]) -> list[Array]:
    """v(S_0 = ∅), v(S_1), …, v(S_n = F) along each order; ∅ is asked for once."""
    n = len(orders[0])
    empty, *worths = await game([(), *(order[:j] for order in orders for j in range(1, n + 1))])
    return [np.array([empty, *worths[start : start + n]]) for start in range(0, len(worths), n)]


class _Running:
    """Running means of the contributions over draws."""

    def __init__(self, n: int, plan: ShapleySettings) -> None:
        self.plan, self.count, self.settled = plan, 0, False
        self.means: Array = np.zeros(n)
        self.draws: list[Array] = []  # the mean contributions within each draw

    def add(self, draw: Sequence[tuple[Coalition, Array]]) -> None:
        before, contributions = self.means, []
        for order, walk in draw:
            contributions.append(self._contributions(order, walk))
            self.count += 1
            self.means = self.means + (contributions[-1] - self.means) / self.count
        self.draws.append(np.mean(contributions, axis=0))
        change = np.abs(self.means - before)
        moved = (
            change.sum() / max(self.count - 1, 1)
            if self.plan.truncation == "literal"
            else change.mean()
        )
        if len(self.draws) > 1 and float(moved) < self.plan.epsilon:
            self.settled = True

    def _contributions(self, order: Coalition, walk: Array) -> Array:
        """v(S_j) − v(S_{j−1}) by fact; for skipped facts 0, or the value that keeps their means."""
        gains = np.diff(walk)
        if self.plan.truncation != "none":
            close = np.abs(walk[1:] - walk[-1]) < self.plan.epsilon
            cut = 1 + int(close.argmax()) if close.any() else len(gains)
            gains[cut:] = (
                self.means[list(order[cut:])] if self.plan.truncation == "literal" else 0.0
            )
        found = np.empty(len(order))
        found[list(order)] = gains
        return found

    @property
    def errors(self) -> Array:
        """Standard errors of the means over draws.

        A pair of antithetic orders is one draw, because its two orders are not independent.
        """
        if len(self.draws) < 2:
            return np.full_like(self.means, inf)
        found: Array = np.std(self.draws, axis=0, ddof=1) / np.sqrt(len(self.draws))
        return found


# --- from facts to questions ---


def softmax(values: Sequence[float]) -> tuple[float, ...]:
    """φ~ = softmax(φ) (PM-6): positive, sums to 1.

    A harmful fact (φ < 0) has a positive weight too.
    """
    if not values:
        return ()
    powers = np.exp(np.array(values) - max(values))
    return tuple(map(float, powers / powers.sum()))


def uniform(n: int) -> tuple[float, ...]:
    """1/|F| for each fact: with these weights `gains` is the plain information gain (PM-3)."""
    return (1 / max(n, 1),) * n


def gains(understood: Sequence[Collection[str]], weights: Mapping[str, float]) -> tuple[float, ...]:
    """SIG(q_t) = Σ_i φ~_i [1(f_i ⊆ U_t) − 1(f_i ⊆ U_{t−1})] for t = 1 … T (PM-6).

    `understood` is U_0 … U_T as ids of facts, and `weights` are φ~ by id; an id without a weight
    counts nothing. A fact that is lost again counts negative. A fact that was understood before
    counts nothing.
    """
    held = [{fact for fact in known if fact in weights} for known in understood]
    return tuple(
        sum(weights[fact] for fact in sorted(now - before))
        - sum(weights[fact] for fact in sorted(before - now))
        for before, now in pairwise(held)
    )


def revealed(episode: Episode) -> list[frozenset[str]]:
    """U_0 … U_T by identity: after each turn, the ids of all facts revealed so far.

    A revealed fact is never lost.
    """
    known: list[frozenset[str]] = [frozenset()]
    for turn in episode.turns:
        known.append(known[-1].union(turn.observation.evidence))
    return known


# --- rankings (PM-20) ---


def hits(scores: Sequence[float], relevant: Collection[int], k: int) -> float | None:
    """How many of the k facts with the highest scores are relevant, divided by min(k, |relevant|).

    The paper calls it recall. `relevant` are places in `scores`. Ties are broken at random; the
    result is the expectation. None if no fact is relevant.
    """
    return _among_top(scores, relevant, k) / min(k, len(relevant)) if relevant else None


def precision(scores: Sequence[float], relevant: Collection[int], k: int) -> float:
    """How many of the k facts with the highest scores are relevant, divided by k.

    Ties are as in `hits`; 0 if no fact is relevant.
    """
    return _among_top(scores, relevant, k) / k


def _among_top(scores: Sequence[float], relevant: Collection[int], k: int) -> float:
    """The expected number of relevant facts among the first k."""
    values = np.array(scores, dtype=float)
    chance = [
        min(1.0, max(0.0, (k - float((values > x).sum())) / float((values == x).sum())))
        for x in values
    ]
    return sum(chance[place] for place in relevant)
