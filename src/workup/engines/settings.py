"""Settings that every engine understands: learning rates, clipping, adapters, checkpoints."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from workup.core.shapes import MOST, MOST_HELD, FrozenModel

Schedule = Literal["constant", "linear", "cosine"]
Loss = Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo"]
Positive = Annotated[int, Field(ge=1, le=MOST)]
Batch = Annotated[int, Field(ge=1, le=MOST_HELD)]
Epochs = Annotated[float, Field(gt=0, le=MOST_HELD)]
NonNegative = Annotated[float, Field(ge=0)]
OWN_TEACHER = "own"
# Settings that several stages have, each with a default of its own.
Rate = Annotated[NonNegative, Field(description="peak learning rate (TRL: learning_rate)")]
RateSchedule = Annotated[
    Schedule, Field(description="the learning rate after the warm-up (TRL: lr_scheduler_type)")
]
Warmup = Annotated[
    NonNegative,
    Field(description="updates in which it rises; below 1: their share of all (TRL: warmup_steps)"),
]


class LoraSettings(FrozenModel):
    """Low-rank adapters (peft): only they are trained and saved; the base weights stay fixed."""

    r: Annotated[int, Field(ge=1, le=65_536)] = Field(default=8, description="rank of the adapters")
    alpha: Positive = Field(default=16, description="their scale is alpha / r (peft: lora_alpha)")
    targets: str | tuple[str, ...] = Field(
        default="all-linear", description="which layers get one (peft: target_modules)"
    )
    merged: bool = Field(
        default=False,
        description="save the trained policy as whole weights, with the adapters merged in",
    )


class RateSettings(FrozenModel):
    """How the learning rate of a stage moves."""

    lr: Rate = 2e-3
    lr_schedule: RateSchedule = "cosine"
    warmup: Warmup = 0.05


class SupervisedSettings(RateSettings):
    """The supervised warm start.

    The code that makes the demonstrations reads `steps`, `batch`, `teacher` and `teacher_share`.
    """

    steps: Annotated[int, Field(ge=0, le=MOST)] = Field(default=200, description="how many updates")
    batch: Batch = Field(default=32, description="demonstrations per update, over all processes")
    teacher: str = Field(
        default=OWN_TEACHER,
        description=(
            "whose encounters are imitated: own (the method's own demonstrations), or an anchor's: "
            "greedy, random, ideal …"
        ),
    )
    teacher_share: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0,
        description="share of these encounters that the teacher plays; the others are the method's",
    )


class TuningSettings(RateSettings):
    """A supervised stage on a method's own data.

    The code that makes the batches reads `epochs` and `batch`.
    """

    epochs: Epochs = Field(
        default=1.0,
        description="how often each trajectory is learned, in whole batches: rounded up",
    )
    batch: Batch = Field(default=32, description="trajectories per update, over all processes")
    lr: Rate = 1e-3
    warmup: Warmup = 0


class PreferenceSettings(RateSettings):
    """Direct preference optimisation.

    The code that makes the batches reads `epochs` and `batch`.
    """

    beta: Annotated[float, Field(gt=0)] = Field(
        default=0.1,
        description="β: weight of the KL divergence to the policy that the stage started from",
    )
    epochs: Epochs = Field(
        default=1.0, description="how often each pair is learned, in whole batches: rounded up"
    )
    batch: Batch = Field(default=32, description="pairs per update, over all processes")
    lr: Rate = 3e-4
    warmup: Warmup = 0


class VerlSettings(FrozenModel):
    """What only engine=verl reads: the machines, and how the weights are spread over them."""

    nodes: Positive = Field(default=1, description="machines in the Ray cluster")
    gpus_per_node: Positive = Field(default=8, description="GPUs of each machine")
    rollout: Literal["vllm", "sglang"] = Field(default="vllm", description="who samples there")
    tensor_parallel: Positive = Field(
        default=1, description="GPUs that one sampling server spreads the weights over"
    )
    strategy: Literal["fsdp", "fsdp2"] = Field(
        default="fsdp2", description="how the trained weights are sharded over all GPUs"
    )
    offload: bool = Field(
        default=False, description="keep weights and optimiser in the machines' memory between uses"
    )


class EngineSettings(FrozenModel):
    """How the policy is updated. A description that names TRL says how TRL calls it."""

    lr: NonNegative = Field(
        default=3e-4,
        description="peak learning rate of the reinforcement stage (TRL: learning_rate)",
    )
    lr_schedule: RateSchedule = "constant"
    warmup: Warmup = 0
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
        default=None,
        description="upper clipping bound; epsilon when not given. Of cispo the bound of the ratio "
        "itself, at least 1; 1 + epsilon when not given",
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
    ahead: Literal[0, 1] = Field(
        default=0,
        description=(
            "1: a step's episodes are played while the step before it is trained on, with weights "
            "that are one step older"
        ),
    )
    importance_cap: Annotated[float, Field(ge=1)] | None = Field(
        default=None,
        # With it the trainer computes its own log-probabilities before the update, which takes one
        # more forward pass; clipping is about these.
        description=(
            "weighs each token by p_trainer / p_sampler, at most this; none: no such weight "
            "(TRL: vllm_importance_sampling_clip_max)"
        ),
    )
    max_grad_norm: NonNegative = Field(
        default=1.0, description="gradients are scaled down to this norm; 0 switches it off"
    )
    micro_batch: Batch = Field(
        default=32,
        description=(
            "sequences per forward pass and process; changes memory and speed, never the gradient "
            "or what is logged"
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
    seed: int = Field(default=0, ge=0, description="seeds adapters and dropout")
    sft: SupervisedSettings = Field(
        default=SupervisedSettings(), description="the supervised warm start"
    )
    tuning: TuningSettings = Field(
        default=TuningSettings(), description="supervised stages on a method's own data"
    )
    dpo: PreferenceSettings = Field(
        default=PreferenceSettings(), description="direct preference optimisation"
    )
    verl: VerlSettings = Field(default=VerlSettings(), description="engine=verl: many machines")

    @model_validator(mode="after")
    def _bounds_the_ratio(self) -> Self:
        if self.loss_type == "cispo" and self.highest < 1:
            raise ValueError(
                "loss_type=cispo bounds the ratio itself by epsilon_high, which has to be at least "
                "1: below it every token loses weight"
            )
        return self

    @property
    def highest(self) -> float:
        """`epsilon_high`, or what it is when not given."""
        if self.epsilon_high is None:
            return self.epsilon + (self.loss_type == "cispo")
        return self.epsilon_high

    @field_validator("report_to", mode="before")
    @classmethod
    def _several(cls, value: object) -> object:
        """One tracker may be written without a list: report_to=tensorboard."""
        return (value,) if isinstance(value, str) else value
