"""The consultation with the models that can play a role in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

from workup.core.case import Case, Source
from workup.core.episode import Action, Observation, Turn
from workup.core.ports import Model
from workup.environments.base.discovery import Discovery
from workup.environments.base.encounter import PartSettings
from workup.environments.base.recorded import RecordedConsultation
from workup.environments.base.records import SimulatedRecord
from workup.environments.base.trouble import Trouble, TroubleSettings
from workup.roles.judges.entailment import EntailmentJudge

ROLES = ("simulator", "checker")

summary = "one request per turn to a hidden record, then the diagnosis (CRAFT)"


class Settings(PartSettings, TroubleSettings):
    """What can be set in a consultation."""


class Consultation(RecordedConsultation):
    """An `Environment`: the record answers, and language models can play two roles beside it."""

    role_names = ROLES
    simulator: SimulatedRecord | None = None
    checker: Discovery | None = None

    def with_models(self, models: Mapping[str, Model]) -> Consultation:
        """With a "simulator", what the record lacks is answered by that model (CR-2).

        With a "checker", what an answer reveals is what that model finds in it as well (CR-5).
        """
        if not models:
            return self
        other = copy(self)
        if "simulator" in models:
            other.simulator = SimulatedRecord(self, models["simulator"])
        if "checker" in models:
            other.checker = Discovery(EntailmentJudge(models["checker"]))
        return other

    async def answer(self, case: Case, past: Sequence[Turn], action: Action) -> Observation:
        """Raises RolloutError when a model gives no usable answer."""
        if self.simulator is None:
            true = self.reply(case, action)
        else:
            true = await self.simulator.answer(case, past, action)
        seen = self.hear(case, past, action, true)
        return seen if self.checker is None else await self.checker.found(case, seen)


def open(source: Source, settings: Settings) -> Consultation:
    """The consultation over the cases of `source`."""
    trouble = Trouble.of(source, settings)
    turns, share = settings.max_turns, settings.share
    return Consultation(source.items, source.diagnoses, turns, share, trouble)
