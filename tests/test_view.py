"""`workup view` over HTTP: what it shows, who may see it, and that it changes nothing."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import example_run
import httpx2
import pytest
from command_line import told
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import free_port
from waiting import HANG, until

from workup.core.case import Case, Fact, Passage, Truth
from workup.core.episode import (
    Action,
    Completion,
    Ending,
    Episode,
    Message,
    Observation,
    Score,
    Turn,
)
from workup.core.errors import UserError
from workup.core.extras import install
from workup.metrics.known import metric
from workup.report import build, figures
from workup.retrieval.connections import listening
from workup.runs import Record, Run
from workup.runs.summary import summarise
from workup.runs.untouched import Untouched
from workup.runs.words import number
from workup.viewer import app, drawing, listing, opened, pages
from workup.viewer.app import render
from workup.viewer.asking import AddressError, ListPosition, ListQuery, key_of, written
from workup.viewer.columns import Columns
from workup.viewer.guard import DOCUMENT, HEADERS, Gate
from workup.viewer.listing import listed
from workup.viewer.progress import State, evaluations, spent, stages, state

pytest.importorskip("uvicorn")

CONFIG = {"method": "craft", "cases": "clinic:s", "policy": "tiny", "split": 0, "seed": 0}
EVIL = "<script>alert(1)</script>"
WORSE = f"\"'>{EVIL}<img src=x onerror=alert(2)>{{{{7*7}}}}"
QUERIES: tuple[dict[str, str], ...] = (
    {},
    {"doctor": "trained", "verdict": "wrong"},
    {"ending": "out of turns"},
    {"category": "joints", "sort": "return", "order": "down"},
    {"phase": "train", "step": "2-3"},
    {"stage": "-", "sort": "noise"},
    {"sort": "noise", "order": "down", "verdict": "right"},
    {"case": "S/TEST/0003", "sort": "case"},
    {"diagnosis": "gout", "sort": "questions"},
    {"text": "FEVER", "doctor": "random doctor", "sort": "step"},
    {"text": "no lipase"},
    {"text": "assistant"},
)


@contextmanager
def serving(shown: Mapping[str, Any], token: bool = True) -> Iterator[httpx2.Client]:
    """A client of the real server, with the cookie unless `token` is False."""
    with listening("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        gate = Gate({"the-token": ""}, port, {"localhost"})
        server = app.server(gate.guarded(app.application(shown)))
        thread = threading.Thread(target=lambda: server.run(sockets=[sock]))
        thread.start()
        try:
            with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=HANG) as client:
                if token:
                    assert client.get("/?token=the-token").status_code == 303
                yield client
        finally:
            server.should_exit = True
            thread.join()


def trained(index: int, step: int) -> Record:
    """A made-up episode of a training step, with advantages."""
    record = example_run.record(index, "trained", 0, step)
    count = sum(
        len(turn.prompt_tokens) + len(turn.completion.tokens) for turn in record.episode.turns
    )
    place = {"doctor": "policy", "phase": "train", "stage": "craft", "step": step}
    return replace(record, **place, advantages=tuple(0.1 * (k % 7) - 0.3 for k in range(count)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a made-up run of some 250 episodes."""
    path = tmp_path_factory.mktemp("runs") / "demo"
    with example_run.make(path, steps=30, cases=24) as run:
        for step in (1, 2, 3):
            run.write([trained(index, step) for index in range(8)])
    return path


@pytest.fixture(scope="module")
def records(folder: Path) -> dict[str, Record]:
    """All its episodes in the order in which they were written, by their key as in addresses."""
    with Run.open(folder) as run:
        rowids = run.store.query("SELECT rowid, * FROM episodes ORDER BY rowid")
        order = [
            (row["phase"], row["doctor"], row["stage"], row["step"], row["case_id"], row["sample"])
            for row in rowids
        ]
        known = {record.key: record for record in run.episodes()}
    return {written(key): known[key] for key in order}


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx2.Client]:
    shown = opened([folder], restricted=False)
    with serving(shown) as client:
        until(lambda: "the rest follows" not in client.get("/run/demo/episodes").text)
        yield client


def matching(records: Mapping[str, Record], query: Mapping[str, str]) -> list[str]:
    """The oracle: every record held against the query, then sorted."""
    kept = [(key, r) for key, r in records.items() if fits(r, query)]
    sort = query.get("sort", "newest")
    down = query.get("order", "down" if sort == "newest" else "up") == "down"
    places = {key: place for place, key in enumerate(records)}
    value: dict[str, Callable[[str, Record], Any]] = {
        "newest": lambda key, r: places[key],
        "case": lambda key, r: r.episode.case.id,
        "step": lambda key, r: r.step,
        "questions": lambda key, r: r.episode.questions,
        "return": lambda key, r: r.score.total if r.score else None,
    }
    of = value.get(sort, lambda key, r: r.measures.get(sort))
    known = [(of(key, r), places[key], key) for key, r in kept if of(key, r) is not None]
    unknown = [(places[key], key) for key, r in kept if of(key, r) is None]
    ordered = sorted(known, reverse=down), sorted(unknown, reverse=down)
    return [each[-1] for side in ordered for each in side]


def fits(record: Record, query: Mapping[str, str]) -> bool:
    episode, case = record.episode, record.episode.case
    own = {"doctor": record.doctor, "phase": record.phase, "stage": record.stage}
    own |= {"ending": episode.ending.value, "category": case.category}
    low, _, high = query.get("step", "0-999").partition("-")
    verdict = {True: "right", False: "wrong", None: "not judged"}[record.correct]
    said = [
        text
        for turn in episode.turns
        for text in (turn.completion.text, *(m.content for m in turn.observation.messages))
    ]
    return (
        all(query[name].replace("-", "") == own[name] for name in own if name in query)
        and query.get("verdict", verdict) == verdict
        and int(low) <= record.step <= int(high or low)
        and query.get("case", "").lower() in case.id.lower()
        and query.get("diagnosis", "").lower() in case.truth.diagnosis.lower()
        and any(query.get("text", "").lower() in text.lower() for text in [*said, episode.reason])
    )


class Reader(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def links(self, **attributes: str) -> list[str]:
        return [
            found["href"] or ""
            for tag, found in self.elements
            if tag == "a" and all(found.get(n.strip("_")) == v for n, v in attributes.items())
        ]


def listed_keys(page: Reader) -> list[str]:
    return [parse_qs(urlsplit(href).query)["episode"][0] for href in page.links(class_="row")]


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: " ".join(query.values()) or "all")
def test_pages_hold_what_a_brute_force_search_finds(
    client: httpx2.Client, records: Mapping[str, Record], query: dict[str, str]
) -> None:
    expected = matching(records, query)
    found: list[str] = []
    back: list[list[str]] = []
    address = str(httpx2.URL("/run/demo/episodes", params=query))
    while address:
        page = Reader(client.get(address).text)
        found += listed_keys(page)
        back.append(listed_keys(page))
        (address,) = page.links(rel="next")[:1] or [""]
    assert found == expected
    earlier = page.links(rel="prev")
    assert bool(earlier) == (len(back) > 1)
    if earlier:
        assert listed_keys(Reader(client.get(earlier[0]).text)) == back[-2]


def test_a_list_is_gone_through_from_either_end(
    folder: Path, records: Mapping[str, Record]
) -> None:
    columns = Columns(Untouched(folder / "episodes.sqlite"))
    columns.catch_up(HANG)
    for query in QUERIES:
        asked = ListQuery.read(query)
        forwards: list[ListPosition] = []
        place: ListPosition | None = None
        while place is not None or not forwards:
            page = listed(columns, asked.at(after=place), 7, HANG)
            forwards += page.places
            if (place := page.after) is None:
                break
        assert len(set(forwards)) == len(forwards) == len(matching(records, query))
        backwards = forwards[-1:]
        place = forwards[-1] if forwards else None
        while place is not None:
            page = listed(columns, asked.at(before=place), 7, HANG)
            backwards = [*page.places, *backwards]
            place = page.before
        assert backwards == forwards


def test_a_search_that_runs_out_of_time_goes_on_where_it_stopped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = Columns(Untouched(folder / "episodes.sqlite"))
    columns.catch_up(HANG)
    monkeypatch.setattr(listing, "_READ", 10)
    monkeypatch.setattr(listing, "_ASKED", 25)
    asked = ListQuery.read({"text": "no fever"})
    whole = listed(columns, asked, 10_000, HANG).places
    found: list[ListPosition] = []
    place: ListPosition | None = None
    for _ in range(1_000):
        page = listed(columns, asked.at(after=place), seconds=0.0)
        found += page.places
        place = page.unsearched or page.after
        if place is None:
            break
    assert found == list(whole)
    assert len(whole) > 5


def test_a_list_by_cases_with_long_ids_goes_on(tmp_path: Path) -> None:
    made = [example_run.record(index, "trained", 0, 0) for index in range(60)]
    named = [replace(each.episode.case, id=f"{'z' * 490}{n:04}") for n, each in enumerate(made)]
    renamed = [
        replace(each, episode=replace(each.episode, case=case))
        for each, case in zip(made, named, strict=True)
    ]
    with Run.create(tmp_path / "run", CONFIG, {}) as run:
        run.write(renamed)
    with serving(opened([run.path], restricted=False)) as client:
        page = Reader(client.get("/run/run/episodes?sort=case").text)
        (after,) = {link for link in page.links() if "after=" in link}
        assert len(listed_keys(Reader(client.get(after).text))) == 10


def test_neighbours_follow_the_list(client: httpx2.Client, records: Mapping[str, Record]) -> None:
    query = {"doctor": "trained", "verdict": "wrong", "sort": "questions"}
    expected = matching(records, query)
    first = Reader(client.get(httpx2.URL("/run/demo/episodes", params=query)).text)
    address, seen = first.links(class_="row")[0], []
    while address:
        page = Reader(client.get(address).text)
        seen.append(parse_qs(urlsplit(address).query)["episode"][0])
        (up,) = page.links(rel="up")[:1]
        assert listed_keys(Reader(client.get(up).text))[:50] == expected[:50]
        (address,) = page.links(rel="next")[:1] or [""]
    assert seen == expected


def test_an_episode_shows_all_that_was_said_and_scored(
    client: httpx2.Client, records: Mapping[str, Record]
) -> None:
    key, record = next((k, r) for k, r in records.items() if len(r.episode.turns) > 3)
    text = unescape(client.get(httpx2.URL("/run/demo/episode", params={"episode": key})).text)
    episode = record.episode
    for message in episode.opening:
        assert message.content in text
    for turn in episode.turns:
        assert ", ".join(turn.action.content) in text or turn.completion.text in text
        assert all(message.content in text for message in turn.observation.messages)
    assert all(fact.text in text for fact in episode.case.truth.facts)
    assert record.score is not None
    assert f"{record.score.total:+.2f}".replace("-", "−") in text
    headings = [metric(name).title for name in record.measures]
    assert all(name in text for name in (*record.score.parts, *headings))


def test_every_token_is_shown_with_its_figures(
    client: httpx2.Client, records: Mapping[str, Record]
) -> None:
    key, record = next((k, r) for k, r in records.items() if r.phase == "train")
    for colour in ("advantage", "logprob", "reward"):
        params = {"episode": key, "view": "tokens", "colour": colour}
        text = client.get(httpx2.URL("/run/demo/episode", params=params)).text
        assert "holds no tokenizer" in text
        body = text[text.index("<article") : text.index("<h2>Score")]
        shown = re.findall(
            r'<span class="t ([^"]*)"><b>#(\d+)</b><i>([^<]*)</i><i>([^<]*)</i>', body
        )
        at, place = 0, 0
        for turn in record.episode.turns:
            at += len(turn.prompt_tokens)
            for id, logprob in zip(turn.completion.tokens, turn.completion.logprobs, strict=True):
                shade, *figures = shown[place]
                advantage = record.advantages[at]
                assert figures == [str(id), *(signed(each) for each in (logprob, advantage))]
                if colour == "advantage":
                    assert shade.startswith(
                        {1: "up", -1: "down"}.get((advantage > 0.005) - (advantage < -0.005), "")
                    )
                at, place = at + 1, place + 1
        assert place == len(shown) > 10
        unsampled = re.findall(r"<span>#(\d+)</span>", body)
        assert unsampled == [str(id) for turn in record.episode.turns for id in turn.prompt_tokens]


def signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−") if abs(value) >= 0.005 else "0"


def test_a_tokenizer_in_the_run_spells_the_tokens(folder: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    from workup.viewer.tokens import spelling

    assert spelling(folder) is None
    words = Tokenizer(WordLevel({"fever": 0, "<b>": 1}, unk_token="<b>"))
    outside = tmp_path / "tokenizer.json"
    words.save(str(outside))
    own = tmp_path / "run" / "policy"
    own.mkdir(parents=True)
    (own / "tokenizer.json").symlink_to(outside)
    assert spelling(tmp_path / "run") is None
    (own / "tokenizer.json").unlink()
    words.save(str(own / "tokenizer.json"))
    spell = spelling(tmp_path / "run")
    assert spell is not None
    assert [spell(id) for id in (0, 1, 7)] == ["fever", "<b>", "#7"]


def test_a_case_stands_side_by_side(client: httpx2.Client, records: Mapping[str, Record]) -> None:
    case = example_run.case(3).id
    own = {key: record for key, record in records.items() if record.episode.case.id == case}
    page = Reader(client.get(httpx2.URL("/run/demo/case", params={"case": case})).text)
    boxes = {
        found["value"] or "": "checked" in found
        for tag, found in page.elements
        if found.get("type") == "checkbox"
    }
    assert set(boxes) == {f"demo/{key}" for key in own}
    doctors = {record.doctor for record in own.values() if record.phase == "eval"}
    assert sum(boxes.values()) == len(doctors) == sum(t == "article" for t, _ in page.elements)
    chosen = [key for key, record in own.items() if record.phase == "train"]
    show = [f"demo/{key}" for key in chosen]
    page = Reader(
        client.get(httpx2.URL("/run/demo/case", params={"case": case, "show": show})).text
    )
    assert sorted(listed_keys(page)) == sorted(chosen)


def test_the_runs_page_and_a_run(client: httpx2.Client, records: Mapping[str, Record]) -> None:
    assert Reader(client.get("/").text).links(class_="row") == ["/run/demo"]
    text = client.get("/run/demo").text
    assert f"{len(records):,} episodes" in text
    assert "stopped" in text
    assert "30 of 30" in text
    assert text.count("<polyline") >= 10
    assert text.count(">last step <b>") == text.count('<figure class="curve">') > 0
    assert "The bold figure is that of the last step alone." in text


def test_a_reward_of_several_stages_has_several_lines() -> None:
    lines = [{"stage": stage, "reward": k, "accuracy": k} for stage in "ab" for k in (0.1, 0.2)]
    reward, accuracy = drawing.figures(lines, {}, ())
    assert [len(points.split()) for points in reward.mean] == [2, 2]
    assert [len(points.split()) for points in accuracy.mean] == [4]
    assert reward.raw == ["0.0,90.0 100.0,0.0", "200.0,90.0 300.0,0.0"]


def test_figures_of_a_live_curve_are_short() -> None:
    assert drawing.told("accuracy", 0.0025) == ".00"
    assert drawing.told("loss", -0.00049) == "−0.0005"
    assert drawing.told("loss", 3.2e-6) == "3·10⁻⁶"
    assert drawing.told("tokens_per_second", 1234.5) == "1,234"


def test_evaluations_have_as_many_episodes_as_there_are_cases(folder: Path) -> None:
    """The settings allow 100 cases, of which there are 64."""
    run = Run(folder, {"evaluation": {"cases": 100, "samples": 1}}, {}, Untouched)
    (first,) = evaluations(run, [("warm start", 12)])
    assert (first.done, first.total, first.at_most) == (12, 100, True)
    done, last = evaluations(run, [("warm start", 64), ("trained", 12)])
    assert (done.done, done.total, done.at_most) == (64, 64, False)
    assert (last.done, last.total, last.at_most) == (12, 64, False)


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two finished runs with their reports, by name."""
    found = {}
    own = {"environment": {"name": "consultation"}, "strategy": {"name": "cot"}}
    for seed, name in enumerate(("one", "two")):
        path = tmp_path_factory.mktemp("runs") / name
        with example_run.make(path, steps=9, cases=12, seed=seed) as run:
            run.revise(own, {})
            summarise(run, steps=9, seconds=1.0)
            build(run)
        found[name] = path
    return found


def test_the_list_of_runs_tells_the_encounter_and_leads_to_reports(
    reported: Mapping[str, Path],
) -> None:
    with serving(opened(list(reported.values()), restricted=False)) as client:
        page = Reader(client.get("/").text)
        assert page.words.count("consultation") == 2
        assert page.words.count("strategy cot") == 2
        link = "/run/one/report.html"
        assert link in page.links()
        answer = client.get(link)
        assert answer.content == (reported["one"] / "report.html").read_bytes()
        policy = answer.headers["content-security-policy"]
        assert "script-src" not in policy
        assert "default-src 'none'" in policy
        leaf = next(to for to in Reader(answer.text).links() if to.startswith("transcripts/"))
        beside = client.get(f"/run/one/{leaf}")
        assert beside.content == (reported["one"] / leaf).read_bytes()
        for wrong in ("..%2Freport.html", "config.yaml", "x.html", "99.html"):
            assert client.get(f"/run/one/transcripts/{wrong}").status_code in (404, 422)


@pytest.mark.parametrize("how", ["pipe", "link", "folder"])
def test_a_report_that_is_no_file_of_the_run_is_not_read(
    how: str, reported: Mapping[str, Path], tmp_path: Path
) -> None:
    run = Path(shutil.copytree(reported["one"], tmp_path / "run"))
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "1.html").write_text("a secret")
    (run / "report.html").unlink()
    shutil.rmtree(run / "transcripts")
    (run / "transcripts").symlink_to(tmp_path / "secret")
    if how == "pipe":
        os.mkfifo(run / "report.html")
    elif how == "folder":
        (run / "report.html").mkdir()
    else:
        (run / "report.html").symlink_to(tmp_path / "secret" / "1.html")
    with serving(opened([run], restricted=False)) as client:
        for page in ("report.html", "transcripts/1.html"):
            answer = client.get(f"/run/run/{page}")
            assert answer.status_code in (404, 422)
            assert "a secret" not in answer.text
        assert client.get("/").status_code == 200


def test_runs_are_compared_from_their_list(reported: Mapping[str, Path]) -> None:
    before = {name: state_of(path) for name, path in reported.items()}
    with serving(opened(list(reported.values()), restricted=False)) as client:
        boxes = [
            found["value"]
            for tag, found in Reader(client.get("/").text).elements
            if tag == "input" and found.get("name") == "run"
        ]
        assert boxes == ["one", "two"]
        answer = client.get("/compare?run=one&run=two")
        assert answer.status_code == 303
        page = client.get(answer.headers["location"])
        runs = [Run.open(path, Untouched) for path in reported.values()]
        (group,) = figures(runs)["groups"].values()
        mean = number("accuracy", group["accuracy"]["mean"])
        assert mean in page.text
        assert "<script" not in page.text
        assert page.headers["content-security-policy"] == DOCUMENT
        leaf = next(to for to in Reader(page.text).links() if to.endswith("/1.html"))
        beside = client.get(urljoin(answer.headers["location"], leaf))
        assert (beside.status_code, beside.headers["content-security-policy"]) == (200, DOCUMENT)
        for query, status in (("run=one", 400), ("run=one&run=three", 404), ("", 400)):
            assert client.get(f"/compare?{query}").status_code == status
        assert client.get("/compared/none/runs.html").status_code == 404
    assert {name: state_of(path) for name, path in reported.items()} == before


def test_a_finished_run_leads_to_the_wrong_episodes_of_its_policy(
    reported: Mapping[str, Path],
) -> None:
    with Run.open(reported["one"], Untouched) as run:
        wrong = {
            written(record.key)
            for record in run.episodes(doctor="trained", phase="eval", correct=False)
        }
        total = len(run.episodes())
    with serving(opened([reported["one"]], restricted=False)) as client:
        first = client.get("/run/one")  # before the episodes have been read
        assert "so far" not in first.text
        assert f"{total} episodes" in first.text
        page = Reader(first.text)
        assert f"{len(wrong)} wrong episodes of trained" in page.words
        (link,) = [
            to for to in page.links(class_="button") if "verdict=wrong" in to and "trained" in to
        ]
        until(lambda: "the rest follows" not in client.get(link).text)
        assert set(listed_keys(Reader(client.get(link).text))) == wrong


def test_words_of_tables_say_what_they_mean(reported: Mapping[str, Path], tmp_path: Path) -> None:
    def told(text: str) -> dict[str, str]:
        return {
            unescape(word): unescape(meaning)
            for meaning, word in re.findall(r'<abbr title="([^"]+)">([^<]+)</abbr>', text)
        }

    episode = replace(
        example_run.record(0, "trained", 0, 0),
        score=Score((0.5,), {"aux": 0.1, "β·acc": 0.4}),
        sample=9,
    )
    with serving(opened(list(reported.values()), restricted=False)) as client:
        found = told(client.get("/run/one").text)
        assert {"critical", "noise", "return"} <= set(found)
        assert "criticality 3" in found["critical"]
        assert "criticality 0" in found["noise"]
        compared = client.get(client.get("/compare?run=one&run=two").headers["location"])
        assert {"critical", "noise", "return"} <= set(told(compared.text))
        assert told(client.get("/run/one/report.html").text).keys() & {
            "higher",
            "lower",
            "undecided",
        }
    with Run.create(tmp_path / "alone", CONFIG, {}) as run:
        run.write([episode])
    (shown,) = opened([run.path], restricted=False).values()
    text = render("episode.html", **pages.episode(shown, {"episode": written(episode.key)}))
    assert {"aux", "β·acc", "critical", "noise"} <= set(told(text))


def test_a_run_tells_its_money_and_the_time_left(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {**CONFIG, "steps": 10, "budget": 5.0}, {}) as run:
        for step in (1, 2, 3, 4):
            line = {"stage": "grpo", "step": step, "seconds": 30.0, "reward": 0.1 * step}
            run.log({**line, "spent": 0.125 * step})
    lines = list(run.metrics())
    (stage,) = stages(run, lines)
    assert (stage.done, stage.total, stage.left) == (4, 10, 180.0)
    assert spent(run, lines) == 0.5
    assert state(run) is State.STOPPED
    with serving(opened([run.path], restricted=False)) as client:
        facts = Reader(client.get("/run/run").text).words
        assert [facts[facts.index(name) + 1] for name in ("Spent", "Budget")] == ["0.5", "5"]
        with run.alone():
            assert "about 3:00" in Reader(client.get("/run/run").text).words
    counts = {"calls": 1, "hits": 0, "prompt_tokens": 9, "completion_tokens": 3}
    rows = [{"role": "judge", "model": "m", **counts, "cost": cost} for cost in (0.75, 0.5)]
    run.write_summary({"calls": rows})
    assert spent(run, lines) == 1.25


def test_passages_are_named_as_the_reward_saw_them(tmp_path: Path) -> None:
    episode = example_run.record(1, "trained", 0, 0).episode
    first = episode.turns[0]
    reply = (Message("user", "[1] Gout\nUrate."),)
    passage = Passage("library:17", "Urate.", "Gout")
    found = Observation(reply, item="search: gout", passages=(passage,))
    turns = (replace(first, observation=found), *episode.turns[1:])
    record = Record("trained", replace(episode, turns=turns), correct=True)
    with Run.create(tmp_path / "run", CONFIG, {}) as run:
        run.write([record])
    with serving(opened([run.path], restricted=False)) as client:
        query = {"episode": written(record.key)}
        words = Reader(client.get(httpx2.URL("/run/run/episode", params=query)).text).words
    assert "library:17" in words
    assert "[1] Gout\nUrate." in words


def test_a_suite_stands_for_its_evaluations(folder: Path, tmp_path: Path) -> None:
    suite = tmp_path / "eight"
    folders = ["runs/one/tiny", "smollm2/one", "smollm2/two"]
    arm = {"doctor": "tiny", "played_as": "tiny", "benchmark": "one", "settings": {}}
    arms = [arm | {"folder": each} for each in folders]
    own: dict[str, Any] = {"suite": "eight", "left_out": [], "benchmarks": [], "arms": arms}
    Run.create(suite, {**CONFIG, "kind": "suite", **own}, {}).close()
    with pytest.raises(UserError, match=r"no evaluation of this suite has begun; `workup resume`"):
        opened([suite], restricted=False)
    for each in folders[:2]:  # the third has not begun
        (suite / each).parent.mkdir(parents=True)
        (suite / each).symlink_to(folder)
    shown = opened([suite], restricted=False)
    with serving(shown) as client:
        homes = Reader(client.get("/").text).links(class_="row")
        assert homes == ["/run/eight%3Aone%3Atiny", "/run/eight%3Asmollm2%3Aone"]
        assert all(client.get(home).status_code == 200 for home in homes)


def test_a_damaged_file_is_told_in_one_line(tmp_path: Path) -> None:
    Run.create(tmp_path / "bad", CONFIG, {}).close()
    (tmp_path / "bad" / "episodes.sqlite").write_bytes(b"no database" * 1_000)
    with serving(opened([tmp_path / "bad"], restricted=False)) as client:
        until(lambda: "it is no SQLite file" in client.get("/run/bad/episodes").text)


def test_whoever_lacks_the_token_sees_nothing(folder: Path) -> None:
    with serving(opened([folder], restricted=False), token=False) as client:
        for path in ("/", "/run/demo", "/style.css", "/nothing", "/?token=other", "/?token="):
            answer = client.get(path)
            assert answer.status_code == 403
            assert "token" in answer.text
            assert "demo" not in answer.text
        bad = client.get("/", headers={"Cookie": f"workup_view_{client.base_url.port}=other"})
        assert bad.status_code == 403
        began = time.process_time()
        for value in ('"' + "\\" * 60_000, ";" * 60_000, "a=" * 30_000):
            assert client.get("/", headers={"Cookie": f"a={value}"}).status_code in (400, 403, 431)
        assert time.process_time() - began < 2, "read in linear time"
        first = client.get("/run/demo/episodes?verdict=wrong&token=the-token")
        assert first.headers["location"] == "/run/demo/episodes?verdict=wrong"
        assert {"HttpOnly", "SameSite=lax"} <= set(first.headers["set-cookie"].split("; "))
        assert client.get(first.headers["location"]).status_code == 200
        address = f"http://127.0.0.1:{client.base_url.port}//evil.example/%0d%0aX:y"
        away = client.get(f"{address}?token=the-token")
        assert away.headers["location"] == "/evil.example/%0D%0AX%3Ay"


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {"Host": "evil.example"}, 421),
        ("GET", {"Host": "127.0.0.1.evil.example"}, 421),
        ("GET", {"Host": ""}, 421),
        ("GET", {"Origin": "http://evil.example"}, 403),
        ("GET", {"Origin": "null"}, 403),
        ("GET", {"Origin": "https://127.0.0.1"}, 403),
        ("POST", {}, 405),
        ("DELETE", {}, 405),
        ("GET", {"Host": "localhost"}, 200),
        ("HEAD", {}, 200),
    ],
)
def test_requests_from_elsewhere_are_refused(
    client: httpx2.Client, method: str, headers: dict[str, str], status: int
) -> None:
    cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    answer = client.request(method, "/run/demo", headers={"Cookie": cookie, **headers})
    assert answer.status_code == status
    for name, value in HEADERS.items():
        assert answer.headers[name] == value


def test_the_policy_allows_our_own_files_alone(client: httpx2.Client) -> None:
    policy = dict(part.split(" ", 1) for part in HEADERS["Content-Security-Policy"].split("; "))
    assert policy.pop("default-src") == "'none'"
    assert set(policy.values()) == {"'self'", "'none'"}
    for path in ("/style.css", "/view.js"):
        assert not re.search(r"https?:|//[a-z]|url\(|@import", client.get(path).text)


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("/run/other", 404, "no run called"),
        ("/run/..%2F..%2Fetc", 404, ""),
        ("/../../etc/passwd", 404, ""),
        ("/run/demo/episode?episode=x", 400, "names no episode"),
        ("/run/demo/episode?episode=eval~nobody~~0~c~0", 404, "has no episode"),
        ("/run/demo/episode?episode=a~b~c~99999999999999999999~d~0", 400, "names no episode"),
        ("/run/demo/episodes?step=x", 400, "step is a number"),
        ("/run/demo/episodes?sort=weight", 400, "to sort by"),
        ("/run/demo/episodes?verdict=maybe", 400, "verdict is"),
        ("/run/demo/episodes?order=sideways", 400, "order is"),
        ("/run/demo/episodes?after=[[1],2]", 400, "no place in a list"),
        ("/run/demo/episodes?after=[1e999,2]", 400, "no place in a list"),
        ("/run/demo/episodes?after=[%22%5Cud800%22,2]", 400, "no place in a list"),
        ("/run/demo/episodes?text=" + 600 * "x", 400, "characters"),
        ("/run/demo/episodes?text=" + 20_000 * "x", 414, "bytes"),
        ("/run/demo/case?case=nobody", 404, "no episode of the case"),
        ("/run/demo/episodes?doctor=%00%ff", 200, "No episode fits"),
    ],
)
def test_a_wrong_address_is_told_in_one_line(
    client: httpx2.Client, path: str, status: int, told: str
) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert told in answer.text


def hostile(path: Path) -> None:
    """A run whose every text tries to be a page's own."""
    fact = Fact(WORSE, WORSE, WORSE, weight=3)
    case = Case(WORSE, WORSE, Truth(WORSE, aliases=(WORSE,), facts=(fact,)), category=WORSE)
    said = Completion(WORSE, (1, 2), (-0.5, -0.25))
    answer = Observation((Message("user", WORSE),), (WORSE, EVIL), WORSE)
    turns = (
        Turn((3,), said, Action("ask", (WORSE,)), answer),
        Turn((3,), said, Action("diagnose", (WORSE,)), Observation(done=True)),
    )
    opening = (Message("system", WORSE), Message("user", WORSE), Message(EVIL, WORSE))
    records = [
        Record(
            WORSE,
            Episode(case, opening, turns, Ending.FAILED, WORSE),
            stage=WORSE,
            sample=sample,
            score=Score((0.5, 0.5), {WORSE: 1.0}),
            measures={WORSE: 0.5},
        )
        for sample in range(2)
    ]
    config = {**CONFIG, "cases": WORSE, "policy": WORSE, "notes": [WORSE], WORSE: WORSE}
    with Run.create(path, config, {"started": WORSE, WORSE: WORSE}) as run:
        run.write(records)
        run.log({"stage": WORSE, "step": 1, "reward": 0.5, "loss": 1.0})
        estimate = {"mean": 0.5, "low": 0.1, "high": 0.9, "n": 2}
        entry = {"cases": 1, "episodes": 2, "endings": {}, "accuracy": estimate}
        run.write_summary({"doctors": {WORSE: entry}})


def test_a_hostile_run_shows_as_text(tmp_path: Path) -> None:
    path = tmp_path / WORSE.replace("/", "\\")
    hostile(path)
    with serving(opened([path], restricted=False)) as client:
        (home,) = Reader(client.get("/").text).links(class_="row")
        (address,) = Reader(client.get(home).text).links(class_="button")
        until(lambda: "the rest follows" not in client.get(address).text)
        episodes = Reader(client.get(address).text).links(class_="row")
        assert len(episodes) == 2
        extra = httpx2.URL(address, params={"sort": WORSE, "text": WORSE, "doctor": WORSE})
        tokens = Reader(client.get(episodes[0]).text).links(data_key="t") or [
            f"{episodes[0]}&view=tokens"
        ]
        (side,) = [
            href for href in Reader(client.get(episodes[0]).text).links() if "/case?" in href
        ]
        for page in ("/", home, address, extra, episodes[0], tokens[0], side):
            answer = client.get(page)
            assert answer.status_code == 200
            seen = Reader(answer.text)
            assert "alert(1)" in "".join(seen.words)
            assert "49" not in re.findall(r"onerror=alert\(2\)>(\d+)", answer.text)
            assert [found.get("src") for tag, found in seen.elements if tag == "script"] == [
                "/view.js"
            ]
            assert not [tag for tag, _ in seen.elements if tag in ("img", "style", "iframe")]
            names = {name for _, found in seen.elements for name in found}
            assert not [name for name in names if name.startswith("on") or name == "style"]
            for href in seen.links():
                if href == "#content":
                    continue
                assert href.startswith("/")
                assert not href.startswith("//")


def state_of(folder: Path) -> dict[str, tuple[int, int, str]]:
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mtime_ns,
            path.stat().st_size,
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
import example_run
from workup.runs import Run
with Run.open(sys.argv[1]) as run, run.alone():
    run.write([example_run.record(1000, "trained", 0, 0)])
    for line in sys.stdin:
        run.write([example_run.record(int(line), "trained", 0, 0)])
        print("written", flush=True)
    sys.exit(0)
"""


def test_nothing_changes_in_a_run_that_is_being_written(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    with example_run.make(folder, steps=6, cases=4, samples=1):
        pass
    here = str(Path(__file__).parent)
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", WRITER, str(folder), here]
    with (
        subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as writer,
        serving(opened([folder], restricted=False)) as client,
    ):
        assert writer.stdin is not None
        assert writer.stdout is not None

        def write(index: int) -> None:
            assert writer.stdin is not None
            assert writer.stdout is not None
            writer.stdin.write(f"{index}\n")
            writer.stdin.flush()
            assert writer.stdout.readline() == "written\n"

        for index in (2000, 2001):
            write(index)
            before = state_of(folder)
            assert {"episodes.sqlite-wal", "episodes.sqlite-shm"} <= set(before)
            case = example_run.case(index).id
            until(lambda case=case: case in client.get("/run/live/episodes").text)
            assert 'data-live="yes"' in client.get("/run/live").text
            assert "running" in client.get("/").text
            client.get("/run/live/episodes?text=fever&sort=noise")
            client.get(httpx2.URL("/run/live/case", params={"case": case}))
            assert state_of(folder) == before
        writer.kill()
        writer.wait()
        before = state_of(folder)
        assert "episodes.sqlite-wal" in before
        assert case in client.get("/run/live/episodes").text
        assert "stopped" in client.get("/run/live").text
        assert state_of(folder) == before
        (folder / "episodes.sqlite-shm").unlink()
        before = state_of(folder)
        assert case in client.get(httpx2.URL("/run/live/case", params={"case": case})).text
        assert state_of(folder) == before


def test_nothing_changes_in_a_finished_run(folder: Path, client: httpx2.Client) -> None:
    before = state_of(folder)
    assert "episodes.sqlite-wal" not in before
    for path in ("/", "/run/demo", "/run/demo/episodes?text=fever", "/run/demo/case?case=x"):
        client.get(path)
    assert state_of(folder) == before


def test_columns_follow_a_run_that_takes_steps_back(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", CONFIG, {})
    run.write([trained(index, 1) for index in range(4)])
    columns = Columns(Untouched(tmp_path / "run" / "episodes.sqlite"))

    def steps() -> list[int]:
        columns.catch_up(HANG)
        assert columns.whole
        return [row["step"] for row in columns.rows("SELECT step FROM columns ORDER BY id")]

    run.close()
    assert steps() == [1] * 4
    run.log({"stage": "craft", "step": 1})
    run.write([trained(index, 2) for index in range(3)])
    run.close()
    assert steps() == [1] * 4 + [2] * 3
    run.truncate_after("craft", 1)
    run.write([trained(index, 3) for index in range(3)])
    run.close()
    assert steps() == [1] * 4 + [3] * 3


def test_restricted_runs_are_withheld(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with Run.create(path, CONFIG, {}, restricted=True) as run:
        run.write([example_run.record(1, "trained", 0, 0)])
    case = example_run.case(1)
    with serving(opened([path], restricted=False)) as client:
        assert "--restricted" in client.get("/").text
        query = {"episode": f"eval~trained~~0~{case.id}~0", "case": case.id}
        for page in ("", "/episodes", "/episode", "/case"):
            answer = client.get(httpx2.URL(f"/run/secret{page}", params=query))
            assert answer.status_code == 403
            assert case.presentation not in answer.text
            assert case.truth.diagnosis not in answer.text
    shown = opened([path], restricted=True)
    with serving(shown) as client:
        assert client.get(httpx2.URL("/run/secret/episode", params=query)).status_code == 200
    with Run.create(tmp_path / "open", CONFIG, {}) as run:
        run.write([example_run.record(1, "trained", 0, 0)])
    for asked in (False, True):  # what was asked for was another run
        with serving(opened([run.path], restricted=asked)) as client:
            url = httpx2.URL("/run/open/episode", params=query)
            assert client.get(url).status_code == 200
            shutil.move(run.path, tmp_path / f"kept-{asked}")
            shutil.copytree(path, run.path)
            assert client.get(url).status_code == 403
            assert "--restricted" in client.get("/").text
            shutil.rmtree(run.path)
            shutil.move(tmp_path / f"kept-{asked}", run.path)
            assert client.get(url).status_code == 200
    with pytest.raises(UserError, match="restricted runs are shown to this machine alone"):
        app.serve(shown, app.ServerAddress("0.0.0.0", 0))


def test_mistakes_are_told_in_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for paths, why in (
        (["demo"], "does not exist"),
        (["empty"], "is no run folder"),
        ([folder, "empty"], "is no run folder"),
        ([], "there is no run in runs/"),
    ):
        with pytest.raises(UserError, match=why) as error:
            opened([Path(path) for path in paths], restricted=False)
        assert "\n" not in str(error.value)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = told("view", folder, "--port", port, cwd=tmp_path)
    assert f"cannot listen on 127.0.0.1:{port}" in line


def test_without_the_extra_it_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workup.cli.view import view

    monkeypatch.setitem(sys.modules, "starlette", None)
    with pytest.raises(UserError, match=re.escape(install("view"))):
        view([folder])


@pytest.mark.long
def test_the_command_prints_a_link_that_works(folder: Path, tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("workup")
    words = [str(script), "view", str(folder), "--port", str(free_port())]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        link = process.stdout.readline().strip()
        try:
            answer = httpx2.get(link, timeout=HANG, follow_redirects=True)
        finally:
            process.terminate()
    assert answer.status_code == 200
    assert "demo" in answer.text


plain = st.text(st.characters(codec="utf-8"), max_size=8)
whole = st.integers(-(2**63) + 1, 2**63 - 1)


@settings(max_examples=40)
@given(st.tuples(plain, plain, plain, whole, plain, whole))
def test_a_key_comes_back_from_its_address(key: tuple[str, str, str, int, str, int]) -> None:
    assert key_of(written(key)) == key


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(st.sampled_from(["doctor", "case", "step", "after", "order", "text"]), plain)
)
def test_a_query_comes_back_or_is_refused(query: dict[str, str]) -> None:
    try:
        asked = ListQuery.read(query)
    except AddressError:
        return
    assert ListQuery.read(asked.query) == asked


def test_two_runs_of_one_name_have_two_addresses(folder: Path, tmp_path: Path) -> None:
    Run.create(tmp_path / "demo", CONFIG, {}).close()
    shown = opened([folder, tmp_path / "demo", folder], restricted=False)
    assert {name: each.path for name, each in shown.items()} == {
        "demo": folder,
        "demo~2": tmp_path / "demo",
    }
    with serving(shown) as client:
        assert client.get("/run/demo~2").status_code == 200
        assert "0 of 0 episodes" in client.get("/run/demo~2/episodes").text
