"""GRPO in interactive questioning, rewarded for the right answer alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from workup.core.ports import Environment
from workup.core.stages import GrpoStage, Stage
from workup.methods.base.outcome import correctness
from workup.methods.promed.shared import (
    REINFORCEMENT,
    OutcomeSettings,
    QuestioningMethod,
    warm_start,
)
from workup.rl.credit import Normalise, zscore


class Settings(OutcomeSettings):
    """What can be set; the README beside this file says why the defaults are what they are."""

    normalise: Normalise = Field(
        "batch_std", description="how returns become advantages; group_std is GRPO as printed"
    )


class Grpo(QuestioningMethod):
    """R(τ) = 1(A' = A*): every token of an episode has the same advantage."""

    summary = "interactive questioning, paid for the right answer alone (GRPO)"
    settings: type[Settings] = Settings
    printed: Mapping[str, Any] = {
        **REINFORCEMENT,
        "reward": {"normalise": "group_std", "penalty": 0.0},
    }

    def stages(self, settings: Settings, environment: Environment) -> Sequence[Stage]:
        return warm_start(settings), GrpoStage(
            "grpo", correctness(settings.penalty), zscore(settings.normalise)
        )


method = Grpo()
