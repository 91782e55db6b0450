"""The engine's settings as TRL's arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workup.engines.settings import EngineSettings, RateSettings, Schedule


def _common(settings: EngineSettings, folder: Path, cpu: bool, period: int) -> dict[str, Any]:
    """The Trainer's arguments that all stages share.

    Logs come every `period` updates, checkpoints every `save_every · period`.
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
        # Samples are made per step, so a resumed run skips no data. A loss that is not finite must
        # be logged as it is.
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
    """Keyword arguments of TrainingArguments for a stage of `steps` updates without sampling."""
    return _common(settings, folder, cpu, 1) | _rate(rate.lr, rate.lr_schedule, rate.warmup, steps)


def policy_arguments(
    settings: EngineSettings, folder: Path, steps: int, *, cpu: bool
) -> dict[str, Any]:
    """Keyword arguments of TRL's GRPOConfig for a reinforcement stage of `steps` batches."""
    mu = settings.num_iterations
    return (
        _common(settings, folder, cpu, mu)
        | _rate(settings.lr, settings.lr_schedule, settings.warmup, steps * mu)
        | {
            "temperature": settings.temperature,
            "loss_type": settings.loss_type,
            "epsilon": settings.epsilon,
            "epsilon_high": settings.highest,
            "entropy_coef": settings.entropy,
            "num_iterations": mu,
            "max_completion_length": settings.max_completion_length,
            # The estimator of the papers (k3), not TRL's ratio-weighted one.
            "use_bias_correction_kl": False,
            "disable_dropout": True,
            "router_aux_loss_coef": 0.0,
            # No effect, since episodes are given; TRL requires that the numbers divide.
            "per_device_train_batch_size": 2,
            "num_generations": 2,
        }
    )
