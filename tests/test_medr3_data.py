"""Exam questions become a file that Med-R³ trains on: five steps, then an update on the result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from preparing import endpoint, sections, shape
from serving import Server, serving

import workup
from workup.cases import open_source
from workup.cases.jsonl import provenances, write
from workup.core.case import Case, Truth
from workup.prepare import load
from workup.prepare.inputs import open_input
from workup.prepare.report import Report
from workup.prepare.work import Job, prepare

CLINIC = open_source("clinic:xs")
NAMES = CLINIC.diagnoses
COUNT = 20


def question(number: int) -> Case:
    right = NAMES[number % len(NAMES)]
    return Case(
        f"q{number}",
        f"Patient number {number:02d} is ill.",
        Truth(right, extra={"right": [right], "letters": ["A"], "alphabet": ["A", "B"]}),
        "Which of the following is it?",
        (right, NAMES[(number + 1) % len(NAMES)]),
    )


def answer(body: dict[str, Any]) -> str:
    """All roles. Question 0 asks for an exception, 1 is too easy, and 2 has no reasoning."""
    told = sections(body)
    text = " ".join(told.values())
    about = next((n for n in range(COUNT) if f"number {n:02d}" in text), None)
    fields = shape(body)
    if "negated" in fields:
        flags = dict.fromkeys(("valid", "unique", "unambiguous", "patient", "diagnosis"), True)
        return json.dumps({"reason": "so", **flags, "negated": about == 0})
    if "question" in fields:
        return json.dumps({"question": "What is it?"})
    if "statements" in fields:
        triple = {"head": "flu", "relation": "causes", "tail": "fever", "document": 0}
        return json.dumps({"statements": [triple]})
    if "mark" in fields:
        if "reasoning to mark" in told:
            return json.dumps({"reason": "so", "mark": 3 if about == 2 else 5})
        return json.dumps({"reason": "so", "mark": 5 if about == 1 else 3})
    right = NAMES[int(about or 0) % len(NAMES)]
    return f"<think>Patient number {about:02d} is ill.</think><answer>{right}</answer>"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(answer) as running:
        yield running


def done(step: str, server: Server, given: Path, **settings: Any) -> tuple[Path, Report]:
    out = given.with_name(f"{step}.jsonl")
    opened = open_input(str(given))
    job = Job(step, opened, out, "endpoint:it", load(step).settings(**settings))
    return out, prepare(job, lambda spec: endpoint(server))


@pytest.mark.long
def test_questions_become_a_file_that_trains(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    write(map(question, range(COUNT)), path, diagnoses=NAMES)
    kept = [COUNT]
    for step, settings in (
        ("suitability", {}),
        ("open-ended", {}),
        ("complexity", {"n": 4}),
        ("references", {"n": 2, "keep": 1, "right": 3}),
        ("graphs", {}),
    ):
        path, report = done(step, server, path, **settings)
        assert report.complete
        kept.append(report.kept)
    assert kept == [COUNT, COUNT - 1, COUNT - 1, COUNT - 2, COUNT - 3, COUNT - 3]
    prepared = open_source(f"jsonl:{path}#all").test
    assert all(len(case.truth.graphs) == len(case.truth.references) == 1 for case in prepared)
    assert not any(case.options for case in prepared)
    steps = [entry.step for entry in provenances(path)[prepared[0].id]]
    assert steps == ["suitability", "open-ended", "complexity", "references", "graphs"]

    server.asked.clear()
    run = workup.train(
        "medr3",
        cases=f"jsonl:{path}",
        out=tmp_path / "run",
        environment={"index": "clinic:xs", "passages": 1, "max_turns": 2},
        reward={"recipe": "1", "encoder": "trigrams"},
        endpoints={"it": {"base_url": server.url, "model": "m", "retries": 0}},
        roles={"extractor": "endpoint:it"},
        steps=1,
        batch=2,
        group=2,
        sft={"steps": 0},
        max_tokens=4,
        evaluation={"cases": 1, "anchors": False, "untrained": False},
    )
    update = next(iter(run.episodes(phase="train")))
    assert {"semantic", "statistic", "logical"} <= set(update.score.parts)
    asked = [body["messages"][1]["content"] for body in server.asked]
    assert not any("is ill" in text for text in asked), "no reference is read again"
