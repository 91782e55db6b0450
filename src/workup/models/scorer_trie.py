"""Many transcripts with common prefixes in one sequence, so that shared tokens are computed once.

Transcripts form a trie whose nodes are runs of tokens. A sequence holds tries in depth-first order,
so that the descendants of a token are the tokens right after it. Token i sees token j exactly when
j ≤ i < end[j]; end[j] is where the last descendant of j ends. For attention a sequence is cut into
slices of queries, each with only the keys that one of them sees. The work is then that of the
transcripts' own lengths, however many share the sequence. There is no padding.

Example: the transcripts a b and a c are the sequence a b c with ends 3 2 3: c sees a and c, not b.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise, takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = tuple[int, ...]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
SPARSE = 1.5  # how many times as many keys as needed cost no more than picking them


@dataclass(frozen=True, slots=True)
class PathAnswer:
    """An answer to be scored at the end of a path of runs; neither is empty.

    `tag` is the caller's.
    """

    path: tuple[Ids, ...]
    answer: Ids
    tag: Any = None


@dataclass(slots=True)
class Sequenced:
    """One sequence of T tokens with positions and ends, and the places that predict each answer."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    wanted: list[PathAnswer] = field(default_factory=list)
    # the answers' tokens, one answer after the other
    predictors: list[int] = field(default_factory=list)
    # the runs of the present path and where each starts
    open: list[tuple[Ids, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, wanted: PathAnswer, runs: int, depth: int) -> None:
        """Appends `wanted` without its first `runs` runs, which the answer before it shares.

        These runs have `depth` tokens.
        """
        self.close(runs)
        for run in wanted.path[runs:]:
            self._append(run, depth)
            depth += len(run)
        run, start = self.open[-1]
        first = len(self)
        rest = wanted.answer[:-1]  # what the last token would predict is not asked for
        self._append(rest, depth)
        self.close(len(self.open) - 1)
        self.predictors += [start + len(run) - 1, *range(first, first + len(rest))]
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


def sequences(wanted: Sequence[PathAnswer], budget: int, scored: int) -> list[Sequenced]:
    """All of `wanted` in sequences of at most `budget` tokens and `scored` answer tokens.

    One transcript alone may be longer. A new sequence begins where a branch would fit a fresh one
    but not the present one, so that little is computed twice.
    """
    ordered = sorted(wanted, key=lambda one: one.path)
    shared = [(0, 0)]  # the leading runs that a path shares with the one before, and their tokens
    for one, other in pairwise(ordered):
        both = zip(one.path, other.path, strict=False)
        same = [run for run, _ in takewhile(lambda pair: pair[0] == pair[1], both)]
        shared.append((len(same), sum(map(len, same))))
    added = [
        sum(map(len, one.path)) - c + len(one.answer) - 1
        for one, (_, c) in zip(ordered, shared, strict=True)
    ]
    made = [Sequenced()]
    for one, (runs, c), new, branch in zip(
        ordered, shared, added, _branches([c for _, c in shared], added), strict=True
    ):
        left = budget - len(made[-1])
        full = (
            new > left
            or (branch > left and c + branch <= budget)
            or len(made[-1].predictors) + len(one.answer) > scored
        )
        if full and made[-1].wanted:
            made[-1].close()
            made.append(Sequenced())
            runs = c = 0
        made[-1].add(one, runs, c)
    made[-1].close()
    return made


def _branches(shared: Sequence[int], added: Sequence[int]) -> list[int]:
    """For each place, the tokens added from there to the end of its branch.

    The branch ends where a path shares no more with it than with what stands before.
    """
    sizes = [0] * len(added)
    total = [*accumulate(added, initial=0)]
    unfinished: list[int] = []
    for place, c in enumerate([*shared, -1]):
        while unfinished and shared[unfinished[-1]] >= c:
            begun = unfinished.pop()
            sizes[begun] = total[place] - total[begun]
        unfinished.append(place)
    return sizes


@dataclass(frozen=True, slots=True)
class Slice:
    """Queries from `start` to before `stop`, their keys, and who sees whom (queries, keys)."""

    start: int
    stop: int
    keys: slice | Ints
    seen: Bools


def slices(ends: Sequence[int], width: int) -> list[Slice]:
    """A sequence cut for attention.

    Keys that are close together are taken as one range, which saves a copy.
    """
    end, made = np.array(ends), []
    for start in range(0, len(ends), width):
        stop = min(start + width, len(ends))
        keys = np.flatnonzero(end[:stop] > start)
        dense = stop - keys[0] <= SPARSE * len(keys)
        if dense:
            keys = np.arange(keys[0], stop)
        i = np.arange(start, stop)[:, None]
        made.append(
            Slice(
                start,
                stop,
                slice(int(keys[0]), stop) if dense else keys,
                (keys <= i) & (i < end[keys]),
            )
        )
    return made
