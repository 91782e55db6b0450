"""Advantages against numpy, and what must not change them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workup.case import Case, Truth
from workup.credit import EPSILON, Normalise, token_zscore, turn_zscore, zscore
from workup.episode import Action, Batch, Completion, Ending, Episode, Observation, Score, Turn
from workup.ports import alone

CASE = Case("1", "", Truth("x"))
rewards = st.floats(-10, 10, allow_subnormal=False).map(lambda r: round(r, 3))
# groups → episodes → (reward, number of tokens) per turn
batches = st.lists(st.lists(st.lists(st.tuples(rewards, st.integers(1, 5)), min_size=1, max_size=4), max_size=5), max_size=4)
Plan = list[list[list[tuple[float, int]]]]


def build(plan: Plan) -> tuple[Batch, list[list[Score]]]:
    def turn(n: int) -> Turn:
        return Turn((), Completion("", (1,) * n, (0.0,) * n), Action("ask", ("a",)), Observation())

    batch = tuple(
        tuple(Episode(CASE, (), tuple(turn(n) for _, n in turns), Ending.DIAGNOSED) for turns in group) for group in plan
    )
    return batch, [[Score(tuple(r for r, _ in turns)) for turns in group] for group in plan]


def flat(advantages: Sequence[Sequence[Sequence[float]]]) -> list[float]:
    return [a for group in advantages for episode in group for a in episode]


@given(batches)
def test_shapes_follow_the_batch_and_everything_is_finite(plan: Plan) -> None:
    batch, scores = build(plan)
    for credit in (zscore("group_std"), zscore("batch_std"), zscore("none"), turn_zscore(), token_zscore()):
        advantages = credit(batch, scores, alone)
        assert [[len(e) for e in g] for g in advantages] == [[len(e.turns) for e in g] for g in batch]
        assert np.isfinite(flat(advantages)).all()


@given(batches)
def test_trajectory_advantages_agree_with_numpy(plan: Plan) -> None:
    batch, scores = build(plan)
    returns = [np.array([sum(r for r, _ in turns) for turns in group]) for group in plan]
    centred = [r - r.mean() if len(r) else r for r in returns]
    pooled = np.concatenate([*centred, []])
    stds: dict[Normalise, list[float]] = {
        "group_std": [r.std(ddof=1) + EPSILON if len(r) > 1 else 1 for r in returns],
        "batch_std": [(pooled.std(ddof=1) if len(pooled) > 1 else 0) + EPSILON] * len(returns),
        "none": [1.0] * len(returns),
    }
    for normalise, divisors in stds.items():
        got = zscore(normalise)(batch, scores, alone)
        for group, want, divisor in zip(got, centred, divisors, strict=True):
            assert all(len(set(episode)) == 1 for episode in group)
            np.testing.assert_allclose([episode[0] for episode in group], want / divisor, atol=1e-6)


@given(batches)
def test_turn_and_token_advantages_agree_with_numpy(plan: Plan) -> None:
    batch, scores = build(plan)
    for credit, repeats in ((turn_zscore(), lambda n: 1), (token_zscore(), lambda n: n)):
        for got, group in zip(credit(batch, scores, alone), plan, strict=True):
            values = np.array([r for turns in group for r, n in turns for _ in range(repeats(n))])
            one = len(group) < 2
            want = [0.0 if one else (r - values.mean()) / (values.std(ddof=1) + EPSILON) for turns in group for r, _ in turns]
            np.testing.assert_allclose(flat([got]), want, atol=1e-6)


@given(batches, st.integers(0, 4))
def test_batch_statistics_do_not_depend_on_how_groups_are_spread_over_processes(plan: Plan, cut: int) -> None:
    whole = zscore("batch_std")(*build(plan), alone)
    shared: list[Sequence[float]] = []

    def note(values: Sequence[float]) -> Sequence[float]:
        shared.append(values)
        return values

    parts = (plan[:cut], plan[cut:])
    for part in parts:
        zscore("batch_std")(*build(part), note)
    assert len(shared) == 2  # a collective call on every process, also on one without episodes
    everything = [value for values in shared for value in values]
    split = [a for part in parts for a in flat(zscore("batch_std")(*build(part), lambda _: everything))]
    np.testing.assert_allclose(split, flat(whole), atol=1e-9)


@pytest.mark.parametrize("value", [0.1, -0.3, 1 / 3, 1e9 + 0.1, 0.0])
def test_equal_rewards_give_exactly_nothing(value: float) -> None:
    plan: Plan = [[[(value, 3)], [(value, 1)], [(value, 2)]], [[(value, 1)]]]
    for credit in (zscore("group_std"), zscore("batch_std"), zscore("none"), turn_zscore(), token_zscore()):
        assert set(flat(credit(*build(plan), alone))) == {0.0}


def test_a_constant_group_stays_exactly_zero_beside_a_lively_one() -> None:
    plan: Plan = [[[(0.1, 1)], [(0.1, 1)], [(0.1, 1)]], [[(0.0, 1)], [(1.0, 1)]]]
    constant, lively = zscore("batch_std")(*build(plan), alone)
    assert constant == [(0.0,)] * 3
    assert lively[1][0] == -lively[0][0] > 1


@given(
    st.lists(rewards, min_size=2, max_size=6).filter(lambda rs: max(rs) - min(rs) > 0.1),
    st.floats(-100, 100),
    st.floats(0.1, 10),
    st.sampled_from(["group_std", "batch_std"]),
)
def test_advantages_ignore_shift_and_scale_and_sum_to_zero(
    group: list[float], shift: float, scale: float, normalise: Normalise
) -> None:
    one = flat(zscore(normalise)(*build([[[(r, 1)] for r in group]]), alone))
    other = flat(zscore(normalise)(*build([[[(scale * r + shift, 1)] for r in group]]), alone))
    np.testing.assert_allclose(one, other, atol=1e-3)
    assert abs(sum(one)) < 1e-6
    assert np.std(one, ddof=1) == pytest.approx(1, abs=1e-3)


@given(st.lists(rewards, min_size=2, max_size=6), st.randoms())
def test_order_within_a_group_does_not_matter(group: list[float], random: object) -> None:
    order = list(range(len(group)))
    random.shuffle(order)  # type: ignore[attr-defined]
    one = flat(zscore()(*build([[[(r, 1)] for r in group]]), alone))
    other = flat(zscore()(*build([[[(group[i], 1)] for i in order]]), alone))
    assert other == [one[i] for i in order]


def test_turns_without_tokens_count_nothing_for_tokens() -> None:
    plan: Plan = [[[(1.0, 2), (100.0, 0)], [(3.0, 2)]]]
    got = token_zscore()(*build(plan), alone)[0]
    assert got[0][0] == pytest.approx(-np.sqrt(3) / 2, abs=1e-5)
    assert got[1][0] == pytest.approx(np.sqrt(3) / 2, abs=1e-5)
