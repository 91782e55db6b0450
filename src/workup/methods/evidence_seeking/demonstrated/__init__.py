"""Supervised fine-tuning on demonstrations alone, without reinforcement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from workup.core.ports import Environment, Teaching
from workup.core.stages import SftStage, Stage
from workup.environments.evidence import seeking
from workup.methods.evidence_seeking.shared import IMITATION, EvidenceMethod, EvidenceSettings


class Settings(EvidenceSettings):
    """What can be set; the README beside this file says why the defaults are what they are."""

    cases: int = Field(
        1000, ge=0, description="training cases that are demonstrated, each once; 0 is all of them"
    )


class Demonstrated(EvidenceMethod):
    """The base model, and what imitation of demonstrations makes of it."""

    summary = "imitates ranked lists, orders and diagnoses; nothing is reinforced"
    settings: type[Settings] = Settings
    printed: Mapping[str, Any] = IMITATION

    def stages(self, settings: Settings, environment: Environment) -> Sequence[Stage]:
        seeking(environment)
        return (SftStage("sft", Teaching(focus=settings.focus).demonstrate, settings.cases),)


method = Demonstrated()
