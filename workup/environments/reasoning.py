"""Reasoning with searches inside it (Med-R³, MR-1): one thought, any number of searches, an answer.

    <think> … <search>query</search><document> … </document> … </think><answer> … </answer>

A turn is the doctor's text up to `</search>` or `</answer>`; the thought goes on behind a document.
The environment alone writes `<document>`, so that documents are masked by who wrote them. Actions
are of the kinds "search" and "diagnose".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from pydantic import Field

from workup.case import Case, Source
from workup.cases.clinic.graph import canonical, reference, stated, statements, verbalise
from workup.cases.clinic.library import library
from workup.environments.base.encounter import EncounterSettings
from workup.environments.base.reasoning_teacher import ReasoningTeaching
from workup.environments.base.recorded import CONCLUDE
from workup.environments.base.searched import CLINIC, Searched, opened
from workup.environments.base.searching import NOTHING, SEARCH, SEPARATOR, SearchGrammar, Told
from workup.environments.consultation import Consultation
from workup.episode import DIAGNOSE, MALFORMED, Action, Ending, Episode, Message, Turn
from workup.errors import UserError
from workup.judges.levels import LevelJudge, ModelLevels
from workup.judges.statements import ExactStatements, ModelStatements, StatementReader
from workup.ports import Demonstration, Environment, Model, Passage, Retriever, Teaching
from workup.text import THINK, normalise, tagged

DOCUMENT, ANSWER = "document", "answer"
EXTRACTOR, GRADER = "extractor", "grader"
UNREADABLE = "Please go on thinking, and write one search or one answer."

_TAG = re.compile(rf"<(/?)({THINK}|{SEARCH}|{DOCUMENT}|{ANSWER})>")
_CONTROL = re.compile(r"<[|｜][^<>\s]{1,64}>")
_NUMBERED = re.compile(r"^\[\d{1,4}\] ", re.MULTILINE)
_LONGEST = 500  # characters of a query or an answer; the rest is cut off and counts as an error

summary = "a described patient, searches inside one thought, then an answer (Med-R³)"


class Settings(EncounterSettings):
    """What can be set where a thought holds searches."""

    index: str = Field(
        "",
        description="the library: an index folder, a server, clinic:SUBSET; a clinic's own by "
        "default",
    )
    told: Told = Field(
        "history",
        description="what is told of the patient: presentation, history (with it) or record (all)",
    )
    passages: int = Field(5, ge=1, description="top-k of a query")
    passage_tokens: int = Field(
        256, ge=1, description="words and signs of a passage that are shown"
    )


@dataclass(frozen=True, slots=True)
class Part:
    """One completion taken apart: its action, and what it says of the one thought.

    `opens` and `closes` say whether it holds `<think>` at its beginning and `</think>`. `thought`
    is the text up to `</think>`, or up to the end of the action, without tags.
    """

    action: Action
    thought: str
    opens: bool
    closes: bool


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of cases and documents without asking anyone.

    `levels` are the evidence levels of documents by id. `clinic` is the subset of the built-in
    clinic that the cases come from; "" if they come from elsewhere.
    """

    levels: Mapping[str, int] = field(default_factory=dict)
    clinic: str = ""


class Reasoning(Searched):
    """An `Environment`: the doctor thinks, searches while it thinks, and answers once."""

    unreadable = UNREADABLE

    def __init__(
        self,
        retriever: Retriever,
        record: Consultation,
        grammar: SearchGrammar,
        said: Sequence[str] = (),
        *,
        known: Known | None = None,
        reader: StatementReader | None = None,
        grader: LevelJudge | None = None,
    ) -> None:
        """`reader` and `grader` serve rewards; the built-in reader knows the clinic's sentences."""
        super().__init__(retriever, record, grammar, said)
        self._known, self._grader = known or Known(), grader
        self.reader: StatementReader = reader or ExactStatements()

    def canonical(self, name: str) -> str:
        """The one name of an entity's synonyms: the clinic's, or else the name's normal form."""
        return canonical(name) if isinstance(self.reader, ExactStatements) else normalise(name)

    @property
    def graded(self) -> bool:
        """Whether the evidence level of every document can be had."""
        return self._grader is not None or bool(self._known.levels)

    async def levels(self, turn: Turn) -> tuple[int, ...]:
        """The evidence levels, 1 to 6, of the documents that the turn's search returned.

        They are known of a clinic's own documents. If one of them is not known, the role `grader`
        grades all documents of the turn. Raises RolloutError if it cannot, UserError if nobody has
        the role.
        """
        known = [self._known.levels.get(id.partition("#")[0]) for id in turn.observation.evidence]
        if None not in known:
            return tuple(each for each in known if each is not None)
        if self._grader is None:
            raise UserError(
                "the evidence level of these documents is not known: name a model with "
                f"roles.{GRADER}=endpoint:NAME, or type reward.without=[quality]"
            )
        return await self._grader.levels([Passage("", text) for text in documents(turn)])

    def references(self, case: Case) -> tuple[str, ...]:
        """Reference reasoning for the case: its own, or what the built-in clinic's graph says."""
        if case.truth.references or not self._known.clinic:
            return case.truth.references
        found = [fact.item for fact in (*case.given, *case.truth.facts)]
        steps = reference(self._known.clinic, case.truth.diagnosis, found)
        return (" ".join(map(verbalise, steps)),) if steps else ()

    @property
    def roles(self) -> Sequence[str]:
        """Rewards ask them: for the statements of a thought, and for the level of a document."""
        return EXTRACTOR, GRADER

    def staffed(self, models: Mapping[str, Model]) -> Environment:
        extractor, grader = models.get(EXTRACTOR), models.get(GRADER)
        return self._with(
            ModelStatements(extractor) if extractor else self.reader,
            ModelLevels(grader) if grader else self._grader,
        )

    @property
    def built_in(self) -> Environment:
        return self._with(None, None)

    def _with(self, reader: StatementReader | None, grader: LevelJudge | None) -> Reasoning:
        return Reasoning(
            self.retriever,
            self.record,
            self.grammar,
            self._said,
            known=self._known,
            reader=reader,
            grader=grader,
        )

    @property
    def stop(self) -> tuple[str, ...]:
        return f"</{SEARCH}>", f"</{ANSWER}>"

    @property
    def phrases(self) -> tuple[str, ...]:
        tags = (
            f"<{slash}{tag}>" for tag in (THINK, SEARCH, DOCUMENT, ANSWER) for slash in ("", "/")
        )
        numbers = (f"[{number}]" for number in range(1, self.grammar.passages + 1))
        own = (self._rules, UNREADABLE, NOTHING, CONCLUDE, SEPARATOR)
        return (*own, *tags, *numbers, *self._said)

    def documents(self, turn: Turn) -> Sequence[str]:
        return documents(turn)

    def demonstrate(
        self, source: Source, teaching: Teaching, seed: int, index: int
    ) -> Demonstration:
        """Episodes (`ReasoningTeaching`), whatever `teaching` says."""
        return ReasoningTeaching(self.grammar).demonstrate(source, self, seed, index)

    def open(self, case: Case) -> tuple[Message, ...]:
        """The rules; then the patient, the case's question and its options, one per line."""
        return Message("system", self._rules), Message("user", self.described(case))

    def read(self, text: str) -> Action:
        """The first search or answer that says something; "malformed" if there is none.

        Linear in `len(text)`, never raises. One error each: a document (which the doctor cannot
        write), a control token, a tag within a search or an answer, a block that does not end or
        begin, a thought that opens anywhere but at the beginning or closes twice, a search after
        the thought, an answer before its end or not directly behind it, an action that says nothing
        or is longer than 500 characters, and anything at all after the action.
        """
        return take_apart(text).action

    def write(self, kind: str, content: str) -> str:
        """Whatever is no diagnosis is searched for; a diagnosis closes the thought."""
        if kind == DIAGNOSE:
            return f"</{THINK}>{tagged(ANSWER, content)}"
        return tagged(SEARCH, content)

    def show(self, found: Sequence[Passage]) -> str:
        return tagged(DOCUMENT, self.numbered(found))

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
    """The library named by `index`, or that of the clinic whose cases `source` holds."""
    grammar = SearchGrammar(
        subqueries=0,
        passages=settings.passages,
        passage_tokens=settings.passage_tokens,
        refine=False,
        told=settings.told,
        max_turns=settings.max_turns,
    )
    retriever, said = opened(source, settings.index)
    record = Consultation(source.items, source.diagnoses, grammar.max_turns)
    clinic, shelf = _subset(source.name), _subset(settings.index or source.name)
    levels, told = _shelf(shelf) if shelf else ({}, ())
    # A tiny policy cannot spell out a sentence, so each statement is one of its tokens.
    phrases = (*(statements(clinic) if clinic else ()), *told, *said)
    return Reasoning(retriever, record, grammar, phrases, known=Known(levels, clinic))


@lru_cache(maxsize=4)
def _shelf(subset: str) -> tuple[Mapping[str, int], tuple[str, ...]]:
    """A clinic's library: the evidence level of each document, and all statements made there."""
    documents = list(library(subset))
    said = dict.fromkeys(each for document in documents for each in stated(document.text))
    return {document.id: document.level for document in documents}, tuple(said)


def _subset(name: str) -> str:
    """The subset that "clinic:SUBSET" names; "" for any other name."""
    return name.removeprefix(CLINIC).partition("#")[0] if name.startswith(CLINIC) else ""


def reasoning_of(environment: Environment) -> Reasoning:
    """`environment`. Raises UserError where it is another one."""
    if not isinstance(environment, Reasoning):
        raise UserError(
            "this method is paid for a thought with searches in it; leave out environment.name, or "
            "type environment=reasoning"
        )
    return environment


@lru_cache(maxsize=1 << 12)  # environment and rewards read the same completions
def take_apart(text: str) -> Part:
    """The one parse of a completion: see `Reasoning.read`."""
    errors = sum(1 for _ in _CONTROL.finditer(text))
    opens = closes = False
    thought_ends, after = len(text), 0
    begun: re.Match[str] | None = None
    for place, tag in enumerate(_TAG.finditer(text)):
        closing, name = tag[1], tag[2]
        if name == DOCUMENT:
            errors += 1
        elif name == THINK:
            errors += begun is not None
            if not closing:
                first = place == 0 and not text[: tag.start()].strip()
                opens, errors = opens or first, errors + (not first)
            else:
                errors += closes
                closes, thought_ends, after = True, min(thought_ends, tag.start()), tag.end()
        elif not closing:
            errors += begun is not None
            begun = tag
        elif begun is None or begun[2] != name:
            errors += 1 + (begun is not None)
            begun = None
        else:
            content = " ".join(text[begun.end() : tag.start()].split())
            start, begun, action = begun.start(), None, _action(name, content)
            if action is None:
                errors += 1
                continue
            if name == SEARCH:
                errors += closes
            else:
                errors += not closes or bool(text[after:start].strip())
            errors += action.errors + bool(text[tag.end() :].strip())
            thought = _plain(text[: min(thought_ends, tag.end())])
            return Part(Action(action.kind, action.content, errors), thought, opens, closes)
    errors += begun is not None
    return Part(Action(MALFORMED, (), max(errors, 1)), _plain(text[:thought_ends]), opens, closes)


def _action(name: str, content: str) -> Action | None:
    """The action of a block; None where it says nothing."""
    if not any(map(str.isalnum, content)):
        return None
    kind = SEARCH if name == SEARCH else DIAGNOSE
    return Action(kind, (content[:_LONGEST],), int(len(content) > _LONGEST))


def _plain(text: str) -> str:
    """`text` with a line end in place of every tag: what stands beside a tag is another clause."""
    return _TAG.sub("\n", text).strip()


def well_formed(episode: Episode) -> bool:
    """Whether the episode keeps the grammar of MR-1.

    It has one thought, which the first completion opens (or a chat template did) and the last one
    closes, one answer directly behind it, and no error in any turn.
    """
    if episode.ending is not Ending.DIAGNOSED:
        return False
    parts = [take_apart(turn.completion.text) for turn in episode.turns]
    return (
        not any(part.action.errors for part in parts)
        and not any(part.opens for part in parts[1:])
        and not any(part.closes for part in parts[:-1])
    )


def thought(episode: Episode) -> str:
    """What the doctor thought, queries included, without documents; one line end between turns."""
    return "\n".join(take_apart(turn.completion.text).thought for turn in episode.turns)


def documents(turn: Turn) -> list[str]:
    """The passages that the turn's search returned, one by one, without tags and numbers."""
    for message in turn.observation.messages:
        if message.content.startswith(f"<{DOCUMENT}>"):
            shown = message.content.removeprefix(f"<{DOCUMENT}>").partition(f"</{DOCUMENT}>")[0]
            texts = [text.strip() for text in _NUMBERED.split(shown)]
            return [text for text in texts if text and text != NOTHING]
    return []
