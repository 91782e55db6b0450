"""What of engine=verl needs no verl: rows, settings, checkpoints, refusals."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from command_line import Call
from hypothesis import given
from hypothesis import strategies as st
from waiting import HANG

from workup.core.episode import Sample
from workup.core.errors import UserError, WorkupError
from workup.engines.verl import checkpoints, present
from workup.engines.verl.mapping import DRIVER, MODEL, configuration, learning
from workup.engines.verl.rows import plain, rows
from workup.rl.samples import Branch, TokenTree, pack, visible
from workup.runs.settings import Settings, build

ROOT = Path(__file__).parents[1]
FOLDER = Path("run/checkpoints/1-grpo")
USUAL = {"method": "craft", "policy": "org/model", "engine": "verl"}


# --- rows ---


def transcript(turns: list[tuple[int, int, float]], first: int) -> Sample:
    """A sample with a prompt of `first` + its tokens, then (completion, reply, advantage) turns."""
    tokens, mask, logprobs, advantages, ids = [first, 1], [False] * 2, [0.0] * 2, [0.0] * 2, [0, 0]
    for k, (said, replied, advantage) in enumerate(turns):
        tokens += [7] * said
        mask += [True] * said
        logprobs += [-0.5 * (k + 1)] * said
        advantages += [advantage] * said
        ids += [k] * said
        if k < len(turns) - 1:
            tokens += [9] * replied
            mask += [False] * replied
            logprobs += [0.0] * replied
            advantages += [0.0] * replied
            ids += [k + 1] * replied
    parts = (tokens, mask, logprobs, advantages, ids)
    return Sample(*(tuple(part) for part in parts))  # type: ignore[arg-type]


TURNS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(1, 3), st.floats(-2, 2, width=32)),
    min_size=1,
    max_size=4,
)


def test_a_row_by_hand() -> None:
    sample = Sample(
        (5, 6, 7, 8, 9, 10),
        (False, False, True, False, True, True),
        (0.0, 0.0, -1.0, 0.0, -2.0, -3.0),
        (0.0, 0.0, 0.5, 0.0, -0.5, -0.5),
        (0, 0, 0, 1, 1, 1),
    )
    (row,) = rows([sample], ["a"], step=4)
    assert row.key == "a_0_0"
    found = {name: v.tolist() if torch.is_tensor(v) else v for name, v in row.fields.items()}
    assert found == {
        "uid": "a",
        "prompts": [5, 6],
        "responses": [7, 8, 9, 10],
        "response_mask": [1, 0, 1, 1],
        "loss_mask": [1, 0, 1, 1],
        "input_ids": [5, 6, 7, 8, 9, 10],
        "position_ids": [0, 1, 2, 3, 4, 5],
        "rollout_log_probs": [-1.0, 0.0, -2.0, -3.0],
        "rm_scores": [0.5, 0.0, -0.5, -0.5],
        "num_turns": 2,
    }
    assert row.tag["seq_len"] == 6
    assert row.tag["global_steps"] == 4
    assert row.tag["max_global_steps"] == 3


@given(st.lists(st.tuples(st.integers(0, 3), TURNS), max_size=8))
def test_nothing_of_a_sample_is_lost_in_its_row(drawn: list[tuple[int, Any]]) -> None:
    samples = [transcript(turns, first) for first, turns in drawn]
    made = rows(samples, [f"u{k}" for k in range(8)], step=1)
    assert len({row.key for row in made}) == len(made) == len(samples)
    for row, sample in zip(made, samples, strict=True):
        f, begin = row.fields, len(row.fields["prompts"])
        assert (*f["prompts"].tolist(), *f["responses"].tolist()) == sample.tokens
        assert not any(sample.mask[:begin])
        assert tuple(map(bool, f["response_mask"].tolist())) == sample.mask[begin:]
        assert tuple(f["rm_scores"].tolist()) == sample.advantages[begin:]
        assert tuple(f["rollout_log_probs"].tolist()) == sample.logprobs[begin:]
        assert row.key.startswith(f"{f['uid']}_")


def test_groups_may_be_uneven_and_may_be_missing() -> None:
    turns = [(1, 1, 1.0)]
    samples = [transcript(turns, first) for first in (1, 1, 1, 2, 4, 4)]
    made = rows(samples, ["a", "b", "c", "d"], step=1)
    assert [row.key for row in made] == ["a_0_0", "a_1_0", "a_2_0", "b_0_0", "c_0_0", "c_1_0"]
    with pytest.raises(WorkupError, match="3 groups for 2 prompts"):
        rows(samples, ["a", "b"], step=1)


TREES = st.tuples(st.integers(2, 6), st.data())


@given(TREES)
def test_a_tree_as_plain_sequences_learns_the_same_tokens_in_the_same_contexts(
    drawn: tuple[int, Any],
) -> None:
    length, data = drawn
    labels = st.lists(st.booleans(), min_size=length, max_size=length)
    branches = data.draw(
        st.lists(st.tuples(st.integers(1, length), st.integers(1, 3), st.booleans()), max_size=3)
    )
    tree = TokenTree(
        tuple(range(length)),
        tuple(data.draw(labels)),
        tuple(
            Branch(
                at, tuple(100 * k + i for i in range(1, size + 1)), given=size - 1 if part else 0
            )
            for k, (at, size, part) in enumerate(branches, start=1)
        ),
    )
    packed = pack(tree)
    seen = visible(np.arange(len(packed.tokens)), packed.segments, packed.reach)
    learned = Counter(
        (tuple(packed.tokens[seen[parent]]), int(token))
        for token, parent, own in zip(packed.tokens, packed.parents, packed.labelled, strict=True)
        if own and parent >= 0
    )
    found = Counter(
        (sample.tokens[:place], sample.tokens[place])
        for sample in plain(tree)
        for place, own in enumerate(sample.mask)
        if own
    )
    assert found == learned


# --- settings ---


def keys(**values: Any) -> dict[str, Any]:
    settings = build(Settings, {**USUAL, **values})
    return configuration(settings.model_dump(), settings.policy, FOLDER)


OTHERWISE: dict[str, Any] = {
    "lr": 5e-5,
    "lr_schedule": "cosine",
    "warmup": 10,
    "temperature": 0.7,
    "loss_type": "dapo",
    "epsilon": 0.3,
    "epsilon_high": 0.28,
    "beta": 0.01,
    "num_iterations": 2,
    "importance_cap": 2.5,
    "max_grad_norm": 0.5,
    "micro_batch": 4,
    "bf16": True,
    "gradient_checkpointing": True,
    "lora": {"r": 4},
    "save_every": 7,
    "report_to": ["tensorboard"],
    "seed": 3,
    "sampler_memory": 0.6,
    "sampler_context": 4096,
    "dtype": "bfloat16",
    "concurrency": 64,
    "steps": 9,
    "batch": 32,
    "group": 16,
    "policy": "org/other",
    "method": "promed",  # the name of the trackers' experiment, too
    "verl": {
        "nodes": 2,
        "gpus_per_node": 4,
        "rollout": "sglang",
        "tensor_parallel": 2,
        "strategy": "fsdp",
        "offload": True,
    },
}
# Settings that only count beside another.
TOGETHER: dict[str, tuple[dict[str, Any], Any]] = {
    "entropy": ({"loss_type": "dapo"}, 0.01),
    "max_completion_length": ({"loss_type": "dr_grpo"}, 99),
}
REFUSED: dict[str, Any] = {
    "policy": "tiny",
    "ahead": 1,
    "sampler": "vllm",
    "sampler_address": "http://host:1",
    "lr_schedule": "linear",
    "warmup": 2.5,
    "entropy": 0.01,
    "steps": 0,
    "batch": 3,
    "report_to": ["clearml"],
    "verl.tensor_parallel": {"tensor_parallel": 3},
}


LESSONS = {"sft": 7, "tuning": 1, "dpo": 1}  # stages that sample nothing, and steps of theirs


def test_every_setting_is_mapped_followed_by_the_driver_or_refused() -> None:
    mapped = {*OTHERWISE, *TOGETHER, *LESSONS}
    assert {*mapped, *DRIVER, *REFUSED} >= set(Settings.model_fields)
    assert not {name for name in mapped if name not in Settings.model_fields}
    assert set(Settings.model_fields) >= DRIVER
    assert DRIVER & mapped == {"method"}


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_mapped_setting_changes_verls_configuration(name: str) -> None:
    assert keys(**{name: OTHERWISE[name]}) != keys()


@pytest.mark.parametrize("kind", LESSONS)
@pytest.mark.parametrize("change", [{"lr": 0.5}, {"lr_schedule": "constant"}, {"warmup": 3}])
def test_a_stage_that_samples_nothing_has_rates_of_its_own(kind: str, change: Any) -> None:
    def of(**values: Any) -> dict[str, Any]:
        settings = build(Settings, {**USUAL, "beta": 0.3, "entropy": 0.1, **values})
        return learning(settings.model_dump(), kind, LESSONS[kind], "org/model", FOLDER)

    found = of()
    assert of(**{kind: change}) != found
    assert of(lr=0.1, lr_schedule="cosine", warmup=5, steps=99, group=4, temperature=0.5) == found
    actor = "actor_rollout_ref.actor"
    assert found["trainer.total_training_steps"] == LESSONS[kind]
    assert found[f"{actor}.use_kl_loss"] == (kind == "dpo")  # a frozen copy is DPO's reference
    assert found[f"{actor}.entropy_coeff"] == 0
    assert found["actor_rollout_ref.rollout.temperature"] == 1


@pytest.mark.parametrize("name", OTHERWISE["verl"])
def test_each_of_verls_own_settings_does_too(name: str) -> None:
    assert keys(verl={name: OTHERWISE["verl"][name]}) != keys()


@pytest.mark.parametrize("name", TOGETHER)
def test_a_setting_that_counts_beside_another(name: str) -> None:
    beside, value = TOGETHER[name]
    assert keys(**beside, **{name: value}) != keys(**beside)


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_without_a_counterpart_is_refused_by_its_name(name: str) -> None:
    top = name.partition(".")[0]
    with pytest.raises(UserError, match=f"no counterpart of '{re.escape(name)}="):
        keys(group=5, **{top: REFUSED[name]})


def test_what_a_setting_becomes() -> None:
    found = keys(warmup=0.1, loss_type="dr_grpo", max_completion_length=64, beta=0.04, batch=4)
    actor = "actor_rollout_ref.actor"
    expected = {
        f"{MODEL}.path": "org/model",
        "trainer.default_local_dir": str(FOLDER),
        f"{actor}.optim.lr_warmup_steps": -1,
        f"{actor}.optim.lr_warmup_steps_ratio": 0.1,
        f"{actor}.loss_agg_mode": "seq-mean-token-sum-norm",
        f"{actor}.loss_scale_factor": 64,
        f"{actor}.use_kl_loss": True,
        f"{actor}.kl_loss_coef": 0.04,
        "data.train_batch_size": 4,
        "algorithm.rollout_correction.bypass_mode": True,
        "algorithm.adv_estimator": "workup",
    }
    assert {key: found[key] for key in expected} == expected


# --- the command ---


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A folder that looks like a model's: nothing of it is loaded."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}", encoding="utf-8")
    return str(tmp_path / "model")


def test_a_dry_cluster_needs_neither_gpus_nor_verl(call: Call, model: str) -> None:
    words = ("--cases", "clinic:xs", "--policy", model, "--nodes", 2, "--gpus-per-node", 4)
    status, out, err = call("cluster", "craft", *words, "lr=5e-5", "--dry")
    assert (status, err) == (0, "")
    found = yaml.safe_load(out)
    assert found["trainer"]["nnodes"] == 2
    assert found["trainer"]["n_gpus_per_node"] == 4
    assert found["actor_rollout_ref"]["actor"]["optim"]["lr"] == 5e-5
    assert found["actor_rollout_ref"]["model"]["path"] == model
    assert "workup cluster craft" in out
    assert not list(Path().glob("runs/*"))


def test_a_dry_cluster_shows_every_stage_that_changes_weights(call: Call, model: str) -> None:
    words = ("--cases", "clinic:xs", "--policy", model, "warm_start=true", "sft.lr=0.01", "--dry")
    status, out, err = call("cluster", "medr3", *words, "lr=5e-5", "sft.steps=7", "steps=9")
    assert (status, err) == (0, "")
    first, *others = yaml.safe_load_all(out)
    folders = [Path(d["trainer"]["default_local_dir"]).name for d in (first, *others)]
    assert folders == ["1-sft", "2-grpo", "3-grpo", "4-grpo"]
    assert [d["trainer"]["total_training_steps"] for d in (first, *others)] == [7, 9, 9, 9]
    actors = [d["actor_rollout_ref"]["actor"]["optim"]["lr"] for d in (first, *others)]
    assert actors == [0.01, 5e-5, 5e-5, 5e-5]
    models = [d["actor_rollout_ref"]["model"]["path"] for d in (first, *others)]
    assert models[0] == model
    assert models[1].endswith("1-sft/global_step_7/actor/huggingface")
    assert models[3].endswith("3-grpo/global_step_9/actor/huggingface")
    status, out, _ = call("cluster", "medr3", *words[:4], "--dry")
    assert status == 0
    folders = [Path(d["trainer"]["default_local_dir"]).name for d in yaml.safe_load_all(out)]
    assert folders == ["2-grpo", "3-grpo", "4-grpo"]  # numbered as on one machine


@pytest.mark.parametrize(
    ("method", "words", "said"),
    [
        ("craft", ["lr_schedule=linear"], "no counterpart of 'lr_schedule=linear'"),
        ("craft", ["--policy", "tiny"], "no counterpart of 'policy=tiny'"),
        ("dpo", ["dpo.lr_schedule=linear"], "no counterpart of 'dpo.lr_schedule=linear'"),
        ("craft", ["warm_start=true", "sft.warmup=2.5"], "no counterpart of 'sft.warmup=2.5'"),
        ("crafd", [], "craft"),
    ],
)
def test_what_verl_cannot_do_is_said_before_anything_is_written(
    call: Call, model: str, method: str, words: list[str], said: str
) -> None:
    policy = [] if "--policy" in words else ["--policy", model]
    status, _, err = call("cluster", method, "--cases", "clinic:xs", *policy, *words)
    assert status == 2
    assert said in err
    assert err.count("\n") == 1
    assert not list(Path().glob("runs/*"))


# --- checkpoints ---


def test_only_whole_checkpoints_count_and_the_newest_stay(tmp_path: Path) -> None:
    for step in (2, 10, 4):
        (tmp_path / f"global_step_{step}").mkdir()
        checkpoints.seal(tmp_path / f"global_step_{step}", step)
    for torn in ("global_step_3", "global_step_12", "global_step_x"):
        (tmp_path / torn).mkdir()
    assert [checkpoints.step(path) for path in checkpoints.whole(tmp_path)] == [2, 4, 10]
    checkpoints.prune(tmp_path, keep=2)
    left = {path.name for path in tmp_path.iterdir()}
    # 12 may be in the writing; 3 was torn before 10 was whole.
    assert left == {"global_step_4", "global_step_10", "global_step_12", "global_step_x"}


# Another process has the files; this one is told when the first pause begins, so that no clock
# decides what is seen first.
LATE = """
import pathlib, sys
sys.stdin.readline()
pathlib.Path(sys.argv[1]).write_bytes(b"12345678")
print("written", flush=True)
"""


def test_files_that_a_shared_disk_shows_late_are_waited_for(tmp_path: Path) -> None:
    checkpoint = tmp_path / "global_step_3"
    (checkpoint / "actor").mkdir(parents=True)
    late = checkpoint / "actor" / "model_world_size_2_rank_1.pt"
    for path in (late, checkpoint / "data.pt"):
        path.write_bytes(b"12345678")
    checkpoints.seal(checkpoint, 3)
    checkpoints.wait_for_files(checkpoint, pauses=())

    late.write_bytes(b"1234")  # a part of it is there
    with pytest.raises(UserError, match=r"rank_1\.pt: the checkpoint was whole"):
        checkpoints.wait_for_files(checkpoint, pauses=(0.0, 0.0))
    late.unlink()
    words = [sys.executable, "-c", LATE, str(late)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:

        def pauses() -> Iterator[float]:
            assert other.stdin is not None
            assert other.stdout is not None
            yield 0.0
            other.stdin.write("now\n")
            other.stdin.flush()
            assert other.stdout.readline() == "written\n"
            yield 0.0

        checkpoints.wait_for_files(checkpoint, pauses())
        other.wait(timeout=HANG)


# --- what is missing is said ---


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        ({}, "verl is not installed"),
        ({"verl": "0.8.0"}, "verl 0.8.0 is installed, and engine=verl knows 0.9.x"),
        (
            {"verl": "0.9.1", "transformers": "5.23.0"},
            "transformers 5.23.0 is installed, and verl 0.9.1 takes those below 5.11",
        ),
        ({"verl": "0.9.1", "transformers": "5.10.4"}, ""),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    installed: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(library: str) -> str:
        if library not in installed:
            raise metadata.PackageNotFoundError(library)
        return installed[library]

    monkeypatch.setattr(present.metadata, "version", version)
    if not said:
        present.check_libraries()
        return
    with pytest.raises(UserError, match=re.escape(said)) as error:
        present.check_libraries()
    assert "make .venv-verl/.done" in str(error.value)
    assert "\n" not in str(error.value)


def test_verls_environment_has_the_projects_own_dependencies() -> None:
    listed = {
        line.strip()
        for line in (ROOT / "verl.txt").read_text(encoding="utf-8").splitlines()
        if line.strip() and not line.startswith("#")
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    brought = ("transformers", "trl", "datasets", "huggingface-hub", "workup[")  # by verl, or ours
    own = {
        each
        for part in (project["dependencies"], *map(extras.get, ("train", "parquet", "regression")))
        for each in part
        if not each.startswith(brought)
    }
    assert own <= listed
    assert listed - own == {"verl[verl-core]==0.9.1", "transformers>=5.9,<5.11"}
