r"""How ranked lists, orders and a diagnosis are read (ES-3): \DiffList, \ExamList and \boxed."""

from __future__ import annotations

import re
import time
import timeit
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workup.core.episode import Action
from workup.environments.base.lists import (
    LONGEST_NAME,
    MOST_ITEMS,
    boxed,
    errors_in,
    lists,
    read,
    written,
)
from workup.environments.base.lists import candidates as listed

SEPARATORS = ",，、;；\n"


def said(answer: str) -> Action:
    found = read(f"<think>hm</think><answer>{answer}</answer>")
    assert found.errors in (0, 1)  # the pair is right
    return found


def bare(action: Action) -> Action:
    return replace(action, parts=())


def candidates(content: str) -> tuple[str, ...]:
    return listed(said(rf"\DiffList{{{content}}}\ExamList{{}}"))


@pytest.mark.parametrize(
    ("content", "items"),
    [
        ("melanoma, seminoma", ("melanoma", "seminoma")),
        ("淋巴瘤，黑色素瘤、精原细胞瘤；脑膜瘤", ("淋巴瘤", "黑色素瘤", "精原细胞瘤", "脑膜瘤")),
        ("melanoma\nseminoma\n", ("melanoma", "seminoma")),
        # a comma between digits is part of a name
        ("17,20-lyase deficiency,melanoma", ("17,20-lyase deficiency", "melanoma")),
        ("CK7,CK20, S100,x", ("CK7", "CK20", "S100", "x")),
        # a separator in brackets splits nothing
        ("carcinoma (lung, breast), melanoma", ("carcinoma (lung, breast)", "melanoma")),
        ("癌（肺，乳腺），黑色素瘤", ("癌（肺，乳腺）", "黑色素瘤")),
        ("癌（肺, 乳腺), melanoma", ("癌（肺, 乳腺)", "melanoma")),
        ("a [x, y], b 【x，y】, c ((x, y), z)", ("a [x, y]", "b 【x，y】", "c ((x, y), z)")),
        ("MALT lymphoma with t(11;18)(q21;q21), x", ("MALT lymphoma with t(11;18)(q21;q21)", "x")),
        # a bracket that is never closed holds nothing together
        ("carcinoma (lung, breast", ("carcinoma (lung", "breast")),
        ("carcinoma) lung, (breast], x", ("carcinoma) lung", "(breast]", "x")),
        ("[a, (b], c)", ("[a, (b]", "c)")),
        # braces group and are no part of a name; escaped ones are
        ("{carcinoma, NOS}, melanoma", ("carcinoma, NOS", "melanoma")),
        (r"\text{melanoma}, \textbf{carcinoma, NOS}", ("melanoma", "carcinoma, NOS")),
        (r"a \{b\}, c", ("a {b}", "c")),
        (r"$\kappa$ light chain, $\beta$-catenin", ("kappa light chain", "beta-catenin")),
        (r"A\&B, 5\%", ("A&B", "5%")),
        (r"a\,b, c~d, e\\f", ("a b", "c~d", "e f")),
        # markdown, numbers and marks
        ("**melanoma**, *seminoma*, `x`, __y__", ("melanoma", "seminoma", "x", "y")),
        ("1. melanoma, 2) seminoma, (3) x, - y, • z", ("melanoma", "seminoma", "x", "y", "z")),
        ("1、黑色素瘤，2、精原细胞瘤", ("黑色素瘤", "精原细胞瘤")),
        ("1.5 cm mass, 1p/19q tumor", ("1.5 cm mass", "1p/19q tumor")),
        ("“melanoma”, seminoma.", ("melanoma", "seminoma")),
        ("melanoma,, ,seminoma,", ("melanoma", "seminoma")),
        ("melanoma, melanoma", ("melanoma", "melanoma")),
        ("", ()),
        (" , … ,", ()),
    ],
)  # fmt: skip
def test_what_is_an_item(content: str, items: tuple[str, ...]) -> None:
    assert candidates(content) == items


BOTH = r"\DiffList{a}\ExamList{b}"


@pytest.mark.parametrize(
    ("text", "action", "ranked"),
    [
        (written(BOTH), Action("order", ("b",)), ("a",)),
        # the opening tag of a thought is often the chat template's
        (f"hm</think><answer>{BOTH}</answer>", Action("order", ("b",)), ("a",)),
        (f"<THINK>hm</THINK>\n<Answer>{BOTH}</Answer>", Action("order", ("b",)), ("a",)),
        # the macros as models spell them
        (written(r"\\DiffList {a} \EXAMLIST**{b}"), Action("order", ("b",)), ("a",)),
        (written("DiffList{a} ExamList｛b｝"), Action("order", ("b",)), ("a",)),
        # of two lists the last counts, and what a thought holds is not read
        (written(rf"\DiffList{{x}}\ExamList{{y}}{BOTH}"), Action("order", ("b",)), ("a",)),
        (rf"<think>\boxed{{x}}</think><answer>{BOTH}</answer>", Action("order", ("b",)), ("a",)),
        (written(r"\boxed{x} \boxed{y}"), Action("diagnose", ("y",)), ("y",)),
        (written(rf"{BOTH}\boxed{{x}}"), Action("diagnose", ("x",)), ("x",)),
        (written(rf"\boxed{{x}}{BOTH}"), Action("order", ("b",)), ("a",)),
        (written(r"\boxed{x}\boxed{}"), Action("diagnose", ("x",)), ("x",)),
        # one within the other
        (written(rf"\boxed{{{BOTH}}}"), Action("order", ("b",)), ("a",)),
        (written(r"\DiffList{\boxed{a}, c}\ExamList{b}"), Action("order", ("b",)), ("a", "c")),
        (written(r"$$\boxed{\text{a b}}$$"), Action("diagnose", ("a b",)), ("a b",)),
        (written(r"\boxed{a, b}"), Action("diagnose", ("a, b",)), ("a, b",)),
        # no examination
        (written(r"\DiffList{a}\ExamList{None}"), Action("order", ()), ("a",)),
        (written(r"\DiffList{a}\ExamList{无}"), Action("order", ()), ("a",)),
        (written(r"\DiffList{}\ExamList{}"), Action("order", ()), ()),
        # errors of format: the pair
        (BOTH, Action("order", ("b",), 1), ("a",)),
        (f"<answer>{BOTH}</answer>", Action("order", ("b",), 1), ("a",)),
        (f"<think></think>{BOTH}", Action("order", ("b",), 1), ("a",)),
        (f"<think></think><answer>{BOTH}", Action("order", ("b",), 1), ("a",)),
        (f"{written(BOTH)}{written(BOTH)}", Action("order", ("b",), 1), ("a",)),
        (rf"<think>\boxed{{x}}</think><answer></think>{BOTH}", Action("order", ("b",), 1), ("a",)),
        # the lists
        (written(r"\DiffList{a}"), Action("order", (), 1), ("a",)),
        (written(r"\ExamList{b}"), Action("order", ("b",), 1), ()),
        (written(r"\DiffList{a, \ExamList{b}"), Action("order", ("b",), 1), ()),
        # both
        (r"\DiffList{a}", Action("order", (), 2), ("a",)),
        # nothing to read
        (written("melanoma"), Action("malformed", (), 1), ()),
        (written(r"\boxed{}"), Action("malformed", (), 1), ()),
        (written(r"\DiffList\{a\}"), Action("malformed", (), 1), ()),
        ("", Action("malformed", (), 2), ()),
    ],
)  # fmt: skip
def test_what_is_said(text: str, action: Action, ranked: tuple[str, ...]) -> None:
    found = read(text)
    assert (bare(found), listed(found)) == (action, ranked)


@pytest.mark.parametrize(
    ("text", "n_f"),
    [
        (written(BOTH), 0),
        (written(r"\DiffList{a}\ExamList{}"), 0),  # nothing need be ordered
        (written(r"\DiffList{None, a}\ExamList{b}"), 0),
        (written(r"\boxed{a}"), 0),
        (written(r"\DiffList{}\ExamList{b}"), 1),
        (written(r"\DiffList{None}\ExamList{b}"), 1),
        (written(r"\DiffList{}"), 1),
        (written(r"\ExamList{b}"), 1),
        (r"\DiffList{}\ExamList{b}", 2),
        (r"\ExamList{b}", 2),
        (rf"<think></think>{BOTH}", 1),
        ("", 2),
    ],
)
def test_a_list_without_a_candidate_is_one_error_of_format(text: str, n_f: int) -> None:
    assert errors_in(read(text)) == n_f


def test_a_list_alone_ends_the_encounter_where_it_ends_with_one() -> None:
    alone = written(r"\DiffList{a, b}")
    assert bare(read(alone, ranked=True)) == Action("diagnose", ("a", "b"))
    assert bare(read(written(BOTH), ranked=True)) == Action("order", ("b",))
    assert bare(read(written(r"\boxed{a}"), ranked=True)) == Action("diagnose", ("a",))
    assert bare(read(written(r"\DiffList{}"), ranked=True)) == Action("order", (), 1)


def test_long_lists_and_long_names_are_bounded() -> None:
    many = candidates(", ".join(f"tumor {number}x" for number in range(2 * MOST_ITEMS)))
    assert len(many) == MOST_ITEMS
    assert many[-1] == f"tumor {MOST_ITEMS - 1}x"
    assert candidates("x" * 10_000) == ("x" * LONGEST_NAME,)
    assert len(candidates(", ".join(f"tumor {number}x" for number in range(50)))) == 50


PARTS = st.sampled_from(("a", "b c", ", ", "，", "; ", " (a, b)", "（a，b）", " [b]", "-", "1. "))
names = st.lists(PARTS, max_size=6).map(lambda parts: " ".join(f"x{''.join(parts)}y".split()))
many = st.lists(names, max_size=5)


@given(many, many)
def test_what_is_written_is_read_back(ranked: list[str], ordered: list[str]) -> None:
    found = read(written(lists(ranked, ordered)))
    assert (bare(found), listed(found)) == (Action("order", tuple(ordered)), tuple(ranked))
    assert errors_in(found) == (not ranked)


@given(names)
def test_a_diagnosis_is_read_back(name: str) -> None:
    assert listed(read(written(boxed(name)))) == (name,)


def split_by_depth(content: str) -> list[str]:
    """An oracle for well nested brackets: what stands outside of them is split."""
    depth, parts = 0, [""]
    for sign in content:
        depth += (sign in "([{") - (sign in ")]}")
        if depth == 0 and sign in SEPARATORS:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts if re.search("[ab]", part)]


nested = st.recursive(
    st.text(alphabet="ab,;", min_size=1, max_size=4),
    lambda inner: st.tuples(st.sampled_from(["()", "[]"]), inner, inner).map(
        lambda found: f"a{found[0][0]}{found[1]}{found[0][1]}{found[2]}"
    ),
    max_leaves=8,
)


@given(nested)
def test_separators_in_brackets_split_nothing(content: str) -> None:
    assert list(candidates(content)) == split_by_depth(content)


PIECES = st.sampled_from(
    (
        *("\\DiffList{", "\\ExamList{", "\\boxed{", "}", "{", "(", ")", "（", "】", "[", ",", "，"),
        *("\\", "x", "<think>", "</think>", "<answer>", "</answer>", "\n", "**", "$", "1."),
    )
)


@given(st.lists(PIECES, max_size=40).map("".join) | st.text(max_size=80), st.booleans())
def test_reading_never_fails(text: str, ranked: bool) -> None:
    found = read(text, ranked)
    assert found.kind in ("order", "diagnose", "malformed")
    assert 0 <= found.errors <= errors_in(found) <= 2
    assert errors_in(found) > 0 or listed(found)
    assert found.errors > 0 or found.kind != "malformed"
    assert (found.kind == "diagnose") <= bool(found.content)
    assert all(name.strip() for name in (*listed(found), *found.content))


@pytest.mark.long
@pytest.mark.parametrize(
    "unit",
    [
        *("\\DiffList{", "\\DiffList{}", "\\boxed{", "\\boxed{x}", "\\boxed{\\DiffList{", "{", "}"),
        *("(", ")", "({", "([", "(]", "x,", "<think>", "<answer>", "\\", "DiffList", "**", "1."),
        *("\\boxed{\\boxed{x}}", "（{）}", "\\text{", "[(]"),
    ],
)
def test_reading_is_linear(unit: str) -> None:
    def seconds(count: int) -> float:
        texts = [f"\\boxed{{\\DiffList{{{unit * count}}}{number}" for number in range(3)]
        clock = time.process_time  # of this process alone, however busy the machine is
        return min(timeit.timeit(partial(read, text), timer=clock, number=1) for text in texts)

    assert seconds(16_000) < 40 * seconds(1_000) + 0.05
