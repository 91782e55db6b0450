"""The command line as a script sees it.

What counts is the exit status, one line per mistake, and what lies on the disk afterwards.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from command_line import SMALL, Call, environment, forked, workup
from waiting import HANG

from workup import methods
from workup.cases import open_source
from workup.cases.jsonl import line_of
from workup.doctors import strategies
from workup.runs import Run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run made by the command itself, and what it printed as JSON."""
    home = tmp_path_factory.mktemp("trained")
    done = workup(
        "train",
        "craft",
        "--cases",
        "clinic:xs",
        *SMALL,
        "seed=3",
        "--out",
        "run",
        "--json",
        cwd=home,
    )
    assert done.returncode == 0, done.stderr
    return home / "run", done.stdout


# ---------------------------------------------------------------------------------- asking for help


SLOW = ", 'numpy', 'pydantic', 'omegaconf'"  # what the list of commands has no use for


@pytest.mark.long
@pytest.mark.parametrize("words", [(), ("--help",), ("train", "--help")])
def test_help_answers_without_loading_torch(words: tuple[str, ...], tmp_path: Path) -> None:
    code = (
        "import sys; from workup.cli import app\ntry: app.main()\n"
        "finally: print(sorted({'torch', 'transformers', 'trl', 'scipy', 'matplotlib'"
        f"{SLOW if 'train' not in words else ''}"
        "} & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert (done.returncode, done.stderr.strip()) == (0, "[]")
    assert "usage" in done.stdout.lower()
    if "train" not in words:
        assert all(
            name in done.stdout
            for name in (
                "train",
                "evaluate",
                "report",
                "compare",
                "resume",
                "cases",
                "play",
                "methods",
            )
        )
        assert "no medical device" in done.stdout


def test_the_console_script_is_installed(tmp_path: Path) -> None:
    assert "train" in workup("--help", cwd=tmp_path).stdout


def test_methods_are_listed_with_their_settings(call: Call) -> None:
    status, out, _ = call("methods")
    assert status == 0
    for name in (*methods.names(), *strategies.names()):
        assert re.search(rf"^\s+{name}\s+\S", out, re.MULTILINE), name
    status, out, _ = call("methods", "craft")
    assert status == 0
    assert all(f"reward.{key}=" in out for key in methods.load("craft").settings.model_fields)
    assert "strategy.threshold=" in call("methods", "mediq")[1]
    assert call("methods", "crfat")[0] == 2


# ----------------------------------------------------------------------------------------- mistakes

TRAIN = ("train", "craft", "--cases", "clinic:xs", "--out", "run")


def test_a_message_neither_steers_nor_floods_the_terminal(call: Call) -> None:
    status, _, err = call("cases", "jsonl:\x1b[31m" + "z" * 50_000)
    assert status == 2
    assert "\x1b" not in err
    assert 2_000 < len(err) < 2_200
    assert re.search(r"z … \(5\d,\d{3} characters\)\n$", err)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tarin", "craft"), r"No such command 'tarin'"),
        (("train",), r"METHOD is missing: a method's name \(`workup methods`\)"),
        (
            ("train", "craft", "--case", "clinic:xs"),
            r"no option '--case'. Did you mean '--cases'\?",
        ),
        (("craft", "--cases", "clinic:xs"), r"'craft' is a method: type workup train craft"),
        (("train", "crfat"), r"no method 'crfat'. Did you mean 'craft'\?"),
        (("train", "nowhere.at.all:method"), r"cannot import 'nowhere.at.all'"),
        ((*TRAIN, "--outt", "x"), r"no option '--outt'. Did you mean '--out'\?"),
        ((*TRAIN, "--budget", "5"), r"'--budget', but a setting: type budget=5 \(see"),
        ((*TRAIN, "--budget=5"), r"'--budget', but a setting: type budget=5 \(see"),
        ((*TRAIN, "--budget"), r"'--budget', but a setting: type budget=… \(see"),
        ((*TRAIN, "--step", "5"), r"'--step', but a setting: type steps=5 \(see"),
        ((*TRAIN, "--max-turns", "5"), r"a setting: type environment\.max_turns=5 \(see"),
        ((*TRAIN, "--judge", "endpoint:a"), r"a setting: type roles\.judge=endpoint:a \(see"),
        (("cases", "clinic:xs", "--budget", "5"), r"no option '--budget'\. Did you mean '--\w+'"),
        ((*TRAIN, "judge=endpoint:a"), r"'judge' is a role: write roles\.judge=endpoint:a$"),
        ((*TRAIN, "grader=endpoint:a"), r"'grader' is a role: write roles\.grader=endpoint:a$"),
        ((*TRAIN, "stesp=3"), r"no setting 'stesp'. Did you mean 'steps'\?"),
        ((*TRAIN, "sft.stesp=3"), r"no setting 'sft.stesp'. Did you mean 'sft.steps'\?"),
        ((*TRAIN, "reward.alhpa=3"), r"no setting 'reward.alhpa'. Did you mean 'reward.alpha'\?"),
        ((*TRAIN, "steps=many"), r"setting 'steps': .*integer.*'many'"),
        ((*TRAIN, "steps=-1"), r"setting 'steps': .*greater than or equal to 0, not -1"),
        ((*TRAIN, f"steps={10**22}"), r"setting 'steps': .*less than or equal to 1000000000, not"),
        ((*TRAIN, f"sft.steps={10**22}"), r"setting 'sft.steps': .*less than or equal to"),
        ((*TRAIN, f"batch={10**7}"), r"setting 'batch': .*less than or equal to 1000000, not"),
        ((*TRAIN, f"group={10**7}"), r"setting 'group': .*less than or equal to"),
        ((*TRAIN, "tuning.epochs=1e200"), r"setting 'tuning.epochs': .*less than or equal to"),
        ((*TRAIN, f"evaluation.cases={10**22}"), r"'evaluation.cases': .*less than or equal to"),
        ((*TRAIN, f"environment.max_turns={10**22}"), r"max_turns': .*less than or equal to"),
        ((*TRAIN, "reward.alpha=high"), r"setting 'reward.alpha': .*number.*'high'"),
        ((*TRAIN, "steps.deep=3"), r"setting 'steps': .*integer"),
        (
            (*TRAIN, "tiny=3"),
            r"setting 'tiny' has settings of its own; in place of 3 write tiny\.width=…",
        ),
        ((*TRAIN, "method=outcome"), r"'method=outcome' would change nothing: it is craft already"),
        ((*TRAIN, "cases=clinic:s"), r"would change nothing: it is clinic:xs already"),
        (("evaluate", "random doctor", "policy=x"), r"nothing: it is random doctor already"),
        (
            ("evaluate", "random doctor", "--repeats", "2", "evaluation.samples=3"),
            r"'evaluation\.samples=3' would change nothing: it is 2 already",
        ),
        (
            ("cluster", "craft", "verl.nodes=2"),
            r"'verl\.nodes=2' would change nothing: it is 1 already",
        ),
        (("play", "clinic:xs", "seed=5"), r"'seed=5' would change nothing: type --seed 5"),
        (
            (*TRAIN, "lora=8"),
            r"setting 'lora' has settings of its own; in place of 8 write lora\.r=…",
        ),
        ((*TRAIN, "dpo=3"), r"'dpo' has settings of its own; in place of 3 write dpo\.lr="),
        ((*TRAIN, "seed=-1"), r"setting 'seed': .*greater than or equal to 0, not -1"),
        ((*TRAIN, f"seed={2**63}"), r"setting 'seed': .*less than 9223372036854775808"),
        ((*TRAIN, "budget=.inf"), r"setting 'budget': .*finite number, not inf"),
        ((*TRAIN, "lr=.inf"), r"setting 'lr': .*finite number, not inf"),
        ((*TRAIN, "dpo.beta=.inf"), r"setting 'dpo\.beta': .*finite number, not inf"),
        ((*TRAIN, "evaluation.temperature=.nan"), r"temperature': .*finite number, not nan"),
        ((*TRAIN, "environment.=3"), r"'environment\.=3' is no setting: a name is missing beside"),
        ((*TRAIN, ".a=1"), r"'\.a=1' is no setting: a name is missing beside the dot"),
        ((*TRAIN, "steps"), r"'steps' is no setting: write key=value"),
        ((*TRAIN, "=3"), r"'=3' is no setting"),
        ((*TRAIN, "steps=[1"), r"settings: "),
        ((*TRAIN, "steps=${nothing}"), r"settings, field 'steps': \$\{…\} is not filled in"),
        ((*TRAIN, "balance=1"), r"cannot be balanced"),
        ((*TRAIN, "loss_type=gpro"), r"setting 'loss_type': "),
        (
            (*TRAIN, "loss_type=cispo", "epsilon_high=0.5"),
            r"^error: loss_type=cispo bounds .* loses weight$",
        ),
        (
            (*TRAIN, "evaluation.avoid_repeats=true", "evaluation.temperature=0"),
            r"^error: setting 'evaluation': avoid_repeats=true .* leave avoid_repeats out$",
        ),
        ((*TRAIN, "--config", "none.yaml"), r"none.yaml: no such file"),
        ((*TRAIN, "--policy", "./nowhere"), r"no weights './nowhere'"),
        (("train", "craft", "--cases", "clinic:xxl", "--out", "run"), r"xxl.*xs"),
        (("train", "craft", "--cases", "klinic:xs", "--out", "run"), r"klinic"),
        (("train", "craft", "--cases", "jsonl:none.jsonl", "--out", "run"), r"none.jsonl"),
        (("train", "craft", "--cases", "mediq:none.jsonl", "--out", "run"), r"none.jsonl"),
        (("train", "craft", "--cases", "ddxplus:none", "--out", "run"), r"none"),
        (
            ("evaluate", "randon doctor", "--cases", "clinic:xs", "--out", "run"),
            r"no policy 'randon doctor'. Did you mean 'random doctor'\?",
        ),
        (
            (
                "evaluate",
                "random doctor",
                "--cases",
                "clinic:xs",
                "--out",
                "run",
                "evaluation.case=3",
            ),
            r"'evaluation.cases'",
        ),
        (
            (
                "evaluate",
                "random doctor",
                "--cases",
                "clinic:xs",
                "--out",
                "run",
                "conclude=no/bo/dy",
            ),
            r"no weights 'no/bo/dy'",
        ),
        (
            ("evaluate", "random doctor", "--out", "run"),
            r"--cases is missing: SCHEME:REST.*`workup sources`",
        ),
        (("resume", "nowhere"), r"nowhere does not exist"),
        (("report", "nowhere"), r"nowhere does not exist"),
        (("compare", "nowhere", "nowhere"), r"nowhere does not exist"),
        (("compare", "nowhere"), r"compare needs two runs or more"),
        (("cases", "clinic"), r"write it as in 'clinic:s'"),
        (
            ("cases", "clinic:xs", "--export", "no/such/folder/x.jsonl"),
            r"no/such/folder/x.jsonl: cannot be written",
        ),
        (
            ("evaluate", ".", "--cases", "clinic:xs", "--out", "run"),
            r"'\.' is neither a model folder .* nor a run folder",
        ),
        (
            ("evaluate", "tiny", "--cases", "clinic:xs", "--out", "run"),
            r"'tiny' is trained first: workup train METHOD",
        ),
        (("cases", "none.jsonl", "--validate"), r"none.jsonl"),
        (("play", "clinic:xs", "--against", "../nowhere"), r"nowhere"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    words: tuple[str, ...], said: str, call: Call, tmp_path: Path
) -> None:
    status, out, err = call(*words)
    assert status == 2, (out, err)
    (line,) = err.strip().splitlines()
    assert line.startswith("error: ")
    assert re.search(said, line), line
    assert list(tmp_path.iterdir()) == []


def test_a_role_with_the_name_of_an_endpoint_gets_its_prefix(call: Call, tmp_path: Path) -> None:
    (tmp_path / "workup.yaml").write_text(
        'endpoints: {judge: {base_url: "http://127.0.0.1:1", model: m}}'
    )
    for given, meant in (("judge", "endpoint:judge"), ("exact,judge", "exact,endpoint:judge")):
        status, _, err = call(*TRAIN, f"roles.judge={given}")
        line = f"error: roles.judge: 'judge' is an endpoint; did you mean roles.judge={meant}?\n"
        assert (status, err) == (2, line)
    status, _, err = call("audit", "judge", "model=judge")
    assert (status, err.strip()) == (2, "error: no weights 'judge'. Did you mean 'endpoint:judge'?")
    (tmp_path / "judge").mkdir()  # a folder of that name is meant as such
    assert "is an endpoint" not in call(*TRAIN, "roles.judge=judge")[2]
    assert not (tmp_path / "run").exists()


def test_an_evaluation_is_no_policy(call: Call, tmp_path: Path) -> None:
    (tmp_path / "looked").mkdir()
    (tmp_path / "looked" / "config.yaml").write_text("kind: evaluation\npolicy: endpoint:m\n...\n")
    for words in (("evaluate", "looked"), ("train", "craft", "--policy", "looked")):
        status, _, err = call(*words, "--cases", "clinic:xs", "--out", "run")
        assert (status, err) == (
            2,
            (
                "error: looked is an evaluation and holds no policy; name what it evaluated: "
                "'endpoint:m'\n"
            ),
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_settings_from_a_file_and_words_that_win(call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "steps: 1\nsft: {steps: 2}\nevaluation: {cases: 3, anchors: false}\nbatch: 2\ngroup: 2\n"
    )
    status, _, err = call(
        *TRAIN, "--config", "mine.yaml", "evaluation.cases=4", "max_tokens=8", "reward.alpha=2.5"
    )
    assert status == 0, err
    run = Run.open("run")
    assert run.config["steps"] == 1
    assert run.config["sft"]["steps"] == 2
    assert run.config["evaluation"]["cases"] == 4
    assert run.config["reward"]["alpha"] == 2.5
    assert run.summary["doctors"].keys() == {"untrained", "warm start", "trained"}
    for wrong in ("steps: [1\n", "- 1\n- 2\n", "\x00"):
        (tmp_path / "wrong.yaml").write_text(wrong)
        status, _, err = call("train", "craft", "--config", "wrong.yaml", "--out", "other")
        assert (status, len(err.strip().splitlines())) == (2, 1), err
        assert "wrong.yaml" in err
    assert not (tmp_path / "other").exists()


def test_no_test_case_is_told_before_anything_is_done(call: Call, tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text(line_of(open_source("clinic:xs").test[0]) + "\n")
    status, _, err = call("train", "craft", "--cases", "jsonl:one.jsonl", "--out", "run")
    assert status == 2
    assert re.search(r"no (test|training) case", err)
    assert not (tmp_path / "run").exists()


def test_what_no_stage_could_do_is_told_before_anything_is_played(
    call: Call, tmp_path: Path
) -> None:
    lines = [line_of(case) for case in open_source("clinic:xs").test[:30]]
    (tmp_path / "own.jsonl").write_text("".join(f"{line}\n" for line in lines))
    unlisted = ("autorefine", "--cases", "jsonl:own.jsonl", "environment.index=clinic:xs")
    unnamed = ("autorefine-icdtree", "--cases", "clinic:xs", "reward.names=none.csv")
    for words, told in ((unlisted, "no demonstrations can be made"), (unnamed, "none.csv")):
        status, _, err = call("train", *words, "--out", "run")
        assert (status, len(err.strip().splitlines())) == (2, 1), err
        assert told in err
        assert not (tmp_path / "run").exists()
    # Who begins without a warm start needs no demonstrations.
    short = ("warm_start=false", "steps=0", "evaluation.cases=1", "max_tokens=4")
    status, _, err = call("train", *unlisted, *short, "--out", "run")
    assert status == 0, err


@pytest.mark.long
def test_a_taken_folder_is_not_touched(
    call: Call, tmp_path: Path, trained: tuple[Path, str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("x")
    for out, said in (
        (trained[0], "workup resume"),
        ("mine", "not empty"),
        ("file", "is a file"),
        ("file/below", "file"),
    ):
        status, _, err = call("train", "outcome", "--cases", "clinic:xs", "--out", out)
        assert (status, len(err.strip().splitlines())) == (2, 1), err
        assert said in err
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_place_is_named(call: Call, tmp_path: Path) -> None:
    (tmp_path / "sealed").mkdir(mode=0o555)
    status, _, err = call("train", "craft", "--cases", "clinic:xs", "--out", "sealed/run")
    assert (status, len(err.strip().splitlines())) == (2, 1), err
    assert "read-only" in err


@pytest.mark.long
@pytest.mark.parametrize("room", [40_000, 200_000])
def test_a_full_disk_is_one_line_and_the_run_goes_on_when_there_is_room(
    room: int, tmp_path: Path
) -> None:
    """A limit on the size of a file stands for the full disk.

    It strikes the database or the checkpoint.
    """
    words = (
        "train",
        "craft",
        "--cases",
        "clinic:xs",
        *SMALL,
        "evaluation.anchors=false",
        "--out",
        "run",
    )
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (room, room))
    done = forked(*words, cwd=tmp_path, prepare=limit)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert re.search(r"full|too large", done.stderr), done.stderr
    again = forked("resume", "run", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert Run.open(tmp_path / "run").summary["doctors"]["trained"]["episodes"] == 10


# -------------------------------------------------------------------------------------------- cases


def test_cases_are_shown_to_people(call: Call) -> None:
    status, out, _ = call("cases", "clinic:xs", "-n", 2)
    assert status == 0
    assert "clinic:xs" in out
    assert call("cases", "clinic:xs", "-n", 2)[1] == out
    assert call("cases", "clinic:xs", "-n", 2, "--seed", 1)[1] != out
    assert call("cases", "clinic:xs", "-n", 2, "--split", 1)[1] != out


def test_the_split_alone_decides_what_is_held_out(call: Call, tmp_path: Path) -> None:
    cases = open_source("clinic:xs").test[:30]
    lines = [line_of(case) for case in cases]
    (tmp_path / "own.jsonl").write_text("".join(f"{line}\n" for line in lines))

    def held_out(*words: object) -> list[str]:
        assert call("cases", "jsonl:own.jsonl", "--export", "out.jsonl", *words)[0] == 0
        return (tmp_path / "out.jsonl").read_text().splitlines()

    assert held_out() == held_out("--seed", 1) == held_out("--split", 0) != held_out("--split", 1)


def test_an_export_spares_its_source_and_restricted_text(call: Call, tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text(before := line_of(open_source("clinic:xs").test[0]) + "\n")
    (tmp_path / "c.source.json").write_text(sidecar := '{"items": []}')
    for name in ("c.jsonl", "./c.jsonl", "c.source.json"):
        status, out, err = call("cases", "jsonl:c.jsonl#all", "--export", name)
        told = f"error: --export {Path(name)} is the source itself; choose another name\n"
        assert (status, out, err) == (2, "", told)
    assert (tmp_path / "c.jsonl").read_text() == before
    assert (tmp_path / "c.source.json").read_text() == sidecar
    restricted = {**json.loads(before), "restricted": True}
    (tmp_path / "r.jsonl").write_text(json.dumps(restricted))
    words = ("cases", "jsonl:r.jsonl#all", "--export", "rx.jsonl")
    status, _, err = call(*words)
    assert status == 2
    assert "restricted" in err
    assert "--restricted writes a file for you alone" in err
    assert not (tmp_path / "rx.jsonl").exists()
    assert call(*words, "--restricted")[0] == 0
    for path in tmp_path.glob("rx.*"):
        assert path.stat().st_mode & 0o777 == 0o600, path
    assert len([*tmp_path.glob("rx.*")]) == 2
    for word in ("--validate", "--overlap"):
        status, _, err = call("cases", "jsonl:c.jsonl#all", word, "--export", "new.jsonl")
        assert (status, err.count("\n")) == (2, 1)
        assert f"{word} and --export exclude each other" in err
    assert not (tmp_path / "new.jsonl").exists()


@pytest.mark.long
def test_export_validate_and_back(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workup.cases.clinic.TEST", 500)  # of 100,000 test cases
    assert call("cases", "clinic:xs", "--export", "out.jsonl")[:2] == (0, "out.jsonl\n")
    assert call("cases", "jsonl:out.jsonl", "--validate")[0] == 0
    status, out, err = call("cases", "out.jsonl", "--validate")
    assert (status, err) == (0, "")
    *remarks, last = out.splitlines()  # the smallest clinic draws some patients twice
    assert last == f"out.jsonl: valid, {len(remarks)} remarks"
    same = "the same patient stands in an earlier row, under another id."
    assert any(remark.endswith(same) for remark in remarks)
    (tmp_path / "one.jsonl").write_text((tmp_path / "out.jsonl").read_text().splitlines()[0])
    assert call("cases", "one.jsonl", "--validate") == (0, "one.jsonl: valid\n", "")
    status, _, err = call("cases", "jsonl:out.jsonl")
    assert status == 0, err
    lines = (tmp_path / "out.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "out.jsonl").write_text("".join([*lines[:3], "{\n", *lines[3:]]))
    told = f"1 of {len(lines) + 1:,} rows left out: line 4: not JSON"
    assert told in call("cases", "jsonl:out.jsonl", "-n", "0")[1].replace("\n", " ")
    status, out, err = call(
        "train",
        "outcome",
        "--cases",
        "jsonl:out.jsonl",
        "--out",
        "run",
        "tiny.width=32",
        "sft.steps=2",
        "steps=1",
        "batch=2",
        "group=2",
        "max_tokens=8",
        "evaluation.cases=5",
    )
    assert status == 0, err
    assert told in out
    summary = Run.open("run").summary
    assert summary["cases"] == "jsonl:out.jsonl"
    assert summary["doctors"]["trained"]["episodes"] == 5
    status, out, err = call(
        "evaluate", "run", "--cases", "jsonl:out.jsonl", "--out", "seen", "evaluation.cases=2"
    )
    assert status == 0, err
    assert told in out


@pytest.mark.long
def test_a_malformed_file_is_named_with_line_and_field(call: Call, tmp_path: Path) -> None:
    lines = [line_of(case) for case in open_source("clinic:xs").test[:8]]
    broken = json.loads(lines[4])
    broken["presentation"] = 7
    for bad, field in ((json.dumps(broken), "presentation"), ('{"id": ', None), ("[]", None)):
        (tmp_path / "bad.jsonl").write_text("\n".join([*lines[:4], bad, *lines[5:]]) + "\n")
        for words in (
            ("train", "craft", "--cases", "jsonl:bad.jsonl", "--out", "run", "strict=true"),
            (
                "evaluate",
                "random doctor",
                "--cases",
                "jsonl:bad.jsonl",
                "--out",
                "run",
                "strict=true",
            ),
            (
                "prepare",
                "facts",
                "--cases",
                "bad.jsonl",
                "--out",
                "o.jsonl",
                "--model",
                "exact",
                "--strict",
            ),
            ("cases", "jsonl:bad.jsonl", "--strict"),
        ):
            status, _, err = call(*words)
            assert (status, len(err.strip().splitlines())) == (2, 1), err
            assert "bad.jsonl, line 5" in err
            assert field is None or f"field '{field}'" in err
        status, out, err = call("cases", "bad.jsonl", "--validate")
        assert status == 2
        assert "line 5" in out
        assert err == "error: bad.jsonl: 1 problem\n"
        assert len(out.splitlines()) == 1
    assert not (tmp_path / "run").exists()


# -------------------------------------------------------------------------------------------- a run


@pytest.mark.long
def test_json_output_is_one_object_per_line(trained: tuple[Path, str]) -> None:
    events = [json.loads(line) for line in trained[1].splitlines()]
    assert all(isinstance(event, dict) for event in events)
    assert len(events) > 36
    assert "steps" in json.dumps(events[-3:])


def test_the_summary_keeps_its_contract(trained: tuple[Path, str]) -> None:
    folder, _ = trained
    summary = json.loads((folder / "summary.json").read_text())
    assert {key: summary[key] for key in ("method", "cases", "seed", "policy")} == {
        "method": "craft",
        "cases": "clinic:xs",
        "seed": 3,
        "policy": "tiny",
    }
    assert summary["steps"] == 36
    assert summary["seconds"] > 0
    played = [
        "untrained",
        "warm start",
        "trained",
        "random doctor",
        "greedy information",
        "full information",
    ]
    assert list(summary["doctors"]) == played
    for doctor in summary["doctors"].values():
        assert doctor["episodes"] == doctor["cases"] == 10
        for metric in ("accuracy", "macro_accuracy", "questions", "critical", "noise", "coverage"):
            figure = doctor[metric]
            assert figure.keys() >= {"mean", "low", "high", "n"}
            if (
                figure["low"] is None
            ):  # numbers that are no shares, and all equal: nothing tells how they spread
                assert metric == "questions" or figure["n"] < 2
            else:
                assert figure["low"] <= figure["mean"] <= figure["high"]
    assert summary["doctors"]["full information"]["accuracy"]["mean"] > 0.8
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "config.yaml",
        "versions.json",
        "metrics.jsonl",
        "episodes.sqlite",
        "checkpoints",
        "policy",
        "summary.json",
        "report.html",
        "transcripts",
    }
    assert "workup train craft" in json.loads((folder / "versions.json").read_text())["command"]


@pytest.mark.long
def test_report_and_compare(trained: tuple[Path, str], call: Call, tmp_path: Path) -> None:
    (trained[0] / "report.html").unlink()
    status, out, _ = call("report", trained[0])
    assert (status, out.strip()) == (0, str(trained[0] / "report.html"))
    page = (trained[0] / "report.html").read_text()
    assert "<html" in page
    assert not re.search(r"(src|href)=[\"']https?:", page)
    shutil.copytree(trained[0], tmp_path / "again")
    for wrong, said in (
        (("--html", "no/such.html"), "there is no folder no; make it"),
        (("--html", "both", "--json", "both"), "--html and --json both name both"),
    ):
        status, out, err = call("compare", trained[0], "again", *wrong)
        assert (status, out) == (2, "")
        assert said in err
    status, out, err = call("compare", trained[0], "again", "--html", "both.html")
    assert status == 0, err
    assert "accuracy" in out
    assert "what success goes with" in out
    assert "<html" in (tmp_path / "both.html").read_text()
    assert "transcripts/1.html" in page
    assert "both-transcripts/1.html" in (tmp_path / "both.html").read_text()


@pytest.mark.long
def test_evaluate_a_run_with_hybrid_and_oracle(trained: tuple[Path, str], call: Call) -> None:
    words = (
        "evaluate",
        trained[0],
        "--cases",
        "clinic:xs",
        "conclude=bayes",
        "evaluation.cases=12",
        "max_tokens=8",
    )
    status, _, err = call(*words, "--out", "looked")
    assert status == 0, err
    doctors = Run.open("looked").summary["doctors"]
    assert set(doctors) == {
        "run",
        "run, bayes concludes",
        "bayes, oracle context",
        "random doctor",
        "greedy information",
        "full information",
    }
    accuracy = {name: doctor["accuracy"]["mean"] for name, doctor in doctors.items()}
    assert accuracy["bayes, oracle context"] == accuracy["full information"]
    assert accuracy["run, bayes concludes"] >= accuracy["run"]
    again = Run.open("looked")
    ours = {(e.episode.case.id, e.episode.answer) for e in again.episodes(doctor="run")}
    assert len(ours) == 12
    before = (Path("looked") / "summary.json").read_text()
    status, _, err = call("resume", "looked")  # nothing is left to play
    assert status == 0, err
    assert (
        json.loads((Path("looked") / "summary.json").read_text())["doctors"]
        == json.loads(before)["doctors"]
    )


def test_evaluate_an_anchor_into_a_folder_of_our_choice(call: Call, tmp_path: Path) -> None:
    status, out, err = call(
        "evaluate", "random doctor", "--cases", "clinic:xs", "evaluation.cases=10", "--json"
    )
    assert status == 0, err
    assert all(isinstance(json.loads(line), dict) for line in out.splitlines())
    (run,) = (tmp_path / "runs").iterdir()
    assert list(Run.open(run).summary["doctors"]) == [
        "random doctor",
        "greedy information",
        "full information",
    ]
    assert call("evaluate", "random doctor", "--cases", "clinic:xs", "evaluation.cases=10")[0] == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2
