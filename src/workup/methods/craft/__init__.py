"""CRAFT: a right diagnosis is worth more if more of the critical evidence was gathered first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from workup.core.case import Case
from workup.core.episode import Batch, Episode, Score, Scores
from workup.core.errors import UserError
from workup.core.ports import Environment, Instruments, Reward, Teaching
from workup.core.shapes import FrozenModel
from workup.core.stages import GrpoStage, Method, SftStage, Stage, any_case
from workup.environments.base.encounter import Encounter
from workup.methods.base.outcome import malformed, naive, score_each
from workup.methods.base.printed import with_reward
from workup.metrics.facts import (
    critical_ratio,
    criticality_recall,
    information_recall,
    need_weights,
    noise_ratio,
)
from workup.rl.credit import Normalise, zscore

Variant = Literal["crit", "crit+aux", "info-recall", "naive"]
CONSULTATION: Mapping[str, Any] = {"name": "consultation"}
PRINTED: Mapping[str, Any] = {"loss_type": "grpo", "reward": {"normalise": "group_std"}}
"""CRAFT prints formulas (Sec. 3.4) and no values."""


class ConsultationSettings(FrozenModel):
    """What method and baseline share; the README gives the reasons for the defaults."""

    penalty: float = Field(
        0.2, ge=0, description="taken off a trajectory without a valid diagnosis"
    )
    normalise: Normalise = Field(
        "batch_std", description="how returns become advantages; group_std is GRPO as printed"
    )
    focus: float = Field(
        0.5, ge=0, le=1, description="warm start: share of its questions about what the patient has"
    )


class Settings(ConsultationSettings):
    """What can be set; the README beside this file says why the defaults are what they are."""

    variant: Variant = Field(
        "crit",
        description="the reward: Crit., Crit.+Aux, information recall (all w = 1) or naive (acc)",
    )
    alpha: float = Field(
        1.0, ge=0, description="α: worth of the whole critical evidence, given a right diagnosis"
    )
    beta: float = Field(0.5, ge=0, description="β: worth of a right diagnosis without any evidence")
    lam: float = Field(0.1, ge=0, description="λ: cost of using all T actions for evidence")
    gamma: float = Field(
        0.2, ge=0, description="γ: worth of critical-info ratio minus noise ratio (crit+aux only)"
    )


def warm_then_grpo(
    settings: ConsultationSettings, reward: Reward, fits: Callable[[Case], None] = any_case
) -> Sequence[Stage]:
    """A warm start, then GRPO paid by `reward`; `fits` refuses a case that it cannot score."""
    return (
        SftStage("warm start", Teaching(focus=settings.focus).demonstrate),
        GrpoStage("grpo", reward, zscore(settings.normalise), fits=fits),
    )


def stages(settings: Settings, environment: Environment) -> Sequence[Stage]:
    reward = craft_reward(settings, environment.max_turns)
    if settings.variant not in ("crit", "crit+aux"):
        return warm_then_grpo(settings, reward)
    parted = isinstance(environment, Encounter) and environment.share is not None

    def fits(case: Case) -> None:
        if parted and any(fact.weight is None for fact in case.all_facts):
            raise UserError(
                f"case '{case.id}': environment.share hides facts of the presentation, which have "
                "no criticality weight: leave it out, or take reward.variant=info-recall"
            )
        need_weights(case)

    return warm_then_grpo(settings, reward, fits)


def R(CR: float, acc: float, t: int, T: int, α: float, β: float, λ: float) -> float:
    """Section 3.3: R(τ) = (α·CR(τ) + β)·acc(d̂, d*) − λ·t/T."""
    return (α * CR + β) * acc - λ * t / T


def craft_reward(settings: Settings, T: int) -> Reward:
    """The reward of the chosen variant, on the last turn of each trajectory."""

    async def reward(batch: Batch, instruments: Instruments) -> Scores:
        return await score_each(
            batch, instruments.judge, lambda episode, acc: score(episode, acc, settings, T)
        )

    return reward


def score(episode: Episode, acc: float, settings: Settings, T: int) -> Score:
    """One trajectory's score; its `parts` are the terms of the sum.

    t counts the observations, as Algorithm 1 does: every action but the diagnosis, malformed ones
    included. "info-recall" is CR with all w = 1. An auxiliary ratio over no discovered facts counts
    0 (CR-8). Raises UserError if a variant needs criticality weights and the case has none.
    """
    s = settings
    if s.variant == "naive":
        return naive(episode, acc, s.penalty)
    CR = information_recall(episode) if s.variant == "info-recall" else criticality_recall(episode)
    t = episode.questions
    penalty = -s.penalty if malformed(episode) else 0.0
    aux = (
        s.gamma * ((critical_ratio(episode) or 0.0) - (noise_ratio(episode) or 0.0))
        if s.variant == "crit+aux"
        else 0.0
    )
    total = R(CR, acc, t, T, s.alpha, s.beta, s.lam) + penalty + aux
    terms = {
        "α·CR·acc": s.alpha * CR * acc,
        "β·acc": s.beta * acc,
        "λ·t/T": -s.lam * t / T,
        "malformed": penalty,
        "aux": aux,
    }
    return Score.at_end(episode, total, **terms)


method = Method(
    paper=(
        "Learning What Matters: Criticality-Guided Reinforcement Learning for Sequential "
        "Clinical Diagnosis (2026)"
    ),
    summary=(
        "criticality-weighted reward: a right diagnosis pays more, the more critical evidence "
        "stands behind it"
    ),
    settings=Settings,
    environment=CONSULTATION,
    stages=stages,
    printed=with_reward(PRINTED, variant="crit"),
)
