"""What the methods of evidence-seeking diagnosis share (the paper's and its baselines).

These are the settings, the environment, the warm start and the stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from workup.case import Case
from workup.environments.evidence import EvidenceSeeking, seeking
from workup.ports import Credit, Environment, Teaching
from workup.rewards.ranked import Weights, fits, ranked_reward
from workup.rl.credit import Normalise, to_go, turn_zscore, zscore
from workup.stages import GrpoStage, SftStage, Stage

Assign = Literal["turn", "to-go", "trajectory"]


class EvidenceSettings(BaseModel):
    """The settings of all these methods; the methods' READMEs give the reasons for the defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    focus: float = Field(
        0.5, ge=0, le=1, description="warm start: share of its examinations that are informative"
    )


class RewardSettings(EvidenceSettings):
    """Settings of the methods that reward lists, orders and diagnoses."""

    bonus: float = Field(0.1, ge=0, description="B_e: worth of examinations that differentiate")
    hack: float = Field(0.3, ge=0, description="P_h: taken off a turn with a hack in its list")
    malformed: float = Field(0.5, ge=0, description="P_f: taken off for each error of format")
    credit: Assign = Field(
        "to-go", description="rewards to advantages: turn (each its own), to-go or trajectory"
    )
    normalise: Normalise = Field(
        "batch_std", description="what to-go and trajectory divide by; group_std is GRPO's"
    )

    def weights(self) -> Weights:
        return Weights(B_e=self.bonus, P_h=self.hack, P_f=self.malformed)


class EvidenceMethod:
    """A `Method`: a warm start on lists of the exact posterior, then GRPO over all turns."""

    paper = (
        "a baseline of Reinforcement Learning for Evidence-Seeking Diagnostic Reasoning with "
        "Large Language Models (2026)"
    )
    summary: str
    settings: type[Any] = RewardSettings
    environment: Mapping[str, Any] = {"name": "evidence", "max_turns": 2}

    def stages(self, settings: Any, environment: Environment) -> Sequence[Stage]:
        world, weights = seeking(environment), settings.weights()
        return (
            warm_start(settings),
            GrpoStage(
                "grpo",
                ranked_reward(world, weights),
                credit(settings),
                fits=self.fits(world, weights),
            ),
        )

    def fits(self, world: EvidenceSeeking, weights: Weights) -> Callable[[Case], None]:
        """Raises UserError for cases that nobody can judge."""
        return lambda case: fits(world, weights)


def warm_start(settings: EvidenceSettings) -> SftStage:
    """The same warm start for all, so that the methods differ only in what follows."""
    return SftStage("warm start", Teaching(focus=settings.focus).demonstrate)


def credit(settings: RewardSettings) -> Credit:
    """From the turns' rewards to advantages."""
    if settings.credit == "turn":
        return turn_zscore()
    return to_go(settings.normalise) if settings.credit == "to-go" else zscore(settings.normalise)
