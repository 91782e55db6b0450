"""The plain outcome reward: right or wrong, nothing else. The baseline that every other method is compared with."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from workup.case import Source
from workup.credit import Normalise, zscore
from workup.environments.consultation import Consultation
from workup.environments.teacher import Teaching
from workup.episode import Batch, Scores
from workup.ports import Imitate, Instruments, Reinforce, Reward, Stage
from workup.signals.outcome import naive, score_each


class Settings(BaseModel):
    """What can be set; the README beside this file says why the defaults are what they are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    penalty: float = Field(0.2, ge=0, description="taken off a trajectory without a valid diagnosis")
    normalise: Normalise = Field("batch_std", description="how returns become advantages; group_std is GRPO as printed")
    max_turns: int = Field(10, ge=1, description="T: the diagnosis has to be among the first T actions")
    focus: float = Field(0.5, ge=0, le=1, description="warm start: share of its questions about what the patient has")


class Outcome:
    """R(τ) = acc(d̂, d*), less a penalty where there is no valid diagnosis."""

    paper = "the naive reward of CRAFT (Li, Shung, Stadie 2026), section 3.3"
    summary = "plain outcome reward: 1 for the right diagnosis, 0 for a wrong one"
    settings: type[Settings] = Settings

    def environment(self, source: Source, settings: Settings) -> Consultation:
        return Consultation(source.items, source.diagnoses, settings.max_turns)

    def stages(self, settings: Settings) -> Sequence[Stage]:
        return (
            Imitate("warm start", Teaching(focus=settings.focus).demonstrate),
            Reinforce("grpo", outcome_reward(settings), zscore(settings.normalise)),
        )


def outcome_reward(settings: Settings) -> Reward:
    async def reward(batch: Batch, instruments: Instruments) -> Scores:
        return await score_each(batch, instruments.judge, lambda episode, acc: naive(episode, acc, settings.penalty))

    return reward


method = Outcome()
