"""TRL's engine that trains the last layer alone; all other layers are frozen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from workup.core.errors import UserError
from workup.core.ports import Engine, Processes
from workup.core.stages import Stage
from workup.engines import EngineJob, trl
from workup.engines.settings import EngineSettings


class LastLayer:
    """What `engine=last_layer:engine` stands for."""

    def refuse(self, settings: EngineSettings, stages: Sequence[Stage]) -> None:
        trl.refuse(settings, stages)
        if settings.lora is not None:
            raise UserError("engine last_layer: it trains no adapters; leave out lora.r")

    def processes(self) -> Processes:
        return trl.processes()

    def open(self, job: EngineJob) -> Engine:
        def load() -> tuple[Any, Any]:
            model, tokenizer = job.load()
            model.requires_grad_(False)
            model.base_model.layers[-1].requires_grad_(True)
            return model, tokenizer

        return trl.open(replace(job, load=load))


engine = LastLayer()
