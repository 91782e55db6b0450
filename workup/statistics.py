"""How sure a figure is: percentile bootstrap intervals that resample whole cases.

Several episodes of one case are not independent, so the unit that is drawn with replacement is the case, with all its
episodes (Efron & Tibshirani 1993, ch. 13; Davison & Hinkley 1997, §3.8). Everything is deterministic by `seed`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workup.errors import WorkupError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
RESAMPLES = 2_000
LEVEL = 0.95
_CHUNK = 2**14  # draws held in memory at a time


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % interval, from `n` values; `missing` more were undefined and left out. `sd` is the standard
    deviation of the mean over the bootstrap's draws, NaN where there was no bootstrap.

    `mean` is NaN where no value is left, `low` and `high` where fewer than two cases are. Where all values are equal the
    interval has no width, which is a limit of the bootstrap, not certainty.
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

    def as_json(self) -> dict[str, float | int | None]:
        """{"mean", "low", "high", "n", "missing"}, with null for NaN, and "sd" where there was a bootstrap."""
        numbers = {name: getattr(self, name) for name in ("mean", "low", "high")}
        plain = {name: None if math.isnan(value) else value for name, value in numbers.items()}
        return plain | {"n": self.n, "missing": self.missing} | ({} if math.isnan(self.sd) else {"sd": self.sd})

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Estimate:
        mean, low, high = (math.nan if value[name] is None else float(value[name]) for name in ("mean", "low", "high"))
        return cls(mean, low, high, value["n"], value.get("missing", 0), value.get("sd", math.nan))


def interval(
    values: Sequence[float | None], clusters: Sequence[Hashable], *, seed: int = 0, resamples: int = RESAMPLES
) -> Estimate:
    """The mean of `values` and its interval, drawing the cases named by `clusters` (same length) with replacement.

    A value of None is undefined: left out and counted in `missing`.
    """
    kept, ids = _keep(values, clusters)
    sums, counts = _totals(kept, ids)
    draws = (sums[index].sum(1) / counts[index].sum(1) for index in _draws(len(sums), seed, resamples))
    return _estimate(_ratio(sums.sum(), counts.sum()), draws, len(kept), len(values) - len(kept), len(sums))


def macro(
    values: Sequence[float | None],
    clusters: Sequence[Hashable],
    classes: Sequence[Hashable],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Estimate:
    """The mean over classes of each class's mean value: macro-accuracy, if values are verdicts and classes diagnoses.

    Cases are drawn as in `interval`; a class that a draw lacks is left out of that draw's mean. Raises WorkupError when a
    case belongs to two classes.
    """
    kept, ids = _keep(values, clusters)
    sums, counts = _totals(kept, ids)
    groups = _classes(values, ids, classes)
    everyone = np.arange(len(sums))[None, :]
    mean = float(_class_means(sums, counts, groups, everyone)[0]) if len(sums) else math.nan
    draws = (_class_means(sums, counts, groups, index) for index in _draws(len(sums), seed, resamples))
    return _estimate(mean, draws, len(kept), len(values) - len(kept), len(sums))


def paired(
    values: Sequence[float | None],
    clusters: Sequence[Hashable],
    others: Sequence[float | None],
    other_clusters: Sequence[Hashable],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Estimate:
    """The mean difference `values` − `others` over the cases that both have, case by case.

    `n` counts those cases; `missing` those that only one of the two has a defined value for.
    """
    gaps, missing = case_differences(values, clusters, others, other_clusters)
    estimate = interval(list(gaps.values()), list(gaps), seed=seed, resamples=resamples)
    return replace(estimate, missing=missing)


def case_differences(
    values: Sequence[float | None],
    clusters: Sequence[Hashable],
    others: Sequence[float | None],
    other_clusters: Sequence[Hashable],
) -> tuple[dict[Hashable, float], int]:
    """Mean of `values` − mean of `others` for every case that both have, and how many cases only one of them has."""
    ours, theirs = _case_means(values, clusters), _case_means(others, other_clusters)
    common = [case for case in ours if case in theirs]
    return {case: ours[case] - theirs[case] for case in common}, len(set(ours) | set(theirs)) - len(common)


def _keep(values: Sequence[float | None], clusters: Sequence[Hashable]) -> tuple[Floats, Ints]:
    """The defined values, and for each the number of its cluster in order of first appearance."""
    if len(values) != len(clusters):
        raise WorkupError(f"{len(values)} values in {len(clusters)} clusters")
    numbers: dict[Hashable, int] = {}
    pairs = [(value, cluster) for value, cluster in zip(values, clusters, strict=True) if value is not None]
    ids = [numbers.setdefault(cluster, len(numbers)) for _, cluster in pairs]
    return np.array([value for value, _ in pairs], dtype=float), np.array(ids, dtype=np.int64)


def _totals(values: Floats, ids: Ints) -> tuple[Floats, Floats]:
    """Per cluster: the sum of its values and their number."""
    return np.bincount(ids, weights=values).astype(np.float64), np.bincount(ids).astype(np.float64)


def _classes(values: Sequence[float | None], ids: Ints, classes: Sequence[Hashable]) -> Ints:
    """The class of every cluster, numbered in order of first appearance."""
    kept = [label for value, label in zip(values, classes, strict=True) if value is not None]
    found: dict[int, Hashable] = {}
    for cluster, label in zip(ids.tolist(), kept, strict=True):
        if found.setdefault(cluster, label) != label:
            raise WorkupError(f"one case belongs to two classes: {found[cluster]!r} and {label!r}")
    numbers = {label: number for number, label in enumerate(dict.fromkeys(found.values()))}
    return np.array([numbers[label] for label in found.values()], dtype=np.int64)


def _class_means(sums: Floats, counts: Floats, groups: Ints, index: Ints) -> Floats:
    """For every row of `index` (draws × clusters): the mean over classes of the class's mean."""
    width = int(groups.max()) + 1
    cells = (groups[index] + width * np.arange(len(index))[:, None]).ravel()
    shape = (len(index), width)
    total = np.bincount(cells, weights=sums[index].ravel(), minlength=len(index) * width).reshape(shape)
    count = np.bincount(cells, weights=counts[index].ravel(), minlength=len(index) * width).reshape(shape)
    means: Floats = np.nanmean(np.divide(total, count, out=np.full(shape, np.nan), where=count > 0), axis=1)
    return means


def _case_means(values: Sequence[float | None], clusters: Sequence[Hashable]) -> dict[Hashable, float]:
    sums, counts = _totals(*_keep(values, clusters))
    names = dict.fromkeys(cluster for value, cluster in zip(values, clusters, strict=True) if value is not None)
    return dict(zip(names, (sums / counts).tolist(), strict=True))


def _draws(count: int, seed: int, resamples: int) -> Iterator[Ints]:
    """`resamples` rows of `count` cluster numbers drawn with replacement, in chunks that fit memory."""
    rng = np.random.default_rng(seed)
    step = max(1, _CHUNK // max(1, count))
    for start in range(0, resamples, step):
        yield rng.integers(count, size=(min(step, resamples - start), count))


def _ratio(total: float, count: float) -> float:
    return float(total / count) if count else math.nan


def _estimate(mean: float, draws: Iterator[Floats], n: int, missing: int, clusters: int) -> Estimate:
    if clusters < 2:
        return Estimate(mean, math.nan, math.nan, n, missing)
    means = np.concatenate(list(draws))
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(mean, float(low), float(high), n, missing, float(means.std(ddof=1)))
