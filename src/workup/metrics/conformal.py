"""When to stop asking, so that the named set holds the truth with probability 1 − α.

A doctor gives probabilities p_t over the diseases after 0, 1, …, T of its questions. The disease d
has ahead of it a_t(d) = Σ p_t(e) over the e that are more probable than d (as in adaptive
prediction sets, Romano, Sesia & Candès 2020). For a threshold λ in [0, 1]

    C_t(λ) = {d : a_t(d) ≤ λ},   τ(λ) = the first t with |C_t(λ)| ≤ `most`, else T.

where `most` is the largest set to stop with. The rule stops at τ(λ) and names C_τ(λ). Only λ is
calibrated. With p = (.6, .3, .1) a is (0, .6, .9), and λ = .7 names two diseases. A case's score

    R = the least λ from which on the truth is in C_τ at every larger λ

is a function of its whole encounter and its truth. So split conformal prediction holds for it
(Papadopoulos et al. 2002; Vovk, Gammerman & Shafer 2005, ch. 4; for families of sets with one
parameter: Gupta, Kuchibhotla & Ramdas 2022; for a loss made monotone as here: Angelopoulos et al.
2024, "Conformal risk control"). If n calibration cases and a new one are exchangeable, and λ̂ is the
⌈(n + 1)(1 − α)⌉-th smallest of their scores, then

    P(truth in C_τ(λ̂)) ≥ P(R ≤ λ̂) ≥ 1 − α,

if λ̂ ≤ 1, over the draw of the calibration cases and of the new one. A truth that is not listed
scores more than 1. Where more than about α of the truths are such, λ̂ is too, and nothing is
promised. It is no promise for one disease, for one kind of patient, nor for one calibration: with n
cases the coverage of a single λ̂ has a standard deviation of about √(α (1 − α) / n). The doctor may
be as wrong about its probabilities as it likes; then sets are large, or it stops late.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from workup.core.errors import UserError
from workup.core.statistics import Floats
from workup.metrics.metric import COUNT, Metric

IN_SET = Metric(
    "in_set",
    "share of the episodes in which the set that was named on stopping holds the true diagnosis",
    "truth in the set",
    rank=25,
)
SET_SIZE = Metric("set_size", "diseases in that set", "set size", range=COUNT, digits=1, rank=26)
METRICS = (IN_SET, SET_SIZE)
UNLISTED = 2.0  # the score of a truth that no set can hold


def ahead(probabilities: Sequence[float] | Floats) -> Floats:
    """a(d) for each disease: the probability of all that are more probable, in [0, 1]."""
    p = np.asarray(probabilities, dtype=float)
    order = np.argsort(-p, kind="stable")
    ranked = p[order]
    before = np.concatenate(([0.0], np.cumsum(ranked)[:-1]))
    first = np.searchsorted(-ranked, -ranked, side="left")  # equals stand together
    made = np.empty_like(p)
    made[order] = np.clip(before[first], 0.0, 1.0)
    return made


def stops(a: Floats, threshold: float, most: int) -> bool:
    """Whether at most `most` diseases are in C(threshold)."""
    return int((a <= threshold).sum()) <= most


def score(encounter: Sequence[Floats], truth: int | None, most: int) -> float:
    """R of an encounter: `encounter` has a_t for t = 0 … T, `truth` is the place of the truth.

    It is in [0, 1], or UNLISTED. b_t is the (`most` + 1)-th smallest a_t: C_t has more than `most`
    diseases exactly where λ ≥ b_t. So the rule stops at t for λ from the largest b before t up to
    b_t.
    """
    if truth is None:
        return UNLISTED
    worst, reached = 0.0, 0.0
    for t, a in enumerate(encounter):
        last = t == len(encounter) - 1
        end = math.inf if last or len(a) <= most else float(np.partition(a, most)[most])
        if end > reached or last:
            missed = min(end, float(a[truth]))  # the truth is missed for λ from `reached` to here
            worst = max(worst, missed) if missed > reached else worst
            reached = end
    return worst


def need(cases: int, alpha: float) -> None:
    """Raises UserError where so few calibration cases promise nothing."""
    if cases < (least := math.ceil(round(1 / alpha, 9)) - 1):
        raise UserError(
            f"{cases} calibration cases that did not fail are too few for alpha={alpha:g}: it "
            f"takes at least {least}"
        )


def threshold(scores: Sequence[float], alpha: float) -> float:
    """λ̂: the ⌈(n + 1)(1 − α)⌉-th smallest score.

    Raises UserError as `need`.
    """
    need(len(scores), alpha)
    return sorted(scores)[math.ceil(round((len(scores) + 1) * (1 - alpha), 9)) - 1]
