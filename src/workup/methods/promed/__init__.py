"""ProMed: a question is rewarded by the Shapley values of the facts that it made understood."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, Literal

from pydantic import Field

from workup.core.episode import Batch, Episode, Score, Scores
from workup.core.ports import (
    DOCTOR,
    LIVE,
    REFERENCE,
    Credit,
    Environment,
    Instruments,
    Reward,
    Teaching,
)
from workup.core.shapes import MOST_HELD, FrozenModel
from workup.core.stages import GrpoStage, KeptStage, Method, SearchStage, SftStage, Stage
from workup.methods.base.outcome import accuracy, malformed
from workup.methods.base.printed import with_reward
from workup.methods.promed.question_gains import FactOrder, Facts, Weighing, question_gains
from workup.methods.promed.shapley import ShapleySettings, Truncation
from workup.methods.promed.understanding import Understanding, WrittenSummary, identified
from workup.rl.credit import Baseline, Normalise, to_go, token_zscore, zscore
from workup.rl.explorers import best, tree_search
from workup.rl.treesearch import Extent, Search
from workup.roles.judges.entailment import EntailmentJudge

Process = Literal["sig", "ig", "none"]
Assign = Literal["token", "token-all", "to-go", "trajectory"]
Shares = Literal["clipped", "printed"]
CHECKER = "checker"
SUMMARIES = 0.25  # share of demonstrations that state facts at once, as prompts of scorers do
NOTHING = 1e-9  # a smaller sum of gains is taken for 0: the gains have cancelled, up to rounding
QUESTIONS: Mapping[str, Any] = {"name": "questioning", "max_turns": 11}

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


class QuestioningSettings(FrozenModel):
    """The settings of ProMed and its baselines; the README gives the reasons for the defaults."""

    focus: float = Field(
        0.5, ge=0, le=1, description="warm start: share of its questions about what the patient has"
    )


class OutcomeSettings(QuestioningSettings):
    """Settings of the methods that play episodes and learn whether the answer was right."""

    penalty: float = Field(0.2, ge=0, description="taken off an episode without an answer")


class Settings(OutcomeSettings, Extent):
    """What can be set; the README beside this file says why the defaults are what they are."""

    alpha: float = Field(4.0, ge=0, description="α: worth of a right answer")
    beta: float = Field(2.0, ge=0, description="β: worth of all information")
    handed: float = Field(
        0.25,
        ge=0,
        le=1,
        description="λ_q/α: share of a right answer's worth that goes to the questions",
    )
    shares: Shares = Field(
        "clipped", description="w_t: shares of max(SIG, 0), or of SIG as printed (Eq. 9)"
    )
    process: Process = Field(
        "sig", description="what a question gains: sig (Shapley), ig (all facts alike) or none"
    )
    credit: Assign = Field(
        "to-go", description="rewards to advantages: token (Eq. 13), token-all, to-go, trajectory"
    )
    normalise: Normalise = Field(
        "batch_std", description="what to-go and trajectory divide by; group_std is GRPO's"
    )
    baseline: Baseline = Field(
        "last", description="what to-go compares with: last, leave-one-out or reached"
    )
    model_aware: bool = Field(
        True,
        description="Shapley values under the live policy; else under the one the stage began with",
    )
    permutations: int = Field(
        4, ge=1, le=MOST_HELD, description="most orders of the facts per case and step"
    )
    epsilon: float = Field(
        0.01, ge=0, description="ε (nats): sampling ends when φ changes by less on average"
    )
    antithetic: bool = Field(True, description="every second order is the one before it backwards")
    truncation: Truncation = Field(
        "none", description="none, literal (Algorithm 1 as printed) or zero"
    )
    order: FactOrder = Field(
        "permutation",
        description="facts are shown to the scorer as they join, or in canonical order",
    )
    facts: Facts = Field(
        "hidden", description="F: the facts that the presentation does not state, or all"
    )
    understanding: Literal["identity", "written"] = Field(
        "identity",
        description=(
            "U_t: what the patient told, or the doctor's own summary, checked by the role checker"
        ),
    )
    search: bool = Field(True, description="stage 1: imitate what a tree search finds")
    cases: int = Field(
        200,
        ge=0,
        description="stage 1: training cases that are searched, each once; 0 is all of them",
    )
    search_alpha: float = Field(2.0, ge=0, description="stage 1: α")
    search_beta: float = Field(1.0, ge=0, description="stage 1: β")

    def weighing(self, environment: Environment) -> Weighing:
        plan = ShapleySettings(self.permutations, self.epsilon, self.antithetic, self.truncation)
        return Weighing(environment, plan, self.order, self.facts)

    @property
    def scorers(self) -> tuple[str, ...]:
        """Which scorer the reward asks, if any."""
        return (LIVE if self.model_aware else REFERENCE,) if self.process == "sig" else ()

    @property
    def models(self) -> tuple[str, ...]:
        """Which models the reward asks, if any."""
        asked = self.understanding == "written" and self.process != "none"
        return (DOCTOR, CHECKER) if asked else ()


def stages(settings: Settings, environment: Environment) -> Sequence[Stage]:
    """Both stages of ProMed behind a warm start: imitation of what a search finds, then GRPO."""
    s = settings
    reward = promed_reward(s, environment)
    reinforce = GrpoStage("grpo", reward, credit(s), s.scorers, models=s.models)
    if not s.search:
        return warm_start(s), reinforce
    look = tree_search(Search(**s.model_dump(include=set(Extent.model_fields))))
    # A search uses only R(τ), so it does not matter how R is distributed over the turns.
    searched = s.model_copy(update={"alpha": s.search_alpha, "beta": s.search_beta})
    value = promed_reward(searched, environment)
    found = SearchStage("tree search", look, value, best, s.cases, s.scorers, s.models)
    return warm_start(s), found, KeptStage("sft", of=found.name), reinforce


def warm_start(settings: QuestioningSettings) -> SftStage:
    """The same warm start for all, so that the methods differ only in what follows."""
    return SftStage(
        "warm start", Teaching(focus=settings.focus, summary_share=SUMMARIES).demonstrate
    )


def R(correct: float, SIG: Sequence[float], α: float, β: float) -> float:
    """Eq. 7: R(τ) = α·1(A' = A*) + β·Σ_t SIG(q_t)."""
    return α * correct + β * sum(SIG)


def distribute(
    correct: float, SIG: Sequence[float], α: float, β: float, λ_q: float, shares: Shares = "clipped"
) -> tuple[tuple[float, ...], float]:
    """The rewards of the questions and of the answer (Eqs. 9 and 10).

    R(q_t) = β·SIG(q_t) + λ_q·w_t·1(A' = A*) for question t. "clipped": w_t = max(SIG(q_t), 0) /
    Σ_j max(SIG(q_j), 0), within [0, 1]. "printed": w_t = SIG(q_t) / Σ_j SIG(q_j); gains and losses
    that nearly cancel make shares of any size and sign. R(A') = λ_a·1(A' = A*) with λ_a = α − λ_q,
    or all of α if the denominator is 0. So they always sum to R(τ) (Eq. 11).

    Example: SIG of 0.5, −0.25 and 0.25 has clipped shares of 2/3, 0 and 1/3, and printed shares of
    1, −1/2 and 1/2.
    """
    gained = list(SIG) if shares == "printed" else [max(gain, 0.0) for gain in SIG]
    whole = sum(gained) if abs(sum(gained)) > NOTHING else 0.0
    w = [gain / whole if whole else 0.0 for gain in gained]
    λ_a = α - λ_q if whole else α
    return tuple(
        β * gain + λ_q * share * correct for gain, share in zip(SIG, w, strict=True)
    ), λ_a * correct


def credit(settings: Settings) -> Credit:
    """From the actions' rewards to advantages."""
    if settings.credit == "trajectory":
        return zscore(settings.normalise)
    if settings.credit == "to-go":
        return to_go(settings.normalise, baseline=settings.baseline)
    return token_zscore(count="all" if settings.credit == "token-all" else "actions")


def promed_reward(settings: Settings, environment: Environment) -> Reward:
    """The rewards of all actions, each on its turn; facts are weighed as told in `environment`."""
    weighing = settings.weighing(environment)

    async def reward(batch: Batch, instruments: Instruments) -> Scores:
        episodes = list(chain.from_iterable(batch))
        accs, gained = await asyncio.gather(
            asyncio.gather(*(accuracy(episode, instruments.judge) for episode in episodes)),
            gains(episodes, settings, weighing, instruments),
        )
        cases = {episode.case.id: episode.case for episode in episodes} if settings.scorers else {}
        given = {id: weighing.giveaways(case) for id, case in cases.items()}
        if any(given.values()):
            _warn()
        scores = iter(
            [
                score(episode, acc, SIG, settings, given.get(episode.case.id))
                for episode, acc, SIG in zip(episodes, accs, gained, strict=True)
            ]
        )
        return [[next(scores) for _ in group] for group in batch]

    return reward


@cache
def _warn() -> None:
    """Warns once per process; the scores name the cases."""
    logging.getLogger(__name__).warning(
        "some facts contain the answer even as the patient tells them: their Shapley values say "
        "nothing about evidence; the measure 'giveaways' counts them"
    )


async def gains(
    episodes: Sequence[Episode],
    settings: Settings,
    weighing: Weighing,
    instruments: Instruments,
) -> Sequence[Sequence[float]]:
    """SIG(q_t), or its replacement by the settings, for every turn of every episode."""
    if settings.process == "none":
        return [(0.0,) * len(episode.turns) for episode in episodes]
    scorer = instruments.scorer(settings.scorers[0]) if settings.scorers else None
    reads = understanding(settings, instruments)
    return await question_gains(episodes, weighing, reads, scorer, instruments.key)


def understanding(settings: Settings, instruments: Instruments) -> Understanding:
    if settings.understanding == "identity":
        return identified
    return WrittenSummary(instruments.model(DOCTOR), EntailmentJudge(instruments.model(CHECKER)))


def score(
    episode: Episode,
    acc: float,
    SIG: Sequence[float],
    settings: Settings,
    giveaways: int | None = None,
) -> Score:
    """One trajectory's score, action by action; the sum is R(τ), less the penalty.

    The penalty is for a trajectory without an answer. `SIG` has one entry per turn. `giveaways`, if
    they were counted, is a measure of the score and changes no reward.
    """
    s = settings
    answered = not malformed(episode)
    penalty = 0.0 if answered else -s.penalty
    questions = SIG[:-1] if answered else SIG
    asked, answer = distribute(acc, questions, s.alpha, s.beta, s.handed * s.alpha, s.shares)
    turns = (*asked, answer) if answered else (*asked[:-1], asked[-1] + penalty)
    parts = {"α·correct": s.alpha * acc, "β·ΣSIG": s.beta * sum(SIG), "malformed": penalty}
    return Score(turns, parts, {} if giveaways is None else {"giveaways": float(giveaways)})


# R(τ) = α·1(A' = A*) + β·Σ_t SIG(q_t), distributed over the actions.
method = Method(
    paper=(
        "ProMed: Shapley Information Gain Guided Reinforcement Learning for Proactive Medical "
        "LLMs (2026)"
    ),
    summary=(
        "questions paid by the Shapley values of the facts they bring to light, rewards "
        "distributed over actions"
    ),
    settings=Settings,
    environment=QUESTIONS,
    stages=stages,
    printed=with_reward(
        {**IMITATION, **REINFORCEMENT},
        alpha=4.0,
        beta=2.0,
        handed=0.25,
        shares="printed",
        process="sig",
        credit="token",
        model_aware=True,
        antithetic=False,
        truncation="literal",
        epsilon=0.01,
        facts="all",
        understanding="written",
        penalty=0.0,
        search_alpha=2.0,
        search_beta=1.0,
        exploration=2.2,
        width=8,
        iterations=5,
        depth=10,
        expand=1,
    ),
)
