"""Suites of benchmarks (MR-16): the file, who plays, averages, resuming, pages, comparing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from command_line import Call
from question_layouts import lines, medmcqa, medqa, medxpertqa, mmlu, nejmqa, rarearena, table
from rich.console import Console
from serving import serving

from workup.cli import api
from workup.core.errors import UserError
from workup.core.statistics import Estimate
from workup.loops.evaluation import suites
from workup.loops.evaluation.suites import Suite
from workup.loops.evaluation.suites.play import Asked, all_arms, start
from workup.metrics import known
from workup.report import build, compare, suite
from workup.report.live import print_result, show
from workup.runs import Run

TWO = """
about: "Two clinics"
settings: {environment: {name: library, max_turns: 3}, evaluation: {cases: 4, temperature: 0}}
benchmarks:
  - {name: small, cases: "clinic:xs", domain: in-domain}
  - {name: larger, cases: "clinic:s", domain: out-of-domain, settings: {evaluation: {cases: 6}}}
  - {name: again, cases: "clinic:xs", domain: in-domain, settings: {split: 1}}
"""


def doctor(body: dict[str, Any]) -> str:
    """Answers by the parity of the case, so that some answers are right; searches where it may."""
    said = body["messages"][0]["content"]
    if "You can search" in said and len(body["messages"]) == 2:
        return "<search>fever</search>"
    return f"<diagnosis>{'Influenza' if len(str(body)) % 2 else 'Migraine'}</diagnosis>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a suite of one doctor with two strategies, and one with one."""
    place = tmp_path_factory.mktemp("suites")
    (place / "two.yaml").write_text(TWO)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKUP_CACHE", str(place / "cache"))
        evaluate(place, "both", strategy="naive,rag")
        evaluate(place, "single", strategy="vanilla")
        yield place


def evaluate(place: Path, out: str, strategy: str) -> Run:
    with serving(doctor) as server:
        return api.evaluate_suite(
            "endpoint:one",
            place / "two.yaml",
            out=place / out,
            quiet=True,
            endpoints={"one": {"base_url": server.url, "model": "m"}},
            strategy={"name": strategy, **({"passages": 2} if "rag" in strategy else {})},
        )


# --- the file -------------------------------------------------------------------------------------

ONE = '{name: a, cases: "clinic:xs", domain: in-domain}'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"benchmarks: [{ONE}]\nsetting: {{}}", r"no setting 'setting'\. Did you mean 'settings'"),
        (f"benchmarks: [{ONE[:-1]}, weight: 2}}]", r"no setting 'benchmarks\.0\.weight'"),
        (f"benchmarks: [{ONE}, {ONE.replace('a,', 'A,')}]", "two benchmarks are named"),
        (
            f"benchmarks: [{ONE.replace('a,', 'a b,')}, {ONE.replace('a,', 'a+B,')}]",
            r"two benchmarks are named 'a b' and 'a\+B'; rename one",
        ),
        (f"benchmarks: [{ONE.replace('in-', 'near-')}]", r"benchmarks\.0\.domain.*out-of-domain"),
        (f"benchmarks: [{ONE.replace('name: a', 'name: ../a')}]", r"benchmarks\.0\.name"),
        ("benchmarks: []", "benchmarks.*at least 1 item"),
        ("", "benchmarks.*required"),
        ("- a\n- b", "no mapping"),
        ("benchmarks: [", "not readable as YAML"),
        (f"benchmarks: [{ONE}]\nsettings: {{policy: x}}", "settings hold 'policy'"),
        (f"benchmarks: [{ONE[:-1]}, settings: {{cases: x}}}}]", "a: settings hold 'cases'"),
        (f"benchmarks: [{ONE.replace('clinic:xs', '${oc.env:HOME}')}]", "is not filled in"),
    ],
)
def test_a_file_that_is_no_suite(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UserError, match=f"mine.yaml.*{problem}"):
        suites.read(str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("medr", r"no suite 'medr'\. Did you mean 'medr3'"),
        ("no/such.yaml", "no such file; name a YAML file"),
        (".", r"\. is a folder; name a YAML file in it, or a built-in suite"),
    ],
)
def test_a_name_that_is_no_suite(spec: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        suites.read(spec)


def test_the_built_in_suites_can_be_read() -> None:
    assert suites.names() == ["clinic", "medr3"]
    medr3 = suites.read("medr3")
    assert len(medr3.benchmarks) == 8
    assert sum(each.domain == "in-domain" for each in medr3.benchmarks) == 5
    assert all(each.needs for each in medr3.benchmarks)
    clinic = suites.read("clinic")
    assert suites.placed(clinic, "clinic", None)[1] == []


def medr3_files(place: Path) -> None:
    """The releases as `medr3` wants them, three questions each."""
    for part in ("dev", "test", "train"):
        for where in ("US/4_options", "Mainland"):
            rows = [medqa(10 * len(part) + i) for i in range(3)]
            lines(place / "MedQA/questions" / where / f"{part}.jsonl", rows)
    lines(place / "MedMCQA/dev.json", [medmcqa(i) for i in range(4)])
    for task in ("RDC", "RDS"):
        rows = [rarearena(i) for i in range(3)]
        lines(place / "RareArena" / f"{task}_benchmark.jsonl", rows)
    table(place / "MMLU/test/anatomy_test.csv", [mmlu(i) for i in range(3)])
    heads = ["", "question", "answer"]
    table(place / "NEJMQA/psychiatry.csv", [heads, *(nejmqa(i) for i in range(3))])
    lines(place / "MedXpertQA/Text/test.jsonl", [medxpertqa(i) for i in range(3)])


def test_what_medr3_lacks_is_told_line_by_line(tmp_path: Path) -> None:
    medr3 = suites.read("medr3")
    with pytest.raises(UserError, match="needs --data FOLDER") as told:
        suites.placed(medr3, "medr3", None)
    assert len(str(told.value).splitlines()) == 9
    assert "MedMCQA: no FOLDER/MedMCQA: put there dev.json" in str(told.value)
    with pytest.raises(UserError, match="is no folder"):
        suites.placed(medr3, "medr3", str(tmp_path / "none"))
    medr3_files(tmp_path)
    found, lacks = suites.placed(medr3, "medr3", str(tmp_path))
    assert (list(found), lacks) == ([each.name for each in medr3.benchmarks], [])
    shutil.rmtree(tmp_path / "NEJMQA")
    asked = Asked("medr3", ["endpoint:x"], {}, str(tmp_path))
    with pytest.raises(UserError, match=r"lacks 1 of its 8 benchmarks; --partial.*\n  NEJMQA: no"):
        start(asked, tmp_path / "run", show())
    assert not (tmp_path / "run").exists()


def test_medr3_opens_every_release_as_published(tmp_path: Path) -> None:
    from workup.cases import open_source

    medr3_files(tmp_path)
    found, _ = suites.placed(suites.read("medr3"), "medr3", f"{tmp_path}/")
    counts = {name: len(open_source(cases, split=0).test) for name, cases in found.items()}
    # MedQA is tested on its dev and test parts together, as the paper does
    assert (counts["MedQA-US"], counts["MedQA-MC"], counts["MedMCQA"]) == (6, 6, 4)
    assert set(list(counts.values())[3:]) == {3}


# --- who plays ------------------------------------------------------------------------------------


def test_the_users_settings_win_over_a_benchmarks_and_those_over_the_suites() -> None:
    read = Suite.model_validate(
        {
            "settings": {"seed": 1, "max_tokens": 5, "environment": {"name": "library"}},
            "benchmarks": [
                {
                    "name": "a",
                    "cases": "clinic:xs",
                    "domain": "in-domain",
                    "settings": {"seed": 2, "environment": {"passages": 4}},
                }
            ],
        }
    )
    (arm,) = all_arms(Asked("x", ["d"], {"max_tokens": 7}), read, {"a": "clinic:xs"})
    assert (arm.values["seed"], arm.values["max_tokens"]) == (2, 7)
    assert arm.values["environment"] == {"name": "library", "passages": 4}
    other = Asked("x", ["d"], {"environment": "reasoning"})
    (arm,) = all_arms(other, read, {"a": "clinic:xs"})
    assert arm.values["environment"] == {"name": "reasoning"}


def test_each_strategy_gets_the_settings_that_it_knows() -> None:
    read = suites.read("clinic")
    values = {"strategy": {"name": "naive,rag", "passages": 2, "frame": True, "wrong": 1}}
    arms = list(all_arms(Asked("clinic", ["d"], values), read, {"clinic xs": "clinic:xs"}))
    assert [arm.doctor for arm in arms] == ["naive (d)", "rag (d)"]
    assert [arm.values["strategy"] for arm in arms] == [
        {"name": "naive", "frame": True, "wrong": 1},
        {"name": "rag", "passages": 2, "frame": True, "wrong": 1},
    ]
    for wrong in ({"strategy": "naive,naive"}, {"strategy": "naive,rog"}):
        with pytest.raises(UserError):
            list(all_arms(Asked("clinic", ["d"], wrong), read, {"clinic xs": "clinic:xs"}))
    with pytest.raises(UserError, match="named twice"):
        list(all_arms(Asked("clinic", ["d", "d"], {}), read, {"clinic xs": "clinic:xs"}))


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"strategy": "rag", "environment": "consultation"}, "small: strategy 'rag' searches a"),
        ({"strategy": "naive", "max_turn": 1}, "small: no setting 'max_turn'"),
        ({"strategy": {"name": "naive", "wrong": 1}}, "small: no setting 'strategy.wrong'"),
    ],
)
def test_a_mistake_is_told_before_anything_is_written(
    values: dict[str, Any], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "two.yaml").write_text(TWO)
    ends = {"one": {"base_url": "http://127.0.0.1:9/v1", "model": "m"}}
    with pytest.raises(UserError, match=problem):
        api.evaluate_suite(
            "endpoint:one", tmp_path / "two.yaml", out=tmp_path / "r", endpoints=ends, **values
        )
    assert not (tmp_path / "r").exists()


# --- figures --------------------------------------------------------------------------------------


def mean(value: dict[str, Any]) -> float:
    return Estimate.from_json(value).mean


@pytest.mark.long
def test_averages_are_means_over_benchmarks(folder: Path) -> None:
    found = Run.open(folder / "both").summary
    rag = found["doctors"]["rag (one)"]
    assert list(found["doctors"])[:2] == ["naive (one)", "rag (one)"]
    assert set(rag["benchmarks"]) == {"small", "larger", "again"}
    assert rag["benchmarks"]["larger"]["accuracy"]["n"] == 6
    for metric in ("accuracy", "searches"):
        each = {name: mean(entry[metric]) for name, entry in rag["benchmarks"].items()}
        within = fmean([each["small"], each["again"]])
        assert mean(rag["averages"]["average, in-domain"][metric]) == pytest.approx(within)
        alone = rag["averages"]["average, out-of-domain"][metric]
        assert alone == rag["benchmarks"]["larger"][metric]
        whole = mean(rag["averages"]["average, all"][metric])
        assert whole == pytest.approx(fmean(each.values()))
    assert mean(rag["averages"]["average, all"]["searches"]) == 1.0
    naive = found["doctors"]["naive (one)"]["averages"]["average, all"]
    assert mean(naive["searches"]) == 0.0
    assert "lead" not in found["doctors"]["naive (one)"]
    gap = mean(rag["averages"]["average, all"]["accuracy"]) - mean(naive["accuracy"])
    assert mean(rag["lead"]["average, all"]) == pytest.approx(gap)


@pytest.mark.long
def test_anchors_play_once_and_stand_behind_the_doctors(folder: Path) -> None:
    doctors = Run.open(folder / "both").summary["doctors"]
    assert list(doctors)[2:] == ["told information", "full information"]
    inner = folder / "both" / "runs" / "small"
    played = {each.name: Run.open(each).doctors() for each in inner.iterdir()}
    assert sum("full information" in each for each in played.values()) == 1


def test_all_evaluations_are_on_one_account(folder: Path) -> None:
    run = Run.open(folder / "both")
    inner = [Run.open(run.path / arm["folder"]) for arm in run.config["arms"]]
    assert {each.account for each in inner} == {run.account}


def test_an_interrupted_suite_goes_on(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """What was played is not played again, and the figures are the same."""
    monkeypatch.setenv("WORKUP_CACHE", str(folder / "cache"))
    copy = tmp_path / "copy"
    shutil.copytree(folder / "single", copy)
    before = Run.open(copy).summary
    (copy / "summary.json").unlink()
    shutil.rmtree(copy / "runs" / "again")
    kept = (copy / "runs/small/vanilla--one/summary.json").stat().st_mtime_ns
    build(Run.open(copy))
    assert "goes on" in (copy / "report.html").read_text()
    run = api.resume(copy)
    assert (copy / "runs/small/vanilla--one/summary.json").stat().st_mtime_ns == kept
    assert run.summary["doctors"] == before["doctors"]
    with pytest.raises(UserError, match="'seed' cannot change"):
        api.resume(copy, seed=3)


@pytest.mark.long
def test_a_change_of_an_endpoint_goes_to_the_doctors_that_have_it(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "one.yaml").write_text("benchmarks:\n  - " + ONE)
    with serving(doctor) as server:
        ends = {name: {"base_url": server.url, "model": name} for name in ("one", "two")}
        (tmp_path / "workup.yaml").write_text(json.dumps({"endpoints": ends}))
        monkeypatch.chdir(tmp_path)
        how: dict[str, Any] = {"evaluation": {"cases": 2}}
        doctors = ["endpoint:one", "endpoint:two"]
        path = api.evaluate_suite(doctors, "one.yaml", out="run", quiet=True, **how).path
        shutil.rmtree(path / "runs" / "a" / "two")
        run = api.resume(path, endpoints={"one": {"concurrency": 2}})
        assert len(run.config["changed"]) == 1
        with pytest.raises(UserError, match=r"no endpoint of this suite 'three'"):
            api.resume(path, endpoints={"three": {"concurrency": 2}})
    for name, now in (("one", 2), ("two", 16)):
        inner = Run.open(path / "runs" / "a" / name).config["endpoints"]
        assert {end: given["concurrency"] for end, given in inner.items()} == {name: now}


# --- pages and comparisons ------------------------------------------------------------------------


def test_the_page_links_to_reports_and_holds_no_case(folder: Path) -> None:
    text = (folder / "both" / "report.html").read_text()
    links = [part.partition('"')[0] for part in text.split('href="')[1:]]
    pages = [link for link in links if link.endswith(".html")]
    assert len(pages) == 6
    assert all((folder / "both" / link).is_file() for link in pages)
    record = next(iter(Run.open(folder / "both/runs/small/naive--one").episodes()))
    assert record.episode.case.presentation not in text
    assert "average, out-of-domain" in text


def test_warnings_name_the_benchmark(folder: Path) -> None:
    summary = Run.open(folder / "single").summary
    ((label, entry),) = [each for each in summary["doctors"].items() if "one" in each[0]]
    entry["benchmarks"]["larger"]["malformed"] |= {"mean": 0.9, "n": 40}
    stream = StringIO()
    print_result(summary, Console(file=stream, width=200))
    caveat = known.metric("malformed").caveat
    assert caveat is not None
    assert [line for line in stream.getvalue().splitlines() if "could not be read" in line] == [
        f"{label} on larger: {caveat.text.format(share='90 %')}; 40 episodes"
    ]


def test_two_suites_are_compared_benchmark_by_benchmark(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [Run.open(folder / name) for name in ("single", "both")]
    compare(runs, tmp_path / "page.html")
    told = capsys.readouterr().out
    assert "single: vanilla" in told
    assert "difference in accuracy to single: vanilla (one)" in told
    text = (tmp_path / "page.html").read_text()
    assert "both: rag (one)" in text
    assert "behind the name how many episodes were judged" in text
    figures = suite.figures(suite.beside(runs, lambda one, other: True)[0])
    ours = figures["doctors"]["both: naive (one)"]
    theirs = figures["doctors"]["single: vanilla (one)"]
    for name in ("small", "larger", "again"):
        gap = mean(ours["benchmarks"][name]["accuracy"]) - mean(
            theirs["benchmarks"][name]["accuracy"]
        )
        assert mean(ours["lead"][name]) == pytest.approx(gap)


def test_what_is_compared_of_restricted_cases_is_for_its_owner_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [Run.open(folder / name) for name in ("single", "both")]
    monkeypatch.setattr(Run, "restricted", True)
    compare(runs, tmp_path / "page.html", json=tmp_path / "figures.json")
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


def test_what_cannot_be_compared_is_told(folder: Path) -> None:
    one, inner = Run.open(folder / "both"), Run.open(folder / "both/runs/small/naive--one")
    with pytest.raises(UserError, match="compare suites with suites, or name an evaluation"):
        compare([one, inner])
    with pytest.raises(UserError, match="no benchmark in common"):
        suite.beside([one, Run.open(folder / "single")], lambda one, other: False)
    with pytest.raises(UserError, match="named twice"):
        compare([one, one])


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.long
def test_the_command_on_an_empty_machine(call: Call) -> None:
    status, out, error = call(
        *("evaluate", "random doctor", "full information", "--suite", "clinic"),
        *("evaluation.cases=3", "--out", "run", "--json"),
    )
    assert (status, error) == (0, "")
    last = [json.loads(line) for line in out.splitlines()]
    found = next(each for each in last if each["event"] == "summary")
    assert list(found["doctors"]) == ["random doctor", "full information", "greedy information"]
    assert mean(found["doctors"]["full information"]["averages"]["average, all"]["accuracy"]) > 0
    assert call("report", "run")[0] == 0
    assert call("evaluate", "run", "--cases", "clinic:xs")[0] == 2


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--suite", "clinic", "--cases", "clinic:s"), "exclude each other"),
        (("--cases", "clinic:s", "--data", "."), "belong to a suite"),
        (("--cases", "clinic:s", "--partial"), "belong to a suite"),
        (("--suite", "medr3"), "needs --data FOLDER"),
        (("tiny", "--suite", "clinic"), "'tiny' is trained first"),
        (("--suite", "clinic", "sampling=1"), "no setting 'sampling'"),
    ],
)
def test_what_a_user_gets_wrong(call: Call, words: tuple[str, ...], problem: str) -> None:
    status, _, error = call("evaluate", "random doctor", *words)
    assert status == 2
    assert problem in error
    assert not Path("runs").exists()
