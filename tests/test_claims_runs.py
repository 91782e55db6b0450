"""`workup claims`: the queue of runs, which seeds come next, and a whole file of claims."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import example_run
import pytest
from command_line import Call
from rich.console import Console
from waiting import until

from workup.cli.common import seconds
from workup.core.errors import UserError
from workup.core.statistics import Estimate
from workup.runs import Run
from workup.runs.files import DamagedError
from workup.runs.words import number
from workup.studies import claims
from workup.studies.claims import SCALES, meaning
from workup.studies.claims.decided import ended
from workup.studies.claims.deciding import Deciding, alone, without_means
from workup.studies.claims.page import told_left_out
from workup.studies.claims.queue import PROGRAM, ClaimRun, Queue
from workup.studies.claims.trial import ClaimsPlan, ClaimTrial

FILE = """
paper: Toy
setups:
  clinic:
    about: "Two rewards, three updates"
    arms: {crit: craft, outcome: outcome}
    scales: {tiny: {words: "--cases clinic:s max_tokens=8 steps=3 sft.steps=6 batch=2 group=2
      evaluation.cases=12 evaluation.untrained=false"}}
    elsewhere: {brief: environment.max_turns=3 evaluation.cases=12 evaluation.anchors=false}
  again:
    about: "Crit again, said in another order"
    arms: {same: craft --cases clinic:s}
    scales: {tiny: {words: "steps=3 max_tokens=8 sft.steps=6 batch=2 group=2
      evaluation.cases=12 evaluation.untrained=false"}}
claims:
  - {id: asks, place: Table 1, says: "Crit asks more", setup: clinic, measure: questions,
     better: crit, than: outcome, margin: 0.5, reported: 1.2}
  - {id: fewer, place: Table 1, says: "Crit repeats less", setup: clinic, measure: repeats,
     better: crit, than: outcome, lower: true}
  - {id: doctor, place: Table 1, says: "The greedy doctor is better", setup: clinic,
     measure: accuracy, better: crit @ greedy information, than: crit}
  - {id: shared, place: Table 1, says: "So it is with the same run", setup: again,
     measure: accuracy, better: same @ greedy information, than: same}
  - {id: brief, place: Table 2, says: "It asks less where it may ask less", setup: clinic,
     measure: questions, better: crit @ brief, than: crit, lower: true}
  - {id: faster, place: Fig. 1, says: "It learns faster", setup: clinic, measure: reward,
     better: crit, than: outcome, of_run: area}
  - {id: steadier, place: Fig. 2, says: "Its reward varies less", setup: clinic, measure: reward,
     better: crit, than: outcome, of_run: slope}
  - {id: level, place: Sec. 4, says: "Its reader is above a half", setup: clinic,
     measure: exact_reader, better: crit, than: 0.5}
  - {id: frontier, place: Sec. 4, says: "It is like others", cannot: "they are not at hand"}
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    file = tmp_path / "toy.yaml"
    file.write_text(FILE, encoding="utf-8")
    return file


def interrupted(how: signal.Signals, words: Sequence[str], out: Path) -> None:
    """The command is ended in the middle of the second seed's first run."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "120"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    begun = out / "clinic" / "crit-1" / "metrics.jsonl"
    until(begun.exists, process)
    process.send_signal(how)
    said, _ = process.communicate()
    assert process.returncode == 130, said
    assert "the same command goes on" in said
    assert not begun.with_name("summary.json").exists()


def words_of(toy: Path, tmp_path: Path) -> list[str]:
    """Two seeds of two arms."""
    return ["claims", str(toy), "--seeds", "2", "--jobs", "2", "--out", str(tmp_path / "out")]


@pytest.mark.long
def test_sigterm_is_an_interruption(toy: Path, tmp_path: Path, call: Call) -> None:
    interrupted(signal.SIGTERM, words_of(toy, tmp_path), tmp_path / "out")


@pytest.mark.long
def test_a_file_is_run_interrupted_and_run_on(toy: Path, tmp_path: Path, call: Call) -> None:
    words = words_of(toy, tmp_path)
    interrupted(signal.SIGINT, words, tmp_path / "out")

    status, out, err = call(*words)
    assert status == 0, err
    assert "page" in out
    found = json.loads((tmp_path / "out" / "claims.json").read_text())
    by_id = {each["id"]: each for each in found["claims"]}
    assert by_id["frontier"]["verdict"] == "could not show it"
    assert by_id["frontier"]["reason"] == "they are not at hand"
    assert by_id["doctor"]["verdict"] == "undecided, 2 of at least 3 seeds"
    assert by_id["doctor"]["difference"]["mean"] > 0.3
    assert by_id["doctor"]["difference"]["seeds"] == 2
    assert by_id["shared"]["difference"] == by_id["doctor"]["difference"]
    assert not (tmp_path / "out" / "again").exists(), "what trains the same is trained once"
    assert found["notes"] == [], "two seeds are held by no chance"
    assert by_id["doctor"]["adjusted_p"] is None
    assert by_id["brief"]["ours"] <= 2
    assert by_id["brief"]["difference"]["seeds"] == 2
    assert by_id["faster"]["difference"]["patients"] == 0
    assert by_id["steadier"]["difference"]["patients"] == 0
    assert set(by_id["asks"]["by_seed"]) == {"0", "1"}
    assert found["counts"]["could not show it"] == 1
    assert found["setups"]["clinic"]["commands"]["crit"].startswith("workup train craft --cases")
    assert found["made"]["workup"]
    page = (tmp_path / "out" / "claims.html").read_text(encoding="utf-8")
    assert "Its reader is above a half" in page
    each = found["setups"]["clinic"]["arms"]["crit"]["by_seed"]["accuracy"]
    ends = " ".join(number("accuracy", value) for value in each.values())
    assert each.keys() == {"0", "1"}
    assert ends in page, "what each seed ended with"
    runs = sorted(path.name for path in (tmp_path / "out" / "clinic").iterdir() if path.is_dir())
    assert runs == ["crit-0", "crit-1", "elsewhere", "outcome-0", "outcome-1"]
    further = tmp_path / "out" / "clinic" / "elsewhere" / "brief"
    assert sorted(path.name for path in further.iterdir() if path.is_dir()) == ["crit-0", "crit-1"]
    runs.remove("elsewhere")

    before = [(tmp_path / "out" / "clinic" / run / "summary.json").stat() for run in runs]
    status, _, err = call(*words)
    assert status == 0, err
    after = [(tmp_path / "out" / "clinic" / run / "summary.json").stat() for run in runs]
    assert [each.st_mtime_ns for each in before] == [each.st_mtime_ns for each in after]

    status, out, err = call(*words, "--only", "asks")
    assert status == 0, err
    again = json.loads((tmp_path / "out" / "claims.json").read_text())
    assert again["claims"] == found["claims"], "what was run of the others is told as well"
    kept = (tmp_path / "out" / "claims.json").read_text()
    status, _, err = call(*words, "lr=1e-3")
    assert status == 2
    assert "was begun with other words" in err
    assert (tmp_path / "out" / "claims.json").read_text() == kept


@pytest.mark.long
def test_a_run_that_fails_is_told_and_the_others_go_on(
    toy: Path, tmp_path: Path, call: Call
) -> None:
    toy.write_text(FILE.replace("outcome: outcome}", "outcome: outcome group=1}"))
    status, out, err = call("claims", toy, "--seeds", "1", "--out", tmp_path / "out")
    log = tmp_path / "out" / "clinic" / "outcome-0.log"
    assert status == 1
    assert err.startswith(f"error: 1 run failed: clinic/outcome-0 ({log}: error: group=1 compares")
    assert err.count("\n") == 1
    assert "clinic/outcome-0  failed: error: group=1" in out
    assert "page  " in out
    found = json.loads((tmp_path / "out" / "claims.json").read_text())
    verdicts = {each["id"]: each["verdict"] for each in found["claims"]}
    assert verdicts["asks"] == "not run"
    assert verdicts["doctor"] != "not run"
    assert any(note.startswith("clinic/outcome-0 failed: ") for note in found["notes"])


@pytest.mark.long
def test_a_set_up_whose_check_fails_is_not_run(toy: Path, tmp_path: Path, call: Call) -> None:
    room = (
        "    headroom: {measure: accuracy, high: full information, low: random doctor, least: 0.1}"
    )
    broken = FILE.replace("crit: craft,", "crit: craft group=1,")
    toy.write_text(broken.replace("    elsewhere:", f"{room}\n    elsewhere:"))
    status, _, err = call(
        "claims", toy, "--seeds", "1", "--only", "clinic", "--out", tmp_path / "o"
    )
    assert status == 1
    assert "failed: checks/crit-0" in err
    found = json.loads((tmp_path / "o" / "claims.json").read_text())
    asks = next(each for each in found["claims"] if each["id"] == "asks")
    assert asks["verdict"] == "not run"
    assert "checks/crit-0 failed: error: group=1" in asks["reason"]


def test_dry_shows_commands_and_hours(call: Call, tmp_path: Path) -> None:
    status, _, err = call("claims", "craft", "--dry", "stps=3")
    assert (status, err) == (2, "error: no setting 'stps'. Did you mean 'steps'?\n")
    status, out, err = call("claims", "craft", "--dry", "--scale", "small", "--seeds", "2")
    assert status == 0, err
    assert "workup train craft --policy smollm2" in out
    assert "--policy runs/claims/craft-small/clinic/start seed=1" not in out
    assert "--policy runs/claims/craft-small/clinic/start seed=0" in out
    assert "hours in all" in out
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["crft"], "Did you mean 'craft'"),
        (["nowhere.yaml"], "nowhere.yaml: no such file"),
        (["craft", "--only", "crit-above-recal"], "Did you mean 'crit-above-recall'"),
        (["craft", "--scale", "huge"], "write tiny, small, paper"),
        (["craft", "--budget", "2x"], "as in 90s, 2h10m or 30d"),
        (["craft", "--budget", ""], "--budget '': write a time"),
        (["craft", "--seeds", "3", "--most", "2"], "--most 2 is below --seeds 3"),
        (["craft", "seed=3"], "seed= is decided"),
        (["craft", "method=outcome"], "method= is decided"),
        (["craft", "steps"], "no setting"),
    ],
)
def test_mistakes_are_told_in_one_line(words: Sequence[str], said: str, call: Call) -> None:
    status, out, err = call("claims", *words, "--dry")
    assert (status, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "setup: clinic, measure: questions",
            "setup: clnic, measure: questions",
            "claim asks: no setup 'clnic'. Did you mean 'clinic'?",
        ),
        (
            "better: crit, than: 0.5",
            "better: crti, than: 0.5",
            "claim level: no arm 'crti'. Did you mean 'crit'?",
        ),
        ("id: fewer", "id: asks", "claim 2: the id 'asks' stands twice"),
        (
            "better: crit, than: outcome, of_run: area",
            "of_run: area",
            "claim faster: better, than is missing (or `cannot`, a reason)",
        ),
        ("setup: again,\n", "\n", "claim shared: setup is missing (or `cannot`, a reason)"),
        (
            "of_run: area",
            "of_run: aera",
            "claim faster: no figure of a run 'aera'. Did you mean 'area'?",
        ),
        (
            "better: crit, than: 0.5",
            "better: crit - outcome - crit, than: 0.5",
            "claim level: 'crit - outcome - crit' has more than two parts; a side is ARM or ARM - "
            "ARM",
        ),
        (
            "than: outcome, of_run: slope",
            "than: crit @ trained, of_run: slope",
            "claim steadier: both sides are 'crit'; compare two arms, or name what is measured of "
            "the other one as `than_measure`",
        ),
        (
            FILE[FILE.index("claims:") :],
            "claims: []",
            "setting 'claims': it needs at least 1 item",
        ),
        (
            "of_run: area",
            "of_runs: area",
            "no setting 'claims.5.of_runs'. Did you mean 'claims.5.of_run'?",
        ),
        (
            "arms: {crit",
            "arms: {start: craft steps=9, crit",
            "setup clinic: 'start' is the run that all arms begin with",
        ),
    ],
)
def test_a_bad_file_is_told_with_its_place(
    old: str, new: str, said: str, toy: Path, call: Call
) -> None:
    assert old in FILE
    toy.write_text(FILE.replace(old, new), encoding="utf-8")
    assert call("claims", toy, "--dry") == (2, "", f"error: {toy}: {said}\n")


def test_words_that_no_shell_could_read_are_told(toy: Path, call: Call) -> None:
    toy.write_text(FILE.replace("arms: {crit", 'arms: {odd: "craft \'", crit'), encoding="utf-8")
    status, _, err = call("claims", toy, "--dry")
    assert (status, err.count("\n")) == (2, 1)
    assert "as a shell reads it" in err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("measure: repeats", "measure: repaets", "claim fewer: no measure 'repaets'. Did you mean"),
        ("than: 0.5", "than: 0.5, than_measure: foo", "claim level: no measure 'foo'. Known: "),
        (
            "than: 0.5",
            "than: crit @ nobody",
            "claim level: no doctor or evaluation 'nobody'. Known: brief, full information, ",
        ),
        ("than: 0.5", "than: outcome @ brif", "doctor or evaluation 'brif'. Did you mean 'brief'?"),
        ("than: 0.5", "than: 0.5, where: plague", "claim level: no disease 'plague'. Known: acute"),
        ("crit: craft,", "crit: craftt,", "setup clinic, arm crit: no method 'craftt'. Did you"),
        ("crit: craft,", "crit: craft sft.stepz=1,", "arm crit: no setting 'sft.stepz'. Did you"),
        ("crit: craft,", "crit: craft reward.foo=1,", "arm crit: no setting 'reward.foo'. Did you"),
        ("crit: craft,", "crit: craft environment.foo=1,", "no setting 'environment.foo'. Did you"),
        ("crit: craft,", "crit: 'craft evaluation.measures=[kgg]',", "arm crit: no measure 'kgg'"),
        ("crit: craft,", "crit: craft method=outcome,", "'method=outcome' would change nothing"),
        ("crit: craft,", "crit: craft --case x,", "no option '--case'. Did you mean '--cases'?"),
        ("--cases clinic:s max", "--cases clinic:zz max", "arm crit: no clinic 'zz'. Known: "),
        ("--cases clinic:s max", "--cases=clinc:s max", "no case source 'clinc'. Did you mean 'cl"),
        ("brief: environment.max", "brief: environment.mx", "setup clinic, brief: no setting 'env"),
        (
            "    elsewhere: {",
            "    headroom: {measure: accuracy, high: best, low: random doctor, least: 0.1}\n"
            "    elsewhere: {",
            "setup clinic, headroom: no doctor 'best'. Known: ",
        ),
        (
            "    elsewhere: {",
            "    begins: {measure: acuracy, least: 0.1}\n    elsewhere: {",
            "setup clinic, begins: no measure 'acuracy'. Did you mean 'accuracy'?",
        ),
    ],
)
def test_what_can_be_known_is_refused_before_the_first_run(
    old: str, new: str, said: str, toy: Path, tmp_path: Path, call: Call
) -> None:
    assert old in FILE
    toy.write_text(FILE.replace(old, new), encoding="utf-8")
    for dry in (("--dry",), ()):
        status, out, err = call("claims", toy, "--out", tmp_path / "out", *dry)
        assert (status, out, err.count("\n")) == (2, "", 1), err
        assert err.startswith(f"error: {toy}: ")
        assert said in err
    assert not (tmp_path / "out").exists()


def test_what_only_a_run_can_tell_is_not_refused(toy: Path, call: Call) -> None:
    """Parts of a reward, a judge's own figure, what a method from outside finds, missing files."""
    for old, new in (
        ("measure: repeats", "measure: part process"),
        ("measure: repeats", "measure: diff_acc by endpoint"),
        ("than: 0.5", "than: crit @ warm start, where: acute pancreatitis"),
        ("--cases clinic:s max", "--cases=clinic:s max"),
        (
            'scales: {tiny: {words: "--cases clinic:s ',
            'scales: {tiny: {needs: f, words: "--cases=f ',
        ),
    ):
        assert old in FILE
        toy.write_text(FILE.replace(old, new), encoding="utf-8")
        status, _, err = call("claims", toy, "--dry")
        assert (status, err) == (0, ""), new
    (toy.parent / "outside.py").write_text(
        "from workup.methods.craft import method\n", encoding="utf-8"
    )
    ours = FILE.replace("craft,", "'outside:method',").replace("repeats", "my_own_figure")
    toy.write_text(ours, encoding="utf-8")
    status, _, err = call("claims", toy, "--dry")
    assert (status, err) == (0, "")


@pytest.mark.parametrize(("paper", "scale"), [("Another", "tiny"), ("Toy", "small")])
def test_verdicts_of_another_paper_are_not_replaced(
    paper: str, scale: str, toy: Path, tmp_path: Path, call: Call
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    file = out / "claims.json"
    file.write_text(json.dumps({"paper": paper, "scale": scale}), encoding="utf-8")
    kept = file.read_bytes()
    for dry in (("--dry",), ()):
        status, shown, err = call("claims", toy, "--out", out, *dry)
        assert (status, shown) == (2, "")
        assert err == (
            f"error: {file} has the verdicts of '{paper}' at scale {scale}, and 'Toy' at scale "
            "tiny would replace them; choose another --out\n"
        )
    assert [*out.iterdir()] == [file]
    assert file.read_bytes() == kept
    file.write_text(json.dumps({"paper": "Toy", "scale": "tiny"}), encoding="utf-8")
    assert call("claims", toy, "--out", out, "--dry")[0] == 0


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("workup claims craft --jobs 2 --seeds 3", "workup claims craft --seeds 3"),
        ("workup claims --out=/x/y craft --budget 1h", "workup claims craft"),
        (
            "workup claims craft --only jobs 'k=[1, 2]'",
            "workup claims craft --only jobs 'k=[1, 2]'",
        ),
        ("workup claims craft --jobs", "workup claims craft"),
    ],
)
def test_the_command_of_a_page_is_what_verdicts_follow_from(typed: str, kept: str) -> None:
    assert without_means(typed) == kept


def test_every_built_in_claim_is_listed(call: Call) -> None:
    status, out, err = call("claims")
    assert status == 0, err
    for name in claims.names():
        assert f"workup claims {name}" in out
        for claim in claims.read(name).claims:
            assert claim.id in out


def test_times_are_read() -> None:
    texts = ("90s", "30m", "2h", " 1.5h", "2h10m", "2d", "1w")
    read = [seconds(text, "--budget") for text in texts]
    assert read == [90, 1800, 7200, 5400, 7800, 172_800, 604_800]
    for text in ("", "2", "h", "-1h", "0h", "1e3h", "2y", "1.h", "2h 10", "1m" * 6):
        with pytest.raises(UserError, match=r"--budget .*write a time"):
            seconds(text, "--budget")


class Pretended(Queue):
    """A queue whose jobs end at once; `done` are their names in order."""

    def __init__(self, workers: int = 2, budget: float | None = None) -> None:
        super().__init__(workers, budget)
        self.done: list[str] = []

    def run(self, jobs: Sequence[ClaimRun], told: Any) -> None:
        self.done += [job.name for job in jobs]


PAPER = claims.Paper.model_validate(
    {
        "paper": "Two",
        "setups": {
            name: {"about": name, "arms": {"a": f"craft {own}"}, "scales": {"tiny": {"words": ""}}}
            for name, own in {"first": "lr=1e-3", "second": "lr=2e-3"}.items()
        },
        "claims": [
            {"id": name, "place": "", "says": "", "setup": name, "better": "a", "than": 0.5}
            for name in ("first", "second")
        ],
    }
)


def order(needs: dict[str, float], seeds: int, most: int = 0) -> list[str]:
    queue = Pretended()
    plan = ClaimsPlan(PAPER, "tiny", Path("nowhere"), seeds, most=most)
    trial = ClaimTrial(plan, queue, needs.get, lambda job: None, lambda: None)
    trial.run()
    return queue.done


def test_every_set_up_gets_three_seeds_before_any_gets_more() -> None:
    found = order({"first": 1.0, "second": 5.0}, 5)
    assert found[:6] == [*(f"first/a-{k}" for k in range(3)), *(f"second/a-{k}" for k in range(3))]
    assert found[6:8] == ["second/a-3", "second/a-4"]
    assert found[8:] == ["first/a-3", "first/a-4"]


def test_seeds_are_added_where_the_effect_could_not_be_found() -> None:
    found = order({"first": 0.9, "second": 1.1}, 3, most=6)
    assert found[6:] == ["second/a-3", "second/a-4", "second/a-5"]
    assert order({"first": 0.9, "second": 1.0}, 3, most=6)[6:] == []


def test_commands_that_train_the_same_are_one_run() -> None:
    words = ["craft", "--cases", "clinic:s", "steps=9", "steps=0"]
    assert meaning(words) == meaning(["craft", "steps=0", "--cases", "clinic:s"])
    for other in (["craft", "--cases", "clinic:m", "steps=0"], ["outcome", *words[1:]], words[:-1]):
        assert meaning(other) != meaning(words)
    harder = ClaimsPlan(claims.read("craft"), "tiny", Path("x"), 8)
    assert harder.run("harder", "crit", 4) == harder.run("clinic", "crit", 4)
    assert harder.run("harder", "crit-m", 4).out == Path("x/harder/crit-m-4")


@pytest.mark.long
@pytest.mark.parametrize("name", claims.names())
def test_an_arm_is_the_first_one_that_trains_the_same(name: str) -> None:
    """Searched among all, with the seed that is asked for."""
    paper = claims.read(name)
    for plan in (ClaimsPlan(paper, scale, Path("x"), 1, first=5) for scale in SCALES):
        known = [
            (setup, arm, meaning(plan.words(setup, arm, 7)))
            for setup, its in paper.setups.items()
            if plan.scale in its.scales
            for arm in its.commands(plan.scale)
        ]
        for setup, arm, words in known:
            first = next(each for each in known if each[2] == words)
            assert plan.run(setup, arm, 7).out == Path("x") / first[0] / f"{first[1]}-7"


BESIDE = claims.Paper.model_validate(
    {
        "paper": "Beside",
        "setups": {
            "clinic": {
                "about": "",
                "arms": {"crit": "craft", "crit-aux": "craft lr=1e-3"},
                "scales": {"tiny": {"words": "--cases clinic:s"}},
                "headroom": {"measure": "accuracy", "high": "high", "low": "low", "least": 0.1},
                "elsewhere": {"brief": "environment.max_turns=3"},
            },
            "other": {
                "about": "",
                "arms": {"same": "craft --cases clinic:s", "more": "craft lr=3e-3"},
                "scales": {"tiny": {"words": ""}},
            },
        },
        "claims": [
            {"id": key, "place": "", "says": "", "setup": setup, "better": better, "than": 0.5}
            for key, setup, better in (
                ("first", "clinic", "crit"),
                ("aux", "clinic", "crit-aux"),
                ("brief", "clinic", "crit @ brief"),
                ("second", "other", "same"),
                ("third", "other", "more"),
            )
        ],
    }
)


def beside(folder: Path, *only: str, **changes: Any) -> ClaimsPlan:
    chosen = BESIDE.chosen(only) if only else ()
    return replace(ClaimsPlan(BESIDE, "tiny", folder, 1, chosen=chosen), **changes)


def put(job: ClaimRun, day: int = 1, patients: int = 0, **summary: Any) -> None:
    """A run of these words that has ended; its policy has met so many patients."""
    seed = int(settings(job.words).get("seed", "0"))
    made = {"command": f"{job.typed} --out old", "started": f"2026-01-{day:02}T00:00:00+00:00"}
    with Run.create(job.out, {"method": "craft", "seed": seed}, made) as run:
        if patients:
            run.write([example_run.record(k, "trained", 0, seed) for k in range(patients)])
        run.write_summary({"seconds": 60.0, **summary})


def deciding(plan: ClaimsPlan) -> Deciding:
    return Deciding(plan, Pretended(), Console(file=io.StringIO()))


def test_every_seed_that_has_a_folder_is_on_the_page(tmp_path: Path) -> None:
    plan = beside(tmp_path, "first", first=100)
    for seed in (0, 2, 11, 100):
        put(plan.run("clinic", "crit", seed))
    put(plan.run("clinic", "crit-aux", 5))
    found = [(run.arm, run.seed) for run in deciding(plan).ended("clinic")]
    assert found == [("crit", 0), ("crit", 2), ("crit-aux", 5), ("crit", 11), ("crit", 100)]
    deciding(plan).trial.run()
    put(replace(plan, more=("steps=3",)).whole.run("other", "more", 6))
    with pytest.raises(UserError, match="more-6 was begun with other words"):
        deciding(plan).trial.run()


def doctors(**levels: float) -> dict[str, Any]:
    common = {"cases": 9, "episodes": 9, "endings": {"diagnosed": 9}}
    found = {name: Estimate(mean, mean - 0.05, mean + 0.05, 9) for name, mean in levels.items()}
    return {
        "doctors": {name: {**common, "accuracy": level.as_json()} for name, level in found.items()}
    }


def anchors(gap: float) -> dict[str, Any]:
    return doctors(high=0.5 + gap, low=0.5)


def test_a_seed_that_begins_too_low_counts_in_no_claim(tmp_path: Path) -> None:
    begins = claims.Beginning(measure="accuracy", least=0.2)
    clinic = BESIDE.setups["clinic"].model_copy(update={"begins": begins})
    paper = BESIDE.model_copy(update={"setups": {**BESIDE.setups, "clinic": clinic}})
    plan = replace(beside(tmp_path), paper=paper)
    put(plan.run("clinic", "crit", 0), **doctors(**{"untrained": 0.9, "warm start": 0.08}))
    put(plan.run("clinic", "crit-aux", 0))  # nobody was evaluated: its seed is that of crit
    put(plan.run("clinic", "crit", 1), **doctors(**{"untrained": 0.0, "warm start": 0.34}))
    put(plan.run("clinic", "crit", 2), **doctors(untrained=0.2))  # it was given its policy
    found = deciding(plan)
    assert [(run.arm, run.seed) for run in found.verdicts().runs["clinic"]] == [
        ("crit", 1),
        ("crit", 2),
    ]
    assert told_left_out(begins, found.ended("clinic")) == [
        "Seed 0 is left out of the claims: its policy began with accuracy .08, and .20 is needed. "
        "Its arms ended at – (crit), – (crit-aux)."
    ]
    assert "Seed 0 is left out" in found.verdicts().about["clinic"]
    assert "left out" not in found.verdicts().about["other"]
    without = deciding(beside(tmp_path))
    assert len(without.verdicts().runs["clinic"]) == 4, (
        "every seed counts where the file asks nothing"
    )


def test_a_check_belongs_to_its_first_seed(tmp_path: Path) -> None:
    (job,) = beside(tmp_path).checks("clinic")
    assert job.out == tmp_path / "clinic" / "checks" / "crit-0"
    older = replace(job, out=job.out.with_name("crit"))
    put(older, **anchors(0.0))
    assert beside(tmp_path).checks("clinic") == [older]
    (later,) = beside(tmp_path, first=100).checks("clinic")
    assert later.out.name == "crit-100"
    deciding(beside(tmp_path, first=100)).trial.run()
    for first, why in ((0, "accuracy of high is only"), (100, None)):
        assert str(beside(tmp_path, first=first).problem("clinic")).startswith(str(why))


@pytest.mark.parametrize(("gap", "verdict"), [(0.05, "could not show it"), (0.2, "not run")])
def test_a_set_up_stays_refused_where_another_is_chosen(
    gap: float, verdict: str, tmp_path: Path
) -> None:
    """Its arms have runs, since the other set-up trains the same."""
    put(beside(tmp_path).checks("clinic")[0], **anchors(gap))
    put(beside(tmp_path).run("other", "same", 0))
    only = beside(tmp_path, "other", first=100)
    found = {each.claim.id: each.verdict for each in deciding(only).verdicts().findings}
    assert (found["first"], found["second"]) == (verdict, "not run")


def test_a_run_counts_while_its_further_evaluation_waits(tmp_path: Path) -> None:
    plan = beside(tmp_path)
    put(plan.run("clinic", "crit", 0))
    now = deciding(plan)
    (before,) = now.ended("clinic")
    assert before.outcomes["brief"]["accuracy"] == ([], [])
    (further,) = plan.elsewhere("clinic", "crit", 0).values()
    put(further, day=2)
    (after,) = now.ended("clinic")
    assert after is not before, "what waited for its evaluation is read again"
    assert now.ended("clinic")[0] is after


def test_claims_go_by_the_patients_of_an_evaluation_of_their_own(tmp_path: Path) -> None:
    """A run counts once its scale's `patients` have played; curves and starts stay the run's."""
    file = tmp_path / "toy.yaml"
    wider = FILE.replace('untrained=false"}}', 'untrained=false", patients: 30}}', 1)
    file.write_text(wider)
    with pytest.raises(UserError, match=r"claim doctor: 'greedy information' does not meet the"):
        claims.read(str(file))
    file.write_text(wider.replace("crit @ greedy information, than: crit", "crit, than: outcome"))
    plan = ClaimsPlan(claims.read(str(file)), "tiny", tmp_path / "out", 1)
    trained = plan.run("clinic", "outcome", 0)
    put(trained, patients=3)
    now = deciding(plan)
    (before,) = now.ended("clinic")
    found = {each.claim.id: each.reason for each in now.verdicts().findings}
    assert found["asks"] == "no policy of outcome has been evaluated on the scale's patients yet"
    further = plan.elsewhere("clinic", "outcome", 0)
    assert further.keys() == {"trained"}
    assert further["trained"].words == (
        str(trained.out),
        "evaluation.cases=30",
        "evaluation.anchors=false",
    )
    put(further["trained"], day=2, patients=5)
    (after,) = now.ended("clinic")
    met = [len(run.outcomes["trained"]["accuracy"][0]) for run in (before, after)]
    assert met == [0, 5], "it is read again once the others have played"
    assert [each["started"][:10] for each in after.made] == ["2026-01-01", "2026-01-02"]
    told = "Claims go by 30 patients, whom each trained policy meets once more."
    assert now.verdicts().about["clinic"].endswith(told)
    begins = claims.Beginning(measure="accuracy", least=0.2)
    place = {"trained": further["trained"].out}
    put(plan.run("clinic", "outcome", 1), patients=3, **doctors(**{"warm start": 0.08}))
    own = ended(plan.run("clinic", "outcome", 1).out, "outcome", 1, [], place, begins)
    assert len(own.outcomes["trained"]["accuracy"][0]) == 3, "what does not count is told by itself"
    assert set(plan.elsewhere("clinic", "crit", 0)) == {"brief", "trained"}
    assert not plan.elsewhere("again", "same", 0), "that set-up asks for no more patients"


def test_an_evaluation_of_other_words_or_of_another_run_is_refused(tmp_path: Path) -> None:
    plan = beside(tmp_path)
    trained = plan.run("clinic", "crit", 0)
    (further,) = plan.elsewhere("clinic", "crit", 0).values()
    put(further, day=2)
    with pytest.raises(UserError, match=r"crit-0 evaluates another run than .*; remove it"):
        further.refuse_another()
    put(trained)
    further.refuse_another()
    changed = replace(further, words=(further.words[0], "environment.max_turns=4"))
    with pytest.raises(UserError, match="was begun with other words"):
        changed.refuse_another()
    shutil.rmtree(trained.out)
    put(trained, day=3)
    with pytest.raises(UserError, match="evaluates another run"):
        deciding(plan).trial.run()


def test_a_setting_that_is_replaced_is_not_shown(tmp_path: Path) -> None:
    words = ("craft", "--cases", "clinic:s", "steps=9", "lr=1", "steps=3", "--cases", "clinic:xs")
    job = ClaimRun(tmp_path / "crit-0", words, "")
    assert job.typed == "workup train craft --cases clinic:xs steps=3 lr=1"
    assert meaning(shlex.split(job.typed)[2:]) == meaning(words)


@pytest.mark.parametrize("said", ["python", 3, None, "workup train 'craft", "workup train"])
def test_a_damaged_command_is_told_with_its_file(said: Any, tmp_path: Path) -> None:
    job = ClaimRun(tmp_path / "crit-0", ("craft", "seed=0"), "")
    put(job)
    (job.out / "versions.json").write_text(json.dumps({"command": said}))
    with pytest.raises(DamagedError, match=r"crit-0/versions.json: its 'command' is not"):
        job.refuse_another()
    put(replace(job, out=tmp_path / "other"), seconds=None)
    with pytest.raises(DamagedError, match=r"other/summary.json: it does not say how many"):
        _ = replace(job, out=tmp_path / "other").ended


def test_one_command_works_in_a_folder(tmp_path: Path) -> None:
    with alone(tmp_path / "new"), pytest.raises(UserError, match="another `workup claims` works"):
        deciding(beside(tmp_path / "new")).run()
    with alone(tmp_path / "new"):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="part of this path is a file"):
        deciding(beside(tmp_path / "file")).run()


def test_a_scale_has_the_arms_that_are_checked() -> None:
    data = BESIDE.model_dump(mode="json")
    clinic = data["setups"]["clinic"]
    clinic["scales"]["tiny"]["arms"] = {"crit-aux": "craft"}
    data["claims"] = [each for each in data["claims"] if each["id"] == "aux"]
    with pytest.raises(ValueError, match="clinic has no arm 'crit' at tiny, which is checked"):
        claims.Paper.model_validate(data)
    clinic["headroom"] = None
    claims.Paper.model_validate(data)


def test_only_names_claims_and_set_ups() -> None:
    paper = claims.read("evidence-seeking")
    found = paper.chosen(["long-lists"])
    plan = ClaimsPlan(paper, "tiny", Path("x"), 8, chosen=found)
    assert {claim.setup for claim in found} == {"long-lists"} == set(plan.setups)
    both = replace(plan, chosen=paper.chosen([found[0].id, "wing"]))
    assert set(both.setups) == {"long-lists", "wing"}
    assert both.arms("long-lists") == [each.arm for each in found[0].compared]
    harder = ClaimsPlan(claims.read("craft"), "tiny", Path("x"), 8)
    alone = replace(harder, chosen=harder.paper.chosen(["harder"]))
    assert alone.run("harder", "crit", 4) == harder.run("clinic", "crit", 4)


def test_what_an_arm_names_itself_stays() -> None:
    """Longer training of all arms leaves those untrained that are compared because they are."""
    found = claims.Paper.model_validate(
        {
            "paper": "One",
            "setups": {
                "clinic": {
                    "about": "",
                    "arms": {"trained": "craft", "base": "craft steps=0"},
                    "scales": {"small": {"words": "steps=10 lr=1e-3", "start": "craft batch=4"}},
                }
            },
            "claims": [
                {"id": "a", "place": "", "says": "", "setup": "clinic", "better": "trained"}
                | {"than": "base"}
            ],
        }
    )
    plan = ClaimsPlan(found, "small", Path("runs"), 1, more=("steps=20", "lr=1e-4"))
    chosen = {arm: settings(plan.words("clinic", arm, 0)) for arm in plan.arms("clinic")}
    assert chosen["trained"]["steps"] == "20"
    assert chosen["base"]["steps"] == "0"
    assert {each["lr"] for each in chosen.values()} == {"1e-4"}
    start = plan.start("clinic")
    assert start is not None
    assert settings(start.words) == {"batch": "4", "seed": "0", "steps": "0", "lr": "1e-4"}


def settings(words: Sequence[str]) -> dict[str, str]:
    """What the last word for each setting says."""
    return dict(word.split("=", 1) for word in words if "=" in word)


def test_a_run_waits_for_the_warm_start_of_its_kin() -> None:
    jobs = [ClaimRun(Path(name), (), kin) for name, kin in (("a", "0"), ("b", "0"), ("c", "1"))]
    queue = Queue(2)
    queue._running[jobs[0]] = None  # type: ignore[assignment]
    assert queue.following(jobs[1:]) == 1
    assert queue.following(jobs[1:2]) == 0


def test_set_ups_of_the_same_words_share_their_warm_starts() -> None:
    """A check of the second one waits for that of the first, instead of training it once more."""
    plan = ClaimsPlan(claims.read("promed"), "tiny", Path("runs"), 3, first=1)
    clinic, weights, loud = (plan.checks(name)[0].kin for name in plan.setups)
    assert clinic == weights == loud == plan.run("clinic", "grpo", 1).kin
    assert plan.run("clinic", "promed", 2).kin != clinic
    medr3 = ClaimsPlan(claims.read("medr3"), "tiny", Path("runs"), 3, first=1)
    assert medr3.run("stages", "staged", 1).kin != medr3.run("evidence", "whole", 1).kin


def test_no_run_begins_that_would_not_end_in_time() -> None:
    now = [1000.0]
    queue = Queue(1, 100.0, clock=lambda: now[0])
    assert queue.has_time()
    queue.took = {ClaimRun(Path(name), (), ""): took for name, took in (("a", 50.0), ("b", 70.0))}
    now[0] += 40
    assert queue.has_time()
    now[0] += 1
    assert not queue.has_time()


@pytest.mark.long
def test_the_end_of_the_budget_stops_what_runs(tmp_path: Path) -> None:
    out = tmp_path / "s" / "crit-0"
    words = ("craft", "--cases", "clinic:xs", "sft.steps=1", "steps=100000", "seed=0")
    begun = out / "metrics.jsonl"
    queue = Queue(1, 100.0, clock=lambda: 101.0 * begun.exists())
    queue.run([ClaimRun(out, words, "")], lambda job: pytest.fail(f"{job.name} is told"))
    assert begun.exists()
    assert not queue.failed
    assert not queue._running
    assert queue.short
    assert not (out / "summary.json").exists()


def test_why_a_run_failed_is_what_its_last_attempt_said(tmp_path: Path) -> None:
    job = ClaimRun(tmp_path / "crit-0", (), "")
    job.log.write_text("stopped by ü\n", encoding="utf-8")
    said = job.log.stat().st_size
    assert (job.why(), job.why(said)) == ("stopped by ü", "it said nothing")
    with job.log.open("a") as log:
        log.write("error: no room\n\n")
    assert job.why(said) == "error: no room"
