"""`workup evaluate`: any doctor on cases that nobody trained on.

Endpoints are real ones on loopback.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from io import StringIO
from pathlib import Path
from statistics import mean, stdev
from threading import Lock
from typing import Any

import pytest
from command_line import SCRIPT, environment, finished, told
from library_world import index_folder
from omegaconf import OmegaConf
from serving import Gate, Server, completion, serving
from waiting import until
from werkzeug import Response

from workup.cases import open_source
from workup.cases.jsonl import line_of
from workup.cli import api
from workup.core.episode import Episode
from workup.core.errors import BudgetError, RolloutError, UserError, WorkupError
from workup.core.ports import Instruments
from workup.core.text import up_to
from workup.environments.base.anchors import RandomDoctor
from workup.environments.consultation import Consultation
from workup.loops.evaluation import loop as evaluation
from workup.loops.evaluation.examination import Examination, Player, examine, playing
from workup.methods.base.outcome import correctness
from workup.report import build as build_report
from workup.report.live import JsonLive
from workup.rl.rollout import ToPlay
from workup.roles.judges.exact import ExactJudge
from workup.roles.replies import FILE
from workup.runs import Run
from workup.runs.settings import EvaluationSettings, PolicySettings, Settings
from workup.runs.settings import build as build_settings

CASES = open_source("clinic:xs", split=0)
ASKED = 3
PRICE = {"input": 1.0, "output": 2.0}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))


def doctor(body: dict[str, Any]) -> str:
    """Asks for three items, then names a diagnosis.

    Both depend on the patient's presentation and on nothing else.
    """
    said = [message for message in body["messages"] if message["role"] == "assistant"]
    draw = random.Random(body["messages"][1]["content"])
    items = draw.sample([item.name for item in CASES.items], ASKED)
    if len(said) < ASKED:
        return f"<ask>{items[len(said)]}</ask> and a word too many"
    return f"<diagnose>{draw.choice(CASES.diagnoses)}</diagnose>"


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(doctor) as running:
        yield running


def evaluate(server: Server, out: Path, **more: Any) -> Run:
    endpoint = {"base_url": server.url, "model": "m", "price": PRICE, **more.pop("endpoint", {})}
    given: dict[str, Any] = {
        "cases": "clinic:xs",
        "quiet": True,
        "evaluation": {"cases": 12, "anchors": False},
    }
    return api.evaluate("endpoint:doc", out=out, endpoints={"doc": endpoint}, **{**given, **more})


def played(run: Run) -> list[tuple[Any, ...]]:
    """Everything that happened, but for where the server listened."""
    return [
        (
            r.doctor,
            r.sample,
            r.correct,
            r.episode.ending,
            [t.completion.text for t in r.episode.turns],
        )
        for r in run.episodes(phase="eval")
    ]


def test_an_endpoint_plays_and_its_calls_are_counted(server: Server, tmp_path: Path) -> None:
    run = evaluate(server, tmp_path / "run")
    (calls,) = run.summary["calls"]
    assert calls["role"] == "doctor"
    assert calls["calls"] == len(server.asked) == 12 * (ASKED + 1)
    assert calls["cost"] == pytest.approx(calls["calls"] * (7 * 1.0 + 3 * 2.0) / 1e6)
    assert run.summary["doctors"]["doc"]["questions"]["mean"] == ASKED
    assert run.report.stat().st_size > 10_000
    assert "What the models cost" in run.report.read_text()
    # finished() has its cache in the same place.
    head, listed = (line.split() for line in finished("cache", "costs", cwd=tmp_path).splitlines())
    assert head[:2] == ["run", "calls"]
    assert listed[:2] == ["run", str(calls["calls"])], "by its folder"
    for record in run.episodes(phase="eval"):
        assert all(
            turn.completion.text.endswith(("</ask>", "</diagnose>"))
            for turn in record.episode.turns
        )


def test_accuracy_and_money_so_far_are_shown_and_go_on_after_a_resume(
    server: Server, tmp_path: Path
) -> None:
    """The last four of twelve episodes are taken out and played again."""
    endpoint = {"base_url": server.url, "model": "m", "price": PRICE}
    given = {"policy": "endpoint:doc", "cases": "clinic:xs", "endpoints": {"doc": endpoint}}
    settings = PolicySettings(**given, evaluation={"cases": 12, "anchors": False})
    stream, again = StringIO(), StringIO()
    run = evaluation.start(settings, tmp_path / "run", JsonLive(stream))
    right = [bool(record.correct) for record in run.episodes(phase="eval")]
    steps = [
        event
        for event in map(json.loads, stream.getvalue().splitlines())
        if event["event"] == "step"
    ]
    assert [(each["step"], each["judged"]) for each in steps] == [(k, k) for k in range(1, 13)]
    assert steps[-1]["accuracy_so_far"] == pytest.approx(mean(right))
    assert all(
        each["accuracy_so_far"] * each["judged"]
        == pytest.approx(round(each["accuracy_so_far"] * each["judged"]))
        for each in steps
    )
    spent = [each["spent"] for each in steps]
    assert spent == sorted(spent)
    assert spent[0] > 0
    assert spent[-1] == pytest.approx(run.summary["calls"][0]["cost"])
    with closing(sqlite3.connect(tmp_path / "run" / "episodes.sqlite")) as database:
        database.execute("DELETE FROM kept WHERE id > 7 + (SELECT MIN(id) FROM kept)")
        database.commit()
    resumed = evaluation.resume(tmp_path / "run", JsonLive(again))
    events = [
        event
        for event in map(json.loads, again.getvalue().splitlines())
        if event["event"] == "step"
    ]
    assert [(each["step"], each["judged"]) for each in events] == [(k, k) for k in range(9, 13)]
    assert events[-1]["accuracy_so_far"] == pytest.approx(
        mean(bool(r.correct) for r in resumed.episodes(phase="eval"))
    )
    # What was paid is kept and not asked again; the ledger may add it up in another order.
    assert [each["spent"] for each in events] == pytest.approx([spent[-1]] * len(events))


def test_the_same_again_costs_nothing_and_is_the_same(server: Server, tmp_path: Path) -> None:
    first = evaluate(server, tmp_path / "one")
    asked = len(server.asked)
    second = evaluate(server, tmp_path / "two", replay=True)
    assert len(server.asked) == asked
    assert played(second) == played(first)
    assert [row["hits"] for row in second.summary["calls"]] == [asked]


@pytest.mark.long
def test_faults_change_nothing(tmp_path: Path) -> None:
    """At 20 % faults no episode is lost, no answer is charged twice, and the result is the same.

    The faults are 429, 500, hung-up connections and broken JSON.
    """
    answered, lock, draw = 0, Lock(), random.Random(3)
    faults: list[Callable[[], Response]] = [
        lambda: Response("slow down", status=429, headers={"Retry-After": "0"}),
        lambda: Response("oops", status=500),
        lambda: Response('{"choices": [{"mess', content_type="application/json"),
        lambda: Response("{}", content_type="application/json"),
    ]

    def shaky(body: dict[str, Any]) -> Response | str:
        nonlocal answered
        with lock:
            if draw.random() < 0.2:
                return draw.choice(faults)()
            answered += 1
        return doctor(body)

    with serving(doctor) as well, serving(shaky) as ill:
        calm, shaken = (
            evaluate(well, tmp_path / "calm"),
            evaluate(ill, tmp_path / "shaken", endpoint={"retries": 12}),
        )
    assert played(shaken) == played(calm)
    (row,), (reference,) = shaken.summary["calls"], calm.summary["calls"]
    assert row["calls"] == answered == reference["calls"]
    assert row["cost"] == pytest.approx(reference["cost"])


def test_more_failures_than_allowed_stop_the_run_and_it_goes_on_afterwards(tmp_path: Path) -> None:
    down = True

    def flaky(body: dict[str, Any]) -> Response | str:
        return Response("no such parameter", status=400) if down else doctor(body)

    with serving(flaky) as server:
        with pytest.raises(
            WorkupError, match=r"12 of 12 episodes failed, more than max_failed=0.2; 12 of them: "
        ):
            evaluate(server, tmp_path / "run")
        run = Run.open(tmp_path / "run")
        assert {record.episode.ending.value for record in run.episodes(phase="eval")} == {"failed"}
        down = False
        run = api.resume(tmp_path / "run")
    assert run.summary["doctors"]["doc"]["endings"] == {"diagnosed": 12}
    again = api.resume(tmp_path / "run")
    assert again.summary["seconds"] >= run.summary["seconds"], "nothing was left to play"
    assert again.summary["episodes_per_second"] == run.summary["episodes_per_second"]


def charges(path: Path) -> int:
    """How many answers are on the disk."""
    with closing(sqlite3.connect(path)) as replies:
        return int(replies.execute("SELECT count(*) FROM charges").fetchone()[0])


@pytest.mark.long
def test_killed_at_any_moment_it_goes_on_without_paying_again(tmp_path: Path) -> None:
    with serving(gate := Gate(doctor, 40)) as server:
        words = (
            "evaluate",
            "endpoint:doc",
            "--cases",
            "clinic:xs",
            "--out",
            "run",
            "evaluation.cases=40",
            "evaluation.anchors=false",
        )
        endpoint = {"base_url": server.url, "model": "m", "concurrency": 4, "price": PRICE}
        OmegaConf.save(
            OmegaConf.create({"endpoints": {"doc": endpoint, "unused": endpoint}}),
            tmp_path / "workup.yaml",
        )
        process = subprocess.Popen(
            [str(SCRIPT), *words], cwd=tmp_path, env=environment(tmp_path / "cache")
        )
        gate.full(4)
        until(lambda: charges(tmp_path / "cache" / FILE) == 40, process)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        gate.drop()
        assert len(server.asked) == 44
        total = 40 * (ASKED + 1)
        gate.allow(2 * total)
        finished("resume", "run", cwd=tmp_path)
        # The four in flight when it died had no answer yet: they, and only they, are asked again.
        assert len(server.asked) == total + 4
        again = evaluate(server, tmp_path / "whole", evaluation={"cases": 40, "anchors": False})
    run = Run.open(tmp_path / "run")
    assert played(run) == played(again)
    assert run.summary["calls"][0]["calls"] == total
    assert list(run.config["endpoints"]) == ["doc"]


@pytest.mark.long
def test_a_scheduler_ends_it_in_one_line_and_what_has_been_played_is_kept(tmp_path: Path) -> None:
    many = ("evaluation.cases=20000", "evaluation.anchors=false")
    process = subprocess.Popen(
        [str(SCRIPT), "evaluate", "random doctor", "--cases", "clinic:s", "--out", "run", *many],
        cwd=tmp_path,
        env=environment(tmp_path / "cache"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    until((tmp_path / "run" / "episodes.sqlite").exists, process)  # in the middle of the playing
    process.terminate()
    said, _ = process.communicate()
    assert process.returncode == 130, said
    going = "stopped; everything is saved. Go on with:  workup resume run"
    assert said.splitlines()[-2:] == ["", going]
    assert "Traceback" not in said
    assert Run.open(tmp_path / "run").outcomes("random doctor")


def examination(**more: Any) -> Examination:
    world = Consultation(CASES.items, CASES.diagnoses)
    how = EvaluationSettings(cases=12, anchors=False)
    return Examination.of(CASES, world, ExactJudge(), how, concurrency=1, **more)


def at_random() -> Player:
    assert CASES.knowledge is not None
    return playing(RandomDoctor(CASES.knowledge, CASES.items))


def plain(path: Path) -> Run:
    return Run.create(path, {"seed": 0}, {})


def test_a_policy_that_is_called_as_an_anchor_is_refused(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "random doctor").mkdir()
    monkeypatch.chdir(tmp_path)
    ends = {"random doctor": {"base_url": server.url, "model": "m"}}
    for name in ("./random doctor", "endpoint:random doctor"):
        with pytest.raises(UserError, match=f"'{name}' would be called 'random doctor' in tables"):
            api.evaluate(name, cases="clinic:xs", out="run", quiet=True, endpoints=ends)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("how", ["budget", "Ctrl-C"])
def test_what_has_been_played_is_kept_where_it_is_stopped(how: str, tmp_path: Path) -> None:
    """The eighth of twelve episodes stops it. It ends as one that nobody stopped."""
    play, begun = at_random(), []

    async def stopping(examination: Examination, job: ToPlay) -> Episode:
        begun.append(job.case.id)
        if len(begun) != 8:
            return await play(examination, job)
        for _ in range(9):  # until the others have their verdicts
            await asyncio.sleep(0)
        if how == "budget":
            raise BudgetError("spent")
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()
        raise AssertionError

    asked = examination(reward=correctness(0.2))
    whole, run = plain(tmp_path / "whole"), plain(tmp_path / "run")
    examine(whole, asked, play, "random")
    # A background job would ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(BudgetError if how == "budget" else KeyboardInterrupt):
        examine(run, asked, stopping, "random")
    kept = {record.episode.case.id for record in run.episodes(phase="eval")}
    assert kept == set(begun[:7])
    assert examine(run, asked, play, "random") == 5
    assert list(run.episodes(phase="eval")) == list(whole.episodes(phase="eval"))
    assert run.outcomes("random") == whole.outcomes("random")


@pytest.mark.parametrize("how", ["budget", "Ctrl-C"])
def test_what_ends_the_scoring_is_not_scored_again(how: str, tmp_path: Path) -> None:
    """Nothing is kept without its score, so that all of it is played and scored later."""
    usual, asked = correctness(0.2), []

    async def reward(groups: Any, instruments: Instruments) -> Any:
        asked.append(sum(map(len, groups)))
        if len(asked) > 1:
            return await usual(groups, instruments)
        if how == "budget":
            raise BudgetError("spent")
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()
        raise AssertionError

    run, play = plain(tmp_path / "run"), at_random()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(BudgetError if how == "budget" else KeyboardInterrupt):
        examine(run, examination(reward=reward), play, "random")
    assert asked == [12]
    assert list(run.episodes(phase="eval")) == []
    assert examine(run, examination(reward=reward), play, "random") == 12


def test_an_episode_whose_reward_gives_up_is_a_failed_one(tmp_path: Path) -> None:
    usual, asked = correctness(0.2), []

    async def reward(groups: Any, instruments: Instruments) -> Any:
        asked.append(sum(map(len, groups)))
        if any(episode.case.id == CASES.test[0].id for group in groups for episode in group):
            raise RolloutError("no grade")
        return await usual(groups, instruments)

    run, play = plain(tmp_path / "run"), at_random()
    examine(run, examination(reward=reward), play, "random")
    assert asked == [12, *[1] * 12, 11]  # all, each by itself, then those that can be scored
    (failed,) = run.episodes(phase="eval", ending="failed")
    assert (failed.episode.case.id, failed.episode.reason) == (CASES.test[0].id, "reward: no grade")
    assert (failed.correct, failed.score, failed.measures) == (None, None, {})
    assert sum(record.score is not None for record in run.episodes(phase="eval")) == 11
    with pytest.raises(WorkupError, match=r"1 of 12 episodes failed.*: reward: no grade"):
        examine(plain(tmp_path / "b"), examination(reward=reward, max_failed=0), play, "random")


@pytest.mark.long
def test_a_spent_budget_stops_cleanly_and_more_money_goes_on(
    server: Server, tmp_path: Path
) -> None:
    each = (
        3 * 1e-6
    )  # three tokens come back, and no call may write more: what is set aside is what it costs
    whole = 12 * (ASKED + 1) * each
    endpoint = {"base_url": server.url, "model": "m", "price": {"output": 1.0}}
    OmegaConf.save(
        OmegaConf.create({"endpoints": {"doc": endpoint}, "budget": whole / 2}),
        tmp_path / "workup.yaml",
    )
    words = ("--out", "run", "evaluation.cases=12", "evaluation.anchors=false", "max_tokens=3")
    said = told("evaluate", "endpoint:doc", "--cases", "clinic:xs", *words, cwd=tmp_path)
    assert "budget" in said
    assert "workup resume run" in said
    paid = len(server.asked)
    assert paid * each == pytest.approx(whole / 2)
    finished("resume", "run", f"budget={2 * whole}", cwd=tmp_path)
    assert len(server.asked) == 12 * (ASKED + 1)


def test_a_run_made_anew_has_an_account_of_its_own_and_a_moved_one_keeps_it(
    server: Server, tmp_path: Path
) -> None:
    first = evaluate(server, tmp_path / "run")
    assert first.summary["calls"][0]["calls"] == 12 * (ASKED + 1)
    shutil.rmtree(tmp_path / "run")
    again = evaluate(server, tmp_path / "run")
    assert again.account != first.account
    assert (again.summary["calls"][0]["calls"], again.summary["calls"][0]["cost"]) == (0, 0)
    (tmp_path / "run").rename(tmp_path / "moved")
    assert Run.open(tmp_path / "moved").account == again.account


def test_repeats_are_told_with_their_spread(server: Server, tmp_path: Path) -> None:
    run = evaluate(
        server, tmp_path / "run", evaluation={"cases": 10, "samples": 3, "anchors": False}
    )
    records = list(run.episodes(phase="eval"))
    each = [mean(bool(r.correct) for r in records if r.sample == k) for k in range(3)]
    told_ = run.summary["doctors"]["doc"]["repeats_accuracy"]
    assert told_["each"] == pytest.approx(each)
    assert told_["sd"] == pytest.approx(stdev(each))


def test_another_model_concludes_and_judges(server: Server, tmp_path: Path) -> None:
    asked_of_judge: list[str] = []

    def judge(body: dict[str, Any]) -> str:
        asked_of_judge.append(body["messages"][-1]["content"])
        return '{"reason": "by its name", "grade": "wrong"}'

    with serving(judge) as strict:
        endpoints = {
            "doc": {"base_url": server.url, "model": "m"},
            "strict": {"base_url": strict.url, "model": "judge"},
        }
        run = api.evaluate(
            "random doctor",
            cases="clinic:xs",
            out=tmp_path / "run",
            quiet=True,
            conclude="endpoint:doc",
            endpoints=endpoints,
            roles={"judge": "endpoint:strict"},
            evaluation={"cases": 6, "anchors": False},
        )
    doctors = run.summary["doctors"]
    assert set(doctors) == {"random doctor", "random doctor, doc concludes", "doc, oracle context"}
    assert all(entry["accuracy"]["mean"] == 0 for entry in doctors.values())
    assert {row["role"] for row in run.summary["calls"]} == {"doctor", "judge"}
    assert asked_of_judge


def test_a_judge_that_fails_is_a_failed_episode_with_a_reason(
    server: Server, tmp_path: Path
) -> None:
    with serving(lambda body: "I would rather not say.") as vague:
        endpoints = {
            "doc": {"base_url": server.url, "model": "m"},
            "vague": {"base_url": vague.url, "model": "judge"},
        }
        run = api.evaluate(
            "endpoint:doc",
            cases="clinic:xs",
            out=tmp_path / "run",
            quiet=True,
            endpoints=endpoints,
            max_failed=1,
            roles={"judge": "endpoint:vague"},
            evaluation={"cases": 4, "anchors": False},
        )
    records = list(run.episodes(phase="eval"))
    assert {record.episode.ending.value for record in records} == {"failed"}
    assert all(record.correct is None and "judge" in record.episode.reason for record in records)
    assert run.summary["doctors"]["doc"]["accuracy"]["mean"] is None


def test_a_hopeless_request_is_told_before_anything_is_written(
    server: Server, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    for given, said in (
        ({"roles": {"jugde": "exact"}}, "Did you mean 'judge'"),
        ({"roles": {"patient": "exact"}}, "no role 'patient'"),
        ({"roles": {"judge": "endpoint:dco"}}, "Did you mean 'doc'"),
        ({"environment": "consulting"}, "Did you mean 'consultation'"),
        ({"environment": {"persona": "INTJ"}}, "no setting 'environment.persona'"),
        ({"persona": "INTJ"}, "a setting of the environment: write environment.persona="),
        ({"environment": {"name": "library", "index": "no/such/folder"}}, "no/such/folder"),
        ({"environment": {"name": "questioning", "persona": "XXXX"}}, "no persona 'XXXX'"),
        ({"endpoint": {"api_key": "sk-1234567890abcdef"}}, "endpoints.doc.api_key"),
        ({"budget": -1}, "setting 'budget'"),
    ):
        with pytest.raises(UserError, match=said):
            evaluate(server, out, **given)
    assert not out.exists()
    assert server.asked == []


def test_weights_that_cannot_be_loaded_leave_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="no weights"):
        api.evaluate(tmp_path / "model", cases="clinic:xs", out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_every_judge_of_a_panel_is_taken_from_the_users_file(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(lambda body: '{"reason": "by its name", "grade": "wrong"}') as strict:
        endpoint = {"base_url": strict.url, "model": "judge"}
        named = {
            "doc": {"base_url": server.url, "model": "m"},
            "one": endpoint,
            "two": endpoint,
            "unused": endpoint,
        }
        OmegaConf.save(OmegaConf.create({"endpoints": named}), tmp_path / "workup.yaml")
        monkeypatch.chdir(tmp_path)
        run = api.evaluate(
            "endpoint:doc",
            cases="clinic:xs",
            out=tmp_path / "run",
            quiet=True,
            evaluation={"cases": 4, "anchors": False},
            roles={"judge": "endpoint:one, endpoint:two"},
        )
    assert set(run.config["endpoints"]) == {"doc", "one", "two"}
    assert run.summary["doctors"]["doc"]["accuracy"]["mean"] == 0


def test_the_exact_judge_sits_in_a_panel(server: Server, tmp_path: Path) -> None:
    """Beside one that says yes to all and one that says no to all, it decides."""

    def judge(body: dict[str, Any]) -> str:
        return json.dumps(
            {"reason": "as ever", "grade": "same" if body["model"] == "yes" else "wrong"}
        )

    with serving(judge) as both:
        judges = {name: {"base_url": both.url, "model": name} for name in ("yes", "no")}
        named = {"doc": {"base_url": server.url, "model": "m"}, **judges}
        run = api.evaluate(
            "endpoint:doc",
            cases="clinic:xs",
            out=tmp_path / "run",
            quiet=True,
            endpoints=named,
            roles={"judge": "endpoint:yes, exact, endpoint:no"},
            evaluation={"cases": 30, "anchors": False},
        )
        assert {body["model"] for body in both.asked} == {"yes", "no"}
    episodes = run.episodes(phase="eval")
    found = {(r.correct, r.episode.answer[0] == r.episode.case.truth.diagnosis) for r in episodes}
    assert found == {(True, True), (False, False)}


def test_questioning_is_played_the_same_way(tmp_path: Path) -> None:
    def questioner(body: dict[str, Any]) -> str:
        said = [message for message in body["messages"] if message["role"] == "assistant"]
        return (
            "question: do you have a fever?"
            if len(said) < 2
            else f"answer: it is this [answer: {CASES.diagnoses[0]}]"
        )

    with serving(questioner) as server:
        run = evaluate(server, tmp_path / "run", environment="questioning")
    doc = run.summary["doctors"]["doc"]
    assert doc["endings"] == {"diagnosed": 12}
    assert doc["questions"]["mean"] == 2
    assert 0 < doc["accuracy"]["mean"] < 1


def test_a_library_is_searched_the_same_way(tmp_path: Path) -> None:
    said = ("<search>lipase</search>", "<refine>pancreatitis</refine><diagnosis>Flu</diagnosis>")
    with serving(
        lambda body: said[any(message["role"] == "assistant" for message in body["messages"])]
    ) as server:
        own = {"environment": {"name": "library", "index": str(index_folder())}}
        run = evaluate(server, tmp_path / "run", evaluation={"cases": 4, "anchors": False}, **own)
    records = list(run.episodes(phase="eval"))
    assert len(records) == 4
    found = [record.episode.turns[0].observation.passages or () for record in records]
    assert [[passage.id for passage in each] for each in found] == [["pancreatitis"]] * 4


def test_text_ends_at_the_first_stop_string() -> None:
    assert up_to("<ask>a</ask><ask>b</ask>", ("</diagnose>", "</ask>")) == "<ask>a</ask>"
    assert up_to("nothing", ("</ask>",)) == "nothing"
    thought = "<think><ask>a</ask></think><ask>b</ask>c"
    assert up_to(thought, ("</ask>",)) == "<think><ask>a</ask>"
    assert up_to(thought, ("</ask>",), in_thoughts=False) == thought[:-1]


def test_what_a_thought_names_is_not_asked(tmp_path: Path) -> None:
    said = "<think>Not <ask>nothing</ask>, rather:</think><ask>fever</ask> I wait."
    with serving(lambda body: said) as server:
        run = evaluate(server, tmp_path / "run", evaluation={"cases": 2, "anchors": False})
    for record in run.episodes(phase="eval"):
        first = record.episode.turns[0]
        assert first.action.content == ("fever",)
        assert first.completion.text.endswith("<ask>fever</ask>")
    assert completion("x").status_code == 200


def test_restricted_cases_go_to_trusted_endpoints_alone_and_stay_out_of_reports(
    tmp_path: Path,
) -> None:
    file = tmp_path / "cases.jsonl"
    lines = [line_of(CASES.test[index], (), restricted=True) for index in range(12)]
    file.write_text("".join(f"{line}\n" for line in lines))
    cases = f"jsonl:{file}#all"
    with serving(doctor) as server:
        with pytest.raises(UserError, match="restricted"):
            evaluate(server, tmp_path / "run", cases=cases)
        assert server.asked == []
        assert not (tmp_path / "run").exists()
        run = evaluate(server, tmp_path / "run", cases=cases, endpoint={"trusted": True})
    assert run.path.stat().st_mode & 0o077 == 0
    secret = run.episodes(phase="eval")[0].episode.case.presentation
    assert secret not in run.report.read_text()
    assert "restricted" in run.report.read_text()
    assert secret in build_report(run, transcripts=True).read_text()


def test_greedy_decoding_has_nothing_to_draw_again() -> None:
    asked = {"method": "craft", "evaluation": {"temperature": 0, "avoid_repeats": True}}
    with pytest.raises(
        UserError, match="'evaluation': avoid_repeats=true draws again, which brings"
    ):
        build_settings(Settings, asked)
