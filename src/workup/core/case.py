"""A case: what the doctor may see, and the truth that it must not see.

Only the standard library is needed. Everything is frozen: a case that is read twice is equal.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from string import ascii_uppercase
from typing import Any, NamedTuple, Protocol

from workup.core.channel import Channel


class Kind(StrEnum):
    """How a finding is obtained; its value is the tag of the action that asks for it (CR-1)."""

    HISTORY = "ask"
    EXAMINATION = "examine"
    LABORATORY = "test"
    IMAGING = "image"
    PROCEDURE = "procedure"


HEADINGS: Mapping[Kind, str] = {
    Kind.HISTORY: "History",
    Kind.EXAMINATION: "Examination",
    Kind.LABORATORY: "Laboratory",
    Kind.IMAGING: "Imaging",
    Kind.PROCEDURE: "Procedures",
}
"""What a record and a list of items are divided into."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One atomic finding of one patient, stated without interpretation (CRAFT φ).

    `id` is unique within the case. `item` names what one asks for to learn the fact; several facts
    may share an item ("where is the pain?"). `text` is the finding as a sentence. `weight` is its
    criticality ψ ∈ {0, 1, 2, 3} (0 irrelevant, 1 supportive, 2 significant, 3 pathognomonic), or
    None if nobody has scored it.
    """

    id: str
    item: str
    text: str
    kind: Kind = Kind.HISTORY
    weight: int | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """Something a doctor can ask for: a question, an examination, a test.

    `name` is its canonical name, `question` its natural wording. `normal` is the answer if the
    record holds nothing for it. `parent` is the item that must be positive for this one to have a
    meaning: "where is the pain?" has a parent that asks for pain. `synonyms` are further names by
    which a request may call it, a layman's among them. `gathered` says that nobody listed it: some
    case's fact is called so. Then nothing is known of who lacks it, and a record finds its facts as
    free text. `sex`, "female" or "male", is the one that can have it; empty if both can.
    """

    name: str
    question: str
    normal: str
    kind: Kind = Kind.HISTORY
    parent: str | None = None
    cost: float = 1.0
    synonyms: tuple[str, ...] = ()
    gathered: bool = False
    sex: str = ""


MOST_STATEMENTS = 100
"""Statements of one reasoning process at most."""

LONGEST_ENTITY = 200
"""Characters of an entity or a relation at most."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One triple of a reasoning process; `retrieved` (s in Med-R³): whether a search brought it."""

    head: str
    relation: str
    tail: str
    retrieved: bool = False


@dataclass(frozen=True, slots=True)
class Truth:
    """The part of a case that prompts must never hold; environments, rewards and judges read it.

    `graphs` holds one graph of statements per reference, in the order of `references`; it is empty
    where nobody has extracted them. What a single method needs goes into a typed object in `extra`,
    not into a new field, unless the case format has to check it.
    """

    diagnosis: str
    codes: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    differentials: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    record: str = ""
    references: tuple[str, ...] = ()
    graphs: tuple[tuple[Statement, ...], ...] = ()
    extra: Any = None


MOST_OPTIONS = len(ascii_uppercase)
"""Options of a case at most: each has a letter."""


def by_letter(options: Iterable[str]) -> Iterable[tuple[str, str]]:
    """(letter, option) of each: A, B, …"""
    return zip(ascii_uppercase, options, strict=False)


@dataclass(frozen=True, slots=True)
class Case:
    """One patient. Only `presentation`, `question`, `options` and `given` may reach a prompt.

    `given` are the facts that the presentation states already. They are not in `truth.facts`: no
    reward is paid for finding them. `category` is the disease family; only tables use it.
    """

    id: str
    presentation: str
    truth: Truth
    question: str = ""
    options: tuple[str, ...] = ()
    given: tuple[Fact, ...] = ()
    category: str = ""

    @property
    def all_facts(self) -> tuple[Fact, ...]:
        """`given`, and behind them `truth.facts`."""
        return (*self.given, *self.truth.facts)


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a document that a search found.

    Scores fall with the rank; those of two searches cannot be compared.
    """

    id: str
    text: str
    title: str = ""
    score: float = 0.0

    @property
    def whole(self) -> str:
        """The title and the text, a line each; only one of them where the other is empty."""
        return "\n".join(filter(None, (self.title, self.text)))

    @property
    def heading(self) -> str:
        """The first line: the title, or where there is none the text's first line."""
        return self.whole.partition("\n")[0]


Evidence = dict[str, tuple[str, ...]]
"""An item's name → the ids of the facts that its answer revealed.

An empty tuple says that the answer was the item's normal one."""


def evidence_of(facts: Iterable[Fact]) -> Evidence:
    """The facts as evidence: each item with the ids of its facts."""
    evidence: Evidence = {}
    for fact in facts:
        evidence[fact.item] = (*evidence.get(fact.item, ()), fact.id)
    return evidence


class Knowledge(Protocol):
    """A generative model of the cases; anchors and criticality are computed from it."""

    @property
    def diagnoses(self) -> Sequence[str]:
        """The diagnoses' names, in the order of `posterior`."""
        ...

    def posterior(self, evidence: Evidence) -> Sequence[float]:
        """P(diagnosis | evidence): non-negative, sums to 1, in the order of `diagnoses`."""
        ...

    def gains(self, evidence: Evidence, items: Sequence[str]) -> Sequence[float]:
        """The expected information gain about the diagnosis of asking each of `items` next.

        In nats, ≥ 0.
        """
        ...

    def read(self, case: Case, headings: Iterable[str] | None = None) -> Evidence:
        """What passages of these headings say of the case's names, as evidence beside findings.

        Without `headings`, what all passages would say. Empty where diagnoses bear the same names
        in every case.
        """
        ...

    def through(self, channel: Channel) -> Knowledge:
        """The same model, whose evidence may also be what a patient said through `channel`.

        That is `workup.core.channel.heard` in place of the ids.
        """
        ...


@dataclass(frozen=True, slots=True)
class Document:
    """What a collection of documents consists of, before it is cut into passages.

    `level` is its level of evidence: 1 (systematic review) is the best, 6 (opinion) the weakest,
    None is one that nobody has graded.
    """

    id: str
    title: str
    text: str
    level: int | None = None


class OwnNames(NamedTuple):
    """The names that exist in one case alone, in the order of the diseases.

    `links` lead from the document that names a disease to the one that says more of it. Both are
    empty where diagnoses bear the same names in every case, and `links` where one document tells
    all.
    """

    diagnoses: tuple[str, ...] = ()
    links: tuple[str, ...] = ()


class SourceLibrary(Hashable, Protocol):
    """The documents that a source brings, and the names that they are told in.

    In most sources a diagnosis has one name. A source may also draw names anew for every case; then
    its documents alone say what they mean (`own`). `query` and `tell` translate between the names
    of a case and those that the documents were written with. Equal libraries have equal hashes.
    """

    @property
    def name(self) -> str:
        """What `environment.index` calls it."""
        ...

    @property
    def hops(self) -> int:
        """How many documents together say what a name means; 0 if names are the same everywhere."""
        ...

    @property
    def statements(self) -> Sequence[str]:
        """The statements of the knowledge behind it, in each wording, without full stops.

        They are phrases for the tiny policy's vocabulary.
        """
        ...

    def documents(self, seed: int = 0) -> Sequence[Document]:
        """All documents; `seed` draws what in them is drawn.

        With `hops` those that together say what a name means stand one after the other.
        """
        ...

    def need(self, source: Source) -> None:
        """Raises UserError if documents cannot be told in the names of the cases of `source`."""
        ...

    def own(self, case: Case) -> OwnNames:
        """The names that the documents have in this case alone."""
        ...

    def query(self, case: Case, text: str) -> str:
        """A doctor's query in the words of the documents."""
        ...

    def tell(self, case: Case, text: str) -> str:
        """Text of a document in the case's names."""
        ...

    def fixed(self, text: str) -> Sequence[str]:
        """The parts of a document's text that are told alike in all cases."""
        ...

    def references(self, case: Case) -> tuple[str, ...]:
        """Reference reasoning from the case's findings to its diagnosis; () if it has none."""
        ...


@dataclass(frozen=True, slots=True)
class Source:
    """Where cases come from: `clinic:s`, `ddxplus:FOLDER`, `mediq:FILE`, `jsonl:FILE`.

    - `name`: the source as the user wrote it
    - `train`, `test`: lazy sequences, in which a case is made or parsed when it is indexed. So a
      million cases need no more memory than a hundred
    - `items`: everything that can be asked for; empty for free-text cases
    - `diagnoses`: every name that can be the truth; empty if the answers are open
    - `phrases`: every fixed phrase of prompts and answers, for the tiny policy's vocabulary; empty
      for free text
    - `knowledge`: the generative model, if there is one
    - `library`: the documents that come with the cases, if any do
    - `base`: the base of examinations that comes with the cases, as `environment.base` names it
    - `must_not_miss`: the diagnoses whose delay can kill or cripple; empty if nobody says which
    - `notes`: what the reader should know: rows skipped and why, simplifications, licences
    - `restricted`: whether a data-use agreement forbids passing the text on. Then only trusted
      endpoints may see it
    - `undivided`: whether the cases came as one set, so that Workup made the division into train
      and test. A policy that was not trained on the set may then be evaluated on all of it. False
      if the set has a test part of its own, if cases are generated on demand, or if `knowledge` was
      estimated from the training side
    """

    name: str
    train: Sequence[Case]
    test: Sequence[Case]
    items: Sequence[Item] = ()
    diagnoses: Sequence[str] = ()
    phrases: Sequence[str] = ()
    knowledge: Knowledge | None = None
    library: SourceLibrary | None = None
    base: str = ""
    must_not_miss: Sequence[str] = ()
    notes: Sequence[str] = ()
    restricted: bool = False
    undivided: bool = False
