"""Search, refine, diagnose (C-MIG CM-1 to CM-3): a patient, a library to search, one diagnosis.

The doctor writes `<search>`, `<refine>` and `<diagnosis>` (and may `<think>`); the environment
alone writes `<evidence>`. A turn is the doctor's text up to `</search>` or `</diagnosis>`. A
refinement therefore begins the turn after the evidence that it refines. So the evidence is never
part of a completion: it is masked because the environment wrote it, not because its text looks like
evidence. Actions are of the kinds "search" and "diagnose".
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from pydantic import Field

from workup.case import Case, Evidence, Source, evidence_of
from workup.cases.clinic.library import library
from workup.environments.base.encounter import Encounter, EncounterSettings
from workup.environments.base.library_teacher import LibraryTeaching
from workup.environments.base.recorded import CONCLUDE
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
from workup.episode import DIAGNOSE, Action, Message, Observation, Turn
from workup.errors import UserError
from workup.ports import Demonstration, Environment, Passage, Retriever, Teaching
from workup.retrieval import open_retriever, words
from workup.retrieval.batching import Together
from workup.retrieval.corpus import Document
from workup.text import THINK, neutralise, normalise, tagged

if TYPE_CHECKING:
    from workup.retrieval.index import Index

UNREADABLE = "Please write one search or one diagnosis."
CLINIC = "clinic:"

_SHORT = 40  # words and signs of a passage of a clinic's own library
_NUMBER = re.compile(r"\d+|(?<=[.!?:])\s+|\n")


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


class Library(Encounter):
    """An `Environment`: the doctor searches `retriever` until it names the diagnosis.

    The patient is described at the beginning. `said` are the pieces of the passages, if they are
    known, for a tiny policy's vocabulary. A search in the last turn gets no reply.
    """

    def __init__(
        self,
        retriever: Retriever,
        record: Consultation,
        grammar: SearchGrammar | None = None,
        said: Sequence[str] = (),
    ) -> None:
        self.retriever, self.grammar = retriever, grammar or SearchGrammar()
        super().__init__(self.grammar.max_turns)
        self.record, self._said = record, tuple(said)

    @property
    def stop(self) -> tuple[str, ...]:
        return f"</{SEARCH}>", f"</{DIAGNOSIS}>"

    @property
    def phrases(self) -> tuple[str, ...]:
        tags = (f"<{slash}{tag}>" for tag in (*TAGS, THINK) for slash in ("", "/"))
        numbers = (f"[{number}]" for number in range(1, self._most + 1))
        return (self._rules, UNREADABLE, NOTHING, CONCLUDE, SEPARATOR, *tags, *numbers, *self._said)

    @property
    def searches(self) -> bool:
        return True

    def documents(self, turn: Turn) -> Sequence[str]:
        return passages(turn)

    def demonstrate(
        self, source: Source, teaching: Teaching, seed: int, index: int
    ) -> Demonstration:
        """Episodes and open books (`LibraryTeaching`), whatever `teaching` says."""
        return LibraryTeaching(self.grammar).demonstrate(source, self, seed, index)

    def known(self, case: Case) -> Evidence:
        """The findings of the kinds that are told.

        A finding of these kinds that is not told is normal.
        """
        normal: Evidence = {
            item.name: () for item in self.record.items.values() if item.kind in self.grammar.kinds
        }
        return normal | evidence_of((*case.given, *self.grammar.facts(case)))

    def open(self, case: Case) -> tuple[Message, ...]:
        """The rules; then the patient, the case's question and its options, one per line."""
        lines = (case.presentation, *self._further(case), case.question, *case.options)
        shown = neutralise("\n".join(line for line in lines if line))
        return Message("system", self._rules), Message("user", shown)

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

    def conclude(self, case: Case) -> str:
        return CONCLUDE

    async def answer(self, case: Case, past: Sequence[Turn], action: Action) -> Observation:
        """Raises RolloutError when the library cannot be reached."""
        if action.kind == DIAGNOSE:
            return Observation(done=True)
        left = self.grammar.max_turns - 1 - len(past)
        topic = (
            f"{SEARCH}: {SEPARATOR.join(sorted(map(normalise, action.content)))}"
            if action.kind == SEARCH
            else ""
        )
        if left <= 0:
            return Observation((Message("user", CONCLUDE),), item=topic)
        found = await self._search(action.content) if action.kind == SEARCH else ()
        reply = self.show(found) if action.kind == SEARCH else UNREADABLE
        text = reply if left > 1 else f"{reply}\n{CONCLUDE}"
        return Observation((Message("user", text),), tuple(passage.id for passage in found), topic)

    def show(self, found: Sequence[Passage]) -> str:
        """The evidence as the doctor reads it.

        No passage holds anything that could be read as a tag, wherever it is cut.
        """
        shown = (f"[{number}] {self._passage(passage)}" for number, passage in enumerate(found, 1))
        return tagged(EVIDENCE, "\n".join(shown) or NOTHING)

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

    def _further(self, case: Case) -> Iterator[str]:
        """What is told beyond the presentation.

        Names of diagnoses are withheld from it, as in a consultation.
        """
        facts = self.grammar.facts(case)
        if facts:
            described = replace(case, given=(), truth=replace(case.truth, facts=facts))
            yield from (message.content for message in self.record.record(described).messages)

    def _passage(self, passage: Passage) -> str:
        text = words.first(passage.text, self.grammar.passage_tokens)
        return neutralise("\n".join(filter(None, (passage.title, text))))

    async def _search(self, queries: Sequence[str]) -> tuple[Passage, ...]:
        """Every passage once, though several queries may find it; other people's ids may repeat."""
        each = 1 if self.grammar.subqueries else self.grammar.passages
        found = await asyncio.gather(*(self.retriever.search(query, each) for query in queries))
        once = {(one.id, one.title, one.text): one for passages in found for one in passages}
        return tuple(once.values())


def open_library(source: Source, grammar: SearchGrammar, index: str = "") -> Library:
    """The library named by `index` (see `workup.retrieval`), or by default the clinic's own.

    Raises UserError if there is none of this name, or if none is named and the cases have none of
    their own.
    """
    spec = index or source.name
    record = Consultation(source.items, source.diagnoses, grammar.max_turns)
    if spec.startswith(CLINIC):
        made = _own(spec.removeprefix(CLINIC))
        return Library(Together(made.find), record, grammar, tuple(_pieces(source, made.passages)))
    if not index:
        raise UserError(
            f"{source.name} has no library of its own: name one with environment.index=FOLDER; "
            "`workup index build CORPUS --out FOLDER` makes it, and clinic:s is a built-in one"
        )
    return Library(open_retriever(index), record, grammar)


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


@lru_cache(maxsize=4)
def _own(subset: str) -> Index:
    """A clinic's documents in short passages: a search's result fits a tiny policy's context."""
    from workup.retrieval.index import Index  # loads scipy: completion must not wait for it

    documents = (
        Document(document.id, document.title, document.text) for document in library(subset)
    )
    return Index.of(documents, tokens=_SHORT)


def _pieces(source: Source, passages: Iterable[Passage]) -> Iterator[str]:
    """The pieces of the passages.

    Names of findings and diagnoses, numbers, and the text between.
    """
    names = sorted(
        {*source.diagnoses, *(item.name for item in source.items)}, key=len, reverse=True
    )
    cut = re.compile(rf"({'|'.join((*map(re.escape, names), _NUMBER.pattern))})", re.IGNORECASE)
    texts = (text for passage in passages for text in (passage.title, passage.text))
    yield from dict.fromkeys(
        piece.strip() for text in texts for piece in cut.split(text) if piece.strip()
    )
