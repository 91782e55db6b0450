"""The engine's settings, and how they translate into TRL's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

Schedule = Literal["constant", "linear", "cosine"]
Loss = Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo"]
Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[float, Field(ge=0)]


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LoraSettings(_Settings):
    """Low-rank adapters (peft): only they are trained and saved; the base weights stay fixed."""

    r: Positive = Field(default=8, description="rank of the adapters")
    alpha: Positive = Field(default=16, description="their scale is alpha / r (peft: lora_alpha)")
    targets: str | tuple[str, ...] = Field(
        default="all-linear", description="which layers get one (peft: target_modules)"
    )


class RateSettings(_Settings):
    """How the learning rate of a stage moves."""

    lr: NonNegative = Field(default=2e-3, description="peak learning rate (TRL: learning_rate)")
    lr_schedule: Schedule = Field(
        default="cosine", description="how it moves after the warm-up (TRL: lr_scheduler_type)"
    )
    warmup: NonNegative = Field(
        default=0.05,
        description="updates it rises over; below 1 a share of them (TRL: warmup_steps)",
    )


class SupervisedSettings(RateSettings):
    """The supervised warm start.

    `steps` and `batch` are read by whoever makes the demonstrations.
    """

    steps: Annotated[int, Field(ge=0)] = Field(default=200, description="how many updates")
    batch: Positive = Field(default=32, description="demonstrations per update, over all processes")


class TuningSettings(RateSettings):
    """A supervised stage on a method's own data.

    `epochs` and `batch` are read by whoever makes the batches.
    """

    epochs: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="how often each trajectory is learned"
    )
    batch: Positive = Field(default=32, description="trajectories per update, over all processes")
    lr: NonNegative = Field(default=1e-3, description="peak learning rate (TRL: learning_rate)")
    warmup: NonNegative = Field(
        default=0, description="updates it rises over; below 1 a share of them (TRL: warmup_steps)"
    )


class PreferenceSettings(RateSettings):
    """Direct preference optimisation.

    `epochs` and `batch` are read by whoever makes the batches.
    """

    beta: Annotated[float, Field(gt=0)] = Field(
        default=0.1, description="β: how dear it is to leave the policy that the stage started from"
    )
    epochs: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="how often each pair is learned"
    )
    batch: Positive = Field(default=32, description="pairs per update, over all processes")
    lr: NonNegative = Field(default=3e-4, description="peak learning rate (TRL: learning_rate)")
    warmup: NonNegative = Field(
        default=0, description="updates it rises over; below 1 a share of them (TRL: warmup_steps)"
    )


class EngineSettings(_Settings):
    """How the policy is updated. The names are TRL's, or say which of TRL's they are."""

    lr: NonNegative = Field(
        default=3e-4,
        description="peak learning rate of the reinforcement stage (TRL: learning_rate)",
    )
    lr_schedule: Schedule = Field(
        default="constant", description="how it moves after the warm-up (TRL: lr_scheduler_type)"
    )
    warmup: NonNegative = Field(
        default=0, description="updates it rises over; below 1 a share of them (TRL: warmup_steps)"
    )
    temperature: Annotated[float, Field(gt=0)] = Field(
        default=1.0,
        description=(
            "divides the logits; must be what episodes were sampled with, or the ratios are wrong"
        ),
    )
    loss_type: Loss = Field(
        default="grpo",
        description=(
            "how token losses are averaged: grpo is the mean over each sequence, then over "
            "sequences"
        ),
    )
    epsilon: NonNegative = Field(
        default=0.2, description="the ratio is clipped to [1 − epsilon, 1 + epsilon_high]"
    )
    epsilon_high: NonNegative | None = Field(
        default=None, description="upper clipping bound; epsilon when not given"
    )
    beta: NonNegative = Field(
        default=0.0,
        description="weight of the KL divergence to the policy that the stage started from",
    )
    entropy: NonNegative = Field(
        default=0.0, description="weight of the mean entropy per policy token (TRL: entropy_coef)"
    )
    num_iterations: Positive = Field(
        default=1, description="updates on each batch of episodes (TRL's µ)"
    )
    max_completion_length: Positive = Field(
        default=512, description="the constant that loss_type dr_grpo divides by, in tokens"
    )
    max_grad_norm: NonNegative = Field(
        default=1.0, description="gradients are scaled down to this norm; 0 switches it off"
    )
    micro_batch: Positive = Field(
        default=32,
        description=(
            "sequences per forward pass and process; changes memory and speed, never the gradient"
        ),
    )
    lora: LoraSettings | None = Field(
        default=None, description="train adapters instead of the whole model"
    )
    bf16: bool = Field(
        default=False, description="forward and backward passes in bfloat16 (mixed precision)"
    )
    gradient_checkpointing: bool = Field(
        default=False, description="recompute activations: about a fifth slower, much less memory"
    )
    save_every: Positive = Field(
        default=50, description="steps between two checkpoints; the last step always writes one"
    )
    save_total_limit: Positive = Field(
        default=1, description="how many checkpoints of a stage are kept"
    )
    report_to: tuple[str, ...] = Field(
        default=(), description="trackers: tensorboard, trackio, wandb; none by default"
    )
    seed: int = Field(default=0, description="seeds adapters and dropout")
    sft: SupervisedSettings = Field(
        default=SupervisedSettings(), description="the supervised warm start"
    )
    tuning: TuningSettings = Field(
        default=TuningSettings(), description="supervised stages on a method's own data"
    )
    dpo: PreferenceSettings = Field(
        default=PreferenceSettings(), description="direct preference optimisation"
    )

    @field_validator("report_to", mode="before")
    @classmethod
    def _several(cls, value: object) -> object:
        """One tracker may be written without a list: report_to=tensorboard."""
        return (value,) if isinstance(value, str) else value


def _common(settings: EngineSettings, folder: Path, cpu: bool, period: int) -> dict[str, Any]:
    """What all stages tell the Trainer; logs and checkpoints come every `period` and `save_every ·
    period` updates.
    """
    return {
        "output_dir": str(folder),
        "use_cpu": cpu,
        "seed": settings.seed,
        "bf16": settings.bf16,
        "activation_checkpointing": settings.gradient_checkpointing,
        "max_grad_norm": settings.max_grad_norm,
        "logging_steps": period,
        "save_strategy": "steps",
        "save_steps": settings.save_every * period,
        "report_to": list(settings.report_to),
        "disable_tqdm": True,
        "remove_unused_columns": False,
        # Samples are made per step, so there is nothing to skip; and a loss that is not finite must
        # show.
        "ignore_data_skip": True,
        "logging_nan_inf_filter": False,
        # The sampler shares the model: its configuration stays as it was.
        "use_cache": True,
        "ddp_find_unused_parameters": False,
        "ddp_broadcast_buffers": False,
    }


def _rate(lr: float, schedule: Schedule, warmup: float, updates: int) -> dict[str, Any]:
    kind = "constant_with_warmup" if schedule == "constant" else schedule
    return {
        "learning_rate": lr,
        "lr_scheduler_type": kind,
        "warmup_steps": warmup,
        "max_steps": updates,
    }


def plain_arguments(
    settings: EngineSettings, rate: RateSettings, folder: Path, steps: int, *, cpu: bool
) -> dict[str, Any]:
    """Keyword arguments of transformers' TrainingArguments for a stage of `steps` updates that
    samples nothing.
    """
    return _common(settings, folder, cpu, 1) | _rate(rate.lr, rate.lr_schedule, rate.warmup, steps)


def policy_arguments(
    settings: EngineSettings, folder: Path, steps: int, *, cpu: bool
) -> dict[str, Any]:
    """Keyword arguments of TRL's GRPOConfig for the reinforcement stage of `steps` batches of
    episodes.
    """
    mu = settings.num_iterations
    return (
        _common(settings, folder, cpu, mu)
        | _rate(settings.lr, settings.lr_schedule, settings.warmup, steps * mu)
        | {
            "temperature": settings.temperature,
            "loss_type": settings.loss_type,
            "epsilon": settings.epsilon,
            "epsilon_high": settings.epsilon_high,
            "entropy_coef": settings.entropy,
            "num_iterations": mu,
            "max_completion_length": settings.max_completion_length,
            # The estimator of the papers (k3), not TRL's ratio-weighted one.
            "use_bias_correction_kl": False,
            "disable_dropout": True,
            "router_aux_loss_coef": 0.0,
            # Without effect, since episodes come from elsewhere; TRL wants the numbers to divide.
            "per_device_train_batch_size": 2,
            "num_generations": 2,
        }
    )
