"""The engine on TRL: one machine or several, CPU or GPU, whole models or adapters."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from workup.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workup.engines import Job
    from workup.engines.settings import EngineSettings
    from workup.ports import Engine, Processes
    from workup.stages import Stage


# The sizes are those of docs/install.md, from the bytes for each parameter of `bench.fitting`.
WHOLE = (
    "FSDP shards the policy, and with engine=trl every process samples from a whole one: start "
    "without it (80 GB train 3 B parameters, or 12 B with lora.r=8; 141 GB 5 B, or 21 B), or use "
    "engine=verl"
)


def refuse(settings: EngineSettings, stages: Sequence[Stage]) -> None:
    """Raises UserError under FSDP; every setting is TRL's or has a counterpart there."""
    if os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true", "yes", "on"):
        raise UserError(WHOLE)


def processes() -> Processes:
    """The processes of `accelerate launch` or torchrun; else this one alone."""
    from workup.engines.trl.accelerated import AccelerateProcesses

    return AccelerateProcesses()


def open(job: Job) -> Engine:
    """The engine with the job's weights in this process's memory."""
    from workup.engines.trl.engine import Following, TrlEngine

    policy = cast("Following", job.follow(*job.load()))
    return TrlEngine(policy, job.settings, job.folder, resume=True, place=job.place)
