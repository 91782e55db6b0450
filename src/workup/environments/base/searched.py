"""What the environments with a library share: a described patient, searches, passages."""

from __future__ import annotations

import asyncio
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, lru_cache
from random import Random
from typing import TYPE_CHECKING

from pydantic import Field

from workup.core.case import Case, Evidence, Knowledge, Passage, Source, SourceLibrary, evidence_of
from workup.core.draws import seed_key
from workup.core.episode import DIAGNOSE, Action, Message, Observation, Turn
from workup.core.errors import UserError
from workup.core.ports import Doctor, Environment, Retriever
from workup.core.text import neutralise, normalise
from workup.environments.base.encounter import Encounter, EncounterSettings
from workup.environments.base.queries import MOST_FINDINGS, hops
from workup.environments.base.rankers import rankers
from workup.environments.base.recorded import CONCLUDE
from workup.environments.base.searchers import IdealSearcher, RandomSearcher
from workup.environments.base.searching import NOTHING, SEARCH, SEPARATOR, SearchGrammar, Told
from workup.environments.consultation import Consultation
from workup.retrieval import brought, open_retriever, words
from workup.retrieval.batching import BatchedRetriever
from workup.retrieval.hpo.rankings import Rankings
from workup.retrieval.provenance import without_own

if TYPE_CHECKING:
    from workup.retrieval.index import Index

MOST_PASSAGES = 100
"""The most passages that a search asks for while it replaces those of the patient's publication."""

_SHORT = 40  # words and signs of a passage of a library that a source brings
_NUMBER = re.compile(r"\d+|(?<=[.!?:])\s+|\n")


class SearchedSettings(EncounterSettings):
    """What can be set wherever a library is searched."""

    index: str = Field(
        "",
        description="the library: an index folder, a server, clinic:SUBSET; by default the one "
        "that comes with the cases",
    )
    told: Told = Field(
        "history",
        description="what is told of the patient: presentation, history (with it) or record (all)",
    )
    passages: int = Field(3, ge=1, description="top-k of a single query (subqueries=0)")
    passage_tokens: int = Field(
        256, ge=1, description="words and signs of a passage that are shown"
    )
    shuffled: bool = Field(
        False, description="passages stand in random order, so that their rank tells nothing"
    )
    queried: int = Field(
        MOST_FINDINGS, ge=0, description="most findings in a demonstrated query; 0: all, in order"
    )


class Searched(Encounter):
    """An `Environment` in which the doctor searches `retriever` until it names the diagnosis.

    The patient is described at the beginning. `said` are the pieces of the passages, if they are
    known, for a tiny policy's vocabulary. `library` is what a source brought and `retriever`
    searches, None where it is an index of its own. A search in the last turn brings no passages.
    """

    unreadable: str
    """What answers a completion without an action."""

    def __init__(
        self,
        retriever: Retriever,
        record: Consultation,
        grammar: SearchGrammar | None = None,
        said: Sequence[str] = (),
        library: SourceLibrary | None = None,
    ) -> None:
        self.library = library
        self.retriever, self.grammar = retriever, grammar or SearchGrammar()
        super().__init__(self.grammar.max_turns)
        self.record, self._said = record, tuple(said)

    @property
    def searches(self) -> bool:
        return True

    @property
    @abstractmethod
    def queried(self) -> int:
        """Most findings in a demonstrated query; 0: all of them."""

    @cached_property
    def _rankings(self) -> Rankings:
        return Rankings.of(
            self.retriever.library if isinstance(self.retriever, BatchedRetriever) else ""
        )

    @property
    def notes(self) -> Sequence[str]:
        return self._rankings.notes

    def anchors(self, source: Source, seed: int) -> dict[str, Doctor]:
        """Over a library of rare diseases its exact rankers too, before the others."""

        def write(ranked: Sequence[str]) -> str:
            return self.write(DIAGNOSE, ranked[0])

        own_paper = self.grammar.own_paper
        exact = rankers(self._rankings, source, seed, self.known, write, own_paper=own_paper)
        return {**exact, **super().anchors(source, seed)}

    def further_anchors(
        self, source: Source, knowledge: Knowledge, seed: int
    ) -> Mapping[str, Doctor]:
        """Where names are drawn for every case, one that searches at random, and one best."""
        if not hops(source) or self.max_turns == 1:
            return {}
        return {
            "random searcher": RandomSearcher(source, knowledge, self, seed),
            "ideal searcher": IdealSearcher(source, knowledge, self),
        }

    def known(self, case: Case) -> Evidence:
        """The findings that the opening states, and the normal ones that it leaves out.

        Example: with `told` "history", an item of the history without a finding is normal.
        """
        kinds = self.grammar.kinds
        items = self.record.items.values()
        normal: Evidence = {item.name: () for item in items if item.kind in kinds}
        return normal | evidence_of((*case.given, *self.grammar.facts(case)))

    @property
    @abstractmethod
    def _rules(self) -> str:
        """The system prompt: the encounter's rules and its grammar."""

    def _phrases(self, tags: Sequence[str]) -> tuple[str, ...]:
        """All phrases of an environment with these tags."""
        each = (f"<{slash}{tag}>" for tag in tags for slash in ("", "/"))
        most = self.grammar.subqueries or self.grammar.passages
        numbers = (f"[{number}]" for number in range(1, most + 1))
        own = (self._rules, self.unreadable, NOTHING, CONCLUDE, SEPARATOR)
        return (*own, *each, *numbers, *self._said)

    def open(self, case: Case) -> tuple[Message, ...]:
        """The rules; then the patient, the case's question and its options, one per line."""
        # The findings that the opening adds name no diagnosis, as in a consultation.
        added = " ".join(self.record.tell(case, fact) for fact in self.grammar.facts(case))
        lines = (case.presentation, added, case.question, *case.options)
        shown = neutralise("\n".join(line for line in lines if line))
        return Message("system", self._rules), Message("user", shown)

    def conclude(self, case: Case) -> str:
        return CONCLUDE

    @abstractmethod
    def show(self, found: Sequence[Passage]) -> str:
        """The passages as the doctor reads them."""

    async def answer(self, case: Case, past: Sequence[Turn], action: Action) -> Observation:
        """What comes back: passages for a search, nothing for a diagnosis, else `unreadable`.

        In the last turn whatever is no diagnosis gets a request for one alone. Raises RolloutError
        when the library cannot be reached.
        """
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
        found = await self._search(case, action.content) if action.kind == SEARCH else None
        reply = self.unreadable if found is None else self.show(found)
        return Observation((self.reply(reply, len(past)),), item=topic, passages=found)

    def reply(self, text: str, turn: int) -> Message:
        """`text` as the answer to action number `turn`, from 0.

        Before the last action it asks for the diagnosis too.
        """
        last = turn >= self.grammar.max_turns - 2
        return Message("user", f"{text}\n{CONCLUDE}" if last else text)

    def _shown(self, case: Case, passage: Passage) -> Passage:
        """The passage as the doctor reads it: cut, in the case's names, without any tag."""
        title, text = passage.title, passage.text
        if self.library:
            title, text = (self.library.tell(case, part) for part in (title, text))
        text = words.first(text, self.grammar.passage_tokens)
        return Passage(passage.id, neutralise(text), neutralise(title))

    async def _search(self, case: Case, queries: Sequence[str]) -> tuple[Passage, ...]:
        """The passages that the queries find, each once; in a foreign index two may share an id.

        A random order depends on the case and on the queries as they were written.
        """
        own = self.library
        asked = (own.query(case, query) if own else query for query in queries)
        found = await asyncio.gather(*(self._found(case, query) for query in asked))
        once = {(one.id, one.title, one.text): one for passages in found for one in passages}
        shown = [self._shown(case, one) for one in once.values()]
        if self.grammar.shuffled:
            Random(seed_key("passages", case.id, *queries)).shuffle(shown)
        return tuple(shown)

    async def _found(self, case: Case, query: str) -> list[Passage]:
        """The best passages that do not rest on the case's own publication alone.

        More are asked for where some of the best do, so that their places are taken by others.
        """
        wanted = asked = 1 if self.grammar.subqueries else self.grammar.passages
        while True:
            found = await self.retriever.search(query, asked)
            kept = list(found) if self.grammar.own_paper else without_own(found, case)
            if len(kept) >= wanted or len(found) < asked or asked >= MOST_PASSAGES:
                return kept[:wanted]
            asked = min(4 * asked, MOST_PASSAGES)


def one_search(environment: Environment, passages: int) -> Environment:
    """`environment` for one search of one query, which brings `passages`; with 0 for none.

    Raises UserError for an environment that is not of this module.
    """
    if not isinstance(environment, Searched):
        raise UserError(
            "this strategy says how many passages a search brings, and in this environment only "
            "the environment can: type environment=library"
        )
    other = copy(environment)
    other.grammar = replace(
        other.grammar, subqueries=0, passages=max(1, passages), max_turns=2 if passages else 1
    )
    other._max_turns = other.grammar.max_turns
    return other


def need_names(source: Source, library: SourceLibrary | None, index: str = "") -> None:
    """Raises UserError where the documents cannot be told in the names of the cases.

    Without a `library` what is searched is the `index` of this name.
    """
    if library is not None:
        library.need(source)
    elif hops(source):
        raise UserError(
            f"the names of {source.name} are not those of the library {index}: names that are "
            "drawn for every case stand in the library that comes with the cases; leave out "
            "environment.index"
        )


def opened(
    source: Source, index: str = ""
) -> tuple[Retriever, SourceLibrary | None, tuple[str, ...]]:
    """The library named by `index` (see `workup.retrieval`), or by default the one of `source`.

    With it come the pieces of its passages where a source brought it. Raises UserError if there is
    no library of this name, or if none is named and the cases have none of their own.
    """
    library = brought(index) if index else source.library
    if library is None and not index:
        raise UserError(
            f"{source.name} has no library of its own: name one with environment.index=FOLDER; "
            "`workup index build CORPUS --out FOLDER` makes it, and clinic:s is a built-in one"
        )
    need_names(source, library, index)
    if library is None:
        return open_retriever(index), None, ()
    made = _own(library)
    return (
        BatchedRetriever(made.find, short=True),
        library,
        tuple(_pieces(source, library, made.passages)),
    )


@lru_cache(maxsize=4)
def _own(library: SourceLibrary) -> Index:
    """The documents in short passages: a search's result fits a tiny policy's context."""
    from workup.retrieval.index import Index  # loads scipy: completion must not wait for it

    return Index.of(library.documents(), tokens=_SHORT)


def _pieces(source: Source, library: SourceLibrary, passages: Iterable[Passage]) -> Iterator[str]:
    """The pieces of the passages.

    Names of findings and diagnoses, numbers, and the text between. What is told by another name in
    every case is left out.
    """
    names = sorted(
        {*source.diagnoses, *(item.name for item in source.items)}, key=len, reverse=True
    )
    cut = re.compile(rf"({'|'.join((*map(re.escape, names), _NUMBER.pattern))})", re.IGNORECASE)
    said = (text for passage in passages for text in (passage.title, passage.text))
    texts = (part for text in said for part in library.fixed(text))
    yield from dict.fromkeys(
        piece.strip() for text in texts for piece in cut.split(text) if piece.strip()
    )
