"""How well a doctor's probabilities agree with what is true: Brier score, log score, ECE.

All of them read one distribution over the closed list of diseases, taken when the doctor has asked
its last question (`workup.doctors.beliefs`). What a doctor gives to no listed disease counts as one
more disease, which is never true.

The expected calibration error (ECE; Naeini, Cooper & Hauskrecht 2015; Guo et al. 2017) divides the
confidences into ten bins of equal width:

    ECE = Σ_b |S_b| / n,   S_b = Σ_{i in b} (right_i − confidence_i),

with n episodes, bins b, and right_i = 1 where the most probable disease is the true one, else 0.
Chance alone makes |S_b| positive: 400 cases of a perfectly calibrated doctor have an ECE of about
.04. So what chance adds is subtracted. If S_b is normal with mean μ and variance v_b, that is

    E|S_b| − |μ| = 2 √v_b (φ(z) − |z| Φ(−|z|)),   z = μ / √v_b,

taken at μ = S_b, with the normal density φ and distribution Φ. v_b is the variance of S_b over
cases, or Σ c (1 − c) over the confidences c in b if that is larger. This takes away nearly all of
the bias where a gap is clear, and two fifths of it where there is none. `by_chance` is the ECE that
a calibrated doctor exceeds once in twenty times. With the sign of S_b as it stands, ECE is a mean
over episodes, and its interval is that of every mean.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

from workup.core.errors import WorkupError
from workup.core.statistics import LEVEL, Floats, Ints
from workup.metrics.metric import COUNT, Metric, Where

# Where probabilities come from (`workup.doctors.beliefs`).
EXACT, SCORED, DRAWN, STATED = "exact", "scored", "drawn", "stated"
BINS = 10
LEAST = 1e-6  # what a smaller probability of the truth counts as in the log score
WORST = -math.log(LEAST)  # the log score of a truth that got no more, or that is not listed
_NONE = "where the doctor gave no probabilities that could be read"

BRIER = Metric(
    "brier",
    "squared differences between the probabilities and the truth, summed over the diseases; 0 is "
    "sure and right, 2 sure and wrong",
    "Brier score",
    undefined=_NONE,
    range=(0.0, 2.0),
    digits=3,
    rank=300,
    where=Where.PAIRED,
)
LOG_SCORE = Metric(
    "log_score",
    f"minus the logarithm of the truth's probability, in nats; below {LEAST:g} it counts as "
    f"{LEAST:g}",
    "log score",
    undefined=_NONE,
    range=COUNT,
    digits=3,
    rank=310,
    where=Where.PAIRED,
)
ECE = Metric(
    "ece",
    "expected calibration error: how far confidence and share right lie apart in ten equal bins of "
    "confidence, less what chance adds",
    "ECE",
    undefined=_NONE,
    range=(-1.0, 1.0),
    digits=3,
    rank=320,
    where=Where.PAIRED,
)
CONFIDENCE = Metric(
    "top_probability",
    "probability of the most probable disease: the doctor's confidence",
    "confidence",
    undefined=_NONE,
    digits=3,
    rank=330,
    where=Where.NOWHERE,
)
SUREST_RIGHT = Metric(
    "surest_right",
    "share of the episodes in which the most probable disease is the true one",
    "most probable is right",
    undefined=_NONE,
    digits=3,
    rank=340,
    where=Where.NOWHERE,
)
METRICS = (BRIER, LOG_SCORE, ECE, CONFIDENCE, SUREST_RIGHT)


def scores(probabilities: Sequence[float] | None, truth: int | None) -> dict[str, float | None]:
    """Brier score, log score, confidence, and whether the most probable disease is the true one.

    `probabilities` are in the order of the closed list, each ≥ 0, with a sum of at most 1; None
    leaves all undefined. What they lack to 1 is believed of a disease that is not listed: where
    that is more than of any listed one, it is the confidence, and it is wrong. Of k diseases that
    are equally probable, and the true one among them, 1/k is right. `truth` is the place of the
    true disease, None for one that is not listed. Raises WorkupError for numbers that are no
    probabilities.
    """
    names = [each.name for each in METRICS if each is not ECE]
    if probabilities is None:
        return dict.fromkeys(names)
    p = np.asarray(probabilities, dtype=float)
    other = 1 - float(p.sum())
    if not np.isfinite(p).all() or p.min() < 0 or other < -1e-6:
        raise WorkupError(f"no probabilities: they sum to {1 - other}, the least is {p.min()}")
    of_truth = 0.0 if truth is None else float(p[truth])
    most = max(float(p.max()), other)
    surest = np.flatnonzero(p == most)
    values = (
        float((p**2).sum()) + other**2 + 1 - 2 * of_truth,
        -math.log(max(of_truth, LEAST)),
        min(most, 1.0),
        1 / len(surest) if truth in surest else 0.0,
    )
    return dict(zip(names, values, strict=True))


def bin_of(confidence: float) -> int:
    """The bin of a confidence in [0, 1], from 0 to 9; 1 is in the last one."""
    return min(int(confidence * BINS), BINS - 1)


def gaps(
    confidence: Sequence[float | None],
    right: Sequence[float | None],
    cases: Sequence[Hashable],
) -> list[float | None]:
    """A number for each episode; ECE is their mean. None where there is no confidence."""
    known = [c is not None and r is not None for c, r in zip(confidence, right, strict=True)]
    numbers: dict[Hashable, int] = {}
    inside = [place for place, each in enumerate(known) if each]
    ids = np.array([numbers.setdefault(cases[place], len(numbers)) for place in inside], dtype=int)
    sure, hit = (
        np.array([column[place] for place in inside], dtype=float) for column in (confidence, right)
    )
    found = iter(_gaps(sure, hit, ids).tolist())
    return [next(found) if each else None for each in known]


def by_chance(
    parts: Sequence[tuple[Sequence[float], Sequence[Hashable]]], seed: int, draws: int = 500
) -> float:
    """The ECE that a calibrated doctor with these confidences exceeds once in twenty times.

    Consistency resampling (Bröcker & Smith 2007): whether the most probable disease is right is
    drawn anew with the probability that the doctor gave it. Each part has the confidences and the
    cases of one seed's run; the ECE is the mean over parts. A case is equally lucky in all of them.
    """
    numbers: dict[Hashable, int] = {}
    columns = [
        (
            np.array(sure, dtype=float),
            np.array([numbers.setdefault(c, len(numbers)) for c in cases]),
        )
        for sure, cases in parts
    ]
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(draws):
        luck = rng.random(len(numbers))
        errors = [_gaps(sure, luck[ids] < sure, ids).mean() for sure, ids in columns]
        found.append(float(np.mean(errors)))
    return float(np.quantile(found, LEVEL))


def _gaps(sure: Floats, right: Floats, cases: Ints) -> Floats:
    """sign(S_b) (right_i − confidence_i) − bias_b / n_b of each episode, (episodes,).

    bias_b is E|S_b| − |μ| as above, n_b the number of episodes in b.
    """
    bins = np.minimum((sure * BINS).astype(int), BINS - 1)
    own = right - sure
    total, size = np.bincount(bins, own, BINS), np.bincount(bins, minlength=BINS)
    variance = np.maximum(_variance(bins, own, cases), np.bincount(bins, sure * (1 - sure), BINS))
    spread = np.sqrt(variance)
    z = np.abs(np.divide(total, spread, out=np.full(BINS, np.inf), where=spread > 0))
    z = np.minimum(z, 40)  # Φ(−40) is 0
    below = np.array([math.erfc(each / math.sqrt(2)) / 2 for each in z])
    more = 2 * spread * (np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) - z * below)
    values: Floats = np.sign(total)[bins] * own - (more / np.maximum(size, 1))[bins]
    return values


def _variance(bins: Ints, own: Floats, cases: Ints) -> Floats:
    """The variance of each bin's sum, from the sums of its cases; 0 where it has one case."""
    pairs, place = np.unique(bins * (cases.max(initial=0) + 1) + cases, return_inverse=True)
    sums = np.bincount(place, own, len(pairs))
    bin_of_pair = pairs // (cases.max(initial=0) + 1)
    m = np.bincount(bin_of_pair, minlength=BINS)
    mean = np.bincount(bin_of_pair, sums, BINS) / np.maximum(m, 1)
    apart = np.bincount(bin_of_pair, (sums - mean[bin_of_pair]) ** 2, BINS)
    return apart * m / np.maximum(m - 1, 1)
