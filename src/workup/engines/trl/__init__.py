"""The engine on TRL: one machine or several, CPU or GPU, whole models or adapters."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from workup.core.errors import UserError
from workup.core.ports import DOCTOR, LIVE
from workup.core.stages import GrpoStage
from workup.engines.trl.sharding import refuse_sharding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workup.core.ports import Engine, Processes
    from workup.core.stages import Stage
    from workup.engines import EngineJob
    from workup.engines.settings import EngineSettings


def refuse(settings: EngineSettings, stages: Sequence[Stage]) -> None:
    """Raises UserError under FSDP, and where no step can be played ahead.

    Every other setting is TRL's or has a counterpart there.
    """
    refuse_sharding()
    if settings.ahead:
        _refuse_ahead(stages)


def _refuse_ahead(stages: Sequence[Stage]) -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            "ahead=1 plays in one process only: several would exchange figures of the next step in "
            "the middle of an update; take ahead=0, or start one process"
        )
    for stage in stages:
        if isinstance(stage, GrpoStage) and {LIVE, DOCTOR} & {*stage.scorers, *stage.models}:
            raise UserError(
                f"ahead=1: the reward of '{stage.name}' asks the policy that is trained meanwhile; "
                "take ahead=0, or a reward that asks a frozen one (ProMed: "
                "reward.model_aware=false reward.understanding=identity)"
            )


def processes() -> Processes:
    """The processes of `accelerate launch` or torchrun; else this one alone."""
    from workup.engines.trl.accelerated import AccelerateProcesses

    return AccelerateProcesses()


def open(job: EngineJob) -> Engine:
    """The engine with the job's weights in this process's memory."""
    from workup.engines.trl.engine import Following, TrlEngine

    policy = cast("Following", job.follow(*job.load()))
    return TrlEngine(policy, job.settings, job.folder, resume=True, place=job.place)
