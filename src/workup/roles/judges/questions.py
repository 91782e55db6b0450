"""The five judgements as values: what a judge is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from workup.core.case import Case, Fact


class Grade(Enum):
    """How well an answer names the truth; the value is MR-3's R_answer."""

    WRONG = 0
    PARTLY = 1
    SAME = 2


@dataclass(frozen=True, slots=True)
class NamingQuestion:
    """Does `answer` name the true diagnosis of `case` (MR-3)?"""

    answer: str
    case: Case


@dataclass(frozen=True, slots=True)
class Graded:
    """A grade, and the judge's reason if it gave one. The value is R_answer / 2."""

    grade: Grade
    reason: str = field(default="", compare=False)

    @property
    def value(self) -> float:
        return self.grade.value / 2

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.grade.name.lower(),)


@dataclass(frozen=True, slots=True)
class RankingQuestion:
    """The place of `case`'s true diagnosis in a ranked list of candidates (ES-8)."""

    candidates: tuple[str, ...]
    case: Case


class CandidateStanding(StrEnum):
    """How one candidate of a ranked list compares with the truth; the last three are hacks."""

    SAME = "same"
    OTHER = "other"
    CONTRADICTS = "contradicts"
    VAGUE = "vague"
    NONEXISTENT = "nonexistent"

    @property
    def hack(self) -> bool:
        return self not in (CandidateStanding.SAME, CandidateStanding.OTHER)


@dataclass(frozen=True, slots=True)
class RankingVerdict:
    """The standing of every candidate, in the list's order, and the judge's reason.

    `standings` ends where the judge stopped reading; `total` is the length of the whole list. The
    value is 1 for a hit, else 0: DiffAcc is its mean (ES-14).
    """

    standings: tuple[CandidateStanding, ...]
    total: int
    reason: str = field(default="", compare=False)

    @property
    def hacks(self) -> tuple[tuple[int, CandidateStanding], ...]:
        """(place from 1, reason) of each candidate that is a hack."""
        return tuple(
            (place, standing) for place, standing in enumerate(self.standings, 1) if standing.hack
        )

    @property
    def position(self) -> int:
        """The first place (from 1) that holds the truth, 0 if none does.

        −1 if any candidate is a hack.
        """
        if self.hacks:
            return -1
        return (
            self.standings.index(CandidateStanding.SAME) + 1
            if CandidateStanding.SAME in self.standings
            else 0
        )

    @property
    def value(self) -> float:
        return float(self.position > 0)

    @property
    def labels(self) -> tuple[str, ...]:
        if self.hacks:
            return (self.hacks[0][1].value,)
        return (str(self.position) if self.position else "absent",)


@dataclass(frozen=True, slots=True)
class Answered:
    """How good, from 1 to 5, is an open-ended answer to the question of `case` (MR-11)?"""

    answer: str
    case: Case


@dataclass(frozen=True, slots=True)
class MarkVerdict:
    """A mark from 1 to 5, which is also the value.

    5 fully right, 4 right but for something minor, 3 half right, 2 mostly wrong, 1 wrong.
    """

    mark: int
    reason: str = field(default="", compare=False)

    @property
    def grade(self) -> Grade:
        """5 is the same as the reference, 3 and 4 are partly right, 1 and 2 are wrong."""
        return Grade.SAME if self.mark == 5 else Grade.PARTLY if self.mark >= 3 else Grade.WRONG

    @property
    def value(self) -> float:
        return float(self.mark)

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.grade.name.lower(),)


@dataclass(frozen=True, slots=True)
class Ordered:
    """Do the ordered examinations tell the candidates apart (ES-7)?"""

    examinations: tuple[str, ...]
    candidates: tuple[str, ...]


class Worth(StrEnum):
    """What one examination is worth for a list of candidates; the last three are invalid."""

    DIFFERENTIATES = "differentiates"
    HARMLESS = "harmless"
    FABRICATED = "fabricated"
    BROAD = "too broad"
    DEPARTMENT = "other department"

    @property
    def invalid(self) -> bool:
        return self not in (Worth.DIFFERENTIATES, Worth.HARMLESS)


@dataclass(frozen=True, slots=True)
class Appraised:
    """The worth of every examination, in order, as far as the judge read the list.

    The value is the sign of R_e (ES-7).
    """

    worths: tuple[Worth, ...]
    reason: str = field(default="", compare=False)

    @property
    def value(self) -> float:
        """−1 if any is invalid, else +1 if any differentiates, else 0."""
        if any(worth.invalid for worth in self.worths):
            return -1.0
        return float(Worth.DIFFERENTIATES in self.worths)

    @property
    def labels(self) -> tuple[str, ...]:
        return ({1.0: "differentiate", 0.0: "harmless", -1.0: "invalid"}[self.value],)


@dataclass(frozen=True, slots=True)
class Stated:
    """Which of `facts` does `text` entail (PM-3, CR-5)?"""

    facts: Sequence[Fact]
    text: str


@dataclass(frozen=True, slots=True)
class Entailed:
    """Whether each fact is entailed, in order. The value is the share that is; 0 without facts."""

    entailed: tuple[bool, ...]

    @property
    def value(self) -> float:
        return sum(self.entailed) / len(self.entailed) if self.entailed else 0.0

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple("entailed" if each else "not entailed" for each in self.entailed)
