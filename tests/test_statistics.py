"""Intervals, against scipy's bootstrap, brute force, and the coverage they promise."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import gammaln
from scipy.stats import binom, binomtest, bootstrap
from sklearn.metrics import balanced_accuracy_score, recall_score

from workup.core.errors import WorkupError
from workup.core.statistics import SHARE, Estimate, interval, macro, paired, wilson

values = st.lists(st.none() | st.floats(-100, 100), min_size=1, max_size=30)


def test_unclustered_interval_is_scipys() -> None:
    data = np.random.default_rng(1).exponential(size=80)
    ours = interval(data.tolist(), range(80), seed=1, resamples=20_000)
    theirs = bootstrap(
        (data,), np.mean, method="percentile", n_resamples=20_000, rng=np.random.default_rng(2)
    )
    assert ours.mean == pytest.approx(data.mean())
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=0.01)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=0.01)
    assert (ours.n, ours.missing) == (80, 0)


def test_draws_are_those_of_full_enumeration() -> None:
    """Three cases of unequal size: all 27 resamples give the exact quantiles."""
    clusters = ["a", "a", "b", "c", "c", "c"]
    data = [1.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    by_case = {
        name: [value for value, cluster in zip(data, clusters, strict=True) if cluster == name]
        for name in "abc"
    }
    means = [
        np.mean([value for name in draw for value in by_case[name]])
        for draw in product("abc", repeat=3)
    ]
    low, high = np.quantile(means, [0.025, 0.975], method="inverted_cdf")
    ours = interval(data, clusters, resamples=20_000)
    assert ours.mean == pytest.approx(0.5)
    assert (ours.low, ours.high) == (pytest.approx(low), pytest.approx(high))


def test_repeating_a_case_adds_no_certainty() -> None:
    """Eight identical episodes of each case give the same interval as one.

    An unclustered interval would shrink by √8.
    """
    data = np.random.default_rng(3).integers(0, 2, 60).astype(float)
    once = interval(data.tolist(), range(60), seed=5)
    often = interval(np.repeat(data, 8).tolist(), np.repeat(np.arange(60), 8).tolist(), seed=5)
    assert (often.mean, often.low, often.high) == pytest.approx((once.mean, once.low, once.high))
    assert often.n == 480


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_intervals_cover_the_truth(spread: float) -> None:
    """About 95 % of the intervals of 400 samples hold the true mean.

    A sample has 60 cases × 4 episodes, whose cases differ by `spread`.
    """
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
    kept = [
        (value, cluster) for value, cluster in zip(data, clusters, strict=True) if value is not None
    ]
    full = interval(data, clusters, seed=seed, resamples=50)
    assert (full.n, full.missing) == (len(kept), len(data) - len(kept))
    without = interval(
        [value for value, _ in kept], [cluster for _, cluster in kept], seed=seed, resamples=50
    )
    np.testing.assert_equal(
        (full.mean, full.low, full.high), (without.mean, without.low, without.high)
    )
    if math.isnan(full.low):  # one case, or equal values: they do not tell how they spread
        assert math.isnan(full.high)
        assert math.isnan(full.sd)
    else:
        assert full.low <= full.high
        assert min(value for value, _ in kept) - 1e-9 <= full.low
        assert full.high <= max(value for value, _ in kept) + 1e-9


def test_nothing_and_one_case_claim_nothing() -> None:
    nothing = interval([None, None], ["a", "b"])
    assert math.isnan(nothing.mean)
    assert nothing.as_json() == {"mean": None, "low": None, "high": None, "n": 0, "missing": 2}
    assert interval([1.0, 0.0], ["a", "a"]).as_json() == {
        "mean": 0.5,
        "low": None,
        "high": None,
        "n": 2,
        "missing": 0,
    }
    assert macro([], [], []).n == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=2, max_size=40))
@example([(True, label) for label in (0, 1, 2, 1, 1, 0)])  # their weights sum to more than 1
@settings(deadline=None, max_examples=50)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_macro_is_sklearns_balanced_accuracy(rows: list[tuple[bool, int]]) -> None:
    truth = [label for _, label in rows]
    answer = [label if right else label + 10 for right, label in rows]
    ours = macro(
        [float(right) for right, _ in rows], range(len(rows)), truth, bounds=SHARE, resamples=20
    )
    assert ours.mean == pytest.approx(balanced_accuracy_score(truth, answer))
    assert 0 <= ours.low <= ours.high <= 1


def test_macro_interval_by_brute_force() -> None:
    """Draws within each class, each with the mean of its recalls, have the same quantiles.

    Up to noise; one of them is evaluated with sklearn too.
    """
    rng = np.random.default_rng(0)
    truth, right = rng.integers(0, 3, 90), rng.integers(0, 2, 90)
    ours = macro(right.astype(float).tolist(), range(90), truth.tolist(), seed=4, resamples=4000)
    answers = np.where(right == 1, truth, truth + 10)
    members = [np.flatnonzero(truth == k) for k in range(3)]
    rows = [rng.choice(own, (4000, len(own))) for own in members]
    draws = np.mean([right[drawn].mean(1) for drawn in rows], axis=0)
    row = np.concatenate([drawn[0] for drawn in rows])
    recall = recall_score(truth[row], answers[row], labels=[0, 1, 2], average="macro")
    assert draws[0] == pytest.approx(recall)
    assert (ours.low, ours.high) == pytest.approx(
        tuple(np.quantile(draws, [0.025, 0.975])), abs=0.012
    )


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), min_size=2, max_size=60))
def test_the_interval_of_a_macro_mean_holds_the_mean(rows: list[tuple[bool, int]]) -> None:
    """Also where most classes have a single case."""
    found = macro(
        [float(right) for right, _ in rows], range(len(rows)), [k for _, k in rows], resamples=200
    )
    assert math.isnan(found.low) or found.low - 1e-9 <= found.mean <= found.high + 1e-9


def test_a_case_of_two_classes_is_refused() -> None:
    with pytest.raises(WorkupError, match="two classes: 'flu' and 'gout'"):
        macro([1.0, 1.0], ["a", "a"], ["flu", "gout"])


def test_paired_differences_use_the_common_cases() -> None:
    estimate = paired(([1, 1, 0, 1], ["a", "a", "b", "c"]), ([0, 1, 1, None], ["a", "b", "d", "e"]))
    assert estimate.mean == pytest.approx((1 - 0 + 0 - 1) / 2)
    assert (estimate.n, estimate.missing) == (
        2,
        2,
    )  # e is undefined for one and absent for the other: no case at all


def test_pairing_is_sharper_than_two_intervals() -> None:
    rng = np.random.default_rng(2)
    hard = rng.normal(size=200)
    first, second = (
        hard + 0.2 + rng.normal(scale=0.1, size=200),
        hard + rng.normal(scale=0.1, size=200),
    )
    estimate = paired((first.tolist(), range(200)), (second.tolist(), range(200)))
    assert estimate.low > 0.15
    assert estimate.half < 0.2 * interval(first.tolist(), range(200)).half


def test_same_seed_same_interval_and_memory_chunks_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = np.random.default_rng(0).normal(size=50).tolist()
    first = interval(data, range(50), seed=9, resamples=100)
    assert first == interval(data, range(50), seed=9, resamples=100)
    assert first != interval(data, range(50), seed=10, resamples=100)
    monkeypatch.setattr("workup.core.statistics._CHUNK", 50 * 7)
    assert first == interval(data, range(50), seed=9, resamples=100)


def test_estimates_survive_json() -> None:
    estimate = Estimate(0.5, math.nan, 1.0, 3, 1)
    assert repr(Estimate.from_json(estimate.as_json())) == repr(estimate)
    assert Estimate(0.5, 0.25, 0.5, 3).half == 0.125


def test_lengths_must_agree() -> None:
    with pytest.raises(WorkupError, match="2 values in 1 clusters"):
        interval([1.0, 2.0], ["a"])


# where no case shows how the values spread --------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 10, 41, 400])
def test_a_share_with_few_of_one_kind_has_wilsons_interval(n: int) -> None:
    """0, 1, … and 9 right answers, or wrong ones, against scipy's."""
    for right in {*range(min(n + 1, 10)), *range(max(0, n - 9), n + 1)}:
        found = interval([1.0] * right + [0.0] * (n - right), range(n), bounds=SHARE)
        theirs = binomtest(right, n).proportion_ci(method="wilson")
        assert found.mean == pytest.approx(right / n)
        assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


def test_ten_wrong_of_ten_are_no_certainty() -> None:
    found = interval([0.0] * 10, range(10), bounds=SHARE)
    assert (found.mean, found.low) == (0.0, 0.0)
    assert found.high == pytest.approx(0.2775, abs=1e-4)  # z² / (n + z²)
    assert math.isnan(found.sd)
    assert macro([0.0] * 10, range(10), [0] * 5 + [1] * 5, bounds=SHARE).high == pytest.approx(
        found.high
    )


def test_where_ten_cases_differ_the_bootstrap_stays() -> None:
    """Ten right of 40, and shares that vary in every case: the same figures as without bounds."""
    for values in ([1.0] * 10 + [0.0] * 30, np.random.default_rng(0).uniform(0.3, 0.6, 8).tolist()):
        plain = interval(values, range(len(values)), seed=3)
        assert interval(values, range(len(values)), bounds=SHARE, seed=3) == plain


def test_a_case_counts_once_however_many_episodes_it_has() -> None:
    once = interval([0.0] * 9 + [1.0], range(10), bounds=SHARE)
    often = interval(
        np.repeat([0.0] * 9 + [1.0], 8).tolist(), np.repeat(np.arange(10), 8).tolist(), bounds=SHARE
    )
    assert (often.low, often.high) == pytest.approx((once.low, once.high))


def test_cases_of_unequal_weight_say_less() -> None:
    """All right: 12 episodes, of which one case has nine. Kish: 144 / (81 + 3) cases."""
    found = interval([1.0] * 12, [0] * 9 + [1, 2, 3], bounds=SHARE)
    assert (found.low, found.high) == (pytest.approx(wilson(1.0, 144 / 84)[0]), 1.0)
    by_class = macro([1.0] * 4, range(4), ["a", "a", "a", "b"], bounds=SHARE)  # 1/6, 1/6, 1/6, 1/2
    assert by_class.low == pytest.approx(wilson(1.0, 3.0)[0])


def test_equal_values_without_bounds_tell_no_interval() -> None:
    found = interval([9.0] * 10, range(10))
    assert found.as_json() == {"mean": 9.0, "low": None, "high": None, "n": 10, "missing": 0}
    same = paired(([9.0] * 10, range(10)), ([7.0] * 10, range(10)))
    assert (same.mean, math.isnan(same.low), math.isnan(same.sd)) == (2.0, True, True)
    assert interval([9.0, 9.0, 8.0], range(3)).low < 9  # these tell one
    summed = paired(([0.1 + 0.2] * 10, range(10)), ([0.3] * 9 + [0.1 + 0.2], range(10)))
    assert math.isnan(summed.low), "equal but for rounding"


def test_classes_of_one_case_are_no_certainty() -> None:
    """Thirty diagnoses, each of one patient, ten of them right: as for thirty verdicts."""
    verdicts = [1.0] * 10 + [0.0] * 20
    found = macro(verdicts, range(30), range(30), bounds=SHARE)
    assert (found.low, found.high) == pytest.approx(wilson(1 / 3, 30))
    assert math.isnan(found.sd), "no draw differs from another"
    gap = paired(
        (verdicts, range(30)),
        ([0.0] * 30, range(30)),
        classes={case: case for case in range(30)},
        bounds=SHARE,
    )
    few = paired((verdicts, range(30)), ([0.0] * 30, range(30)), bounds=SHARE)
    assert (gap.low, gap.high) == pytest.approx((few.low, few.high), abs=0.06)
    assert math.isnan(macro([1.0, 2.0, 3.0], range(3), range(3)).low), "nothing bounds these"


@pytest.mark.parametrize(
    ("sizes", "least"),
    [([1] * 30, 0.93), ([2] * 15, 0.93), ([1] * 10 + [8] * 10, 0.93), ([5] * 12, 0.9)],
)
@pytest.mark.parametrize("spread", [0.0, 0.35])
def test_intervals_of_macro_means_cover_the_truth_where_classes_are_small(
    sizes: list[int], least: float, spread: float
) -> None:
    """Of 300 samples with a share of .6 right, which differs by class by up to `spread`."""
    chance = 0.6 + spread * np.linspace(-1, 1, len(sizes))
    labels, rng, hits = np.repeat(np.arange(len(sizes)), sizes), np.random.default_rng(5), 0
    for _ in range(300):
        right = (rng.random(len(labels)) < chance[labels]).astype(float).tolist()
        found = macro(right, range(len(right)), labels.tolist(), bounds=SHARE, resamples=50)
        hits += found.low <= chance.mean() + 1e-12 and chance.mean() - 1e-12 <= found.high
    assert hits / 300 >= least


def test_where_classes_have_ten_cases_draws_within_them_stay() -> None:
    rng = np.random.default_rng(0)
    for size, stays in ((10, True), (9, False)):
        labels = np.repeat(np.arange(6), size).tolist()
        right = rng.integers(0, 2, len(labels)).astype(float).tolist()
        plain = macro(right, range(len(right)), labels, seed=3)
        assert (macro(right, range(len(right)), labels, bounds=SHARE, seed=3) == plain) is stays


def covered(low: np.ndarray, high: np.ndarray, truth: float, chances: np.ndarray) -> float:
    return float(chances[(low <= truth + 1e-12) & (truth - 1e-12 <= high)].sum())


@pytest.mark.parametrize(
    ("n", "least"), [(1, 0.79), (2, 0.82), (5, 0.83), (10, 0.85), (20, 0.90), (40, 0.90)]
)
def test_intervals_of_shares_cover_the_truth_in_small_samples(n: int, least: float) -> None:
    """Every outcome of n verdicts, weighted by its chance.

    The chances are those under 199 true shares from 0.005 to 0.995.
    """
    found = [interval([1.0] * k + [0.0] * (n - k), range(n), bounds=SHARE) for k in range(n + 1)]
    low, high = np.array([(each.low, each.high) for each in found]).T
    cover = [
        covered(low, high, p, binom.pmf(np.arange(n + 1), n, p))
        for p in np.linspace(0.005, 0.995, 199)
    ]
    assert 0.945 <= np.mean(cover) <= 0.97
    assert min(cover) >= least


@pytest.mark.parametrize(
    ("n", "least", "wrongly_clear"), [(5, 0.86, 0.14), (10, 0.90, 0.08), (20, 0.92, 0.06)]
)
def test_intervals_of_differences_cover_the_truth_in_small_samples(
    n: int, least: float, wrongly_clear: float
) -> None:
    """Every table of two verdicts on n cases, weighted by its chance.

    The chances are those under shares of discordant pairs up to 0.6.
    """
    tables = [(a, b) for a in range(n + 1) for b in range(n + 1 - a)]
    limits = []
    for a, b in tables:
        ours, theirs = [1.0] * a + [0.0] * (n - a), [0.0] * a + [1.0] * b + [0.0] * (n - a - b)
        found = paired((ours, range(n)), (theirs, range(n)), bounds=SHARE, resamples=200)
        limits.append((found.low, found.high))
    low, high = np.array(limits).T
    a, b = np.array(tables).T
    cover, clear = [], []
    for u in np.linspace(0.01, 0.6, 8):
        for v in np.linspace(0.01, 0.6, 8):
            if u + v < 0.99:
                ways = gammaln(n + 1) - gammaln(a + 1) - gammaln(b + 1) - gammaln(n - a - b + 1)
                chances = np.exp(
                    ways + a * np.log(u) + b * np.log(v) + (n - a - b) * np.log(1 - u - v)
                )
                cover.append(covered(low, high, u - v, chances))
                clear += [1 - cover[-1]] if u == v else []
    assert np.mean(cover) >= 0.935
    assert min(cover) >= least
    assert max(clear) <= wrongly_clear


def test_no_discordant_case_is_no_certainty() -> None:
    """Two doctors who agree on all of ten cases.

    The limit is z² / (n + z²) either way, as by Tango's (1998) score interval.
    """
    verdicts = [1.0, 0.0] * 5
    found = paired((verdicts, range(10)), (verdicts, range(10)), bounds=SHARE)
    assert (found.low, found.high) == (
        pytest.approx(-0.2775, abs=1e-4),
        pytest.approx(0.2775, abs=1e-4),
    )
    four = paired(([1.0] * 4 + [0.0] * 396, range(400)), ([0.0] * 400, range(400)), bounds=SHARE)
    assert four.low < 0 < four.mean  # McNemar's exact p is 0.125
    eight = paired(([1.0] * 8 + [0.0] * 392, range(400)), ([0.0] * 400, range(400)), bounds=SHARE)
    assert eight.low > 0  # and 0.008


@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=1, max_size=15))
@settings(deadline=None, max_examples=50)
def test_a_difference_turned_round_is_its_negative(gaps: list[float]) -> None:
    ours, theirs = ([float(sign * gap > 0) for gap in gaps] for sign in (1, -1))
    first, second = (ours, range(len(gaps))), (theirs, range(len(gaps)))
    one, other = paired(first, second, bounds=SHARE), paired(second, first, bounds=SHARE)
    assert (one.mean, one.low, one.high) == pytest.approx(
        (-other.mean, -other.high, -other.low), abs=0.12
    )
    assert -1 <= one.low <= one.mean <= one.high <= 1


def test_bounds_of_marks_are_scaled() -> None:
    marks = interval([5.0] * 10, range(10), bounds=(1.0, 5.0))
    shares = interval([1.0] * 10, range(10), bounds=SHARE)
    assert (marks.low, marks.high) == pytest.approx((1 + 4 * shares.low, 5.0))
    assert math.isnan(interval([7.0] * 10, range(10), bounds=SHARE).low)  # no share after all


def test_what_is_not_in_the_middle_is_not_plus_minus() -> None:
    assert Estimate(0.5, 0.4, 0.6, 9).symmetric
    assert not Estimate(0.0, 0.0, 0.28, 10).symmetric
    assert not Estimate(0.98, 0.96, 0.99, 400).symmetric


# ---- what an interval tells besides


@given(st.lists(st.floats(-1, 1).map(lambda v: round(v, 3)), min_size=12, max_size=40))
@settings(deadline=None, max_examples=50)
def test_a_chance_is_below_five_percent_where_the_interval_leaves_out_0(data: list[float]) -> None:
    found = interval(data, range(len(data)), resamples=200)
    if math.isnan(found.low):
        assert math.isnan(found.p)
    else:
        assert (found.p < 0.05) == (found.low > 0 or found.high < 0)
        assert 0 <= found.p <= 1


def test_the_chance_of_a_symmetric_interval_is_the_tables() -> None:
    """z = 2.576 is the 1 % point of the normal distribution."""
    found = Estimate(2.576, 2.576 - 1.96, 2.576 + 1.96, 100, sd=1.0)
    assert found.p == pytest.approx(0.01, abs=1e-4)
    assert found.detectable() == pytest.approx(1.96 + 0.8416, abs=1e-3)


@pytest.mark.parametrize("alone", [0, 1, 3])
def test_what_is_detectable_fits_the_interval_beside_it(alone: int) -> None:
    """Some classes of one case, between which nothing is drawn: the bootstrap sees no spread."""
    classes = {case: case if case < alone else "many" for case in range(10)}
    ours = ([1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0], range(10))
    theirs = ([0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0], range(10))
    found = paired(ours, theirs, classes=classes, bounds=SHARE)
    assert found.detectable() == pytest.approx((1.96 + 0.8416) / 1.96 * found.half, rel=0.1)
