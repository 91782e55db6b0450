"""What is drawn: cases, whose episodes of them, in which order and on which side; all by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

Played = Mapping[str, Sequence[int]]  # case → the samples that a doctor played of it


@dataclass(frozen=True, slots=True)
class ShownEpisode:
    """One episode: the number of its doctor, and which sample of the case."""

    doctor: int
    sample: int


@dataclass(frozen=True, slots=True)
class ReviewItem:
    """What a reviewer sees at once: one episode of a case, or two, the first on the left."""

    case: str
    sides: tuple[ShownEpisode, ...]


def singles(played: Sequence[Played], cases: int, seed: int) -> list[ReviewItem]:
    """Every doctor's episode of each of at most `cases` cases, one at a time.

    They come in as many blocks as there are doctors. A block shows every case once, and each
    doctor as often as any other, give or take one. So a reviewer who stops at the end of a block
    has seen all doctors alike, and a case does not come back before the others were seen.
    """
    rng = np.random.default_rng([seed, 1])
    drawn = _cases(played, cases, rng)
    count = len(played)
    return [
        ReviewItem(drawn[place], (_shown(played, drawn[place], (place + block) % count, rng),))
        for block in range(count)
        for place in rng.permutation(len(drawn)).tolist()
    ]


def pairs(played: Sequence[Played], cases: int, seed: int) -> list[ReviewItem]:
    """Two doctors' episodes of each of at most `cases` cases.

    Every two doctors meet as often as any other two, give or take one. In the meetings of the same
    two, each stands on the left as often as on the right, give or take one.
    """
    rng = np.random.default_rng([seed, 2])
    drawn = _cases(played, cases, rng)
    meetings = list(combinations(range(len(played)), 2))
    order, turned = rng.permutation(len(meetings)).tolist(), rng.integers(2, size=len(meetings))
    items = []
    for place, case in enumerate(drawn):
        meeting = order[place % len(meetings)]
        left, right = meetings[meeting]
        if (place // len(meetings) + turned[meeting]) % 2:
            left, right = right, left
        items.append(
            ReviewItem(case, tuple(_shown(played, case, who, rng) for who in (left, right)))
        )
    return [items[place] for place in rng.permutation(len(items)).tolist()]


def common(played: Sequence[Played]) -> list[str]:
    """The cases that every doctor has played, by id."""
    return sorted(set.intersection(*(set(own) for own in played))) if played else []


def _cases(played: Sequence[Played], most: int, rng: np.random.Generator) -> list[str]:
    shared = common(played)
    return [shared[place] for place in rng.permutation(len(shared))[:most].tolist()]


def _shown(
    played: Sequence[Played], case: str, doctor: int, rng: np.random.Generator
) -> ShownEpisode:
    samples = sorted(played[doctor][case])
    return ShownEpisode(doctor, samples[int(rng.integers(len(samples)))])
