"""Whole runs by engine=verl, of one stage and of several, killed and resumed, on the processor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from waiting import HANG

pytest.importorskip("verl", reason="verl has an environment of its own: make test-verl")

import verl_world as world

from workup.runs import Run

SEVERAL = (
    *("warm_start=true", "sft.steps=2", "sft.batch=4", "tuning.batch=1", "dpo.batch=2"),
    *("reward.cases=6", "concurrency=16", "steps=2"),
)


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that asks and answers, and is sometimes right."""
    return world.model_folder(tmp_path_factory.mktemp("taught"), "questioning", 100)


def start(
    folder: Path, out: Path, method: str, *words: str, die: str = "", lose: str = ""
) -> subprocess.Popen[str]:
    here = Path(__file__).parent
    environment = {
        **os.environ,
        "PYTHONPATH": f"{here.parent}{os.pathsep}{here}",
        "WORKUP_CACHE": str(out.parent / "cache"),
        "OMP_NUM_THREADS": "1",
        "DIE_AT": die,
        "LOSE": lose,
    }
    return subprocess.Popen(
        [sys.executable, str(here / "verl_world.py"), str(folder), str(out), method, *words],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> None:
    said, _ = process.communicate(timeout=HANG)
    assert process.returncode == 0, said[-3000:]


def die(process: subprocess.Popen[str]) -> None:
    said, _ = process.communicate(timeout=HANG)
    assert process.returncode == -signal.SIGKILL, said[-3000:]


def played(run: Run, phase: str = "train") -> dict[tuple[str, int, str, int], Any]:
    """Every episode of a phase by its place: its tokens, and its advantages."""
    records = list(run.episodes(phase=phase))
    found = {
        (r.stage or r.doctor, r.step, r.episode.case.id, r.sample): (
            [(t.prompt_tokens, t.completion.tokens) for t in r.episode.turns],
            tuple(r.advantages),
        )
        for r in records
    }
    assert len(found) == len(records)  # none is there twice
    return found


def lines(run: Run) -> tuple[list[Any], list[float]]:
    """The metrics without what a clock says: the episodes' figures, and those of the updates."""
    updates = ("loss", "grad_norm", "margin", "kl", "clip_ratio")
    kept = [{k: v for k, v in line.items() if "second" not in k} for line in run.metrics()]
    figures = [line.pop(name) for line in kept for name in updates if name in line]
    return kept, figures


def same(found: Run, whole: Run) -> None:
    """The episodes are equal; what is summed in float32 is, but for the order of the sums."""
    for phase in ("train", "search", "chosen", "rejected", "eval"):
        assert played(found, phase) == played(whole, phase), phase
    (ours, own), (theirs, others) = lines(found), lines(whole)
    assert ours == theirs
    assert own == pytest.approx(others, rel=1e-4, abs=1e-6)
    made, wanted = (load_file(run.path / "policy" / "model.safetensors") for run in (found, whole))
    assert made.keys() == wanted.keys()
    assert all(torch.allclose(made[name], wanted[name], atol=1e-3) for name in made)


def test_a_killed_run_goes_on_and_nothing_is_lost_or_counted_twice(tmp_path: Path) -> None:
    folder = world.model_folder(tmp_path / "model")
    finish(start(folder, tmp_path / "whole", "verl_world:method"))
    whole = Run.open(tmp_path / "whole")
    steps = world.SMALL["steps"]
    assert Counter(step for _, step, _, _ in played(whole)) == dict.fromkeys(range(1, steps + 1), 4)
    assert [line["step"] for line in whole.metrics()] == list(range(1, steps + 1))
    assert any(line["grad_norm"] > 0 for line in whole.metrics())
    assert whole.summary["doctors"].keys() == {"untrained", "trained"}
    assert (whole.path / "policy" / "config.json").exists()
    assert whole.report.exists()

    killed = start(folder, tmp_path / "killed", "verl_world:method")
    line = tmp_path / "killed" / "metrics.jsonl"
    while not (line.exists() and len(line.read_text().splitlines()) >= 2):
        assert killed.poll() is None, killed.communicate()[0][-3000:]
    os.killpg(killed.pid, signal.SIGKILL)  # the driver, and Ray beneath it
    killed.wait()
    finish(start(folder, tmp_path / "killed", "verl_world:method"))
    same(Run.open(tmp_path / "killed"), whole)


@pytest.mark.parametrize("which", ["controller", "storage"])
def test_a_run_that_loses_its_transferqueue_ends_in_one_line_and_goes_on(
    tmp_path: Path, which: str
) -> None:
    folder = world.model_folder(tmp_path / "model")
    run = start(folder, tmp_path / "run", "verl_world:method", lose=f"1-grpo:2:{which}")
    said, _ = run.communicate(timeout=HANG)
    assert run.returncode == 1, said[-3000:]
    error = "workup.core.errors.WorkupError: TransferQueue has lost a process"
    told = [line for line in said.splitlines() if line.startswith(error)]
    assert len(told) == 1, said[-3000:]
    assert "workup resume" in told[0]
    finish(start(folder, tmp_path / "run", "verl_world:method"))
    steps = [step for _, step, _, _ in played(Run.open(tmp_path / "run"))]
    assert Counter(steps) == dict.fromkeys(range(1, world.SMALL["steps"] + 1), 4)


def test_every_kind_of_stage_in_one_run_killed_twice(taught: Path, tmp_path: Path) -> None:
    finish(start(taught, tmp_path / "whole", "verl_world:several", *SEVERAL))
    whole = Run.open(tmp_path / "whole")
    stages = [line["stage"] for line in whole.metrics()]
    order = ["warm start", "search", "sft", "pairs", "dpo", "grpo", "second"]
    assert list(dict.fromkeys(stages)) == order
    assert played(whole, "chosen")
    assert {name for name, *_ in played(whole)} == {"grpo", "second"}

    for place in ("2-sft:1", "5-grpo:2"):
        die(start(taught, tmp_path / "killed", "verl_world:several", *SEVERAL, die=place))
    finish(start(taught, tmp_path / "killed", "verl_world:several"))
    same(Run.open(tmp_path / "killed"), whole)


def test_medr3_with_adapters_is_one_command_and_goes_on_in_its_second_stage(tmp_path: Path) -> None:
    folder = world.model_folder(tmp_path / "model", "reasoning", 30)
    words = ("steps=2", "max_tokens=24", "lora.r=4", "beta=0.01")
    finish(start(folder, tmp_path / "whole", "medr3", *words))
    whole = Run.open(tmp_path / "whole")
    assert Counter((name, step) for name, step, _, _ in played(whole)) == {
        (f"stage {stage}", step): 4 for stage in (1, 2, 3) for step in (1, 2)
    }
    die(start(folder, tmp_path / "killed", "medr3", *words, die="3-grpo:2"))
    assert [line["stage"][-1] for line in Run.open(tmp_path / "killed").metrics()] == [*"1122"]
    finish(start(folder, tmp_path / "killed", "medr3"))
    same(Run.open(tmp_path / "killed"), whole)


def test_promed_is_one_command_and_asks_the_live_weights(taught: Path, tmp_path: Path) -> None:
    words = ("steps=2", "tuning.batch=2", "reward.cases=4", "reward.width=3", "concurrency=16")
    finish(start(taught, tmp_path / "whole", "promed", *words))
    whole = Run.open(tmp_path / "whole")
    assert {line["stage"] for line in whole.metrics()} == {"tree search", "sft", "grpo"}
    gains = [line["parts"]["β·ΣSIG"] for line in whole.metrics() if line["stage"] == "grpo"]
    assert any(gain != 0 for gain in gains)
    die(start(taught, tmp_path / "killed", "promed", *words, die="3-grpo:2"))
    finish(start(taught, tmp_path / "killed", "promed"))
    same(Run.open(tmp_path / "killed"), whole)
