"""Search, refine, diagnose (C-MIG CM-1 to CM-3): a patient, a library to search, one diagnosis.

The doctor writes `<search>`, `<refine>` and `<diagnosis>` (and may `<think>`); the environment
alone writes `<evidence>`. A turn is the doctor's text up to `</search>` or `</diagnosis>`. A
refinement therefore begins the turn after the evidence that it refines. So the evidence is never
part of a completion: it is masked because the environment wrote it, not because its text looks like
evidence. Actions are of the kinds "search" and "diagnose".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from workup.case import Case, Source
from workup.environments.base.encounter import EncounterSettings
from workup.environments.base.library_teacher import LibraryTeaching
from workup.environments.base.recorded import CONCLUDE
from workup.environments.base.searched import Searched, opened
from workup.environments.base.searching import (
    DIAGNOSIS,
    EVIDENCE,
    NOTHING,
    REFINE,
    SEARCH,
    SEPARATOR,
    TAGS,
    SearchGrammar,
    Told,
    passages,
)
from workup.environments.consultation import Consultation
from workup.episode import DIAGNOSE, Action, Message, Turn
from workup.errors import UserError
from workup.ports import Demonstration, Environment, Passage, Teaching
from workup.text import THINK, tagged

if TYPE_CHECKING:
    pass

UNREADABLE = "Please write one search or one diagnosis."

summary = "a described patient, a library to search and refine from, one diagnosis (C-MIG)"


class Settings(EncounterSettings):
    """What can be set where a library is searched."""

    index: str = Field(
        "",
        description="the library: an index folder, a server, clinic:SUBSET; a clinic's own by "
        "default",
    )
    told: Told = Field(
        "history",
        description="what is told of the patient: presentation, history (with it) or record (all)",
    )
    subqueries: int = Field(
        3,
        ge=0,
        description="k sub-queries per search, one passage each; 0: one query, top-k passages",
    )
    passages: int = Field(3, ge=1, description="top-k of a single query")
    passage_tokens: int = Field(
        256, ge=1, description="words and signs of a passage that are shown"
    )
    refine: bool = Field(True, description="the grammar has refinements of what was found")

    @property
    def grammar(self) -> SearchGrammar:
        return SearchGrammar(
            self.subqueries,
            self.passages,
            self.passage_tokens,
            self.refine,
            self.told,
            self.max_turns,
        )


class Library(Searched):
    """An `Environment`: the doctor searches, refines what was found, and names the diagnosis."""

    unreadable = UNREADABLE

    @property
    def stop(self) -> tuple[str, ...]:
        return f"</{SEARCH}>", f"</{DIAGNOSIS}>"

    @property
    def phrases(self) -> tuple[str, ...]:
        tags = (f"<{slash}{tag}>" for tag in (*TAGS, THINK) for slash in ("", "/"))
        numbers = (f"[{number}]" for number in range(1, self._most + 1))
        return (self._rules, UNREADABLE, NOTHING, CONCLUDE, SEPARATOR, *tags, *numbers, *self._said)

    def documents(self, turn: Turn) -> Sequence[str]:
        return passages(turn)

    def demonstrate(
        self, source: Source, teaching: Teaching, seed: int, index: int
    ) -> Demonstration:
        """Episodes and open books (`LibraryTeaching`), whatever `teaching` says."""
        return LibraryTeaching(self.grammar).demonstrate(source, self, seed, index)

    def open(self, case: Case) -> tuple[Message, ...]:
        """The rules; then the patient, the case's question and its options, one per line."""
        return Message("system", self._rules), Message("user", self.described(case))

    def read(self, text: str) -> Action:
        """The first search or diagnosis that says something; "malformed" if there is none.

        Linear, never raises.

        One error each: a tag or control token that is part of no block, evidence (which the doctor
        cannot write), a refinement where the grammar has none, an action that says nothing, a query
        too many or of more than 500 characters, and anything at all after the action. Text outside
        of blocks before it is no error, nor is a thought that a chat template opened.
        """
        return self.grammar.take_apart(text).action

    def write(self, kind: str, content: str) -> str:
        """Whatever is no diagnosis is searched for."""
        return tagged(DIAGNOSIS if kind == DIAGNOSE else SEARCH, content)

    def show(self, found: Sequence[Passage]) -> str:
        return tagged(EVIDENCE, self.numbered(found))

    @property
    def _most(self) -> int:
        return self.grammar.subqueries or self.grammar.passages

    @property
    def _rules(self) -> str:
        s = self.grammar
        how = (
            (
                f"up to {s.subqueries} short queries that complement each other, separated by "
                "semicolons"
            )
            if s.subqueries > 1
            else "one short query"
        )
        refine = (
            (
                " After evidence, begin by writing what of it matters for this patient: "
                f"<{REFINE}>…</{REFINE}>."
            )
            if s.refine
            else ""
        )
        return (
            "You are the doctor; this is a test bench and no medical device. A patient is "
            "described to you. You may look things up in a medical library: "
            f"<{SEARCH}>…</{SEARCH}> with {how}. Its answer comes back as "
            f"<{EVIDENCE}>…</{EVIDENCE}>, which only the library writes.{refine} You can search "
            f"at most {s.max_turns - 1} times. Once you know enough, conclude with "
            f"<{DIAGNOSIS}>…</{DIAGNOSIS}> and nothing but the name of one diagnosis in it. "
            f"Reason before each step, inside <{THINK}>…</{THINK}>."
        )


def open_library(source: Source, grammar: SearchGrammar, index: str = "") -> Library:
    """The environment with the library named by `index`, by default the clinic's own.

    Raises UserError if there is none (see `opened`).
    """
    retriever, said = opened(source, index)
    record = Consultation(source.items, source.diagnoses, grammar.max_turns)
    return Library(retriever, record, grammar, said)


def open(source: Source, settings: Settings) -> Library:
    """The library named by `index`, or that of the clinic whose cases `source` holds."""
    return open_library(source, settings.grammar, settings.index)


def grammar_of(environment: Environment) -> SearchGrammar:
    """The grammar of searches in `environment`. Raises UserError where it is no library."""
    if not isinstance(environment, Library):
        raise UserError(
            "this method is paid for searches in a library; leave out environment.name, or type "
            "environment=library"
        )
    return environment.grammar
