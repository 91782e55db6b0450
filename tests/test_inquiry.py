"""Questions to a patient and searches in a library, in one grammar and one budget."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from handmade import CASES, ITEMS, SOURCE, Script, play
from hpo_world import patient, patients, release
from hypothesis import given
from hypothesis import strategies as st
from library_world import DOCUMENTS, open_shelf
from rich.console import Console
from serving import serving

import workup
from workup.cases import open_source
from workup.cases.clinic.renamed import called
from workup.cli.play import play as play_here
from workup.core.case import Case, Document
from workup.core.episode import Action, Ending
from workup.core.errors import UserError
from workup.core.ports import Demonstration, Teaching
from workup.environments.base.patients import UNKNOWN
from workup.environments.base.recorded import CONCLUDE
from workup.environments.base.searching import SearchGrammar, evidence
from workup.environments.base.teacher import drawn_case
from workup.environments.consultation import Consultation
from workup.environments.inquiry import UNREADABLE, Inquiry
from workup.environments.library import library_of
from workup.metrics.measures import measure
from workup.retrieval.batching import BatchedRetriever
from workup.retrieval.hpo.library import build
from workup.retrieval.index import Index, IndexSettings
from workup.roles.endpoint import Endpoint, EndpointSettings
from workup.runs.settings import world

CLINIC, RENAMED = open_source("clinic:s"), open_source("clinic:s#renamed")


def run_models(*documents: Document, **how: Any) -> Inquiry:
    """The inquiry over these documents, by default all of the small world's."""
    index = Index.of(documents or DOCUMENTS)
    grammar = replace(SearchGrammar(told="presentation", asks=True), **how)
    return Inquiry(BatchedRetriever(index.find), Consultation(ITEMS, SOURCE.diagnoses), grammar)


def opened(place: Any, **how: Any) -> Inquiry:
    found = world({"name": "inquiry", **how}, {}).open(place)
    assert isinstance(found, Inquiry)
    return found


DESK = run_models()
PIECES = st.sampled_from(
    [
        *("<ask>", "</ask>", "<search>", "</search>", "<refine>", "</refine>", "<diagnosis>"),
        *("</diagnosis>", "<evidence>", "</evidence>", "<think>", "</think>"),
        *("fever", "; ", " ", "Flu", "<|im_end|>", "\n"),
    ]
)


# --- the grammar ---


@pytest.mark.parametrize(
    ("text", "action", "refinement"),
    [
        ("<ask>Do you  cough; at night?</ask>", Action("ask", ("Do you cough; at night?",)), ""),
        ("<refine>a</refine><ask>fever</ask> ", Action("ask", ("fever",)), "a"),
        ("<think>so</think><ask>fever</ask>", Action("ask", ("fever",)), ""),
        ("<ask>fever</ask><search>b</search>", Action("ask", ("fever",), 1), ""),
        ("<ask> ? </ask><search>b</search>", Action("search", ("b",), 1), ""),
        ("<ask>fever<search>b; c</search>", Action("search", ("b", "c"), 1), ""),
        ("<search>b</ask><diagnosis>Flu</diagnosis>", Action("diagnose", ("Flu",), 2), ""),
        ("fever?", Action("malformed", (), 1), ""),
        (f"<ask>{'x' * 501}</ask>", Action("ask", ("x" * 500,), 1), ""),
    ],
)
def test_the_parse(text: str, action: Action, refinement: str) -> None:
    said = DESK.read(text)
    assert replace(said, parts=()) == action
    assert " ".join(said.part("refine")) == refinement


@given(st.lists(PIECES, max_size=25).map("".join))
def test_what_is_read_without_an_error_is_whole_blocks_and_one_action(text: str) -> None:
    action = DESK.read(text)
    assert (action.kind == "malformed") == (not action.content)
    for content in action.content:
        assert not re.search(r"</?(ask|search|refine|evidence|diagnosis|think)>", content)
    if not action.errors:
        whole = re.sub(r"^((?!</?(ask|search|refine|diagnosis)>).)*?</think>", "", text, flags=re.S)
        blocks = re.sub(r"<(think|refine)>(?:(?!</?[a-z]+>).)*</\1>", "", whole, flags=re.S)
        tag = {"diagnose": "diagnosis"}.get(action.kind, action.kind)
        assert re.findall(r"</?(?:ask|search|refine|evidence|diagnosis|think)>", blocks) == [
            f"<{tag}>",
            f"</{tag}>",
        ]


@given(st.lists(PIECES, max_size=12).map("".join))
def test_without_questions_their_tag_is_ordinary_text(text: str) -> None:
    library = open_shelf(SearchGrammar())
    other = text.replace("<ask>", "(ask)").replace("</ask>", "(/ask)")
    found, expected = library.read(text), library.read(other)
    assert (found.kind, found.errors) == (expected.kind, expected.errors)


@pytest.mark.parametrize(
    ("lines", "well"),
    [
        (["<ask>fever</ask>", "<diagnosis>Flu</diagnosis>"], True),
        (["<ask>fever</ask>", "<ask>cough</ask>", "<diagnosis>Flu</diagnosis>"], True),
        (["<ask>fever</ask>", "<refine>b</refine><diagnosis>Flu</diagnosis>"], False),
        (["<search>fever</search>", "<ask>cough</ask>", "<diagnosis>Flu</diagnosis>"], False),
        (
            [
                "<ask>fever</ask>",
                "<search>fever</search>",
                "<refine>b</refine><ask>cough</ask>",
                "<diagnosis>Flu</diagnosis>",
            ],
            True,
        ),
        (
            [
                "<search>fever</search>",
                "<refine>b</refine><ask>cough</ask>",
                "<refine>b</refine><diagnosis>Flu</diagnosis>",
            ],
            False,
        ),
    ],
)
def test_a_refinement_is_due_after_evidence_alone(lines: list[str], well: bool) -> None:
    assert DESK.grammar.well_formed(play(Script(*lines), DESK, CASES[0])) == well


def test_an_inquiry_without_questions_is_refused() -> None:
    with pytest.raises(ValueError, match="questions"):
        run_models(asks=False)
    with pytest.raises(UserError, match="'presentation', 'history' or 'record', not 'all'"):
        opened(CLINIC, told="all")
    with pytest.raises(UserError, match="no persona 'XXXX'"):
        opened(CLINIC, persona="XXXX")
    assert library_of(DESK).grammar.asks
    with pytest.raises(UserError, match="environment=library or environment=inquiry"):
        library_of(DESK.record)


# --- the encounter ---


def test_questions_searches_and_the_diagnosis_are_one_budget() -> None:
    lines = ("<ask>fever</ask>", "fever?", "<search>crackles</search>", "<ask>cough</ask>")
    episode = play(Script(*lines), DESK, CASES[0])
    assert episode.ending is Ending.OUT_OF_TURNS
    said = [turn.observation.messages[0].content for turn in episode.turns]
    assert said[:2] == ["Yes: fever.", UNREADABLE]
    assert said[2].endswith(f"</evidence>\n{CONCLUDE}")
    assert said[3] == CONCLUDE
    told = [(turn.observation.evidence, turn.observation.item) for turn in episode.turns]
    assert told == [(("fever",), "fever"), ((), ""), ((), "search: crackles"), ((), "")]
    shown = [turn.observation.passages for turn in episode.turns]
    assert [passages and passages[0].id for passages in shown] == [None, None, "pneumonia", None]
    assert len(episode.turns) == DESK.max_turns == 4


def test_what_the_patient_tells_is_measured_and_what_a_passage_is_called_is_not() -> None:
    """A document and a finding of this world are both called "hobby"."""
    lines = ("<search>hobby</search>", "<refine>b</refine><ask>fever</ask>", "<ask>lipase</ask>")
    episode = play(Script(*lines, "<diagnosis>Flu</diagnosis>"), DESK, CASES[0])
    assert "A hobby is good for you." in evidence(episode.turns[0])
    assert episode.turns[2].observation.messages[0].content == f"{UNKNOWN}\n{CONCLUDE}"
    assert episode.turns[2].observation.item == "lipase"
    found = measure(episode, True, DESK)
    assert (found["coverage"], found["recall"]) == (1 / 3, 2 / 3)
    assert (found["questions"], found["searches"]) == (3, 1)


def test_a_patient_model_answers_questions_and_takes_no_search_for_one() -> None:
    def says(body: dict[str, Any]) -> str:
        return json.dumps({"answer": "I feel hot.", "facts": [1]})

    with serving(says) as server:
        models = {"patient": Endpoint(EndpointSettings(base_url=server.url, model="m"))}
        staffed = DESK.with_models(models)
        assert isinstance(staffed, Inquiry)
        lines = ("<search>fever</search>", "<ask>fever</ask>", "<ask>Fever</ask>")
        episode = play(Script(*lines), staffed, CASES[0])
        prompt = str(server.asked[0])
        assert len(server.asked) == 1
    assert episode.turns[1].observation.evidence == ("fever",)
    assert [turn.observation.messages[0].content for turn in episode.turns[1:3]] == [
        "I feel hot.",
        f"I feel hot.\n{CONCLUDE}",
    ]
    assert "Flu begins" not in prompt
    assert "Yes: cough." in prompt
    assert DESK.roles.names == ("patient", "checker", "interpreter")
    assert DESK.with_models({"checker": models["patient"]}) is DESK


def test_a_renamed_clinics_patient_names_findings_and_no_disease() -> None:
    on, case = opened(RENAMED), RENAMED.test[0]
    names = "|".join(called(case).values())
    for item in RENAMED.items:
        said = asyncio.run(on.answer(case, (), on.read(on.write(item.kind.value, item.name))))
        assert said.item == item.name
        assert bool(said.evidence) == any(
            fact.item == item.name for fact in (*case.given, *case.truth.facts)
        )
        assert not re.search(names, said.messages[0].content)


def test_a_published_patient_is_questioned_and_not_looked_up(tmp_path: Path) -> None:
    build([str(release(tmp_path / "hpo"))], tmp_path / "index", IndexSettings())
    disease = ("OMIM:1", "Spotted fever 1")
    signs = ("HP:0000011", "HP:0000021")
    spec = patients(tmp_path / "p.jsonl", patient("own", disease, *signs, pmid="PMID:10"))
    (case,) = open_source(spec).test
    (hidden,) = case.truth.facts
    lines = (
        f"<ask>Is there a {hidden.item.lower()}?</ask>",
        "<search>red spot</search>",
        "<refine>Twin syndrome</refine><diagnosis>Spotted fever 1</diagnosis>",
    )

    def doctor(body: dict[str, Any]) -> str:
        return lines[sum(message["role"] == "assistant" for message in body["messages"])]

    with serving(doctor) as server:
        run = workup.evaluate(
            "endpoint:doc",
            cases=spec,
            out=tmp_path / "run",
            quiet=True,
            endpoints={"doc": {"base_url": server.url, "model": "m"}},
            environment={"name": "inquiry", "index": str(tmp_path / "index"), "subqueries": 0},
        )
    (record,) = run.episodes(phase="eval", doctor="doc")
    answered, searched = (turn.observation for turn in record.episode.turns[:2])
    assert (answered.evidence, answered.messages[0].content) == ((hidden.id,), hidden.text)
    found = {passage.id for passage in searched.passages or ()}
    assert "OMIM:4 [PMID:40]" in found
    assert "OMIM:1 [PMID:10]" not in found
    assert (record.correct, record.measures["coverage"]) == (True, 1.0)


def test_a_person_asks_and_searches() -> None:
    typed = iter(("fever", "search hobby; lipase", "<search>cough; sputum</search>", "dx Flu"))
    console = Console(file=StringIO(), width=80)
    records = play_here(
        SOURCE, index=0, environment=DESK, console=console, ask=lambda _: next(typed)
    )
    assert [turn.completion.text for turn in records[0].episode.turns] == [
        "<ask>fever</ask>",
        "<search>hobby; lipase</search>",
        "<search>cough;sputum</search>",
        "<diagnosis>Flu</diagnosis>",
    ]
    assert "search WORDS" in console.file.getvalue()  # type: ignore[attr-defined]


# --- demonstrations ---


def heard(case: Case, completion: str, said: str) -> set[str]:
    """The finding that an exchange told, read from its text alone."""
    asked = re.search("<ask>(.*)</ask>", completion)
    return {asked[1]} if asked and not said.startswith(UNKNOWN) else set()


def checked(shown: Demonstration, case: Case, on: Inquiry) -> tuple[int, int]:
    """How many questions there are, and how many queries hold what an answer told."""
    names, items = set(RENAMED.diagnoses) | set(CLINIC.diagnoses), {i.name for i in RENAMED.items}
    known = {fact.item for fact in case.given}
    asked, used, fresh = list[str](), 0, set[str]()
    for (text, messages), (after, _) in pairwise([*shown.exchanges]):
        action = on.read(text)
        assert action.errors == 0
        if action.kind == "ask":
            assert action.content[0] in items - known - {*asked}
            asked += action.content
            fresh |= heard(case, text, messages[0].content)
        else:
            words = {word for query in action.content for word in query.split(", ")}
            assert words <= known | fresh | names
            used += bool(words & fresh)
        assert after.startswith("<refine>") == (action.kind == "search")
        for part in re.findall(r"\[\d\] \w+: ([^;<]*)", after.partition("</refine>")[0]):
            assert {*part.split(", ")} <= known | fresh
    assert on.read(shown.exchanges[-1][0]).kind == "diagnose"
    assert len(shown.exchanges) <= on.max_turns
    return len(asked), used


@pytest.mark.parametrize(("source", "turns"), [(CLINIC, 6), (RENAMED, 6), (RENAMED, 2)])
def test_demonstrations_ask_and_search_for_what_is_known_by_then(source: Any, turns: int) -> None:
    on = opened(source, max_turns=turns, open_books=0, refined="findings")
    questions = used = 0
    for index in range(30):
        case, _ = drawn_case(source, 1, index)
        shown = on.demonstrate(source, Teaching(), 1, index)
        counted = checked(shown, case, on)
        questions, used = questions + counted[0], used + counted[1]
        searches = ["<search>" in text for text, _ in shown.exchanges]
        if source is RENAMED:
            assert any(searches)
            assert all(any(searches[:number]) for number, *_ in shown.branches)
        else:
            assert [branch[0] for branch in shown.branches] == [*range(1, len(searches) - 1)]
    assert (questions > 0) == (used > 0) == (turns > 2)


def test_an_open_book_has_no_questions() -> None:
    on = opened(CLINIC, open_books=1)
    for index in range(6):
        assert "<ask>" not in str(on.demonstrate(CLINIC, Teaching(), 2, index).exchanges)


# --- anchors ---


def accuracy(source: Any, on: Inquiry, doctor: str, cases: int = 40) -> float:
    player = on.anchors(source, 0)[doctor]
    played = [play(player, on, case) for case in source.test[:cases]]
    return sum(episode.answer == (episode.case.truth.diagnosis,) for episode in played) / cases


def test_exact_doctors_count_what_was_told_and_what_was_asked() -> None:
    on = opened(CLINIC, max_turns=6)
    labels = ["told information", "random doctor", "greedy information", "full information"]
    assert [*on.anchors(CLINIC, 0)] == labels
    told, asked, everything = (accuracy(CLINIC, on, label) for label in (labels[0], *labels[2:]))
    assert told + 0.1 < asked <= everything
    history = opened(CLINIC, max_turns=6, told="history")
    kinds = {item.name: item.kind for item in CLINIC.items}
    for label in labels[1:3]:
        doctor = history.anchors(CLINIC, 0)[label]
        for case in CLINIC.test[:5]:
            *asking, _ = play(doctor, history, case).turns
            assert all(kinds[turn.action.content[0]] != "ask" for turn in asking)


def test_in_a_renamed_clinic_those_who_search_are_anchors() -> None:
    on = opened(RENAMED, max_turns=5)
    labels = [*on.anchors(RENAMED, 0)]
    assert labels == [
        "told information",
        "random searcher",
        "ideal searcher",
        "asking searcher",
        "full information",
    ]
    ideal, asking = (accuracy(RENAMED, on, label) for label in labels[2:4])
    assert ideal + 0.1 < asking
    doctor = on.anchors(RENAMED, 0)["random searcher"]
    kinds = set[str]()
    for case in RENAMED.test[:8]:
        *before, _ = play(doctor, on, case).turns
        assert "search" in {turn.action.kind for turn in before}
        kinds |= {turn.action.kind for turn in before}
        known = {fact.item for fact in case.given}
        for turn in before:
            query = {*turn.action.content}
            assert turn.action.kind == "search" or not query & known
            known |= query if turn.action.kind == "ask" else set()
    assert kinds == {"ask", "search"}


# --- training ---


def test_a_tiny_policy_is_trained_in_it(tmp_path: Path) -> None:
    run = workup.train(
        "cmig",
        cases="clinic:xs",
        out=tmp_path / "run",
        quiet=True,
        environment={"name": "inquiry", "max_turns": 4},
        steps=1,
        batch=2,
        group=2,
        max_tokens=12,
        sft={"steps": 6, "batch": 4},
        tiny={"width": 16, "layers": 1},
        evaluation={"cases": 3, "untrained": False, "anchors": False},
    )
    assert run.config["environment"]["told"] == "presentation"
    played = [*run.episodes(phase="train")]
    assert len(played) == 4
    assert all("documents" in record.score.parts for record in played if record.score)
