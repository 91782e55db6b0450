"""What the ports promise: the training loop takes any engine and any sampler that keep them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from counting_engine import ENGINES, Counting
from far_sampler import POLICIES
from safetensors.torch import load_file

import workup
from workup import engines
from workup.core.errors import UserError
from workup.core.ports import Engine, LiveModel, LivePolicy, Processes
from workup.models import samplers
from workup.runs import Run

SMALL: dict[str, Any] = {
    "tiny": {"width": 32},
    "sft": {"steps": 20, "lr": 0.01},
    "steps": 3,
    "batch": 2,
    "group": 4,
    "max_tokens": 8,
    "evaluation": {"cases": 6, "anchors": False, "untrained": False},
}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))


def members(port: type) -> set[str]:
    """What a protocol asks for, with what it inherits."""
    kinds = [kind for kind in port.__mro__ if kind.__module__ == "workup.core.ports"]
    every = {name for kind in kinds for name in (*vars(kind), *kind.__annotations__)}
    named = {name for name in every if not name.startswith("_")}
    assert named
    return named


def test_an_engine_that_counts_trains_through_the_real_loop(tmp_path: Path) -> None:
    run = workup.train(
        "craft", cases="clinic:xs", out=tmp_path / "run", engine="counting_engine:engine", **SMALL
    )
    engine = ENGINES[-1]
    batches = [("sft", step, 32) for step in range(1, 21)]
    assert engine.seen == [*batches, *(("grpo", step, 8) for step in (1, 2, 3))]
    logged = [(line["stage"], line["step"]) for line in run.metrics()]
    assert logged == [("warm start", k) for k in range(1, 21)] + [("grpo", k) for k in (1, 2, 3)]
    assert len(run.episodes(phase="train")) == 3 * 8
    assert run.config["engine"] == "counting_engine:engine"
    before = {name: value.clone() for name, value in engine.model.state_dict().items()}
    after = load_file(tmp_path / "run" / "policy" / "model.safetensors")
    assert all((before[name] == value).all() for name, value in after.items())


def test_a_warm_start_that_goes_on_makes_no_demonstration_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counting, "done", lambda engine, kind: 7 if kind == "sft" else 0)
    monkeypatch.setattr(Run, "truncate_after", lambda *_, **__: None)  # there was no first part
    workup.train(
        "craft", cases="clinic:xs", out=tmp_path / "run", engine="counting_engine:engine", **SMALL
    )
    pieces = [made for kind, _, made in ENGINES[-1].seen if kind == "sft"]
    assert pieces == [0] * 7 + [32] * 13


@pytest.mark.long
def test_a_policy_in_another_process_is_told_of_new_weights(tmp_path: Path) -> None:
    """It draws what the module itself would draw, so both runs end with the same weights."""
    far = workup.train(
        "craft", cases="clinic:xs", out=tmp_path / "far", sampler="far_sampler:sampler", **SMALL
    )
    (policy,) = POLICIES
    # After the warm start, before and after each of three updates: whoever samples has the last.
    assert policy.sent >= 4
    policy.close()
    near = workup.train("craft", cases="clinic:xs", out=tmp_path / "near", **SMALL)
    assert [texts(run) for run in (far,)] == [texts(near)]
    ours, theirs = (load_file(run.policy / "model.safetensors") for run in (near, far))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert (value - theirs[name]).abs().max() < 1e-5


def texts(run: Run) -> list[tuple[str, ...]]:
    return [
        tuple(turn.completion.text for turn in record.episode.turns) for record in run.episodes()
    ]


# engine=verl has tests of its own: it needs other libraries, and begins no tiny policy.
@pytest.mark.parametrize("name", [name for name in engines.names() if name != "verl"])
def test_every_engine_has_what_the_port_asks_for(name: str, tmp_path: Path) -> None:
    from workup.cases import open_source
    from workup.engines.settings import EngineSettings
    from workup.models.tiny import TinySettings, build

    source, how = open_source("clinic:xs"), samplers.How()
    follow = samplers.load("local").follow
    job = engines.EngineJob(
        EngineSettings(),
        tmp_path,
        lambda: build(source, (), TinySettings(width=16, layers=1, heads=2), 0),
        lambda model, tokenizer: follow(model, tokenizer, how),
    )
    engine = engines.load(name).open(job)
    assert not [member for member in members(Engine) if not hasattr(engine, member)]
    assert not [member for member in members(LiveModel) if not hasattr(engine.live, member)]
    policy = engine.live.policy
    assert not [member for member in members(LivePolicy) if not hasattr(policy, member)]
    assert not [member for member in members(Processes) if not hasattr(engine.processes, member)]
    processes = engines.load(name).processes()
    assert not [member for member in members(Processes) if not hasattr(processes, member)]
    assert (processes.rank, processes.world, processes.is_main) == (0, 1, True)
    assert list(processes.all_gather([1.0, 2.0])) == [1.0, 2.0]
    assert processes.send_to_main("x") == ["x"]
    assert processes.from_main("x") == "x"
    # What was written without merging comes back; what does not fit leaves the weights alone.
    engine.live.save(tmp_path / "kept", merged=False)
    assert engine.live.load(tmp_path / "kept") == ""
    assert engine.live.load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"engine": "trk"}, "no engine 'trk'. Did you mean 'trl'"),
        ({"engine": "nowhere.at.all:engine"}, "cannot import 'nowhere.at.all'"),
        ({"engine": "far_sampler:sampler"}, "is no engine: it lacks refuse, processes"),
        ({"sampler": "locl"}, "no sampler 'locl'. Did you mean 'local'"),
        ({"sampler": "counting_engine:engine"}, "is no sampler: it lacks follow"),
        (
            {"sampler": "far_sampler:nothing"},
            "sampler 'far_sampler:nothing': far_sampler has no 'n",
        ),
        ({"sampler": "unready:Sampler"}, "is a class, and its open needs an object: name one"),
    ],
)
def test_a_mistyped_engine_or_sampler_is_one_line(
    setting: dict[str, str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=said) as caught:
        workup.train("craft", cases="clinic:xs", out=tmp_path / "run", **SMALL, **setting)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
