"""What demonstrations in a library search for."""

from __future__ import annotations

import numpy as np
import pytest

from workup.core.case import Case, Fact, Source, Truth
from workup.core.errors import UserError
from workup.environments.base.queries import known_findings, mentioned, random_query
from workup.environments.base.searching import SearchGrammar

CASE = Case(
    "p1",
    "A man of 50.",
    Truth("Gout", facts=(Fact("f2", "swelling", "The toe is swollen."),)),
    given=(Fact("f1", "", "He works on a farm."), Fact("f3", "toe pain", "His toe hurts.")),
)
PLAIN = Source("plain", train=[CASE], test=[CASE])


def test_a_fact_without_a_name_is_nothing_to_search_for() -> None:
    told = SearchGrammar(told="presentation")
    assert known_findings(PLAIN, CASE, told) == ["toe pain"]
    assert known_findings(PLAIN, CASE, SearchGrammar(told="record")) == ["toe pain", "swelling"]


def test_where_nothing_can_be_searched_for_one_is_told_so() -> None:
    rng = np.random.default_rng(0)
    assert random_query(PLAIN, ["toe pain"], [], rng) == "toe pain"
    with pytest.raises(UserError, match="no demonstrations can be made from 'plain': it needs"):
        random_query(PLAIN, [], [], rng)


@pytest.mark.parametrize("blank", ["", "?", " "])
def test_a_name_without_letters_is_mentioned_nowhere(blank: str) -> None:
    assert mentioned(("Gout hurts. Gout swells.",), ("gout", blank)) == ("gout",)
    assert mentioned(("Gout hurts.",), (blank,)) == ()
