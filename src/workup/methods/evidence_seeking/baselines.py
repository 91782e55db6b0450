"""The baselines of evidence-seeking diagnosis: rewards with a part less, and imitation alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

from pydantic import Field

from workup.core.case import Source
from workup.core.errors import UserError
from workup.core.ports import Demonstration, Environment, Teaching
from workup.core.shapes import FrozenModel
from workup.core.stages import Method, SftStage, Stage
from workup.environments.evidence import seeking
from workup.methods.base.printed import with_reward
from workup.methods.evidence_seeking import (
    IMITATION,
    PRINTED,
    TWO_TURNS,
    EvidenceSettings,
    RankedSettings,
    RewardSettings,
    paid_by,
    stages,
)
from workup.methods.evidence_seeking.ranked import RewardWeights
from workup.prepare.verified_answers import kept
from workup.roles.judges.exact import CredulousRanking, ExactRanking


class BinarySettings(RewardSettings):
    """What can be set where R_d = 1 for a hit anywhere in the list."""

    def weights(self) -> RewardWeights:
        return RewardWeights(rank="binary", B_e=self.bonus, P_h=self.hack, P_f=self.malformed)


class SingleTauSettings(RewardSettings):
    """What can be set where R_d has the same τ in every turn."""

    tau: float = Field(0.8, ge=0, description="τ of all lists; Table 3 has 0.8 and 1.5")

    def weights(self) -> RewardWeights:
        return RewardWeights(self.tau, self.tau, "ranked", self.bonus, self.hack, self.malformed)


class UnpaidExaminations(RankedSettings):
    """What can be set where R_e = 0."""

    bonus: float = Field(0.0, ge=0, le=0, description="B_e: nothing is paid for examinations")


class UnpunishedHacks(RankedSettings):
    """What can be set where P_h = 0."""

    hack: float = Field(0.0, ge=0, le=0, description="P_h: nothing is taken off for a hack")


class UnseenHacks(RankedSettings):
    """What can be set where the judge of lists looks for no hacks."""

    hack: float = Field(0.0, ge=0, le=0, description="P_h: this judge sees no hack")


class OneTurnSettings(RewardSettings):
    """What can be set where nothing is ordered."""

    bonus: float = Field(0.0, ge=0, le=0, description="B_e: nothing is ordered")


class DemonstratedSettings(EvidenceSettings):
    """What can be set where demonstrations are imitated."""

    cases: int = Field(
        1000, ge=0, description="training cases that are demonstrated, each once; 0 is all of them"
    )


class NoSettings(FrozenModel):
    """There is nothing to set but `tuning` and `lora`."""


def credulous(settings: RewardSettings, environment: Environment) -> Sequence[Stage]:
    """Paid by a judge that looks for no hacks; what is measured is still judged by the exact one.

    A name for a group of diseases is a hit if the truth is in the group.
    """
    world = seeking(environment)
    if not isinstance(world.ranking, ExactRanking):
        raise UserError(
            "no-hack-detection has a judge of lists of its own: leave out roles.ranking"
        )
    paying = copy(world)
    paying.ranking = CredulousRanking(world.catalogue)
    return paid_by(paying, settings, world)


def demonstrated(settings: DemonstratedSettings, environment: Environment) -> Sequence[Stage]:
    """The base model, and what imitation of demonstrations makes of it."""
    seeking(environment)
    return (SftStage("sft", Teaching(focus=settings.focus).demonstrate, settings.cases),)


def imitated(settings: NoSettings, environment: Environment) -> Sequence[Stage]:
    """Imitates every turn that `workup prepare verified-answers` kept of a case (ES-12)."""
    seeking(environment)
    return (SftStage("verified answers", verified, size=0),)


def verified(source: Source, environment: Environment, seed: int, index: int) -> Demonstration:
    """The kept turns of the index-th training case; all of them are imitated.

    Raises UserError for a case without any.
    """
    case = source.train[index]
    turns = kept(case)
    if not turns:
        raise UserError(
            f"case '{case.id}' of {source.name} has no verified answers: `workup prepare "
            "verified-answers` makes a file in which all have"
        )
    return Demonstration(environment.open(case), turns)


def _baseline(
    summary: str,
    settings: type[RewardSettings | DemonstratedSettings],
    stages: Callable[[Any, Environment], Sequence[Stage]] = stages,
    printed: Mapping[str, Any] = PRINTED,
    environment: Mapping[str, Any] = TWO_TURNS,
) -> Method:
    paper = (
        "a baseline of Reinforcement Learning for Evidence-Seeking Diagnostic Reasoning with "
        "Large Language Models (2026)"
    )
    return Method(paper, summary, settings, environment, stages, printed)


_RANKED = with_reward(PRINTED, tau=0.8, tau_informed=1.5)
_ONE_TURN = {"max_turns": 1, "told": "record"}

baselines: Mapping[str, Method] = {
    "binary-list": _baseline(
        "ranked lists paid 1 for a hit anywhere, whatever its place and the list's length",
        BinarySettings,
    ),
    "single-tau": _baseline(
        "ranked lists paid by rank and length, with one τ for lists with and without results",
        SingleTauSettings,
        printed=with_reward(PRINTED, tau=0.8),
    ),
    "no-examination-reward": _baseline(
        "ranked lists and the diagnosis are paid, the orders themselves are not",
        UnpaidExaminations,
        printed=with_reward(_RANKED, bonus=0.0),
    ),
    "no-hack-penalty": _baseline(
        "ranked lists and orders are paid, and a hack costs no more than the hit",
        UnpunishedHacks,
        printed=with_reward(_RANKED, hack=0.0),
    ),
    "no-hack-detection": _baseline(
        "ranked lists are paid by a judge that takes a name for a group for the disease",
        UnseenHacks,
        credulous,
        with_reward(_RANKED, hack=0.0),
    ),
    "direct-diagnosis": _baseline(
        "one turn with the whole record, then a diagnosis; nothing is ordered",
        OneTurnSettings,
        printed={**with_reward(PRINTED, bonus=0.0), "environment": _ONE_TURN},
        environment={"name": "evidence", **_ONE_TURN},
    ),
    "demonstrated": _baseline(
        "imitates ranked lists, orders and diagnoses; nothing is reinforced",
        DemonstratedSettings,
        demonstrated,
        IMITATION,
    ),
    "verified-sft": Method(
        paper=(
            "a stage of Reinforcement Learning for Evidence-Seeking Diagnostic Reasoning with "
            "Large Language Models (2026)"
        ),
        summary=(
            "imitates a strong model's lists, orders and diagnoses that were verified afterwards"
        ),
        settings=NoSettings,
        environment=TWO_TURNS,
        stages=imitated,
        printed=IMITATION,
    ),
}
