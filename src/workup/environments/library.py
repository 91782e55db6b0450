"""Search, refine, diagnose (C-MIG CM-1 to CM-3): a patient, a library to search, one diagnosis.

The doctor writes `<search>`, `<refine>` and `<diagnosis>` (and may `<think>`); the environment
alone writes `<evidence>`. A turn is the doctor's text up to `</search>` or `</diagnosis>`. A
refinement therefore begins the turn after the evidence that it refines. So the evidence is never
part of a completion: it is masked because the environment wrote it, not because its text looks like
evidence. Actions are of the kinds "search" and "diagnose".
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from workup.core.case import Passage, Source, SourceLibrary
from workup.core.episode import DIAGNOSE, Action
from workup.core.ports import Demonstration, Environment, Retriever, Teaching
from workup.core.text import THINK, tagged
from workup.environments.base.encounter import fitting
from workup.environments.base.library_teacher import OPEN_BOOKS, LibraryTeaching, Refined
from workup.environments.base.searched import Searched, SearchedSettings, opened
from workup.environments.base.searching import (
    DIAGNOSIS,
    EVIDENCE,
    REFINE,
    SEARCH,
    SearchGrammar,
    numbered,
)
from workup.environments.consultation import Consultation

UNREADABLE = "Please write one search or one diagnosis."

summary = "a described patient, a library to search and refine from, one diagnosis (C-MIG)"


class Settings(SearchedSettings):
    """What can be set where a library is searched."""

    subqueries: int = Field(
        3,
        ge=0,
        description="k sub-queries per search, one passage each; 0: one query, top-k passages",
    )
    refine: bool = Field(True, description="the grammar has refinements of what was found")
    own_paper: bool = Field(
        False, description="passages that rest on the case's own publication alone are found too"
    )
    refined: Refined = Field(
        "names",
        description="what demonstrated refinements say: names of diagnoses, or for each passage "
        "its number, its diagnosis and those of its findings that the patient has",
    )
    open_books: float = Field(
        OPEN_BOOKS,
        ge=0,
        le=1,
        description="share of demonstrations that begin with evidence or a refinement",
    )

    @property
    def grammar(self) -> SearchGrammar:
        return SearchGrammar(
            self.subqueries,
            self.passages,
            self.passage_tokens,
            self.refine,
            self.told,
            self.max_turns,
            self.own_paper,
            shuffled=self.shuffled,
        )


class Library(Searched):
    """An `Environment`: the doctor searches, refines what was found, and names the diagnosis."""

    unreadable = UNREADABLE

    def __init__(
        self,
        retriever: Retriever,
        record: Consultation,
        grammar: SearchGrammar | None = None,
        said: Sequence[str] = (),
        *,
        library: SourceLibrary | None = None,
        teaching: LibraryTeaching | None = None,
    ) -> None:
        """`teaching` makes the demonstrations; by default one of the same grammar."""
        super().__init__(retriever, record, grammar, said, library)
        self._teaching = teaching or LibraryTeaching(self.grammar)

    @property
    def stop(self) -> tuple[str, ...]:
        return f"</{SEARCH}>", f"</{DIAGNOSIS}>"

    @property
    def phrases(self) -> tuple[str, ...]:
        return self._phrases((*self.grammar.tags, THINK))

    @property
    def queried(self) -> int:
        return self._teaching.queried

    def demonstrate(
        self, source: Source, teaching: Teaching, seed: int, index: int
    ) -> Demonstration:
        """Episodes and open books (`LibraryTeaching`); `teaching` says focus and doctor."""
        own = (teaching.focus, teaching.doctor)
        return self._teaching.demonstrate(source, self, seed, index, *own)

    def read(self, text: str) -> Action:
        """The first search or diagnosis that says something; "malformed" if there is none.

        Linear, never raises.

        One error each: a tag or control token that is part of no block, evidence (which the doctor
        cannot write), a refinement where the grammar has none, an action that says nothing, a query
        too many or of more than 500 characters, and anything at all after the action. Text outside
        of blocks before it is no error, nor is a thought that a chat template opened.
        """
        return self.grammar.read(text)

    def write(self, kind: str, content: str) -> str:
        """Whatever is no diagnosis is searched for."""
        return tagged(DIAGNOSIS if kind == DIAGNOSE else SEARCH, content)

    def show(self, found: Sequence[Passage]) -> str:
        return tagged(EVIDENCE, numbered(found))

    @property
    def _rules(self) -> str:
        return (
            "You are the doctor; this is a test bench and no medical device. A patient is "
            f"described to you. You may look things up in a medical library: {self._searching} "
            f"You can search at most {self.max_turns - 1} times. {self._concluding}"
        )

    @property
    def _searching(self) -> str:
        """How the rules say that the library is searched, and its answers are refined."""
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
            f"<{SEARCH}>…</{SEARCH}> with {how}. Its answer comes back as "
            f"<{EVIDENCE}>…</{EVIDENCE}>, which only the library writes.{refine}"
        )

    @property
    def _concluding(self) -> str:
        return (
            "Once you know enough, conclude with "
            f"<{DIAGNOSIS}>…</{DIAGNOSIS}> and nothing but the name of one diagnosis in it. "
            f"Reason before each step, inside <{THINK}>…</{THINK}>."
        )


def open_library(
    source: Source,
    grammar: SearchGrammar,
    index: str = "",
    teaching: LibraryTeaching | None = None,
) -> Library:
    """The environment with the library named by `index`, by default the one of `source`.

    Raises UserError if there is none (see `opened`).
    """
    retriever, library, said = opened(source, index)
    record = Consultation(source.items, source.diagnoses, grammar.max_turns)
    return Library(retriever, record, grammar, said, library=library, teaching=teaching)


def open(source: Source, settings: Settings) -> Library:
    """The library named by `index`, or the one that `source` brings."""
    s = settings
    teaching = LibraryTeaching(s.grammar, s.refined, s.queried, s.open_books)
    return open_library(source, s.grammar, s.index, teaching)


def library_of(environment: Environment) -> Library:
    """`environment`. Raises UserError where it is no library."""
    return fitting(environment, Library, "searches in a library", "library", "inquiry")
