"""SFT-GT: the gold answer to the question, without a dialogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from workup.cases.order import Order
from workup.core.case import Case, Source
from workup.core.episode import DIAGNOSE
from workup.core.ports import Demonstration, Environment
from workup.core.stages import SftStage, Stage
from workup.environments.questioning import gold
from workup.methods.promed.shared import CaseSettings, QuestioningMethod, warm_start


class Settings(CaseSettings):
    """What can be set; the README beside this file says why the defaults are what they are."""

    told: Literal["all", "partial"] = Field(
        "all", description="what the question tells: all facts, or what encounters open with"
    )


class SftGt(QuestioningMethod):
    """SFT on question and gold answer of every training case, whether or not the policy knew it."""

    summary = "imitates the gold answers to the questions, without any dialogue"
    settings: type[Settings] = Settings

    def stages(self, settings: Settings, environment: Environment) -> Sequence[Stage]:
        def demonstrate(
            source: Source, environment: Environment, seed: int, index: int
        ) -> Demonstration:
            case = source.train[Order(len(source.train), seed)[index]]
            shown = whole(case) if settings.told == "all" else case
            return Demonstration(
                environment.open(shown), ((environment.write(DIAGNOSE, gold(case)), ()),)
            )

        return warm_start(settings), SftStage("sft-gt", demonstrate, settings.cases)


def whole(case: Case) -> Case:
    """The case with its hidden facts added to what the presentation states."""
    facts = case.truth.facts
    lines = (case.presentation, *(fact.text for fact in facts))
    return replace(
        case,
        presentation="\n".join(lines),
        given=(*case.given, *facts),
        truth=replace(case.truth, facts=()),
    )


method = SftGt()
