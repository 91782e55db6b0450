"""How stable Shapley values are: measures against scipy and by hand, values against enumeration."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import permutation_test, spearmanr
from studying import ENCOUNTER, Additive, done, here, numbers_of, refused, tiny

from workup.core.case import Case, Fact, Truth
from workup.core.ports import Logprobs, ScoreRequest
from workup.methods.promed.question_gains import Weighing
from workup.methods.promed.shapley import exact, softmax
from workup.studies import stability
from workup.studies.stability import (
    ADD_ONE_IN,
    LEAVE_ONE_OUT,
    OTHERS,
    SHUFFLED,
    Settings,
    Stability,
    Valued,
    distance,
    same_first,
    spearman,
)

pytestmark = pytest.mark.drawn

TEXTS = tuple(f"Fact {k}." for k in range(5))
PATIENT = Case(
    "p",
    "A patient is ill.",
    Truth("Flu", facts=tuple(Fact(f"f{k}", f"i{k}", text) for k, text in enumerate(TEXTS))),
)
__all__ = ["here", "tiny"]  # fixtures
NUMBERS = st.lists(st.integers(-3, 3).map(float), min_size=2, max_size=8)


class Late:
    """A `Scorer` for which facts overlap, and a fact says the less the later it is told."""

    seconds = 0.0

    def __init__(self, fading: float) -> None:
        self.fading = fading

    async def score(self, request: ScoreRequest) -> Logprobs:
        return Logprobs(tuple(map(self.of, request.contexts)), 1)

    def of(self, context: Sequence[object]) -> float:
        shown = [TEXTS.index(str(piece).strip()) for piece in context]
        total = sum((1 + k) * (1 - self.fading * place) for place, k in enumerate(shown))
        return math.sqrt(total) + (2.0 if {0, 1} <= {*shown} else 0.0)

    def refresh(self) -> None:
        pass


def valued(scorer: Additive | Late, how: Settings, patient: Case = PATIENT) -> Valued:
    found = asyncio.run(stability.value(patient, Weighing(ENCOUNTER), scorer, how))
    assert isinstance(found, Valued)
    return found


def study(*cases: Valued, orders: tuple[int, ...] = (2, 4), seeds: int = 2) -> Stability:
    return Stability("tiny", "made", drawn(orders, seeds), cases, {}, 0)


def drawn(orders: tuple[int, ...] = (2, 4, 8, 16), draws: int = 3, seed: int = 0) -> Settings:
    return Settings(cases="", orders=orders, draws=max(2, draws), seed=seed)


def of(*values: float) -> tuple[float, ...]:
    return values


@given(st.data())
def test_rho_is_scipys_and_none_where_nothing_is_ranked(data: st.DataObject) -> None:
    ours = tuple(data.draw(NUMBERS))
    theirs = tuple(data.draw(st.permutations(ours)))
    if len(set(ours)) == 1:
        assert spearman(ours, theirs) is None
    else:
        assert spearman(ours, theirs) == pytest.approx(spearmanr(ours, theirs).statistic)


def test_a_correlation_stays_within_its_bounds() -> None:
    ranks = [float(k) for k in range(60)]
    for size in range(2, 60):
        assert spearman(ranks[:size], ranks[:size]) == 1
        assert spearman(ranks[:size], ranks[:size][::-1]) == -1


@given(st.data())
def test_the_first_fact_is_the_same_as_often_as_random_tie_breaks_say(data: st.DataObject) -> None:
    ours = data.draw(NUMBERS)
    theirs = data.draw(st.lists(st.integers(-3, 3), min_size=len(ours), max_size=len(ours)))
    best = [
        (one, other)
        for one in range(len(ours))
        for other in range(len(ours))
        if ours[one] == max(ours) and theirs[other] == max(theirs)
    ]
    expected = sum(one == other for one, other in best) / len(best)
    assert same_first(tuple(ours), tuple(map(float, theirs))) == pytest.approx(expected)


@given(NUMBERS, st.data())
def test_weights_move_by_the_mass_that_changes_hands(
    ours: list[float], data: st.DataObject
) -> None:
    theirs = data.draw(st.permutations(ours))
    gained = sum(
        max(0.0, after - before)
        for before, after in zip(softmax(ours), softmax(theirs), strict=True)
    )
    assert distance(tuple(ours), tuple(theirs)) == pytest.approx(gained)


def test_chance_is_that_of_all_deals() -> None:
    """The oracle counts all deals of one case, and scipy tests the same ρ."""
    ours, theirs = of(1, 2, 3, 4, 5), of(2, 1, 3, 5, 4)
    ρ, top = stability.dealt([(ours, theirs)], seed=3)
    deals = [spearmanr(ours, deal).statistic for deal in permutations(theirs)]
    observed = spearmanr(ours, theirs).statistic
    share = sum(deal >= observed - 1e-9 for deal in deals) / len(deals)
    tested = permutation_test(
        (ours,),
        lambda deal: spearmanr(deal, theirs).statistic,
        permutation_type="pairings",
        alternative="greater",
    )
    assert tested.pvalue == pytest.approx(share)
    spread = 4 * math.sqrt(share * (1 - share) / stability.PERMUTATIONS)
    assert ρ.p == pytest.approx(share, abs=spread)
    assert ρ.mean == pytest.approx(0, abs=0.05)
    assert (top.low, top.high, top.p) == (0, 1, 1)
    assert top.mean == pytest.approx(1 / 5, abs=0.04)


def test_chance_of_several_cases_is_of_their_mean() -> None:
    pairs = [(of(1, 2, 3, 4), of(1, 2, 3, 4))] * 6
    ρ, top = stability.dealt(pairs, seed=0)
    assert ρ.p == 1 / (1 + stability.PERMUTATIONS)  # one deal in 24⁶ does as well
    assert top.p == pytest.approx(1 / 4**6, abs=0.002)
    # The variance of ρ is 1 / (n − 1), here 1/3; of a mean of six it is 1/18.
    assert (ρ.low, ρ.high) == pytest.approx((-2 / math.sqrt(18), 2 / math.sqrt(18)), abs=0.08)


def test_with_independent_facts_all_values_agree_and_no_draw_differs() -> None:
    found = valued(Additive({text: 1.0 + k for k, text in enumerate(TEXTS)}), drawn((2, 4), 2))
    for values in (found.best, *map(found.other, OTHERS), *found.shuffled):
        assert values == pytest.approx((1, 2, 3, 4, 5))
    shown = study(found)
    for other in OTHERS:
        assert (shown.agreements[other].rho.mean, shown.agreements[other].top.mean) == (
            pytest.approx(1),
            1,
        )
    assert [each.orders for each in shown.draws] == [2, 4, None]
    for each in shown.draws[:2]:
        assert each.rho.mean == pytest.approx(1)
        assert each.top.mean == 1
        assert each.moved.mean == pytest.approx(0)
        assert each.unequal.mean == pytest.approx(distance(of(1, 2, 3, 4, 5), (0,) * 5))


def test_values_are_those_of_enumeration_and_of_the_record() -> None:
    """Of a game whose worth goes by sets; 120 orders are all there are of five facts."""
    scorer = Late(fading=0)
    found = valued(scorer, drawn((2, 64, 120), 2))
    game = Weighing(ENCOUNTER).game(PATIENT, PATIENT.truth.facts, scorer)
    truth = asyncio.run(exact(game, 5)).values
    assert found.shapley[120] == (pytest.approx(truth), pytest.approx(truth))
    assert found.best == pytest.approx(truth)
    far, near = (
        max(abs(a - b) for a, b in zip(found.shapley[orders][0], truth, strict=True))
        for orders in (2, 64)
    )
    assert near < far
    whole = scorer.of(TEXTS)
    without = [whole - scorer.of([*TEXTS[:k], *TEXTS[k + 1 :]]) for k in range(5)]
    # Told in whatever order, a set is worth the same here.
    for values in (found.without, *found.shuffled):
        assert values == pytest.approx(without)
    assert found.alone == pytest.approx([scorer.of([text]) - scorer.of([]) for text in TEXTS])


def test_leave_one_out_in_another_order_is_of_that_order() -> None:
    scorer, plan = Late(fading=0.1), drawn((2,), 3, seed=5)
    found = valued(scorer, plan)
    assert len(set(found.shuffled)) == 3
    for values in found.shuffled:
        fits = 0
        for order in permutations(TEXTS):
            whole = scorer.of(order)
            less = [whole - scorer.of([one for one in order if one != text]) for text in TEXTS]
            fits += values == pytest.approx(less)
        assert fits == 1
    mean = [sum(column) / 3 for column in zip(*found.shuffled, strict=True)]
    assert found.other(SHUFFLED) == pytest.approx(mean)


def test_a_smaller_number_of_orders_is_the_beginning_of_a_larger_one() -> None:
    plan = drawn((1, 2, 3, 8), 2)
    found = valued(Late(fading=0.05), plan)
    for orders in plan.orders:
        assert valued(Late(fading=0.05), drawn((orders,), 2)).best == pytest.approx(
            [sum(column) / 2 for column in zip(*found.shapley[orders], strict=True)]
        )
    assert found.shapley[2][0] != found.shapley[2][1]


def test_draws_are_compared_pair_by_pair() -> None:
    draws = (of(1, 2, 3, 4), of(4, 3, 2, 1), of(1, 2, 4, 3))
    case = Valued("a", {2: draws}, draws, of(1, 2, 3, 4), of(0, 0, 0, 0))
    shown = study(case, orders=(2,), seeds=3)
    pairs = [(0, 1), (0, 2), (1, 2)]
    rho = sum(spearmanr(draws[a], draws[b]).statistic for a, b in pairs) / 3
    two, shuffled = shown.draws
    assert two.rho.mean == shuffled.rho.mean == pytest.approx(rho)
    assert two.top.mean == 0
    assert two.leave_one_out.mean == pytest.approx(
        sum(spearmanr(draw, (1, 2, 3, 4)).statistic for draw in draws) / 3
    )
    # Facts that are all alike have no ranking: the case is missing there and is counted so.
    assert (shown.agreements[ADD_ONE_IN].rho.n, shown.agreements[ADD_ONE_IN].rho.missing) == (0, 1)
    assert shown.agreements[ADD_ONE_IN].top.mean == pytest.approx(1 / 4)


def test_facts_that_lower_the_answer_together_are_told() -> None:
    cases = [
        Valued(name, {2: draws}, draws, of(0, 0, 0, 1), of(0, 0, 0, 1))
        for name, draws in {
            "a": (of(1, 2, 3, 4), of(3, 2, 1, 4)),
            "b": (of(-9, 1, 1, 1), of(-9, 1, 1, 1)),
        }.items()
    ]
    shown = study(*cases, orders=(2,))
    assert shown.sizes["together"].mean == pytest.approx((10 - 6) / 2)
    assert shown.sizes["raised"].mean == 0.5
    # The first case's best values are 2, 2, 2 and 4.
    assert shown.sizes["spread"].mean == pytest.approx((math.sqrt(0.75) + math.sqrt(18.75)) / 2)


def test_cases_that_cannot_be_ranked_are_left_out_with_a_reason() -> None:
    few = Case("q", "Ill.", Truth("Flu", facts=PATIENT.truth.facts[:3]))
    found = asyncio.run(stability.value(few, Weighing(ENCOUNTER), Late(0), drawn()))
    assert found == "fewer than 4 facts"


def test_the_study_of_a_policy(tiny: Path) -> None:
    line = f"study stability {tiny} --cases clinic:xs n=6 orders=2,4 draws=2 --out s"
    output = done(line)
    assert "Agreement between draws" in output
    found = numbers_of("s", "stability")
    assert "<svg" in Path("s/stability.html").read_text()
    assert len(found["valued"]) + sum(found["left_out"].values()) == 6
    rhos = []
    for each in found["valued"]:
        best = [sum(pair) / 2 for pair in zip(*each["shapley"]["4"], strict=True)]
        rhos.append(spearmanr(best, each["without"]).statistic)
    mean = sum(rhos) / len(rhos)
    assert found["agreements"][LEAVE_ONE_OUT]["rho"]["mean"] == pytest.approx(mean)
    assert done(f"{line} facts=all") != output
    assert "ascending, as in orders=2,4,8" in refused(f"{line} orders=4,2")
    assert "setting 'orders.0'" in refused(f"{line} orders=2.5,4")
    assert "one at a time" in refused(f"{line} 'random doctor'")
    assert "no log-probabilities" in refused(line.replace(str(tiny), "'random doctor'"))
