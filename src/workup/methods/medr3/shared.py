"""What the methods of reasoning with searches share (Med-R³ and its baselines)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from workup.core.ports import Environment, Teaching
from workup.core.stages import GrpoStage, SftStage, Stage
from workup.environments.reasoning import Reasoning, reasoning_of
from workup.methods.base.outcome import Marking, Partly
from workup.methods.base.searching import AUTO, TRIGRAMS, EncoderName, trigrams
from workup.methods.medr3.graphs import LongestOf
from workup.methods.medr3.progressive import Component, Reads, check, progressive
from workup.retrieval.dense import Encoder
from workup.rl.credit import Normalise, zscore


class ReasoningSettings(BaseModel):
    """The settings of all these methods; the methods' READMEs give the reasons for the defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    least: int = Field(3, ge=1, description="θ: searches from which their number pays (Eq. 8)")
    partly: float = Field(
        0.5, ge=0, le=1, description="what a partly right answer pays; 0 makes it a wrong one"
    )
    marking: Marking = Field(
        "strict",
        description=(
            "which partly right answers pay: strict, those that assert what they name and name no "
            "more than 1 / partly diseases; printed, all"
        ),
    )
    normalise: Normalise = Field(
        "group_std", description="how returns become advantages; group_std is GRPO as printed"
    )


class GraphSettings(ReasoningSettings):
    """Settings of a method that compares reasoning with references."""

    longest: LongestOf = Field(
        "shorter",
        description="K: the shorter of the two longest paths (as printed), or the reference's",
    )
    encoder: EncoderName = Field(
        AUTO,
        validate_default=True,
        description="semantic likeness: a sentence-transformers model, trigrams or auto",
    )


PRINTED: Mapping[str, Any] = {
    "batch": 256,
    "group": 16,
    "lr": 1e-6,
    "steps": 41,
    "concurrency": 1024,
    "environment": {"passages": 5},
    "reward": {"least": 3, "partly": 0.5, "marking": "printed", "normalise": "group_std"},
}
"""What Med-R³ prints for its training (Eqs. 3 and 8, experimental setup).

`steps` are those of one stage: an epoch of 10,521 questions in batches of 256. A rollout batch is
64 questions with 16 rollouts each.
"""


class ReasoningMethod(ABC):
    """A `Method` of reinforcement stages, each with the components of its reward."""

    paper: str
    summary: str
    settings: type[Any] = ReasoningSettings
    environment: Mapping[str, Any] = {"name": "reasoning", "max_turns": 6}
    printed: Mapping[str, Any] = PRINTED

    def stages(self, settings: Any, environment: Environment) -> Sequence[Stage]:
        world = reasoning_of(environment)
        reads = self.reads(settings, world)
        made: list[Stage] = [SftStage("warm start", Teaching().demonstrate)]
        for name, components in self.rewards(settings).items():
            reward, settle = progressive(world, components, reads)
            credit, fits = zscore(settings.normalise), check(world, components)
            made.append(GrpoStage(name, reward, credit, fits=fits, settle=settle))
        return made

    @abstractmethod
    def rewards(self, settings: Any) -> Mapping[str, Sequence[Component]]:
        """The stages' names, in the order of training, each with the components of its reward."""

    def reads(self, settings: Any, world: Reasoning) -> Reads:
        """How answers and reasoning are read."""
        diagnoses, library = world.record.diagnoses, world.library
        partly = Partly(settings.partly, settings.marking, diagnoses, library)
        if not isinstance(settings, GraphSettings):
            return Reads(trigrams, least=settings.least, partly=partly)
        name = settings.encoder
        embed = trigrams if name == TRIGRAMS else Encoder(name).documents
        return Reads(embed, settings.longest, settings.least, partly)
