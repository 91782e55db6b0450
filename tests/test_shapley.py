"""Shapley values and their estimates.

Values are compared with brute force over orders, the clinic's oracle and their axioms, estimates
with enumeration.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from exact_shapley import shapley as oracle
from handmade import CASES, SOURCE, Script, play
from hypothesis import given
from hypothesis import strategies as st
from test_local_policy import letters, qwen

from workup.cases.clinic import open_clinic
from workup.core.case import Case, Fact, Knowledge, evidence_of
from workup.core.episode import Message
from workup.core.errors import WorkupError
from workup.core.ports import ScoreRequest
from workup.environments.consultation import Consultation
from workup.methods.promed.shapley import (
    MOST_FACTS,
    Coalition,
    Game,
    Shapley,
    ShapleySettings,
    add_one_in,
    answer_game,
    estimate,
    exact,
    gains,
    giveaways,
    hits,
    leave_one_out,
    pieces,
    precision,
    revealed,
    softmax,
    uniform,
)
from workup.models.local import LocalPolicy
from workup.models.scorer import LocalScorer

torch.set_num_threads(1)

VALUES = st.floats(-5, 5).map(lambda x: round(x, 3))


def game(worth: Callable[[frozenset[int]], float], asked: list[Coalition] | None = None) -> Game:
    """A game of sets; what it is asked for is added to `asked`."""

    async def value(coalitions: Sequence[Coalition]) -> list[float]:
        if asked is not None:
            asked.extend(coalitions)
        return [worth(frozenset(coalition)) for coalition in coalitions]

    return value


def table(values: Sequence[float]) -> Game:
    """The game whose set S is worth `values[mask of S]`."""
    return game(lambda s: values[sum(1 << f for f in s)])


def tables(n: int) -> st.SearchStrategy[list[float]]:
    return st.lists(VALUES, min_size=2**n, max_size=2**n)


def solved(worth: Game, n: int) -> tuple[float, ...]:
    return asyncio.run(exact(worth, n)).values


def sampled(worth: Game, n: int, seed: int = 0, **plan: Any) -> Shapley:
    return asyncio.run(estimate(worth, n, ShapleySettings(**plan), [seed]))


def believed(knowledge: Knowledge | None, case: Case) -> Callable[[frozenset[int]], float]:
    """log P(d* | given, S), for S of the places of the case's hidden facts."""
    assert knowledge is not None
    truth, facts = list(knowledge.diagnoses).index(case.truth.diagnosis), case.truth.facts

    def worth(s: frozenset[int]) -> float:
        known = evidence_of((*case.given, *(facts[f] for f in sorted(s))))
        return math.log(knowledge.posterior(known)[truth])

    return worth


def posterior_game(index: int, most: int, subset: str = "s") -> tuple[Game, int]:
    """log P(d* | given, S) in the clinic, for a case with at least four hidden facts."""
    source = open_clinic(subset)
    found = [
        case for case in (source.train[i] for i in range(200)) if 4 <= len(case.truth.facts) <= most
    ]
    case = found[index]
    worth, facts = believed(source.knowledge, case), case.truth.facts
    memory: dict[frozenset[int], float] = {}
    return game(lambda s: memory[s] if s in memory else memory.setdefault(s, worth(s))), len(facts)


# ------------------------------------------------------------------------------------- exact values


@given(tables(4))
def test_exact_values_are_mean_contributions_over_all_orders(values: list[float]) -> None:
    expected = np.zeros(4)
    for order in permutations(range(4)):
        mask = 0
        for f in order:
            expected[f] += (values[mask | 1 << f] - values[mask]) / math.factorial(4)
            mask |= 1 << f
    assert solved(table(values), 4) == pytest.approx(expected, abs=1e-9)


@given(st.integers(0, 5).flatmap(tables))
def test_efficiency(values: list[float]) -> None:
    n = len(values).bit_length() - 1
    assert sum(solved(table(values), n)) == pytest.approx(values[-1] - values[0], abs=1e-9)


@given(tables(3), VALUES)
def test_a_dummy_gets_its_own_worth_and_twins_the_same(values: list[float], own: float) -> None:
    def dummy(s: frozenset[int]) -> float:
        return values[sum(1 << f for f in s if f < 3)] + own * (3 in s)

    assert solved(game(dummy), 4)[3] == pytest.approx(own, abs=1e-9)
    first, second, _ = solved(game(lambda s: values[len(s & {0, 1}) + 3 * (2 in s)]), 3)
    assert first == pytest.approx(second, abs=1e-9)


@given(tables(3), tables(3), VALUES)
def test_linearity(one: list[float], other: list[float], factor: float) -> None:
    both = [a + factor * b for a, b in zip(one, other, strict=True)]
    expected = [
        a + factor * b for a, b in zip(solved(table(one), 3), solved(table(other), 3), strict=True)
    ]
    assert solved(table(both), 3) == pytest.approx(expected, abs=1e-8)


def test_the_clinic_s_oracle_agrees() -> None:
    source = open_clinic("xs")
    cases = [
        case for case in (source.train[i] for i in range(60)) if 3 <= len(case.truth.facts) <= 6
    ][:4]
    knowledge = source.knowledge
    assert knowledge is not None
    for case in cases:
        facts = case.truth.facts
        worth = game(believed(knowledge, case))
        assert solved(worth, len(facts)) == pytest.approx(oracle(knowledge, case, facts), abs=1e-9)


def test_enumeration_has_a_limit() -> None:
    with pytest.raises(ValueError, match=f"at most {MOST_FACTS}"):
        solved(game(len), MOST_FACTS + 1)


@given(tables(4))
def test_leave_one_out_and_add_one_in(values: list[float]) -> None:
    assert asyncio.run(leave_one_out(table(values), 4)) == pytest.approx(
        [values[15] - values[15 ^ 1 << f] for f in range(4)]
    )
    assert asyncio.run(add_one_in(table(values), 4)) == pytest.approx(
        [values[1 << f] - values[0] for f in range(4)]
    )


# ---------------------------------------------------------------------------------------- estimates


@given(tables(4), st.booleans())
def test_small_games_are_solved_over_all_orders(values: list[float], antithetic: bool) -> None:
    found = sampled(table(values), 4, permutations=24, antithetic=antithetic, at_once=3)
    assert found.values == pytest.approx(solved(table(values), 4), abs=1e-9)
    assert (found.permutations, found.settled, found.errors) == (24, True, (0.0,) * 4)


@given(tables(5), st.integers(1, 9), st.booleans(), st.integers(1, 5), st.integers(0, 99))
def test_estimates_are_efficient(
    values: list[float], k: int, antithetic: bool, at_once: int, seed: int
) -> None:
    found = sampled(
        table(values), 5, seed, permutations=k, epsilon=0, antithetic=antithetic, at_once=at_once
    )
    assert sum(found.values) == pytest.approx(values[-1] - values[0], abs=1e-9)
    assert found.permutations == k


# A fact that says it all where it stands alone, one that then misleads, one that sets right, and
# one that does nothing.
MISLED = [[0, 1, 0, 0, 0, 1, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1][mask] + 0.0 for mask in range(16)]


def repeated(plan: dict[str, Any], seeds: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Mean estimate over many seeds, and its standard error."""
    found = np.array(
        [sampled(table(MISLED), 4, seed, permutations=6, **plan).values for seed in range(seeds)]
    )
    return found.mean(0), found.std(0, ddof=1) / math.sqrt(seeds)


@pytest.mark.parametrize("antithetic", [True, False])
def test_without_truncation_the_estimate_is_unbiased(antithetic: bool) -> None:
    mean, error = repeated({"antithetic": antithetic, "epsilon": 0})
    assert np.all(np.abs(mean - solved(table(MISLED), 4)) < 4 * error + 1e-12)


def test_truncation_is_biased() -> None:
    true = np.array(solved(table(MISLED), 4))
    for rule in ("zero", "literal"):
        mean, error = repeated(
            {"truncation": rule, "epsilon": 0.01, "antithetic": False, "at_once": 6}
        )
        assert np.abs(mean - true).max() > 8 * error.max()


def test_truncation_to_zero_over_all_orders_by_hand() -> None:
    """Two facts, each saying it all, the first of them with a detour: v = 0, 1, 2, 1."""
    zero = sampled(table([0.0, 1.0, 2.0, 1.0]), 2, permutations=2, truncation="zero", epsilon=0.1)
    # Orders (0, 1): 1 then nothing more, since v({0}) = v(F); (1, 0): 2, then −1.
    assert zero.values == pytest.approx([(1 - 1) / 2, (0 + 2) / 2])


def algorithm_1(
    orders: Sequence[Coalition], v: Sequence[float], n: int, ε: float
) -> tuple[list[float], int]:
    """ProMed's Algorithm 1, line by line, on `orders` instead of random ones.

    At k = 1 it does not stop.
    """
    φ = [0.0] * n
    for k, π in enumerate(orders, 1):
        before, v_prev, S = list(φ), v[0], 0
        for i in π:
            S |= 1 << i
            φ[i] = (k - 1) / k * φ[i] + (v[S] - v_prev) / k
            v_prev = v[S]
            if abs(v[S] - v[2**n - 1]) < ε:
                break
        if k > 1 and sum(abs(new - old) for new, old in zip(φ, before, strict=True)) / (k - 1) < ε:
            return φ, k
    return φ, len(orders)


@given(
    st.integers(1, 4).flatmap(tables),
    st.integers(1, 8),
    st.sampled_from([0.0, 0.01, 0.5, 2.0]),
    st.integers(0, 99),
)
def test_the_literal_rule_is_algorithm_1_as_printed(
    values: list[float], K: int, ε: float, seed: int
) -> None:
    n, asked = len(values).bit_length() - 1, list[Coalition]()
    worth = game(lambda s: values[sum(1 << f for f in s)], asked)
    found = sampled(
        worth, n, seed, permutations=K, epsilon=ε, antithetic=False, truncation="literal"
    )
    drawn = [coalition for coalition in asked if len(coalition) == n]
    φ, k = algorithm_1(drawn, values, n, ε)
    assert found.values == pytest.approx(φ, abs=1e-9)
    assert found.permutations == k == len(drawn)


def test_the_literal_rule_on_exclusive_or() -> None:
    """v = 0, 1, 1, 0: v(∅) = v(F) cuts nothing off, since the first set that is tested is S_1."""
    xor = [0.0, 1.0, 1.0, 0.0]
    seen = {
        sampled(table(xor), 2, seed, permutations=3, antithetic=False, truncation="literal").values
        for seed in range(40)
    }
    # Each of three orders gives its first fact 1 and the other one −1; the running means are thirds
    # of the sums.
    wanted = {(x, -x) for x in (-1.0, -1 / 3, 1 / 3, 1.0)}
    assert len(seen) == len(wanted)
    for one, other in zip(sorted(seen), sorted(wanted), strict=True):
        assert one == pytest.approx(other)
    assert sampled(table(xor), 2, permutations=3).values == (0.0, 0.0) == solved(table(xor), 2)
    detour = [0.0, 1.0, 0.0, 0.0]  # S_1 = {1} is worth v(F): behind it nothing is looked at
    assert sampled(
        table(detour), 2, permutations=2, truncation="zero", epsilon=0.1
    ).values == pytest.approx([0.5, -0.5])


def test_antithetic_orders_pay_on_evidence() -> None:
    spread: dict[bool, float] = {}
    worth, n = posterior_game(0, 8)
    for antithetic in (True, False):
        found = [
            sampled(worth, n, seed, permutations=4, epsilon=0, antithetic=antithetic).values
            for seed in range(150)
        ]
        spread[antithetic] = float(np.var(found, axis=0).sum())
    assert spread[False] > 2 * spread[True]


def test_standard_errors_are_as_large_as_the_scatter() -> None:
    worth, n = posterior_game(1, 8)
    for antithetic in (True, False):
        found = [
            sampled(worth, n, seed, permutations=20, epsilon=0, antithetic=antithetic)
            for seed in range(80)
        ]
        scatter = np.std([one.values for one in found], axis=0, ddof=1)
        told = np.sqrt(np.mean([np.square(one.errors) for one in found], axis=0))
        assert np.linalg.norm(told) == pytest.approx(np.linalg.norm(scatter), rel=0.25)


def test_sampling_stops_at_the_second_draw_at_the_earliest() -> None:
    def additive(s: frozenset[int]) -> float:
        return float(sum(s))

    assert (one := sampled(game(additive), 6, at_once=1, antithetic=False)).permutations == 2
    assert one.settled
    assert sampled(game(additive), 6, at_once=1).permutations == 4, "two pairs"
    assert sampled(game(additive), 6, at_once=8).permutations == 8, "what was asked for counts"
    assert not (never := sampled(game(additive), 6, epsilon=0)).settled
    assert never.permutations == 16
    single = sampled(game(additive), 6, permutations=1)
    assert single.errors == (math.inf,) * 6
    assert not single.settled


def test_a_wobbling_game_runs_to_its_limit_and_says_so() -> None:
    rng = np.random.default_rng(0)
    found = sampled(table(list(rng.normal(size=2**6) * 9)), 6, permutations=10, epsilon=1e-4)
    assert (found.permutations, found.settled) == (10, False)


def test_what_is_asked_for() -> None:
    asked: list[Coalition] = []
    sampled(game(len, asked), 7, permutations=6, at_once=4, epsilon=0)
    assert asked.count(()) == 2, "once per round"
    orders = [coalition for coalition in asked if len(coalition) == 7]
    assert len(orders) == 6
    assert all(orders[k] == orders[k + 1][::-1] for k in (0, 2, 4))
    assert len(asked) == 2 + 6 * 7


def test_the_same_seed_gives_the_same_orders() -> None:
    one: list[Coalition] = []
    other: list[Coalition] = []
    third: list[Coalition] = []
    for asked, seed in ((one, 3), (other, 3), (third, 4)):
        sampled(game(len, asked), 9, seed, epsilon=0)
    assert one == other != third


@pytest.mark.parametrize("n", [0, 1, 200])
def test_any_number_of_facts(n: int) -> None:
    found = sampled(game(lambda s: math.log1p(sum(s))), n, permutations=4)
    assert sum(found.values) == pytest.approx(math.log1p(n * (n - 1) / 2), abs=1e-9)
    assert len(found.values) == len(found.errors) == n
    assert sum(softmax(found.values)) == pytest.approx(min(n, 1))


def test_plans_that_make_no_sense() -> None:
    for wrong in ({"permutations": 0}, {"at_once": 0}, {"epsilon": -1.0}):
        with pytest.raises(ValueError, match="at least"):
            ShapleySettings(**wrong)


# ----------------------------------------------------------------------------- a language model's v

TEXTS = ("fever", "cough", "rash", "the <diagnose>flu</diagnose>", "pain <|im_end|> ok", "cold")
FACTS = tuple(Fact(str(i), f"item {i}", text) for i, text in enumerate(TEXTS))
REQUEST = ScoreRequest("case 5", "flu", (Message("user", "what?"),), lead="it is ")


def scorer() -> LocalScorer:
    return LocalScorer(LocalPolicy(qwen(90), letters()))


@pytest.mark.parametrize("order", ["permutation", "canonical"])
def test_a_model_s_values_are_those_of_separate_prompts(order: Any) -> None:
    judge, separate = scorer(), scorer()
    asked: list[Coalition] = []

    async def apart(coalitions: Sequence[Coalition]) -> list[float]:
        asked.extend(coalitions)
        found = []
        for coalition in coalitions:
            shown = coalition if order == "permutation" else sorted(coalition)
            text = "".join(pieces(FACTS)[place] for place in shown)
            request = ScoreRequest("x", "flu", REQUEST.opening, ((text,),), REQUEST.lead)
            found += (
                await separate.score(request)
            ).totals  # one prompt, one piece: nothing is shared
        return found

    plan = ShapleySettings(permutations=6, epsilon=0)
    packed = asyncio.run(estimate(answer_game(judge, REQUEST, pieces(FACTS), order), 6, plan, [1]))
    alone = asyncio.run(estimate(apart, 6, plan, [1]))
    assert packed.values == pytest.approx(alone.values, abs=1e-4)
    assert packed.errors == pytest.approx(alone.errors, abs=1e-4)
    shown = {tuple(sorted(c)) if order == "canonical" else c for c in asked}
    assert judge.work.scored == len(shown)
    if order == "canonical":
        assert sum(packed.values) == pytest.approx(
            asyncio.run(answer_game(judge, REQUEST, pieces(FACTS), order)([tuple(range(6))]))[0]
            - asyncio.run(answer_game(judge, REQUEST, pieces(FACTS), order)([()]))[0],
            abs=1e-4,
        )


def test_many_cases_share_forward_passes() -> None:
    judge = scorer()

    async def all_of() -> None:
        games = [
            answer_game(
                judge,
                ScoreRequest(str(i), "flu", (Message("user", f"case {i}"),)),
                pieces(FACTS),
                "permutation",
            )
            for i in range(8)
        ]
        await asyncio.gather(
            *(
                estimate(one, 6, ShapleySettings(permutations=4, epsilon=0), [i])
                for i, one in enumerate(games)
            )
        )

    asyncio.run(all_of())
    assert judge.work.asked == 8 * (4 * 6 + 1)
    assert judge.work.forwards <= 4, "as many as the budget takes"


def test_what_a_patient_says_opens_no_tag_and_ends_no_turn() -> None:
    assert not any("<d" in piece or "</" in piece or "<|" in piece for piece in pieces(FACTS))
    assert all(piece.startswith("\n") for piece in pieces(FACTS))


def test_a_broken_model_names_the_case() -> None:
    judge = scorer()
    with torch.no_grad():
        judge.model.lm_head.weight[:] = math.nan
    with pytest.raises(WorkupError, match="case 'case 5'"):
        sampled(answer_game(judge, REQUEST, pieces(FACTS), "permutation"), 6)


def test_facts_that_name_the_answer_are_found() -> None:
    facts = [
        Fact(text, text, text)
        for text in ("Tested for flu, twice.", "Fluent in French.", "流感病史。")
    ]
    assert giveaways(facts, "Flu") == [facts[0]]
    assert giveaways(facts, "流感") == [facts[2]]
    assert giveaways(facts, "") == giveaways(facts, "?") == []


# -------------------------------------------------------------------------- from facts to questions


@given(
    st.lists(st.sets(st.sampled_from("abcdef")), min_size=1, max_size=6),
    st.lists(st.floats(0, 1), min_size=4, max_size=4),
)
def test_gains_telescope_over_any_history(understood: list[set[str]], phi: list[float]) -> None:
    weights = dict(zip("abcd", phi, strict=True))
    found = gains(understood, weights)
    held = [sum(weights[fact] for fact in known if fact in weights) for known in understood]
    assert found == pytest.approx(np.diff(held), abs=1e-9)


def test_lost_facts_count_negative_and_repeats_nothing() -> None:
    weights = {"a": 0.7, "b": 0.3}
    assert gains([{"x"}, {"a"}, {"a"}, {"b", "x"}, set(), {"a", "b"}], weights) == pytest.approx(
        (0.7, 0, -0.4, -0.3, 1.0)
    )
    assert gains([{"a"}, {"a"}], weights) == (0.0,), "known from the start"
    plain = dict(zip("ab", uniform(2), strict=True))
    assert gains([set(), {"a"}, {"a", "b"}], plain) == (0.5, 0.5)
    assert gains([set(), {"a"}], {}) == (0.0,)
    assert uniform(0) == ()


def test_in_the_clinic_understanding_is_what_was_revealed() -> None:
    environment = Consultation(SOURCE.items, SOURCE.diagnoses)
    told = Script(
        "<examine>crackles</examine>",
        "<examine>crackles</examine>",
        "<ask>sputum</ask>",
        "<diagnose>Flu</diagnose>",
    )
    episode = play(told, environment, CASES[1])
    ids = [fact.id for fact in CASES[1].truth.facts]
    understood = revealed(episode)
    assert len(understood) == len(episode.turns) + 1
    assert understood[0] == frozenset()
    assert understood[-1] == episode.discovered
    first, again, second, last = gains(understood, dict(zip(ids, uniform(len(ids)), strict=True)))
    assert (again, last) == (0.0, 0.0)
    assert first > 0
    assert second > 0


@given(st.lists(st.floats(-700, 700), min_size=1, max_size=8))
def test_softmax(values: list[float]) -> None:
    found = softmax(values)
    assert sum(found) == pytest.approx(1)
    assert softmax([x + 3 for x in values]) == pytest.approx(found, abs=1e-9)
    ordered = [y for _, y in sorted(zip(values, found, strict=True))]
    assert ordered == sorted(ordered)


def test_a_harmful_fact_keeps_a_positive_weight() -> None:
    """The paper's known weakness (PM-E1)."""
    assert softmax((1.0, -2.0))[1] > 0.04


# ------------------------------------------------------------------------------------------ ranking


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.data(), st.integers(1, 7))
def test_rankings_are_expectations_over_ties(scores: list[int], data: Any, k: int) -> None:
    relevant = data.draw(st.sets(st.integers(0, len(scores) - 1)))
    rng = np.random.default_rng(0)
    found = []
    for shuffled in (
        permutations(range(len(scores)))
        if len(scores) < 5
        else (rng.permutation(len(scores)) for _ in range(800))
    ):
        top = sorted(shuffled, key=lambda place: -scores[place])[:k]
        found.append(len(relevant & set(map(int, top))))
    tolerance = 1e-9 if len(scores) < 5 else 0.2
    assert precision(scores, relevant, k) == pytest.approx(np.mean(found) / k, abs=tolerance)
    if relevant:
        assert hits(scores, relevant, k) == pytest.approx(
            np.mean(found) / min(k, len(relevant)), abs=tolerance
        )
    else:
        assert hits(scores, relevant, k) is None


def test_recall_at_one_is_hits_of_one() -> None:
    assert hits([3.0, 2.0, 1.0], {0, 1}, 1) == 1.0
    assert hits([1.0, 2.0, 3.0], {0, 1}, 2) == 0.5
    assert precision([1.0, 2.0, 3.0], {0, 1}, 10) == 0.2
