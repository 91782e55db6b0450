"""Intervals, against scipy's bootstrap, brute force, and the coverage they promise."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import bootstrap
from sklearn.metrics import balanced_accuracy_score

from workup.errors import WorkupError
from workup.statistics import Estimate, interval, macro, paired

values = st.lists(st.none() | st.floats(-100, 100), min_size=1, max_size=30)


def test_unclustered_interval_is_scipys() -> None:
    data = np.random.default_rng(1).exponential(size=80)
    ours = interval(data.tolist(), range(80), seed=1, resamples=20_000)
    theirs = bootstrap((data,), np.mean, method="percentile", n_resamples=20_000, rng=np.random.default_rng(2))
    assert ours.mean == pytest.approx(data.mean())
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=0.01)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=0.01)
    assert (ours.n, ours.missing) == (80, 0)


def test_draws_are_those_of_full_enumeration() -> None:
    """Three cases of unequal size: all 27 resamples give the exact quantiles."""
    clusters = ["a", "a", "b", "c", "c", "c"]
    data = [1.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    by_case = {name: [value for value, cluster in zip(data, clusters, strict=True) if cluster == name] for name in "abc"}
    means = [np.mean([value for name in draw for value in by_case[name]]) for draw in product("abc", repeat=3)]
    low, high = np.quantile(means, [0.025, 0.975], method="inverted_cdf")
    ours = interval(data, clusters, resamples=20_000)
    assert ours.mean == pytest.approx(0.5)
    assert (ours.low, ours.high) == (pytest.approx(low), pytest.approx(high))


def test_repeating_a_case_adds_no_certainty() -> None:
    """Eight identical episodes of each case: the same interval as one, where an unclustered one would shrink by √8."""
    data = np.random.default_rng(3).integers(0, 2, 60).astype(float)
    once = interval(data.tolist(), range(60), seed=5)
    often = interval(np.repeat(data, 8).tolist(), np.repeat(np.arange(60), 8).tolist(), seed=5)
    assert (often.mean, often.low, often.high) == pytest.approx((once.mean, once.low, once.high))
    assert often.n == 480


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_intervals_cover_the_truth(spread: float) -> None:
    """400 samples of 60 cases × 4 episodes whose cases differ by `spread`: about 95 % of intervals hold the true mean."""
    rng, hits = np.random.default_rng(7), 0
    clusters = np.repeat(np.arange(60), 4).tolist()
    for seed in range(400):
        data = np.repeat(rng.normal(scale=spread, size=60), 4) + rng.normal(size=240)
        estimate = interval(data.tolist(), clusters, seed=seed, resamples=300)
        hits += estimate.low <= 0 <= estimate.high
    assert 0.91 <= hits / 400 <= 0.98


@given(values, st.integers(0, 5))
@settings(deadline=None, max_examples=50)
def test_missing_values_are_left_out_and_counted(data: list[float | None], seed: int) -> None:
    clusters = [number // 2 for number in range(len(data))]
    kept = [(value, cluster) for value, cluster in zip(data, clusters, strict=True) if value is not None]
    full = interval(data, clusters, seed=seed, resamples=50)
    assert (full.n, full.missing) == (len(kept), len(data) - len(kept))
    without = interval([value for value, _ in kept], [cluster for _, cluster in kept], seed=seed, resamples=50)
    np.testing.assert_equal((full.mean, full.low, full.high), (without.mean, without.low, without.high))
    if len({cluster for _, cluster in kept}) > 1:
        assert full.low <= full.high
        assert min(value for value, _ in kept) - 1e-9 <= full.low
        assert full.high <= max(value for value, _ in kept) + 1e-9


def test_nothing_and_one_case_claim_nothing() -> None:
    nothing = interval([None, None], ["a", "b"])
    assert math.isnan(nothing.mean)
    assert nothing.as_json() == {"mean": None, "low": None, "high": None, "n": 0, "missing": 2}
    assert interval([1.0, 0.0], ["a", "a"]).as_json() == {"mean": 0.5, "low": None, "high": None, "n": 2, "missing": 0}
    assert macro([], [], []).n == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=2, max_size=40))
@settings(deadline=None, max_examples=50)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_macro_is_sklearns_balanced_accuracy(rows: list[tuple[bool, int]]) -> None:
    truth = [label for _, label in rows]
    answer = [label if right else label + 10 for right, label in rows]
    ours = macro([float(right) for right, _ in rows], range(len(rows)), truth, resamples=20)
    assert ours.mean == pytest.approx(balanced_accuracy_score(truth, answer))
    assert 0 <= ours.low <= ours.high <= 1


def test_macro_interval_by_brute_force() -> None:
    """The same draws, each evaluated with sklearn."""
    rng = np.random.default_rng(0)
    truth, right = rng.integers(0, 3, 40), rng.integers(0, 2, 40)
    ours = macro(right.astype(float).tolist(), range(40), truth.tolist(), seed=4, resamples=200)
    index = np.random.default_rng(4).integers(40, size=(200, 40))
    answers = np.where(right == 1, truth, truth + 10)
    draws = [np.mean([(answers[row] == truth[row])[truth[row] == k].mean() for k in np.unique(truth[row])]) for row in index]
    assert (ours.low, ours.high) == pytest.approx(tuple(np.quantile(draws, [0.025, 0.975])))


def test_a_case_of_two_classes_is_refused() -> None:
    with pytest.raises(WorkupError, match="two classes: 'flu' and 'gout'"):
        macro([1.0, 1.0], ["a", "a"], ["flu", "gout"])


def test_paired_differences_use_the_common_cases() -> None:
    estimate = paired([1, 1, 0, 1], ["a", "a", "b", "c"], [0, 1, 1, None], ["a", "b", "d", "e"])
    assert estimate.mean == pytest.approx((1 - 0 + 0 - 1) / 2)
    assert (estimate.n, estimate.missing) == (2, 2)  # e is undefined for one and absent for the other: no case at all


def test_pairing_is_sharper_than_two_intervals() -> None:
    rng = np.random.default_rng(2)
    hard = rng.normal(size=200)
    first, second = hard + 0.2 + rng.normal(scale=0.1, size=200), hard + rng.normal(scale=0.1, size=200)
    estimate = paired(first.tolist(), range(200), second.tolist(), range(200))
    assert estimate.low > 0.15
    assert estimate.half < 0.2 * interval(first.tolist(), range(200)).half


def test_same_seed_same_interval_and_memory_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(0).normal(size=50).tolist()
    first = interval(data, range(50), seed=9, resamples=100)
    assert first == interval(data, range(50), seed=9, resamples=100)
    assert first != interval(data, range(50), seed=10, resamples=100)
    monkeypatch.setattr("workup.statistics._CHUNK", 50 * 7)
    assert first == interval(data, range(50), seed=9, resamples=100)


def test_estimates_survive_json() -> None:
    estimate = Estimate(0.5, math.nan, 1.0, 3, 1)
    assert repr(Estimate.from_json(estimate.as_json())) == repr(estimate)
    assert Estimate(0.5, 0.25, 0.5, 3).half == 0.125


def test_lengths_must_agree() -> None:
    with pytest.raises(WorkupError, match="2 values in 1 clusters"):
        interval([1.0, 2.0], ["a"])
