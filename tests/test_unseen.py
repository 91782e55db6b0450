"""Nobody is evaluated on cases that it was trained on, and every seed meets the same test cases."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from command_line import Call
from omegaconf import OmegaConf
from serving import Server, serving
from typer.testing import CliRunner, Result

from workup.cases import jsonl, open_source
from workup.cases.order import Order
from workup.cli import api
from workup.cli.app import app
from workup.core.case import Case
from workup.core.errors import UserError
from workup.loops.evaluation import loop as evaluation
from workup.report.live import PlainLive
from workup.runs import Run
from workup.runs.files import DamagedError
from workup.runs.folder import is_run
from workup.runs.policies import resolve
from workup.runs.policies.unseen import open_unseen, refuse_met
from workup.runs.settings import PolicySettings

CLINIC = open_source("clinic:xs")
SMALL: dict[str, Any] = {
    "tiny": {"width": 16, "layers": 1, "heads": 2},
    "sft": {"steps": 4, "batch": 4},
    "steps": 2,
    "batch": 4,
    "group": 2,
    "max_tokens": 8,
    "environment": {"max_turns": 3},
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def own(count: int, name: str = "own.jsonl", first: int = 0) -> str:
    """A file of `count` cases of one's own, with the ids "1", "2", …"""
    cases = [replace(CLINIC.test[first + k], id=str(k + 1)) for k in range(count)]
    jsonl.write(cases, Path(name), items=CLINIC.items, diagnoses=CLINIC.diagnoses)
    return f"jsonl:{name}"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained policy, such as it is: who plays is of no consequence here."""
    home = tmp_path_factory.mktemp("weights")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKUP_CACHE", str(home / "cache"))
        given = {**SMALL, "steps": 0, "evaluation": {"cases": 1, "anchors": False}}
        return api.train("outcome", out=home / "run", cases="clinic:xs", quiet=True, **given).policy


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(lambda body: f"<diagnose>{CLINIC.diagnoses[0]}</diagnose>") as running:
        yield running


def endpoint(server: Server) -> dict[str, Any]:
    return {"endpoints": {"doc": {"base_url": server.url, "model": "m"}}}


def made(
    name: str, cases: str, weights: Path | None = None, *, split: int | None = 0, **more: Any
) -> str:
    """A run folder as training leaves it, its policy being `weights`."""
    known = {"method": "outcome", "cases": cases, "policy": "tiny", "seed": 5, "reward": {}}
    known |= {"environment": {"name": "consultation", "max_turns": 10, "share": None}}
    config = {"account": "it", "trained_before": [], "split": split, **known, **more}
    Run.create(name, {key: value for key, value in config.items() if value is not None}, {}).close()
    if weights is not None:
        shutil.copytree(weights, Path(name) / "policy")
    return name


def ids(cases: Sequence[Case]) -> set[str]:
    return {cases[index].id for index in range(len(cases))}


def played(run: Run, **where: Any) -> set[str]:
    return {record.episode.case.id for record in run.episodes(**{"phase": "eval", **where})}


def said(policy: str, cases: str, **more: Any) -> tuple[Run, list[str]]:
    """An evaluation of `policy` without anchors, and the lines that it printed."""
    more["evaluation"] = {"anchors": False, **more.get("evaluation", {})}
    lines, out = io.StringIO(), Path(f"looked-{len(list(Path().glob('looked-*')))}")
    settings = PolicySettings(
        policy=policy, cases=cases, max_tokens=8, environment={"max_turns": 3}, **more
    )
    return evaluation.start(settings, out, PlainLive(lines)), lines.getvalue().splitlines()


# ---------------------------------------------------------------------------------- training runs


@pytest.mark.long
def test_every_seed_meets_the_same_test_cases_and_trains_on_others() -> None:
    cases = own(60)
    given = {"cases": cases, "quiet": True, **SMALL}
    runs = [api.train("outcome", out=f"runs/{seed}", seed=seed, **given) for seed in (0, 1)]
    source = open_source(cases)
    for run in runs:
        assert played(run) == ids(source.test)
        assert played(run, phase="train") <= ids(source.train)
    steps = [[record.episode.case.id for record in run.episodes(phase="train")] for run in runs]
    assert steps[0] != steps[1]
    again = api.evaluate("runs/1", cases=cases, out="again", quiet=True)
    assert played(again) == played(runs[1])
    assert not played(again) & played(runs[1], phase="train")
    assert again.config["split"] == runs[1].config["split"] == 0


def test_seeds_see_other_training_patients_of_the_clinic() -> None:
    """Of a million patients the first 8,000 of two seeds share what chance shares: 64 ± 8."""
    size = len(CLINIC.train)
    first = [{Order(size, seed)[place] for place in range(8_000)} for seed in range(6)]
    assert {len(places) for places in first} == {8_000}
    assert max(len(a & b) for a, b in combinations(first, 2)) < 64 + 5 * 8


def test_training_goes_on_from_a_run_in_its_split_alone(weights: Path) -> None:
    cases = own(40)
    first = made("first", cases, weights, split=1)
    given: dict[str, Any] = {"cases": cases, "policy": first, "quiet": True, **SMALL}
    with pytest.raises(UserError, match=r"first was trained on \d+ of these \d+ cases.*split=1"):
        api.train("outcome", out="second", **given)
    assert not Path("second").exists()


def test_what_a_run_went_on_from_stays_known_when_it_is_gone() -> None:
    cases = own(40)
    short = {**SMALL, "steps": 0, "sft": {"steps": 0}, "evaluation": {"cases": 1}}
    begun = api.train("outcome", out="begun", cases=cases, quiet=True, split=2, **short)
    given = {"cases": cases, "policy": "begun", "split": 2, "quiet": True, **short}
    further = api.train("outcome", out="further", **given)
    assert further.config["trained_before"] == [{"run": "begun", "cases": cases, "split": 2}]
    begun.path.rename("elsewhere")
    assert [one.run for one in resolve("further").history] == ["further", "begun"]


def test_the_log_names_the_cases_that_nobody_named(capsys: pytest.CaptureFixture[str]) -> None:
    short = {**SMALL, "steps": 0, "sft": {"steps": 0}, "evaluation": {"cases": 2, "anchors": False}}
    api.train("outcome", out="default", **short)
    log = capsys.readouterr().out
    assert "trained on 1,000,000 training cases of clinic:s (the default; --cases names oth" in log
    assert "evaluated on 2 of 100,000 test cases of clinic:s (split 0" in log
    api.train("outcome", out="named", cases="clinic:s", **short)
    assert "the default" not in capsys.readouterr().out


def test_a_run_is_evaluated_on_its_own_cases_where_none_are_named(
    weights: Path, call: Call
) -> None:
    cases = own(40)
    held_out = ids(open_source(cases, split=2).test)
    made("runs/1", cases, weights, split=2)
    few = ("environment.max_turns=3", "max_tokens=8", "evaluation.anchors=false")
    for number, policy in enumerate(("runs/1", "runs/1/policy")):
        status, out, err = call("evaluate", policy, "--out", f"looked-{number}", *few)
        assert status == 0, err
        assert re.search(r"cases +none were named: jsonl:\S*own\.jsonl is taken", out)
        assert played(Run.open(f"looked-{number}")) == held_out
    assert (
        played(
            api.evaluate(
                "runs/1", out="python", quiet=True, environment={"max_turns": 3}, max_tokens=8
            )
        )
        == held_out
    )
    status, out, _ = call("evaluate", "runs/1", "--cases", "clinic:xs", *few, "evaluation.cases=2")
    assert (status, "none were named" in out, "2 of 100,000 test cases of clinic:xs" in out) == (
        0,
        False,
        True,
    )


def test_cases_that_nobody_named_and_no_run_knows(
    weights: Path, call: Call, server: Server
) -> None:
    made("one", own(40), weights)
    made("two", "clinic:xs", weights)
    made("half", "clinic:xs")
    shutil.copytree(weights, "model")
    looked, _ = said("two", "clinic:xs", evaluation={"cases": 2})
    for words, what in (
        (
            ("one", "conclude=two"),
            r"one on jsonl:\S*own.jsonl and two on clinic:xs were trained on different cases",
        ),
        (("random doctor",), r"--cases is missing: SCHEME:REST.*unlike random doctor"),
        (("model",), r"--cases is missing"),
        (("endpoint:doc", "conclude=bayes"), r"--cases is missing.*unlike endpoint:doc"),
        ((looked.path,), r"is an evaluation and holds no policy; name what it evaluated: 'two'"),
        (("half",), r"half has trained no policy yet; type `workup resume half`"),
    ):
        status, out, err = call("evaluate", *words, "--out", "refused")
        assert (status, out) == (2, "")
        assert re.fullmatch(f"error: .*{what}.*\\n", err), err
        assert not Path("refused").exists()


# -------------------------------------------------------------------------------- what is refused


def exported(cases: Sequence[Case]) -> str:
    jsonl.write(cases, Path("exported.jsonl"), items=CLINIC.items, diagnoses=CLINIC.diagnoses)
    return "jsonl:exported.jsonl"


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "spec", "more", "seen"),
    [
        ("run", lambda cases: f"{cases}#all", {}, "jsonl:own.jsonl with split=1 holds"),
        ("run/policy", lambda cases: f"{cases}#all", {}, "run/policy, which goes on from run"),
        ("run", lambda cases: cases, {"split": 0}, "with split=1"),
        ("run", lambda cases: cases.replace("own", "./own"), {"split": 0}, "with split=1"),
        ("next", lambda cases: f"{cases}#all", {}, "next, which goes on from run"),
        ("endpoint:doc", lambda cases: cases, {"conclude": "run", "split": 0}, "run was trained"),
        ("run", lambda cases: exported(open_source(cases, split=1).train[:5]), {}, "other cases"),
    ],
)
def test_cases_that_a_policy_was_trained_on_are_refused(
    name: str,
    spec: Callable[[str], str],
    more: dict[str, Any],
    seen: str,
    weights: Path,
    server: Server,
) -> None:
    """By another view, another split, another path, a file made from them, or a run in between."""
    cases = own(40)
    before = [{"run": "run", "cases": cases, "split": 1}]
    made("run", cases, weights, split=1)
    made("next", "clinic:xs", weights, policy="run", trained_before=before)
    given = {"cases": spec(cases), **endpoint(server), **more}
    with pytest.raises(UserError) as refused:
        api.evaluate(name, out="refused", quiet=True, **given)
    assert seen in str(refused.value)
    assert "evaluation.seen=true" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not is_run(Path("refused"))
    run, lines = said(name, **given, evaluation={"seen": True})
    assert any("was trained on" in line and "of these" in line for line in lines)
    assert len(played(run)) > 0


@pytest.mark.parametrize("field", ["cases", "split", "trained_before"])
def test_a_run_that_does_not_say_what_it_was_trained_on_is_damaged(field: str) -> None:
    """An empty history would let the cases that it was trained on pass as unseen ones."""
    config = {"method": "outcome", "cases": "clinic:xs", "split": 0, "trained_before": []}
    Run.create("run", {key: value for key, value in config.items() if key != field}, {}).close()
    with pytest.raises(DamagedError, match=f"config.yaml: field '{field}' is missing; restore it"):
        _ = resolve("run").history


def test_the_number_of_cases_that_were_trained_on_is_exact(weights: Path) -> None:
    cases = own(50)
    made("run", cases, weights, split=1)
    trained = ids(open_source(cases, split=1).train)
    tested = ids(open_source(cases, split=4).test)
    with pytest.raises(UserError, match=f"{len(trained & tested)} of these {len(tested)} cases"):
        api.evaluate("run", cases=cases, split=4, out="refused", quiet=True)


@pytest.mark.parametrize("spec", ["clinic:xs", "clinic:s", "jsonl:other.jsonl", "jsonl:own.jsonl"])
def test_other_cases_are_not_refused(spec: str, weights: Path) -> None:
    """Files whose ids are 1, 2, 3 hold other patients; a test side is no training side."""
    cases = own(40)
    own(20, "other.jsonl", first=500)
    made("run", cases, weights, split=1)
    run, lines = said("run", spec, evaluation={"cases": 3})
    assert len(played(run)) == 3
    assert not any("trained on" in line for line in lines)


def test_patients_of_another_split_of_the_clinic_are_others() -> None:
    made("run", "clinic:xs", split=0)
    for split in (0, 1):
        test = open_source("clinic:xs", split=split).test[:50]
        assert refuse_met(test, "clinic:xs", split, [resolve("run")], allowed=False) == []
    train = CLINIC.train[:50]
    with pytest.raises(UserError, match="50 of these 50 cases"):
        refuse_met(train, exported(train), None, [resolve("run")], allowed=False)


def test_where_the_training_cases_are_gone_that_is_said(weights: Path) -> None:
    made("run", "jsonl:gone.jsonl", weights)
    _, lines = said("run", own(20))
    assert any("is not known" in line and "gone.jsonl" in line for line in lines)


def test_a_run_is_found_with_its_cases_from_another_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = own(40)
    made("run", cases, split=1)
    file, run = Path("own.jsonl").resolve(), Path("run").resolve()
    Path("away").mkdir()
    monkeypatch.chdir("away")
    source, split = open_unseen(f"jsonl:{file}", [resolve(str(run))])
    assert split == 1
    assert ids(source.test) == ids(open_source(f"jsonl:{file}", split=1).test)


# ------------------------------------------------------------------------------ one's own cases


@pytest.mark.parametrize("count", [1, 5, 30])
def test_all_of_ones_own_cases_are_played(count: int, server: Server) -> None:
    cases = own(count)
    run, lines = said("endpoint:doc", cases, **endpoint(server))
    assert played(run) == {str(k + 1) for k in range(count)}
    assert f"cases   all {count} cases of {cases}" in lines
    assert run.config["split"] is None
    (run.path / "summary.json").unlink()
    assert played(api.resume(run.path)) == played(run)


def test_a_run_that_was_trained_on_them_plays_those_that_it_held_out(weights: Path) -> None:
    cases = own(30)
    made("run", cases, weights, split=2)
    source = open_source(cases, split=2)
    run, lines = said("run", cases)
    assert played(run) == ids(source.test)
    tests, rest = len(source.test), len(source.train)
    more = f"(split 2; {rest} more are for training)"
    assert f"cases   all {tests} test cases of {cases} {more}" in lines


def test_a_named_split_plays_its_test_side_whoever_plays(server: Server) -> None:
    cases = own(30)
    run, _ = said("endpoint:doc", cases, split=4, **endpoint(server))
    assert played(run) == ids(open_source(cases, split=4).test)


def test_what_the_number_of_cases_cuts_off_is_said(server: Server) -> None:
    cases = own(30)
    run, lines = said("endpoint:doc", cases, evaluation={"cases": 12}, **endpoint(server))
    assert len(played(run)) == 12
    cut = f"cases   12 of 30 cases of {cases}, evenly spaced; evaluation.cases=30 plays all"
    assert cut in lines


def test_the_clinic_keeps_its_test_side(server: Server) -> None:
    run, lines = said("endpoint:doc", "clinic:xs", evaluation={"cases": 3}, **endpoint(server))
    assert all(":test:" in each for each in played(run))
    assert run.config["split"] == 0
    assert any(line.startswith("cases   3 of 100,000 test cases of clinic:xs (") for line in lines)


# ---------------------------------------------------------------------------------------- studies


def in_study(server: Server, *words: object) -> Result:
    """A study over two shares, of which each run folder below --out is an ordinary evaluation."""
    config = OmegaConf.create(endpoint(server))
    OmegaConf.save(config, "workup.yaml")
    how = ("shares=0.5,1", "n=400")
    more = ("environment=consultation", "max_tokens=8", "environment.max_turns=3")
    told = ("study", "information", *words, *how, *more)
    return CliRunner().invoke(app, [str(word) for word in told])


def test_a_study_plays_all_of_ones_own_cases(server: Server) -> None:
    cases = own(7)
    done = in_study(server, "endpoint:doc", "--cases", cases, "--out", "studied")
    assert done.exception is None, done.output
    runs = [Run.open(path) for path in Path("studied/runs").iterdir()]
    assert [len(played(run)) for run in runs] == [7, 7]


@pytest.mark.long
def test_a_study_plays_what_its_trained_policy_has_not_seen(server: Server, weights: Path) -> None:
    cases = own(30)
    made("run", cases, weights, split=2)
    done = in_study(server, "endpoint:doc", "run", "--cases", cases, "--out", "studied")
    assert done.exception is None, done.output
    runs = [Run.open(path) for path in Path("studied/runs").iterdir()]
    test = ids(open_source(cases, split=2).test)
    assert [played(run) for run in runs] == [test] * 4
    again = in_study(server, "endpoint:doc", "run", "--cases", cases, "--out", "studied")
    assert again.exception is None, again.output
    made("other", cases, weights, split=3)
    refused = in_study(server, "run", "other", "--cases", cases, "--out", "no")
    assert isinstance(refused.exception, UserError)
    assert "different splits" in str(refused.exception)


# ------------------------------------------------------------------------------- the command line


def test_play_meets_a_patient_that_its_rival_has_not() -> None:
    cases = own(30)
    made("run", cases, split=3)
    unseen, _ = open_unseen(cases, [resolve("run")])
    assert ids(unseen.test) == ids(open_source(cases, split=3).test)
    assert len(open_unseen(cases, [])[0].test) == 30
