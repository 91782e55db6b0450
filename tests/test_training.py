"""The main job end to end on the smallest clinic.

Tested are methods, variants, adapters, processes, and warm starts kept for later.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import CLOCKED, SCRIPT, SMALL, environment, steps_of, without
from rich.console import Console
from safetensors.torch import load_file, save_file
from waiting import HANG

from workup.cases import jsonl, open_source
from workup.cli import api
from workup.core.errors import UserError
from workup.methods import load
from workup.models.weights import load as load_model
from workup.report.compare import compare
from workup.runs import Record, Run, settings

TINY: dict[str, Any] = {
    "cases": "clinic:xs",
    "tiny": {"width": 32},
    "sft": {"steps": 30, "lr": 0.01},
    "steps": 4,
    "batch": 4,
    "group": 4,
    "max_tokens": 8,
    "evaluation": {"cases": 10, "anchors": False},
    "quiet": True,
}


pytestmark = pytest.mark.usefixtures("shared_cache")


@pytest.fixture(scope="module")
def craft(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return api.train("craft", out=tmp_path_factory.mktemp("craft") / "run", **TINY)


def weights(run: Run) -> dict[str, torch.Tensor]:
    return dict(load_file(run.policy / "model.safetensors"))


def same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(
        torch.equal(value, theirs[name]) for name, value in ours.items()
    )


def figures(run: Run, stage: str = "grpo") -> list[dict[str, Any]]:
    return [without(line, *CLOCKED) for line in run.metrics() if line["stage"] == stage]


def test_craft_leaves_a_whole_run(craft: Run) -> None:
    assert [line["step"] for line in figures(craft)] == [1, 2, 3, 4]
    assert list(craft.summary["doctors"]) == ["untrained", "warm start", "trained"]
    assert len(craft.episodes(phase="train")) == 4 * 16
    assert len(craft.episodes(phase="eval")) == 3 * 10
    assert not same(
        weights(craft), dict(load_file(craft.checkpoints / "warm-start" / "model.safetensors"))
    )
    for line in figures(craft):
        trained = list(craft.episodes(phase="train", step=line["step"]))
        assert line["reward"] == pytest.approx(sum(r.score.total for r in trained if r.score) / 16)
        assert sum(line["parts"].values()) == pytest.approx(line["reward"])
        assert line["accuracy"] == sum(bool(r.correct) for r in trained) / 16


def test_the_warm_start_teaches_the_grammar(craft: Run) -> None:
    """After thirty steps the tiny policy mostly speaks in actions.

    An untrained one never does.
    """
    endings = craft.summary["doctors"]["warm start"]["endings"]
    assert endings.get("out of tokens", 0) < 5


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "stages", "more"),
    [
        ("promed", ["tree search", "sft", "grpo"], {"max_tokens": 16, "reward": {"cases": 12}}),
        ("cmig", ["grpo"], {"max_tokens": 48}),
        ("igpo", ["grpo"], {"max_tokens": 48}),
    ],
)
def test_methods_that_ask_a_scorer_leave_whole_runs_that_tell_its_time(
    method: str, stages: list[str], more: dict[str, Any], tmp_path: Path
) -> None:
    run = api.train(method, out=tmp_path / "run", **{**TINY, **more})
    assert list(dict.fromkeys(line["stage"] for line in run.metrics())) == ["warm start", *stages]
    asked = [
        line for line in run.metrics() if line["stage"] == "grpo" and line.get("scoring_seconds")
    ]
    assert asked
    for line in asked:
        assert line["update_seconds"] > 0
        assert line["scoring_seconds"] + line["update_seconds"] < line["seconds"]
    assert "Scoring for the reward" in run.report.read_text()
    assert "trained" in run.summary["doctors"]
    for line in figures(run):
        assert sum(line["parts"].values()) == pytest.approx(line["reward"])
    if method == "cmig":
        doc_hit_has_one_meaning(run)


def doc_hit_has_one_meaning(run: Run) -> None:
    """In training and evaluation alike it is the share of all episodes.

    Those that searched nothing are included.
    """
    for line in figures(run):
        played = list(run.episodes(phase="train", step=line["step"]))
        assert line["doc_hit"] == pytest.approx(sum(map(hit, played)) / len(played))
    for doctor, entry in run.summary["doctors"].items():
        played = list(run.episodes(phase="eval", doctor=doctor))
        assert entry["doc_hit"]["n"] == len(played) == 10
        assert entry["doc_hit"]["mean"] == pytest.approx(sum(map(hit, played)) / len(played))


def hit(record: Record) -> bool:
    shown = [
        message.content for turn in record.episode.turns for message in turn.observation.messages
    ]
    name = record.episode.case.truth.diagnosis.lower()
    return any(name in text.lower() for text in shown if text.startswith("<evidence>"))


@pytest.mark.long
def test_outcome_shares_the_warm_start_and_ends_elsewhere(craft: Run, tmp_path: Path) -> None:
    run = api.train("outcome", out=tmp_path / "run", **TINY)
    ours, theirs = (run_.checkpoints / "warm-start" / "model.safetensors" for run_ in (run, craft))
    assert ours.read_bytes() == theirs.read_bytes()
    assert figures(run, "warm start") == [], "taken from the cache"
    assert (
        run.summary["doctors"]["warm start"]["accuracy"]
        == craft.summary["doctors"]["warm start"]["accuracy"]
    )
    assert not same(weights(run), weights(craft))


@pytest.mark.long
def test_an_identical_run_skips_imitation_and_ends_the_same(craft: Run, tmp_path: Path) -> None:
    run = api.train("craft", out=tmp_path / "run", **TINY)
    assert figures(run, "warm start") == []
    assert figures(run) == figures(craft)
    assert same(weights(run), weights(craft))
    assert without(run.summary, "seconds") == without(craft.summary, "seconds")


WARM: dict[str, Any] = {
    **TINY,
    "sft": {"steps": 4, "batch": 4},
    "steps": 0,
    "evaluation": {"cases": 1, "anchors": False},
}


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of nothing but a short warm start, which the cache keeps."""
    return api.train("craft", out=tmp_path_factory.mktemp("warmed") / "run", **WARM)


@pytest.mark.long
@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"split": 1},
        {"sft": {"steps": 4, "batch": 4, "lr": 0.01}},
        {"tiny": {"width": 16}},
        {"lora": {"r": 4}},
        {"lora": {"r": 2}},
        {"max_grad_norm": 0.01},
        {"bf16": True},
        {"reward": {"focus": 0.45}},
    ],
    ids=str,
)
def test_another_recipe_is_made_anew(change: dict[str, Any], warmed: Run, tmp_path: Path) -> None:
    run = api.train("craft", out=tmp_path / "run", **{**WARM, **change})
    assert len(figures(run, "warm start")) == 4
    ours, theirs = (each.checkpoints / "warm-start/model.safetensors" for each in (run, warmed))
    assert not same(dict(load_file(ours)), dict(load_file(theirs)))
    again = api.train("craft", out=tmp_path / "again", **{**WARM, **change})
    assert figures(again, "warm start") == [], "the same once more is taken from the cache"
    assert same(weights(again), weights(run))


@pytest.mark.long
def test_a_corrected_case_file_is_made_anew(tmp_path: Path) -> None:
    """Even where no demonstration shows the case."""
    clinic, path = open_source("clinic:xs"), tmp_path / "mine.jsonl"
    about: dict[str, Any] = {"items": clinic.items, "diagnoses": clinic.diagnoses}
    cases = [clinic.train[place] for place in range(40)]
    made = {**WARM, "cases": f"jsonl:{path}"}
    for number, expected in enumerate((4, 0, 4)):
        if number == 2:
            tested = open_source(f"jsonl:{path}").test[0].id
            cases = [
                replace(case, presentation=f"{case.presentation}.") if case.id == tested else case
                for case in cases
            ]
        jsonl.write(cases, path, **about)
        run = api.train("craft", out=tmp_path / f"{number}", **made)
        assert len(figures(run, "warm start")) == expected


def test_what_does_not_shape_the_weights_shares_the_warm_start(warmed: Run, tmp_path: Path) -> None:
    change = {"reward": {"alpha": 3.0}, "lr": 1e-5, "batch": 2, "max_tokens": 9}
    run = api.train("craft", out=tmp_path / "run", **{**WARM, **change})
    assert figures(run, "warm start") == []
    assert same(weights(run), weights(warmed))


@pytest.mark.long
@pytest.mark.parametrize("damage", ["cut", "other shapes", "other names"])
def test_a_kept_warm_start_that_does_not_fit_is_made_anew(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))
    told = {**WARM, "quiet": False}
    first = api.train("craft", out=tmp_path / "first", **told)
    (kept,) = (tmp_path / "cache" / "tiny").glob("*/model.safetensors")
    if damage == "cut":
        kept.write_bytes(kept.read_bytes()[:1000])
    else:
        states = {
            name if damage == "other shapes" else f"adapted.{name}": tensor[:1].clone()
            for name, tensor in load_file(kept).items()
        }
        save_file(states, kept)
    capsys.readouterr()
    second = api.train("craft", out=tmp_path / "second", **told)
    said = "warm start: made anew, since the kept one does not fit"
    assert f"{said} ({kept.parent}" in capsys.readouterr().out
    assert len(figures(second, "warm start")) == 4
    assert same(weights(second), weights(first))
    third = api.train("craft", out=tmp_path / "third", **told)
    assert figures(third, "warm start") == [], "the cache is mended"
    assert same(weights(third), weights(first))


def test_the_base_model_is_a_row_of_its_own(craft: Run, tmp_path: Path) -> None:
    """Random weights know no grammar, so no diagnosis is right.

    The warm start that follows is another policy.
    """
    base, warm = (craft.summary["doctors"][doctor] for doctor in ("untrained", "warm start"))
    assert base["episodes"] == warm["episodes"] == 10
    assert (base["accuracy"]["mean"], base["endings"]) == (0.0, {"out of tokens": 10})
    assert "diagnosed" in warm["endings"]
    small = {**TINY, "steps": 0, "evaluation": {"cases": 2, "anchors": False, "untrained": False}}
    without_it = api.train("craft", out=tmp_path / "run", **small)
    assert list(without_it.summary["doctors"]) == ["warm start", "trained"]


@pytest.mark.long
def test_runs_are_compared_with_what_they_began_with(craft: Run, tmp_path: Path) -> None:
    """One row where all began with the same, a row for each run where they did not."""
    small = {**TINY, "evaluation": {"cases": 10, "anchors": False}, "steps": 1}
    changes: dict[str, dict[str, Any]] = {"twin": {}, "other": {"seed": 1}}
    twin, other = (
        api.train("craft", out=tmp_path / name, **small, **change)
        for name, change in changes.items()
    )
    assert rows_of([craft, twin]) == ["untrained", "warm start", craft.name, "twin"]
    began = [
        f"{run.name}: {doctor}" for doctor in ("untrained", "warm start") for run in (craft, other)
    ]
    assert rows_of([craft, other]) == [*began, craft.name, "other"]


def rows_of(runs: list[Run]) -> list[str]:
    """The first column of the comparison's first table."""
    console = Console(record=True, width=140)
    compare(runs, None, console)
    table = console.export_text().partition(" each")[0].rpartition("─")[2]
    return [
        cells[0].strip()
        for line in table.splitlines()
        if len(cells := re.split(r"\s{2,}", line.strip())) > 2
    ]


@pytest.mark.long
def test_variants_and_normalisations_are_chosen_by_key(tmp_path: Path) -> None:
    options = load("craft").settings.model_fields
    variants = options["variant"].annotation.__args__  # type: ignore[union-attr]
    normalisations = options["normalise"].annotation.__args__  # type: ignore[union-attr]
    rewards: dict[str, float] = {}
    ended = []
    # Enough episodes that some find evidence of different weight and are right.
    small = {
        **TINY,
        "steps": 1,
        "batch": 32,
        "group": 8,
        "evaluation": {"cases": 1, "anchors": False},
    }
    for variant, normalise in [*product(variants, normalisations[:1]), ("crit", normalisations[1])]:
        run = api.train(
            "craft",
            out=tmp_path / f"{variant}-{normalise}",
            reward={"variant": variant, "normalise": normalise},
            **small,
        )
        (line,) = figures(run)
        rewards.setdefault(variant, line["reward"])
        assert rewards[variant] == line["reward"], "normalising changes the update, not the reward"
        ended.append(weights(run))
    assert len(set(rewards.values())) == len(variants)
    assert not any(same(a, b) for k, a in enumerate(ended) for b in ended[:k])


@pytest.mark.long
def test_adapters_on_the_policy_of_another_run(craft: Run, tmp_path: Path) -> None:
    words = {
        **TINY,
        "tiny": {},
        "policy": str(craft.path),
        "lora": {"r": 4},
        "steps": 2,
        "save_every": 1,
        "beta": 0.05,
    }
    run = api.train("craft", out=tmp_path / "run", warm_start=False, **words)
    assert list(run.summary["doctors"]) == ["untrained", "trained"]
    assert run.summary["steps"] == 2
    assert figures(run, "warm start") == []
    before, after = weights(craft), dict(load_model(run.policy)[0].state_dict())
    assert not (run.policy / "model.safetensors").exists()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert "model.embed_tokens.weight" not in changed
    # What it starts from is what the other run ended with, on the same cases with the same draws.
    assert (
        run.summary["doctors"]["untrained"]["accuracy"]
        == craft.summary["doctors"]["trained"]["accuracy"]
    )
    assert (
        run.summary["doctors"]["untrained"]["endings"]
        == craft.summary["doctors"]["trained"]["endings"]
    )
    again = api.evaluate(
        run.path,
        cases="clinic:xs",
        out=tmp_path / "again",
        max_tokens=8,
        quiet=True,
        **{"evaluation": TINY["evaluation"]},
    )
    assert (
        again.summary["doctors"]["run"]["endings"] == run.summary["doctors"]["trained"]["endings"]
    )


@pytest.mark.long
def test_a_loaded_policy_gets_no_warm_start_unless_told(craft: Run, tmp_path: Path) -> None:
    small = {
        **TINY,
        "policy": str(craft.path),
        "steps": 0,
        "sft": {"steps": 2},
        "evaluation": {"cases": 2, "anchors": False},
    }
    cold = api.train("craft", out=tmp_path / "a", **small)
    assert list(cold.summary["doctors"]) == ["untrained", "trained"]
    assert "sft.… changes nothing" in cold.config["notes"][0]
    told = api.train("craft", out=tmp_path / "b", warm_start=True, **small)
    assert len(figures(told, "warm start")) == 2
    assert "notes" not in told.config


@pytest.mark.long
def test_several_updates_per_batch_and_a_tracker(craft: Run, tmp_path: Path) -> None:
    small = {**TINY, "num_iterations": 2, "steps": 2, "evaluation": {"cases": 2, "anchors": False}}
    run = api.train("craft", out=tmp_path / "run", report_to=["tensorboard"], **small)
    assert [line["step"] for line in figures(run)] == [1, 2]
    assert list(run.path.rglob("events.out.tfevents.*"))


def test_a_policy_that_trained_nothing_yet_is_no_policy(craft: Run, tmp_path: Path) -> None:
    half = Run.create(tmp_path / "half", dict(craft.config), {})
    with pytest.raises(UserError, match="workup resume"):
        api.train("craft", out=tmp_path / "run", **{**TINY, "policy": str(half.path)})
    assert not (tmp_path / "run").exists()


def test_settings_of_a_run_make_the_same_settings_again(craft: Run) -> None:
    read = settings.build(settings.Settings, craft.settings)
    assert read.model_dump(mode="json") == craft.settings


# `accelerate launch --cpu --num_processes 2` would start one process only; without a GPU
# --multi_gpu makes two on the CPU.
LAUNCHERS = {
    "accelerate": [
        "accelerate.commands.launch",
        "--multi_gpu",
        "--num_processes",
        "2",
        "--num_machines",
        "1",
        "--mixed_precision",
        "no",
        "--dynamo_backend",
        "no",
        "--main_process_port",
        "0",
    ],
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
}


def test_sharded_weights_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`accelerate launch` tells its processes by this variable, and on CPU shards nothing."""
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(UserError, match="80 GB train 3 B parameters, or 12 B with lora") as caught:
        api.train("craft", out=tmp_path / "run", **TINY)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="two processes would want two GPUs")
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_processes_make_one_whole_run(launcher: str, tmp_path: Path) -> None:
    """Every group is played once, by one of them, and only the main process writes."""
    launch = [sys.executable, "-m", *LAUNCHERS[launcher]]
    words = [
        "train",
        "craft",
        "--cases",
        "clinic:xs",
        *SMALL,
        "steps=3",
        "evaluation.anchors=false",
        "--out",
        "run",
    ]
    env = {**environment(tmp_path / "cache"), "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        [*launch, str(SCRIPT), *words],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("report  run/report.html") == 1
    run = Run.open(tmp_path / "run")
    assert [line["step"] for line in steps_of(run.path, "warm start")] == list(range(1, 31))
    trained = list(run.episodes(phase="train"))
    assert len({record.key for record in trained}) == len(trained) == 3 * 16
    groups = {(record.step, record.episode.case.id) for record in trained}
    assert len(groups) == 3 * 4
    ranks = {
        place: {r.sample % 2 for r in trained if (r.step, r.episode.case.id) == place}
        for place in groups
    }
    assert sorted(map(tuple, ranks.values())) == [(0,)] * 6 + [(1,)] * 6, (
        "half of the groups each, and none is split"
    )
    assert [
        len(run.episodes(phase="eval", doctor=doctor)) for doctor in run.summary["doctors"]
    ] == [10, 10, 10]
    assert (run.path / "policy" / "model.safetensors").exists()
    assert [line["episodes"] for line in steps_of(run.path, "grpo")] == [16] * 3
