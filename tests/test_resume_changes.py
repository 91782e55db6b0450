"""`workup resume RUN key=value`: what may change in a run that has begun, and what may not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command_line import SMALL, Call
from hypothesis import given
from hypothesis import strategies as st
from serving import serving
from werkzeug import Response

from workup.core.errors import UserError
from workup.runs import Run
from workup.runs.settings import CHANGEABLE, Settings, merge, read, revised

if TYPE_CHECKING:
    from workup.engines.trl.batches import MicroBatch

VALUES = Settings(method="craft", cases="clinic:xs").model_dump(mode="json")
LEAVES = st.integers() | st.sampled_from(["x", "y z"])
TREES = st.recursive(
    st.dictionaries(st.sampled_from("abc"), LEAVES, max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), LEAVES | inner, max_size=3),
)


def test_a_budget_that_is_spent_is_raised_at_resume_and_recorded(
    call: Call, tmp_path: Path
) -> None:
    with serving(lambda body: json.dumps({"reason": "by name", "grade": "same"})) as server:
        endpoint = f"{{base_url: '{server.url}', model: m, price: {{input: 1000, output: 1000}}}}"
        (tmp_path / "workup.yaml").write_text(f"endpoints: {{judge: {endpoint}}}\n")
        words = (
            "--cases",
            "clinic:xs",
            "evaluation.cases=6",
            "evaluation.anchors=false",
            "--out",
            "run",
        )
        status, _, err = call(
            "evaluate", "random doctor", *words, "roles.judge=endpoint:judge", "budget=0.001"
        )
        assert status == 2, err
        assert "type `workup resume run budget=MORE`" in err
        status, _, err = call(
            "resume", "run", "budget=1000000", "concurrency=3", "endpoints.judge.timeout=99"
        )
        assert status == 0, err
    run = Run.open("run")
    assert run.summary["doctors"]["random doctor"]["episodes"] == 6
    assert (run.config["budget"], run.config["concurrency"]) == (1_000_000, 3)
    assert run.config["endpoints"]["judge"]["timeout"] == 99
    (changed,) = run.config["changed"]
    assert {**changed, "when": ""} == {
        "when": "",
        "budget": 1_000_000,
        "concurrency": 3,
        "endpoints": {"judge": {"timeout": 99}},
    }
    assert "changed" not in run.settings


@pytest.mark.long
def test_a_training_takes_changes_and_refuses_what_its_results_follow_from(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workup.loops.training.loop import Training

    def stopped(self: Training, *_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Training, "_evaluate", stopped)
        status, _, err = call(
            "train",
            "outcome",
            "--cases",
            "clinic:xs",
            *SMALL,
            "--out",
            "run",
            "evaluation.anchors=false",
        )
        assert (status, "workup resume run" in err) == (130, True)
    for words, said in (
        (
            ("steps=9",),
            (
                "'steps' cannot change: what the run has done follows from it. These can: "
                "budget, concurrency"
            ),
        ),
        (("budget=3", "lr=1"), "'lr' cannot change"),
        (("stesp=9",), "no setting 'stesp'. Did you mean 'steps'?"),
        (("threads=0",), "setting 'threads': input should be greater than or equal to 1"),
        (("endpoints.x.timeout=9",), "setting 'endpoints.x.base_url'"),
        (("budget",), "'budget' is no setting"),
    ):
        before = (tmp_path / "run" / "config.yaml").read_text()
        status, _, err = call("resume", "run", *words)
        assert (status, err.startswith(f"error: {said}")) == (2, True), err
        assert (tmp_path / "run" / "config.yaml").read_text() == before
    status, _, err = call("resume", "run", "save_every=4", "budget=7")
    assert status == 0, err
    run = Run.open("run")
    assert (run.config["save_every"], run.config["budget"], len(run.config["changed"])) == (4, 7, 1)
    assert run.summary["steps"] == 36


@pytest.mark.long
def test_an_update_that_is_out_of_memory_goes_on_with_smaller_micro_batches(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps before it are kept, and the run ends as one that never failed, but for rounding."""
    import torch

    from workup.engines.trl.policy import PolicyTrainer

    own = PolicyTrainer.part_loss

    def too_large(self: PolicyTrainer, model: Any, part: MicroBatch) -> torch.Tensor:
        if self.state.global_step == 3 and part.sequences > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore.")
        return own(self, model, part)

    brief = ("steps=4", "sft.steps=9", "evaluation.cases=2", "evaluation.untrained=false")
    words = ("train", "outcome", "--cases", "clinic:xs", *SMALL, *brief, "evaluation.anchors=false")
    assert call(*words, "--out", "whole")[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr(PolicyTrainer, "part_loss", too_large)
        status, _, err = call(*words, "--out", "run")
        (line,) = [each for each in err.splitlines() if "error:" in each]
        assert status == 1
        assert line.startswith("error: out of memory (CUDA out of memory. Tried to allocate 2.00")
        assert "micro_batch" in line
        assert "Traceback" not in err
        status, _, err = call("resume", "run", "micro_batch=4", "gradient_checkpointing=true")
        assert status == 0, err
    whole, mended = (
        [each for each in Run.open(name).metrics() if each["stage"] == "grpo"]
        for name in ("whole", "run")
    )
    assert [each["step"] for each in mended] == [each["step"] for each in whole] == [1, 2, 3, 4]
    for name in ("loss", "reward", "grad_norm"):
        ours, theirs = ([each[name] for each in lines] for lines in (mended, whole))
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5), name


def test_every_other_setting_is_refused() -> None:
    for name in VALUES:
        if name in (*CHANGEABLE, "endpoints"):
            revised(Settings, VALUES, {name: VALUES[name]})
        else:
            with pytest.raises(UserError, match=f"'{name}' cannot change"):
                revised(Settings, VALUES, {name: VALUES[name]})


def test_an_endpoint_with_a_dot_in_its_name_is_reached_in_another_way() -> None:
    end = {"base_url": "http://localhost:1", "model": "m"}
    values = {**VALUES, "endpoints": {"gpt-4.1": end}}
    made = revised(Settings, values, read(["endpoints[gpt-4.1].concurrency=2"]))
    assert made.endpoints["gpt-4.1"].concurrency == 2
    for word, said in (
        ("endpoints[gpt-4.1].model=x", r"'endpoints\.gpt-4\.1\.model' cannot change"),
        ("endpoints.gpt-4.1.concurrency=2", r"typed as in 'endpoints\[gpt-4\.1\]\.concurrency=2'"),
    ):
        with pytest.raises(UserError, match=said):
            revised(Settings, values, read([word]))


@given(TREES, TREES)
def test_merging_keeps_what_is_not_changed(
    values: dict[str, object], changes: dict[str, object]
) -> None:
    """Compared with OmegaConf's merge."""
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(
        OmegaConf.merge(OmegaConf.create(values), OmegaConf.create(changes))
    )
    assert merge(values, changes) == plain


@pytest.mark.parametrize("way_on", [(), ("max_failed=1",)])
def test_a_run_in_which_too_many_failed_says_how_it_goes_on(
    way_on: tuple[str, ...], call: Call, tmp_path: Path
) -> None:
    down = True

    def answered(body: dict[str, Any]) -> Response | str:
        return Response("no", status=400) if down else "<diagnose>Flu</diagnose>"

    with serving(answered) as server:
        endpoint = f"{{base_url: '{server.url}', model: m}}"
        (tmp_path / "workup.yaml").write_text(f"endpoints: {{doc: {endpoint}}}\n")
        words = ("--cases", "clinic:xs", "evaluation.cases=3", "evaluation.anchors=false")
        status, _, err = call("evaluate", "endpoint:doc", *words, "--out", "run")
        assert status == 1
        assert "3 of 3 episodes failed, more than max_failed=0.2; 3 of them: " in err
        assert "type `workup resume run`" in err
        assert "`workup resume run max_failed=MORE`" in err
        down = bool(way_on)
        status, _, err = call("resume", "run", *way_on)
        assert status == 0, err
    failed = Run.open("run").summary["doctors"]["doc"]["endings"].get("failed", 0)
    assert failed == (3 if way_on else 0)
