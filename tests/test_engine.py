"""The engine against equations, plain autograd and itself.

It is split or whole, interrupted or not, one process or two.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import math
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import engine_processes
import engine_world as world
import hypothesis
import numpy as np
import pytest
import torch
from command_line import warm
from engine_world import Toy, demonstration, episodes, logprobs
from hypothesis import strategies as st
from serving import free_port
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer
from transformers.trainer_callback import TrainerState
from trl import GRPOTrainer
from trl.kernels import ChunkedLogProbFunction
from waiting import pause, until

from workup.core.case import Case, Truth
from workup.core.episode import Action, Ending, Episode, Observation, Sample, Turn
from workup.core.errors import UserError, WorkupError
from workup.core.ports import Collect, Demonstration, Policy, Sampling
from workup.engines.settings import EngineSettings, LoraSettings, SupervisedSettings
from workup.engines.trl import batches, gap, trainer
from workup.engines.trl.engine import TrlEngine
from workup.engines.trl.policy import TOKEN_MEANS
from workup.engines.trl.scoring import ScoredTokens, _score, scoring
from workup.engines.trl.trainer import checkpoints, updates
from workup.models.local import LocalPolicy
from workup.rl.samples import Packed, sample, token_tree

torch.set_num_threads(1)


def constant(seed: int, count: int = 7, drift: float = 0.0) -> Collect:
    """Collects `count` random episodes per step.

    After the first step their log-probabilities are off by up to `drift`.
    """

    async def collect(policy: Any, step: int) -> list[Sample]:
        return episodes(policy.model, [seed, step], count, drift=drift if step else 0.0)

    return collect


def demonstrations(seed: int, steps: int, branches: bool = True) -> Iterator[list[Demonstration]]:
    for step in range(steps):
        rng = np.random.default_rng([seed, step])
        yield [demonstration(rng, k % 3 if branches else 0) for k in range(6)]


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def gradients(model: Any) -> dict[str, torch.Tensor]:
    """Sums up every gradient that backward passes bring, from now on."""
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters() if p.requires_grad}

    def add(name: str) -> Callable[[torch.Tensor], Any]:
        return total[name].add_

    for name, p in model.named_parameters():
        if p.requires_grad:
            p.register_hook(add(name))
    return total


def assert_close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], tolerance: float) -> None:
    scale = max(value.abs().max().item() for value in b.values())
    worst = max((a[name] - b[name]).abs().max().item() for name in b)
    assert scale > 0
    assert worst <= tolerance * scale, f"{worst} of {scale}"


# --- the reinforcement loss ---


def clipped(
    model: Any, reference: Any, samples: Sequence[Sample], s: EngineSettings
) -> torch.Tensor:
    """CR-10 with KL and entropy terms, written down term by term.

    It takes one sequence at a time, without batch and padding.
    """
    losses, entropies, counts = [], [], []
    for x in samples:
        ids = torch.tensor([x.tokens])
        logp = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
        own = torch.tensor(x.mask[1:])
        entropies.append(-(logp.exp() * logp).sum(-1)[own].sum())
        now = logp.gather(-1, ids[0, 1:, None])[:, 0]
        ratio = torch.exp(now - torch.tensor(x.logprobs[1:]))
        a = torch.tensor(x.advantages[1:])
        term = torch.minimum(ratio * a, ratio.clamp(1 - s.epsilon, 1 + s.epsilon) * a)
        with torch.no_grad():
            gap = logprobs(reference, x.tokens)
        kl = torch.exp(gap - now) - (gap - now) - 1
        losses.append(((-term + s.beta * kl) * own).sum())
        counts.append(int(own.sum()))
    average = {
        "grpo": sum(loss / n for loss, n in zip(losses, counts, strict=True)) / len(losses),
        "bnpo": sum(losses) / sum(counts),
        "dapo": sum(losses) / sum(counts),
        "dr_grpo": sum(losses) / (len(losses) * s.max_completion_length),
    }
    return average[s.loss_type] - s.entropy * sum(entropies) / sum(counts)


@pytest.mark.parametrize(
    ("loss_type", "micro_batch", "beta", "entropy"),
    [
        ("grpo", 64, 0.3, 0.2),
        ("grpo", 2, 0.3, 0.2),
        ("grpo", 3, 0.0, 0.0),
        ("bnpo", 3, 0.3, 0.2),
        ("dapo", 3, 0.3, 0.2),
        ("dr_grpo", 3, 0.3, 0.2),
    ],
)
def test_loss_and_gradient_are_the_equation(
    tmp_path: Path,
    loss_type: str,
    micro_batch: int,
    beta: float,
    entropy: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gap, "EXACT", 0.5)
    policy = Toy(world.model())
    reference = world.model()
    settings = EngineSettings.model_validate(
        {"loss_type": loss_type, "micro_batch": micro_batch, "beta": beta, "entropy": entropy}
        | {"lr": 0.05, "max_grad_norm": 0, "max_completion_length": 9}
    )
    seen: dict[str, Any] = {}

    async def collect(_: Policy, step: int) -> list[Sample]:
        # The second step: by then the policy has left its reference, and the ratios are made to
        # leave the clipping range.
        samples = episodes(policy.model, [1, step], 7, drift=0.5 if step else 0.0)
        if step == 1:
            seen["loss"] = clipped(policy.model, reference, samples, settings)
            grads = torch.autograd.grad(seen["loss"], list(policy.model.parameters()))
            seen["expected"] = dict(
                zip((n for n, _ in policy.model.named_parameters()), grads, strict=True)
            )
            seen["found"] = gradients(policy.model)
        return samples

    metrics: dict[int, dict[str, float]] = {}
    TrlEngine(policy, settings, tmp_path, on_step=metrics.__setitem__).grpo(collect, 2)
    assert_close(seen["found"], seen["expected"], 1e-5)
    if micro_batch == 64:
        assert metrics[2]["loss"] == pytest.approx(seen["loss"].item(), abs=1e-5)
        assert 0 < metrics[2]["clip_ratio"] < 1
        assert metrics[2]["kl"] > 0


def means(model: Any, reference: Any, samples: Sequence[Sample]) -> dict[str, float]:
    """Entropy, kl and clip_ratio of a batch: means over its policy tokens, one after the other."""
    entropies, kls, clipped = [], [], []
    for x in samples:
        with torch.no_grad():
            logp = model(input_ids=torch.tensor([x.tokens])).logits[0, :-1].log_softmax(-1)
            gaps = (logprobs(reference, x.tokens) - logprobs(model, x.tokens)).tolist()
            now = logprobs(model, x.tokens).tolist()
        for t in (t for t, own in enumerate(x.mask[1:]) if own):
            ratio, a = math.exp(now[t] - x.logprobs[t + 1]), x.advantages[t + 1]
            entropies.append(-sum(math.exp(lp) * lp for lp in logp[t].tolist()))
            kls.append(math.exp(gaps[t]) - gaps[t] - 1)
            clipped.append((a > 0 and ratio > 1.2) or (a < 0 and ratio < 0.8))
    every = {"entropy": entropies, "kl": kls, "clip_ratio": clipped}
    return {name: sum(values) / len(values) for name, values in every.items()}


@pytest.mark.long
@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
@pytest.mark.parametrize("micro_batch", [1, 4, 64])
def test_what_is_logged_does_not_depend_on_how_a_batch_is_cut(
    tmp_path: Path, loss_type: str, micro_batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences of 4 to 60 tokens, cut by length: a mean over micro-batches would be another."""
    monkeypatch.setattr(gap, "EXACT", 0.5)
    policy, reference = Toy(world.model()), world.model()
    settings = EngineSettings.model_validate(
        {"loss_type": loss_type, "micro_batch": micro_batch, "beta": 0.3, "entropy": 0.1}
        | {"lr": 0.05, "max_grad_norm": 0, "max_completion_length": 9}
    )
    expected: dict[int, dict[str, float]] = {}

    async def collect(_: Policy, step: int) -> list[Sample]:
        drift = 0.5 if step else 0.0
        samples = episodes(policy.model, [8, step], 9, longest=60, drift=drift)
        expected[step + 1] = means(policy.model, reference, samples)
        expected[step + 1]["loss"] = clipped(policy.model, reference, samples, settings).item()
        return samples

    metrics: dict[int, dict[str, float]] = {}
    TrlEngine(policy, settings, tmp_path, on_step=metrics.__setitem__).grpo(collect, 2)
    for step, values in expected.items():
        assert {name: metrics[step][name] for name in values} == pytest.approx(values, abs=1e-5)
    assert metrics[2]["clip_ratio"] > 0 < metrics[2]["kl"]


@pytest.mark.parametrize("loss_type", ["cispo", "sapo"])
def test_a_split_batch_has_the_gradient_of_the_whole(tmp_path: Path, loss_type: str) -> None:
    found, metrics = [], dict[int, dict[str, float]]()
    for micro_batch in (2, 64):
        policy = Toy(world.model())
        total = gradients(policy.model)
        settings = EngineSettings(loss_type=loss_type, micro_batch=micro_batch, entropy=0.1)
        assert settings.highest == (1.2 if loss_type == "cispo" else 0.2)
        engine = TrlEngine(
            policy, settings, tmp_path / str(micro_batch), on_step=metrics.__setitem__
        )
        engine.grpo(constant(3), 1)
        found.append(total)
        assert ("clip_ratio" in metrics[1]) == (loss_type == "cispo")
    assert_close(found[0], found[1], 1e-5)


def test_temperature_divides_the_logits(tmp_path: Path) -> None:
    policy = Toy(world.model())

    async def collect(_: Policy, step: int) -> list[Sample]:
        made = []
        for x in episodes(policy.model, [4, step], 5):
            with torch.no_grad():
                logits = policy.model(input_ids=torch.tensor([x.tokens])).logits[0, :-1] / 1.7
            lp = logits.log_softmax(-1).gather(-1, torch.tensor(x.tokens)[1:, None])[:, 0].tolist()
            known = tuple(v if m else 0.0 for v, m in zip([0.0, *lp], x.mask, strict=True))
            made.append(Sample(x.tokens, x.mask, known, x.advantages, x.turn_ids))
        return made

    TrlEngine(policy, EngineSettings(temperature=1.7), tmp_path / "right").grpo(collect, 1)
    with pytest.raises(WorkupError, match=r"at temperature 1$"):
        TrlEngine(policy, EngineSettings(), tmp_path / "wrong").grpo(collect, 1)


def test_misaligned_episodes_are_refused(tmp_path: Path) -> None:
    async def shifted(policy: Any, step: int) -> list[Sample]:
        made = episodes(policy.model, [5, step], 4)
        return [
            Sample(x.tokens, x.mask, (*x.logprobs[1:], 0.0), x.advantages, x.turn_ids) for x in made
        ]

    with pytest.raises(WorkupError, match="log-probabilities differ from the sampler's by"):
        TrlEngine(Toy(world.model()), EngineSettings(), tmp_path).grpo(shifted, 1)
    assert not checkpoints(tmp_path / "1-grpo")


@pytest.mark.parametrize("cap", [None, 1.2])
def test_the_gap_to_the_sampler_is_measured_and_corrected(
    tmp_path: Path, cap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sampler that is off by up to 0.4 nats a token, against the equations written down."""
    monkeypatch.setattr(gap, "EXACT", 0.5)
    policy, metrics = Toy(world.model()), dict[int, dict[str, float]]()
    settings = EngineSettings(importance_cap=cap, micro_batch=3, max_grad_norm=0)
    samples = episodes(policy.model, [6, 1], 7, drift=0.4)
    differences: list[float] = []
    weighed = []
    for x in samples:
        with torch.no_grad():
            now = [0.0, *logprobs(policy.model, x.tokens).tolist()]
        off = [a - b for a, b in zip(now, x.logprobs, strict=True)]
        differences += [d for d, m in zip(off, x.mask, strict=True) if m]
        ratios = [min(math.exp(d), cap or math.inf) for d in off]
        advantages = tuple(a * r for a, r in zip(x.advantages, ratios, strict=True))
        weighed.append(replace(x, logprobs=tuple(now), advantages=advantages))
    loss = clipped(policy.model, policy.model, weighed if cap else samples, settings)
    names, weights = zip(*policy.model.named_parameters(), strict=True)
    expected = dict(zip(names, torch.autograd.grad(loss, weights), strict=True))
    found = gradients(policy.model)
    engine = TrlEngine(policy, settings, tmp_path, on_step=metrics.__setitem__)
    engine.grpo(lambda *_: given(samples), 1)
    assert_close(found, expected, 1e-5)
    sizes = np.abs(differences)
    assert metrics[1]["gap_mean"] == pytest.approx(sizes.mean(), abs=1e-6)
    assert metrics[1]["gap_p95"] == pytest.approx(np.quantile(sizes, 0.95), abs=1e-6)
    k3 = np.mean([math.exp(d) - 1 - d for d in differences])
    assert metrics[1]["gap_kl"] == pytest.approx(k3, abs=1e-6)


async def given(samples: list[Sample]) -> list[Sample]:
    return samples


@pytest.mark.parametrize(
    ("exact", "own", "gaps", "fits"),
    [
        (True, True, [1e-4, 5e-4], True),
        (True, False, [1e-5, 2e-3], False),  # a single token
        (False, True, [0.0, 0.03], True),
        (False, True, [0.03, 0.03], False),
        (False, False, [0.03, 0.15], True),
        (False, False, [0.15, -0.15], False),
        (False, False, [math.nan, 0.0], False),
        (True, True, [], True),
    ],
)
def test_the_tolerance_follows_precision_and_sampler(
    exact: bool, own: bool, gaps: list[float], fits: bool
) -> None:
    with nullcontext() if fits else pytest.raises(WorkupError, match=r"nats \(limit"):
        gap.Tolerance(exact, own).check(torch.tensor(gaps), 1.0)


async def played(policy: LocalPolicy, rng: np.random.Generator) -> Sample:
    """An episode of three turns with a random environment, by the real sampler."""
    tokens: list[int] = []
    turns = []
    for _ in range(3):
        prompt = tuple(rng.integers(3, world.VOCABULARY, rng.integers(1, 7)).tolist())
        tokens += prompt
        said = await policy.sample(
            tokens, Sampling(max_tokens=int(rng.integers(1, 5)), key=int(rng.integers(1 << 30)))
        )
        tokens += said.tokens
        turns.append(Turn(prompt, said, Action("ask"), Observation()))
    return sample(
        Episode(Case("c", "", Truth("d")), (), tuple(turns), Ending.OUT_OF_TURNS),
        rng.normal(size=3).tolist(),
    )


@pytest.mark.parametrize("lora", [None, LoraSettings(r=2)], ids=["whole", "lora"])
def test_sampler_and_trainer_agree_while_the_weights_move(
    tmp_path: Path, lora: LoraSettings | None
) -> None:
    gaps = []

    async def collect(policy: Any, step: int) -> list[Sample]:
        made = await asyncio.gather(
            *(played(policy, np.random.default_rng([step, k])) for k in range(9))
        )
        for x in made:
            with torch.no_grad():
                now = logprobs(policy.model, x.tokens).numpy()
            gaps.append(np.abs((now - np.array(x.logprobs[1:]))[list(x.mask[1:])]).max())
        return list(made)

    policy = LocalPolicy(world.model(), world.tokenizer())
    TrlEngine(policy, EngineSettings(lr=0.05, lora=lora), tmp_path).grpo(collect, 4)
    assert len(gaps) == 36
    assert max(gaps) < 1e-5


def test_a_step_without_episodes_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WorkupError, match="step 1: not one episode"):
        TrlEngine(Toy(world.model()), EngineSettings(), tmp_path).grpo(constant(0, count=0), 3)


def test_a_loss_that_is_not_finite_is_an_error(tmp_path: Path) -> None:
    async def broken(policy: Any, step: int) -> list[Sample]:
        made = episodes(policy.model, [6, step], 4)
        return [
            Sample(x.tokens, x.mask, x.logprobs, tuple(math.inf * a for a in x.mask), x.turn_ids)
            for x in made
        ]

    with pytest.raises(WorkupError, match="loss is"):
        TrlEngine(Toy(world.model()), EngineSettings(), tmp_path).grpo(broken, 2)


def test_several_updates_on_each_batch(tmp_path: Path) -> None:
    steps, asked, seen = [], [], []
    policy = Toy(world.model())

    async def collect(_: Policy, step: int) -> list[Sample]:
        asked.append(step)
        return episodes(policy.model, [7, step], 5)

    def on_step(step: int, metrics: dict[str, float]) -> None:
        steps.append(step)
        seen.append(metrics)

    settings = EngineSettings(
        num_iterations=3, lr=0.01, lr_schedule="linear", beta=0.1, save_every=2
    )
    TrlEngine(policy, settings, tmp_path, on_step=on_step).grpo(collect, 3)
    assert asked == [0, 1, 2]
    assert steps == [1, 2, 3]
    gaps = {"gap_mean", "gap_p95", "gap_kl"}
    assert set(seen[0]) == {"loss", "grad_norm", "lr", "kl", "entropy", "clip_ratio", *gaps}
    # Only the first of three updates is on-policy, so that some tokens are clipped.
    assert seen[0]["clip_ratio"] > 0
    # Linear to nothing over nine updates, as it stands after each third.
    assert [m["lr"] for m in seen] == pytest.approx(
        [0.01 * (1 - u / 9) for u in (2, 5, 8)], abs=0.01 / 9
    )
    assert [path.name for path in checkpoints(tmp_path / "1-grpo")] == ["checkpoint-9"]
    assert policy.refreshed == 4


# --- the supervised loss ---


def imitation(policy: Toy, model: Any, batch: Sequence[Demonstration]) -> torch.Tensor:
    """Mean over labelled tokens; every branch scored as a prompt of its own."""
    total, count = torch.zeros(()), 0
    for made in batch:
        whole = token_tree(made, policy)
        paths = [(whole.trunk, whole.labelled)]
        for b in whole.branches:
            paths.append(
                (
                    whole.trunk[: b.at] + b.tokens,
                    (False,) * (b.at + b.given) + (True,) * (len(b.tokens) - b.given),
                )
            )
        for tokens, labelled in paths:
            own = torch.tensor(labelled[1:])
            total = total - (logprobs(model, tokens) * own).sum()
            count += int(own.sum())
    return total / count


@pytest.mark.long
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("branches", [True, False])
@pytest.mark.parametrize("micro_batch", [64, 2])
def test_packed_demonstrations_are_worth_separate_prompts(
    tmp_path: Path, attention: str, branches: bool, micro_batch: int
) -> None:
    policy = Toy(world.model(attention=attention))
    batch = next(demonstrations(1, 1, branches))
    expected = imitation(policy, policy.model, batch)
    grads = torch.autograd.grad(expected, list(policy.model.parameters()))
    total = gradients(policy.model)
    losses: list[float] = []
    settings = EngineSettings(micro_batch=micro_batch, max_grad_norm=0)
    engine = TrlEngine(
        policy, settings, tmp_path, on_step=lambda step, metrics: losses.append(metrics["loss"])
    )
    engine.sft([batch], 1)
    assert losses == pytest.approx([expected.item()], abs=1e-5)
    names = [name for name, _ in policy.model.named_parameters()]
    assert_close(total, dict(zip(names, grads, strict=True)), 1e-5)


@pytest.mark.parametrize("micro_batch", [64, 4])
def test_what_is_cut_where_padding_is_dear_is_worth_the_same(
    tmp_path: Path, micro_batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = [made for some in demonstrations(1, 3) for made in some]

    def learned(padding: int) -> tuple[dict[str, torch.Tensor], int, float]:
        policy, parts, losses = Toy(world.model()), list[int](), list[float]()

        def packed(rows: Sequence[Packed], device: torch.device) -> batches.MicroBatch:
            parts.append(len(rows))
            return batches.packed_part(rows, device)

        monkeypatch.setattr(batches, "PADDING", padding)
        monkeypatch.setattr(trainer, "packed_part", packed)
        total = gradients(policy.model)
        engine = TrlEngine(
            policy,
            EngineSettings(micro_batch=micro_batch, max_grad_norm=0),
            tmp_path / str(padding),
            on_step=lambda step, metrics: losses.append(metrics["loss"]),
        )
        engine.sft([batch], 1)
        return total, len(parts), losses[0]

    (cut, more, loss), (whole, fewest, expected) = learned(0), learned(1 << 30)
    assert more > fewest == -(-len(batch) // micro_batch)
    assert loss == pytest.approx(expected, rel=1e-6)
    assert_close(cut, whole, 1e-6)


@hypothesis.given(st.lists(st.integers(1, 3_000), min_size=1, max_size=40))
def test_chunks_are_cut_as_long_as_that_saves_much_padding(lengths: list[int]) -> None:
    chunks = batches.close(lengths, int)
    assert [length for chunk in chunks for length in chunk] == lengths

    def tokens(*parts: list[int]) -> int:
        return sum(len(part) * max(part) for part in parts)

    for chunk in chunks:
        halves = [(chunk[:place], chunk[place:]) for place in range(1, len(chunk))]
        assert all(tokens(chunk) - tokens(*two) <= batches.PADDING for two in halves)
    assert tokens(lengths) - tokens(*chunks) >= batches.PADDING * (len(chunks) - 1)


def test_demonstrations_must_last(tmp_path: Path) -> None:
    with pytest.raises(WorkupError, match="ran out after 2 of 3"):
        TrlEngine(Toy(world.model()), EngineSettings(), tmp_path).sft(demonstrations(0, 2), 3)


def test_imitation_learns(tmp_path: Path) -> None:
    policy = Toy(world.model(scale=1.0))
    batch = next(demonstrations(2, 1))
    losses: list[float] = []
    settings = EngineSettings(sft=SupervisedSettings(lr=0.02, warmup=0))
    engine = TrlEngine(
        policy, settings, tmp_path, on_step=lambda step, metrics: losses.append(metrics["loss"])
    )
    engine.sft([batch] * 60, 60)
    assert losses[0] > 3.5
    assert losses[-1] < 0.5


# --- scoring ---


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_kernel_for_large_vocabularies_gives_the_same(temperature: float) -> None:
    torch.manual_seed(0)
    weight, targets = torch.randn(50, 8, requires_grad=True), torch.randint(50, (11,))
    hidden = torch.randn(11, 8, requires_grad=True)
    found = []
    for lp, entropy in (
        _score(
            hidden,
            weight,
            None,
            ScoredTokens(targets, targets, temperature, entropy=True, differentiable=True),
        ),
        ChunkedLogProbFunction.apply(
            hidden, weight, None, targets, temperature, 16, None, 1.0, ("entropy",)
        )[:2],
    ):
        found.append(
            [
                lp,
                entropy,
                *torch.autograd.grad(lp.sum() + 0.3 * (entropy**2).sum(), [hidden, weight]),
            ]
        )
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_the_model_is_as_before_afterwards(tmp_path: Path) -> None:
    policy = Toy(world.model())
    before = set(vars(policy.model))
    engine = TrlEngine(policy, EngineSettings(), tmp_path)
    engine.sft(demonstrations(0, 2), 2)
    engine.grpo(constant(0), 2)
    assert "forward" not in vars(policy.model)
    assert set(vars(policy.model)) - before <= {"model_tags"}
    assert policy.model.config.use_cache
    assert not policy.model.training


def test_models_that_rescale_their_logits_are_refused() -> None:
    model = world.model()
    model.config.logits_scaling = 8.0
    with pytest.raises(UserError, match="logits_scaling"), scoring(model):
        pass


# --- checkpoints ---


LORA = LoraSettings(r=2, alpha=4)
CASES = [
    EngineSettings(save_every=4, lr=0.01, sft=SupervisedSettings(lr=0.01)),
    EngineSettings(
        save_every=4,
        lr=0.01,
        beta=0.1,
        entropy=0.01,
        num_iterations=2,
        lr_schedule="cosine",
        warmup=0.2,
    ),
    EngineSettings(save_every=4, lr=0.01, beta=0.1, lora=LORA),
]


def train(
    settings: EngineSettings, folder: Path, *, halt: int | None = None, resume: bool = False
) -> TrlEngine:
    """Four supervised and eight reinforcement steps; stopped after step `halt` of the latter."""
    policy = Toy(world.model())

    def on_step(step: int, metrics: dict[str, float]) -> None:
        if engine._stages == 2 and step == halt:
            engine.stop()

    engine = TrlEngine(policy, settings, folder, on_step=on_step, resume=resume)
    engine.sft(demonstrations(9, 4), 4)
    engine.grpo(constant(9), 8)
    return engine


@pytest.mark.long
def test_a_resumed_stage_saves_as_often_as_it_is_told_now(tmp_path: Path) -> None:
    seldom = EngineSettings(save_every=100, save_total_limit=20, lr=0.01)
    assert train(seldom, tmp_path, halt=3).stopped
    train(seldom.model_copy(update={"save_every": 2}), tmp_path, resume=True)
    assert [updates(path) for path in checkpoints(tmp_path / "2-grpo")] == [3, 4, 6, 8]


@pytest.mark.long
@pytest.mark.parametrize("settings", CASES, ids=["plain", "kl, iterations, cosine", "lora"])
def test_an_interrupted_run_ends_with_the_same_weights(
    tmp_path: Path, settings: EngineSettings
) -> None:
    whole = train(settings, tmp_path / "whole")
    first = train(settings, tmp_path / "parts", halt=3)
    assert first.stopped
    assert not whole.stopped
    assert first.checkpoint is not None
    assert first.checkpoint.name == f"checkpoint-{3 * settings.num_iterations}"
    assert not same(weights(first.model), weights(whole.model))
    second = train(settings, tmp_path / "parts", resume=True)
    assert same(weights(second.model), weights(whole.model))
    # Once more: everything is finished already, and only loaded.
    third = train(settings, tmp_path / "parts", resume=True)
    assert same(weights(third.model), weights(whole.model))
    names = sorted(
        str(path.relative_to(tmp_path / "parts")) for path in (tmp_path / "parts").glob("*/*")
    )
    assert names == [
        "1-sft/checkpoint-4",
        f"2-grpo/checkpoint-{8 * settings.num_iterations}",
    ]


@pytest.mark.long
def test_a_stage_stopped_in_the_warm_start_goes_on(tmp_path: Path) -> None:
    settings = CASES[0]
    whole = train(settings, tmp_path / "whole")
    policy = Toy(world.model())
    engine = TrlEngine(
        policy,
        settings,
        tmp_path / "parts",
        on_step=lambda step, _: engine.stop() if step == 2 else None,
    )
    engine.sft(demonstrations(9, 4), 4)
    engine.grpo(constant(9), 8)
    assert engine.stopped
    assert [path.name for path in (tmp_path / "parts").glob("*/*")] == ["checkpoint-2"]
    assert same(
        weights(train(settings, tmp_path / "parts", resume=True).model), weights(whole.model)
    )


def test_an_earlier_run_is_not_overwritten(tmp_path: Path) -> None:
    train(CASES[0], tmp_path)
    with pytest.raises(UserError, match="resume it"):
        train(CASES[0], tmp_path)


def test_a_checkpoint_is_an_ordinary_model_folder(tmp_path: Path) -> None:
    engine = train(CASES[0], tmp_path)
    assert engine.checkpoint is not None
    assert same(
        weights(AutoModelForCausalLM.from_pretrained(engine.checkpoint, dtype="float32")),
        weights(engine.model),
    )


@pytest.mark.long
@pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "lora"])
def test_the_saved_policy_is_complete(tmp_path: Path, lora: LoraSettings | None) -> None:
    engine = train(EngineSettings(lr=0.01, lora=lora), tmp_path / "run")
    for _ in range(2):  # the second one replaces the first
        engine.save(tmp_path / "policy")
    assert not (tmp_path / "policy.draft").exists()
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "policy", dtype="float32")
    torch.testing.assert_close(
        logprobs(saved, (5, 6, 7, 8)), logprobs(engine.policy.model, (5, 6, 7, 8))
    )
    assert AutoTokenizer.from_pretrained(tmp_path / "policy").pad_token_id == 0


@pytest.mark.long
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    folder, found = tmp_path / "1-grpo", [0]
    for attempt in range(4):
        child = warm().Process(target=train_on, args=(tmp_path, attempt > 0))
        child.start()
        until(lambda: newest_step(folder) > found[-1] or child.exitcode is not None)  # noqa: B023
        pause(rng.random() * 0.1)
        child.kill()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        newest = checkpoints(folder)[-1]
        AutoModelForCausalLM.from_pretrained(newest)
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
            torch.load(newest / name, weights_only=False)
        found.append(TrainerState.load_from_json(str(newest / "trainer_state.json")).global_step)
        assert newest.name == f"checkpoint-{found[-1]}"
    assert found == sorted(set(found)), "each life goes on where the one before it was killed"


def train_on(folder: Path, resume: bool) -> None:
    """Trains for as long as it may live, with a checkpoint after each step."""
    settings = EngineSettings(save_every=1, save_total_limit=1)
    TrlEngine(Toy(world.model()), settings, folder, resume=resume).grpo(constant(1), 10_000)


def newest_step(folder: Path) -> int:
    return updates(checkpoints(folder)[-1]) if checkpoints(folder) else 0


# --- adapters and precision ---


def test_with_adapters_only_they_are_trained(tmp_path: Path) -> None:
    policy = Toy(world.model())
    before = weights(policy.model)
    engine = TrlEngine(policy, EngineSettings(lora=LORA, beta=0.1, lr=0.01), tmp_path)
    engine.sft(demonstrations(0, 2), 2)
    seen: dict[int, dict[str, float]] = {}
    engine.on_step = seen.__setitem__
    engine.grpo(constant(0), 3)
    after = weights(policy.model)
    for name, value in before.items():
        assert torch.equal(value, after[name.replace("_proj.weight", "_proj.base_layer.weight")])
    assert any("lora_B" in name and value.any() for name, value in after.items())
    # The reference is the policy after the warm start, not the bare model.
    assert seen[1]["kl"] == pytest.approx(0, abs=1e-7)
    assert seen[3]["kl"] > 0
    assert engine.checkpoint is not None
    assert (engine.checkpoint / "adapter_model.safetensors").exists()
    assert not any(".ref." in name for name in after)


def test_half_precision_and_recomputed_activations(tmp_path: Path) -> None:
    policy = Toy(world.model())
    seen: dict[int, dict[str, float]] = {}
    settings = EngineSettings(bf16=True, gradient_checkpointing=True, micro_batch=4)
    engine = TrlEngine(policy, settings, tmp_path, on_step=seen.__setitem__)
    engine.sft(demonstrations(0, 2), 2)
    engine.grpo(constant(0), 2)
    assert all(math.isfinite(m["loss"]) for m in seen.values())
    assert policy.model.dtype == torch.float32


# --- memory, trackers, settings ---


@pytest.mark.long
def test_nothing_grows_with_the_steps(tmp_path: Path) -> None:
    counts = []

    async def collect(policy: Any, step: int) -> list[Sample]:
        if step % 5 == 4:
            gc.collect()
            counts.append(len(gc.get_objects()))
        return episodes(policy.model, [1], 4)

    TrlEngine(Toy(world.model()), EngineSettings(save_every=1000), tmp_path).grpo(collect, 25)
    assert counts[-1] - counts[1] < 50, counts


def test_metrics_reach_a_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    TrlEngine(Toy(world.model()), EngineSettings(report_to=("tensorboard",)), tmp_path).grpo(
        constant(0), 2
    )
    events = EventAccumulator(str(tmp_path / "events")).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2]


def test_settings_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ValueError, match="learning_rate"):
        EngineSettings(learning_rate=1e-3)  # type: ignore[call-arg]
    for model in (EngineSettings, SupervisedSettings, LoraSettings):
        assert all(field.description for field in model.model_fields.values())


# --- several processes ---


@pytest.mark.long
def test_two_processes_train_as_one(tmp_path: Path) -> None:
    place = (free_port(), tmp_path / "two")
    two = [warm().Process(target=engine_processes.run, args=(rank, *place)) for rank in range(2)]
    for process in two:
        process.start()
    until(lambda: all(p.exitcode == 0 for p in two) or any(p.exitcode for p in two))
    for process in two:
        process.kill()  # where the other one has failed
    assert [process.exitcode for process in two] == [0, 0]
    found, told = torch.load(tmp_path / "two" / "trained.pt")
    alone, logged = engine_processes.train(tmp_path / "one")
    for name, value in alone.items():
        torch.testing.assert_close(found[name], value, atol=1e-5, rtol=0)
    assert len(told) == len(logged) == 3
    for theirs, ours in zip(told, logged, strict=True):
        assert theirs == pytest.approx(ours, abs=1e-4)


def test_gather_of_one_process(tmp_path: Path) -> None:
    engine = TrlEngine(Toy(world.model()), EngineSettings(), tmp_path)
    assert list(engine.processes.all_gather([1.0, 2.0])) == [1.0, 2.0]
    assert (engine.processes.rank, engine.processes.world, engine.processes.is_main) == (0, 1, True)


# --- the libraries' side of the contract ---


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(inspect.unwrap(function)).parameters)


def test_the_libraries_are_as_this_engine_knows_them() -> None:
    assert parameters(GRPOTrainer._compute_loss) == ["self", "model", "inputs"]
    scored = parameters(GRPOTrainer._get_per_token_logps_and_entropies)
    assert scored[:5] == ["self", "model", "input_ids", "attention_mask", "logits_to_keep"]
    assert "compute_entropy" in scored
    assert {
        "model",
        "reward_funcs",
        "args",
        "train_dataset",
        "processing_class",
        "callbacks",
    } <= set(parameters(GRPOTrainer.__init__))
    assert parameters(Trainer.training_step) == ["self", "model", "inputs", "num_items_in_batch"]
    assert (
        parameters(Trainer._save_checkpoint)
        == parameters(GRPOTrainer._save_checkpoint)
        == ["self", "model", "trial"]
    )
    assert parameters(Trainer._get_output_dir) == ["self", "trial"]
    assert parameters(Trainer.log) == parameters(GRPOTrainer.log) == ["self", "logs", "start_time"]
    assert parameters(Trainer.get_train_dataloader) == ["self"]
    assert parameters(Trainer._load_from_checkpoint)[:2] == ["self", "resume_from_checkpoint"]
    assert parameters(GRPOTrainer._send_telemetry) == ["self"]
    assert parameters(ChunkedLogProbFunction.forward)[1:] == [
        "hidden",
        "weight",
        "bias",
        "targets",
        "temperature",
        "chunk_size",
        "final_logit_softcapping",
        "logit_scale",
        "outputs",
    ]
    loss = inspect.getsource(GRPOTrainer._compute_loss)
    for used in (
        "prompt_ids",
        "prompt_mask",
        "completion_ids",
        "completion_mask",
        "advantages",
        "old_per_token_logps",
        "ref_per_token_logps",
        "num_items_in_batch",
        "self.entropy_coef",
        "_entropy_bonus_enabled",
        # Told as a mean over the tokens of all processes' micro-batches.
        *(f'["{name}"].append(global_masked_mean(' for name in TOKEN_MEANS),
    ):
        assert used in loss


def test_a_loader_of_any_number_of_updates_holds_none_of_them() -> None:
    many = trainer.EmptyBatches(10**9)
    assert len(many) == 10**9
    assert many[10**9 - 1] == many[0] == {}
    assert len(many[5:8]) == 3
    assert [*trainer.EmptyBatches(3)] == [{}, {}, {}]
    with pytest.raises(IndexError):
        many[10**9]
