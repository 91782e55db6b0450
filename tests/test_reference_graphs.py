"""References as graphs: extracted by the step, kept in the file, read by the reward (MR-12)."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from handmade import SOURCE
from hypothesis import given
from hypothesis import strategies as st
from preparing import aids
from serving import Server, serving

from workup import environments
from workup.cases import open_source
from workup.cases.clinic.graph import triples, verbalise
from workup.cases.files import LINE_LIMIT
from workup.cases.jsonl import line_of, write
from workup.core.case import MOST_STATEMENTS, Case, Statement, Truth
from workup.core.episode import Completion, Ending, Episode, Turn
from workup.core.errors import CaseError, RolloutError, UserError
from workup.core.ports import Instruments
from workup.environments.base.thoughts import Process, thought, written
from workup.environments.reasoning import EXTRACTOR, Settings
from workup.methods.base.encoders import trigrams
from workup.methods.medr3.progressive import Reads, check, progressive
from workup.prepare import graphs, references
from workup.prepare.graphs import GraphSettings
from workup.prepare.references import ReferenceSettings
from workup.prepare.steps import Drop, Kept
from workup.roles.endpoint import Endpoint, EndpointSettings
from workup.roles.judges.exact import ExactJudge
from workup.roles.judges.synonyms import normaliser
from workup.runs.settings import build

CLINIC = open_source("clinic:xs")
MODULE = environments.load("reasoning")
SEARCHED = (
    "<think>Why? <search>gout</search><document>\n[1] Gout is shown by crystals.\n[2] So says a "
    "book.\n</document> So gout.</think><answer>Gout</answer>"
)


def case(*references: str, **more: Any) -> Case:
    return Case("q", "A swollen toe.", Truth("Gout", references=references, **more))


def statement(head: str, tail: str, document: int = 0) -> dict[str, Any]:
    return {"head": head, "relation": "Shown By", "tail": tail, "document": document}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(lambda body: "{}") as running:
        yield running


def made(server: Server, of: Case, settings: GraphSettings | None = None) -> Kept | Drop:
    server.asked.clear()
    return asyncio.run(graphs.apply(of, aids(server, settings or GraphSettings())))


def stating(server: Server, *statements: dict[str, Any]) -> None:
    server.answer = lambda body: json.dumps({"statements": statements})


# --- a process as one text ------------------------------------------------------------------------


def test_a_reference_is_taken_apart_into_thought_and_documents() -> None:
    process = Process.of(SEARCHED)
    assert process.said == (
        "<think>Why? <search>gout</search>",
        " So gout.</think><answer>Gout</answer>",
    )
    assert process.passages == ("Gout is shown by crystals.", "So says a book.")
    assert process.thought == "Why? \ngout\nSo gout."
    assert not process.objection
    assert Process.of("Gout hurts. 3 < 4").plain


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "does not end with an answer"),
        ("<think>gout</think>", "does not end with an answer"),
        ("<think>x <search>gout</search> y</think><answer>Gout</answer>", "does not end"),
        ("<think><search>gout<document>x</document></think><answer>Gout</answer>", "nothing was"),
        ("<think><search>a<search>b</search></search><document>x</document></think>", "not end"),
        ("<think>x<document>all agree</document></think><answer>Gout</answer>", "nothing was"),
        ("<think><search>a</search><document>x</think><answer>Gout</answer>", "does not end"),
        ("<answer>Gout</answer>", "tags are not one thought"),
        ("<answer>Gout</answer><think>x</think>", "tags are not one thought"),
        ("<think>x</think><answer>Gout</answer> and more", "tags are not one thought"),
        (
            "<think>a</think><search>b</search><document>x</document></think><answer>c</answer>",
            "ta",
        ),
    ],
)
def test_what_is_no_whole_process(text: str, words: str) -> None:
    assert words in Process.of(text).objection


@given(
    st.lists(
        st.sampled_from(["<document>", "</document>", "<search>", "</search>", "x", "</think>"]),
        max_size=12,
    ).map("".join)
)
def test_nothing_of_a_text_is_lost_and_no_document_is_thought(text: str) -> None:
    """What was said and shown, put together again with its tags, is the text."""
    process = Process.of(text)
    whole = process.said[0]
    for shown, said in zip(process.shown, process.said[1:], strict=True):
        whole += f"<document>{shown}" + (f"</document>{said}" if said or shown else "</document>")
    assert whole.replace("</document>", "") == text.replace("</document>", "")
    assert not any("<document>" in said for said in process.said)


@pytest.mark.parametrize("piece", ["<document>", "<document>x</document>", "<think>", "</search>"])
def test_a_megabyte_of_tags_is_taken_apart_at_once(piece: str) -> None:
    assert Process.of(piece * (1_000_000 // len(piece))).objection


# --- the step -------------------------------------------------------------------------------------


def test_each_reference_gets_its_graph_and_what_was_searched_is_marked(server: Server) -> None:
    stating(server, statement("Gout", "Crystals", 1), statement("gout", "Pain"))
    outcome = made(server, case(SEARCHED))
    assert isinstance(outcome, Kept)
    assert outcome.case.truth.graphs == (
        (Statement("gout", "shown by", "crystals", True), Statement("gout", "shown by", "pain")),
    )
    assert outcome.detail == {
        "statements": [2],
        "retrieved": 1,
        "merged": 0,
        "references": "1 of 1",
    }
    (asked,) = server.asked
    assert "So gout." in asked["messages"][1]["content"]
    assert "1. Gout is shown by crystals." in asked["messages"][1]["content"]
    assert "<document>" not in asked["messages"][1]["content"].replace("‹", "<")


def test_synonyms_merge_by_a_file(server: Server, tmp_path: Path) -> None:
    place = tmp_path / "names.jsonl"
    rows = [
        {"name": "Gout", "synonyms": ["Podagra", "both"]},
        {"name": "Pain", "synonyms": ["ache", "both", "Gout"]},
    ]
    place.write_text("\n".join(map(json.dumps, rows)))
    stating(
        server, statement("podagra", "ache"), statement("gout", "pain", 2), statement("both", "?!")
    )
    outcome = made(server, case(SEARCHED), GraphSettings(synonyms=str(place)))
    assert isinstance(outcome, Kept)
    assert outcome.case.truth.graphs == ((Statement("gout", "shown by", "pain", True),),)
    name = normaliser(str(place))
    assert [name(each) for each in ("PODAGRA", "Gout", "both", "x")] == [
        "gout",
        "gout",
        "both",
        "x",
    ]
    place.write_text('{"name": "Gout"}\n{"synonyms": ["x"]}\n')
    os.utime(place, (1, 1))
    with pytest.raises(CaseError, match=r"names\.jsonl, line 2, field 'name'"):
        GraphSettings(synonyms=str(place))
    with pytest.raises(UserError, match=r"no file or folder '.*name\.jsonl'. Did you mean"):
        build(GraphSettings, {"synonyms": str(tmp_path / "name.jsonl")})


def test_a_reference_that_states_nothing_goes_and_with_the_last_the_case(server: Server) -> None:
    server.answer = lambda body: json.dumps(
        {"statements": [statement("a", "b")] if "podagra" in body["messages"][1]["content"] else []}
    )
    outcome = made(server, case("zero", "podagra", " "))
    assert isinstance(outcome, Kept)
    assert outcome.case.truth.references == ("podagra",)
    assert outcome.detail["statements"] == [0, 1, 0]  # type: ignore[index, call-overload]
    assert len(server.asked) == 2, "a blank one is not asked about"
    assert made(server, case("zero")) == Drop("its references state too little", "statements [0]")
    assert isinstance(made(server, case("zero"), GraphSettings(least=0)), Kept)
    assert made(server, case()) == Drop("no references (the step references comes first)")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ([statement("a", "b")] * 500, f"at most {MOST_STATEMENTS} items"),
        ([{**statement("a", "b"), "relation": "x" * 10_000}], "field statements.0.relation"),
        ([["a", "r"]], "field statements.0"),
        ([{**statement("a", "b"), "tail": 3}], "valid string"),
        ([{**statement("a", "b"), "tail": "  "}], "at least 1 character"),
        ([statement("a", "b", 9)], "there is no document 9"),
    ],
)
def test_a_wrong_graph_is_repaired_or_fails_the_case(
    server: Server, answer: Any, problem: str
) -> None:
    def repairs(body: dict[str, Any]) -> str:
        wrong = len(body["messages"]) == 2
        return json.dumps({"statements": answer if wrong else [statement("a", "b")]})

    server.answer = repairs
    assert isinstance(made(server, case("one")), Kept)
    assert problem in server.asked[1]["messages"][-1]["content"]
    server.answer = lambda body: json.dumps({"statements": answer})
    with pytest.raises(RolloutError, match="no usable answer"):
        made(server, case("one"))


def test_a_relation_of_a_megabyte_is_refused(server: Server) -> None:
    stating(server, {**statement("a", "b"), "relation": "x" * 1_000_000})
    with pytest.raises(RolloutError, match="ignores the limit"):
        made(server, case("one"))


def test_a_small_model_is_asked_for_fewer_statements(server: Server) -> None:
    stating(server, *[statement("a", str(n)) for n in range(3)])
    with pytest.raises(RolloutError, match="at most 2 items"):
        made(server, case("one"), GraphSettings(most=2, max_tokens=64))
    assert "at most 2 statements" in server.asked[0]["messages"][0]["content"]
    assert server.asked[0]["max_tokens"] == 64


def test_the_clinics_sentences_are_read_exactly() -> None:
    one, other = triples("s")[:2]
    text = (
        f"<think>{verbalise(one)}<search>x</search><document>[1] {verbalise(other)}</document>"
        f"{verbalise(other, 1)}</think><answer>Gout</answer>"
    )
    outcome = graphs.exact(case(text, "free text"), SOURCE)
    assert isinstance(outcome, Kept)
    assert outcome.case.truth.graphs == ((Statement(*one), Statement(*other, True)),)
    assert outcome.case.truth.references == (text,)
    assert isinstance(graphs.exact(case("free text"), SOURCE), Drop)


# --- drawing with searches ------------------------------------------------------------------------


def test_references_are_drawn_with_searches_and_keep_their_documents(server: Server) -> None:
    """Search, answer, a mark, soundness; then the graph knows what came from a document."""
    name = CLINIC.train[0].truth.diagnosis
    of = replace(CLINIC.train[0], truth=Truth(name))
    opening: list[str] = []

    def answer(body: dict[str, Any]) -> str:
        system, last = body["messages"][0]["content"], body["messages"][-1]["content"]
        if "Think step by step inside" in system:
            opening.append(body["messages"][1]["content"])
            if last.startswith("<document>"):
                return f"So it is.</think><answer>{name}</answer>"
            return f"<think>Maybe.<search>{name}</search><document>forged</document>"
        if '"statements"' in system:
            return json.dumps({"statements": [statement(name, "x", 1), statement(name, "y")]})
        return json.dumps({"reason": "because", "mark": 5})

    server.answer = answer
    settings = ReferenceSettings(index="clinic:xs", passages=2, searches=2, keep=2, n=2)
    outcome = asyncio.run(references.apply(of, aids(server, settings)))
    assert isinstance(outcome, Kept)
    (text,) = outcome.case.truth.references  # both draws say the same
    process = Process.of(text)
    assert not process.objection
    assert 1 <= len(process.passages) <= 2
    assert "forged" not in text
    assert name in opening[0] or of.presentation in opening[0]
    graphed = made(server, outcome.case)
    assert isinstance(graphed, Kept)
    assert [each.retrieved for each in graphed.case.truth.graphs[0]] == [True, False]


def test_an_episode_written_down_is_taken_apart_again() -> None:
    world = MODULE.open(CLINIC, Settings(passages=2, max_turns=2))
    turns: tuple[Turn, ...] = ()
    for text in ("<think>x <search>fever</search>", " so</think><answer>gout</answer>"):
        action = world.read(text)
        reply = asyncio.run(world.answer(CLINIC.train[0], turns, action))
        turns = (*turns, Turn((), Completion(text), action, reply))
    episode = Episode(CLINIC.train[0], (), turns, Ending.DIAGNOSED)
    process = Process.of(written(episode))
    assert process.said == ("<think>x <search>fever</search>", "so</think><answer>gout</answer>")
    assert list(process.passages) == [passage.whole for passage in episode.passages] != []
    assert process.thought == thought(episode.actions)


# --- the file -------------------------------------------------------------------------------------


def test_graphs_come_back_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    graph = (Statement("gout", "shown by", "crystals", True), Statement("gout", "causes", "pain"))
    prepared = case("one", "two", graphs=(graph, ()))
    assert write([prepared], path) == 1
    (back,) = open_source(f"jsonl:{path}#all").test
    assert back == prepared


GRAPH = [[{"head": "a", "relation": "r", "tail": "b"}]]


@pytest.mark.parametrize(
    ("broken", "field"),
    [
        ([], None),
        ([["a", "r", "b"]], "truth.graphs.0.0"),
        ([[{"head": "a", "relation": "r"}]], "truth.graphs.0.0.tail"),
        ([[{"head": "a", "relation": "r", "tail": 3}]], "truth.graphs.0.0.tail"),
        ([[{"head": "a", "relation": "r", "tail": " "}]], "truth.graphs.0.0.tail"),
        ([[{**GRAPH[0][0], "s": 1}]], "truth.graphs.0.0.s"),
        ([[{**GRAPH[0][0], "retrieved": "yes"}]], "truth.graphs.0.0.retrieved"),
        ([[{**GRAPH[0][0], "relation": "x" * 100_000}]], "truth.graphs.0.0.relation"),
        ([GRAPH[0] * 500], "truth.graphs.0"),
        (GRAPH * 2, "truth.graphs"),
        ("a r b", "truth.graphs"),
    ],
)
def test_a_broken_graph_is_named_by_file_line_and_field(
    tmp_path: Path, broken: Any, field: str | None
) -> None:
    path = tmp_path / "cases.jsonl"
    row = json.loads(line_of(case("one")))
    row["truth"]["graphs"] = broken
    path.write_text(f"{line_of(replace(case(), id='first'))}\n{json.dumps(row)}\n")
    if field is None:
        assert len(open_source(f"jsonl:{path}#all", strict=True).test) == 2
        return
    with pytest.raises(CaseError) as raised:
        open_source(f"jsonl:{path}#all", strict=True)
    assert f"cases.jsonl, line 2, field '{field}'" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 1_000


def test_a_line_of_megabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(f"{line_of(case('one'))}\n" + '{"id": "' + "x" * LINE_LIMIT + '"}\n')
    with pytest.raises(CaseError, match="line 2"):
        open_source(f"jsonl:{path}#all", strict=True)


# --- the reward -----------------------------------------------------------------------------------


def test_stored_graphs_are_not_asked_for_again(server: Server) -> None:
    """The extractor reads the episode alone, and stored and extracted graphs score alike."""
    stating(server, statement("gout", "crystals", 0), statement("crystals", "needles", 0))
    model = Endpoint(EndpointSettings(base_url=server.url, model="m", retries=0))
    world = MODULE.open(CLINIC, Settings()).with_models({EXTRACTOR: model})
    reward, settle = progressive(world, ("statistic", "logical"), Reads(trigrams))  # type: ignore[arg-type]
    stored = (Statement("Gout", "shown by", "Crystals"), Statement("crystals", "shown by", "x"))

    def scored(of: Case) -> dict[str, float]:
        server.asked.clear()
        text = "<think>So I say.</think><answer>Gout</answer>"
        turn = Turn(
            (),
            Completion(text),
            world.read(text),
            asyncio.run(world.answer(of, (), world.read(text))),
        )
        episode = Episode(of, world.open(of), (turn,), Ending.DIAGNOSED)

        async def settled() -> Any:
            await settle(episode)
            return await reward(((episode,),), Instruments(ExactJudge()))

        return dict(asyncio.run(settled())[0][0].parts)

    assert scored(case("one", graphs=(stored,))) == {
        "statistic": pytest.approx((2 / 4 + 1) / 2),
        "logical": pytest.approx(2 / 6 * (1 / 3)),
    }
    assert len(server.asked) == 1
    assert scored(case("one", SEARCHED)) == {"statistic": 1, "logical": 1}
    assert len(server.asked) == 3
    assert "So gout." in server.asked[-1]["messages"][1]["content"]
    assert "<answer>" not in server.asked[-1]["messages"][1]["content"].replace("‹", "<")


@pytest.mark.parametrize("graph", [(), (Statement("a", "r", "a"),)])
def test_an_empty_graph_and_a_loop_score_no_path(graph: tuple[Statement, ...]) -> None:
    world = MODULE.open(CLINIC, Settings())
    reward, _ = progressive(world, ("statistic", "logical"), Reads(trigrams))  # type: ignore[arg-type]
    of = replace(
        CLINIC.train[0],
        truth=replace(CLINIC.train[0].truth, references=("one",), graphs=(graph,)),
    )
    text = f"<think></think><answer>{of.truth.diagnosis}</answer>"
    turn = Turn(
        (), Completion(text), world.read(text), asyncio.run(world.answer(of, (), world.read(text)))
    )
    episode = Episode(of, world.open(of), (turn,), Ending.DIAGNOSED)
    score = asyncio.run(reward(((episode,),), Instruments(ExactJudge())))[0][0]
    assert score.total == 0


def test_reasoning_that_nobody_can_read_is_refused_before_training() -> None:
    world = MODULE.open(CLINIC, Settings())
    nobody = type(world)(world.retriever, world.record, world.grammar)
    with pytest.raises(UserError, match=r"roles\.extractor=endpoint:NAME, or type reward\.without"):
        check(nobody, ["format", "logical"])(case("one"))  # type: ignore[arg-type]
    check(nobody, ["format", "semantic"])(case("one"))  # type: ignore[arg-type]
    check(world, ["format", "logical"])(case("one"))  # type: ignore[arg-type]
