"""The consultation with the models that can play a role in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from pydantic import Field

from workup.core.case import Case, Source
from workup.core.episode import Action, Observation, Turn
from workup.core.ports import Model
from workup.environments.base.discovery import Discovery
from workup.environments.base.encounter import MatchSettings, PartSettings
from workup.environments.base.interpreter import INTERPRETER, Interpreter
from workup.environments.base.recorded import RecordedConsultation
from workup.environments.base.records import SimulatedRecord
from workup.environments.base.trouble import Trouble, TroubleSettings
from workup.roles.judges.entailment import EntailmentJudge

ROLES = ("simulator", "checker", INTERPRETER)

summary = "one request per turn to a hidden record, then the diagnosis (CRAFT)"


class Settings(PartSettings, MatchSettings, TroubleSettings):
    """What can be set in a consultation."""

    closed: bool = Field(
        False,
        description="whether what is not understood or not on record is answered as normal or not "
        "done; the rules say so",
    )


class Consultation(RecordedConsultation):
    """An `Environment`: the record answers, and language models can play two roles beside it."""

    role_names = ROLES
    simulator: SimulatedRecord | None = None
    checker: Discovery | None = None

    def with_models(self, models: Mapping[str, Model]) -> Consultation:
        """With a "simulator", what the record lacks is answered by that model (CR-2).

        With a "checker", what an answer reveals is what that model finds in it as well (CR-5). With
        an "interpreter", that model reads requests that are not understood by their words.
        """
        if not models:
            return self
        other = copy(self)
        if INTERPRETER in models:
            other = self.with_interpreter(Interpreter(models[INTERPRETER]))
        if "simulator" in models:
            other.simulator = SimulatedRecord(other, models["simulator"])
        if "checker" in models:
            other.checker = Discovery(EntailmentJudge(models["checker"]))
        return other

    async def answer(self, case: Case, past: Sequence[Turn], action: Action) -> Observation:
        """Raises RolloutError when a model gives no usable answer."""
        if self.simulator is None:
            true = await self.interpreted(case, action)
        else:
            true = await self.simulator.answer(case, past, action)
        seen = self.hear(case, past, action, true)
        return seen if self.checker is None else await self.checker.found(case, seen)


def arguments(source: Source, settings: Settings) -> dict[str, Any]:
    """What a consultation over the cases of `source` is made of, by its parameters' names."""
    return {
        "items": source.items,
        "diagnoses": source.diagnoses,
        "max_turns": settings.max_turns,
        "share": settings.share,
        "trouble": Trouble.of(source, settings),
        "matcher": settings.matcher(source.items),
        "closed": settings.closed,
    }


def open(source: Source, settings: Settings) -> Consultation:
    """The consultation over the cases of `source`."""
    return Consultation(**arguments(source, settings))
