"""The exact judge."""

from __future__ import annotations

import asyncio

import pytest

from workup.core.case import Case, Truth
from workup.roles.judges.exact import ExactJudge

CASE = Case(
    "1", "", Truth("Crohn's disease", codes=("K50.9", "K50"), aliases=("Regional enteritis", ""))
)


@pytest.mark.parametrize(
    "answer",
    ["crohns DISEASE.", "the Crohn’s disease", "regional-enteritis", "K50.9", " k509 ", "K50"],
)
def test_names_aliases_and_codes_of_the_truth_are_right(answer: str) -> None:
    assert asyncio.run(ExactJudge().same(answer, CASE))


@pytest.mark.parametrize(
    "answer",
    [
        "Crohn",
        "Crohn's disease of the colon",
        "K50.91",
        "K5",
        "",
        " ",
        "?",
        "..",
        "ulcerative colitis",
    ],
)
def test_everything_else_is_wrong(answer: str) -> None:
    assert not asyncio.run(ExactJudge().same(answer, CASE))


@pytest.mark.parametrize(
    "written", ["!{}", "~{}", "{}?", "?{}", "{} (?)", "not {}", "{} was ruled out", "possibly {}"]
)
@pytest.mark.parametrize("name", ["Crohn's disease", "regional enteritis", "K50.9"])
def test_a_denied_or_doubted_name_is_not_the_name(written: str, name: str) -> None:
    assert not asyncio.run(ExactJudge().same(written.format(name), CASE))


@pytest.mark.parametrize(
    ("answer", "truth", "right"),
    [
        ("norovirus infection (no)", "Norovirus infection", False),
        ("nephrotic syndrome (none)", "Nephrotic syndrome", False),
        ("nephrotic syndrome (NS)", "Nephrotic syndrome", True),
        ("1. Final diagnosis: Asthma", "Asthma", True),
    ],
)
def test_a_bracket_that_denies_is_no_abbreviation(answer: str, truth: str, right: bool) -> None:
    assert asyncio.run(ExactJudge().same(answer, Case("1", "", Truth(truth)))) == right


@pytest.mark.parametrize("joined", ["or", "OR", "vs.", "VS"])
def test_a_list_is_partly_right_whatever_its_letters(joined: str) -> None:
    case = Case("1", "", Truth("Asthma"))
    assert asyncio.run(ExactJudge().grade(f"Asthma {joined} gout", case)) == 0.5
