"""The exam: its stations, who gets which scorecard, what is told, and how it goes on."""

from __future__ import annotations

import asyncio
import html
import json
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from serving import Server, serving
from waiting import until

import workup
from workup.cases import open_source
from workup.cli import api
from workup.cli.scorecard import exam
from workup.core.episode import Ending
from workup.core.errors import BudgetError, UserError
from workup.environments.base.anchors import RandomDoctor
from workup.environments.consultation import Consultation
from workup.loops.evaluation.suites import stations
from workup.metrics.calibration import WORST
from workup.metrics.extra import MeasuredWorld, open_measures, take
from workup.metrics.reading import reader_of
from workup.report import scorecard
from workup.report.suite import Entrant, EvaluatedBenchmark, Table, opened
from workup.rl.rollout import Play, ToPlay, rollout
from workup.rl.running import run_to_end
from workup.roles.config import NAME
from workup.runs import Outcome, Run
from workup.runs.estimates import over_repeats
from workup.studies.claims.queue import PROGRAM

ROOT = Path(__file__).parents[1]
PRICE = {"input": 1.0, "output": 4.0}
STATIONS = ["named", "renamed", "linked"]
Answer = Callable[[dict[str, Any]], str]


@pytest.fixture(scope="module")
def scripted() -> Answer:
    """What the doctors of the bench say."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        answer = import_module("bench.scripted_doctors").answer
    return lambda body: str(answer(body["model"], body["messages"]))


@pytest.fixture
def rendering() -> Iterator[ModuleType]:
    """What renders measured figures into the documentation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        yield import_module("docs.site.results")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))
    return tmp_path


def known(server: Server, folder: Path, **more: Any) -> None:
    names = ("memoriser", "reader", "guesser")
    ends = {n: {"base_url": server.url, "model": n, "price": PRICE, **more} for n in names}
    (folder / NAME).write_text(json.dumps({"endpoints": ends}))


def played(words: Sequence[str], only: Sequence[str], out: str, **more: Any) -> Run:
    exam([*words], quick=True, station=[*only], out=Path(out), **more)
    return Run.open(out)


def figures(run: Run, title: str) -> dict[str, Any]:
    parts = {each["title"]: each["rows"] for each in run.summary["scorecard"]["parts"]}
    return {row["name"]: row["figures"] for row in parts[title]}


@pytest.mark.long
def test_a_memoriser_and_a_reader_get_the_scorecards_that_they_deserve(
    scripted: Answer, place: Path, rendering: ModuleType
) -> None:
    with serving(scripted) as server:
        known(server, place)
        run = played(["endpoint:memoriser", "endpoint:reader"], STATIONS, "both")
        asked = len(server.asked)
        played(["endpoint:memoriser", "endpoint:reader"], STATIONS, "both")
        assert len(server.asked) == asked, "a finished exam asks nothing"
    lost = figures(run, "Memorised or read")["made-up names"]
    assert lost["memoriser"]["low"] > 0, lost
    assert lost["reader"]["mean"] < lost["memoriser"]["mean"], "it reads with either names"
    accuracy = figures(run, "Accuracy")
    for station in STATIONS:
        folder = run.path / accuracy[station]["reader"]["link"]
        assert folder == run.path / "reader" / station / "report.html"
        assert folder.is_file()
    assert accuracy["renamed"]["memoriser"]["mean"] == 0
    assert accuracy["renamed"]["reader"]["mean"] >= 1 / 3
    assert accuracy["linked"]["reader"]["mean"] == accuracy["linked"]["ideal"]["mean"] == 1
    (won,) = run.summary["scorecard"]["wins"]
    rights = [accuracy[s]["memoriser"]["mean"] - accuracy[s]["reader"]["mean"] for s in STATIONS]
    assert won["mean"] == pytest.approx(sum((each + 1) / 2 for each in rights) / 3)
    page = run.report.read_text()
    assert "of 1.00 with the diseases&#39; own names, 1.00 hangs on the names" in page
    assert "<script" not in page
    chosen = run.summary["scorecard"]["transcripts"]["memoriser"]
    assert {name: len(each) for name, each in chosen.items()} == dict(scorecard.SHOWN)
    assert all(station != "named" for station, _ in chosen["worst"])
    assert all(station == "named" for station, _ in chosen["best"])
    kept = rendering.take("exam-both", [run.path])
    assert kept["tables"][0]["headings"] == ["", "lowest", "memoriser", "reader", "ideal"]
    texts = [cell for part in kept["tables"] for row in part["rows"] for cell in row]
    assert all(html.escape(text) in page for text in texts)
    assert {row[0]: row[2] for row in kept["tables"][0]["rows"]}["renamed"] == ".00 [.00, .39]"


@pytest.mark.long
def test_it_stops_within_the_budget_and_goes_on_without_paying_twice(
    scripted: Answer, place: Path
) -> None:
    words, only = ["endpoint:reader"], ["clinic s", "renamed"]
    with serving(scripted) as server:
        known(server, place)
        with pytest.raises(BudgetError, match="larger --budget goes on"):
            played(words, only, "small", budget=0.004)
        with Run.open("small") as run:
            unfinished = run.report.read_text()
            assert "Not finished" in unfinished
            pages = re.findall(r'href="([^"#]*report\.html)"', unfinished)
            assert all((run.path / page).is_file() for page in pages)
        run = played(words, only, "small", budget=100.0)
        revised = len(run.config["changed"])
        assert len(played(words, only, "small", budget=100.0).config["changed"]) == revised
        lower = played([*words, "budget=50"], only, "small")
        assert lower.config["changed"][-1]["budget"] == 50
        asked = Counter(json.dumps(body, sort_keys=True) for body in server.asked)
    assert set(figures(run, "Accuracy")) == {*only}
    spent = sum(row["cost"] for row in run.summary["calls"])
    assert len(server.asked) == sum(row["calls"] for row in run.summary["calls"])
    assert 0 < spent <= 100
    assert max(asked.values()) <= 6, "equal requests of different patients and turns alone"
    with pytest.raises(UserError, match="small holds another exam or run"):
        played(words, ["renamed"], "small")


@pytest.mark.long
def test_killed_in_the_middle_it_goes_on_and_pays_for_no_answer_twice(
    scripted: Answer, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, only = ["endpoint:reader"], ["clinic s", "renamed"]
    with serving(scripted) as server:
        known(server, place)
        whole = played(words, only, "whole")
        needed = len(server.asked)
        monkeypatch.setenv("WORKUP_CACHE", str(place / "another"))
        stationed = [word for name in only for word in ("--station", name)]
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "exam", *words, "--quick", *stationed, "--out", "cut"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        until(lambda: len(server.asked) >= needed + needed // 3, process)
        process.kill()
        process.communicate()
        assert not Run.open("cut").summary
        run = played(words, only, "cut")
        # What was on its way when it was killed has no answer that could be kept: a request, or an
        # answer that was sent and not yet written down.
        assert needed <= len(server.asked) - needed <= needed + 2 * server.most
    for title in ("Accuracy", "Form"):
        assert figures(run, title) == figures(whole, title)


def test_an_examiner_of_itself_is_told(scripted: Answer, place: Path) -> None:
    texts = ["Known asthma, short of breath.", "Short of breath."]
    rows = [
        {"id": f"c{k}", "presentation": text, "truth": {"diagnosis": "asthma"}}
        for k, text in enumerate(texts)
    ]
    (place / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with serving(lambda body: "answer: [answer: asthma]") as server:
        known(server, place)
        more = ["roles.judge=endpoint:guesser", "max_failed=1.0"]  # its verdicts are none
        run = played(["endpoint:guesser", *more], [stations.OWN], "self", cases="jsonl:mine.jsonl")
        told = " ".join(scorecard.noted(run))
        assert "1 of 2 cases name their diagnosis" in told
        assert "The judge endpoint:guesser is the policy endpoint:guesser itself" in told
        again = played(["endpoint:guesser"], [stations.OWN], "again", cases="jsonl:mine.jsonl")
        assert "answers of guesser" in " ".join(scorecard.noted(again))
        assert "came from the cache" in again.report.read_text()


def test_own_cases_are_played_beside_a_named_station() -> None:
    own, _ = stations.own_station("clinic:xs", {})
    suite, left = stations.exam("quick", own=own, only=["clinic s"])
    assert [each.name for each in suite.benchmarks] == ["clinic s", stations.OWN]
    assert not left


@pytest.mark.parametrize(
    ("words", "more", "problem"),
    [
        ([], {}, "name a model"),
        (["endpoint:x"], {"standard": True}, "exclude each other"),
        (["endpoint:x", "cases=clinic:s"], {}, "cases=… is no setting of an exam"),
        (["endpoint:x", "environment=library"], {}, "environment=… is for your own cases"),
        (
            ["smollm2", "environment=librry"],
            {"cases": "clinic:s", "station": [stations.OWN]},
            "Did you mean 'library'",
        ),
        (["endpoint:x"], {}, "no endpoint 'x'"),
        (["random doctr"], {"station": ["clinic s"]}, "Did you mean 'random doctor'"),
        (["endpoint:x"], {"station": ["clinic z"]}, "no station 'clinic z'. Did you mean"),
        (["endpoint:x"], {"cases": "jsonl:none.jsonl"}, "none.jsonl"),
        (["endpoint:x"], {"station": ["MediQ"]}, "MediQ: it needs files"),
        (["smollm2", "roles=endpoint:x"], {"station": ["manner"]}, "roles.patient=endpoint:NAME"),
        (["endpoint:a_b", "endpoint:a-b"], {}, "would share the folder a-b"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(
    words: list[str], more: dict[str, Any], problem: str, place: Path
) -> None:
    with pytest.raises(UserError) as found:
        exam(words, quick=True, out=place / "none", **more)
    assert problem in str(found.value)
    assert not (place / "none").exists()


@pytest.mark.long
def test_what_is_foretold_is_at_most_what_is_asked(
    scripted: Answer, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(scripted) as server:
        known(server, place)
        exam(["endpoint:reader"], quick=True, station=["clinic s"], dry=True)
        said = capsys.readouterr()
        assert "at most 66 calls" in said.out + said.err  # six cases, ten turns and how sure
        assert server.asked == []
        known(server, place, parameters={"max_tokens": 50_000})
        exam(["endpoint:reader"], quick=True, station=["clinic s"], dry=True)
        told = re.search(r"at most ([\d.]+)$", "".join(capsys.readouterr()), re.MULTILINE)
        assert told is not None
        assert float(told[1]) > 66 * 50_000 * PRICE["output"] / 10**6
        known(server, place)
        played(["endpoint:reader"], ["clinic s"], "one")
        assert 0 < len(server.asked) <= 66


@pytest.mark.parametrize(
    ("named", "renamed", "said"),
    [
        ([1, 1, 1, 1], [None] * 4, "remembered cannot be told: its episodes failed"),
        ([0, 0, 0, 0], [0, 0, 0, 0], "remembered cannot be told: it is right with neither names"),
        ([1, 1, 0, 1], [1, 0, 1, 1], "remembered is not shown: the interval"),
        (
            [1] * 20,
            [0] * 15 + [1] * 5,
            "its accuracy of 1.00 with the diseases' own names, .75 hangs",
        ),
    ],
)
def test_what_is_said_of_remembering_says_what_was_measured(
    named: list[int | None], renamed: list[int | None], said: str, tmp_path: Path
) -> None:
    card, doctor = made_card({"named": named, "renamed": renamed}, tmp_path)
    assert said in " ".join(card.short(doctor))


@pytest.mark.parametrize(("cases", "few"), [(29, True), (30, False)])
def test_few_cases_are_told_first(cases: int, few: bool, tmp_path: Path) -> None:
    card, doctor = made_card({"named": [1] * cases, "renamed": [1] * 4}, tmp_path)
    said = [each for each in card.short(doctor) if "only large differences" in each]
    assert said == [f"At most {cases} cases a station: only large differences can show."] * few


def test_failed_episodes_are_in_no_other_figure(tmp_path: Path) -> None:
    card, _ = made_card({"named": [1, 0, None, None, None], "renamed": [1]}, tmp_path)
    (form,) = (part for part in card.parts() if part.title == "Form")
    rows: Any = {row.name: row.figures[1].estimate for row in form.rows}
    assert rows["failed"].mean == pytest.approx((3 / 5 + 0) / 2)
    assert rows["wrong diagnosis"].mean == pytest.approx((1 / 2 + 0) / 2)
    assert (rows["no diagnosis"].mean, rows["no diagnosis"].n) == (0, 3)


def test_no_set_holds_a_truth_that_got_next_to_no_probability(tmp_path: Path) -> None:
    """More than a tenth of the calibration cases are at the worst score: it is the threshold."""
    card, doctor = made_card({"named": [1] * 40}, tmp_path)
    doctor.outcomes["named"][:] = [
        each._replace(measures={"log_score": WORST if k % 4 < 2 else 0.5})
        for k, each in enumerate(doctor.outcomes["named"])
    ]
    row = card.covered("named")
    assert row is not None
    found = row.figures[1].estimate
    assert found is not None
    assert (found.mean, found.n) == (0.5, 20)


def test_a_lead_needs_a_judged_case_of_both_at_each_benchmark(tmp_path: Path) -> None:
    _, one = made_card({"named": [1, 1], "renamed": [1, 1]}, tmp_path)
    _, other = made_card({"named": [0, 0], "renamed": [None, None]}, tmp_path)
    assert one.lead(other, ["named", "renamed"]) is None
    assert one.lead(other, ["renamed"]) is None
    found = one.lead(other, ["named"])
    assert found is not None
    assert found.mean == 1


def test_repeats_without_a_verdict_are_none() -> None:
    def episode(sample: int, right: bool | None) -> Outcome:
        return Outcome("c", "gout", "", sample, Ending.DIAGNOSED, right, 1, None, {}, {})

    assert over_repeats([episode(0, True), episode(1, None)]) == {}
    found = over_repeats([episode(0, True), episode(1, None), episode(2, False)])
    assert found["repeats_accuracy"]["each"] == [1, 0]


def made_card(
    stations_of: dict[str, list[int | None]], folder: Path
) -> tuple[scorecard.Scorecard, Entrant]:
    """The card of one doctor: right, wrong or failed (None) at each case of each station."""
    listed = [
        EvaluatedBenchmark(name, "in-domain", "", "", "named" if name == "renamed" else "", "x")
        for name in stations_of
    ]
    runs: Any = {}
    for name, values in stations_of.items():
        rows = [
            Outcome(
                *(f"c{k}", "gout", "", 0, Ending.FAILED if right is None else Ending.DIAGNOSED),
                *(None if right is None else bool(right), 1, None, {}, {}),
            )
            for k, right in enumerate(values)
        ]
        run = SimpleNamespace(
            outcomes=lambda _, rows=rows: rows, anchors=(), report=folder / name / "report.html"
        )
        runs[name] = (run, "mine")
    doctor = Entrant("mine", runs, 0)
    return scorecard.Scorecard(Table(listed, [doctor]), folder), doctor


@pytest.mark.long
def test_an_exam_in_python_is_gone_on_with_by_the_same_call(place: Path) -> None:
    words: dict[str, Any] = {"size": "quick", "stations": ["clinic s"], "quiet": True}
    for _ in range(2):
        run = workup.exam("random doctor", out=place / "mine", **words)
        assert figures(run, "Accuracy").keys() == {"clinic s"}
    with pytest.raises(UserError, match=r"no size 'quik'\. Did you mean 'quick'"):
        workup.exam("random doctor", size="quik", out=place / "other")
    with pytest.raises(UserError, match="holds another exam"):
        workup.exam("random doctor", out=place / "mine", size="quick", quiet=True)


def test_stations_are_pairs_of_the_same_patients() -> None:
    suite, _ = stations.exam("quick", data=True, roles=["patient"])
    by_name = {each.name: each for each in suite.benchmarks}
    for each in suite.benchmarks:
        assert each.tests
        if each.against:
            pair = [open_source(by_name[n].cases, split=0).test for n in (each.name, each.against)]
            for one, other in zip(*(side[:40] for side in pair), strict=True):
                assert one.id == other.id
                assert {f.id for f in one.truth.facts} == {f.id for f in other.truth.facts}


def test_other_words_and_other_orders_tell_the_same() -> None:
    plain, other = (open_source(f"clinic:s{how}", split=0).test for how in ("", "#reworded"))
    texts = [
        (a.text, b.text)
        for one, two in zip(plain[:60], other[:60], strict=True)
        for a, b in zip((*one.given, *one.truth.facts), (*two.given, *two.truth.facts), strict=True)
        if a.id == b.id
    ]
    assert sum(a != b for a, b in texts) > len(texts) / 3
    assert all(two.given[2].text in two.presentation for two in other[:60])
    listed, turned = (open_source(f"clinic:s#options{how}", split=0) for how in ("", ",reordered"))
    for one, two in zip(listed.test[:20], turned.test[:20], strict=True):
        assert one.options == two.options[::-1] != two.options
        assert set(one.options) == set(listed.diagnoses)
    assert len({case.options for case in listed.test[:20]}) == 20


def test_what_a_question_told_is_the_sum_of_what_its_answers_told() -> None:
    source = open_source("clinic:s", split=0)
    world = Consultation(source.items, source.diagnoses)
    (measure,) = open_measures(["informed"], [], {}, MeasuredWorld(source, world))
    reader = reader_of(source, world)
    assert reader is not None
    assert source.knowledge is not None
    doctor = RandomDoctor(source.knowledge, source.items, 6, 0, world.write, world.known)
    for place in range(8):
        job = ToPlay(source.test[place], place)
        episode = asyncio.run(rollout(job, world, doctor, Play()))
        past, names = episode.gathered, list(reader.knowledge.diagnoses)
        chances = [
            reader.knowledge.posterior(reader.evidence(episode.case, past[:k]))[
                names.index(episode.case.truth.diagnosis)
            ]
            for k in range(len(past) + 1)
        ]
        steps = [math.log2(b / a) for a, b in pairwise(chances)]
        _, values = run_to_end(take([measure], episode, True))
        found = values["informed"]
        assert found == pytest.approx(sum(steps) / len(steps))


def test_warnings_that_differ_in_who_and_share_are_one() -> None:
    lines = ["a on x: 60 % of its turns; 8 episodes", "a on y: 70 % of its turns; 1,009 episodes"]
    lines.append("b on x: 61 % of other; 8 episodes")
    lines.append("c on y: 3 of 9 episodes failed")
    assert scorecard.grouped(lines) == [
        "a on x, 60 %; a on y, 70 % of its turns",
        "b on x, 61 % of other",
        "c on y, 3 of 9 episodes failed",
    ]


@pytest.mark.long
def test_a_random_doctor_is_the_lowest_reference_and_an_exact_one_the_highest(place: Path) -> None:
    words = ["random doctor", "greedy information"]
    run = played(words, ["clinic s", "named", "options"], "anchors")
    card = scorecard.Scorecard(opened(run), run.path)
    lowest, ideal = card.ends("clinic s")
    assert lowest is not None
    assert ideal is not None
    assert (lowest.label, ideal.label) == ("random doctor", "greedy information")
    assert {each.label: set(each.runs) for each in card.doctors} == {
        "random doctor": {"clinic s", "options"},
        "greedy information": {"clinic s", "options"},
    }
    assert figures(run, "Accuracy").keys() == {"clinic s", "options"}
    assert figures(run, "Effort").keys() == {"questions, clinic s"}, "options are asked nothing"
    assert "must not miss, options" in figures(run, "Safety")
    assert api.open_run("anchors").config["exam"]["size"] == "quick"
