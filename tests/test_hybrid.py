"""One gathers, another concludes: in each encounter in its own words and its own grammar."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from serving import Server, serving

from workup.cases import jsonl, open_source
from workup.cli import api
from workup.core.case import Case
from workup.core.episode import DIAGNOSE
from workup.doctors.hybrid import whole_record
from workup.runs import Record, Run
from workup.runs.settings import world

CLINIC = open_source("clinic:xs")
Servers = tuple[Server, Server]
ENVIRONMENTS = ("consultation", "questioning", "library")
# How an action is written, by a word that only the rules of its encounter hold.
GRAMMARS = {
    "`answer: `": ("question: {}", "answer: so it is [answer: {}]"),
    "<diagnosis>": ("<search>{}</search>", "<refine>it</refine><diagnosis>{}</diagnosis>"),
    "<diagnose>": ("<ask>{}</ask>", "<diagnose>{}</diagnose>"),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def patients(*, options: bool = False) -> list[Case]:
    """Ten patients whom their presentations tell apart; with options the truth has a letter."""
    names = tuple(sorted(CLINIC.diagnoses))
    listed: dict[str, Any] = {"question": "Which is it?", "options": names}
    return [
        replace(
            case,
            id=str(number),
            presentation=f"Patient {number}. {case.presentation}",
            **(listed if options else {}),
        )
        for number, case in enumerate(CLINIC.test[:10])
    ]


def grammar(messages: list[dict[str, str]]) -> tuple[str, str]:
    """The one that the rules explain; a doctor that writes another is not understood."""
    return next(how for word, how in GRAMMARS.items() if word in messages[0]["content"])


def asking(body: dict[str, Any]) -> str:
    """Asks one thing, then names what nobody has."""
    question, diagnosis = grammar(body["messages"])
    asked = any(message["role"] == "assistant" for message in body["messages"])
    return diagnosis.format("Lycanthropy") if asked else question.format(CLINIC.items[0].question)


def knowing(body: dict[str, Any]) -> str:
    """Knows who is sick of what, and writes it as it was told to; options have letters there."""
    _, diagnosis = grammar(body["messages"])
    shown = body["messages"][1]["content"]
    (number,) = re.findall(r"Patient (\d+)\.", shown)
    truth = CLINIC.test[int(number)].truth.diagnosis
    letter = re.search(rf"^([A-Z])\. {re.escape(truth)}$", shown, re.MULTILINE)
    return diagnosis.format(letter[1] if letter else truth)


@pytest.fixture
def servers() -> Iterator[Servers]:
    with serving(asking) as doctor, serving(knowing) as other:
        yield doctor, other


def looked(servers: Servers, cases: str, environment: str, **more: Any) -> Run:
    urls = dict(zip(("doc", "sage"), (server.url for server in servers), strict=True))
    given: dict[str, Any] = {
        "endpoints": {name: {"base_url": url, "model": name} for name, url in urls.items()},
        "environment": {"name": environment, **more.pop("encounter", {})},
        "evaluation": {"cases": 10, "anchors": more.pop("anchors", False)},
    }
    if environment == "library":
        given["environment"]["index"] = "clinic:xs"
    policy = more.pop("policy", "endpoint:doc")
    return api.evaluate(policy, cases=cases, out="looked", quiet=True, **{**given, **more})


def records(run: Run, doctor: str) -> list[Record]:
    return list(run.episodes(phase="eval", doctor=doctor))


def answers(run: Run, doctor: str) -> dict[str, tuple[str, ...]]:
    return {record.episode.case.id: record.episode.answer for record in records(run, doctor)}


@pytest.mark.long
@pytest.mark.parametrize("options", [False, True])
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_who_knows_the_truth_is_right(environment: str, servers: Servers, options: bool) -> None:
    jsonl.write(patients(options=options), Path("own.jsonl"), items=CLINIC.items)
    run = looked(servers, "jsonl:own.jsonl", environment, conclude="endpoint:sage")
    doctors = run.summary["doctors"]
    right = {name: entry["accuracy"]["mean"] for name, entry in doctors.items()}
    assert right == {"doc": 0, "doc, sage concludes": 1, "sage, oracle context": 1}
    assert {entry["questions"]["mean"] for entry in doctors.values()} == {1}


@pytest.mark.long
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_who_concludes_reads_the_encounters_own_words(environment: str, servers: Servers) -> None:
    """The rules and the opening, what was asked and answered, and the request to conclude, once."""
    jsonl.write(patients(), Path("own.jsonl"), items=CLINIC.items)
    run = looked(
        servers,
        "jsonl:own.jsonl",
        environment,
        conclude="endpoint:sage",
        encounter={"max_turns": 2},
    )
    source = open_source("jsonl:own.jsonl#all")
    index = {"index": "clinic:xs"} if environment == "library" else {}
    encounter = world({"name": environment, "max_turns": 2, **index}, {}).open(source)
    told = [body["messages"] for body in servers[1].asked]
    assert len(told) == 20
    for messages in told:
        (number,) = re.findall(r"Patient (\d+)\.", messages[1]["content"])
        case = next(case for case in source.test if case.id == number)
        opening = [{"role": m.role, "content": m.content} for m in encounter.open(case)]
        assert messages[:2] == opening
        assert [message["role"] for message in messages[2:]] == ["assistant", "user"]
        assert messages[-1]["content"].endswith(encounter.conclude(case))
        assert messages[-1]["content"].count(encounter.conclude(case)) == 1
    for doctor in ("doc, sage concludes", "sage, oracle context"):
        for record in records(run, doctor):
            *_, last = record.episode.turns
            assert encounter.read(last.completion.text) == last.action
    for record in records(run, "sage, oracle context"):
        case = record.episode.case
        shown = record.episode.turns[0].observation.messages[0].content
        assert all(fact.text in shown for fact in (*case.given, *case.truth.facts))


@pytest.mark.long
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_exact_reasoning_uses_all_that_was_told(environment: str, servers: Servers) -> None:
    """A library tells the whole history at the outset; a whole record says what is normal too."""
    run = looked(servers, "clinic:xs", environment, conclude="bayes", anchors=True)
    assert answers(run, "bayes, oracle context") == answers(run, "full information")
    if environment == "library":
        assert answers(run, "doc, bayes concludes") == answers(run, "told information")


@pytest.mark.parametrize("environment", ["consultation", "questioning"])
def test_who_asked_by_the_same_model_concludes_the_same(environment: str, servers: Servers) -> None:
    given: dict[str, Any] = {"policy": "greedy information", "conclude": "bayes"}
    given["encounter"] = {"max_turns": 6}
    run = looked(servers, "clinic:s", environment, **given)
    own = answers(run, "greedy information")
    assert answers(run, "greedy information, bayes concludes") == own


def test_the_whole_record_is_one_question_in_the_encounters_grammar() -> None:
    record = world({"max_turns": 5}, {"name": "consultation"}).open(CLINIC)
    for name in ENVIRONMENTS:
        encounter = world({"name": name, "max_turns": 5}, {}).open(CLINIC)
        episode = whole_record(CLINIC.test[0], encounter, record)  # type: ignore[arg-type]
        assert episode.opening == encounter.open(CLINIC.test[0])
        (turn,) = episode.turns
        assert encounter.read(turn.completion.text).content == ("whole record",)
        assert encounter.read(turn.completion.text).errors == 0
        assert turn.action.kind != DIAGNOSE
