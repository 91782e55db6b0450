"""What reviewers' marks say: agreement, means, win rates, and the runs' own judge beside them.

Only what stands counts: the last entry of every reviewer and item. "Cannot say" and skipped items
are no marks; they are counted as missing. Intervals are 95 % bootstraps by case, over all
reviewers' marks of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import combinations, groupby
from typing import Any

from workup.core.statistics import SHARE, Estimate, interval, paired
from workup.runs import Record
from workup.studies.base.agreement import estimates, krippendorff
from workup.studies.review.answers import AnswerEntry
from workup.studies.review.folder import Review, ReviewedDoctor
from workup.studies.review.form import SIDES, Question

ALIKE = "all marks are equal"
ALONE = "nothing has two marks"


@dataclass(frozen=True, slots=True)
class Mark:
    """One answer of one reviewer, unblinded: a row of the table that is written.

    `side` is A or B in a pair, and "" for one episode or a question about both. `number` is the
    value's; of a question about both it is how much `run` and `doctor`, who stood at A, win over
    those of `against_…`. `value` is None where the reviewer cannot say or has skipped the item.
    `judged` is the verdict of the run's own judge.
    """

    reviewer: str
    item: int
    side: str
    question: str
    value: str | None
    number: float | None
    skipped: bool
    time: str
    note: str
    label: str
    run: str
    doctor: str
    phase: str
    stage: str
    step: int
    case: str
    sample: int
    judged: bool | None
    against_label: str | None = None
    against_run: str | None = None
    against_doctor: str | None = None
    against_sample: int | None = None
    against_judged: bool | None = None


@dataclass(frozen=True, slots=True)
class Wins:
    """How `one` fares against `other`; a tie is half a win. `share` is an estimate of that."""

    one: str
    other: str
    share: Estimate
    won: int
    tied: int
    lost: int


@dataclass(frozen=True, slots=True)
class Beside:
    """What most reviewers say and what a judge says of the same episodes.

    `split` counts episodes of which no verdict has more than half of the reviewers' marks; they are
    left out. `unjudged` counts those that the judge said nothing of.
    """

    accuracy: Estimate
    kappa: Estimate
    confusion: Mapping[tuple[str, str], int]
    split: int
    unjudged: int


@dataclass(frozen=True, slots=True)
class Label:
    """What most reviewers say of one episode: same, partly or wrong.

    `agreed` of `voters` reviewers say so; `verdict` is None where that is not more than half.
    """

    record: Record
    verdict: str | None
    agreed: int
    voters: int


@dataclass(frozen=True)
class Results:
    """All marks of a review; the figures follow from them."""

    review: Review
    standing: Mapping[str, Mapping[int, AnswerEntry]]

    @classmethod
    def of(cls, review: Review) -> Results:
        """What stands now, also while reviewers go on."""
        answers = review.answers
        return cls(review, {name: answers.standing(name).entries for name in answers.reviewers()})

    @cached_property
    def records(self) -> dict[int, list[Record]]:
        """The episodes of every item, by its number."""
        return {
            number: self.review.records(item)
            for number, item in enumerate(self.review.items, start=1)
        }

    @cached_property
    def marks(self) -> list[Mark]:
        """All marks, in the order of reviewer, item, question and side."""
        return [
            mark
            for reviewer, entries in self.standing.items()
            for number, entry in sorted(entries.items())
            for mark in self._marks(reviewer, number, entry)
        ]

    @property
    def doctors(self) -> list[str]:
        return [doctor.label for doctor in self.review.manifest.doctors]

    def agreement(self, question: str) -> Estimate:
        """Krippendorff's α of a question over what several reviewers have marked.

        NaN where nothing has two marks, or all marks are equal: `undefined` says which. A question
        about pairs is coded by doctor and not by side.
        """
        own = sorted(self._of(question), key=_unit)
        units = [list(marks) for _, marks in groupby(own, key=_unit)]
        numbers = [[self._coded(mark) for mark in unit] for unit in units]
        clusters = [unit[0].case for unit in units]
        return krippendorff(numbers, clusters, self.review.form[question].level)

    def undefined(self, question: str) -> str:
        """Why a question has no α; "" where it has one."""
        found = self.agreement(question)
        return "" if not math.isnan(found.mean) else ALIKE if found.n else ALONE

    def level(self, question: str, doctor: str) -> Estimate:
        """The mean number of a question that is not about pairs."""
        own = self._of(question, doctor)
        bounds = self._bounds(question)
        return interval([mark.number for mark in own], [mark.case for mark in own], bounds=bounds)

    def change(self, question: str, doctor: str, first: str) -> Estimate:
        """The difference of two doctors' means over the cases that both have marks of."""
        one, other = self._of(question, doctor), self._of(question, first)
        return paired(
            ([mark.number for mark in one], [mark.case for mark in one]),
            ([mark.number for mark in other], [mark.case for mark in other]),
            bounds=self._bounds(question),
        )

    def shares(self, question: str, doctor: str) -> dict[str, int]:
        """How often each value was given."""
        counts = Counter(mark.value for mark in self._of(question, doctor))
        return {value: counts[value] for value in self.review.form[question].answers}

    def wins(self, question: str) -> list[Wins]:
        """Every two doctors that met."""
        found = []
        for one, other in combinations(self.doctors, 2):
            own = [m for m in self._of(question) if {m.label, m.against_label} == {one, other}]
            numbers = [_won(mark, one) for mark in own]
            if own:
                share = interval(numbers, [mark.case for mark in own], bounds=SHARE)
                counts = (numbers.count(1.0), numbers.count(0.5), numbers.count(0.0))
                found.append(Wins(one, other, share, *counts))
        return found

    def left(self, question: str) -> Estimate:
        """How much the left episode wins, from 0 to 1; 0.5 if the side does not matter."""
        own = self._of(question)
        return interval([mark.number for mark in own], [mark.case for mark in own], bounds=SHARE)

    def followed(self, question: str) -> Estimate:
        """How much the episode wins that the runs' judge finds right, of pairs with one right."""
        own = [m for m in self._of(question) if {m.judged, m.against_judged} == {True, False}]
        numbers = [_won(m, m.label if m.judged else str(m.against_label)) for m in own]
        return interval(numbers, [mark.case for mark in own], bounds=SHARE)

    def labels(self, question: str) -> list[Label]:
        """What most say of each marked episode, for a question with `verdicts`."""
        verdicts = self.review.form[question].verdicts
        units = groupby(sorted(self._of(question), key=_unit), key=_unit)
        found = []
        for (number, letter, _), marks in units:
            said = Counter(verdicts[mark.value] for mark in marks if mark.value is not None)
            if said:
                (verdict, agreed), *_ = said.most_common(1)
                record = self.records[number][SIDES.index(letter) if letter else 0]
                clear = 2 * agreed > said.total()
                found.append(Label(record, verdict if clear else None, agreed, said.total()))
        return found

    def judged(self, question: str) -> Beside:
        """The runs' own judge beside most reviewers, on whether the diagnosis is the same."""
        labels = self.labels(question)
        clear = [label for label in labels if label.verdict is not None]
        both = [label for label in clear if label.record.correct is not None]
        word = {True: "right", False: "wrong"}
        pairs = [(word[each.verdict == "same"], word[bool(each.record.correct)]) for each in both]
        accuracy, kappa = estimates(
            [float(people == judge) for people, judge in pairs],
            Counter(pairs),
            len(pairs),
            [each.record.episode.case.id for each in both],
        )
        unjudged, split = len(clear) - len(both), len(labels) - len(clear)
        return Beside(accuracy, kappa, Counter(pairs), split, unjudged)

    def as_json(self) -> dict[str, Any]:
        """All figures."""
        form = self.review.form
        return {
            "items": len(self.review.items),
            "doctors": [doctor.model_dump() for doctor in self.review.manifest.doctors],
            "reviewers": {name: self.progress(name) for name in self.standing},
            "questions": {name: self._figures(name, question) for name, question in form.items()},
        }

    def progress(self, reviewer: str) -> dict[str, int]:
        """How many items are answered, skipped and open, and how many answers are "cannot say"."""
        entries = self.standing[reviewer].values()
        skipped = sum(entry.skipped for entry in entries)
        unsure = sum(value is None for entry in entries for value in entry.answers.values())
        return {
            "answered": len(entries) - skipped,
            "skipped": skipped,
            "open": len(self.review.items) - len(entries),
            "cannot say": unsure,
        }

    def _figures(self, name: str, question: Question) -> dict[str, Any]:
        found: dict[str, Any] = {
            "ask": question.ask,
            "alpha": self.agreement(name).as_json() | {"undefined": self.undefined(name)},
        }
        if question.pairs:
            wins = [asdict(each) | {"share": each.share.as_json()} for each in self.wins(name)]
            left, followed = self.left(name).as_json(), self.followed(name).as_json()
            return found | {"wins": wins, "left": left, "followed": followed}
        found["means"] = {doctor: self.level(name, doctor).as_json() for doctor in self.doctors}
        found["values"] = {doctor: self.shares(name, doctor) for doctor in self.doctors}
        if question.verdicts:
            beside = self.judged(name)
            found["judge"] = {
                "agreement": beside.accuracy.as_json(),
                "kappa": beside.kappa.as_json(),
                "split": beside.split,
                "unjudged": beside.unjudged,
            }
        return found

    def _of(self, question: str, doctor: str | None = None) -> list[Mark]:
        return [
            mark
            for mark in self.marks
            if mark.question == question and doctor in (None, mark.label)
        ]

    def _coded(self, mark: Mark) -> float | None:
        """A mark's number; in a pair, how much the doctor wins who comes first in `doctors`."""
        if mark.against_label is None:
            return mark.number
        return _won(mark, min(mark.label, mark.against_label, key=self.doctors.index))

    def _bounds(self, question: str) -> tuple[float, float]:
        numbers = self.review.form[question].answers.values()
        return min(numbers), max(numbers)

    def _marks(self, reviewer: str, number: int, entry: AnswerEntry) -> Iterator[Mark]:
        for name, question in self.review.form.items():
            letters = ("",) if question.pairs or not self.review.manifest.pairs else SIDES
            for letter in letters:
                value = entry.answers.get(f"{name}.{letter}" if letter else name)
                yield Mark(
                    reviewer=reviewer,
                    item=number,
                    side=letter,
                    question=name,
                    value=value,
                    number=None if value is None else question.answers[value],
                    skipped=entry.skipped,
                    time=entry.at,
                    note=entry.note,
                    **self._whose(number, letter, both=question.pairs),
                )

    def _whose(self, number: int, letter: str, *, both: bool) -> dict[str, Any]:
        """Whose episode an item shows at `letter`; of both, A's and in `against_…` B's."""
        shown, records = self.review.items[number - 1].sides, self.records[number]
        place = SIDES.index(letter) if letter else 0
        doctor, record = self._doctor(shown[place].doctor), records[place]
        whose: dict[str, Any] = {
            **{name: getattr(doctor, name) for name in ("label", "run", "doctor")},
            **{name: getattr(record, name) for name in ("phase", "stage", "step", "sample")},
            **{"case": record.episode.case.id, "judged": record.correct},
        }
        if both:
            other, against = self._doctor(shown[1].doctor), records[1]
            whose |= {
                f"against_{name}": getattr(other, name) for name in ("label", "run", "doctor")
            }
            whose |= {"against_sample": against.sample, "against_judged": against.correct}
        return whose

    def _doctor(self, number: int) -> ReviewedDoctor:
        return self.review.manifest.doctors[number]


def _unit(mark: Mark) -> tuple[int, str, str]:
    """The key of what several reviewers mark: item, side and question."""
    return mark.item, mark.side, mark.question


def _won(mark: Mark, label: str) -> float | None:
    """How much the doctor with this label wins in a marked pair, from 0 to 1."""
    if mark.number is None or mark.label == label:
        return mark.number
    return 1.0 - mark.number
