"""SFT on answers that turned out right, as `workup prepare verified-answers` keeps them (ES-12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from workup.core.case import Source
from workup.core.errors import UserError
from workup.core.ports import Demonstration, Environment
from workup.core.stages import SftStage, Stage
from workup.environments.evidence import seeking
from workup.methods.evidence_seeking.shared import IMITATION
from workup.prepare.verified_answers import kept


class Settings(BaseModel):
    """There is nothing to set but `tuning` and `lora`."""

    model_config = ConfigDict(extra="forbid", frozen=True)


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


class VerifiedSft:
    """Imitates every turn that was kept of each training case."""

    paper = (
        "a stage of Reinforcement Learning for Evidence-Seeking Diagnostic Reasoning with Large "
        "Language Models (2026)"
    )
    summary = "imitates a strong model's lists, orders and diagnoses that were verified afterwards"
    settings: type[Any] = Settings
    environment: Mapping[str, Any] = {"name": "evidence", "max_turns": 2}
    printed: Mapping[str, Any] = IMITATION

    def stages(self, settings: Settings, environment: Environment) -> Sequence[Stage]:
        seeking(environment)
        return (SftStage("verified answers", verified, size=0),)


method = VerifiedSft()
