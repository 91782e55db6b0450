"""The engine on verl 0.9: many machines, by Ray, FSDP and vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workup.core.ports import Engine, Processes
    from workup.core.stages import Stage
    from workup.engines import EngineJob
    from workup.engines.settings import EngineSettings


def refuse(settings: EngineSettings, stages: Sequence[Stage]) -> None:
    """Raises UserError for a setting without a counterpart, also among those of a single stage."""
    from workup.engines.verl.mapping import refuse, refuse_stages

    values = settings.model_dump()
    refuse(values)
    refuse_stages(values, stages)


def processes() -> Processes:
    """This process alone: it plays every episode, and verl's workers belong to Ray."""
    from workup.engines.verl.alone import Alone

    return Alone()


def open(job: EngineJob) -> Engine:
    """The engine, before any of verl's workers is started: the first sample starts them.

    Raises UserError where verl is missing or does not fit, and for settings that it cannot follow.
    """
    from workup.engines.verl.present import check_libraries

    check_libraries()
    from workup.engines.verl.engine import VerlEngine

    return VerlEngine(job)
