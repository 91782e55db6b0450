"""What the methods of interactive questioning share (ProMed's baselines).

These are the settings, the environment and the warm start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from workup.core.ports import Teaching
from workup.core.stages import SftStage

# The share of demonstrations that state facts at once, as prompts of scorers do.
SUMMARIES = 0.25


class QuestioningSettings(BaseModel):
    """The settings of all these methods; the methods' READMEs give the reasons for the defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    focus: float = Field(
        0.5, ge=0, le=1, description="warm start: share of its questions about what the patient has"
    )


class OutcomeSettings(QuestioningSettings):
    """Settings of the methods that play episodes and learn whether the answer was right."""

    penalty: float = Field(0.2, ge=0, description="taken off an episode without an answer")


class CaseSettings(QuestioningSettings):
    """Settings of the methods whose data are made from training cases."""

    cases: int = Field(
        1000,
        ge=0,
        description="training cases that the data are made from, each once; 0 is all of them",
    )


LORA: Mapping[str, Any] = {"lora": {"r": 8}, "environment": {"max_turns": 11}}
"""What ProMed prints for all of its training (App. H.2): adapters, and 10 questions at most."""

IMITATION: Mapping[str, Any] = {
    **LORA,
    "tuning": {"lr": 5e-5, "batch": 64, "epochs": 1.0},
    "reward": {"cases": 0},
}
"""The same for supervised fine-tuning, with the rate for Qwen3 models (1e-4 for LLaMA models)."""

REINFORCEMENT: Mapping[str, Any] = {**LORA, "steps": 200, "batch": 1, "group": 4}
"""The same for GRPO."""


class QuestioningMethod:
    """The part of a `Method` that all of these share."""

    paper = (
        "a baseline of ProMed: Shapley Information Gain Guided Reinforcement Learning for "
        "Proactive Medical LLMs (2026)"
    )
    summary: str
    settings: type[Any] = QuestioningSettings
    environment: Mapping[str, Any] = {"name": "questioning", "max_turns": 11}
    printed: Mapping[str, Any] = IMITATION


def warm_start(settings: QuestioningSettings) -> SftStage:
    """The same warm start for all, so that the methods differ only in what follows."""
    return SftStage(
        "warm start", Teaching(focus=settings.focus, summary_share=SUMMARIES).demonstrate
    )
