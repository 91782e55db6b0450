"""An environment around another one, whose answers alone are its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from workup.core.case import Case, Evidence, Source
from workup.core.episode import Action, Message, Observation, Turn
from workup.core.ports import Demonstration, Doctor, Environment, Model, Teaching


class Around(ABC):
    """An `Environment` that is `world` in everything but `answer`.

    `roles`, `staffed` and `built_in` are those of `world`: what `staffed` returns no longer has
    this environment around it.
    """

    def __init__(self, world: Environment) -> None:
        self.world = world

    @property
    def max_turns(self) -> int:
        return self.world.max_turns

    @property
    def stop(self) -> tuple[str, ...]:
        return self.world.stop

    @property
    def phrases(self) -> Sequence[str]:
        return self.world.phrases

    def open(self, case: Case) -> tuple[Message, ...]:
        return self.world.open(case)

    def read(self, text: str) -> Action:
        return self.world.read(text)

    def write(self, kind: str, content: str) -> str:
        return self.world.write(kind, content)

    @abstractmethod
    async def answer(self, case: Case, past: Sequence[Turn], action: Action) -> Observation: ...

    def conclude(self, case: Case) -> str:
        return self.world.conclude(case)

    @property
    def asks(self) -> bool:
        return self.world.asks

    @property
    def searches(self) -> bool:
        return self.world.searches

    @property
    def measures(self) -> Sequence[str]:
        return self.world.measures

    def known(self, case: Case) -> Evidence:
        return self.world.known(case)

    def anchors(self, source: Source, seed: int) -> Mapping[str, Doctor]:
        return self.world.anchors(source, seed)

    @property
    def notes(self) -> Sequence[str]:
        return self.world.notes

    def presented(self, source: Source, seed: int) -> Source:
        return self.world.presented(source, seed)

    @property
    def roles(self) -> Sequence[str]:
        return self.world.roles

    def staffed(self, models: Mapping[str, Model]) -> Environment:
        return self.world.staffed(models)

    @property
    def built_in(self) -> Environment:
        return self.world.built_in

    def demonstrate(
        self, source: Source, teaching: Teaching, seed: int, index: int
    ) -> Demonstration:
        return self.world.demonstrate(source, teaching, seed, index)

    def conclusion(self, case: Case) -> tuple[str, str]:
        return self.world.conclusion(case)
