"""The engine on TRL: one machine or several, CPU or GPU, whole models or adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from workup.engines.trl.sharding import refuse_sharding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workup.core.ports import Engine, Processes
    from workup.core.stages import Stage
    from workup.engines import EngineJob
    from workup.engines.settings import EngineSettings


def refuse(settings: EngineSettings, stages: Sequence[Stage]) -> None:
    """Raises UserError under FSDP; every setting is TRL's or has a counterpart there."""
    refuse_sharding()


def processes() -> Processes:
    """The processes of `accelerate launch` or torchrun; else this one alone."""
    from workup.engines.trl.accelerated import AccelerateProcesses

    return AccelerateProcesses()


def open(job: EngineJob) -> Engine:
    """The engine with the job's weights in this process's memory."""
    from workup.engines.trl.engine import Following, TrlEngine

    policy = cast("Following", job.follow(*job.load()))
    return TrlEngine(policy, job.settings, job.folder, resume=True, place=job.place)
