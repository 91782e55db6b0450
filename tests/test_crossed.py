"""One interval over patients and seeds: its variance, its coverage, and what a claim gets."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import t as student
from scipy.stats import ttest_1samp
from statsmodels.regression.linear_model import OLS
from statsmodels.stats.multitest import multipletests

from workup.core.crossed import (
    Components,
    Crossed,
    Decision,
    adjusted,
    area,
    area_difference,
    by_seed,
    crossed,
    crossed_difference,
    decide,
    of_table,
    wrong_by_chance,
)
from workup.core.statistics import SHARE, CaseTable, Clustered, interval, macro, paired

Floats = NDArray[np.float64]


def parts(values: Floats) -> dict[str, Clustered]:
    """(seeds, patients); NaN is undefined."""
    return {
        str(seed): ([None if math.isnan(v) else float(v) for v in row], range(len(row)))
        for seed, row in enumerate(values)
    }


def normal(rng: np.random.Generator, seeds: int, patients: int, *sds: float) -> Floats:
    """Seed, patient and residual effects with these standard deviations."""
    sizes = ((seeds, 1), (1, patients), (seeds, patients))
    return sum((sd * rng.normal(size=n) for sd, n in zip(sds, sizes, strict=True)), np.zeros(1))


# ---- the variance


def anova(values: Floats) -> tuple[float, float, float]:
    """The mean squares of seed, patient and residual, by what statsmodels' fits leave over."""
    seeds, patients = values.shape
    of_seed = np.kron(np.eye(seeds), np.ones((patients, 1)))
    of_patient = np.kron(np.ones((seeds, 1)), np.eye(patients))
    left = [
        OLS(values.ravel(), design).fit().ssr
        for design in (of_patient, of_seed, np.hstack([of_seed, of_patient]))
    ]
    return (
        (left[0] - left[2]) / (seeds - 1),
        (left[1] - left[2]) / (patients - 1),
        left[2] / ((seeds - 1) * (patients - 1)),
    )


@pytest.mark.parametrize(("seeds", "patients"), [(2, 9), (3, 20), (8, 14)])
def test_the_variance_is_that_of_the_crossed_analysis_of_variance(
    seeds: int, patients: int
) -> None:
    values = normal(np.random.default_rng(seeds), seeds, patients, 0.3, 0.5, 1.0)
    of_seed, of_patient, residual = anova(values)
    found = crossed(parts(values))
    assert found.mean == pytest.approx(values.mean())
    assert found.se**2 == pytest.approx(
        (of_seed + max(of_patient - residual, 0)) / (seeds * patients)
    )
    assert found.components.seed == pytest.approx((of_seed - residual) / patients)
    assert found.components.patient == pytest.approx((of_patient - residual) / seeds)
    assert found.components.residual == pytest.approx(residual)
    assert (found.seeds, found.patients, found.n, found.missing) == (seeds, patients, patients, 0)
    share = of_seed / (seeds * patients) / found.se**2
    df = 1 / (share / (seeds - 1) + (1 - share) / (patients - 1))
    assert found.df == pytest.approx(df)
    half = student.ppf(0.975, df) * found.se
    assert (found.low, found.high) == pytest.approx((found.mean - half, found.mean + half))


def test_sides_with_other_patients_are_two_samples_of_patients() -> None:
    """Of one seed the variance is Welch's; of several the seeds' spread stands in it too."""
    rng = np.random.default_rng(3)
    ours, theirs = rng.normal(0.3, 1, (4, 40)), rng.normal(0, 2, (4, 25))
    other = {
        seed: (values, [f"other {case}" for case in cases])
        for seed, (values, cases) in parts(theirs).items()
    }
    one = crossed_difference({"0": parts(ours)["0"]}, {"0": other["0"]})
    assert one.mean == pytest.approx(ours[0].mean() - theirs[0].mean())
    welch = ours[0].var(ddof=1) / 40 + theirs[0].var(ddof=1) / 25
    assert one.se**2 == pytest.approx(welch, rel=0.05)
    assert one.patients == 65
    found = crossed_difference(parts(ours), other)
    gaps = ours.mean(1) - theirs.mean(1)
    assert found.mean == pytest.approx(gaps.mean())
    assert found.spread == pytest.approx(gaps.var(ddof=1))
    shared = [
        (np.cov(side).sum() - np.trace(np.cov(side))) / 12 / side.shape[1]
        for side in (ours, theirs)
    ]
    assert found.shared == pytest.approx(max(sum(shared), 0), rel=0.05, abs=1e-3)
    assert (found.missing, one.missing) == (0, 0)
    gone = {"0": ([None, *ours[0, 1:]], parts(ours)["0"][1])}
    assert crossed_difference(gone, {"0": other["0"]}).missing == 1
    wide = crossed_difference(
        {"0": ([0.0, 1.0], ["a", "b"])}, {"0": ([0.0, 0.0], ["c", "d"])}, bounds=(0, 1)
    )
    assert -1 <= wide.low <= wide.high <= 1


def test_what_patients_do_to_both_sides_is_no_residual() -> None:
    """Sides without a common seed, whose values are a patient's own and nothing else."""
    patient = np.random.default_rng(0).normal(0, 2, 12)
    ours = {str(seed): (list(patient + seed), list(range(12))) for seed in (0, 1)}
    theirs = {str(seed): (list(patient - seed), list(range(12))) for seed in (2, 3)}
    found = crossed_difference(ours, theirs).components
    assert (found.patient, found.residual) == pytest.approx((0, 0), abs=1e-9)


def test_the_variance_has_no_bias_where_values_are_undefined() -> None:
    """The mean of V over samples is the variance of the means; so are its components."""
    rng = np.random.default_rng(0)
    undefined = rng.random((4, 30)) < np.linspace(0.1, 0.6, 30)
    found = []
    for _ in range(3_000):
        values = normal(rng, 4, 30, 0.2, 1.0, 0.7)
        values[undefined] = np.nan
        found.append(of_table(table(values), [4]))
    truth = np.var([each.mean for each in found])
    # C counts as 0 where it is below; with patients this different it never is.
    assert np.mean([each.se**2 for each in found]) == pytest.approx(truth, rel=0.08)
    assert np.mean([each.components.seed for each in found]) == pytest.approx(0.04, abs=0.006)
    assert np.mean([each.components.patient for each in found]) == pytest.approx(1.0, rel=0.05)
    assert np.mean([each.components.residual for each in found]) == pytest.approx(0.49, rel=0.05)


values_of_seeds = st.lists(
    st.lists(st.none() | st.floats(0, 1).map(lambda v: round(v, 3)), min_size=6, max_size=6),
    min_size=1,
    max_size=4,
)


@given(values_of_seeds, st.booleans())
@settings(deadline=None, max_examples=60)
def test_the_mean_is_that_of_the_seeds_own(values: list[list[float | None]], classed: bool) -> None:
    given_parts = {str(seed): (row, range(6)) for seed, row in enumerate(values)}
    classes: Mapping[Hashable, Hashable] | None = (
        {case: case // 3 for case in range(6)} if classed else None
    )
    found = crossed(given_parts, classes=classes, bounds=SHARE)
    own = [
        macro(*part, [case // 3 for case in range(6)], resamples=2).mean
        if classes
        else interval(*part, resamples=2).mean
        for part in given_parts.values()
    ]
    known = [mean for mean in own if not math.isnan(mean)]
    assert found.mean == pytest.approx(fmean(known) if known else math.nan, nan_ok=True)
    if not math.isnan(found.low):
        assert 0 <= found.low <= found.mean + 1e-12
        assert found.mean - 1e-12 <= found.high <= 1
    assert found.n + found.missing == 6


@given(values_of_seeds, values_of_seeds)
@settings(deadline=None, max_examples=60)
def test_a_difference_is_paired_by_seed_and_patient(
    ours: list[list[float | None]], theirs: list[list[float | None]]
) -> None:
    sides = [{str(s): (row, range(6)) for s, row in enumerate(side)} for side in (ours, theirs)]
    found = crossed_difference(*sides, bounds=SHARE)
    seeds = [seed for seed in sides[0] if seed in sides[1]]
    own = [paired(sides[0][seed], sides[1][seed], resamples=2).mean for seed in seeds]
    known = [mean for mean in own if not math.isnan(mean)]
    assert found.mean == pytest.approx(fmean(known) if known else math.nan, nan_ok=True)
    turned = crossed_difference(*sides[::-1], bounds=SHARE)
    assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low), nan_ok=True)


def test_one_seed_speaks_of_patients_alone() -> None:
    values = normal(np.random.default_rng(2), 1, 30, 0.5, 0.5, 1.0)
    found, told = crossed(parts(values)), ttest_1samp(values[0], 0)
    limits = told.confidence_interval(0.95)
    assert not found.covers_seeds
    assert (found.low, found.high) == pytest.approx((limits.low, limits.high))
    assert [found.df, found.p] == pytest.approx([29, told.pvalue])
    assert found.seeds_for(0.1) is None, "one seed does not tell how far seeds vary"


def test_seeds_that_sides_do_not_share_are_two_samples() -> None:
    """Sums written out: Welch's variance of two samples of seeds, and what patients share."""
    rng = np.random.default_rng(3)
    patients = rng.normal(size=(1, 40))
    one, other = (patients + normal(rng, seeds, 40, 0.3, 0.2, 0.5) for seeds in (3, 5))
    other_seeds = {f"1{seed}": part for seed, part in parts(other).items()}
    found = crossed_difference(parts(one), other_seeds)
    cov = np.cov(np.vstack([one, other])) / 40
    blocks = cov[:3, :3], cov[3:, 3:]
    off = [(block.sum() - np.trace(block)) / (len(block) * (len(block) - 1)) for block in blocks]
    shared = sum(off) - 2 * cov[:3, 3:].mean()
    figures = [side.mean(1) for side in (one, other)]
    variance = sum(each.var(ddof=1) / len(each) for each in figures)
    assert found.mean == pytest.approx(figures[0].mean() - figures[1].mean())
    assert found.se**2 == pytest.approx(variance + max(shared, 0))
    assert found.shared == pytest.approx(max(shared, 0))
    assert (found.seeds, found.n) == (3, 40)


# ---- what it promises


def table(values: Floats) -> CaseTable:
    """As `CaseTable.of` makes it, faster: (seeds, patients) with NaN for undefined values."""
    defined = ~np.isnan(values)
    some = defined.any(0)
    sums, counts = np.where(defined, values, 0)[:, some], defined[:, some].astype(float)
    return CaseTable(sums, counts, np.zeros(some.sum(), dtype=np.int64))


def verdicts(
    rng: np.random.Generator, seeds: int, patients: int, sd: float, share: float
) -> Floats:
    """(seeds, patients) of 0 and 1, `share` on average; seeds' shares vary by about `sd`.

    Right where seed + patient + residual passes a threshold (probit), with half of the variance
    within a seed the patients'.
    """
    slope = math.exp(-(ndtri(share) ** 2) / 2) / math.sqrt(2 * math.pi)
    threshold = -ndtri(share) * math.sqrt(1 + (sd / slope) ** 2)
    latent = normal(rng, seeds, patients, sd / slope, math.sqrt(0.5), math.sqrt(0.5))
    return np.where(latent > threshold, 1.0, 0.0)


def sample(
    rng: np.random.Generator, seeds: int, patients: int, sd: float, kind: str
) -> tuple[Floats, float]:
    """(values, their true mean)."""
    if kind == "verdicts":
        return verdicts(rng, seeds, patients, sd, 0.75), 0.75
    one, other = (verdicts(rng, seeds, patients, sd / math.sqrt(2), 0.75) for _ in range(2))
    values = one - other
    if kind == "undefined":  # more often in some patients and some seeds: 30 % in all
        chance = ndtr(0.75 + rng.normal(size=(1, patients)) + 0.3 * rng.normal(size=(seeds, 1)))
        values[rng.random(values.shape) > chance] = np.nan
    return values, 0.0


@pytest.mark.long
@pytest.mark.parametrize("kind", ["verdicts", "differences", "undefined"])
def test_the_interval_covers_the_truth(kind: str) -> None:
    """.93 to .97, for 3 to 12 seeds, 50 to 1,000 patients, and seeds that vary by 0 to .05.

    Of 400 samples per cell; three standard errors of a share of .95 are .033. Over all cells they
    are .008, so that the whole is held more closely.
    """
    rng = np.random.default_rng(0)
    cover = {}
    for seeds, patients in ((3, 50), (3, 300), (5, 100), (8, 200), (12, 50), (3, 1_000)):
        for sd in (0.0, 0.01, 0.05):
            hits = []
            for _ in range(400):
                values, truth = sample(rng, seeds, patients, sd, kind)
                found = of_table(table(values), [seeds])
                hits.append(found.low <= truth <= found.high)
            cover[seeds, patients, sd] = np.mean(hits)
    assert min(cover.values()) >= 0.93 - 0.033, cover
    assert max(cover.values()) <= 0.97 + 0.033, cover
    assert 0.94 <= np.mean(list(cover.values())) <= 0.965, cover


@pytest.mark.long
def test_intervals_by_patient_alone_and_squared_shares_cover_too_little() -> None:
    """What this module's choice is for; normal effects, three seeds."""
    rng = np.random.default_rng(1)
    cover = {"ours": 0, "by patient": 0, "squared": 0}
    for _ in range(4_000):
        values = normal(rng, 3, 300, 0.05, 0.45, 0.45)
        found = of_table(table(values), [3])
        by_patient = values.mean(0).std(ddof=1) / math.sqrt(300)
        hillis = 2 * (found.se**2 / (found.spread / 3)) ** 2
        cover["ours"] += found.low <= 0 <= found.high
        cover["by patient"] += abs(found.mean) <= 1.96 * by_patient
        cover["squared"] += abs(found.mean) <= student.ppf(0.975, hillis) * found.se
    shares = {name: count / 4_000 for name, count in cover.items()}
    assert 0.93 <= shares["ours"] <= 0.96
    assert shares["squared"] < 0.935
    assert shares["by patient"] < 0.88


@pytest.mark.long
@pytest.mark.parametrize(("seeds", "sd"), [(3, 0.02), (8, 0.02), (8, 0.05)])
def test_a_detectable_difference_is_found_with_its_power(seeds: int, sd: float) -> None:
    """The truth is put at the detectable difference of the true components."""
    rng = np.random.default_rng(seeds)
    patients, within = 300, 0.4
    variance = sd**2 / seeds + within**2 / patients + within**2 / (seeds * patients)
    share = (sd**2 / seeds + within**2 / (seeds * patients)) / variance
    df = 1 / (share / (seeds - 1) + (1 - share) / (patients - 1))
    plain = Crossed(0, -1, 1, patients, 0, math.sqrt(variance), df, seeds, patients)
    truth = plain.detectable()
    found = sum(
        of_table(table(truth + normal(rng, seeds, patients, sd, within, within)), [seeds]).low > 0
        for _ in range(2_000)
    )
    # A t interval with few, estimated degrees of freedom: the sum of two quantiles is approximate.
    assert found / 2_000 == pytest.approx(0.8, abs=0.06)


def test_a_level_stays_within_its_bounds() -> None:
    rng = np.random.default_rng(5)
    values = verdicts(rng, 3, 50, 0.05, 0.97)
    found = crossed(parts(values), bounds=SHARE)
    assert 0 <= found.low < found.mean < found.high <= 1
    right = crossed(parts(np.ones((3, 50))), bounds=SHARE)
    alone = interval([1.0] * 50, range(50), bounds=SHARE)
    assert (right.low, right.high) == (alone.low, alone.high), "no seed and no patient has shown"
    assert math.isnan(crossed(parts(np.ones((3, 50)))).low)


def test_a_difference_of_shares_is_at_most_one() -> None:
    ours, theirs = np.ones((2, 20)), np.ones((2, 20))
    theirs[0, :4] = theirs[1, :] = 0
    found = crossed_difference(parts(ours), parts(theirs), bounds=SHARE)
    assert (found.low, found.high) == (-1, 1), "two seeds, .2 and 1"


def test_few_discordant_patients_are_no_certainty() -> None:
    """All seeds agree on four patients of 400: McNemar's exact p is .125."""
    ours, theirs = np.zeros((3, 400)), np.zeros((3, 400))
    ours[:, :4] = 1
    found = crossed_difference(parts(ours), parts(theirs), bounds=SHARE)
    assert found.low < 0 < found.mean == pytest.approx(0.01)


# ---- how many seeds


def crossed_of(mean: float, spread: float, shared: float, seeds: int = 3) -> Crossed:
    """Of 300 patients."""
    se = math.sqrt(spread / seeds + shared)
    share = spread / seeds / se**2
    df = 1 / (share / (seeds - 1) + (1 - share) / 299)
    half = student.ppf(0.975, df) * se
    return Crossed(mean, mean - half, mean + half, 300, 0, se, df, seeds, 300, spread, shared)


@pytest.mark.parametrize("difference", [0.02, 0.03, 0.05, 0.2])
def test_so_many_seeds_make_a_difference_detectable(difference: float) -> None:
    found = crossed_of(0.01, 0.03**2, 0.005**2)
    needed = found.seeds_for(difference)
    assert needed is not None

    def reach(seeds: int) -> float:
        return crossed_of(0.01, 0.03**2, 0.005**2, seeds).detectable()

    assert reach(needed) <= difference
    assert needed == 2 or reach(needed - 1) > difference


def test_no_number_of_seeds_makes_up_for_patients() -> None:
    found = crossed_of(0.01, 0.03**2, 0.02**2)
    assert found.seeds_for(0.05) is None
    assert (student.ppf(0.975, 299) + student.ppf(0.8, 299)) * 0.02 > 0.05
    assert found.seeds_for(0.0) is None


@given(values_of_seeds)
@settings(deadline=None, max_examples=30)
def test_it_goes_through_json(values: list[list[float | None]]) -> None:
    found = crossed({str(seed): (row, range(6)) for seed, row in enumerate(values)}, bounds=SHARE)
    again = Crossed.from_json(found.as_json())
    assert again.as_json() == found.as_json()
    assert str(again) == str(found)  # NaN is not equal to itself


# ---- decisions


@pytest.mark.parametrize(
    ("mean", "se", "sign", "said"),
    [
        (0.05, 0.01, 1, "held"),
        (0.05, 0.01, -1, "refuted"),
        (-0.05, 0.01, 1, "refuted"),
        (-0.05, 0.01, -1, "held"),
        (0.012, 0.004, 1, "held, but within the margin"),
        (-0.012, 0.004, 1, "refuted, but within the margin"),
        (0.002, 0.004, 1, "equal within the margin"),
    ],
)
def test_a_claim_is_decided(mean: float, se: float, sign: int, said: str) -> None:
    found = crossed_of(mean, 3 * se**2 * 0.1, se**2 * 0.9, 3)
    assert str(decide(found, 0.02, sign)) == said


def test_an_undecided_claim_says_how_many_seeds_it_needs() -> None:
    """Of three ways to an end the nearest counts: a direction, the margin, the paper's figure."""
    found = crossed_of(0.01, 0.03**2, 0.003**2)
    needed = [found.seeds_for(0.01), found.seeds_for(0.02, 0.9), found.seeds_for(0.05, 0.9)]
    direction, small, smaller = [each for each in needed if each is not None]
    assert direction > small > smaller
    for reported, seeds in ((None, small), (0.06, smaller)):
        decided = decide(found, 0.03, 1, reported)
        assert (decided.decision, decided.more) == (Decision.UNDECIDED, seeds - 3)
        assert str(decided) == f"undecided, about {seeds - 3} more seeds"
    assert decide(found, 0.009).more == direction - 3
    far = decide(crossed_of(0.001, 0.5**2, 0.0), 0.02)
    assert str(far) == "undecided, more than 1,000 more seeds"
    hopeless = decide(crossed_of(0.01, 0.03**2, 0.02**2), 0.03)
    assert str(hopeless) == "undecided, needs more patients"
    assert hopeless.whole == str(hopeless), "how values vary by themselves is not known here"
    parted = Components(0.005**2, 0.2, 0.2)
    some = decide(replace(crossed_of(0.01, 0.03**2, 0.02**2), components=parted), 0.03)
    assert some.whole == "undecided, needs more patients, about 7,000"
    assert str(decide(crossed_of(0.0, 0.03**2, 0.02**2), 0.0)) == "undecided", "no size to find"
    alone = crossed(parts(normal(np.random.default_rng(2), 1, 30, 0.5, 0.5, 1.0) * 0.1))
    assert str(decide(alone, 0.01)) == "undecided", "one seed does not tell how far seeds vary"


@pytest.mark.parametrize(("mean", "reported"), [(0.03, None), (0.0, None), (0.01, 0.05)])
def test_so_many_more_seeds_decide_four_times_of_five(mean: float, reported: float | None) -> None:
    found = crossed_of(mean, 0.03**2, 1e-12)
    more = decide(found, 0.015, 1, reported).more
    assert more is not None
    draws = np.random.default_rng(0).normal(mean, 0.03, (400, 3 + more))
    ends = [decide(by_seed(each), 0.015, 1, reported).decision for each in draws.tolist()]
    # fewer where both ends of the margin have to be left out
    assert 0.65 < np.mean([end is not Decision.UNDECIDED for end in ends]) < 0.92


def test_an_undecided_claim_says_how_many_patients_would_do() -> None:
    """With these seeds: as many as leave the standard error that finds the difference."""
    found = replace(
        crossed_of(0.004, 0.015**2, 0.0, 8),
        patients=500,
        components=Components(0.0, 0.0, 0.11),
    )
    assert found.se == pytest.approx((0.11 / 4000) ** 0.5, rel=0.02)
    needed = found.patients_for(0.008)
    assert needed is not None
    wanted = 0.008 / (student.ppf(0.975, found.df) + student.ppf(0.8, found.df))
    assert (0.11 / (8 * needed)) ** 0.5 <= wanted < (0.11 / (8 * (needed - 1))) ** 0.5
    said = decide(found, 0.006, 1, 0.012)
    smaller = found.patients_for(0.008, 0.9)
    assert smaller is not None
    assert 1100 < smaller - 500 <= 1200, "rounded up"
    assert said.whole == f"{said} or 1,200 more patients"
    assert str(said) == f"undecided, about {said.more} more seeds"
    few = replace(found, components=Components(0.005**2 * 8, 0.0, 0.11))
    assert few.patients_for(0.008) is None, "no number of patients takes away what seeds do"
    assert replace(found, seeds=1).patients_for(0.008) is None
    assert by_seed([0.1, 0.2]).patients_for(0.008) is None, "there are no patients"


def test_so_many_patients_decide_four_times_of_five() -> None:
    """Simulated: eight seeds that vary little, and values that mostly vary by themselves."""
    found = replace(
        crossed_of(0.01, 0.1 / 300, 0.0, 8), patients=300, components=Components(0.0, 0.0, 0.1)
    )
    more = decide(found, 0.005).others
    assert more is not None
    rng = np.random.default_rng(0)
    draws = (0.01 + normal(rng, 8, 300 + more, 0.0, 0.0, 0.1**0.5) for _ in range(200))
    ends = [decide(crossed(parts(each)), 0.005).decision for each in draws]
    assert 0.72 < np.mean([end is Decision.HELD for end in ends]) < 0.92


def test_seeds_of_which_some_collapse_are_not_covered() -> None:
    """What the module says of a training that ends at 0 in one run of ten."""
    rng = np.random.default_rng(0)
    draws = np.where(rng.random((2000, 3)) < 0.1, -0.8, 0) + rng.normal(0.03, 0.015, (2000, 3))
    found = [by_seed(each) for each in draws.tolist()]
    covered = np.mean([each.low <= 0.03 - 0.08 <= each.high for each in found])
    assert 0.25 < covered < 0.35


def test_equality_is_two_one_sided_tests() -> None:
    """At the edge of the 90 % interval, which leaves out the margin and holds 0."""
    found = crossed_of(0.0, 0.01**2, 0.004**2)
    half = student.ppf(0.95, found.df) * found.se
    assert decide(found, half * 1.001).decision is Decision.EQUAL
    assert decide(found, half * 0.999).decision is Decision.UNDECIDED


@pytest.mark.parametrize("sign", [1, -1])
def test_an_undecided_direction_can_be_smaller_than_what_the_paper_reports(sign: int) -> None:
    """At the edge of the 90 % interval on the claim's side, whichever that is."""
    found = crossed_of(sign * 0.01, 0.03**2, 0.004**2)
    edge = 0.01 + student.ppf(0.95, found.df) * found.se
    assert str(decide(found, 0.02, sign, edge * 1.001)) == "smaller than in the paper"
    for reported in (edge * 0.999, None):
        assert decide(found, 0.02, sign, reported).decision is Decision.UNDECIDED
    other = crossed_of(-sign * 0.01, 0.03**2, 0.004**2)
    assert decide(other, 0.02, sign, edge * 0.999).decision is Decision.SMALLER
    clear = crossed_of(sign * 0.05, 0.01**2, 0.004**2)
    assert decide(clear, 0.02, sign, 0.5).decision is Decision.HELD, "a direction says more"


def test_what_is_as_large_as_in_the_paper_is_seldom_called_smaller() -> None:
    """Simulated: the true difference is the paper's; one test at 5 %."""
    rng = np.random.default_rng(8)
    told = [
        decide(of_table(table(normal(rng, 8, 100, 0.05, 0.4, 0.4) + 0.03), [8]), 0.0, 1, 0.03)
        for _ in range(2_000)
    ]
    assert [each.decision for each in told].count(Decision.SMALLER) <= 0.06 * len(told)


def test_figures_without_variation_are_decided() -> None:
    same = np.zeros((3, 20))
    assert decide(crossed_difference(parts(same), parts(same)), 0.02).decision is Decision.EQUAL
    above = crossed_difference(parts(same + 1), parts(same))
    assert math.isnan(above.low)
    assert decide(above, 0.02).decision is Decision.HELD
    assert decide(above, 0.02, -1).decision is Decision.REFUTED
    assert decide(above, 1.5).decision is Decision.EQUAL
    assert decide(by_seed([0.5] * 3), 0.02, -1).decision is Decision.REFUTED
    for too_few in (  # one seed, and one patient: they tell nothing about others
        crossed_difference(parts(same[:1] + 1), parts(same[:1])),
        crossed_difference(parts(same[:, :1] + 1), parts(same[:, :1])),
        by_seed([0.5]),
    ):
        assert decide(too_few, 0.02).decision is Decision.UNDECIDED
    assert decide(crossed({}), 0.02).decision is Decision.UNDECIDED


def test_so_many_claims_are_wrong_by_chance() -> None:
    """Simulated: 41 true differences of 0, how many of them get the claim's direction."""
    assert wrong_by_chance(40) == pytest.approx(1.0)
    rng = np.random.default_rng(6)
    held = [
        decide(of_table(table(normal(rng, 8, 100, 0.02, 0.4, 0.4)), [8]), 0.0).decision
        for _ in range(2_000)
    ]
    assert held.count(Decision.HELD) == pytest.approx(wrong_by_chance(2_000), abs=25)


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=12))
@settings(deadline=None)
def test_chances_are_adjusted_for_their_number(chances: list[float]) -> None:
    told = multipletests(chances, method="fdr_bh")[1]
    assert adjusted([*chances, math.nan])[:-1] == pytest.approx(list(told))
    assert math.isnan(adjusted([math.nan])[0])


# ---- figures of seeds alone


@given(st.lists(st.floats(-1, 1).map(lambda v: round(v, 6)), min_size=2, max_size=8))
@settings(deadline=None)
def test_figures_of_seeds_have_students_interval(figures: Sequence[float]) -> None:
    found = by_seed([*figures, None])
    assert (found.n, found.seeds, found.patients, found.missing) == (len(figures),) * 2 + (0, 1)
    assert found.mean == pytest.approx(np.mean(figures))
    if len(set(figures)) == 1:
        assert math.isnan(found.low)
    else:
        told = ttest_1samp(figures, 0).confidence_interval(0.95)
        assert (found.low, found.high) == pytest.approx((told.low, told.high))


def test_one_figure_has_no_interval() -> None:
    assert by_seed([0.4, None]).mean == 0.4
    assert math.isnan(by_seed([0.4, None]).low)
    assert math.isnan(by_seed([]).mean)
    assert math.isnan(by_seed([0.1 + 0.2, 0.3]).low), "equal but for rounding"


def test_a_curve_is_its_mean_height_over_the_updates_that_both_made() -> None:
    assert area([0.1, None, 0.5]) == pytest.approx(0.3)
    assert area([None]) is None
    fast: Mapping[str, list[float | None]] = {"0": [0.4, 0.8, 0.8], "1": [0.5, 0.7]}
    slow: Mapping[str, list[float | None]] = {"0": [0.2, 0.4], "1": [0.1, 0.8, 0.9], "2": [0.0]}
    found = area_difference(fast, slow)
    assert found.mean == pytest.approx((0.3 + 0.15) / 2)
    assert found.seeds == 2
    assert found.se == pytest.approx(np.std([0.3, 0.15], ddof=1) / math.sqrt(2))


def test_areas_are_compared_where_both_curves_have_a_value() -> None:
    found = area_difference({"0": [0.0, None, 0.5]}, {"0": [0.0, 1.0, 0.25, 9.0]})
    assert found.mean == pytest.approx(0.125)


def test_sides_with_other_patients_have_their_classes() -> None:
    ours, theirs = {"0": ([1.0, 0.0], ["a", "b"])}, {"0": ([0.0, 0.0], ["c", "d"])}
    kinds = {"a": "x", "b": "y", "c": "x", "d": "y"}
    assert crossed_difference(ours, theirs, classes=kinds).mean == pytest.approx(0.5)
    more = {"0": ([1.0, 1.0, 0.0, 1.0], ["a", "a2", "b", "lone"])}
    less = {"0": ([0.0, 1.0, 0.0, 1.0], ["c", "c2", "c3", "d"])}
    kinds |= {"a2": "x", "c2": "x", "c3": "x", "lone": "z"}
    found = crossed_difference(more, less, classes=kinds)
    assert found.mean == pytest.approx(((1 - 1 / 3) + (0 - 1)) / 2), "over the classes of both"


def test_what_is_detectable_of_seeds_fits_a_score_interval() -> None:
    """Three of 60 patients differ, in all seeds alike."""
    right = ([1.0] * 60, range(60))
    wrong = ([0.0] * 3 + [1.0] * 57, range(60))
    found = crossed_difference(
        {str(seed): right for seed in range(4)},
        {str(seed): wrong for seed in range(3)} | {"3": ([0.0] * 2 + [1.0] * 58, range(60))},
        bounds=SHARE,
    )
    assert found.detectable() > found.half
