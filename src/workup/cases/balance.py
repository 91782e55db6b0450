"""Resampling by class: rare diagnoses more often than they occur, or all equally often."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from workup.core.case import Case, Source
from workup.core.errors import UserError, unknown
from workup.core.lazy import Lazy


def balanced(cases: Sequence[Case], *, power: float = 0.5, seed: int = 0) -> Sequence[Case]:
    """`cases` resampled: power 0 keeps the classes' shares, 1 draws every class equally often.

    As many draws as there are cases, with replacement. A class of n cases is drawn in proportion
    to n^(1 − power), a case uniformly within its class. Draw i depends on (seed, i) only.

    Raises UserError if the cases carry no labels (simulated ones are uniform anyway) or the power
    is outside [0, 1].
    """
    labels = getattr(cases, "labels", None)
    if labels is None:
        raise UserError(
            "these cases cannot be balanced: their source does not say which diagnosis each one "
            "has."
        )
    if not 0 <= power <= 1:
        raise UserError(
            "the power of balancing must lie between 0 (as they are) and 1 (all equal), not "
            f"{power}."
        )
    row = _drawn(labels, power, seed)
    return Lazy(len(cases), lambda index: cases[row(index)])


def _drawn(labels: array[int], power: float, seed: int) -> Callable[[int], int]:
    """Which case the i-th draw takes."""
    classes = np.frombuffer(labels, dtype=labels.typecode)
    order = np.argsort(classes, kind="stable").astype(np.uint32)  # row numbers, class by class
    _, starts, counts = np.unique(classes[order], return_index=True, return_counts=True)
    shares = counts ** (1.0 - power)
    cumulative = np.cumsum(shares / shares.sum())

    def row(index: int) -> int:
        label, member = np.random.default_rng([seed, index]).random(2)
        chosen = min(int(np.searchsorted(cumulative, label, side="right")), len(counts) - 1)
        return int(order[starts[chosen] + int(member * counts[chosen])])

    return row


READ = 100_000
"""Cases that are read one by one for their diagnoses where their source does not say them."""


def uniform(cases: Sequence[Case], size: int, *, seed: int = 0) -> list[int]:
    """The places of `size` different cases, drawn uniformly over the diagnoses, in ascending order.

    Every diagnosis gives equally many, or all that it has; the rest is shared among the others in
    the same way. So of 1,003 patients with 49 conditions each condition gives 20 or 21, if it has
    them. This is how C-MIG's paper can have sampled DDXPlus (8,998 to train on, 1,003 to validate
    with). Raises UserError for more cases than there are, and where the diagnoses of more than
    100,000 cases would have to be read.
    """
    if size > len(cases):
        raise UserError(f"{size:,} cases cannot be drawn from {len(cases):,}.")
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(cases))
    classes = _classes(cases)[order]
    # who gives one more, where the last round is not whole
    turns = rng.permutation(classes.max(initial=0) + 1)
    by_class = np.argsort(classes, kind="stable")
    starts = np.searchsorted(classes[by_class], classes[by_class])
    # a case is drawn in the round of its place within its class
    rounds = np.empty(len(cases), dtype=np.int64)
    rounds[by_class] = np.arange(len(cases)) - starts
    drawn = np.lexsort((turns[classes], rounds))[:size]
    return sorted(int(place) for place in order[drawn])


def taken(source: Source, side: str, size: int | None = None, seed: int = 0) -> Iterator[Case]:
    """The cases of one side of a source, "test" or "train", or `size` of them as `uniform` draws.

    Raises UserError at once: for another side, and as `uniform` does.
    """
    sides = {"test": source.test, "train": source.train}
    if side not in sides:
        raise unknown("side", side, sides)
    cases = sides[side]
    if size is None:
        return iter(cases)
    return map(cases.__getitem__, uniform(cases, size, seed=seed))


def _classes(cases: Sequence[Case]) -> NDArray[np.int64]:
    """A number for each case's diagnosis."""
    labels = getattr(cases, "labels", None)
    if labels is not None:
        return np.asarray(labels, dtype=np.int64)
    if len(cases) > READ:
        raise UserError(
            f"the source does not say which diagnosis each of its {len(cases):,} cases has, and "
            "they are too many to look."
        )
    numbers: dict[str, int] = {}
    found = [numbers.setdefault(case.truth.diagnosis, len(numbers)) for case in cases]
    return np.asarray(found, dtype=np.int64)
