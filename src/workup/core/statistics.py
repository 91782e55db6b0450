"""How sure a figure is: 95 % intervals by case.

Several episodes of one case are not independent, so the unit is the case. The percentile bootstrap
draws whole cases with replacement, with all their episodes (Efron & Tibshirani 1993, ch. 13;
Davison & Hinkley 1997, §3.8).

A bootstrap cannot know what no case has shown: where 10 of 10 answers are wrong, so are those of
every draw, and its interval has no width. Where fewer than ten cases differ from all the others,
which share one extreme value, a score interval takes its place: Wilson's (1927) for a share, and
for a difference of two shares those of its positive and its negative part, combined by the
square-and-add method (Newcombe 1998; Zou & Donner 2008). A case counts once there, however many
episodes it has. The same holds for a mean over classes that are small: draws within a class of n
cases miss 1/n of its variance, and those of single cases have no width at all. Everything is
deterministic by `seed`.

An interval by case says nothing about another training seed: `workup.core.crossed` covers both.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workup.core.errors import WorkupError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bounds = tuple[float, float]
Clustered = tuple[Sequence[float | None], Sequence[Hashable]]  # values, and the case of each
RESAMPLES = 2_000
LEVEL = 0.95
POWER = 0.8
SHARE: Bounds = (0.0, 1.0)
# Cases that differ from all the others, or that a class has: below, no bootstrap is relied on.
FEW = 10
ROUNDING = 1e-12  # relative to a figure, see `negligible`
_CHUNK = 2**14  # draws held in memory at a time


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % interval, from `n` values; `missing` more were undefined and left out.

    `sd` is the standard deviation of the mean over the bootstrap's draws; beside a score interval
    (see `interval`) it is the one that an interval so wide would have. `mean` is NaN where no
    value is left. `low`, `high` and `sd` are NaN where the values do not tell how they spread:
    there is only one case, or all are equal. A share (see `interval`) has an interval there too.
    """

    mean: float
    low: float
    high: float
    n: int
    missing: int = 0
    sd: float = math.nan

    @property
    def half(self) -> float:
        """Half the interval's width."""
        return (self.high - self.low) / 2

    @property
    def symmetric(self) -> bool:
        """Whether the mean is in the middle of the interval, within a tenth of its width."""
        return abs(self.high + self.low - 2 * self.mean) <= (self.high - self.low) / 10

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0

    @staticmethod
    def exact(value: float) -> Estimate:
        """A figure without an interval."""
        return Estimate(value, math.nan, math.nan, 1)

    @property
    def freedom(self) -> float:
        """The degrees of freedom that the interval takes; infinitely many are the normal's."""
        return math.inf

    @property
    def p(self) -> float:
        """Two-sided, of a mean of 0: below .05 exactly where the interval leaves out 0.

        It takes the interval's arm on the side of 0 for that of Student's. NaN without an interval.
        """
        from scipy.special import stdtr

        if math.isnan(self.low):
            return math.nan
        arm = self.mean - self.low if self.mean > 0 else self.high - self.mean
        off = abs(self.mean) / arm if arm > 0 else math.inf if self.mean else 0.0
        return float(2 * stdtr(self.freedom, -off * quantile((1 + LEVEL) / 2, self.freedom)))

    def detectable(self, power: float = POWER) -> float:
        """The true mean that would be found (an interval without 0) with this power.

        NaN where `sd` is.
        """
        return reach(self.freedom, power) * self.sd

    def as_json(self) -> dict[str, Any]:
        """{"mean", "low", "high", "n", "missing"}, NaN as null, and "sd" where it is defined."""
        numbers = {name: getattr(self, name) for name in ("mean", "low", "high")}
        plain = {name: None if math.isnan(value) else value for name, value in numbers.items()}
        return (
            plain
            | {"n": self.n, "missing": self.missing}
            | ({} if math.isnan(self.sd) else {"sd": self.sd})
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Estimate:
        mean, low, high = (
            math.nan if value[name] is None else float(value[name])
            for name in ("mean", "low", "high")
        )
        return cls(mean, low, high, value["n"], value.get("missing", 0), value.get("sd", math.nan))


def reach(freedom: float, power: float = POWER, level: float = LEVEL) -> float:
    """How many standard errors off 0 a mean has to be, to be found with this power.

    It is found where its interval at this level leaves out 0.
    """
    return quantile((1 + level) / 2, freedom) + quantile(power, freedom)


def quantile(share: float, freedom: float) -> float:
    """Student's; the normal's of infinitely many degrees of freedom."""
    from scipy.special import stdtrit  # few commands need it, and it takes a while to load

    return float(stdtrit(freedom, share))


def interval(
    values: Sequence[float | None],
    clusters: Sequence[Hashable],
    *,
    bounds: Bounds | None = None,
    difference: bool = False,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Estimate:
    """The mean of `values` and its interval, by the cases that `clusters` (same length) names.

    A value of None is undefined: left out and counted in `missing`. `bounds` are what a value lies
    between by its nature: SHARE for a share or a verdict. A mean of 0 of 10 verdicts then has the
    interval from 0 to 0.28. With `difference` the values are differences of two such.
    """
    part = (values, clusters)
    return _averaged(part, bounds=bounds, difference=difference, seed=seed, resamples=resamples)


def macro(
    values: Sequence[float | None],
    clusters: Sequence[Hashable],
    classes: Sequence[Hashable],
    *,
    bounds: Bounds | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Estimate:
    """The mean over classes of each class's mean value.

    It is macro-accuracy if values are verdicts and classes are diagnoses. Cases are drawn within
    their class, so that every draw has all classes. If they were drawn from all cases alike, a
    class of one case would be missing from a third of the draws, and the interval could lie beside
    the mean. Raises WorkupError when a case belongs to two classes.
    """
    of: dict[Hashable, Hashable] = {}
    for cluster, label in zip(clusters, classes, strict=True):
        if of.setdefault(cluster, label) != label:
            raise WorkupError(f"one case belongs to two classes: {of[cluster]!r} and {label!r}")
    part = (values, clusters)
    return _averaged(part, classes=of, bounds=bounds, seed=seed, resamples=resamples)


def _averaged(
    part: Clustered,
    *,
    classes: Mapping[Hashable, Hashable] | None = None,
    bounds: Bounds | None = None,
    difference: bool = False,
    seed: int,
    resamples: int,
) -> Estimate:
    """The mean value with its interval by case; with `classes`, that over their means.

    With `difference` the values are differences of values that lie within `bounds`.
    """
    table = CaseTable.of([part], classes)
    cases, seen = table.cases(), table.sums.shape[1]
    missing = sum(value is None for value in part[0])
    mean = float(table.means(np.arange(seen)[None, :])[0]) if seen else math.nan
    within = (
        _draws(seen, seed, resamples)
        if classes is None
        else _draws_within(table.groups, seed, resamples)
    )
    found = _estimate(mean, map(table.means, within), len(part[0]) - missing, missing, seen)
    return _told(found, cases, bounds, difference=difference)


def paired(
    ours: Clustered,
    theirs: Clustered,
    *,
    classes: Mapping[Hashable, Hashable] | None = None,
    bounds: Bounds | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Estimate:
    """The mean difference `ours` − `theirs` over the cases that both have, case by case.

    `n` counts those cases; `missing` those that only one of the two has a defined value for. With
    `classes`, the class of every case, it is the mean over classes of each class's mean difference.
    `bounds` are those of the values, not of their differences.
    """
    (part,), known = gaps([(ours, theirs)])
    found = _averaged(
        part,
        classes=classes or dict.fromkeys(part[1]),
        bounds=bounds,
        difference=True,
        seed=seed,
        resamples=resamples,
    )
    return replace(found, missing=len(known) - found.n)


def gaps(
    pairs: Sequence[tuple[Clustered, Clustered]],
) -> tuple[list[Clustered], set[Hashable]]:
    """(of every pair the differences of the cases that both have, all cases that have a value)."""
    parts: list[Clustered] = []
    known: set[Hashable] = set()
    for ours, theirs in pairs:
        first, second = case_means(*ours), case_means(*theirs)
        found = {case: first[case] - second[case] for case in first if case in second}
        parts.append((list(found.values()), list(found)))
        known |= first.keys() | second.keys()
    return parts, known


@dataclass(frozen=True, slots=True)
class CaseTable:
    """Each part's defined values by case: their sums and their numbers, (parts, cases).

    A case has a value in one part at least. `groups` (cases) are the numbers of their classes, in
    order of first appearance; all 0 without classes.
    """

    sums: Floats
    counts: Floats
    groups: Ints

    @classmethod
    def of(
        cls, parts: Sequence[Clustered], classes: Mapping[Hashable, Hashable] | None
    ) -> CaseTable:
        numbers: dict[Hashable, int] = {}
        kept = [_keep(*part, numbers) for part in parts]
        totals = [_totals(values, ids, len(numbers)) for values, ids in kept]
        shape = (len(parts), len(numbers))
        sums, counts = (np.array([pair[k] for pair in totals]).reshape(shape) for k in (0, 1))
        labels = [None if classes is None else classes[case] for case in numbers]
        order = {label: number for number, label in enumerate(dict.fromkeys(labels))}
        return cls(sums, counts, np.array([order[label] for label in labels], dtype=np.int64))

    def means(self, index: Ints) -> Floats:
        """For every row of `index` (draws, cases): the mean over the parts that have a value."""
        mean = _class_means if self.groups.any() else _plain_means
        parts = [
            mean(sums, counts, self.groups, index)
            for sums, counts in zip(self.sums, self.counts, strict=True)
        ]
        return _mean_of_known(np.array(parts), axis=0)

    def cases(self) -> WeighedCases:
        """What every case adds to the mean: a mean value, and a weight."""
        per_class = np.bincount(self.groups)
        sizes = np.array([np.bincount(self.groups, own) for own in self.counts])
        # Every part weighs the same, in it every class that it has, in that every value.
        equals = (sizes > 0).sum(1, keepdims=True) * max(1, int((sizes > 0).any(1).sum()))
        shares = self.counts / np.maximum(sizes[:, self.groups] * equals, 1)
        weights = shares.sum(0)
        own = np.divide(
            self.sums, self.counts, out=np.full(self.sums.shape, np.nan), where=self.counts > 0
        )
        means = np.nansum(own * shares, 0) / weights
        # Rounding must not push a mean past the values it is of.
        means = np.clip(means, np.fmin.reduce(own, 0), np.fmax.reduce(own, 0))
        several = len(per_class) > 1
        unseen = float((1 / per_class**2).sum() / (1 / per_class).sum()) if several else 0.0
        return WeighedCases(means, weights, unseen)


def _keep(
    values: Sequence[float | None], clusters: Sequence[Hashable], numbers: dict[Hashable, int]
) -> tuple[Floats, Ints]:
    """The defined values, and for each the number of its cluster.

    `numbers` are those of clusters seen before; new ones are added in order of first appearance.
    """
    if len(values) != len(clusters):
        raise WorkupError(f"{len(values)} values in {len(clusters)} clusters")
    pairs = [
        (value, cluster)
        for value, cluster in zip(values, clusters, strict=True)
        if value is not None
    ]
    ids = [numbers.setdefault(cluster, len(numbers)) for _, cluster in pairs]
    return np.array([value for value, _ in pairs], dtype=float), np.array(ids, dtype=np.int64)


def _totals(values: Floats, ids: Ints, count: int) -> tuple[Floats, Floats]:
    """For each of `count` clusters: the sum of its values and their number."""
    sums = np.bincount(ids, weights=values, minlength=count).astype(np.float64)
    return sums, np.bincount(ids, minlength=count).astype(np.float64)


def _plain_means(sums: Floats, counts: Floats, _: Ints, index: Ints) -> Floats:
    """For every row of `index` (draws, clusters): the mean value; NaN where there is none."""
    total, count = sums[index].sum(1), counts[index].sum(1)
    means: Floats = np.divide(total, count, out=np.full(len(index), np.nan), where=count > 0)
    return means


def _class_means(sums: Floats, counts: Floats, groups: Ints, index: Ints) -> Floats:
    """For every row of `index` (draws × clusters): the mean over classes of the class's mean.

    A class without a value in a row is left out there; a row without any is NaN.
    """
    width = int(groups.max()) + 1
    cells = (groups[index] + width * np.arange(len(index))[:, None]).ravel()
    shape = (len(index), width)
    total, count = (
        np.bincount(cells, weights=each[index].ravel(), minlength=len(index) * width).reshape(shape)
        for each in (sums, counts)
    )
    means = np.divide(total, count, out=np.full(shape, np.nan), where=count > 0)
    return _mean_of_known(means, axis=1)


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are defined; None if none is."""
    known = [each for each in values if each is not None]
    return fmean(known) if known else None


def _mean_of_known(values: Floats, axis: int) -> Floats:
    """The mean along `axis` without NaN; NaN where nothing else is."""
    count = (~np.isnan(values)).sum(axis)
    means: Floats = np.divide(
        np.nansum(values, axis), count, out=np.full(count.shape, np.nan), where=count > 0
    )
    return means


def case_means(
    values: Sequence[float | None], clusters: Sequence[Hashable]
) -> dict[Hashable, float]:
    """The mean of every case's defined values; a case that has none is left out."""
    names: dict[Hashable, int] = {}
    kept, ids = _keep(values, clusters, names)
    sums, counts = _totals(kept, ids, len(names))
    return dict(zip(names, (sums / counts).tolist(), strict=True))


def _draws(count: int, seed: int, resamples: int) -> Iterator[Ints]:
    """`resamples` rows of `count` cluster numbers drawn with replacement, in chunks for memory."""
    rng = np.random.default_rng(seed)
    step = max(1, _CHUNK // max(1, count))
    for start in range(0, resamples, step):
        yield rng.integers(count, size=(min(step, resamples - start), count))


def _draws_within(groups: Ints, seed: int, resamples: int) -> Iterator[Ints]:
    """As `_draws`, but each place is drawn from the clusters of its own group.

    So every group keeps its size.
    """
    order = np.argsort(groups, kind="stable")
    sizes = np.bincount(groups)
    starts = np.cumsum(sizes) - sizes
    rng = np.random.default_rng(seed)
    step = max(1, _CHUNK // max(1, len(groups)))
    for start in range(0, resamples, step):
        shares = rng.random((min(step, resamples - start), len(groups)))
        yield order[starts[groups] + (shares * sizes[groups]).astype(np.int64)]


def _estimate(
    mean: float, draws: Iterator[Floats], n: int, missing: int, clusters: int
) -> Estimate:
    if clusters < 2:
        return Estimate(mean, math.nan, math.nan, n, missing)
    means = np.concatenate(list(draws))
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(mean, float(low), float(high), n, missing, float(means.std(ddof=1)))


# where the bootstrap cannot be relied on ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WeighedCases:
    """The mean value of every case, and its weight in the mean over cases; the weights sum to 1.

    `unseen` is the share of the mean's variance that draws within classes miss: 1/n of that of a
    class of n cases, which is all of it for a single case. Values are taken to vary alike in all
    classes, so that a class's variance is in proportion to 1/n. It is 0 without classes.
    """

    means: Floats
    weights: Floats
    unseen: float

    @property
    def number(self) -> float:
        """How many cases of equal weight say as much (Kish 1965); all, if the weights are equal."""
        return float(1 / (self.weights**2).sum())

    def share(self, values: Floats) -> float:
        """The weighted mean of one value in [0, 1] per case, at most 1 after rounding too."""
        return min(float(self.weights @ values), 1.0)

    def unlike(self, value: float) -> int:
        """How many cases differ from a value that others have; all of them where none has it."""
        alike = int((self.means == value).sum())
        return len(self.means) - alike if alike else len(self.means) + FEW


def negligible(mean: float) -> float:
    """How far equal figures lie from each other, and their standard error from 0, by rounding."""
    return ROUNDING * max(1.0, abs(mean))


def _told(
    found: Estimate, cases: WeighedCases, bounds: Bounds | None, *, difference: bool = False
) -> Estimate:
    """`found`, with a score interval if too few cases show how values spread."""
    if not len(cases.means):
        return found
    equal = float(np.ptp(cases.means)) <= negligible(found.mean)
    untold = equal or cases.unseen == 1
    if bounds is None or not within(cases.means, bounds, difference):
        return replace(found, low=math.nan, high=math.nan, sd=math.nan) if untold else found
    small = cases.unseen > 1 / FEW
    if not (equal or small or few(cases, bounds, difference=difference)):
        return found
    low, high = score(cases, bounds, difference=difference)
    return replace(found, low=low, high=high, sd=math.nan if untold else error_of(low, high))


def error_of(low: float, high: float) -> float:
    """The standard error that a normal interval with these ends has."""
    return (high - low) / 2 / quantile((1 + LEVEL) / 2, math.inf)


def few(cases: WeighedCases, bounds: Bounds, *, difference: bool = False) -> bool:
    """Whether fewer than FEW cases differ from all the others, which share one extreme value."""
    width = bounds[1] - bounds[0]
    extremes = (-width, 0.0, width) if difference else bounds
    return min(map(cases.unlike, extremes)) < FEW


def score(cases: WeighedCases, bounds: Bounds, *, difference: bool = False) -> Bounds:
    """The score interval of the mean over cases; with `difference`, of values within `bounds`."""
    width = bounds[1] - bounds[0]
    scaled = replace(
        cases, means=cases.means / width if difference else (cases.means - bounds[0]) / width
    )
    low, high = (_score_of_gap if difference else _score)(scaled)
    first = 0.0 if difference else bounds[0]
    return first + width * low, first + width * high


def within(means: Floats, bounds: Bounds, difference: bool) -> bool:
    """Whether all of them are what values within `bounds`, or their differences, can be."""
    low, high = (bounds[0] - bounds[1], bounds[1] - bounds[0]) if difference else bounds
    return bool(means.min() >= low and means.max() <= high)


def _score(cases: WeighedCases) -> Bounds:
    """Wilson's interval of a mean of values from 0 to 1.

    Of all values in [0, 1] with the same mean, verdicts vary most. So the interval is wide enough.
    """
    return wilson(cases.share(cases.means), cases.number)


def _score_of_gap(cases: WeighedCases) -> Bounds:
    """The interval of a mean of differences from −1 to 1.

    The mean is u − v: u is the mean of the positive parts of the differences, v the mean of their
    negative parts. With verdicts u and v are the shares of the two kinds of discordant pairs. The
    limits of u and v (Wilson) are combined by their distances from u and v, which count as
    correlated as two shares of one total: r = −√(u v / ((1 − u) (1 − v))).
    """
    parts = [cases.share(np.clip(sign * cases.means, 0, None)) for sign in (1, -1)]
    (u, v), n = parts, cases.number
    (low_u, high_u), (low_v, high_v) = wilson(u, n), wilson(v, n)
    r = -math.sqrt(u * v / ((1 - u) * (1 - v))) if max(u, v) < 1 else 0.0

    def reach(one: float, other: float) -> float:
        return math.sqrt(one**2 + other**2 - 2 * r * one * other)

    low = u - v - reach(u - low_u, high_v - v)
    high = u - v + reach(high_u - u, v - low_v)
    return max(low, -1.0), min(high, 1.0)


def wilson(share: float, n: float, z: float = NormalDist().inv_cdf((1 + LEVEL) / 2)) -> Bounds:
    """Wilson's score interval for a share of `n` > 0 trials, at LEVEL unless `z` is another.

    Neither number needs to be an integer. Source: Wilson 1927, "Probable inference, the law of
    succession, and statistical inference".
    """
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    # Rounding must not push an end past the share, nor out of [0, 1].
    return max(0.0, min(centre - half, share)), min(1.0, max(centre + half, share))
