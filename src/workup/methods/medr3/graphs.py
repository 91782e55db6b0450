"""Reasoning as a graph, and how much of a reference's graph it holds (Med-R³, MR-4, MR-6, MR-9).

A `Graph` holds the statements (head, relation, tail) of one reasoning process. The rewards compare
it with the graphs of N reference processes; each takes the best of the references.

Worked example: the reference says a → b → c, the reasoning says a → b and a → c. Entities agree
(Jaccard 1). Paths of one edge: {ab, bc} and {ab, ac}, Jaccard 1/3. Paths of two edges: {abc} and
none. The longest path of the reasoning has one edge, so K = 1 and the logical score is
2/(1·2) · 1 · 1/3 = 1/3. With K of the reference, K = 2 and it is 2/(2·3) · (1 · 1/3 + 2 · 0) = 1/9.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from workup.core.case import Statement

MOST_PATHS = 20_000
"""Paths of one graph that are enumerated at most; all lengths taken together."""

LEVELS = 6
"""The levels of evidence: 1 is a systematic review, 6 is background or an expert's opinion."""

LongestOf = Literal["shorter", "reference"]
Identity = Literal["entities", "relations"]
Path = tuple[str, ...]


@dataclass(frozen=True)
class Paths:
    """The simple directed paths of a graph: `levels[j − 1]` holds those of j edges.

    A level is whole or left out: with `truncated`, longer paths exist than were enumerated.
    """

    levels: tuple[frozenset[Path], ...]
    truncated: bool = False

    def of(self, j: int) -> frozenset[Path]:
        """P^j, the paths of j ≥ 1 edges."""
        return self.levels[j - 1] if j <= len(self.levels) else frozenset()


@dataclass(frozen=True)
class Graph:
    """Distinct statements by (head, relation, tail), and those of them that came from a search."""

    triples: frozenset[tuple[str, str, str]]
    retrieved: frozenset[tuple[str, str, str]] = frozenset()

    @classmethod
    def of(
        cls, statements: Iterable[Statement], canonical: Callable[[str], str] = str.casefold
    ) -> Graph:
        """The graph of `statements`.

        `canonical` gives an entity the one name of all its synonyms. A statement that occurs both
        as retrieved and as not retrieved counts once, as retrieved (docs/papers/errata.md).
        """
        merged: dict[tuple[str, str, str], bool] = defaultdict(bool)
        for each in statements:
            triple = canonical(each.head), each.relation.casefold(), canonical(each.tail)
            merged[triple] |= each.retrieved
        return cls(
            frozenset(merged),
            frozenset(each for each, from_search in merged.items() if from_search),
        )

    @cached_property
    def entities(self) -> frozenset[str]:
        """E: every head and every tail."""
        return frozenset(name for head, _, tail in self.triples for name in (head, tail))

    @cached_property
    def relations(self) -> frozenset[str]:
        """L: the names of the relations."""
        return frozenset(relation for _, relation, _ in self.triples)

    @cached_property
    def entity_paths(self) -> Paths:
        """The simple paths, each known by the entities along it (the decision of MR-4)."""
        return simple_paths((head, (), tail) for head, _, tail in self.triples)

    @cached_property
    def relation_paths(self) -> Paths:
        """The simple paths, each known by the entities and relations along it."""
        return simple_paths((head, (relation,), tail) for head, relation, tail in self.triples)

    def paths(self, identity: Identity) -> Paths:
        """The simple paths, each known by its entities alone, or by its relations too."""
        return self.entity_paths if identity == "entities" else self.relation_paths


def simple_paths(
    edges: Iterable[tuple[str, tuple[str, ...], str]], most: int = MOST_PATHS
) -> Paths:
    """All paths of the edges (head, label, tail) that visit no entity twice, by their length.

    Paths are made longer edge by edge. When a level would bring the number of paths above `most`,
    it is left out with all longer ones, and the result is `truncated`. An edge from an entity to
    itself is no path.
    """
    onward: dict[str, list[tuple[tuple[str, ...], str]]] = defaultdict(list)
    for head, label, tail in sorted(set(edges)):
        if head != tail:
            onward[head].append((label, tail))
    # Entities stand at every (1 + len(label))-th place; `seen` is what a longer path must avoid.
    level: list[tuple[Path, frozenset[str]]] = [((head,), frozenset((head,))) for head in onward]
    levels: list[frozenset[Path]] = []
    left = most
    while level:
        longer: list[tuple[Path, frozenset[str]]] = []
        for path, seen in level:
            for label, tail in onward.get(path[-1], ()):
                if tail not in seen:
                    longer.append(((*path, *label, tail), seen | {tail}))
                    if len(longer) > left:
                        return Paths(tuple(levels), truncated=True)
        if longer:
            levels.append(frozenset(path for path, _ in longer))
        left -= len(longer)
        level = longer
    return Paths(tuple(levels))


def jaccard(one: Collection[object], other: Collection[object]) -> float:
    """|A ∩ B| / |A ∪ B| (Eq. 13); 0 if both are empty: what says nothing agrees with nothing."""
    a, b = frozenset(one), frozenset(other)
    return len(a & b) / len(a | b) if a or b else 0.0


def statistic(graph: Graph, references: Sequence[Graph]) -> float:
    """R_statistic (Eq. 6), scaled to [0, 1] by its two parts; 0 without references.

    max over i of Jaccard(E_i, E) + Jaccard(L_i, L): entities, and names of relations.
    """
    return max(
        (
            (jaccard(each.entities, graph.entities) + jaccard(each.relations, graph.relations)) / 2
            for each in references
        ),
        default=0.0,
    )


def logical(
    graph: Graph,
    references: Sequence[Graph],
    *,
    longest: LongestOf = "shorter",
    identity: Identity = "entities",
) -> float:
    """R_logical (Eq. 7, Algorithm 1), in [0, 1]; 0 without references.

    max over i of 2 / (K (K + 1)) · Σ_{j=1..K} j · Jaccard(P_i^j, P^j), where P^j are the simple
    paths of j edges. K is `longest`: "shorter" takes the length of the longest path of the graph or
    of the reference, whichever is less (as printed); "reference" takes the reference's, so that who
    reasons does not choose K. K = 0 gives 0. Where the paths of a graph were truncated, K is at
    most the longest length that was enumerated of it. `identity` says whether a path is known by
    its entities alone, or by its relations too.
    """
    return max((_logical(graph, each, longest, identity) for each in references), default=0.0)


def _logical(graph: Graph, reference: Graph, longest: LongestOf, identity: Identity) -> float:
    generated, wanted = (each.paths(identity) for each in (graph, reference))
    K = len(wanted.levels)
    if longest == "shorter" or generated.truncated:
        K = min(K, len(generated.levels))
    weighted = sum(j * jaccard(wanted.of(j), generated.of(j)) for j in range(1, K + 1))
    return 2 * weighted / (K * (K + 1)) if K else 0.0


def semantic(vector: NDArray[np.floating], references: NDArray[np.floating]) -> float:
    """R_semantic (Eq. 5): the largest cosine with a reference's embedding, at least 0.

    `vector` [dimension] and `references` [N, dimension] are unit vectors; 0 for N = 0.
    """
    return max(0.0, min(1.0, float((references @ vector).max(initial=0.0))))


def quality(levels: Sequence[int]) -> float:
    """R_quality (Eq. 10), scaled by 1/6 to [0, 1]; 0 without documents.

    (1/D) · Σ (6 − (e_j − 1)) for the levels of evidence e_j ∈ 1..6 of the D documents retrieved.
    Raises ValueError for another level.
    """
    if wrong := [each for each in levels if not 1 <= each <= LEVELS]:
        raise ValueError(f"a level of evidence is from 1 to {LEVELS}, not {wrong[0]}")
    if not levels:
        return 0.0
    return sum(LEVELS - (e - 1) for e in levels) / (len(levels) * LEVELS)


def breadth(graph: Graph) -> float:
    """R_breadth (Eq. 11): the share of the graph's triples that came from retrieval; 0 if empty."""
    return len(graph.retrieved) / len(graph.triples) if graph.triples else 0.0


def searched_enough(searches: int, least: int = 3) -> float:
    """R_retrieval-num (Eq. 8): 1 from `least` searches on (θ = 3), else 0."""
    return float(searches >= least)
