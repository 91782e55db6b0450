"""How far judges agree: Krippendorff's α of several, Cohen's κ of two.

For α marks may be missing, and of a nominal, ordinal or interval scale.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from workup.core.statistics import LEVEL, SHARE, Estimate, interval, wilson

Floats = NDArray[np.float64]
Level = Literal["nominal", "ordinal", "interval"]
RESAMPLES = 2_000


def krippendorff(
    units: Sequence[Sequence[float | None]],
    clusters: Sequence[Hashable],
    level: Level = "ordinal",
    *,
    seed: int = 0,
) -> Estimate:
    """Krippendorff's α = 1 − D_o / D_e over `units`, and its interval by drawing `clusters`.

    A unit has every judge's mark, None for a missing one. 1 is agreement, 0 is chance. Units with
    fewer than two marks are counted as `missing`. NaN if all marks are equal, since chance is then
    undefined; such draws are left out of the interval. (Krippendorff 2011, "Computing
    Krippendorff's Alpha-Reliability".)
    """
    marks = [[mark for mark in unit if mark is not None] for unit in units]
    kept = [(unit, cluster) for unit, cluster in zip(marks, clusters, strict=True) if len(unit) > 1]
    values = sorted({mark for unit, _ in kept for mark in unit})
    ids = {
        cluster: number
        for number, cluster in enumerate(dict.fromkeys(cluster for _, cluster in kept))
    }
    tables = np.zeros((len(ids), len(values), len(values)))
    for unit, cluster in kept:
        tables[ids[cluster]] += _coincidences([values.index(mark) for mark in unit], len(values))
    missing = len(units) - len(kept)
    alpha = (
        float(_alpha(tables.sum(0)[None], np.array(values, float), level)[0])
        if kept
        else float("nan")
    )
    if len(ids) < 2 or np.isnan(alpha):
        return Estimate(alpha, float("nan"), float("nan"), len(kept), missing)
    counts = np.random.default_rng(seed).multinomial(
        len(ids), [1 / len(ids)] * len(ids), size=RESAMPLES
    )
    draws = _alpha(
        np.tensordot(counts.astype(float), tables, axes=1), np.array(values, float), level
    )
    low, high = np.nanquantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    sd = float(np.nanstd(draws, ddof=1))
    if np.nanmin(draws) == np.nanmax(draws):  # no variance: no interval
        low = high = sd = float("nan")
    return Estimate(alpha, float(low), float(high), len(kept), missing, sd)


def _coincidences(unit: Sequence[int], count: int) -> Floats:
    """o_ck of one unit: its ordered pairs of marks by different judges, each counts 1 / (m − 1)."""
    held = np.bincount(unit, minlength=count).astype(float)
    table: Floats = (np.outer(held, held) - np.diag(held)) / (len(unit) - 1)
    return table


def _alpha(o: Floats, values: Floats, level: Level) -> Floats:
    """α of every table of coincidences; `o` is (tables, values, values)."""
    n_c = o.sum(2)
    n = n_c.sum(1)
    δ2 = _distances(n_c, values, level)
    observed, expected = (o * δ2).sum((1, 2)), (n_c[:, :, None] * n_c[:, None, :] * δ2).sum((1, 2))
    undefined = np.full(len(o), np.nan)
    α: Floats = 1 - np.divide((n - 1) * observed, expected, out=undefined, where=expected > 0)
    return α


def _distances(n_c: Floats, values: Floats, level: Level) -> Floats:
    """δ²_ck, (tables, values, values)."""
    if level == "nominal":
        return np.broadcast_to(1 - np.eye(len(values)), (len(n_c), len(values), len(values)))
    # Ordinal: how many marks lie between two values, half of those at either end included.
    places = (
        np.cumsum(n_c, 1) - n_c / 2 if level == "ordinal" else np.broadcast_to(values, n_c.shape)
    )
    squared: Floats = (places[:, :, None] - places[:, None, :]) ** 2
    return squared


def estimates(
    shares: Sequence[float],
    confusion: Counter[tuple[str, str]],
    asked: int,
    cases: Sequence[str] = (),
) -> tuple[Estimate, Estimate]:
    """Accuracy and κ of probes.

    They are computed from the share of agreeing labels of each probe and the counts of all labels.
    κ = (p_o − p_e) / (1 − p_e) (Cohen 1960). Its interval is that of p_o with p_e held fixed, as in
    Cohen's own large-sample error. That of p_o is Wilson's (1927), or where `cases`, the case of
    each probe, repeat, a bootstrap by case. A probe with several labels counts as one observation,
    which can only widen the interval. κ is NaN if both sides use one and the same label throughout.
    """
    n, missing = len(shares), asked - len(shares)
    if not n:
        nothing = Estimate(math.nan, math.nan, math.nan, 0, missing)
        return nothing, nothing
    agreed = sum(shares) / n
    accuracy = Estimate(agreed, *wilson(agreed, n), n, missing)
    by_case = None
    if len(set(cases)) < len(cases):
        found = interval(shares, cases, bounds=SHARE)
        by_case = found.low, found.high
        accuracy = replace(accuracy, low=found.low, high=found.high)
    total = confusion.total()
    p_o = sum(count for (exact, model), count in confusion.items() if exact == model) / total
    p_e = _by_chance(confusion) / total**2
    kappa, lowest, highest = (
        (p - p_e) / (1 - p_e) if p_e < 1 else math.nan for p in (p_o, *(by_case or wilson(p_o, n)))
    )
    return accuracy, Estimate(kappa, lowest, highest, n, missing)


def _by_chance(confusion: Counter[tuple[str, str]]) -> int:
    exact, model = Counter[str](), Counter[str]()
    for (one, other), count in confusion.items():
        exact[one] += count
        model[other] += count
    return sum(exact[label] * model[label] for label in exact)
