"""What the environments with a library share: a described patient, searches, passages."""

from __future__ import annotations

import asyncio
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from workup.case import Case, Evidence, Source, evidence_of
from workup.cases.clinic.library import library
from workup.environments.base.encounter import Encounter
from workup.environments.base.recorded import CONCLUDE
from workup.environments.base.searching import NOTHING, SEARCH, SEPARATOR, SearchGrammar
from workup.environments.consultation import Consultation
from workup.episode import DIAGNOSE, Action, Message, Observation, Turn
from workup.errors import UserError
from workup.ports import Passage, Retriever
from workup.retrieval import open_retriever, words
from workup.retrieval.batching import Together
from workup.retrieval.corpus import Document
from workup.text import neutralise, normalise

if TYPE_CHECKING:
    from workup.retrieval.index import Index

CLINIC = "clinic:"
_SHORT = 40  # words and signs of a passage of a clinic's own library
_NUMBER = re.compile(r"\d+|(?<=[.!?:])\s+|\n")


class Searched(Encounter):
    """An `Environment` in which the doctor searches `retriever` until it names the diagnosis.

    The patient is described at the beginning. `said` are the pieces of the passages, if they are
    known, for a tiny policy's vocabulary. A search in the last turn gets no reply.
    """

    unreadable: str
    """What answers a completion without an action."""

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
    def searches(self) -> bool:
        return True

    def known(self, case: Case) -> Evidence:
        """The findings of the kinds that are told.

        A finding of these kinds that is not told is normal.
        """
        normal: Evidence = {
            item.name: () for item in self.record.items.values() if item.kind in self.grammar.kinds
        }
        return normal | evidence_of((*case.given, *self.grammar.facts(case)))

    def described(self, case: Case) -> str:
        """The patient, the case's question and its options, one per line."""
        lines = (case.presentation, *self._further(case), case.question, *case.options)
        return neutralise("\n".join(line for line in lines if line))

    def conclude(self, case: Case) -> str:
        return CONCLUDE

    @abstractmethod
    def show(self, found: Sequence[Passage]) -> str:
        """The passages as the doctor reads them."""

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
        reply = self.show(found) if action.kind == SEARCH else self.unreadable
        text = reply if left > 1 else f"{reply}\n{CONCLUDE}"
        return Observation((Message("user", text),), tuple(passage.id for passage in found), topic)

    def numbered(self, found: Sequence[Passage]) -> str:
        """The passages, each behind its number; "Nothing was found." if there are none.

        No passage holds anything that could be read as a tag, wherever it is cut.
        """
        shown = (f"[{number}] {self._passage(passage)}" for number, passage in enumerate(found, 1))
        return "\n".join(shown) or NOTHING

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


def opened(source: Source, index: str = "") -> tuple[Retriever, tuple[str, ...]]:
    """The library named by `index` (see `workup.retrieval`), or by default the clinic's own.

    With it come the pieces of its passages where it is a clinic's. Raises UserError if there is no
    library of this name, or if none is named and the cases have none of their own.
    """
    spec = index or source.name
    if spec.startswith(CLINIC):
        made = _own(spec.removeprefix(CLINIC))
        return Together(made.find), tuple(_pieces(source, made.passages))
    if not index:
        raise UserError(
            f"{source.name} has no library of its own: name one with environment.index=FOLDER; "
            "`workup index build CORPUS --out FOLDER` makes it, and clinic:s is a built-in one"
        )
    return open_retriever(index), ()


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
