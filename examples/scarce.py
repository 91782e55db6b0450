"""A consultation that grants a few laboratory tests and images in all."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from workup.core.case import Case, Kind, Source
from workup.core.episode import Action, Message, Observation, Turn
from workup.environments import consultation
from workup.environments.consultation import Consultation

EXPENSIVE = {Kind.LABORATORY.value, Kind.IMAGING.value}
REFUSED = "No more tests are granted."


class ScarceSettings(consultation.Settings):
    """Those of the consultation, and one more."""

    granted: int = Field(3, ge=0, description="laboratory tests and images in all")


class Scarce(Consultation):
    """A consultation in which tests and images run out: `granted` of them are carried out."""

    Settings = ScarceSettings

    def __init__(self, source: Source, settings: ScarceSettings) -> None:
        super().__init__(**consultation.arguments(source, settings))
        self.granted = settings.granted

    @property
    def phrases(self) -> tuple[str, ...]:
        return (*super().phrases, REFUSED)

    async def answer(self, case: Case, past: Sequence[Turn], action: Action) -> Observation:
        spent = sum(turn.action.kind in EXPENSIVE for turn in past)
        if action.kind in EXPENSIVE and spent >= self.granted:
            return Observation((Message("user", REFUSED),))
        return await super().answer(case, past, action)
