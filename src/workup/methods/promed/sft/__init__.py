"""SFT on the policy's own episodes that ended with the right answer (best of n, no search)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from workup.core.ports import Environment
from workup.core.stages import KeptStage, SearchStage, Stage
from workup.methods.base.outcome import correctness
from workup.methods.promed.shared import (
    IMITATION,
    CaseSettings,
    OutcomeSettings,
    QuestioningMethod,
    warm_start,
)
from workup.rl.explorers import best, samples

RIGHT = 1.0  # R of a right answer: nothing is better


class Settings(CaseSettings, OutcomeSettings):
    """What can be set; the README beside this file says why the defaults are what they are."""

    samples: int = Field(
        5, ge=1, description="episodes per case: a greedy one, and more where that one is not right"
    )


class Sft(QuestioningMethod):
    """Imitates the first episode of each case whose answer is right, token by token."""

    summary = "imitates the policy's own episodes with a right answer, without a search (best of n)"
    settings: type[Settings] = Settings
    printed: Mapping[str, Any] = {
        **IMITATION,
        "reward": {**IMITATION["reward"], "samples": 5, "penalty": 0.0},
    }

    def stages(self, settings: Settings, environment: Environment) -> Sequence[Stage]:
        look = samples(settings.samples, enough=RIGHT)
        found = SearchStage("best of n", look, correctness(settings.penalty), best, settings.cases)
        return warm_start(settings), found, KeptStage("sft", of=found.name)


method = Sft()
