"""Killed at any moment and resumed, a run ends bit for bit as one that nobody disturbed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import CLOCKED, SMALL, forked, steps_of, without, workup
from disturbing import Moment, disturbed
from safetensors.torch import load_file

from workup.core.errors import UserError
from workup.engines.trl.damage import refuse_damaged, refuse_incomplete
from workup.engines.trl.trainer import checkpoints
from workup.runs import Run

pytestmark = pytest.mark.long

TRAIN = ("train", "craft", "--cases", "clinic:xs", *SMALL, "steps=8")


@dataclass(frozen=True)
class Ended:
    """All that must not depend on interruptions."""

    summary: dict[str, Any]
    doctors: list[str]
    metrics: list[dict[str, Any]]
    episodes: list[tuple[Any, ...]]
    weights: dict[str, torch.Tensor]

    @classmethod
    def of(cls, folder: Path) -> Ended:
        run = Run.open(folder)
        episodes = [
            (r.key, r.episode, r.correct, r.score, dict(r.measures), tuple(r.advantages))
            for r in run.episodes()
        ]
        return cls(
            without(run.summary, "name", "seconds"),
            list(run.summary["doctors"]),
            [without(line, *CLOCKED) for line in run.metrics()],
            sorted(episodes, key=lambda row: row[0]),
            load_file(folder / "policy" / "model.safetensors"),
        )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nobody disturbed."""
    home = tmp_path_factory.mktemp("undisturbed")
    done = workup(*TRAIN, "--out", "run", cwd=home)
    assert done.returncode == 0, done.stderr
    return home


@pytest.fixture(scope="module")
def undisturbed(home: Path) -> Ended:
    return Ended.of(home / "run")


def check(folder: Path, expected: Ended) -> None:
    found = Ended.of(folder)
    assert found.summary == expected.summary
    assert found.doctors == expected.doctors
    assert found.metrics == expected.metrics
    assert [row[0] for row in found.episodes] == [row[0] for row in expected.episodes]
    for ours, theirs in zip(found.episodes, expected.episodes, strict=True):
        assert ours == theirs
    assert found.weights.keys() == expected.weights.keys()
    assert all(torch.equal(value, expected.weights[name]) for name, value in found.weights.items())
    assert (folder / "report.html").stat().st_size > 10_000
    assert not list(folder.glob("*.draft"))


def test_the_undisturbed_run_is_worth_comparing(undisturbed: Ended) -> None:
    """The run has everything in it that could go wrong.

    That is failed grammar, diagnoses, questions, unequal rewards and moving weights.
    """
    assert [line["stage"] for line in undisturbed.metrics] == ["warm start"] * 30 + ["grpo"] * 8
    assert len(undisturbed.episodes) == 8 * 16 + 6 * 10
    endings = {row[1].ending.value for row in undisturbed.episodes if row[0][0] == "train"}
    assert len(endings) > 1
    assert any(row[2] for row in undisturbed.episodes if row[0][0] == "train")
    assert len({line["reward"] for line in undisturbed.metrics[30:]}) > 4
    assert all(line["grad_norm"] > 0 for line in undisturbed.metrics)


MOMENTS: dict[str, Callable[[np.random.Generator], Moment]] = {
    "in the warm start": lambda rng: ("after", "warm start", int(rng.integers(1, 29))),
    "while the warm start is saved": lambda rng: ("there", "checkpoints/warm-start/*.safetensors"),
    "in the first evaluation": lambda rng: ("examined", int(rng.integers(1, 10))),
    "in the second evaluation": lambda rng: ("examined", 10 + int(rng.integers(1, 10))),
    "in the middle of GRPO": lambda rng: ("after", "grpo", int(rng.integers(3, 7))),
    "while a checkpoint is written": lambda rng: ("there", "checkpoints/2-grpo/saving"),
    "while the policy is saved": lambda rng: ("there", "policy.draft"),
    "while the report is made": lambda rng: ("there", "summary.json"),
}


@pytest.mark.parametrize(
    ("seed", "moments"),
    [
        (1, ["in the warm start", "while a checkpoint is written", "in the middle of GRPO"]),
        (2, ["while the warm start is saved", "while the policy is saved"]),
        (3, ["in the first evaluation", "in the second evaluation", "while the report is made"]),
    ],
)
def test_killed_and_resumed(
    seed: int, moments: list[str], tmp_path: Path, undisturbed: Ended
) -> None:
    rng = np.random.default_rng(seed)
    words: tuple[object, ...] = (*TRAIN, "--out", "run")
    for moment in moments:
        # Some steps are saved and some are not: the moment itself is random, and so is what lies a
        # little after it.
        status = disturbed(
            words, tmp_path, MOMENTS[moment](rng), signal.SIGKILL, rng.uniform(0, 0.03)
        )
        assert status == -signal.SIGKILL, f"{moment}: {(tmp_path / 'output.txt').read_text()}"
        words = ("resume", "run")
    done = forked("resume", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    check(tmp_path / "run", undisturbed)


@pytest.mark.parametrize("moment", ["in the first evaluation", "in the middle of GRPO"])
def test_control_c_saves_and_says_how_to_go_on(
    moment: str, tmp_path: Path, undisturbed: Ended
) -> None:
    rng = np.random.default_rng(4)
    status = disturbed((*TRAIN, "--out", "run"), tmp_path, MOMENTS[moment](rng), signal.SIGINT)
    output = (tmp_path / "output.txt").read_text()
    assert status == 130, output
    assert "workup resume run" in output
    assert "Traceback" not in output
    if moment == "in the middle of GRPO":  # nothing that was done is done again
        saved = sorted((tmp_path / "run" / "checkpoints" / "2-grpo").glob("checkpoint-*"))
        assert [path.name for path in saved] == [
            f"checkpoint-{len(steps_of(tmp_path / 'run', 'grpo'))}"
        ]
    done = forked("resume", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    check(tmp_path / "run", undisturbed)


def test_control_c_in_the_last_step_is_heeded(tmp_path: Path, undisturbed: Ended) -> None:
    """The step is finished and saved, but the evaluations do not begin."""
    status = disturbed((*TRAIN, "--out", "run"), tmp_path, ("after", "grpo", 7), signal.SIGINT)
    assert status == 130
    assert not (tmp_path / "run" / "summary.json").exists()
    assert json.loads(forked("resume", "run", "--json", cwd=tmp_path).stdout.splitlines()[-1])
    check(tmp_path / "run", undisturbed)


def test_a_finished_run_is_left_alone(home: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (home / "run").glob("*.[jhy]*")}
    assert len(before) == 5
    again = forked("resume", "run", cwd=home)
    assert again.returncode == 0
    assert "finished" in again.stdout
    assert before == {path: path.stat().st_mtime_ns for path in before}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was killed when its checkpoint was whole, in the middle of GRPO."""
    place = tmp_path_factory.mktemp("killed")
    status = disturbed((*TRAIN, "--out", "run"), place, ("after", "grpo", 7), signal.SIGKILL)
    assert status == -signal.SIGKILL
    return place


CHECKPOINT = (
    "optimizer.pt",
    "rng_state.pth",
    "scheduler.pt",
    "trainer_state.json",
    "model.safetensors",
    "config.json",
    "contents.json",
)


def one_line(done: Any) -> str:
    """What a refused command said."""
    assert done.returncode == 2, done.stderr
    assert re.fullmatch(r"error: [^\n]*\n", done.stderr), done.stderr
    return str(done.stderr)


def damage(file: Path, how: str) -> None:
    whole = file.read_bytes()
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(whole[:100] if how == "cut off" else bytes(len(whole)))


@pytest.mark.parametrize("how", ["missing", "cut off", "of the same size"])
@pytest.mark.parametrize("name", CHECKPOINT)
def test_every_file_of_a_checkpoint_is_looked_at(
    name: str, how: str, tmp_path: Path, killed: Path
) -> None:
    checkpoint = tmp_path / "checkpoint-6"
    shutil.copytree(checkpoints(killed / "run" / "checkpoints" / "2-grpo")[-1], checkpoint)
    refuse_incomplete(checkpoint)
    refuse_damaged(checkpoint)
    damage(checkpoint / name, how)
    # What is missing or cut is seen before anything is loaded, the rest after loading has failed.
    before = how != "of the same size" or name == "contents.json"
    with pytest.raises(
        UserError,
        match=rf"/checkpoint-6/{name}: this checkpoint is damaged .* `rm -r {checkpoint}`",
    ):
        (refuse_incomplete if before else refuse_damaged)(checkpoint)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("optimizer.pt", "missing"),
        ("scheduler.pt", "of the same size"),
        ("trainer_state.json", "of the same size"),
        ("model.safetensors", "cut off"),
    ],
)
def test_a_damaged_checkpoint_is_named_in_one_line_and_can_be_left_out(
    name: str, how: str, tmp_path: Path, killed: Path, undisturbed: Ended
) -> None:
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    newest = checkpoints(tmp_path / "run" / "checkpoints" / "2-grpo")[-1]
    damage(newest / name, how)
    before = sorted((tmp_path / "run").rglob("*"))
    said = one_line(forked("resume", "run", cwd=tmp_path))
    assert f"/{newest.name}/{name}: this checkpoint is damaged" in said
    assert sorted((tmp_path / "run").rglob("*")) == before
    if name == "optimizer.pt":  # once is enough for what follows
        shutil.rmtree(newest)
        assert forked("resume", "run", cwd=tmp_path).returncode == 0
        check(tmp_path / "run", undisturbed)


def spoil(file: Path, how: str) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    if how == "missing":
        file.unlink()
    elif how == "empty":
        for each in file.parent.glob(f"{file.name}*"):  # with SQLite's log of what is to be written
            each.write_bytes(b"") if each == file else each.unlink()
    elif how == "cut off":
        file.write_bytes(file.read_bytes()[:50])
    else:
        file.write_bytes(b"".join([*lines[:3], f"{how}\n".encode(), *lines[4:]]))


@pytest.mark.parametrize(
    ("name", "how", "place", "way"),
    [
        ("metrics.jsonl", "{}", "line 4: this line is damaged", "sed -i 4d"),
        ("metrics.jsonl", "missing", "step 6 of grpo", "from a copy"),
        ("metrics.jsonl", "cut off", "step 6 of grpo", "from a copy"),
        ("episodes.sqlite", "missing", "the episodes of step 6 of grpo", "from a copy"),
        ("episodes.sqlite", "empty", "the episodes of step 6 of grpo", "from a copy"),
        ("versions.json", "cut off", "this file is damaged", "rm "),
    ],
)
def test_a_damaged_run_is_told_in_one_line_with_a_way_on(
    name: str, how: str, place: str, way: str, tmp_path: Path, killed: Path
) -> None:
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "run" / name
    spoil(file, how)
    said = one_line(forked("resume", "run", cwd=tmp_path))
    assert name in said
    assert place in said
    assert way in said
    if way.startswith(("sed", "rm")):
        subprocess.run(said.split("`")[1], shell=True, check=True, cwd=tmp_path)
        assert forked("resume", "run", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("how", ["missing", "cut off"])
def test_a_damaged_policy_is_told_in_one_line(
    name: str, how: str, tmp_path: Path, home: Path
) -> None:
    shutil.copytree(home / "run" / "policy", tmp_path / "policy")
    spoil(tmp_path / "policy" / name, how)
    said = one_line(
        forked("evaluate", "policy", "--cases", "clinic:xs", "evaluation.cases=2", cwd=tmp_path)
    )
    assert "'policy' holds no weights that can be loaded" in said or "no config.json" in said


def test_a_folder_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    name = os.fsdecode(b"run-\xff")
    said = one_line(forked(*TRAIN, "--out", name, cwd=tmp_path))
    assert "no UTF-8" in said
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9, 0.999])
def test_half_a_config_is_refused(share: float, tmp_path: Path, killed: Path) -> None:
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "run" / "config.yaml"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * share)])
    refused = forked("resume", "run", cwd=tmp_path)
    assert refused.returncode == 2
    assert re.fullmatch(r"error: run/config.yaml: .*\n", refused.stderr)
