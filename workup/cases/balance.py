"""Resampling by class: rare diagnoses more often than they occur."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import overload

import numpy as np

from workup.case import Case
from workup.errors import UserError


class Balanced(Sequence[Case]):
    """As many draws as there are cases, with replacement: a class of n cases is drawn in proportion to n^(1 − power), a case
    uniformly within its class. Draw i depends on (seed, i) only."""

    def __init__(self, cases: Sequence[Case], labels: array[int], power: float, seed: int) -> None:
        self._cases, self._seed = cases, seed
        classes = np.frombuffer(labels, dtype=labels.typecode)
        self._order = np.argsort(classes, kind="stable").astype(np.uint32)  # row numbers, class by class
        _, self._starts, counts = np.unique(classes[self._order], return_index=True, return_counts=True)
        self._counts = counts
        shares = counts ** (1.0 - power)
        self._cumulative = np.cumsum(shares / shares.sum())

    def __len__(self) -> int:
        return len(self._cases)

    @overload
    def __getitem__(self, index: int) -> Case: ...

    @overload
    def __getitem__(self, index: slice) -> list[Case]: ...

    def __getitem__(self, index: int | slice) -> Case | list[Case]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"case {index} of {len(self)}")
        return self._cases[self._row(index % len(self))]

    def _row(self, index: int) -> int:
        label, member = np.random.default_rng([self._seed, index]).random(2)
        chosen = min(int(np.searchsorted(self._cumulative, label, side="right")), len(self._counts) - 1)
        return int(self._order[self._starts[chosen] + int(member * self._counts[chosen])])


def balanced(cases: Sequence[Case], *, power: float = 0.5, seed: int = 0) -> Sequence[Case]:
    """`cases` resampled towards equal classes: power 0 keeps their shares, 1 draws every class equally often.

    Raises UserError where the cases carry no labels (simulated ones are uniform anyway) or the power is outside [0, 1].
    """
    labels = getattr(cases, "labels", None)
    if labels is None:
        raise UserError("these cases cannot be balanced: their source does not say which diagnosis each one has.")
    if not 0 <= power <= 1:
        raise UserError(f"the power of balancing must lie between 0 (as they are) and 1 (all equal), not {power}.")
    return Balanced(cases, labels, power, seed)
