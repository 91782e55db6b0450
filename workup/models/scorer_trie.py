"""Many transcripts that begin alike, laid out so that what they share is computed once.

Transcripts form a trie whose nodes are runs of tokens. A row holds a part of it in depth-first order, so that the
descendants of a token are the tokens right behind it: token i sees token j exactly when j ≤ i < end[j], where end[j] is where
the last descendant of j ends. One integer per token is the whole attention mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise, takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = tuple[int, ...]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Wanted:
    """An answer to be scored at the end of a path of runs; neither is empty. `tag` is the caller's."""

    path: tuple[Ids, ...]
    answer: Ids
    tag: Any = None


@dataclass(slots=True)
class Row:
    """One sequence of T tokens with their positions and ends, and for every answer where its tokens' predictors stand."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    wanted: list[Wanted] = field(default_factory=list)
    predictors: list[int] = field(default_factory=list)  # the answers' tokens, one answer after the other
    open: list[tuple[Ids, int]] = field(default_factory=list)  # the runs of the present path and where each starts

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, wanted: Wanted, runs: int, depth: int) -> None:
        """Appends `wanted` but for its first `runs` runs of `depth` tokens, which the one before it had too."""
        self.close(runs)
        for run in wanted.path[runs:]:
            self._append(run, depth)
            depth += len(run)
        run, start = self.open[-1]
        first = len(self)
        self._append(wanted.answer, depth)
        self.close(len(self.open) - 1)
        self.predictors += [start + len(run) - 1, *range(first, first + len(wanted.answer) - 1)]
        self.wanted.append(wanted)

    def _append(self, run: Ids, depth: int) -> None:
        self.open.append((run, len(self)))
        self.tokens += run
        self.positions += range(depth, depth + len(run))
        self.ends += [0] * len(run)

    def close(self, keep: int = 0) -> None:
        """Ends all runs of the present path but the first `keep`."""
        for run, start in self.open[keep:]:
            self.ends[start : start + len(run)] = [len(self)] * len(run)
        del self.open[keep:]


def rows(wanted: Sequence[Wanted], longest: int, exchange: float) -> list[Row]:
    """All of `wanted`; a row exceeds `longest` only where one transcript does.

    `exchange` is how many pairs of tokens attention relates in the time that one token takes elsewhere. A branch of s tokens
    that shares c of a row's L tokens gets a row of its own when the pairs so spared, (L + s)² − L² − (c + s)², outweigh the c
    tokens then computed twice.
    """
    ordered = sorted(wanted, key=lambda one: one.path)
    shared = [(0, 0), *(_shared(one.path, other.path) for one, other in pairwise(ordered))]
    added = [sum(map(len, one.path)) - c + len(one.answer) for one, (_, c) in zip(ordered, shared, strict=True)]
    made: list[Row] = [Row()]
    for one, (runs, c), new, s in zip(ordered, shared, added, _branches([c for _, c in shared], added), strict=True):
        length = len(made[-1])
        if length and (not c or length + new > longest or 2 * s * (length - c) - c * c > exchange * c):
            made[-1].close()
            made.append(Row())
            runs = c = 0
        made[-1].add(one, runs, c)
    made[-1].close()
    return made


def _shared(one: Sequence[Ids], other: Sequence[Ids]) -> tuple[int, int]:
    """How many leading runs two paths have in common, and their tokens."""
    same = list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    return len(same), sum(len(run) for run, _ in same)


def _branches(shared: Sequence[int], added: Sequence[int]) -> list[int]:
    """For each place, the tokens added from there until something shares no more than it does with what stands before."""
    sizes = [0] * len(added)
    total = [*accumulate(added, initial=0)]
    open_: list[int] = []
    for place, c in enumerate([*shared, -1]):
        while open_ and shared[open_[-1]] >= c:
            begun = open_.pop()
            sizes[begun] = total[place] - total[begun]
        open_.append(place)
    return sizes


def batches(made: Sequence[Row], budget: int, scored: int) -> Iterator[list[Row]]:
    """Rows of similar length, at most `budget` tokens (padding included) and `scored` answer tokens together, or one row."""
    batch: list[Row] = []
    answers = 0
    for row in sorted(made, key=len, reverse=True):  # the first is the longest
        answers += len(row.predictors)
        if batch and ((len(batch) + 1) * len(batch[0]) > budget or answers > scored):
            yield batch
            batch, answers = [], len(row.predictors)
        batch.append(row)
    if batch:
        yield batch


@dataclass(frozen=True, slots=True)
class Block:
    """Rows as arrays (rows, width), padded on the right; predictors (answer tokens,) index the flattened block."""

    tokens: Ints
    positions: Ints
    ends: Ints
    predictors: Ints
    targets: Ints
    starts: Ints  # where each answer begins among the answer tokens, (answers,)


def block(batch: Sequence[Row]) -> Block:
    width = max(map(len, batch))
    filled = np.zeros((3, len(batch), width), dtype=np.int64)
    filled[2] = width  # padding sees something: a row of attention without anything would not be a number
    for place, row in enumerate(batch):
        filled[:, place, : len(row)] = row.tokens, row.positions, row.ends
    predictors = [place * width + i for place, row in enumerate(batch) for i in row.predictors]
    answers = [one.answer for row in batch for one in row.wanted]
    lengths = np.array([len(answer) for answer in answers])
    return Block(
        filled[0],
        filled[1],
        filled[2],
        np.array(predictors),
        np.array([i for a in answers for i in a]),
        lengths.cumsum() - lengths,
    )


def visible(index: Any, ends: Any) -> Any:
    """Who sees whom: (…, T, T) booleans from arrays or tensors (T,) and (…, T); row i is True at the tokens that i sees."""
    return (index[:, None] >= index) & (index[:, None] < ends[..., None, :])
