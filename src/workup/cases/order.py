"""Which case comes when: every case once per epoch, in a random order that needs no memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np


@dataclass(frozen=True, slots=True)
class Order:
    """A random order over `count` cases, epoch after epoch, by `seed` alone.

    Each epoch is an affine permutation i ↦ (a·i + b) mod count with a coprime to count: not every
    order can occur, but every case does exactly once, and a million cases cost as much as ten.
    """

    count: int
    seed: int

    def __getitem__(self, position: int) -> int:
        """The case at a position ≥ 0, counted over all epochs."""
        epoch, i = divmod(position, self.count)
        rng = np.random.default_rng([self.seed, epoch])
        a, b = (int(x) for x in rng.integers(self.count, size=2))
        while gcd(a, self.count) != 1:
            a += 1
        return (a * i + b) % self.count
