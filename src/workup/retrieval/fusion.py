"""Several rankings as one."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TypeVar

from workup.core.case import Passage

CONSTANT = 60
"""k of the formula, as its authors set it (Cormack, Clarke and Büttcher 2009)."""

DEPTH = 100
"""Places of each ranking that fusion looks at, where fewer are asked for."""

Key = TypeVar("Key", bound=Hashable)
Find = Callable[[Sequence[str], int], Sequence[Sequence[Passage]]]
"""queries, k → the passages of each, best first; may block."""


def reciprocal_rank(rankings: Sequence[Sequence[Key]], k: int) -> list[tuple[Key, float]]:
    """The best `k` by Σ_rankings 1 / (60 + rank), ranks from 1.

    Of equal ones, that of an earlier ranking comes first.
    """
    scores: dict[Key, float] = defaultdict(float)
    for ranking in rankings:
        for rank, key in enumerate(ranking, 1):
            scores[key] += 1 / (CONSTANT + rank)
    return sorted(scores.items(), key=lambda hit: -hit[1])[:k]


def fused(finds: Sequence[Find]) -> Find:
    """Several libraries as one.

    Two libraries hold the same passage where id, title and text agree, and only then are their
    ranks added. Every passage is called "ID@DIGEST", with 8 hexadecimal digits of what it says: the
    name is the same whichever library finds it, and another text under the same id has another.
    """

    def find(queries: Sequence[str], k: int) -> list[list[Passage]]:
        found = [one(queries, max(k, DEPTH)) for one in finds]
        return [_join(rankings, k) for rankings in zip(*found, strict=True)]

    return find


def _join(rankings: Sequence[Sequence[Passage]], k: int) -> list[Passage]:
    known = {_said(passage): passage for ranking in rankings for passage in ranking}
    order = reciprocal_rank([[_said(passage) for passage in ranking] for ranking in rankings], k)
    return [
        replace(known[said], id=f"{known[said].id}@{digest(known[said])}", score=score)
        for said, score in order
    ]


def _said(passage: Passage) -> tuple[str, str, str]:
    return passage.id, passage.title, passage.text


def digest(passage: Passage) -> str:
    """Title and text of a passage in 8 hexadecimal digits."""
    said = f"{passage.title}\0{passage.text}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(said, digest_size=4).hexdigest()
