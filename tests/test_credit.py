"""Advantages against numpy, and what must not change them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workup.core.case import Case, Truth
from workup.core.episode import Action, Batch, Completion, Ending, Episode, Observation, Score, Turn
from workup.core.ports import Credit, alone
from workup.rl.credit import (
    EPSILON,
    Baseline,
    Normalise,
    one_step,
    place_zscore,
    to_go,
    token_zscore,
    turn_zscore,
    zscore,
)

BASELINES: tuple[Baseline, ...] = ("last", "leave-one-out", "reached")
CASE = Case("1", "", Truth("x"))
rewards = st.floats(-10, 10, allow_subnormal=False).map(lambda r: round(r, 3))
# groups → episodes → (reward, number of tokens) per turn
batches = st.lists(
    st.lists(st.lists(st.tuples(rewards, st.integers(1, 5)), min_size=1, max_size=4), max_size=5),
    max_size=4,
)
Plan = list[list[list[tuple[float, int]]]]


def build(plan: Plan) -> tuple[Batch, list[list[Score]]]:
    def turn(n: int) -> Turn:
        return Turn((), Completion("", (1,) * n, (0.0,) * n), Action("ask", ("a",)), Observation())

    batch = tuple(
        tuple(
            Episode(CASE, (), tuple(turn(n) for _, n in turns), Ending.DIAGNOSED) for turns in group
        )
        for group in plan
    )
    return batch, [[Score(tuple(r for r, _ in turns)) for turns in group] for group in plan]


def flat(advantages: Sequence[Sequence[Sequence[float]]]) -> list[float]:
    return [a for group in advantages for episode in group for a in episode]


def every(epsilon: float = EPSILON) -> list[Credit]:
    """Each credit in each of its forms."""
    forms: tuple[Normalise, ...] = ("group_std", "batch_std", "none")
    pooled = [turn_zscore(epsilon), place_zscore(epsilon), token_zscore(epsilon)]
    ahead = [to_go(form, epsilon, baseline) for form in forms for baseline in BASELINES]
    return [*(zscore(form, epsilon) for form in forms), *pooled, *ahead, one_step(known, epsilon)]


@given(batches)
def test_by_places_each_turn_is_a_group_of_its_own(plan: Plan) -> None:
    """What the trajectories do at turn t is credited as if it were all that they do (GRPO)."""
    batch, scores = build(plan)
    found = place_zscore()(batch, scores, alone)
    for t in range(4):
        single = [[turns[t : t + 1] for turns in group if t < len(turns)] for group in plan]
        expected = flat(zscore()(*build(single), alone))
        there = [e[t] for group in found for e in group if t < len(e)]
        assert there == pytest.approx(expected)


def test_what_a_turn_is_worth_does_not_depend_on_its_number() -> None:
    (group,) = place_zscore()(*build([[[(r, 1), (1.0, 1)] for r in (0.4, 0.7, 0.5, 0.6)]]), alone)
    assert [last for _, last in group] == [0] * 4
    assert max(first for first, _ in group) == group[1][0] > 1


@given(batches)
def test_shapes_follow_the_batch_and_everything_is_finite(plan: Plan) -> None:
    batch, scores = build(plan)
    for credit in (*every(), token_zscore(count="all")):
        advantages = credit(batch, scores, alone)
        assert [[len(e) for e in g] for g in advantages] == [
            [len(e.turns) for e in g] for g in batch
        ]
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
            want = [
                0.0 if one else (r - values.mean()) / (values.std(ddof=1) + EPSILON)
                for turns in group
                for r, _ in turns
            ]
            np.testing.assert_allclose(flat([got]), want, atol=1e-6)


@given(batches, st.integers(0, 4))
def test_batch_statistics_do_not_depend_on_how_groups_are_spread_over_processes(
    plan: Plan, cut: int
) -> None:
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
    split = [
        a for part in parts for a in flat(zscore("batch_std")(*build(part), lambda _: everything))
    ]
    np.testing.assert_allclose(split, flat(whole), atol=1e-9)


def known(case: Case) -> float:
    return -2.0


@given(batches)
def test_a_turn_is_paid_by_itself_and_by_what_it_leads_to(plan: Plan) -> None:
    got = one_step(known)(*build(plan), alone)
    r = [[value for value, _ in turns] for group in plan for turns in group]

    def state(rewards: list[float], t: int) -> float:
        return -2.0 + sum(rewards[:t])

    def V(t: int, now: float) -> float:
        """The line of least squares by numpy, or with a slope at one of the bounds."""
        reached = [rewards for rewards in r if len(rewards) > t]
        Φ, G = (
            [f(rewards) for rewards in reached]
            for f in (lambda x: state(x, t), lambda x: sum(x[t:]))
        )
        slope = np.polyfit(Φ, G, 1)[0] if max(Φ) - min(Φ) > 1e-9 else 0.0
        slope = min(max(float(slope), -1.0), 0.0)
        return float(np.mean(G)) + slope * (now - float(np.mean(Φ)))

    δ = [
        rewards[t]
        + (V(t + 1, state(rewards, t + 1)) if t + 1 < len(rewards) else 0.0)
        - V(t, state(rewards, t))
        for rewards in r
        for t in range(len(rewards))
    ]
    spread = np.sqrt(sum(each**2 for each in δ) / (len(δ) - 1)) if len(δ) > 1 else 0.0
    np.testing.assert_allclose(flat(got), [each / (spread + EPSILON) for each in δ], atol=1e-5)
    turns = [A for group in got for A in group]
    for t in range(4):  # at each turn they sum to zero, as with a baseline
        assert abs(sum(A[t] for A in turns if len(A) > t)) < 1e-5 * max(len(turns), 1)


def test_one_step_by_hand() -> None:
    plan: Plan = [[[(0.0, 1)], [(0.5, 1), (1.0, 1)]]]
    ((rash, asking),) = one_step(known, epsilon=0.0)(*build(plan), alone)
    spread = np.sqrt((0.75**2 + 0.75**2) / 2)
    assert rash == pytest.approx((-0.75 / spread,))
    assert asking == pytest.approx((0.75 / spread, 0.0))


class Rounds:
    """The `all_gather` of one process: the first rounds are known, the next one is kept."""

    def __init__(self, known: Sequence[Sequence[float]]) -> None:
        self.left, self.mine = list(known), list[Sequence[float]]()

    def __call__(self, values: Sequence[float]) -> Sequence[float]:
        if self.left:
            return self.left.pop(0)
        self.mine.append(values)
        return values


@given(batches, st.integers(0, 4))
def test_what_others_got_is_known_in_every_process(plan: Plan, cut: int) -> None:
    parts, before = (plan[:cut], plan[cut:]), list[list[float]]()
    for left in (2, 1):
        rounds = [Rounds(before) for _ in parts]
        for part, own in zip(parts, rounds, strict=True):
            one_step(known)(*build(part), own)
            assert len(own.mine) == left  # on every process, also on one without episodes
        before.append([value for own in rounds for value in own.mine[0]])
    split = [a for part in parts for a in flat(one_step(known)(*build(part), Rounds(before)))]
    np.testing.assert_allclose(split, flat(one_step(known)(*build(plan), alone)), atol=1e-9)


@pytest.mark.parametrize("value", [0.1, -0.3, 1 / 3, 1e9 + 0.1, 0.0])
def test_equal_rewards_give_exactly_nothing(value: float) -> None:
    plan: Plan = [[[(value, 3)], [(value, 1)], [(value, 2)]], [[(value, 1)]]]
    for epsilon in (EPSILON, 0.0):
        for credit in every(epsilon):
            assert set(flat(credit(*build(plan), alone))) == {0.0}


@given(batches)
def test_without_epsilon_nothing_is_divided_by_zero(plan: Plan) -> None:
    with np.errstate(all="raise"):
        for credit in (*every(0.0), token_zscore(0.0, count="all")):
            assert np.isfinite(flat(credit(*build(plan), alone))).all()


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
    for credit in every():
        one = flat(credit(*build([[[(r, 1)] for r in group]]), alone))
        other = flat(credit(*build([[[(group[i], 1)] for i in order]]), alone))
        assert other == [one[i] for i in order]


def test_turns_without_tokens_count_nothing_for_tokens() -> None:
    plan: Plan = [[[(1.0, 2), (100.0, 0)], [(3.0, 2)]]]
    got = token_zscore()(*build(plan), alone)[0]
    assert got[0][0] == pytest.approx(-np.sqrt(3) / 2, abs=1e-5)
    assert got[1][0] == pytest.approx(np.sqrt(3) / 2, abs=1e-5)


# --- rewards to come ---


def ahead(plan: Plan, baseline: Baseline, normalise: Normalise = "none") -> list[list[float]]:
    return [list(A) for A in to_go(normalise, baseline=baseline)(*build(plan), alone)[0]]


@given(batches.filter(any))
def test_rewards_to_come_are_less_what_the_others_get_at_the_same_point(plan: Plan) -> None:
    """G_{k,t} less the mean over j of G_{j, min(t, T_j − 1)}, by the definition with loops."""
    group = next(filter(None, plan))
    rewards = [[r for r, _ in turns] for turns in group]

    def G(k: int, t: int) -> float:
        return sum(rewards[k][t:])

    def held(j: int, t: int) -> float:
        return G(j, min(t, len(rewards[j]) - 1))

    members = range(len(group))
    wanted: dict[Baseline, list[list[float]]] = {name: [[] for _ in members] for name in BASELINES}
    for k in members:
        for t in range(len(rewards[k])):
            others = [held(j, t) for j in members if j != k]
            there = [G(j, t) for j in members if t < len(rewards[j])]
            wanted["last"][k].append(G(k, t) - float(np.mean([*others, G(k, t)])))
            wanted["leave-one-out"][k].append(G(k, t) - float(np.mean(others)) if others else 0.0)
            wanted["reached"][k].append(G(k, t) - float(np.mean(there)))
    for baseline in BASELINES:
        got = ahead([group], baseline)
        expected = np.concatenate(wanted[baseline])
        np.testing.assert_allclose(np.concatenate(got), expected, atol=1e-9)
        spread = np.sqrt((expected**2).sum() / (len(expected) - 1)) if len(expected) > 1 else 0.0
        for form in ("group_std", "batch_std"):
            scaled = np.concatenate(ahead([group], baseline, form))
            np.testing.assert_allclose(scaled, expected / (spread + EPSILON), atol=1e-4)


def test_who_alone_goes_on_is_credited_with_what_it_reached() -> None:
    """The example of the docstring."""
    right: Plan = [[[(0.0, 1)], [(0.5, 1), (3.0, 1)]]]
    assert ahead(right, "last") == [[-1.75], [1.75, 1.5]]
    assert ahead(right, "leave-one-out") == [[-3.5], [3.5, 3.0]]
    assert ahead(right, "reached") == [[-1.75], [1.75, 0.0]]


LEAVES = (
    "A",
    "B",
    "?A",
    "?B",
    "??A",
    "??B",
)  # answers, at once or after one or two questions; A is right


def policy(θ: np.ndarray) -> list[float]:
    """The probability of each leaf.

    θ[t] are the logits of A, B and ? at turn t, where ? is gone at the last.
    """
    chances = [
        np.exp(row - row.max())
        for row in np.where([[0, 0, 0], [0, 0, 0], [0, 0, -np.inf]], -np.inf, θ)
    ]
    p = [row / row.sum() for row in chances]
    return [prod(p[t]["AB?".index(move)] for t, move in enumerate(leaf)) for leaf in LEAVES]


def paid(leaf: str) -> list[tuple[float, int]]:
    return [*((0.3, 1) for _ in leaf[:-1]), (3.0 if leaf[-1] == "A" else 0.0, 1)]


def objective(θ: np.ndarray) -> float:
    return sum(p * sum(r for r, _ in paid(leaf)) for p, leaf in zip(policy(θ), LEAVES, strict=True))


def derivative(θ: np.ndarray, of: object) -> np.ndarray:
    """By central differences."""
    step = 1e-5 * np.eye(θ.size).reshape(-1, *θ.shape)
    return np.array([(of(θ + d) - of(θ - d)) / 2e-5 for d in step])  # type: ignore[operator]


def expected_update(θ: np.ndarray, baseline: Baseline, K: int = 3) -> np.ndarray:
    """E[1/K Σ_k Σ_t A_{k,t} ∇ log π(a_t | h_t)] by enumeration.

    It is over all groups of K independent episodes.
    """
    p = policy(θ)

    def log_turns(of: np.ndarray) -> np.ndarray:
        """log π of each turn of each leaf, from the probabilities of what begins like it."""
        q = policy(of)
        begins = [
            [
                sum(m for m, other in zip(q, LEAVES, strict=True) if other.startswith(leaf[:t]))
                for t in range(len(leaf) + 1)
            ]
            for leaf in LEAVES
        ]
        return np.array(
            [np.log(b[t + 1] / b[t]) if t + 1 < len(b) else 0.0 for b in begins for t in range(3)]
        )

    scores = derivative(θ, log_turns).T.reshape(len(LEAVES), 3, -1)
    total = np.zeros(θ.size)
    for group in product(range(len(LEAVES)), repeat=K):
        advantages = ahead([[paid(LEAVES[leaf]) for leaf in group]], baseline)
        for leaf, A in zip(group, advantages, strict=True):
            total += prod(p[g] for g in group) / K * (np.array(A) @ scores[leaf, : len(A)])
    return total


@pytest.mark.parametrize("seed", range(3))
def test_the_expected_update_is_the_gradient_of_the_expected_return(seed: int) -> None:
    θ = np.random.default_rng(seed).normal(size=(3, 3))
    gradient, K = derivative(θ, objective), 3
    np.testing.assert_allclose(expected_update(θ, "leave-one-out"), gradient, atol=1e-7)
    np.testing.assert_allclose(expected_update(θ, "last"), (K - 1) / K * gradient, atol=1e-7)
    # Who reaches the last turn alone is told nothing there, so that its answers are learned too
    # slowly.
    early, late = expected_update(θ, "reached")[[0, 6]] / gradient[[0, 6]]  # θ[0, A] and θ[2, A]
    assert early == pytest.approx((K - 1) / K, abs=1e-6)
    assert late < 0.8 * early


@given(st.lists(st.lists(rewards, min_size=1, max_size=5), min_size=2, max_size=5))
def test_nobody_s_signal_is_lost(plan: list[list[float]]) -> None:
    """A trajectory has the advantage 0 at a turn only if its return there is the group's mean.

    A trajectory that is over counts at later turns with the return of its last action.
    """
    advantages = ahead([[[(r, 1) for r in turns] for turns in plan]], "last")
    held = [[sum(turns[min(t, len(turns) - 1) :]) for t in range(5)] for turns in plan]
    for k, A in enumerate(advantages):
        for t, value in enumerate(A):
            mean = float(np.mean([row[t] for row in held]))
            assert abs(value) > 1e-9 or held[k][t] == pytest.approx(mean, abs=1e-8)


class Counting:
    """The all_gather of a single process, which counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, values: Sequence[float]) -> Sequence[float]:
        self.calls += 1
        return values


def test_only_batch_statistics_gather_and_they_do_it_once() -> None:
    plan: Plan = [[[(1.0, 1), (2.0, 1)], [(0.5, 1)]], []]
    forms: dict[Normalise, int] = {"group_std": 0, "batch_std": 1, "none": 0}
    for normalise, times in forms.items():
        for credit in (zscore(normalise), *(to_go(normalise, baseline=one) for one in BASELINES)):
            for content in (plan, []):
                all_gather = Counting()
                credit(*build(content), all_gather)
                assert all_gather.calls == times
