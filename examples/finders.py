"""Finders: each turn is rewarded for the critical findings that it reveals."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from workup.core.episode import Batch, Episode, Score, Scores
from workup.core.ports import Environment, Instruments, Reward, Teaching
from workup.core.stages import GrpoStage, Method, SftStage, Stage
from workup.methods.base.outcome import malformed, score_each
from workup.rl.credit import turn_zscore


class Settings(BaseModel):
    """What can be set, as `reward.kappa=0.3`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kappa: float = Field(
        0.2, ge=0, description="κ: worth of one pathognomonic finding, beside 1 for the diagnosis"
    )
    penalty: float = Field(
        0.2, ge=0, description="taken off a trajectory without a valid diagnosis"
    )


def finders_reward(settings: Settings) -> Reward:
    async def reward(batch: Batch, instruments: Instruments) -> Scores:
        return await score_each(
            batch, instruments.judge, lambda episode, acc: score(episode, acc, settings)
        )

    return reward


def score(episode: Episode, acc: float, settings: Settings) -> Score:
    """r_t = κ · Σ w_f / 3 over the facts that turn t was the first to reveal.

    The last turn adds acc.
    """
    weights = {fact.id: fact.weight or 0 for fact in episode.case.truth.facts}
    found = [sum(weights.pop(id, 0) for id in turn.observation.evidence) for turn in episode.turns]
    turns = [settings.kappa * w / 3 for w in found]
    less = -settings.penalty if malformed(episode) else 0.0
    return Score(
        (*turns[:-1], turns[-1] + acc + less), {"found": sum(turns), "acc": acc, "malformed": less}
    )


def stages(settings: Settings, environment: Environment) -> Sequence[Stage]:
    """A warm start, then GRPO with an advantage for each turn."""
    return (
        SftStage("warm start", Teaching().demonstrate),
        GrpoStage("grpo", finders_reward(settings), turn_zscore()),
    )


method = Method(
    paper="an example, no paper",
    summary="rewards each turn for the critical findings it reveals",
    settings=Settings,
    environment={"name": "consultation"},
    stages=stages,
    printed={},
)
