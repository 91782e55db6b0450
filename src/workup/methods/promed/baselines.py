"""The baselines of ProMed: imitation, preferences, and GRPO paid by the answer alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from pydantic import Field

from workup.cases.order import Order
from workup.core.case import Case, Kind, Source
from workup.core.episode import DIAGNOSE, Message
from workup.core.ports import Demonstration, Environment
from workup.core.shapes import MOST_HELD
from workup.core.stages import DpoStage, GrpoStage, KeptStage, Method, SearchStage, SftStage, Stage
from workup.environments.base.lexical import chinese
from workup.environments.base.withheld import withheld
from workup.environments.questioning import gold
from workup.methods.base.outcome import correctness
from workup.methods.base.printed import with_reward
from workup.methods.promed import (
    IMITATION,
    LORA,
    QUESTIONS,
    REINFORCEMENT,
    OutcomeSettings,
    QuestioningSettings,
    warm_start,
)
from workup.rl.credit import Normalise, zscore
from workup.rl.explorers import best, best_and_worst, samples

MORE, MORE_CHINESE = "What else can you tell me?", "您还有什么要告诉我的吗？"
RIGHT = 1.0  # R of a right answer: nothing is better


class CaseSettings(QuestioningSettings):
    """Settings of the methods whose data are made from training cases."""

    cases: int = Field(
        1000,
        ge=0,
        description="training cases that the data are made from, each once; 0 is all of them",
    )


class GoldSettings(CaseSettings):
    """What can be set of SFT-GT."""

    told: Literal["all", "partial"] = Field(
        "all", description="what the question tells: all facts, or what encounters open with"
    )


class BestSettings(CaseSettings, OutcomeSettings):
    """What can be set of SFT."""

    samples: int = Field(
        5,
        ge=1,
        le=MOST_HELD,
        description="episodes per case: a greedy one, and more where that one is not right",
    )


class PairSettings(CaseSettings, OutcomeSettings):
    """What can be set of DPO."""

    samples: int = Field(8, ge=2, description="episodes per case, the greedy one among them")


class GrpoSettings(OutcomeSettings):
    """What can be set of GRPO."""

    normalise: Normalise = Field(
        "batch_std", description="how returns become advantages; group_std is GRPO as printed"
    )


def answered(
    settings: GoldSettings, source: Source, environment: Environment, seed: int, index: int
) -> Demonstration:
    """Question and gold answer of a training case, whether or not the policy knew it."""
    case = source.train[Order(len(source.train), seed)[index]]
    shown = whole(case) if settings.told == "all" else case
    answer = environment.write(DIAGNOSE, gold(case))
    return Demonstration(environment.open(shown), ((answer, ()),))


def whole(case: Case) -> Case:
    """The case with its hidden facts, as the patient tells them, added to the presentation."""
    facts = case.truth.facts
    lines = (case.presentation, *(withheld(case, fact) for fact in facts))
    return replace(
        case,
        presentation="\n".join(lines),
        given=(*case.given, *facts),
        truth=replace(case.truth, facts=()),
    )


def dialogue(source: Source, environment: Environment, seed: int, index: int) -> Demonstration:
    """Every fact of a training case is asked for in the record's order, as long as there are turns.

    No question is preferred to another. No patient is played, since its answers are the facts. The
    last turn is not a question, since the patient's last reply would ask for the answer.
    """
    case = source.train[Order(len(source.train), seed)[index]]
    facts = case.truth.facts[: max(0, environment.max_turns - 2)]
    more = MORE_CHINESE if chinese(case.presentation) else MORE
    asked = [environment.write(Kind.HISTORY.value, fact.item or more) for fact in facts]
    answers = [(Message("user", withheld(case, fact)),) for fact in facts]
    answer = environment.write(DIAGNOSE, gold(case))
    return Demonstration(environment.open(case), (*zip(asked, answers, strict=True), (answer, ())))


def best_of_n(settings: BestSettings, environment: Environment) -> Sequence[Stage]:
    """Imitates the first episode of each case whose answer is right, token by token."""
    look, reward = samples(settings.samples, enough=RIGHT), correctness(settings.penalty)
    found = SearchStage("best of n", look, reward, best, settings.cases)
    return warm_start(settings), found, KeptStage("sft", of=found.name)


def preferred(settings: PairSettings, environment: Environment) -> Sequence[Stage]:
    """Prefers, case by case, the best right episode to the worst wrong one.

    The patient's tokens are not in the loss.
    """
    look, reward = samples(settings.samples), correctness(settings.penalty)
    found = SearchStage("pairs", look, reward, best_and_worst, settings.cases)
    return warm_start(settings), found, DpoStage("dpo", of=found.name)


def reinforced(settings: GrpoSettings, environment: Environment) -> Sequence[Stage]:
    """R(τ) = 1(A' = A*): every token of an episode has the same advantage."""
    credit = zscore(settings.normalise)
    return warm_start(settings), GrpoStage("grpo", correctness(settings.penalty), credit)


_PAPER = (
    "a baseline of ProMed: Shapley Information Gain Guided Reinforcement Learning for Proactive "
    "Medical LLMs (2026)"
)

baselines: Mapping[str, Method] = {
    "sft-gt": Method(
        paper=_PAPER,
        summary="imitates the gold answers to the questions, without any dialogue",
        settings=GoldSettings,
        environment=QUESTIONS,
        stages=lambda s, _: (
            warm_start(s),
            SftStage("sft-gt", partial(answered, s), s.cases),
        ),
        printed=IMITATION,
    ),
    "dialogt": Method(
        paper=_PAPER,
        summary="imitates dialogues made from the cases' facts, then the gold answer",
        settings=CaseSettings,
        environment=QUESTIONS,
        stages=lambda s, _: (warm_start(s), SftStage("dialogt", dialogue, s.cases)),
        printed=IMITATION,
    ),
    "sft": Method(
        paper=_PAPER,
        summary=(
            "imitates the policy's own episodes with a right answer, without a search (best of n)"
        ),
        settings=BestSettings,
        environment=QUESTIONS,
        stages=best_of_n,
        printed=with_reward(IMITATION, samples=5, penalty=0.0),
    ),
    "dpo": Method(
        paper=_PAPER,
        summary="prefers the policy's own right episodes to its wrong ones (DPO)",
        settings=PairSettings,
        environment=QUESTIONS,
        stages=preferred,
        printed={
            **LORA,
            "dpo": {"lr": 5e-6, "batch": 64, "epochs": 1.0},
            "reward": {"cases": 0, "penalty": 0.0},
        },
    ),
    "grpo": Method(
        paper=_PAPER,
        summary="interactive questioning, paid for the right answer alone (GRPO)",
        settings=GrpoSettings,
        environment=QUESTIONS,
        stages=reinforced,
        printed={**REINFORCEMENT, "reward": {"normalise": "group_std", "penalty": 0.0}},
    ),
}
