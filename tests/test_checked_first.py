"""A user's mistake is reported in one line before anything is done.

No folder is made, no model is asked and no hub is reached before.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from command_line import SMALL, Call
from serving import Server, serving
from test_hub import hanging_up

from workup.core.errors import UserError
from workup.loops.training import warm
from workup.runs import Run
from workup.runs.policies import own_judges, resolve
from workup.runs.settings import SupportSettings

EVALUATE = ("evaluate", "random doctor", "--cases", "clinic:xs", "--out", "run")
TRAIN = ("train", "craft", "--cases", "clinic:xs", "--out", "run")
# A coder maps names to codes, which the measure kg alone needs.
CODER = (
    "it has judge, simulator, checker, interpreter. "
    "A coder needs the measure kg: evaluation.measures=[kg]"
)
QUESTIONING = (
    "evaluate",
    "random doctor",
    "--cases",
    "clinic:xs",
    "--out",
    "run",
    "environment=questioning",
)


def configure(folder: Path, server: Server, *lines: str) -> None:
    """A workup.yaml with endpoint `paid`, whose key is in WORKUP_TEST_KEY, and these lines."""
    endpoint = f"{{base_url: '{server.url}', model: m, api_key_env: WORKUP_TEST_KEY}}"
    (folder / "workup.yaml").write_text(
        "\n".join([f"endpoints: {{paid: {endpoint}}}", *lines]) + "\n"
    )


def refused(call: Call, folder: Path, *words: object) -> str:
    """The one line in which a command is refused; it leaves the folder as it was."""
    before = sorted(folder.iterdir())
    status, out, err = call(*words)
    assert (status, out) == (2, ""), (out, err)
    (line,) = err.strip().splitlines()
    assert sorted(folder.iterdir()) == before
    return line.removeprefix("error: ")


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "endpoint:paid", "--cases", "clinic:xs", "--out", "run"),
        (*EVALUATE, "conclude=endpoint:paid"),
        (*EVALUATE, "roles.judge=endpoint:paid"),
        (*TRAIN, "roles.simulator=endpoint:paid"),
        ("audit", "judge", "model=endpoint:paid", "n=4"),
        (
            "prepare",
            "facts",
            "--cases",
            "clinic:xs",
            "--limit",
            1,
            "--out",
            "made.jsonl",
            "--model",
            "endpoint:paid",
        ),
    ],
)
def test_a_key_that_is_not_set(
    words: tuple[str, ...], call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORKUP_TEST_KEY", raising=False)
    with serving(lambda body: "yes") as server:
        configure(tmp_path, server)
        line = refused(call, tmp_path, *words)
    assert line == (
        f"the environment variable WORKUP_TEST_KEY is not set; {server.url} takes its key "
        "from there"
    )
    assert server.asked == []


def test_a_replay_needs_no_key(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKUP_TEST_KEY", raising=False)
    with serving(lambda body: "yes") as server:
        configure(tmp_path, server)
        status, _, err = call(
            *EVALUATE, "roles.judge=endpoint:paid", "replay=true", "evaluation.cases=2"
        )
    assert (status, "no answer of m" in err, "is not set" in err) == (2, True, False), err
    assert server.asked == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            (*TRAIN, "roles.patient=exact"),
            "no role 'patient' in this consultation; it has judge, simulator",
        ),
        ((*TRAIN, "roles.jugde=exact"), "no role 'jugde'. Did you mean 'judge'?"),
        (
            (*EVALUATE, "roles.nurse=exact"),
            "no role 'nurse' in this consultation; it has judge, simulator",
        ),
        (
            (*EVALUATE, "roles.nurse=exact", "evaluation.measures=[kg]"),
            "no role 'nurse' in this consultation; it has judge, coder, simulator",
        ),
        (
            (*EVALUATE, "roles.coder=endpoint:paid"),
            f"no role 'coder' in this consultation; {CODER}",
        ),
        (
            (*TRAIN, "roles.coder=endpoint:paid", "evaluation.measures=[bleu]"),
            f"no role 'coder' in this consultation; {CODER}",
        ),
        ((*EVALUATE, "roles.codr=exact"), "no role 'codr'. Did you mean 'coder'?"),
        (
            (*QUESTIONING, "roles.simulator=exact"),
            "no role 'simulator' in this questioning; it has judge, patient, checker",
        ),
        (
            (*TRAIN, "budget=-1"),
            "setting 'budget': input should be greater than or equal to 0, not -1",
        ),
        (
            (*TRAIN, "dtype=flaot16"),
            "setting 'dtype': input should be 'float32', 'bfloat16' or 'float16', not 'flaot16'",
        ),
        (
            (*TRAIN, "--policy", "endpoint:paid"),
            "'endpoint:paid' cannot be trained: its weights are elsewhere",
        ),
        ((*TRAIN, "--policy", "craft"), "'craft' is a method: type `workup train craft`"),
        (("evaluate", "paid", *EVALUATE[2:]), "no policy 'paid'. Did you mean 'endpoint:paid'?"),
        (("evaluate", "promed", *EVALUATE[2:]), "'promed' is a method: type `workup train promed`"),
        (
            ("evaluate", "mediq", *EVALUATE[2:]),
            "'mediq' is a strategy: type workup evaluate POLICY strategy=mediq",
        ),
        (
            ("evaluate", "greedy", *EVALUATE[2:]),
            "no policy 'greedy'. Did you mean 'greedy information'?",
        ),
        (
            ("evaluate", "greedy informatoin", *EVALUATE[2:]),
            "no policy 'greedy informatoin'. Did you mean 'greedy information'?",
        ),
        (
            ("evaluate", "told information", *EVALUATE[2:]),
            "'told information' does not play here; here play random doctor, greedy information",
        ),
        (
            ("train", "craft", "clinic:xs"),
            "'clinic:xs' is no setting. Did you mean --cases clinic:xs?",
        ),
        (
            ("prepare", "facts", "--cases", "clinic:xs", "--out", "x.jsonl"),
            (
                "clinic:xs has 1,100,000 cases: say how many to prepare, as in --limit 100 "
                "(--limit 1100000"
            ),
        ),
        ((*EVALUATE, "conclude=bays"), "no policy 'bays'. Did you mean 'bayes'?"),
        ((*EVALUATE, "strategy=mediqq"), "no strategy 'mediqq'. Did you mean 'mediq'?"),
        ((*EVALUATE, "environment=library", "environment.index=./none"), "no library './none'"),
        (
            ("train", "cmig", "--cases", "clinic:xs", "environment.index=./none", "--out", "run"),
            "no library './none'",
        ),
        (
            ("prepare", "facts", "--cases", "clinic:xs", "--out", "x.jsonl", "--budget", "-1"),
            "Invalid value for '--budget'",
        ),
    ],
)
def test_names_and_values(
    words: tuple[str, ...], said: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKUP_TEST_KEY", "a-key")
    with serving(lambda body: "yes") as server:
        configure(tmp_path, server)
        assert refused(call, tmp_path, *words).startswith(said)
    assert server.asked == []


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_a_taken_folder_is_told_before_the_hub_is_asked(
    command: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").touch()
    with hanging_up() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        words = ("craft", "--policy", "some/model") if command == "train" else ("some/model",)
        for out, said in (
            ("mine", "not empty"),
            ("file", "is a file"),
            ("file/below", "part of this path is a file"),
        ):
            assert said in refused(
                call, tmp_path, command, *words, "--cases", "clinic:xs", "--out", out
            )
    assert hub.asked == []


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_place_is_told_before_anything_is_trained(call: Call, tmp_path: Path) -> None:
    (tmp_path / "sealed").mkdir(mode=0o555)
    for out in ("sealed", "sealed/run", "sealed/deeper/run"):
        assert "read-only" in refused(call, tmp_path, *TRAIN[:4], "--out", out)


def test_a_cache_that_cannot_be_written_is_told_before_anything_is_trained(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "file" / "cache"))
    status, _, err = call("train", "craft", "--cases", "clinic:xs", "--out", "run")
    assert status == 2
    assert err.startswith(f"error: cannot write {tmp_path / 'file' / 'cache'}")
    assert "set WORKUP_CACHE to a writable folder" in err
    assert not (tmp_path / "run").exists()


def test_a_cache_that_holds_warm_starts_need_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path))
    monkeypatch.setattr("os.access", lambda path, mode: mode == os.R_OK)
    with pytest.raises(UserError, match="Permission denied"):
        warm.refuse_unwritable_cache()
    (tmp_path / "tiny" / "recipe").mkdir(parents=True)
    (tmp_path / "tiny" / "recipe" / warm.WEIGHTS).touch()
    warm.refuse_unwritable_cache()
    with pytest.raises(UserError, match="Permission denied"):
        warm.Store(tmp_path / "run", "another").check()


def test_a_run_that_does_not_exist_is_told_with_the_nearest_one(call: Call, tmp_path: Path) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "config.yaml").touch()
    status, _, err = call("evaluate", "runs/mien")
    assert status == 2
    assert err == "error: runs/mien does not exist. Did you mean 'runs/mine'?\n"


@pytest.mark.long
def test_roles_of_the_users_file_have_a_place_or_are_left_out_and_told(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file names who plays what in all one's runs; a run takes of it what it has a place for."""
    monkeypatch.setenv("WORKUP_TEST_KEY", "a-key")
    with serving(lambda body: '{"same": true}') as server:
        configure(tmp_path, server, "roles: {judge: exact, patient: 'endpoint:paid'}")
        status, out, err = call(*EVALUATE, "evaluation.cases=2", "evaluation.anchors=false")
        assert (status, err) == (0, "")
        assert "no role 'patient' in this consultation" in out
        assert "workup.yaml names it; it is left out" in out
        run = Run.open("run")
        assert run.config["roles"] == {"judge": "exact"}
        status, out, err = call(
            "train",
            "outcome",
            *TRAIN[2:-1],
            "trained",
            *SMALL,
            "steps=1",
            "sft.steps=1",
            "evaluation.cases=1",
            "evaluation.anchors=false",
        )
        assert (status, Run.open("trained").config["roles"]) == (0, {"judge": "exact"}), err
        configure(tmp_path, server, "roles: {jugde: exact}")
        line = refused(call, tmp_path, *EVALUATE[:-1], "other")
    assert line == "no role 'jugde'. Did you mean 'judge'?"
    assert server.asked == []


def test_a_run_in_the_place_of_its_cases_is_told_what_to_type(call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.yaml").write_text("method: craft\ncases: clinic:s\n...\n")
    line = refused(call, tmp_path, "play", "mine")
    assert line == "mine is a run: type workup play clinic:s --against mine"


def test_a_policy_that_is_its_own_judge_is_told_and_stands_in_report_and_summary(
    call: Call, tmp_path: Path
) -> None:
    """Two names of one model are one model; another model at the same address is another."""
    said = '{"reason": "by name", "grade": "same"}'
    answer = "<diagnose>Influenza</diagnose>"
    with serving(lambda body: said if "response_format" in body else answer) as server:
        ends = [
            f"{name}: {{base_url: '{server.url}', model: {model}}}"
            for name, model in (("a", "m"), ("b", "m"), ("c", "n"))
        ]
        (tmp_path / "workup.yaml").write_text(f"endpoints: {{{', '.join(ends)}}}\n")
        for judge, own in (
            ("endpoint:b", True),
            ("endpoint:c", False),
            ("endpoint:c,endpoint:b", True),
        ):
            out = f"run-{judge[-1]}-{len(judge)}"
            words = (
                "--cases",
                "clinic:xs",
                "evaluation.cases=2",
                "evaluation.anchors=false",
                f"roles.judge={judge}",
            )
            status, told, err = call("evaluate", "endpoint:a", *words, "--out", out)
            assert status == 0, err
            warned = "The judge endpoint:b is the policy endpoint:a itself"
            assert (warned in told) is own
            assert (warned in (tmp_path / out / "report.html").read_text()) is own
            notes = json.loads((tmp_path / out / "summary.json").read_text()).get("notes", [])
            assert [note.startswith(warned) for note in notes] == [True] * own


def test_the_same_weights_by_two_names_are_one_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / "policy").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").touch()
    (tmp_path / "other").mkdir()

    def warned(policy: str, judge: str) -> bool:
        return bool(own_judges([resolve(policy)], SupportSettings(roles={"judge": judge})))

    assert warned("run", "./run/policy")
    assert warned(str(tmp_path / "run"), "run")
    assert warned("org/model", "org/model")
    assert not warned("run", "other")
    assert not warned("run", "exact")
    assert not warned("org/model", "org/other")
