"""How sure a figure of several training seeds is: one 95 % interval over patients and seeds.

Every seed s = 1 … S has a figure m_s, its mean over the patients that it met. Both seeds and
patients are a sample: another training and other patients would give another mean m̄ = Σ_s m_s / S.
What both do to it is

    V = s² / S + C,   s² = Σ_s (m_s − m̄)² / (S − 1),   C = mean over s ≠ t of cov(m_s, m_t).

cov(m_s, m_t) comes from the patients that both seeds met. It is what the same patients do to every
seed, so no number of seeds takes it away. This is the form of Obuchowski & Rockette (1995) for
readers and patients; here seeds are the readers. Where every patient has a value in every seed,
it equals (MS_seed + MS_patient − MS_residual) / (S P) of the crossed analysis of variance. Where
values are undefined it still has no bias, since nothing in it asks for equal sizes. C below 0
counts as 0.

The interval is Student's, m̄ ± t √V. The degrees of freedom weigh those of seeds and of patients by
the share f = s² / (S V) that seeds have in V:

    1 / df = f / (S − 1) + (1 − f) / (P − 1).

Satterthwaite's and Hillis's (2007) approximations square the shares. With three seeds f is a rough
estimate, and squared it gives intervals that cover 92 % where they promise 95; weighed as here they
cover 94 to 96.5 % (`tests/test_crossed.py`). For a share in [0, 1] the interval is Wilson's with V
and t in the places of its variance and quantile, so that it stays within the bounds.

With one seed only the patients vary: V is the variance of m_1 over patients, df is P − 1, and the
interval says nothing about another seed.

All of this takes it that the figures of seeds are drawn from about a normal distribution. Those of
a training that sometimes collapses are not: where one run of ten ends at 0, three seeds mostly show
no such run, and their interval covers the mean over all seeds in 3 of 10 trials.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import chain, pairwise
from statistics import fmean
from typing import Any, Self

import numpy as np

from workup.core.statistics import (
    LEVEL,
    Bounds,
    CaseTable,
    Clustered,
    Estimate,
    Floats,
    WeighedCases,
    case_means,
    error_of,
    few,
    gaps,
    negligible,
    quantile,
    reach,
    score,
    wilson,
    within,
)
from workup.core.text import several

Parts = Mapping[str, Clustered]  # training seed → its values, and the patient of each
MOST_SEEDS = 10_000  # `Crossed.seeds_for` looks no further


@dataclass(frozen=True, slots=True)
class Components:
    """What one value owes to its seed, to its patient, and to neither: variances.

    They are unbiased estimates, so one may be below 0. NaN where one seed cannot part them.
    """

    seed: float
    patient: float
    residual: float


@dataclass(frozen=True, slots=True)
class Crossed(Estimate):
    """A mean over `seeds` training seeds with its 95 % interval; `n` counts patients.

    `missing` counts patients that have no value in all seeds together; of `by_seed`, the seeds
    without a figure. `sd` is the standard error √V, `df` the degrees of freedom. `spread` is s²,
    the variance of one seed's figure over seeds, NaN for one seed; `shared` is C, what patients
    leave of V with any number of seeds. Of a mean that no patient is behind (`by_seed`), `n` counts
    seeds and `patients` is 0. `sd` and `df` are NaN where there is too little to tell, or all
    figures are equal. Then `low` and `high` are NaN too, unless the values have bounds.
    """

    df: float = math.nan
    seeds: int = 0
    patients: int = 0
    spread: float = math.nan
    shared: float = math.nan
    components: Components = Components(math.nan, math.nan, math.nan)

    @property
    def se(self) -> float:
        """The standard error, √V."""
        return self.sd

    @property
    def covers_seeds(self) -> bool:
        """Whether the interval speaks of another seed too, and not of patients alone."""
        return self.seeds > 1

    @property
    def constant(self) -> bool:
        """Whether several seeds have the same figure, and patients leave no doubt of it."""
        if not self.covers_seeds:
            return False
        return math.sqrt(self.spread / self.seeds + self.shared) <= negligible(self.mean)

    @property
    def freedom(self) -> float:
        return math.inf if math.isnan(self.df) else self.df

    @property
    def narrowed(self) -> float:
        """How long the arms of a 90 % interval are, as a share of this one's."""
        return quantile(LEVEL, self.freedom) / quantile((1 + LEVEL) / 2, self.freedom)

    def seeds_for(self, difference: float, level: float = LEVEL) -> int | None:
        """How many seeds in all, at least two, find `difference` with power .8 (`reach`).

        None where these patients are too few for any number of seeds, and where one seed does not
        tell how much seeds vary.
        """
        if not (self.covers_seeds and self.se > 0):
            return None

        def enough(seeds: int) -> bool:
            variance = self.spread / seeds + self.shared
            share = self.spread / seeds / variance
            df = _freedom([(share, seeds)], self.patients)
            return reach(df, level=level) * math.sqrt(variance) <= difference

        low, high = 1, 2
        while not enough(high):
            low, high = high, 2 * high
            if low > MOST_SEEDS:
                return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high

    def patients_for(self, difference: float, level: float = LEVEL) -> int | None:
        """How many patients in all, with these seeds, find `difference` with power .8 (`reach`).

        Each plays once with every seed. None where these seeds are too few for any number of
        patients, and where one seed, or no patient, does not tell.

        Example: 8 seeds met 500 patients each, and a value owes .11 to neither seed nor patient.
        That leaves a standard error of (.11 / 4,000)^½ = .0052. About 1,900 patients leave .0027.
        """
        parts = self.components
        if not (self.covers_seeds and self.se > 0 and self.patients and parts.residual > 0):
            return None
        seed, patient = max(parts.seed, 0.0), max(parts.patient, 0.0)
        most = difference / reach(self.freedom, level=level)
        left = most**2 - seed / self.seeds
        if left <= 0:
            return None
        return math.ceil((patient + parts.residual / self.seeds) / left)

    def as_json(self) -> dict[str, Any]:
        """That of an estimate, and the fields of this class; NaN as null."""
        own = {name: getattr(self, name) for name in ("df", "spread", "shared")}
        parts = {name: null(value) for name, value in asdict(self.components).items()}
        return {
            **Estimate.as_json(self),
            **{name: null(value) for name, value in own.items()},
            **{"seeds": self.seeds, "patients": self.patients, "components": parts},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        plain = Estimate.from_json(value)
        numbers = (plain.mean, plain.low, plain.high, plain.n, plain.missing, plain.sd)
        df, spread, shared = (_nan(value[name]) for name in ("df", "spread", "shared"))
        parts = Components(**{name: _nan(each) for name, each in value["components"].items()})
        return cls(*numbers, df, value["seeds"], value["patients"], spread, shared, parts)


def crossed(
    parts: Parts,
    *,
    classes: Mapping[Hashable, Hashable] | None = None,
    bounds: Bounds | None = None,
) -> Crossed:
    """The mean over seeds of each seed's mean value, with its interval over patients and seeds.

    A value of None is undefined and left out; so is a seed without a value. `classes` and `bounds`
    are as in `statistics.macro` and `statistics.interval`.
    """
    side = list(parts.values())
    everyone = {case for _, clusters in side for case in clusters}
    return _bounded(_crossed([side], classes, everyone), _cases(side, classes), bounds)


def crossed_difference(
    ours: Parts,
    theirs: Parts,
    *,
    classes: Mapping[Hashable, Hashable] | None = None,
    bounds: Bounds | None = None,
) -> Crossed:
    """The mean difference `ours` − `theirs`, with its interval over patients and seeds.

    It is the mean, over the seeds that both have, of each seed's mean difference over the patients
    that both have, as in `statistics.paired`. Sides without a common seed are two samples of
    seeds that met the same patients: s² / S is that of the one plus that of the other, and C
    subtracts what patients do to both; `seeds` is the smaller of their numbers. `bounds` are those
    of the values, not of their differences. Sides with common seeds whose patients are all
    different are compared by seed; patients of both sides vary by themselves.
    """
    shared = [seed for seed in ours if seed in theirs]
    if shared:
        pairs = [(ours[seed], theirs[seed]) for seed in shared]
        side, known = gaps(pairs)
        if all(set(one[1]).isdisjoint(other[1]) for one, other in pairs):
            return _apart(pairs, classes, bounds)
        sides, paired = [side], side
    else:
        means = [[case_means(*part) for part in side.values()] for side in (ours, theirs)]
        one, other = (_listed(chain.from_iterable(each.items() for each in side)) for side in means)
        paired, known = gaps([(one, other)])
        both = set(paired[0][1])
        sides = [
            [_listed((case, mean) for case, mean in each.items() if case in both) for each in side]
            for side in means
        ]
    found = _crossed(sides, classes, known)
    return _bounded(found, _cases(paired, classes), bounds, difference=True)


def _apart(
    pairs: Sequence[tuple[Clustered, Clustered]],
    classes: Mapping[Hashable, Hashable] | None,
    bounds: Bounds | None,
) -> Crossed:
    """The difference of sides with different patients, by `_strata`; it ends where it has to."""
    kinds: dict[Hashable, Hashable] = {
        (place, case): classes[case] if classes else None
        for pair in pairs
        for place, (_, cases) in enumerate(pair)
        for case in cases
    }
    side = [_strata(pair, kinds) for pair in pairs]
    found = _crossed([side], kinds if classes else None, set(kinds))
    if bounds is None:
        return found
    width = bounds[1] - bounds[0]
    low, high = (float(np.clip(end, -width, width)) for end in (found.low, found.high))
    return replace(found, low=low, high=high)


def _strata(pair: tuple[Clustered, Clustered], kinds: Mapping[Hashable, Hashable]) -> Clustered:
    """One seed's values whose mean is that of one side less that of the other, by class.

    With P patients in a class, P₁ of them on our side, a patient's mean v there counts as
    d + (v − m₁)·P / P₁, where m₁ is our mean and d = m₁ − m₂; on the other side as
    d − (v − m₂)·P / P₂. So their mean is d, and its variance over patients is the sum of both
    sides' own. A class that one side lacks is left out.
    """
    found: dict[Hashable, tuple[dict[Hashable, float], ...]] = {}
    for place, side in enumerate(pair):
        for case, mean in case_means(*side).items():
            found.setdefault(kinds[place, case], ({}, {}))[place][case] = mean
    whole = [means for means in found.values() if all(means)]
    return _listed(chain.from_iterable(map(_stratum, whole)))


def _stratum(means: Sequence[Mapping[Hashable, float]]) -> Iterator[tuple[Hashable, float]]:
    """The values of one class, as `_strata` has them."""
    first, second = (fmean(each.values()) for each in means)
    everyone = sum(map(len, means))
    for place, sign, mean, each in zip((0, 1), (1, -1), (first, second), means, strict=True):
        for case, value in each.items():
            yield (place, case), first - second + sign * (value - mean) * everyone / len(each)


def _listed(means: Iterable[tuple[Hashable, float]]) -> Clustered:
    """(values, their patients) of (patient, value)."""
    pairs = list(means)
    return [mean for _, mean in pairs], [case for case, _ in pairs]


def _cases(
    parts: Sequence[Clustered], classes: Mapping[Hashable, Hashable] | None
) -> WeighedCases | None:
    """None without a value."""
    table = CaseTable.of(parts, classes)
    return table.cases() if len(table.groups) else None


def by_seed(figures: Sequence[float | None]) -> Crossed:
    """The mean of one figure per seed, with Student's interval (S − 1 degrees of freedom).

    For figures that no patient is behind, such as `area`. None is a seed without one. There is no
    interval for fewer than two figures, or if all are equal.
    """
    known = np.array([value for value in figures if value is not None], dtype=float)
    n, missing = len(known), len(figures) - len(known)
    mean = float(known.mean()) if n else math.nan
    spread = float(known.var(ddof=1)) if n > 1 else math.nan
    parts = Components(spread, math.nan, math.nan)
    if n < 2 or math.sqrt(spread / n) <= negligible(mean):
        nothing = (mean, math.nan, math.nan, n, missing, math.nan, math.nan)
        return Crossed(*nothing, n, 0, spread, 0.0, parts)
    se = math.sqrt(spread / n)
    half = quantile((1 + LEVEL) / 2, n - 1) * se
    return Crossed(mean, mean - half, mean + half, n, missing, se, n - 1, n, 0, spread, 0.0, parts)


def area(curve: Sequence[float | None]) -> float | None:
    """The mean height of a training curve, one value per update; None without a value.

    It tells how fast was learned, where two policies end alike. Updates without a value are left
    out.
    """
    known = [value for value in curve if value is not None]
    return sum(known) / len(known) if known else None


def area_difference(
    ours: Mapping[str, Sequence[float | None]], theirs: Mapping[str, Sequence[float | None]]
) -> Crossed:
    """The difference of areas, paired by the seeds that both have, with Student's interval.

    Of each seed only the updates count that have a value on both sides: later ones are higher.
    """
    differences: list[float | None] = []
    for seed in ours:
        if seed in theirs:
            both = zip(ours[seed], theirs[seed], strict=False)
            differences.append(area([a - b for a, b in both if a is not None and b is not None]))
    return by_seed(differences)


# the variance -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Seeds:
    """The seeds of one side: s², the mean variance of a figure over patients, and C.

    `own_size` and `shared_size` are what a variance of 1 per value would make of the latter two.
    """

    number: int
    spread: float
    own: float
    shared: float
    own_size: float
    shared_size: float

    @classmethod
    def of(cls, figures: Floats, covariances: Floats, sizes: Floats) -> _Seeds:
        """`covariances` and `sizes` are those of every two seeds, (seeds, seeds)."""
        count = len(figures)
        own, own_size = (float(np.trace(each)) / count for each in (covariances, sizes))
        if count == 1:  # what this seed did, it did once: nothing tells it from the patients
            return cls(1, math.nan, own, own, own_size, own_size)
        pairs = count * (count - 1)
        shared, shared_size = (
            float(each.sum() - np.trace(each)) / pairs for each in (covariances, sizes)
        )
        return cls(count, float(figures.var(ddof=1)), own, shared, own_size, shared_size)

    @property
    def variance(self) -> float:
        """s² / S, of the mean."""
        return 0.0 if self.number == 1 else self.spread / self.number

    @property
    def components(self) -> Floats:
        """Of seed, patient and residual."""
        if self.number == 1:
            return np.full(3, math.nan)
        seed = self.spread - (self.own - self.shared)
        patient = self.shared / self.shared_size if self.shared_size else math.nan
        return np.array([seed, patient, self.own / self.own_size - patient])


def _crossed(
    sides: Sequence[Sequence[Clustered]],
    classes: Mapping[Hashable, Hashable] | None,
    everyone: set[Hashable],
) -> Crossed:
    """`of_table` of the seeds that have a value; patients of `everyone` without one are missing."""
    known = [[part for part in side if any(v is not None for v in part[0])] for side in sides]
    if not all(known):
        return Crossed(math.nan, math.nan, math.nan, 0, len(everyone))
    table = CaseTable.of(list(chain.from_iterable(known)), classes)
    return of_table(table, [len(side) for side in known], len(everyone) - len(table.groups))


def of_table(table: CaseTable, numbers: Sequence[int], missing: int = 0) -> Crossed:
    """Of one side the mean; of two sides that of the first less that of the second.

    The rows of `table` are seeds, each with a value; `numbers` says how many belong to each side.
    """
    figures, influences, weights = _influences(table)
    patients = len(table.groups)
    covariances, sizes = influences @ influences.T * _unseen(table), weights @ weights.T
    ends = np.cumsum([0, *numbers])
    cuts = [slice(start, end) for start, end in pairwise(ends)]
    seeds = [_Seeds.of(figures[cut], covariances[cut, cut], sizes[cut, cut]) for cut in cuts]
    shared = sum(each.shared for each in seeds)
    components = sum((each.components for each in seeds), np.zeros(3))
    mean = float(figures[cuts[0]].mean())
    if len(cuts) > 1:
        mean -= float(figures[cuts[1]].mean())
        both, size = (float(each[cuts[0], cuts[1]].mean()) for each in (covariances, sizes))
        shared -= 2 * both
        components[1] -= 2 * both / size  # what patients do to both sides
    shared = max(shared, 0.0)
    count = min(each.number for each in seeds)
    rest = (count, patients, sum(each.spread for each in seeds), shared)
    parts = Components(*map(float, components))
    variance = sum(each.variance for each in seeds) + shared
    unsure = (mean, math.nan, math.nan, patients, missing, math.nan, math.nan)
    nothing = Crossed(*unsure, *rest, parts)
    if not math.sqrt(variance) > negligible(mean):  # NaN: patients do not tell
        return nothing
    df = _freedom([(each.variance / variance, each.number) for each in seeds], patients)
    se = math.sqrt(variance)
    half = quantile((1 + LEVEL) / 2, df) * se
    return replace(nothing, low=mean - half, high=mean + half, sd=se, df=df)


def _influences(table: CaseTable) -> tuple[Floats, Floats, Floats]:
    """(figures (parts), what each patient adds to each (parts, patients), the weights of that).

    A figure is the mean over classes of the class's mean; the deviations from these, weighed, are
    what a patient adds.
    """
    width = int(table.groups.max()) + 1
    totals, sizes = (
        np.array([np.bincount(table.groups, row, minlength=width) for row in rows])
        for rows in (table.sums, table.counts)
    )
    means = np.divide(totals, sizes, out=np.zeros(totals.shape), where=sizes > 0)
    classes = (sizes > 0).sum(1, keepdims=True)
    scale = np.maximum(sizes, 1)[:, table.groups] * classes
    added = (table.sums - table.counts * means[:, table.groups]) / scale
    return means.sum(1) / classes[:, 0], added, table.counts / scale


def _unseen(table: CaseTable) -> float:
    """What makes up for deviations from a mean of the same values; NaN where patients are alone."""
    classes, patients = int(table.groups.max()) + 1, len(table.groups)
    unseen = 1 / patients if classes == 1 else table.cases().unseen
    return 1 / (1 - unseen) if unseen < 1 else math.nan


def _freedom(shares: Sequence[tuple[float, int]], patients: int) -> float:
    """Of (the share of V that a side's seeds have, their number) the degrees of freedom."""
    left = 1 - sum(share for share, _ in shares)
    of_seeds = sum(share / (number - 1) for share, number in shares if number > 1)
    return 1 / (of_seeds + left / max(1, patients - 1))


def _bounded(
    found: Crossed, cases: WeighedCases | None, bounds: Bounds | None, *, difference: bool = False
) -> Crossed:
    """`found`, with an interval that a share can have.

    That of a level is Wilson's; that of a difference ends where differences do. Both also hold the
    score interval by patient where too few patients show how values spread.
    """
    if cases is None or bounds is None or not within(cases.means, bounds, difference):
        return found
    low, high, sd = found.low, found.high, found.sd
    first, width = bounds[0], bounds[1] - bounds[0]
    level = (found.mean - first) / width
    if not difference and found.se > 0 and 0 < level < 1:
        size = level * (1 - level) / (found.se / width) ** 2
        ends = wilson(level, size, quantile((1 + LEVEL) / 2, found.df))
        low, high = (first + width * end for end in ends)
    if math.isnan(low) or few(cases, bounds, difference=difference):
        least, most = score(cases, bounds, difference=difference)
        low, high = float(np.fmin(low, least)), float(np.fmax(high, most))
        sd = max(sd, error_of(least, most)) if sd > 0 else sd
    if difference:
        low, high = max(low, -width), min(high, width)
    return replace(found, low=low, high=high, sd=sd)


def null(value: float) -> float | None:
    """None for NaN, as in JSON."""
    return None if math.isnan(value) else value


def _nan(value: float | None) -> float:
    return math.nan if value is None else value


# what a claim gets --------------------------------------------------------------------------------


MANY = 1_000
"""More seeds than these are not counted: nobody adds so many, and the estimate is rough."""
MANY_PATIENTS = 20_000
"""Nor are more patients than these."""


class Decision(StrEnum):
    """What a directional claim comes to."""

    HELD = "held"
    REFUTED = "refuted"
    EQUAL = "equal within the margin"
    SMALLER = "smaller than in the paper"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision; `within` is whether the difference is also shown to be smaller than the margin.

    `more` is about how many more seeds an undecided claim needs; None where it is decided, and
    where seeds do not tell. `patients` is whether it needs more patients, since no number of seeds
    would do with these. `others` is about how many more patients do with these seeds; None where no
    number would, and where it is above MANY_PATIENTS.
    """

    decision: Decision
    within: bool
    more: int | None = None
    patients: bool = False
    others: int | None = None

    @property
    def directed(self) -> bool:
        """Whether the difference has a direction."""
        return self.decision in (Decision.HELD, Decision.REFUTED)

    def __str__(self) -> str:
        """ "held", "refuted, but within the margin", "undecided, about 5 more seeds" """
        if self.patients:
            return f"{self.decision}, needs more patients"
        if self.more is not None:
            about = "more than" if self.more > MANY else "about"
            return f"{self.decision}, {about} {several(min(self.more, MANY), 'more seed')}"
        but = ", but within the margin" if self.within and self.directed else ""
        return f"{self.decision}{but}"

    @property
    def whole(self) -> str:
        """Also with patients: "undecided, about 5 more seeds or 700 more patients"."""
        if self.others is None:
            return str(self)
        if self.more is None:
            return f"{self}, about {self.others:,}"
        return f"{self} or {several(self.others, 'more patient')}"


def decide(found: Crossed, margin: float, sign: int = 1, reported: float | None = None) -> Decided:
    """What the difference `found` says of the claim that it is above 0 (`sign` 1) or below (−1).

    Held: the 95 % interval is on the claim's side of 0. Refuted: it is on the other side. Equal
    within the margin: the 90 % interval lies within ± `margin`, which is two one-sided tests at 5 %
    each (Schuirmann 1987). A direction comes first: a difference that is clear and small is held,
    or refuted, with its size, which says more than that it is small. Smaller than in the paper: the
    90 % interval ends below `reported`, the paper's difference on the claim's side (≥ 0), which is
    one of these tests; its direction stays open. Else it is undecided; it needs about as many more
    seeds, or more patients with these seeds, as give one of these verdicts with power .8, if the
    difference is as found. Differences that are all 0 are equal. Those that are all alike in
    several seeds have no interval: they have a direction above the margin, and are equal within it.
    What has no interval otherwise is undecided.
    """
    if math.isnan(found.low):
        return _without_interval(found, margin, sign)
    low, high = (
        found.mean + found.narrowed * (end - found.mean) for end in (found.low, found.high)
    )
    within_margin = -margin < low and high < margin
    if found.clear:
        return Decided(_direction(found.low, sign), within_margin)
    if within_margin:
        return Decided(Decision.EQUAL, True)
    if reported is not None and (high if sign > 0 else -low) < reported:
        return Decided(Decision.SMALLER, False)
    if not (found.covers_seeds and found.se > 0):
        return Decided(Decision.UNDECIDED, False)
    size = abs(found.mean)
    left = [margin - size, *([] if reported is None else [reported - sign * found.mean])]
    wanted = [(size, LEVEL), *((each, 2 * LEVEL - 1) for each in left)]
    needed = [found.seeds_for(each, level) for each, level in wanted if each > 0]
    seeds = min((each for each in needed if each is not None), default=None)
    more = None if seeds is None else max(1, seeds - found.seeds)
    met = [found.patients_for(each, level) for each, level in wanted if each > 0]
    patients = min((each for each in met if each is not None), default=math.inf)
    others = None
    if patients < MANY_PATIENTS:
        others = int(float(f"{max(1, patients - found.patients):.1e}"))  # two digits
    return Decided(Decision.UNDECIDED, False, more, bool(needed) and seeds is None, others)


def _without_interval(found: Crossed, margin: float, sign: int) -> Decided:
    size = abs(found.mean)
    beyond = size > margin + negligible(margin)
    if found.constant and beyond:
        return Decided(_direction(found.mean, sign), False)
    equal = (size == 0 and found.n > 1) or (found.constant and not beyond)
    return Decided(Decision.EQUAL if equal else Decision.UNDECIDED, equal)


def _direction(difference: float, sign: int) -> Decision:
    return Decision.HELD if (difference > 0) == (sign > 0) else Decision.REFUTED


def wrong_by_chance(claims: int) -> float:
    """How many of so many claims are expected to be held by chance, at most, if nothing differed.

    As many are expected to be refuted: of 40 claims one each, since each direction has 2.5 %.
    """
    return claims * (1 - LEVEL) / 2


def adjusted(chances: Sequence[float]) -> list[float]:
    """p values adjusted for their number (Benjamini & Hochberg 1995); NaN stays and does not count.

    Of the differences with an adjusted p of at most .05, no more than 5 % are expected to be none.
    """
    from scipy.stats import false_discovery_control

    values = np.array(chances, dtype=float)
    known = ~np.isnan(values)
    if known.any():
        values[known] = false_discovery_control(values[known])
    found: list[float] = values.tolist()
    return found
