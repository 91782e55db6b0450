"""Graph rewards of Med-R³: 1,024 episodes with three references each, and one dense graph.

The baseline finds the same paths with networkx, pair by pair, once for each distinct graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import networkx as nx
import numpy as np

from bench.figures import Figure, race
from workup.core.case import Statement
from workup.methods.medr3.graphs import Graph, logical, statistic

CASES, EPISODES, REFERENCES = 128, 8, 3
TRIPLES, ENTITIES = 25, 24  # of one reasoning process
RELATIONS = ("has symptom", "has sign", "shown by", "treated with")
DENSE = 15  # entities, each tied to every other: 210 triples
Statements = list[Statement]


def process(rng: np.random.Generator) -> Statements:
    """A reasoning process: most of its triples lead onward, as an argument does."""
    heads = rng.integers(ENTITIES - 1, size=TRIPLES)
    steps = rng.integers(1, 4, size=TRIPLES)
    return [
        Statement(f"entity {h}", RELATIONS[s % 4], f"entity {min(h + s, ENTITIES - 1)}")
        for h, s in zip(heads.tolist(), steps.tolist(), strict=True)
    ]


def batch() -> list[tuple[list[Statements], list[Statements]]]:
    """For each case what its episodes say and what its references say."""
    rng = np.random.default_rng(0)
    return [
        ([process(rng) for _ in range(EPISODES)], [process(rng) for _ in range(REFERENCES)])
        for _ in range(CASES)
    ]


def ours(cases: Sequence[tuple[list[Statements], list[Statements]]]) -> list[float]:
    scores = []
    for episodes, references in cases:
        wanted = [Graph.of(each) for each in references]
        for each in episodes:
            graph = Graph.of(each)
            scores.append(statistic(graph, wanted) + logical(graph, wanted))
    return scores


def with_networkx(cases: Sequence[tuple[list[Statements], list[Statements]]]) -> list[float]:
    scores = []
    for episodes, references in cases:
        wanted = [(Graph.of(each), _paths(Graph.of(each))) for each in references]
        for each in episodes:
            graph = Graph.of(each)
            found = _paths(graph)
            chained = max(_algorithm_1(found, paths) for _, paths in wanted)
            scores.append(statistic(graph, [each for each, _ in wanted]) + chained)
    return scores


def _paths(graph: Graph) -> dict[int, set[tuple[str, ...]]]:
    drawn = nx.DiGraph((head, tail) for head, _, tail in graph.triples)
    found: dict[int, set[tuple[str, ...]]] = {}
    for source in drawn:
        for path in nx.all_simple_paths(drawn, source, set(drawn) - {source}):
            found.setdefault(len(path) - 1, set()).add(tuple(path))
    return found


def _algorithm_1(
    found: dict[int, set[tuple[str, ...]]], wanted: dict[int, set[tuple[str, ...]]]
) -> float:
    K = min(max(found, default=0), max(wanted, default=0))
    both = [(j, found.get(j, set()), wanted.get(j, set())) for j in range(1, K + 1)]
    score = sum(j * len(a & b) / len(a | b) for j, a, b in both if a or b)
    return 2 * score / (K * (K + 1)) if K else 0.0


def measure() -> list[Figure]:
    cases = batch()
    if not np.allclose(ours(cases), with_networkx(cases)):
        raise SystemExit("graphs: our scores and networkx's differ")
    seconds = race({"ours": lambda: ours(cases), "networkx": lambda: with_networkx(cases)}, 5)
    names = [f"entity {k}" for k in range(DENSE)]
    tied = [Statement(a, "causes", b) for a, b in itertools.permutations(names, 2)]

    def one() -> float:
        return logical(Graph.of(tied), [Graph.of(tied)])

    dense = race({"dense": one}, 5)["dense"]
    return [
        Figure(
            "graph rewards of 1,024 episodes (baseline: paths by networkx)",
            seconds["ours"],
            seconds["networkx"],
            "s",
            seconds["networkx"] / seconds["ours"],
            1.0,
            True,
        ),
        Figure(
            "graph rewards of 1,024 episodes (allowed: 1 s)",
            seconds["ours"],
            1.0,
            "s",
            seconds["ours"],
            1.0,
            False,
        ),
        Figure(
            "a dense graph of 210 triples and its reference (allowed: 0.2 s)",
            dense,
            0.2,
            "s",
            dense / 0.2,
            1.0,
            False,
        ),
    ]
