"""DPO on the policy's own episodes: a right one and a wrong one of the same case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from workup.core.ports import Environment
from workup.core.stages import DpoStage, SearchStage, Stage
from workup.methods.base.outcome import correctness
from workup.methods.promed.shared import (
    LORA,
    CaseSettings,
    OutcomeSettings,
    QuestioningMethod,
    warm_start,
)
from workup.rl.explorers import best_and_worst, samples


class Settings(CaseSettings, OutcomeSettings):
    """What can be set; the README beside this file says why the defaults are what they are."""

    samples: int = Field(8, ge=2, description="episodes per case, the greedy one among them")


class Dpo(QuestioningMethod):
    """Prefers, case by case, the best right episode to the worst wrong one.

    The patient's tokens are not in the loss.
    """

    summary = "prefers the policy's own right episodes to its wrong ones (DPO)"
    settings: type[Settings] = Settings
    printed: Mapping[str, Any] = {
        **LORA,
        "dpo": {"lr": 5e-6, "batch": 64, "epochs": 1.0},
        "reward": {"cases": 0, "penalty": 0.0},
    }

    def stages(self, settings: Settings, environment: Environment) -> Sequence[Stage]:
        look = samples(settings.samples)
        found = SearchStage(
            "pairs", look, correctness(settings.penalty), best_and_worst, settings.cases
        )
        return warm_start(settings), found, DpoStage("dpo", of=found.name)


method = Dpo()
