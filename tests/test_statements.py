"""Readers of reasoning processes and of evidence levels: by a model behind a server, and exact."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from serving import Server, saying, serving

from workup.cases.clinic.graph import Triple, read_triples, triples, verbalise
from workup.cases.clinic.library import library
from workup.core.case import LONGEST_ENTITY, MOST_STATEMENTS, Passage, Statement
from workup.core.errors import RolloutError
from workup.roles.endpoint import Endpoint, EndpointSettings
from workup.roles.judges.levels import ModelLevels
from workup.roles.judges.statements import ExactStatements, ModelStatements

GOUT = {"head": "gout", "relation": "shown by", "tail": "urate crystals", "document": 0}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(lambda body: "{}") as running:
        yield running


@pytest.fixture
def model(server: Server) -> Endpoint:
    server.asked.clear()
    return Endpoint(EndpointSettings(base_url=server.url, model="m", retries=0))


def read(reader: Any, reasoning: str, *documents: str) -> tuple[Statement, ...]:
    return asyncio.run(reader.read(reasoning, documents))  # type: ignore[no-any-return]


def test_the_exact_reader_marks_what_a_document_says_too() -> None:
    one, other, third = triples("s")[:3]
    reasoning = f"So I think. {verbalise(one)} {verbalise(other, 1)}"
    found = read(ExactStatements(), reasoning, f"A text. {verbalise(other)}", verbalise(third))
    assert found == (Statement(*one, False), Statement(*other, True))


def test_a_statement_whose_words_state_nothing_alone_is_left_out() -> None:
    """The second clause states something. Its words stand first within a clause that does not."""
    clause = "fever is treated-with x belongs to the family y"
    text = f"{clause}. {clause.replace('treated-with', 'treated with')}."
    (stated,) = read_triples(text)
    assert stated.tail == "y"
    assert ExactStatements().stated(text) == ()


def test_a_model_reads_statements_and_their_documents(server: Server, model: Endpoint) -> None:
    saying(server, {"statements": [GOUT, {**GOUT, "tail": "tophi", "document": 2}]})
    found = read(ModelStatements(model), "It is gout.", "one", "two")
    assert found == (
        Statement("gout", "shown by", "urate crystals", False),
        Statement("gout", "shown by", "tophi", True),
    )
    (asked,) = server.asked
    assert "It is gout." in asked["messages"][1]["content"]
    assert "2. two" in asked["messages"][1]["content"]


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"statements": [{**GOUT, "document": 3}]}, "there is no document 3"),
        ({"statements": [{**GOUT, "document": -1}]}, "greater than or equal to 0"),
        ({"statements": [GOUT] * (MOST_STATEMENTS + 400)}, f"at most {MOST_STATEMENTS} items"),
        ({"statements": [{**GOUT, "relation": "x" * 10_000}]}, f"at most {LONGEST_ENTITY}"),
        ({"statements": [{**GOUT, "tail": ""}]}, "at least 1 character"),
        ({"statements": [{**GOUT, "tail": ["a", "b"]}]}, "valid string"),
        ({"statements": [{"head": "gout", "tail": "x"}]}, "required"),
        ({"triples": []}, "required"),
    ],
)
def test_a_wrong_answer_is_repaired_or_refused(
    wrong: Any, problem: str, server: Server, model: Endpoint
) -> None:
    """What is wrong is said to the model; an answer that stays wrong is an error, not a graph."""
    saying(server, wrong, {"statements": [GOUT]})
    assert read(ModelStatements(model), "It is gout.", "one") == (
        Statement("gout", "shown by", "urate crystals"),
    )
    assert problem in server.asked[1]["messages"][-1]["content"]
    saying(server, wrong)
    with pytest.raises(RolloutError, match="no usable answer"):
        read(ModelStatements(model), "It is gout.", "one")


def test_nothing_is_read_from_nothing(server: Server, model: Endpoint) -> None:
    assert read(ModelStatements(model), " \n ", "a document") == ()
    assert server.asked == []


def test_the_exact_reader_takes_no_more_than_a_model_may() -> None:
    many = "\n".join(verbalise(triple) for triple in triples("full")[: MOST_STATEMENTS + 50])
    assert len(read(ExactStatements(), many)) == MOST_STATEMENTS


def test_every_statement_of_the_clinics_documents_is_retrieved() -> None:
    """An answer that only repeats its documents has breadth 1."""
    document = next(each for each in library("s") if read(ExactStatements(), each.text))
    assert all(each.retrieved for each in read(ExactStatements(), document.text, document.text))
    assert isinstance(triples("s")[0], Triple)


# --- levels ---------------------------------------------------------------------------------------


def test_each_text_is_asked_about_once(server: Server, model: Endpoint) -> None:
    saying(server, {"reason": "trial", "level": 2})
    judge, one, other = ModelLevels(model), Passage("1", "A trial."), Passage("2", "A case.")
    assert asyncio.run(judge.levels([one, other, one, Passage("3", "A trial.")])) == (2, 2, 2, 2)
    assert asyncio.run(judge.levels([other])) == (2,), "in another event loop too"
    assert len(server.asked) == 2


def test_a_level_that_does_not_exist_is_an_error_and_is_asked_again(
    server: Server, model: Endpoint
) -> None:
    saying(server, {"reason": "?", "level": 7})
    judge = ModelLevels(model)
    with pytest.raises(RolloutError, match="no usable answer"):
        asyncio.run(judge.levels([Passage("1", "A trial.")]))
    saying(server, {"reason": "trial", "level": 2})
    assert asyncio.run(judge.levels([Passage("1", "A trial.")])) == (2,)
