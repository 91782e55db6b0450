"""The consultation with the models that can play a role in it."""

from __future__ import annotations

from collections.abc import Mapping

from workup.core.case import Source
from workup.core.ports import Environment, Model
from workup.environments.base.discovery import Discovery
from workup.environments.base.encounter import PartSettings
from workup.environments.base.recorded import RecordedConsultation
from workup.environments.base.records import SimulatedRecord
from workup.roles.judges.entailment import EntailmentJudge

ROLES = ("simulator", "checker")

summary = "one request per turn to a hidden record, then the diagnosis (CRAFT)"


class Settings(PartSettings):
    """What can be set in a consultation."""


class Consultation(RecordedConsultation):
    """An `Environment`: the record answers, and language models can play two roles beside it."""

    @property
    def roles(self) -> tuple[str, ...]:
        return ROLES

    def staffed(self, models: Mapping[str, Model]) -> Environment:
        """With a "simulator", what the record lacks is answered by that model (CR-2).

        With a "checker", what an answer reveals is what that model finds in it as well (CR-5).
        """
        world = SimulatedRecord(self, models["simulator"]) if "simulator" in models else self
        return (
            Discovery(world, EntailmentJudge(models["checker"])) if "checker" in models else world
        )


def open(source: Source, settings: Settings) -> Consultation:
    """The consultation over the cases of `source`."""
    return Consultation(source.items, source.diagnoses, settings.max_turns, settings.share)
