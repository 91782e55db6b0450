"""A case: what the doctor may see, and the truth it must not.

Standard library only. Everything is frozen: a case read twice is the same case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


@dataclass(frozen=True, slots=True)
class Fact:
    """One atomic finding of one patient, stated without interpretation (CRAFT φ).

    `id` is unique within the case; `item` names what one asks for to learn it (several facts may
    share an item: "where is the pain?"); `text` is the finding as a sentence; `weight` is its
    criticality ψ ∈ {0, 1, 2, 3} (0 irrelevant, 1 supportive, 2 significant, 3 pathognomonic), or
    None where nobody has scored it.
    """

    id: str
    item: str
    text: str
    kind: Kind = Kind.HISTORY
    weight: int | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """Something a doctor can ask for: a question, an examination, a test.

    `name` is its canonical name and `question` its natural wording; `normal` is the answer when the
    record holds nothing for it; `parent` is the item that must be positive before this one means
    anything ("where is the pain?").
    """

    name: str
    question: str
    normal: str
    kind: Kind = Kind.HISTORY
    parent: str | None = None
    cost: float = 1.0


@dataclass(frozen=True, slots=True)
class Truth:
    """Hidden from the policy: environments, rewards and judges may read it, prompts may not.

    What one method alone needs goes into a typed object in `extra`, not into a new field.
    """

    diagnosis: str
    codes: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    differentials: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    record: str = ""
    references: tuple[str, ...] = ()
    extra: Any = None


@dataclass(frozen=True, slots=True)
class Case:
    """One patient. Only `presentation`, `question`, `options` and `given` may reach a prompt.

    `given` are the facts that the presentation already states; they are not in `truth.facts`, so
    that nobody is paid for finding them. `category` is the disease family, for tables only.
    """

    id: str
    presentation: str
    truth: Truth
    question: str = ""
    options: tuple[str, ...] = ()
    given: tuple[Fact, ...] = ()
    category: str = ""


Evidence = dict[str, tuple[str, ...]]
"""An item's name → the ids of the facts that its answer revealed.

An empty tuple says that the answer was the item's normal one."""


def evidence_of(facts: Iterable[Fact]) -> Evidence:
    """Findings that are present, as evidence."""
    evidence: Evidence = {}
    for fact in facts:
        evidence[fact.item] = (*evidence.get(fact.item, ()), fact.id)
    return evidence


class Knowledge(Protocol):
    """A generative model of the cases, where one exists: the oracle that anchors and criticality
    are computed from.
    """

    @property
    def diagnoses(self) -> Sequence[str]:
        """The diagnoses' names, in the order of `posterior`."""
        ...

    def posterior(self, evidence: Evidence) -> Sequence[float]:
        """P(diagnosis | evidence): non-negative, sums to 1, in the order of `diagnoses`."""
        ...

    def gains(self, evidence: Evidence, items: Sequence[str]) -> Sequence[float]:
        """Expected information gain about the diagnosis in nats (≥ 0) of asking each of `items`
        next.
        """
        ...


class Source(Protocol):
    """Where cases come from: `clinic:s`, `ddxplus:FOLDER`, `mediq:FILE`, `jsonl:FILE`.

    Both sequences are lazy: a case is made or parsed when it is indexed, so a million cost no more
    memory than a hundred.
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
        """Everything that can be asked; empty where cases are free text."""
        ...

    @property
    def diagnoses(self) -> Sequence[str]:
        """Every diagnosis name that can be the truth; empty where the answers are open."""
        ...

    @property
    def phrases(self) -> Sequence[str]:
        """Every fixed phrase that prompts and answers are made of, for the tiny policy's
        vocabulary; empty for free text.
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
        """Whether a data-use agreement forbids passing the text on: only trusted endpoints may see
        it.
        """
        ...

    @property
    def undivided(self) -> bool:
        """Whether the cases came as one set, so that train and test are our division of it.

        Whoever has not been trained on it may be evaluated on all of it. Not so where the set has
        a test part of its own, where cases are made to order, or where the training side is what
        `knowledge` was estimated from.
        """
        ...


@dataclass(frozen=True, slots=True)
class FixedSource:
    """A source whose parts are already at hand."""

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
    """`source` with other cases, and further `notes` about them."""
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
