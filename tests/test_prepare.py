"""Preparing a file: the result is the same whatever happens, and nothing is paid twice.

The work is killed, stopped, failing or edited in between.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest
from command_line import SCRIPT, environment
from preparing import (
    CHINESE,
    ENGLISH,
    HIDDEN,
    configured,
    findings,
    lines,
    many,
    sections,
    shape,
    written,
)
from serving import Gate, Reset, Server, completion, fault, serving, truncated
from waiting import HANG, until

from workup import open_source
from workup.cases import problems
from workup.cases.jsonl import provenances, write
from workup.cli import app as cli
from workup.cli.prepare import _show as show_report
from workup.core.case import Case, Fact, Source, Truth
from workup.core.errors import BudgetError, UserError, WorkupError
from workup.prepare import load, names
from workup.prepare.inputs import Input, open_input
from workup.prepare.journal import Journal
from workup.prepare.prompts import TOO_LONG, MaterialError, numbered, section
from workup.prepare.report import Report
from workup.prepare.steps import Drop
from workup.prepare.work import Job, journal_of, prepare, report_of
from workup.roles.config import Config
from workup.roles.endpoint import EndpointSettings, Price
from workup.roles.run_models import RunModels

DATA = Path(__file__).parents[1] / "../shared/data"


def job(folder: Path, cases: str | Path, step: str = "facts", **more: Any) -> Job:
    limit, settings = more.pop("limit", None), load(step).settings(**more.pop("settings", {}))
    opened = open_input(str(cases), limit=limit, reports=load(step).from_reports)
    return Job(
        step, opened, folder / "out.jsonl", more.pop("model", "endpoint:it"), settings, **more
    )


def run_models(
    folder: Path, server: Server, budget: float | None = None, **settings: Any
) -> RunModels:
    made = EndpointSettings(
        base_url=server.url, model="m", **{"retries": 0, "backoff": 0.01, **settings}
    )
    return RunModels(
        Config(endpoints={"it": made}, budget=budget), "the run", cache=folder / "cache"
    )


def run(work: Job, folder: Path, server: Server, **settings: Any) -> Report:
    opened = run_models(folder, server, **settings)
    try:
        return prepare(work, opened.open)
    finally:
        opened.close()


def without_cache(folder: Path) -> None:
    """So that a request which is repeated is seen by the server."""
    for file in (folder / "cache").glob("*"):
        file.unlink()


def bed(body: dict[str, Any]) -> int:
    """Which of the many cases a request is about."""
    last = lines(sections(body)["record"])[-1]
    return int("".join(filter(str.isdigit, last)))


def ids(path: Path) -> list[str]:
    return [json.loads(line)["id"] for line in lines(path.read_text(encoding="utf-8"))]


def dropping(body: dict[str, Any]) -> str:
    """Finds nothing in every third case."""
    return findings(body) if bed(body) % 3 else '{"findings": []}'


def test_the_result_has_the_order_of_the_input_and_is_a_source(tmp_path: Path) -> None:
    quick: list[int] = []

    def answer(body: dict[str, Any]) -> str:
        """Every fourth case, and so the first one, waits for all others."""
        if bed(body) % 4:
            quick.append(bed(body))
        else:
            until(lambda: len(quick) == 15)
        return dropping(body)

    with serving(answer) as server:
        report = run(job(tmp_path, written(tmp_path, many(20)), concurrency=6), tmp_path, server)
        assert server.most == 6
        assert len(server.asked) == 20
    expected = [case.id for n, case in enumerate(many(20)) if n % 3]
    assert ids(tmp_path / "out.jsonl") == expected
    assert (report.kept, report.complete) == (13, True)
    assert problems(f"jsonl:{tmp_path / 'out.jsonl'}", print) == 0
    source = open_source(f"jsonl:{tmp_path / 'out.jsonl'}#all")
    assert [case.id for case in source.test] == expected
    assert all(len(case.truth.facts) == 4 for case in source.test)


def test_the_report_says_how_many_why_and_which(tmp_path: Path) -> None:
    with serving(lambda body: fault(400) if bed(body) == 4 else dropping(body)) as server:
        run(job(tmp_path, written(tmp_path, many(12))), tmp_path, server)
    report = json.loads(report_of(tmp_path / "out.jsonl").read_text())
    assert (report["cases"], report["kept"], report["complete"]) == (12, 7, False)
    reason = report["dropped"]["the record holds no finding about a patient"]
    assert reason["count"] == 4
    assert [example["id"] for example in reason["examples"]] == ["en-0", "zh-3", "en-6"]
    (failure,) = report["failed"].values()
    assert failure["examples"][0]["id"] == "en-4"
    assert {"step", "model", "version", "settings", "started", "input"} <= set(report)


def test_every_record_says_where_it_comes_from(tmp_path: Path) -> None:
    with serving(
        lambda body: findings(body) if shape(body) == {"findings"} else weights(body)
    ) as server:
        run(job(tmp_path, written(tmp_path, [ENGLISH, CHINESE])), tmp_path, server)
        (tmp_path / "next").mkdir()
        run(job(tmp_path / "next", tmp_path / "out.jsonl", "criticality"), tmp_path, server)
        name = run_models(tmp_path, server).open("endpoint:it").name
    found = provenances(tmp_path / "next/out.jsonl")
    assert list(found) == ["en", "zh"]
    for steps in found.values():
        assert [(entry.step, entry.model, entry.version) for entry in steps] == [
            ("facts", name, load("facts").version),
            ("criticality", name, load("criticality").version),
        ]
        assert all(len(entry.date) == len("2026-01-31") for entry in steps)
    prepared = open_source(f"jsonl:{tmp_path / 'next/out.jsonl'}#all").test
    assert [[fact.weight for fact in case.truth.facts] for case in prepared] == [
        [1, 2, 3],
        [1, 2, 3],
    ]


def weights(body: dict[str, Any]) -> str:
    count = len(lines(sections(body)["findings"]))
    return json.dumps({"weights": [{"number": n, "weight": n} for n in range(1, count + 1)]})


def test_the_table_shows_a_failures_words_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Report("facts", "m[/b]", "1", {}, "", "", 1, private=False)
    shown.fail("en-[i]1[/i]", "no [/b] in \x1b[31m the answer")
    show_report(shown, Path("out.jsonl"))
    said = capsys.readouterr().out
    assert "facts (m[/b])" in said
    assert "failed: no [/b] in  [31m the answer" in said
    assert "en-[i]1[/i]" in said


def test_what_is_finished_is_not_done_again(tmp_path: Path) -> None:
    cases = written(tmp_path, many(9))
    with serving(dropping) as server:
        run(job(tmp_path, cases, limit=4), tmp_path, server)
        without_cache(tmp_path)
        assert ids(tmp_path / "out.jsonl") == ["zh-1", "en-2"]
        run(job(tmp_path, cases), tmp_path, server)
        without_cache(tmp_path)
        assert Counter(map(bed, server.asked)) == dict.fromkeys(range(9), 1)
        before = (
            (tmp_path / "out.jsonl").read_bytes(),
            report_of(tmp_path / "out.jsonl").read_bytes(),
        )
        run(job(tmp_path, cases), tmp_path, server)
        assert len(server.asked) == 9
    assert before == (
        (tmp_path / "out.jsonl").read_bytes(),
        report_of(tmp_path / "out.jsonl").read_bytes(),
    )


def test_an_edited_case_is_a_new_case(tmp_path: Path) -> None:
    made = many(4)
    with serving(findings) as server:
        run(job(tmp_path, written(tmp_path, made)), tmp_path, server)
        made[2] = Case(
            made[2].id, "A boy.", Truth("Croup", record="A boy.\nHe barks.\nHe lies in bed 22.")
        )
        run(job(tmp_path, written(tmp_path, [made[3], made[2], made[0]])), tmp_path, server)
        assert Counter(map(bed, server.asked)) == {0: 1, 1: 1, 2: 1, 3: 1, 22: 1}
    prepared = open_source(f"jsonl:{tmp_path / 'out.jsonl'}#all").test
    assert [case.id for case in prepared] == ["zh-3", "en-2", "en-0"], (
        "the input of today, in its order"
    )
    assert prepared[1].truth.facts[0].text == "He barks."


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"settings": {"max_tokens": 99}}, "the settings"),
        ({"step": "open-ended"}, "the step"),
        ({"model": "endpoint:other"}, "the model"),
        ({"version": "facts/999"}, "the prompts"),
    ],
)
def test_one_file_is_made_in_one_way(
    tmp_path: Path, other: dict[str, Any], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = written(tmp_path, many(2))
    with serving(findings) as server:
        run(job(tmp_path, cases), tmp_path, server)
        before = (tmp_path / "out.jsonl").read_bytes()
        if version := other.pop("version", None):
            monkeypatch.setattr(
                "workup.prepare.facts.step",
                load("facts").__class__("x", version, load("facts").apply),
            )
        both = run_models(tmp_path, server)
        both.config.endpoints["other"] = EndpointSettings(base_url=server.url, model="another")
        with pytest.raises(UserError, match=what) as caught:
            prepare(job(tmp_path, cases, **other), both.open)
        assert "\n" not in str(caught.value)
    assert (tmp_path / "out.jsonl").read_bytes() == before
    assert len(server.asked) == 2


def test_what_does_not_decide_the_result_may_change(tmp_path: Path) -> None:
    cases = written(tmp_path, many(3))
    with serving(findings) as server:
        run(job(tmp_path, cases), tmp_path, server)
        run(
            job(tmp_path, cases, concurrency=1, settings={"max_failed": 0.5, "patience": 3}),
            tmp_path,
            server,
        )
        assert len(server.asked) == 3


# faults


@pytest.mark.parametrize("keep", [0.0, 0.2, 0.5, 0.77, 0.999])
def test_a_journal_cut_off_anywhere_is_mended(tmp_path: Path, keep: float) -> None:
    """A crash may leave any prefix of the journal."""
    cases = written(tmp_path, many(7))
    with serving(dropping) as server:
        run(job(tmp_path, cases), tmp_path, server)
        whole = (tmp_path / "out.jsonl").read_bytes()
        journal = journal_of(tmp_path / "out.jsonl")
        content = journal.read_bytes()
        cut = content[: int(keep * len(content))]
        journal.write_bytes(cut)
        without_cache(tmp_path)
        run(job(tmp_path, cases), tmp_path, server)
        assert (tmp_path / "out.jsonl").read_bytes() == whole
        finished = max(cut.count(b"\n") - 1, 0)
        assert len(server.asked) == 7 + 7 - finished


def test_where_nothing_is_finished_another_command_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    header = {"step": "facts", "model": "none", "version": "1", "settings": {}, "started": "today"}
    Journal(path, header).close()
    with Journal(path, corrected := {**header, "model": "m"}) as journal:
        assert journal.header == corrected
        journal.add("x", "d", "{}")
    assert json.loads(path.read_text().splitlines()[0]) == corrected
    with pytest.raises(UserError, match="begun with the model 'm', not 'none'"):
        Journal(path, header)


@pytest.mark.parametrize("text", ["my notes", "my notes\n", '{"stages": 3}\n', "{my"])
def test_a_file_of_somebody_else_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.journal"
    path.write_text(text)
    header = {"step": "facts", "model": "m", "version": "1", "settings": {}, "started": "today"}
    with pytest.raises(UserError, match=r"a\.journal is no journal of a preparation"):
        Journal(path, header)
    assert path.read_text() == text


def test_a_damaged_journal_is_named(tmp_path: Path) -> None:
    cases = written(tmp_path, many(2))
    with serving(findings) as server:
        run(job(tmp_path, cases), tmp_path, server)
        journal = journal_of(tmp_path / "out.jsonl")
        rows = journal.read_bytes().split(b"\n")
        journal.write_bytes(b"\n".join([rows[0], rows[1][:30], *rows[2:]]))
        with pytest.raises(UserError, match=r"out\.journal, line 2: .* damaged \(not JSON"):
            run(job(tmp_path, cases), tmp_path, server)


@pytest.mark.parametrize(
    ("number", "line", "told"),
    [
        (1, '{"step": "facts"}', "it has no text 'started'"),
        (2, "[1]", "each line is one JSON object.*`sed -i 2d .*` removes it"),
        (2, '{"id": "x"}', "it has no text 'digest'"),
        (2, '{"id": "x", "digest": "d", "kept": 3}', "it has no text 'kept'"),
        (2, '{"id": ["x"], "digest": "d", "kept": "{}"}', "it has no text 'id'"),
        (2, '{"id": "x", "digest": "d", "dropped": "why"}', "it has no text 'detail'"),
        (2, "[" * 100_000, "not JSON that can be read here"),
        (2, "x" * 5_000_001, "it is longer than 5,000,000 bytes"),
    ],
)
def test_a_line_that_no_preparation_writes_is_one_line_of_error(
    tmp_path: Path, number: int, line: str, told: str
) -> None:
    path = tmp_path / "my files" / "a.journal"
    path.parent.mkdir()
    header = {"step": "facts", "model": "m", "version": "1", "settings": {}, "started": "today"}
    Journal(path, header).close()
    rows = [*path.read_text().splitlines()[: number - 1], line, ""]
    path.write_text(written := "\n".join(rows))
    with pytest.raises(UserError, match=f"a.journal, line {number}: .*{told}") as caught:
        Journal(path, header)
    assert "\n" not in str(caught.value)
    assert shlex.split(str(caught.value).split("`")[1])[-1] == str(path)
    assert path.read_text() == written


@pytest.mark.parametrize("ending", [".source.json", ".report.json", ".journal"])
def test_what_would_be_in_the_way_is_told_before_the_work(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"out{ending}").mkdir()
    with serving(findings) as server:
        with pytest.raises(UserError, match=rf"out\{ending} has to be written and is no file"):
            run(job(tmp_path, "clinic:xs", "criticality", limit=2), tmp_path, server)
        assert not server.asked
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".jsonl"] == []


def test_a_sidecar_of_another_file_is_not_adopted(tmp_path: Path) -> None:
    (tmp_path / "out.source.json").write_text('{"items": []}')
    with (
        serving(findings) as server,
        pytest.raises(UserError, match=r"out\.source\.json would be taken for the items"),
    ):
        run(job(tmp_path, written(tmp_path, many(1))), tmp_path, server)


@pytest.mark.parametrize("ending", [".jsonl", ".source.json", ".report.json"])
def test_a_file_written_by_hand_is_not_replaced(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"out{ending}").write_text("mine")
    with (
        serving(findings) as server,
        pytest.raises(UserError, match=rf"out\{ending} exists and was not made by this command"),
    ):
        run(job(tmp_path, "clinic:xs", "criticality", limit=2), tmp_path, server)
    assert (tmp_path / f"out{ending}").read_text() == "mine"


def test_the_input_is_not_written_over_however_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(many(1), tmp_path / "in.jsonl")
    monkeypatch.chdir(tmp_path)
    work = Job("criticality", open_input("in.jsonl"), tmp_path / "in.jsonl", "exact")
    with pytest.raises(UserError, match="is the input itself"):
        prepare(work, pytest.fail)


def test_a_journal_closes_when_its_input_becomes_restricted(tmp_path: Path) -> None:
    """Rows that are added later can be restricted; what is finished of them stands in it too."""
    cases = many(2)
    with serving(findings) as server:
        run(job(tmp_path, written(tmp_path, cases[:1])), tmp_path, server)
        journal = journal_of(tmp_path / "out.jsonl")
        assert journal.stat().st_mode & 0o077
        run(job(tmp_path, written(tmp_path, cases, restricted=True)), tmp_path, server)
    assert not journal.stat().st_mode & 0o077


def test_material_that_cannot_be_shown_whole_is_dropped(tmp_path: Path) -> None:
    """A model that sees a part would take it for all there is."""
    long = replace(many(2)[1], truth=Truth("flu", record="He coughs. " * 6_000))
    with serving(findings) as server:
        report = run(job(tmp_path, written(tmp_path, [many(2)[0], long])), tmp_path, server)
        assert len(server.asked) == 1
    assert report.kept == 1
    assert [*report.dropped] == [TOO_LONG]
    facts = [Fact(str(number), "x", text="y " * 20_000) for number in range(2)]
    with pytest.raises(MaterialError, match="findings: 80,005 characters, at most 60,000"):
        section("findings", numbered(facts))


def test_a_failed_case_is_neither_kept_nor_dropped_and_is_tried_again(tmp_path: Path) -> None:
    cases = written(tmp_path, many(10))
    broken = {3, 4}
    with serving(lambda body: fault(400) if bed(body) in broken else findings(body)) as server:
        report = run(job(tmp_path, cases), tmp_path, server)
        assert sum(reason.count for reason in report.failed.values()) == 2
        assert len(ids(tmp_path / "out.jsonl")) == 8
        broken.clear()
        report = run(job(tmp_path, cases), tmp_path, server)
        assert Counter(map(bed, server.asked)) == {**dict.fromkeys(range(10), 1), 3: 2, 4: 2}
    assert report.complete
    assert not report.failed
    assert ids(tmp_path / "out.jsonl") == [case.id for case in many(10)]


def test_too_many_failures_stop_the_work(tmp_path: Path) -> None:
    cases = written(tmp_path, many(60))
    with serving(lambda body: fault(400) if bed(body) % 2 else findings(body)) as server:
        with pytest.raises(
            WorkupError, match=r"of 1\d cases failed \(max_failed=0\.3\).*the same command goes on"
        ):
            run(
                job(tmp_path, cases, settings={"max_failed": 0.3, "patience": 10}, concurrency=2),
                tmp_path,
                server,
            )
        assert 10 <= len(server.asked) < 20
    assert len(ids(tmp_path / "out.jsonl")) >= 4, "what was done is there"


def test_few_cases_that_all_fail_are_an_error_too(tmp_path: Path) -> None:
    with (
        serving(lambda body: fault(400)) as server,
        pytest.raises(WorkupError, match="2 of 2 cases failed"),
    ):
        run(job(tmp_path, written(tmp_path, many(2))), tmp_path, server)


def test_a_spent_budget_stops_and_a_larger_one_goes_on(tmp_path: Path) -> None:
    cases = written(tmp_path, many(10))
    price = Price(
        input=1_000_000, output=0
    )  # a token each; an answer costs 7,000, which is more than any could here
    with serving(lambda body: completion(dropping(body), prompt_tokens=7_000)) as server:
        with pytest.raises(BudgetError, match="the same command goes on"):
            run(job(tmp_path, cases, concurrency=1), tmp_path, server, price=price, budget=30_000)
        assert len(server.asked) == 4
        assert json.loads(report_of(tmp_path / "out.jsonl").read_text())["complete"] is False
        report = run(job(tmp_path, cases), tmp_path, server, price=price, budget=1e9)
        assert len(server.asked) == 10
    assert report.complete


def test_an_answer_that_makes_no_case_is_a_failure(tmp_path: Path) -> None:
    """Two findings whose texts are blank.

    They fit the schema of the answer, but are no facts to the format of cases.
    """
    blank = {"findings": [{"text": " ", "item": "x", "kind": "ask", "stated": False}]}
    with (
        serving(lambda body: json.dumps(blank)) as server,
        pytest.raises(WorkupError, match=r"makes no case: truth\.facts\.0\.text"),
    ):
        run(job(tmp_path, written(tmp_path, many(1))), tmp_path, server)


def test_two_processes_do_not_write_into_one_file(tmp_path: Path) -> None:
    cases = written(tmp_path, many(1))
    header = {"step": "facts", "model": "m", "version": "1", "settings": {}, "started": "today"}
    with serving(findings) as server, Journal(journal_of(tmp_path / "out.jsonl"), header):
        with pytest.raises(UserError, match="another process is preparing this file"):
            run(job(tmp_path, cases), tmp_path, server)
        assert not server.asked


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    header = {"step": "facts", "model": "m", "version": "1", "settings": {}, "started": "today"}
    with Journal(path, header) as journal:
        journal.add("1", "d", "{}")
        real, journal._file = journal._file, _Full(journal._file)  # type: ignore[assignment]
        with pytest.raises(UserError, match="No space left"):
            journal.add("2", "d", "{}")
        journal._file = real
        journal.add("3", "d", Drop("why", "so"))
    with Journal(path, header) as journal:
        assert [journal.has(id, "d") for id in "123"] == [True, False, True]
        assert journal.result("3") == Drop("why", "so")


class _Full:
    """A file on a disk with room for ten more bytes."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        return int(self._file.write(data[:10]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_faults_do_not_show_in_the_result(tmp_path: Path) -> None:
    """The file is that of a run without faults.

    Every fifth answer is an error, half an answer, a broken connection or no JSON.
    """
    cases = written(tmp_path, many(30))
    calls, wrong = (
        count(1),
        cycle(
            [
                lambda body: fault(500),
                lambda body: truncated("x"),
                lambda body: Reset(),
                lambda body: "?",
            ]
        ),
    )

    def answer(body: dict[str, Any]) -> Any:
        return next(wrong)(body) if stormy and next(calls) % 5 == 0 else dropping(body)

    with serving(answer) as server:
        for stormy in (False, True):
            folder = tmp_path / str(stormy)
            folder.mkdir()
            report = run(job(folder, cases), folder, server, retries=8)
            assert report.complete
            assert not report.failed
        assert len(server.asked) > 60
    assert (tmp_path / "True/out.jsonl").read_bytes() == (tmp_path / "False/out.jsonl").read_bytes()
    assert (
        report_of(tmp_path / "True/out.jsonl").read_bytes()
        == report_of(tmp_path / "False/out.jsonl").read_bytes()
    )


def test_cases_of_one_id_are_refused_and_what_came_before_is_kept(tmp_path: Path) -> None:
    first, second = many(2)
    source = Source("x", [first, second], [first])
    work = Job(
        "facts", Input(source, [source.train, source.test]), tmp_path / "out.jsonl", "endpoint:it"
    )
    with (
        serving(findings) as server,
        pytest.raises(UserError, match="two cases have the id 'en-0'"),
    ):
        run(work, tmp_path, server)
    assert ids(tmp_path / "out.jsonl") == [first.id, second.id]


# restricted text


def test_restricted_cases_go_to_trusted_endpoints_only(
    tmp_path: Path, typed: Callable[..., None]
) -> None:
    written(tmp_path, many(3), restricted=True)
    words = ("facts", "--cases", "cases.jsonl", "--out", "o.jsonl", "--model", "endpoint:it")
    with serving(dropping) as server:
        configured(tmp_path, server)
        with pytest.raises(UserError, match="the cases are restricted"):
            typed(*words)
        assert not server.asked, "not a byte has left"
        configured(tmp_path, server, trusted=True)
        typed(*words)
        assert len(server.asked) == 3
    assert open_source(f"jsonl:{tmp_path / 'o.jsonl'}").restricted
    for path in (tmp_path / "o.jsonl", tmp_path / "o.journal", tmp_path / "o.report.json"):
        assert path.stat().st_mode & 0o077 == 0, path
    examples = json.loads((tmp_path / "o.report.json").read_text())["dropped"].popitem()[1][
        "examples"
    ]
    assert examples == [{"id": "en-0"}], (
        "a report may be passed on, what a model said about a case may not"
    )


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`workup prepare WORDS` in the test's folder, in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))
    return lambda *words: cli.app(["prepare", *map(str, words)], standalone_mode=False)


# what comes in


def test_items_and_diagnoses_of_the_source_go_along(tmp_path: Path) -> None:
    source = open_source("clinic:xs")
    opened = open_input("clinic:xs", of="test", limit=5)
    prepare(
        Job("criticality", opened, tmp_path / "o.jsonl", "exact"),
        lambda spec: pytest.fail("a model was opened"),
    )
    prepared = open_source(f"jsonl:{tmp_path / 'o.jsonl'}#all")
    assert list(prepared.items) == list(source.items)
    assert list(prepared.diagnoses) == list(source.diagnoses)
    assert list(prepared.test) == [source.test[i] for i in range(5)]


def test_splits_and_limits(tmp_path: Path) -> None:
    cases = written(tmp_path, many(40))
    whole = [case.id for case in open_input(str(cases))]
    assert whole == [case.id for case in many(40)], "a file's own order"
    train, test = (
        [case.id for case in open_input(str(cases), of=side)] for side in ("train", "test")
    )
    assert sorted(train + test) == sorted(whole)
    assert train == [case.id for case in open_source(f"jsonl:{cases}").train]
    assert len(test) == len(open_input(str(cases), of="test")) > 0
    assert [case.id for case in open_input(f"jsonl:{cases}#all", limit=3)] == whole[:3]
    with pytest.raises(UserError, match="Did you mean 'train'"):
        open_input(str(cases), of="trian")


REPORTS = [
    {"id": "1", "text": "历史：男。诊断：淋巴瘤。"},
    {"id": "2", "text": "A report.", "restricted": True},
]


def test_reports_come_as_lines_or_as_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in REPORTS))
    opened = open_input(str(path), reports=True)
    assert [(case.id, case.truth.record) for case in opened] == [
        (line["id"], line["text"]) for line in REPORTS
    ]
    assert opened.source.restricted
    (tmp_path / "folder").mkdir()
    for name in "ab":
        (tmp_path / "folder" / f"{name}.txt").write_text(f"Report {name}.", encoding="utf-8")
    opened = open_input(str(tmp_path / "folder"), reports=True)
    assert [(case.id, case.truth.record) for case in opened] == [
        ("a", "Report a."),
        ("b", "Report b."),
    ]
    path.write_text('{"id": "1", "words": "x"}\n')
    with pytest.raises(UserError, match=r"line 1, field 'text'"):
        open_input(str(path), reports=True)


def test_texts_that_no_line_holds_are_no_reports(tmp_path: Path) -> None:
    """They are left out at once; in the middle of the work they would end it each time."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.txt").write_text("A report.")
    (folder / "b.txt").write_bytes(b"x" * 1_000_001)
    (folder / "c.txt").write_bytes(b"\x01" * 200_000)  # six bytes each in JSON
    Path(os.fsdecode(bytes(folder) + b"/d\xe9.txt")).write_text("Another report.")
    opened = open_input(str(folder), reports=True)
    assert [case.id for case in opened] == ["a"]
    assert "3 of 4" in opened.source.notes[0]
    path = tmp_path / "reports.jsonl"
    path.write_text('{"id": "1", "text": "\\ud800"}\n{"id": "2", "text": "A report."}\n')
    assert [case.id for case in open_input(str(path), reports=True)] == ["2"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("scheme", "file", "step", "count"),
    [
        ("mediq", "mediq_dev.jsonl", "facts", 15),
        ("cmb", "cmb_exam_4000.jsonl", "suitability", 25),
        ("medmcqa", "medmcqa_dev.jsonl", "open-ended", 25),
        ("rjua", "rjua_213.jsonl", "rewrite", 15),
    ],
)
def test_real_files_go_through(
    tmp_path: Path, scheme: str, file: str, step: str, count: int
) -> None:
    if not (DATA / file).exists():
        pytest.skip("no real data here")

    def answer(body: dict[str, Any]) -> str:
        told = sections(body)
        if step == "facts":
            found = [
                line
                for line in dict.fromkeys(lines(told["record"]))
                if told["diagnosis"].lower() not in line.lower()
            ]
            return json.dumps(
                {
                    "findings": [
                        {"text": f, "item": "", "kind": "ask", "stated": False} for f in found[1:]
                    ]
                }
            )
        if step == "suitability":
            flags = dict.fromkeys(("valid", "unique", "unambiguous", "patient", "diagnosis"), True)
            return json.dumps(
                {
                    "reason": "所以",
                    "negated": "错误" in told["question"] or "不" in told["question"],
                    **flags,
                }
            )
        if step == "open-ended":
            return json.dumps({"question": "What is it?"})
        count = len(lines(told["reference answers"]))
        named = [f"Condition {n}" for n in range(count)]
        made = {
            "presentation": "A man.",
            "question": "What has he?",
            "answers": named,
            "findings": [],
        }
        return json.dumps({"diagnostic": True, **made})

    with serving(answer) as server:
        work = job(
            tmp_path, f"{scheme}:{DATA / file}", step, limit=count, settings={"max_failed": 0.5}
        )
        report = run(work, tmp_path, server)
        assert report.kept + sum(reason.count for reason in report.dropped.values()) >= 0.7 * count
        assert problems(f"jsonl:{tmp_path / 'out.jsonl'}", print) == 0
        if step != "facts":
            assert report.complete
        if step == "suitability":
            assert 0 < report.dropped["asks for an exception"].count < count
        if step in ("open-ended", "rewrite"):
            prepared = open_source(f"jsonl:{tmp_path / 'out.jsonl'}#all").test
            assert all(
                case.options == () and case.truth.extra["letters"] == [] for case in prepared
            )


# the command, killed


def begin(folder: Path, *words: object) -> subprocess.Popen[str]:
    command = [str(SCRIPT), "prepare", *map(str, words)]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment(folder / "cache"),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A suite that runs in the background hands down that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - one thread
    )


def finished(folder: Path) -> int:
    journal = folder / "out.journal"
    return max(journal.read_bytes().count(b"\n") - 1, 0) if journal.exists() else 0


@pytest.mark.long
def test_killed_at_any_moment_it_comes_to_the_same_result_and_pays_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases, together, kills = 40, 4, (5, 17)
    folder = tmp_path / "killed"
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        written(tmp_path / name, many(cases))
    words = (
        "facts",
        "--cases",
        "cases.jsonl",
        "--out",
        "out.jsonl",
        "--model",
        "endpoint:it",
        "--concurrency",
        together,
    )
    with serving(gate := Gate(dropping, cases)) as server:
        monkeypatch.chdir(tmp_path / "whole")  # the report names the input as it was typed
        run(job(Path(), "cases.jsonl"), tmp_path / "whole", server)
        server.asked.clear()
        configured(folder, server)
        for kill in kills:
            gate.allow(kill + 3 - finished(folder))
            process = begin(folder, *words)
            until(lambda kill=kill: finished(folder) >= kill, process)  # type: ignore[misc]
            process.kill()
            assert process.wait() == -signal.SIGKILL
            gate.drop()
            asked = len(server.asked)
            known = [
                json.loads(line)["id"]
                for line in (folder / "out.journal").read_bytes().split(b"\n")[1:-1]
            ]
        gate.allow(cases)
        process = begin(folder, *words)
        output, errors = process.communicate(timeout=HANG)
        assert process.returncode == 0, errors
        again = {bed(body) for body in server.asked[asked:]}
        assert not again & {int(id.partition("-")[2]) for id in known}, (
            "an answer that was used is not asked for again"
        )
        assert len(server.asked) <= cases + len(kills) * together, "only what was in flight"
    assert (folder / "out.jsonl").read_bytes() == (tmp_path / "whole/out.jsonl").read_bytes()
    left, right = (
        json.loads((tmp_path / name / "out.report.json").read_text())
        for name in ("whole", "killed")
    )
    assert left == right
    assert "26 of 40 cases" in output
    assert "dropped: the record holds no finding about a patient" in output
    assert not list(folder.glob(".out*")), "no half-written file is left"


@pytest.mark.long
def test_killed_within_a_case_of_many_calls_no_draw_is_paid_twice(tmp_path: Path) -> None:
    """Sixteen draws and their marks are one case.

    The journal knows nothing of them, the cache does.
    """
    folder, draws = tmp_path, 8
    written(folder, many(2))
    config = ("n=8", "every=true", "--concurrency", 1)
    words = (
        "complexity",
        *config,
        "--cases",
        "cases.jsonl",
        "--out",
        "out.jsonl",
        "--model",
        "endpoint:it",
    )

    def answer(body: dict[str, Any]) -> str:
        return '{"reason": "", "mark": 4}' if shape(body) else "<think>x</think><answer>y</answer>"

    with serving(gate := Gate(answer, draws)) as server:
        configured(folder, server)
        process = begin(folder, *words)
        gate.full(1)  # all draws of the first case are there, and their mark is not
        process.kill()
        assert process.wait() == -signal.SIGKILL
        gate.drop()
        gate.allow(2 * (draws + 1))
        process = begin(folder, *words)
        assert process.wait(HANG) == 0, process.communicate()
        # all draws of a case get the same answer here, so each case's draws share one mark
        assert len(server.asked) == 2 * (draws + 1) + 1
    details: list[Any] = [made.detail for (made,) in provenances(folder / "out.jsonl").values()]
    assert {detail["marks"][7] for detail in details} == {4}


@pytest.mark.long
def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    written(tmp_path, many(20))
    words = (
        "facts",
        "--cases",
        "cases.jsonl",
        "--out",
        "out.jsonl",
        "--model",
        "endpoint:it",
        "--concurrency",
        2,
    )
    with serving(gate := Gate(findings, 5)) as server:
        configured(tmp_path, server)
        process = begin(tmp_path, *words)
        until(lambda: finished(tmp_path) >= 3, process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=HANG)
        gate.drop()
        assert process.returncode == 130
        assert (
            errors.strip() == "stopped; everything finished is kept. Go on with the same command."
        )
        assert finished(tmp_path) >= 3


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["fact"], "Did you mean 'facts'"),
        (["facts"], "say what to read and what to write"),
        (
            ["facts", "--cases", "cases.jsonl", "--out", "o.jsonl", "--model", "exact"],
            "no exact counterpart",
        ),
        (["facts", "--cases", "cases.jsonl", "--out", "o.jsonl"], "add --model"),
        (
            ["facts", "--cases", "cases.jsonl", "--out", "o.jsonl", "max_token=3"],
            "Did you mean 'max_tokens'",
        ),
        (
            ["facts", "--cases", "cases.jsonl", "--out", "o.json", "--model", "exact"],
            "a file of JSON lines",
        ),
        (
            ["facts", "--cases", "cases.jsonl", "--out", "no/o.jsonl", "--model", "exact"],
            "there is no folder no",
        ),
        (
            ["facts", "--cases", "cases.jsonl", "--out", "cases.jsonl", "--model", "exact"],
            "is the input itself",
        ),
        (["facts", "--cases", "case.jsonl", "--out", "o.jsonl", "--model", "exact"], "cases.jsonl"),
        (
            ["criticality", "--cases", "bare.jsonl", "--out", "o.jsonl", "--model", "exact"],
            "give --model endpoint:NAME",
        ),
        (["criticality", "--cases", "bare.jsonl", "--out", "o.jsonl"], "add --model endpoint:NAME"),
        (
            ["graphs", "--cases", "cases.jsonl", "--out", "o.jsonl", "--model", "exact", "most=3"],
            "the exact way of the step graphs has no setting most",
        ),
    ],
)
def test_the_command_says_what_is_wrong(
    tmp_path: Path, typed: Callable[..., None], words: list[str], problem: str
) -> None:
    written(tmp_path, many(1))
    bare = Case("1", "x", Truth("Flu", facts=HIDDEN))
    write([bare], tmp_path / "bare.jsonl")
    before = (tmp_path / "cases.jsonl").read_bytes()
    with pytest.raises(UserError, match=problem) as caught:
        typed(*words)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "cases.jsonl").read_bytes() == before
    assert not [*tmp_path.glob("o.*")], "nothing is half written"


def test_without_a_step_all_are_listed(
    typed: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    typed()
    shown = capsys.readouterr().out
    assert all(f"{name}: {load(name).summary[:40]}" in shown for name in names())
    assert "easy_within=3" in shown


def test_replaying_asks_nobody(tmp_path: Path, typed: Callable[..., None]) -> None:
    written(tmp_path, many(3))
    words = ("facts", "--cases", "cases.jsonl", "--model", "endpoint:it")
    with serving(findings) as server:
        configured(tmp_path, server)
        with pytest.raises(UserError):
            typed(*words, "--out", "none.jsonl", "--replay")
        assert not server.asked
        typed(*words, "--out", "one.jsonl")
        typed(*words, "--out", "two.jsonl", "--replay")
        assert len(server.asked) == 3
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()


def test_a_long_failure_is_told_whole_and_cut_between_two_words() -> None:
    words = [f"word{place}" for place in range(60)]
    report, private = (
        Report("extract", "m", "1", {}, "", "cases.jsonl", 1, hidden) for hidden in (False, True)
    )
    report.fail("case 7", " ".join(words))
    report.fail("case 8", "short")
    (_, (what, count, example), (short, _, alone)) = report.rows()
    told = f"{what} {example}".replace(" … case 7: … ", " ").removeprefix("failed: ")
    assert (told.split(), count) == (words, 1)
    assert (short, alone) == ("failed: short", "case 8")
    private.fail("case 7", " ".join(words))
    assert private.rows()[1:] == [("failed: the model failed", 1, "case 7")]
