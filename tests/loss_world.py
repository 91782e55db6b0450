"""One batch, one model and several losses, which TRL and verl compute in their own environments.

Both are held against the numbers in `losses.json`. `python tests/loss_world.py` writes that file
anew, by TRL.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import engine_world
import torch

from workup.core.episode import Sample
from workup.rl.samples import Branch, TokenTree, pack

KEPT = Path(__file__).with_name("losses.json")
BETA, EPSILON = 0.3, 0.1
LOSSES: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo"},
    "grpo with KL": {"loss_type": "grpo", "beta": BETA},
    "bnpo": {"loss_type": "bnpo", "beta": BETA},
    "dapo": {"loss_type": "dapo"},
    "dapo with entropy": {"loss_type": "dapo", "entropy": 0.05},
    "dr_grpo": {"loss_type": "dr_grpo", "max_completion_length": 40, "beta": BETA},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.2},
    "sapo": {"loss_type": "sapo"},
}
LESSONS = ("sft", "dpo")  # what is learned is given; the weights of `reference` are DPO's
# Relative differences that count as equal. In bfloat16 both round a thousandth at every layer.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


def model(seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """A small model whose weights depend on the seed alone, whatever made them first."""
    made = engine_world.model()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(made.named_parameters()):
            if "norm" not in name:
                weight.copy_(0.15 * torch.randn(weight.shape, generator=generator))
    return made.to(dtype)


def reference(dtype: torch.dtype = torch.float32) -> Any:
    """A model beside that of seed 0, as a policy's beginning is beside the policy.

    verl bounds a token's KL by 10 nats, TRL does not: here no token comes near.
    """
    made, other = model(0), dict(model(1).named_parameters())
    with torch.no_grad():
        for name, weight in made.named_parameters():
            weight.lerp_(other[name], 0.2)
    return made.to(dtype)


def samples() -> list[Sample]:
    """Seven episodes of 1 to 4 turns.

    Old log-probabilities are off by up to .3, so that some ratios are clipped.
    """
    generator = torch.Generator().manual_seed(7)
    policy, made = model(), []
    for number in range(7):
        tokens, mask, advantages = [3 + number, 4, 5], [False] * 3, [0.0] * 3
        for turn in range(1 + number % 4):
            said = torch.randint(3, 60, (2 + (number + turn) % 5,), generator=generator).tolist()
            worth = float(torch.randn((), generator=generator))
            reply = [] if turn == number % 4 else [6 + turn, 9]
            tokens += said + reply
            mask += [True] * len(said) + [False] * len(reply)
            advantages += [worth] * len(said) + [0.0] * len(reply)
        noise = 0.6 * torch.rand(len(tokens), generator=generator) - 0.3
        with torch.no_grad():
            every = policy(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
        own = every.gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0]
        old = [0.0, *(own + noise[1:]).tolist()]
        logprobs = tuple(p if m else 0.0 for p, m in zip(old, mask, strict=True))
        turns = (0,) * len(tokens)
        made.append(Sample(tuple(tokens), tuple(mask), logprobs, tuple(advantages), turns))
    return made


def demonstrations() -> list[TokenTree]:
    """Five transcripts, and one with two branches, of which the first is given in part."""
    trees = [TokenTree(sample.tokens, sample.mask) for sample in samples()[:5]]
    trunk, labelled = (3, 9, 21, 22, 14, 15, 23), (False, False, True, True, False, False, True)
    branches = (Branch(3, (31, 32, 33), given=1), Branch(6, (41, 42)))
    return [*trees, TokenTree(trunk, labelled, branches)]


def pairs() -> list[tuple[Sample, Sample]]:
    made = samples()
    return list(zip(made[0:6:2], made[1:6:2], strict=True))


def figures(loss: float, network: Any) -> dict[str, float]:
    """The loss, and the gradient of each weight seen along a direction of its own, and its size."""
    found = {"loss": loss}
    for name, weight in sorted(network.named_parameters()):
        generator = torch.Generator().manual_seed(len(name))
        direction = torch.randn(weight.shape, generator=generator)
        gradient = weight.grad.float()
        found[f"{name}: along"] = float((gradient * direction).sum() / direction.norm())
        found[f"{name}: size"] = float(gradient.norm())
    return found


async def collected(policy: Any, step: int) -> list[Sample]:
    return samples()


def by_trl(name: str, dtype: torch.dtype, folder: Path) -> dict[str, float]:
    """The figures of a loss as our TRL engine computes it, in three micro-batches.

    They hold what is logged of it and verl computes too: entropy where it pays, kl where there is a
    reference, and the clip ratio of a loss that clips.
    """
    from trl import GRPOConfig

    from workup.engines.settings import EngineSettings
    from workup.engines.trl.arguments import policy_arguments
    from workup.engines.trl.playing import PlayedSteps
    from workup.engines.trl.policy import Correction, PolicyTrainer
    from workup.engines.trl.scoring import scoring
    from workup.engines.trl.trainer import NAMES, TrlHooks

    given = {"epsilon": EPSILON, **LOSSES[name]}
    settings, network = EngineSettings(**given), model(0, dtype)
    frozen = reference(dtype) if settings.beta else None
    arguments = GRPOConfig(**policy_arguments(settings, folder, 1, cpu=True), beta=0.0)
    playing = PlayedSteps(collected, engine_world.Toy(network), 1, ahead=False)
    with scoring(network), scoring(frozen) if frozen is not None else nullcontext():
        trainer = PolicyTrainer(
            model=network,
            args=arguments,
            processing_class=engine_world.tokenizer(),
            playing=playing,
            reference=frozen,
            beta=settings.beta,
            micro_batch=3,
            correction=Correction(own=False, cap=None),
            hooks=TrlHooks(lambda step, metrics: None, lambda: False, period=2, keep=1),
        )
        trainer.current_gradient_accumulation_steps = 1
        parts = trainer.parts()
        trainer.state.global_step = 1  # as in a later iteration: ratios are far from 1
        total = 0.0
        for part in parts:
            loss = trainer.part_loss(network.train(), part)
            loss.backward()
            total += float(loss.detach())
    means = {NAMES.get(name, name): value for name, value in trainer._means.items()}
    told = [*(["entropy"] if settings.entropy else []), "kl", "clip_ratio"]
    return figures(total, network) | {name: means[name] for name in told if name in means}


def lesson_by_trl(name: str, dtype: torch.dtype, folder: Path) -> dict[str, float]:
    """The figures of a stage without sampling, in several micro-batches."""
    from transformers import TrainingArguments

    from workup.engines.settings import EngineSettings
    from workup.engines.trl.arguments import plain_arguments
    from workup.engines.trl.preference import PreferenceTrainer
    from workup.engines.trl.scoring import scoring
    from workup.engines.trl.trainer import ImitationTrainer, TrlHooks

    settings = EngineSettings()
    network = reference(dtype) if name == "dpo" else model(0, dtype)
    own: dict[str, Any] = {
        "model": network,
        "args": TrainingArguments(**plain_arguments(settings, settings.sft, folder, 1, cpu=True)),
        "processing_class": engine_world.tokenizer(),
        "micro_batch": 4,
        "hooks": TrlHooks(lambda step, metrics: None, lambda: False, period=1, keep=1),
    }
    with scoring(network):
        if name == "sft":
            packed = [pack(tree) for tree in demonstrations()]
            trainer: Any = ImitationTrainer(**own, batches=iter([packed]))
        else:
            trainer = PreferenceTrainer(**own, batches=[pairs()], beta=BETA)
            network.load_state_dict(model(0, dtype).state_dict())  # the reference is computed
        total = 0.0
        for part in trainer.parts():
            loss = trainer.part_loss(network.train(), part)
            loss.backward()
            total += float(loss.detach())
    return figures(total, network)


def key(name: str, dtype: torch.dtype) -> str:
    return f"{name}, {str(dtype).removeprefix('torch.')}"


if __name__ == "__main__":
    every = {
        key(name, dtype): by_trl(name, dtype, Path("build/losses"))
        for name in LOSSES
        for dtype in TOLERANCE
    } | {
        key(name, dtype): lesson_by_trl(name, dtype, Path("build/losses"))
        for name in LESSONS
        for dtype in TOLERANCE
    }
    KEPT.write_text(json.dumps(every, indent=1), encoding="utf-8")
