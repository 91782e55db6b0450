"""A case: what the doctor may see, and the truth that it must not see.

Only the standard library is imported. Everything is frozen: a case that is read twice is equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


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
    meaning: "where is the pain?" has a parent that asks for pain.
    """

    name: str
    question: str
    normal: str
    kind: Kind = Kind.HISTORY
    parent: str | None = None
    cost: float = 1.0


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


class Source(Protocol):
    """Where cases come from: `clinic:s`, `ddxplus:FOLDER`, `mediq:FILE`, `jsonl:FILE`.

    Both sequences are lazy: a case is made or parsed when it is indexed. So a million cases need no
    more memory than a hundred.
    """

    @property
    def name(self) -> str:
        """The source as the user wrote it."""
        ...

    @property
    def train(self) -> Sequence[Case]: ...

    @property
    def test(self) -> Sequence[Case]: ...

    @property
    def items(self) -> Sequence[Item]:
        """Everything that can be asked for; empty for free-text cases."""
        ...

    @property
    def diagnoses(self) -> Sequence[str]:
        """Every diagnosis name that can be the truth; empty if the answers are open."""
        ...

    @property
    def phrases(self) -> Sequence[str]:
        """Every fixed phrase of prompts and answers, for the tiny policy's vocabulary.

        Empty for free text.
        """
        ...

    @property
    def knowledge(self) -> Knowledge | None: ...

    @property
    def notes(self) -> Sequence[str]:
        """What the reader should know: rows skipped and why, simplifications, licences."""
        ...

    @property
    def restricted(self) -> bool:
        """Whether a data-use agreement forbids passing the text on.

        Then only trusted endpoints may see it.
        """
        ...

    @property
    def undivided(self) -> bool:
        """Whether the cases came as one set, so that Workup made the division into train and test.

        A policy that was not trained on the set may then be evaluated on all of it. False if the
        set has a test part of its own, if cases are generated on demand, or if `knowledge` was
        estimated from the training side.
        """
        ...


@dataclass(frozen=True, slots=True)
class FixedSource:
    """A source whose parts are given."""

    name: str
    train: Sequence[Case]
    test: Sequence[Case]
    items: Sequence[Item] = ()
    diagnoses: Sequence[str] = ()
    phrases: Sequence[str] = ()
    knowledge: Knowledge | None = None
    notes: Sequence[str] = field(default=())
    restricted: bool = False
    undivided: bool = False


def with_cases(
    source: Source,
    train: Sequence[Case],
    test: Sequence[Case],
    *notes: str,
) -> FixedSource:
    """`source` with other cases, and with further `notes` about them."""
    return FixedSource(
        source.name,
        train,
        test,
        source.items,
        source.diagnoses,
        source.phrases,
        source.knowledge,
        (*source.notes, *notes),
        source.restricted,
        source.undivided,
    )
