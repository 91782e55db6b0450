"""Reasoning with searches inside it (Med-R³, MR-1): one thought, any number of searches, an answer.

    <think> … <search>query</search><document> … </document> … </think><answer> … </answer>

A turn is the doctor's text up to `</search>` or `</answer>`; the thought goes on behind a document.
The environment alone writes `<document>`, so that documents are masked by who wrote them. Actions
are of the kinds "search" and "diagnose".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache

from pydantic import Field

from workup.core.case import MOST_STATEMENTS, Case, Passage, Source, SourceLibrary
from workup.core.episode import DIAGNOSE, Action, Turn
from workup.core.errors import UserError
from workup.core.ports import Demonstration, Environment, Model, Retriever, Teaching
from workup.core.text import THINK, normalise, tagged
from workup.environments.base.encounter import fitting
from workup.environments.base.reasoning_teacher import MOST_REPEATED, ReasoningTeaching
from workup.environments.base.searched import Searched, SearchedSettings, opened
from workup.environments.base.searching import SEARCH, SearchGrammar
from workup.environments.base.thoughts import ANSWER, DOCUMENT, document, read
from workup.environments.consultation import Consultation
from workup.roles.judges.levels import LevelJudge, ModelLevels
from workup.roles.judges.statements import TOKENS, ExactStatements, ModelStatements, StatementReader
from workup.roles.judges.synonyms import Normaliser, normaliser

ROLES = EXTRACTOR, GRADER = "extractor", "grader"
UNREADABLE = "Please go on thinking, and write one search or one answer."

summary = "a described patient, searches inside one thought, then an answer (Med-R³)"


class Settings(SearchedSettings):
    """What can be set where a thought holds searches."""

    passages: int = Field(5, ge=1, description="top-k of a query")
    statements: int = Field(
        MOST_STATEMENTS,
        ge=1,
        le=MOST_STATEMENTS,
        description="statements that a model reads from one thought at most",
    )
    repeated: int = Field(
        MOST_REPEATED,
        ge=0,
        description="statements of documents that a demonstrated thought repeats after a search",
    )
    synonyms: str = Field(
        "",
        description="a file of entities (JSON lines with name and synonyms) whose names are merged",
    )


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of cases and documents without asking anyone.

    `levels` are the evidence levels of documents by id. `library` is the one that comes with the
    cases, if any does. `name` gives the one name of an entity's synonyms, and `most` is how many
    statements a model reads from one thought.
    """

    levels: Mapping[str, int] = field(default_factory=dict)
    library: SourceLibrary | None = None
    name: Normaliser = normalise
    most: int = MOST_STATEMENTS


class Reasoning(Searched):
    """An `Environment`: the doctor thinks, searches while it thinks, and answers once."""

    unreadable = UNREADABLE
    role_names = ROLES

    def __init__(
        self,
        retriever: Retriever,
        record: Consultation,
        grammar: SearchGrammar,
        said: Sequence[str] = (),
        *,
        library: SourceLibrary | None = None,
        known: Known | None = None,
    ) -> None:
        super().__init__(retriever, record, grammar, said, library)
        self._known = known or Known()
        self.reader: StatementReader = ExactStatements()
        self._grader: LevelJudge | None = None
        self.teaching = ReasoningTeaching(grammar)

    def canonical(self, name: str) -> str:
        """The one name of an entity's synonyms: the clinic's where its sentences are read."""
        if isinstance(self.reader, ExactStatements):
            return self.reader.canonical(name)
        return self._known.name(name)

    @property
    def readable(self) -> bool:
        """Whether the statements of a thought can be read: by a model, or exactly in a clinic."""
        exact = isinstance(self.reader, ExactStatements)
        return not exact or bool(self._known.library or self._known.levels)

    @property
    def graded(self) -> bool:
        """Whether the evidence level of every document can be had."""
        return self._grader is not None or bool(self._known.levels)

    async def levels(self, turn: Turn) -> tuple[int, ...]:
        """The evidence levels, 1 to 6, of the documents that the turn's search returned.

        They are known of documents that come with cases. If one of them is not known, the role
        `grader` grades all documents of the turn. Raises RolloutError if it cannot, UserError if
        nobody has the role.
        """
        passages = turn.observation.passages or ()
        known = [self._known.levels.get(passage.id.partition("#")[0]) for passage in passages]
        if None not in known:
            return tuple(each for each in known if each is not None)
        if self._grader is None:
            raise UserError(
                "the evidence level of these documents is not known: name a model with "
                f"roles.{GRADER}=endpoint:NAME, or type reward.without=[quality]"
            )
        return await self._grader.levels(passages)

    def references(self, case: Case) -> tuple[str, ...]:
        """Reference reasoning for the case: its own, or what the library with the cases says."""
        if case.truth.references or self._known.library is None:
            return case.truth.references
        return self._known.library.references(case)

    def with_models(self, models: Mapping[str, Model]) -> Reasoning:
        """Rewards ask them: for the statements of a thought, and for the level of a document."""
        other, most = copy(self), self._known.most
        if EXTRACTOR in models:
            tokens = TOKENS * most // MOST_STATEMENTS
            other.reader = ModelStatements(models[EXTRACTOR], most, tokens)
        if GRADER in models:
            other._grader = ModelLevels(models[GRADER])
        return other

    @property
    def acts_in_thoughts(self) -> bool:
        return True

    @property
    def stop(self) -> tuple[str, ...]:
        return f"</{SEARCH}>", f"</{ANSWER}>"

    @property
    def phrases(self) -> tuple[str, ...]:
        return self._phrases((THINK, SEARCH, DOCUMENT, ANSWER))

    @property
    def queried(self) -> int:
        return self.teaching.queried

    def demonstrate(
        self, source: Source, teaching: Teaching, seed: int, index: int
    ) -> Demonstration:
        """Episodes (`ReasoningTeaching`); of `teaching` the doctor alone counts."""
        return self.teaching.demonstrate(source, self, seed, index, teaching.doctor)

    def read(self, text: str) -> Action:
        """The first search or answer that says something; "malformed" if there is none.

        Linear in `len(text)`, never raises. One error each: a document (which the doctor cannot
        write), a control token, a tag within a search or an answer, a block that does not end or
        begin, a thought that opens anywhere but at the beginning or closes twice, a search after
        the thought, an answer before its end or not directly behind it, an action that says nothing
        or is longer than 500 characters, and anything at all after the action.
        """
        return read(text)

    def write(self, kind: str, content: str) -> str:
        """Whatever is no diagnosis is searched for; a diagnosis closes the thought."""
        if kind == DIAGNOSE:
            return f"</{THINK}>{tagged(ANSWER, content)}"
        return tagged(SEARCH, content)

    def show(self, found: Sequence[Passage]) -> str:
        return document(found)

    @property
    def _rules(self) -> str:
        return (
            "You are the doctor; this is a test bench and no medical device. A patient is "
            f"described to you. Think step by step inside one <{THINK}>…</{THINK}>. While you "
            "think you may look things up in a medical library: "
            f"<{SEARCH}>…</{SEARCH}> with one short query. What it holds comes back as "
            f"<{DOCUMENT}>…</{DOCUMENT}>, which only the library writes; then go on thinking "
            f"without opening a new thought. You can search at most {self.max_turns - 1} times. "
            f"At the end close the thought and answer: <{ANSWER}>…</{ANSWER}> with nothing but "
            "the name of one diagnosis in it."
        )


def open(source: Source, settings: Settings) -> Reasoning:
    """The library named by `index`, or the one that `source` brings."""
    grammar = SearchGrammar(
        subqueries=0,
        passages=settings.passages,
        passage_tokens=settings.passage_tokens,
        refine=False,
        told=settings.told,
        max_turns=settings.max_turns,
        shuffled=settings.shuffled,
    )
    retriever, library, said = opened(source, settings.index)
    record = Consultation(source.items, source.diagnoses, grammar.max_turns)
    levels, told = _graded(library) if library else ({}, ())
    # A tiny policy cannot spell out a sentence, so each statement is one of its tokens.
    own = _phrases(source.library, source.library.statements) if source.library else ()
    phrases = (*own, *told, *said)
    known = Known(levels, source.library, normaliser(settings.synonyms), settings.statements)
    world = Reasoning(retriever, record, grammar, phrases, library=library, known=known)
    world.teaching = ReasoningTeaching(grammar, settings.queried, settings.repeated)
    return world


@lru_cache(maxsize=4)
def _graded(library: SourceLibrary) -> tuple[Mapping[str, int], tuple[str, ...]]:
    """The evidence level of each document, and the phrases of all statements made there."""
    documents, reader = library.documents(), ExactStatements()
    made = (said for document in documents for said, _ in reader.stated(document.text))
    levels = {each.id: each.level for each in documents if each.level is not None}
    return levels, _phrases(library, dict.fromkeys(made))


def _phrases(library: SourceLibrary, statements: Iterable[str]) -> tuple[str, ...]:
    """What of the statements is told alike in all cases."""
    return tuple(part for said in statements for part in library.fixed(said))


def reasoning_of(environment: Environment) -> Reasoning:
    """`environment`. Raises UserError where it is another one."""
    return fitting(environment, Reasoning, "a thought with searches in it", "reasoning")
