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
