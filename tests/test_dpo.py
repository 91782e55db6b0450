"""Preferences and learning from sampled tokens, interrupted or not.

They are compared with equations and with TRL's own DPO.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import engine_world as world
import pytest
import torch
from datasets import Dataset
from engine_world import Toy, episodes, logprobs
from test_engine import LORA, assert_close, gradients, same, weights
from torch.nn.functional import logsigmoid
from transformers import GPT2Config, GPT2LMHeadModel
from trl import DPOConfig, DPOTrainer

from workup.core.case import Case, Truth
from workup.core.episode import Action, Completion, Ending, Episode, Observation, Sample, Turn
from workup.core.errors import WorkupError
from workup.core.ports import Pair
from workup.engines.settings import EngineSettings, PreferenceSettings, TuningSettings
from workup.engines.trl.batches import padded
from workup.engines.trl.engine import TrlEngine
from workup.engines.trl.trainer import checkpoints
from workup.rl.samples import imitated, spoken

torch.set_num_threads(1)

BETA = 0.3


def pairs(seed: int, steps: int, count: int = 5) -> Iterator[list[Pair]]:
    """Random transcripts, of different length and authorship, in pairs."""
    network = world.model()
    for step in range(steps):
        made = episodes(network, [seed, step], 2 * count)
        yield list(zip(made[:count], made[count:], strict=True))


def dpo(**more: Any) -> PreferenceSettings:
    return PreferenceSettings.model_validate(
        {"beta": BETA, "lr": 0.02, "lr_schedule": "constant"} | more
    )


def total(model: Any, sample: Sample) -> torch.Tensor:
    """log π(τ), over the policy's tokens alone."""
    return (logprobs(model, sample.tokens) * torch.tensor(sample.mask[1:])).sum()


def margin(model: Any, reference: Any, pair: Pair) -> torch.Tensor:
    with torch.no_grad():
        before = total(reference, pair[0]) - total(reference, pair[1])
    return BETA * (total(model, pair[0]) - total(model, pair[1]) - before)


def loss(model: Any, reference: Any, batch: Sequence[Pair]) -> torch.Tensor:
    """DPO's equation, one sequence at a time: no batch, no padding."""
    return torch.stack([-logsigmoid(margin(model, reference, pair)) for pair in batch]).mean()


def trl_loss(model: Any, reference: Any, batch: Sequence[Pair], folder: Path) -> torch.Tensor:
    """The same by TRL's trainer, given our tokens and masks."""
    rows = Dataset.from_list([{"prompt": "w3", "chosen": " w4", "rejected": " w5"}])
    arguments = DPOConfig(output_dir=str(folder), use_cpu=True, beta=BETA, report_to=[], bf16=False)
    trainer = DPOTrainer(
        model=model,
        ref_model=reference,
        args=arguments,
        train_dataset=rows,
        processing_class=world.tokenizer(),
    )
    sides = [pair[k] for k in (0, 1) for pair in batch]
    inputs = {
        "input_ids": torch.from_numpy(padded([side.tokens for side in sides], int)),
        "attention_mask": torch.from_numpy(padded([[1] * len(side.tokens) for side in sides], int)),
        "completion_mask": torch.from_numpy(padded([side.mask for side in sides], int)),
    }
    found: torch.Tensor = trainer.compute_loss(model, inputs)
    return found


@pytest.mark.parametrize("micro_batch", [64, 4, 1])
def test_loss_and_gradient_are_the_equation(tmp_path: Path, micro_batch: int) -> None:
    policy, reference, batches = Toy(world.model()), world.model(), list(pairs(1, 2))
    seen: dict[str, Any] = {}
    metrics: dict[int, dict[str, float]] = {}

    def on_step(step: int, told: dict[str, float]) -> None:
        metrics[step] = told
        if step == 1:  # by now the policy has left its reference
            seen["loss"] = loss(policy.model, reference, batches[1])
            grads = torch.autograd.grad(seen["loss"], list(policy.model.parameters()))
            seen["expected"] = dict(
                zip((n for n, _ in policy.model.named_parameters()), grads, strict=True)
            )
            seen["margins"] = [margin(policy.model, reference, pair).item() for pair in batches[1]]
            seen["found"] = gradients(policy.model)

    settings = EngineSettings(micro_batch=micro_batch, max_grad_norm=0, dpo=dpo())
    TrlEngine(policy, settings, tmp_path, on_step=on_step).dpo(iter(batches), 2)
    assert metrics[1]["loss"] == pytest.approx(0.6931, abs=1e-4), (
        "before the first update nothing is preferred"
    )
    assert metrics[1]["margin"] == metrics[1]["preferred"] == 0
    assert metrics[2]["loss"] == pytest.approx(seen["loss"].item(), abs=1e-5)
    assert metrics[2]["margin"] == pytest.approx(sum(seen["margins"]) / 5, abs=1e-5)
    assert metrics[2]["preferred"] == sum(m > 0 for m in seen["margins"]) / 5
    assert set(metrics[2]) == {"loss", "grad_norm", "lr", "margin", "preferred"}
    assert_close(seen["found"], seen["expected"], 1e-5)


def test_dropout_makes_no_difference_to_the_reference(tmp_path: Path) -> None:
    """GPT-2 has dropout; at a rate of 0 the policy stays its own reference."""
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(world.tokenizer()), n_embd=16, n_layer=1, n_head=2)
    )
    metrics: dict[int, dict[str, float]] = {}
    settings = EngineSettings(dpo=dpo(lr=0.0))
    engine = TrlEngine(Toy(model), settings, tmp_path, on_step=metrics.__setitem__)
    engine.dpo(pairs(3, 2), 2)
    assert all(metrics[k]["margin"] == pytest.approx(0, abs=1e-5) for k in (1, 2))
    assert metrics[2]["loss"] == pytest.approx(0.6931, abs=1e-4)


def test_trl_computes_the_same_loss(tmp_path: Path) -> None:
    policy, reference, (first, second) = Toy(world.model()), world.model(), pairs(2, 2)
    metrics: dict[int, dict[str, float]] = {}
    moved: list[Any] = []

    def on_step(step: int, told: dict[str, float]) -> None:
        metrics[step] = told
        moved.append(world.model())
        moved[-1].load_state_dict(policy.model.state_dict())

    TrlEngine(policy, EngineSettings(dpo=dpo()), tmp_path / "ours", on_step=on_step).dpo(
        [first, second], 2
    )
    theirs = trl_loss(moved[0], reference, second, tmp_path / "theirs")
    assert metrics[2]["loss"] == pytest.approx(theirs.item(), abs=1e-5)
    assert theirs.item() != pytest.approx(0.6931, abs=1e-3)


def test_what_the_environment_said_is_not_preferred(tmp_path: Path) -> None:
    """Only the environment's last words tell the two transcripts apart.

    They have the same policy tokens after the same past.
    """
    (made, *_) = episodes(world.model(), [3], 1)
    chosen, rejected = (
        Sample(
            (*made.tokens, extra),
            (*made.mask, False),
            (*made.logprobs, 0.0),
            (*made.advantages, 0.0),
            (*made.turn_ids, 0),
        )
        for extra in (5, 9)
    )
    policy = Toy(world.model())
    before = weights(policy.model)
    norms: list[float] = []
    engine = TrlEngine(
        policy,
        EngineSettings(dpo=dpo()),
        tmp_path,
        on_step=lambda _, told: norms.append(told["grad_norm"]),
    )
    engine.dpo([[(chosen, rejected)]], 1)
    assert norms == [pytest.approx(0, abs=1e-6)]
    assert_close(weights(policy.model), before, 0.05)


@pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "lora"])
def test_preferring_learns(tmp_path: Path, lora: Any) -> None:
    (batch,) = pairs(4, 1)
    told: list[dict[str, float]] = []
    settings = EngineSettings(lora=lora, dpo=dpo())
    engine = TrlEngine(Toy(world.model()), settings, tmp_path, on_step=lambda _, m: told.append(m))
    engine.dpo([batch] * 25, 25)
    assert told[-1]["preferred"] == 1
    assert told[-1]["margin"] > 0.5
    assert told[-1]["loss"] < 0.4


def test_pairs_must_last(tmp_path: Path) -> None:
    with pytest.raises(WorkupError, match="ran out after 2 of 3"):
        TrlEngine(Toy(world.model()), EngineSettings(), tmp_path).dpo(pairs(0, 2), 3)


# --- learning from sampled tokens ---


def test_sampled_tokens_are_learned_where_the_mask_is(tmp_path: Path) -> None:
    policy = Toy(world.model())
    made = episodes(policy.model, [5], 6)
    expected = -sum(total(policy.model, sample) for sample in made) / sum(
        sum(sample.mask) for sample in made
    )
    names = [name for name, _ in policy.model.named_parameters()]
    grads = dict(
        zip(names, torch.autograd.grad(expected, list(policy.model.parameters())), strict=True)
    )
    found, losses = gradients(policy.model), []
    settings = EngineSettings(micro_batch=4, max_grad_norm=0)
    engine = TrlEngine(
        policy, settings, tmp_path, on_step=lambda _, told: losses.append(told["loss"])
    )
    engine.sft([made], 1, settings.tuning)
    assert losses == pytest.approx([expected.item()], abs=1e-5)
    assert_close(found, grads, 1e-5)


def test_questions_and_answer_are_imitated_and_nothing_else() -> None:
    def turn(prompt: tuple[int, ...], said: tuple[int, ...], kind: str, *content: str) -> Turn:
        return Turn(
            prompt, Completion("", said, (-0.5,) * len(said)), Action(kind, content), Observation()
        )

    turns = (
        turn((1, 2), (3, 4), "ask", "fever"),
        turn((5,), (6,), "malformed"),
        turn((7, 8), (9,), "diagnose", "Flu"),
    )
    episode = Episode(Case("c", "", Truth("Flu")), (), turns, Ending.DIAGNOSED)
    assert imitated(episode).tokens == spoken(episode).tokens == (1, 2, 3, 4, 5, 6, 7, 8, 9)
    assert [t for t, own in zip(range(1, 10), spoken(episode).mask, strict=True) if own] == [
        3,
        4,
        6,
        9,
    ]
    assert [t for t, own in zip(range(1, 10), imitated(episode).mask, strict=True) if own] == [
        3,
        4,
        9,
    ]
    assert set(imitated(episode).advantages) == {0.0}
    # A turn in which the doctor also wrote the patient's reply is not imitated.
    forged = replace(turns[0], action=Action("ask", ("fever",), errors=2))
    both = replace(episode, turns=(forged, *turns[1:]))
    assert [t for t, own in zip(range(1, 10), imitated(both).mask, strict=True) if own] == [9]


# --- checkpoints ---


def train(
    lora: Any, folder: Path, *, halt: tuple[int, int] | None = None, resume: bool = False
) -> TrlEngine:
    """Five steps of tuning and six of preferring; stopped after (stage, step) `halt`."""
    settings = EngineSettings(
        lora=lora, save_every=2, dpo=dpo(lr_schedule="cosine"), tuning=TuningSettings(lr=0.01)
    )

    def on_step(step: int, metrics: dict[str, float]) -> None:
        if (engine._stages, step) == halt:
            engine.stop()

    engine = TrlEngine(Toy(world.model()), settings, folder, on_step=on_step, resume=resume)
    engine.sft((episodes(world.model(), [9, k], 4) for k in range(5)), 5, settings.tuning)
    engine.dpo(pairs(9, 6), 6)
    return engine


@pytest.mark.long
@pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "lora"])
def test_an_interrupted_run_ends_with_the_same_weights(tmp_path: Path, lora: Any) -> None:
    whole = train(lora, tmp_path / "whole")
    for halt in ((1, 3), (2, 3)):
        folder = tmp_path / str(halt)
        assert train(lora, folder, halt=halt).stopped
        assert same(weights(train(lora, folder, resume=True).model), weights(whole.model))
        assert [path.name for path in checkpoints(folder / "2-dpo")] == ["checkpoint-6"]


def margins(folder: Path, halt: int | None = None) -> list[float]:
    """The margins of four steps of preferring after two of tuning; stopped after step `halt`."""
    found: list[float] = []

    def on_step(step: int, metrics: dict[str, float]) -> None:
        if engine._stages == 2:
            found.append(metrics["margin"])
            if step == halt:
                engine.stop()

    settings = EngineSettings(save_every=1, dpo=dpo(), tuning=TuningSettings(lr=0.05))
    engine = TrlEngine(Toy(world.model()), settings, folder, on_step=on_step, resume=True)
    engine.sft([episodes(world.model(), [1], 4)] * 2, 2, engine.settings.tuning)
    engine.dpo(pairs(7, 4), 4)
    return found


@pytest.mark.long
def test_the_reference_is_where_the_stage_began(tmp_path: Path) -> None:
    """After another stage, and after a resume in the middle, margins are measured from there."""
    whole = margins(tmp_path / "whole")
    assert whole[0] == 0
    assert whole[1] != 0
    assert margins(tmp_path / "parts", halt=2) + margins(tmp_path / "parts") == whole


def test_an_episode_that_cannot_be_trained_on_is_refused() -> None:
    turn = Turn((1,), Completion("typed by a person"), Action("ask", ("x",)), Observation())
    episode = Episode(Case("c", "", Truth("Flu")), (), (turn,), Ending.OUT_OF_TURNS)
    with pytest.raises(WorkupError, match="only a token policy's own episodes"):
        imitated(episode)
