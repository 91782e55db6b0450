"""Rewards of reasoning graphs (Med-R³): networkx and brute force are the oracles."""

from __future__ import annotations

import itertools
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workup.cases.clinic import graph as clinic_graph
from workup.core.case import Statement
from workup.methods.medr3.graphs import (
    MOST_PATHS,
    Graph,
    breadth,
    jaccard,
    logical,
    quality,
    searched_enough,
    semantic,
    simple_paths,
    statistic,
)

NAMES = "abcdef"
STATEMENTS = st.lists(
    st.builds(
        Statement,
        st.sampled_from(NAMES),
        st.sampled_from(("causes", "treats")),
        st.sampled_from(NAMES),
        st.booleans(),
    ),
    max_size=12,
)
GRAPHS = STATEMENTS.map(Graph.of)


def chain(*names: str) -> Graph:
    return Graph.of(Statement(a, "causes", b) for a, b in itertools.pairwise(names))


def networkx_paths(graph: Graph) -> dict[int, set[tuple[str, ...]]]:
    """All simple paths by their number of edges, as networkx finds them pair by pair."""
    drawn = nx.DiGraph((head, tail) for head, _, tail in graph.triples)
    found: dict[int, set[tuple[str, ...]]] = {}
    for source, target in itertools.permutations(drawn, 2):
        for path in nx.all_simple_paths(drawn, source, target):
            found.setdefault(len(path) - 1, set()).add(tuple(path))
    return found


def algorithm_1(graph: Graph, references: list[Graph], longest: str) -> Fraction:
    """Algorithm 1, line by line, in fractions, with K per reference."""
    best = Fraction(0)
    generated = networkx_paths(graph)
    for reference in references:
        wanted = networkx_paths(reference)
        K = max(wanted, default=0)
        if longest == "shorter":
            K = min(K, max(generated, default=0))
        score = Fraction(0)
        for j in range(1, K + 1):
            if wanted.get(j):
                both = generated.get(j, set())
                score += j * Fraction(len(wanted[j] & both), len(wanted[j] | both))
        best = max(best, score * Fraction(2, K * (K + 1)) if K else Fraction(0))
    return best


@given(GRAPHS)
def test_paths_are_all_simple_paths_by_length(graph: Graph) -> None:
    paths = graph.entity_paths
    assert not paths.truncated
    assert {j + 1: set(level) for j, level in enumerate(paths.levels)} == networkx_paths(graph)


@given(STATEMENTS)
def test_paths_with_relations_are_those_of_the_multigraph(statements: list[Statement]) -> None:
    graph = Graph.of(statements)
    drawn = nx.MultiDiGraph()
    for head, relation, tail in graph.triples:
        drawn.add_edge(head, tail, key=relation)
    expected = {
        tuple(itertools.chain(edges[0][:1], *((key, tail) for _, tail, key in edges)))
        for source, target in itertools.permutations(drawn, 2)
        for edges in nx.all_simple_edge_paths(drawn, source, target)
    }
    assert set().union(*graph.relation_paths.levels) == expected


@given(GRAPHS, st.lists(GRAPHS, max_size=3), st.sampled_from(("shorter", "reference")))
def test_the_logical_score_is_algorithm_1(graph: Graph, references: list[Graph], longest) -> None:  # type: ignore[no-untyped-def]
    score = logical(graph, references, longest=longest)
    assert score == pytest.approx(float(algorithm_1(graph, references, longest)))
    assert 0 <= score <= 1


@given(GRAPHS, st.lists(GRAPHS, max_size=3))
def test_the_statistic_is_the_mean_of_two_jaccards_of_the_best_reference(
    graph: Graph, references: list[Graph]
) -> None:
    def share(one: set[str], other: set[str]) -> float:
        return len(one & other) / len(one | other) if one | other else 0.0

    def parts(g: Graph) -> tuple[set[str], set[str]]:
        return {x for h, _, t in g.triples for x in (h, t)}, {r for _, r, _ in g.triples}

    expected = [
        (share(parts(graph)[0], parts(each)[0]) + share(parts(graph)[1], parts(each)[1])) / 2
        for each in references
    ]
    assert statistic(graph, references) == pytest.approx(max(expected, default=0.0))


@given(GRAPHS)
def test_a_reference_is_as_good_as_itself(graph: Graph) -> None:
    if graph.entity_paths.levels:
        assert logical(graph, [graph]) == pytest.approx(1.0)
        assert logical(graph, [graph], longest="reference") == pytest.approx(1.0)
        assert logical(graph, [graph], identity="relations") == pytest.approx(1.0)
    if graph.triples:
        assert statistic(graph, [graph]) == 1.0


@given(GRAPHS, st.lists(GRAPHS, min_size=1, max_size=3), GRAPHS)
def test_another_reference_never_lowers_a_score(
    graph: Graph, references: list[Graph], more: Graph
) -> None:
    for score in (statistic, logical):
        assert score(graph, [*references, more]) >= score(graph, references)


def test_who_reasons_can_choose_k_and_the_option_takes_that_away() -> None:
    """The red team of MR-4: fragments pay .6 as printed, more than a chain with one mistake."""
    reference = chain(*"abcdef")
    fragments = Graph.of(Statement(a, "causes", b) for a, b in ("ab", "cd", "ef"))
    one_wrong = chain("a", "b", "x", "d", "e", "f")
    assert logical(fragments, [reference]) == pytest.approx(0.6)
    assert logical(one_wrong, [reference]) == pytest.approx((3 / 7 + 2 / 7) / 15)  # .048
    kept = {"longest": "reference"}
    assert logical(fragments, [reference], **kept) == pytest.approx(0.6 / 15)  # type: ignore[arg-type]
    assert logical(fragments, [reference], **kept) < logical(one_wrong, [reference], **kept)  # type: ignore[arg-type]


def test_the_worked_example() -> None:
    reference = chain("a", "b", "c")
    reasoned = Graph.of([Statement("a", "causes", "b"), Statement("a", "causes", "c")])
    assert logical(reasoned, [reference]) == pytest.approx(1 / 3)
    assert logical(reasoned, [reference], longest="reference") == pytest.approx(1 / 9)


def test_synonyms_merge_and_retrieval_wins() -> None:
    """`flu` and `influenza` are one entity; s = 0 and s = 1 are one triple with s = 1."""
    graph = Graph.of(
        [
            Statement("influenza", "has symptom", "fever"),
            Statement("FLU", "Has symptom", "fever", True),
            Statement("flu", "treated with", "rest"),
        ],
        lambda name: {"flu": "influenza"}.get(name.casefold(), name.casefold()),
    )
    assert graph.triples == {
        ("influenza", "has symptom", "fever"),
        ("influenza", "treated with", "rest"),
    }
    assert breadth(graph) == 0.5
    assert Graph.of([Statement("Gout", "r", "x")]).entities == {"gout", "x"}


SAID = st.lists(
    st.builds(
        Statement,
        st.sampled_from(["flu", "Flu"]),
        st.sampled_from(["causes", "Causes"]),
        st.sampled_from(["fever", "rash"]),
        st.booleans(),
    ),
    max_size=6,
)


@given(SAID)
def test_one_retrieved_statement_makes_the_triple_retrieved_wherever_it_stands(
    statements: list[Statement],
) -> None:
    """A later s = 0 does not take back an earlier s = 1: every order gives the same graph."""
    tails = {each.tail for each in statements}
    from_search = {each.tail for each in statements if each.retrieved}
    for ordered in itertools.islice(itertools.permutations(statements), 24):
        graph = Graph.of(ordered)
        assert graph.triples == {("flu", "causes", tail) for tail in tails}
        assert graph.retrieved == {("flu", "causes", tail) for tail in from_search}
        assert breadth(graph) == (len(from_search) / len(tails) if tails else 0)


def test_retrieval_first_and_last_is_retrieval() -> None:
    known, found = Statement("flu", "causes", "fever"), Statement("flu", "causes", "fever", True)
    for ordered in itertools.permutations([known, known, found]):
        assert breadth(Graph.of(ordered)) == 1


def test_the_clinic_gives_its_own_synonyms() -> None:
    said = "Lobar pneumonia often presents with fever. It is late."
    (found,) = clinic_graph.read_triples(said)
    graph = Graph.of([Statement(*found)], clinic_graph.canonical)
    assert graph.entities == {"community-acquired pneumonia", "fever"}


def test_nothing_scores_nothing() -> None:
    empty, one = Graph.of([]), chain("a", "b")
    for score in (statistic, logical):
        assert score(empty, [one]) == score(one, [empty]) == score(empty, [empty]) == 0
        assert score(one, []) == 0
    assert breadth(empty) == quality([]) == 0
    assert jaccard([], []) == 0


def test_a_loop_is_no_path_and_a_circle_ends() -> None:
    loop = Graph.of([Statement("a", "causes", "a")])
    assert loop.entity_paths.levels == ()
    assert logical(loop, [loop]) == 0
    circle = chain("a", "b", "c", "a")
    assert [len(level) for level in circle.entity_paths.levels] == [3, 3]


def test_a_dense_graph_is_cut_at_whole_levels_and_says_so() -> None:
    """Every ordered pair of 15 entities: 210 edges, far more simple paths than can be counted."""
    names = [f"e{k}" for k in range(15)]
    dense = Graph.of(Statement(a, "r", b) for a, b in itertools.permutations(names, 2))
    paths = dense.entity_paths
    assert paths.truncated
    assert [len(level) for level in paths.levels] == [15 * 14, 15 * 14 * 13]
    assert sum(map(len, paths.levels)) <= MOST_PATHS
    assert logical(dense, [dense]) == pytest.approx(1.0)
    for longest in ("shorter", "reference"):
        assert 0 <= logical(chain("e0", "e1"), [dense], longest=longest) <= 1  # type: ignore[arg-type]


@given(GRAPHS, st.integers(0, 40))
def test_what_was_cut_are_the_longer_paths(graph: Graph, most: int) -> None:
    whole = graph.entity_paths
    cut = simple_paths(((h, (), t) for h, _, t in graph.triples), most)
    assert cut.levels == whole.levels[: len(cut.levels)]
    assert cut.truncated == (len(cut.levels) < len(whole.levels))
    assert sum(map(len, cut.levels)) <= most


@given(st.lists(st.integers(1, 6), min_size=1, max_size=9))
def test_quality_is_the_mean_level_on_a_scale_of_six(levels: list[int]) -> None:
    expected = sum(Fraction(7 - e, 6) for e in levels) / len(levels)
    assert quality(levels) == pytest.approx(float(expected))


@pytest.mark.parametrize("wrong", [0, 7, -1])
def test_a_level_that_does_not_exist_is_refused(wrong: int) -> None:
    with pytest.raises(ValueError, match=f"not {wrong}"):
        quality([1, wrong])


@settings(max_examples=50)
@given(st.integers(0, 4), st.integers(0, 2**32 - 1))
def test_the_semantic_score_is_the_best_cosine_not_below_zero(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    drawn = rng.normal(size=(n + 1, 8))
    vector, *references = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    expected = max((float(np.dot(vector, each)) for each in references), default=0.0)
    found = semantic(vector, np.array(references).reshape(n, 8))
    assert found == pytest.approx(max(0.0, expected))


def test_three_searches_are_enough() -> None:
    assert [searched_enough(n) for n in range(5)] == [0, 0, 0, 1, 1]
    assert searched_enough(1, least=1) == 1
