"""What the methods of the sequential consultation share (CRAFT and its baseline).

These are the settings, the environment, the warm start and the stages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from workup.core.case import Case
from workup.core.ports import Environment, Reward, Teaching
from workup.core.stages import GrpoStage, SftStage, Stage
from workup.rl.credit import Normalise, zscore


class ConsultationSettings(BaseModel):
    """The settings of all these methods; the methods' READMEs give the reasons for the defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    penalty: float = Field(
        0.2, ge=0, description="taken off a trajectory without a valid diagnosis"
    )
    normalise: Normalise = Field(
        "batch_std", description="how returns become advantages; group_std is GRPO as printed"
    )
    focus: float = Field(
        0.5, ge=0, le=1, description="warm start: share of its questions about what the patient has"
    )


class ConsultationMethod(ABC):
    """A `Method` without its `reward`: a warm start, then GRPO."""

    paper: str
    summary: str
    settings: type[Any] = ConsultationSettings
    environment: Mapping[str, Any] = {"name": "consultation"}
    printed: Mapping[str, Any] = {"loss_type": "grpo", "reward": {"normalise": "group_std"}}
    """CRAFT prints formulas (Sec. 3.4) and no values."""

    @abstractmethod
    def reward(self, settings: Any, environment: Environment) -> Reward:
        """The reward of an episode, in which these methods differ."""

    def stages(self, settings: Any, environment: Environment) -> Sequence[Stage]:
        return (
            SftStage("warm start", Teaching(focus=settings.focus).demonstrate),
            GrpoStage(
                "grpo",
                self.reward(settings, environment),
                zscore(settings.normalise),
                fits=self.fits(settings),
            ),
        )

    def fits(self, settings: Any) -> Callable[[Case], None]:
        """Raises UserError for a case that the reward cannot score; by default it accepts all."""
        return lambda case: None
