"""Evidence-seeking diagnosis: ranked lists are paid by the truth's rank and their length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, Literal

from pydantic import Field

from workup.core.ports import Credit, Environment, Teaching
from workup.core.shapes import FrozenModel
from workup.core.stages import GrpoStage, Method, SftStage, Stage
from workup.environments.evidence import EvidenceSeeking, seeking
from workup.methods.base.printed import with_reward
from workup.methods.evidence_seeking.ranked import Rank, RewardWeights, fits, ranked_reward
from workup.rl.credit import Normalise, place_zscore, to_go, zscore

Assign = Literal["turn", "to-go", "trajectory"]
TWO_TURNS: Mapping[str, Any] = {"name": "evidence", "max_turns": 2}

PRINTED: Mapping[str, Any] = {
    "batch": 4,
    "group": 4,
    "steps": 7193,
    "lr": 5e-7,
    "beta": 0.001,
    "max_tokens": 4096,
    "environment": {"max_turns": 2},
    "reward": {
        "bonus": 0.1,
        "hack": 0.3,
        "malformed": 0.5,
        "credit": "turn",
        "normalise": "group_std",
    },
}
"""What the paper prints for its reinforcement (Sec. 4.1, Table 9).

A train batch is 16 episodes: 4 of each of 4 cases. 959 cases, 30 times, are 7,193 such updates. The
paper plays 64 cases at a time and updates 16 times on them; here every update has fresh episodes.
"""

IMITATION: Mapping[str, Any] = {
    "lora": {"r": 8, "alpha": 16},
    "bf16": True,
    "tuning": {"lr": 5e-5, "lr_schedule": "cosine", "epochs": 15.0},
    "environment": {"max_turns": 2},
}
"""What the paper prints for its supervised fine-tuning (App. A.8)."""


class EvidenceSettings(FrozenModel):
    """What method and baselines share; the README gives the reasons for the defaults."""

    focus: float = Field(
        0.5, ge=0, le=1, description="warm start: share of its examinations that are informative"
    )


class RewardSettings(EvidenceSettings):
    """Settings of the methods that reward lists, orders and diagnoses."""

    bonus: float = Field(0.1, ge=0, description="B_e: worth of examinations that differentiate")
    hack: float = Field(0.3, ge=0, description="P_h: taken off a turn with a hack in its list")
    malformed: float = Field(0.5, ge=0, description="P_f: taken off for each error of format")
    credit: Assign = Field(
        "to-go",
        description="rewards to advantages: turn (each its own, among the same turn of the group), "
        "to-go or trajectory",
    )
    normalise: Normalise = Field(
        "batch_std", description="what to-go and trajectory divide by; group_std is GRPO's"
    )

    def weights(self) -> RewardWeights:
        return RewardWeights(B_e=self.bonus, P_h=self.hack, P_f=self.malformed)


class RankedSettings(RewardSettings):
    """Settings of the methods that pay a list by the truth's place and the list's length."""

    tau: float = Field(0.8, ge=0, description="τ_1 of lists written from preliminary information")
    tau_informed: float = Field(1.5, ge=0, description="τ_2 of lists written with results")

    def weights(self) -> RewardWeights:
        return RewardWeights(
            self.tau, self.tau_informed, "ranked", self.bonus, self.hack, self.malformed
        )


class Settings(RankedSettings):
    """What can be set; the README beside this file says why the defaults are what they are."""

    rank: Rank = Field(
        "ranked", description="R_d: ranked (Eq. 3), or binary (1 for a hit anywhere in the list)"
    )

    def weights(self) -> RewardWeights:
        return replace(super().weights(), rank=self.rank)


def stages(settings: RewardSettings, environment: Environment) -> Sequence[Stage]:
    """A warm start on lists of the exact posterior, then GRPO over all turns."""
    world = seeking(environment)
    return paid_by(world, settings, world)


def paid_by(
    paying: EvidenceSeeking, settings: RewardSettings, world: EvidenceSeeking
) -> Sequence[Stage]:
    """A warm start, then GRPO over all turns of `world`; the judges of `paying` decide the pay."""
    weights = settings.weights()
    reward, settle = ranked_reward(paying, weights)
    looked = cache(partial(fits, world, weights))  # the same for all cases
    reinforce = GrpoStage(
        "grpo", reward, credit(settings), fits=lambda case: looked(), settle=settle
    )
    return SftStage("warm start", Teaching(focus=settings.focus).demonstrate), reinforce


def credit(settings: RewardSettings) -> Credit:
    """From the turns' rewards to advantages."""
    if settings.credit == "turn":
        return place_zscore()
    return to_go(settings.normalise) if settings.credit == "to-go" else zscore(settings.normalise)


# Each turn is paid R_d + R_e − P_h·1[hack], or −P_f·n_f where its format is wrong (Eq. 1).
method = Method(
    paper=(
        "Reinforcement Learning for Evidence-Seeking Diagnostic Reasoning with Large Language "
        "Models (2026)"
    ),
    summary=(
        "ranked candidates, ordered examinations, then a diagnosis; paid by rank, length and "
        "examinations"
    ),
    settings=Settings,
    environment=TWO_TURNS,
    stages=stages,
    printed=with_reward(PRINTED, rank="ranked", tau=0.8, tau_informed=1.5),
)
