"""One step ahead: who plays which step, what is learned from it, and a run that is interrupted."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import engine_world as world
import pytest
import torch
from command_line import SMALL, forked
from disturbing import disturbed
from test_resume import Ended, check, one_line

from workup.core.episode import Sample
from workup.core.ports import Policy, Sampling
from workup.engines.settings import EngineSettings
from workup.engines.trl.engine import TrlEngine
from workup.engines.trl.gap import Tolerance
from workup.models.local import LocalPolicy
from workup.runs import Run

pytestmark = pytest.mark.long

STEPS = 4
TRAIN = ("train", "craft", "--cases", "clinic:xs", *SMALL, "steps=8", "ahead=1")
SETTINGS = EngineSettings(lr=0.02, ahead=1, save_every=1, save_total_limit=STEPS)


def weights_of(model: Any) -> torch.Tensor:
    return torch.cat([weight.detach().flatten().clone() for weight in model.parameters()])


class Recorded:
    """A collection that samples with the policy, and keeps whose weights it saw and what came."""

    def __init__(self) -> None:
        self.weights: list[torch.Tensor] = []
        self.samples: list[list[Sample]] = []

    async def collect(self, policy: Any, step: int) -> Sequence[Sample]:
        self.weights.append(weights_of(policy.model))
        made = [await self._one(policy, step, k) for k in range(4)]
        assert torch.equal(weights_of(policy.model), self.weights[-1])  # nobody trains them
        self.samples.append(made)
        return made

    async def _one(self, policy: Policy, step: int, k: int) -> Sample:
        prompt = (1, 3 + k, 9)
        said = await policy.sample(prompt, Sampling(max_tokens=6, key=100 * step + k))
        own, given = len(said.tokens), len(prompt)
        return Sample(
            (*prompt, *said.tokens),
            (False,) * given + (True,) * own,
            (0.0,) * given + said.logprobs,
            (0.0,) * given + ((-1.0) ** k,) * own,
            (0,) * (given + own),
        )


def trained(folder: Path, collect: Any, settings: EngineSettings, **more: Any) -> TrlEngine:
    policy = LocalPolicy(world.model(), world.tokenizer())
    engine = TrlEngine(policy, settings, folder, **more)
    engine.grpo(collect, STEPS)
    return engine


def test_a_step_is_played_with_the_weights_before_the_training_of_the_one_before(
    tmp_path: Path,
) -> None:
    seen, after = Recorded(), []

    def on_step(step: int, metrics: Any) -> None:
        after.append((weights_of(engine.model), metrics["staleness"], metrics["gap_mean"]))

    policy = LocalPolicy(world.model(), world.tokenizer())
    begun = weights_of(policy.model)
    engine = TrlEngine(policy, SETTINGS, tmp_path, on_step=on_step)
    engine.grpo(seen.collect, STEPS)
    expected = [begun, begun, *(weights for weights, *_ in after[: STEPS - 2])]
    assert len(seen.weights) == STEPS
    assert all(torch.equal(*pair) for pair in zip(seen.weights, expected, strict=True))
    assert not torch.equal(after[0][0], begun)
    assert [stale for _, stale, _ in after] == [0, 1, 1, 1]
    assert after[0][2] < 1e-5 < after[1][2]  # the log-probabilities are those of older weights


def test_a_step_is_trained_on_while_the_next_one_is_played(tmp_path: Path) -> None:
    """Step 1 is played until step 0 has been trained on; without ahead=1 nobody would train."""
    seen, learned = Recorded(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def collect(policy: Any, step: int) -> Sequence[Sample]:
        if step == 1:
            loops.append(asyncio.get_running_loop())
            await learned.wait()
        return await seen.collect(policy, step)

    def on_step(step: int, metrics: Any) -> None:
        if step == 1:
            while not loops:
                pass
            loops[0].call_soon_threadsafe(learned.set)

    settings = SETTINGS.model_copy(update={"save_every": STEPS})  # a checkpoint waits for the play
    trained(tmp_path, collect, settings, on_step=on_step)
    assert len(seen.samples) == STEPS


def test_the_same_samples_teach_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ahead=0 the same episodes, of the same weights, end in the same weights."""
    seen = Recorded()
    ahead = trained(tmp_path / "ahead", seen.collect, SETTINGS)

    async def again(policy: Policy, step: int) -> Sequence[Sample]:
        return seen.samples[step]

    monkeypatch.setattr(Tolerance, "check", lambda *_: None)  # they are another policy's
    plain = trained(tmp_path / "plain", again, SETTINGS.model_copy(update={"ahead": 0}))
    assert torch.equal(weights_of(ahead.model), weights_of(plain.model))


def test_what_playing_ahead_raises_ends_the_training(tmp_path: Path) -> None:
    class FailedError(Exception):
        pass

    async def collect(policy: Any, step: int) -> Sequence[Sample]:
        if step == 2:
            raise FailedError
        return await Recorded().collect(policy, step)

    with pytest.raises(FailedError):
        trained(tmp_path, collect, SETTINGS)
    # A checkpoint after two updates would need step 2, played with the weights after one.
    assert [path.name for path in (tmp_path / "1-grpo").glob("checkpoint-*")] == ["checkpoint-1"]


def test_a_training_that_fails_cancels_what_is_played(tmp_path: Path) -> None:
    cancelled: list[int] = []

    async def collect(policy: Any, step: int) -> Sequence[Sample]:
        if step == 0:
            return await Recorded().collect(policy, step)
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.append(step)
        raise AssertionError

    def on_step(step: int, metrics: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trained(tmp_path, collect, SETTINGS, on_step=on_step)
    assert cancelled == [1]


# --- whole runs ---


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A run that nobody disturbed."""
    home = tmp_path_factory.mktemp("undisturbed")
    done = forked(*TRAIN, "--out", "run", cwd=home)
    assert done.returncode == 0, done.stderr
    return Ended.of(home / "run")


def test_its_steps_are_told(undisturbed: Ended) -> None:
    steps = [line for line in undisturbed.metrics if line["stage"] == "grpo"]
    assert [line["staleness"] for line in steps] == [0] + [1] * 7
    assert [line["episodes"] for line in steps] == [16] * 8
    assert steps[0]["clip_ratio"] == 0 < max(line["clip_ratio"] for line in steps)


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGKILL, ("after", "grpo", 7)),  # a checkpoint at 6, whose step 7 is written
        (signal.SIGKILL, ("there", "checkpoints/2-grpo/saving")),
        (signal.SIGINT, ("after", "grpo", 4)),  # no checkpoint is due there
    ],
)
def test_interrupted_and_resumed(
    number: int, moment: Any, tmp_path: Path, undisturbed: Ended
) -> None:
    status = disturbed((*TRAIN, "--out", "run"), tmp_path, moment, number)
    assert status == (130 if number == signal.SIGINT else -number)
    done = forked("resume", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    check(tmp_path / "run", undisturbed)


def test_episodes_that_were_played_ahead_and_are_lost(tmp_path: Path) -> None:
    status = disturbed((*TRAIN, "--out", "run"), tmp_path, ("after", "grpo", 7), signal.SIGKILL)
    assert status == -signal.SIGKILL
    with Run.open(tmp_path / "run") as run:
        run.truncate_after("grpo", 6)
    assert "the episodes of step 7 of grpo" in one_line(forked("resume", "run", cwd=tmp_path))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("promed", "ahead=1"), "the reward of 'grpo' asks the policy"),
        (
            ("promed", "reward.model_aware=false", "reward.understanding=written", "ahead=1"),
            "reward.understanding=identity",
        ),
        (("craft", "ahead=2"), "'ahead': input should be 0 or 1"),
    ],
)
def test_refused(words: Sequence[str], why: str, tmp_path: Path) -> None:
    done = forked("train", *words, "--out", "run", cwd=tmp_path)
    assert why in one_line(done)
    assert not list(tmp_path.iterdir())
