"""Several rankings as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

CONSTANT = 60
"""k of the formula, as its authors set it (Cormack, Clarke and Büttcher 2009)."""


def reciprocal_rank(rankings: Sequence[Sequence[int]], k: int) -> list[tuple[int, float]]:
    """The best `k` by Σ_rankings 1 / (60 + rank), ranks from 1; equal ones in the order of their numbers."""
    scores: dict[int, float] = defaultdict(float)
    for ranking in rankings:
        for rank, row in enumerate(ranking, 1):
            scores[row] += 1 / (CONSTANT + rank)
    return sorted(scores.items(), key=lambda hit: (-hit[1], hit[0]))[:k]
