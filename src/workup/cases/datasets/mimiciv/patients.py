"""An admission as a case: half of its laboratory values and the beginning of its note are shown.

The rest is hidden, to be asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from workup.cases.datasets.mimiciv.cohort import OUTCOME, TASKS, Stay, stays_of, until
from workup.cases.datasets.mimiciv.release import SEXES, tells_death
from workup.cases.files import Split
from workup.cases.findings import kind_of, sentences
from workup.cases.tables import TableIndex
from workup.core.case import Case, Fact, Kind, Truth

_BEGINNING = 500  # characters of the note that open the encounter (ProMed C.1)
_OLDEST = 91  # stands for everybody over 89
_OWN = "History of present illness"
_KINDS = {
    "physical exam": Kind.EXAMINATION,
    "exam at discharge": Kind.EXAMINATION,
    "discharge condition": Kind.EXAMINATION,
    "pertinent results": Kind.LABORATORY,
    "major surgical or invasive procedure": Kind.PROCEDURE,
}


@dataclass(frozen=True, slots=True)
class Chart:
    """Admissions as a task may see them; `split` draws which half of the values is shown."""

    index: TableIndex
    task: str
    split: Split

    def case(self, subject: int, hadm: int, comes_true: bool) -> Case:
        """The case of admission `hadm`.

        `comes_true` says whether the task's first answer is right.
        """
        task, stays = TASKS[self.task], stays_of(self.index, subject)
        place = next(i for i, stay in enumerate(stays) if stay.hadm == hadm)
        stay = stays[place]
        labs, notes = list(self._labs(stay)), list(self._notes(stay))
        shown = self._half(labs, hadm)
        beginning = _beginning(notes)
        given = (*shown, *beginning)
        # Without its section a mother's cancer would be the patient's.
        headed = (
            each if each.item == _OWN else replace(each, text=f"{each.item}: {each.text}")
            for each in notes
        )
        others = (*self._history(stays, place), *labs, *headed)
        known = {fact.id for fact in given}
        hidden = tuple(fact for fact in others if fact.id not in known)
        presentation = "\n".join(
            [self._person(stay, place), *(fact.text for fact in shown), *_under_headings(beginning)]
        )
        truth = Truth(
            diagnosis=task.answers[0 if comes_true else 1],
            facts=hidden,
            record="\n".join([presentation, *(fact.text for fact in hidden)]),
        )
        return Case(
            str(hadm),
            presentation,
            truth,
            question=task.question,
            options=task.answers,
            given=given,
        )

    def _person(self, stay: Stay, earlier: int) -> str:
        [(sex, age, year)] = self.index.select(
            "SELECT sex, age, year FROM patients WHERE subject = ?", (stay.subject,)
        )
        years = int(str(age)) + stay.admitted.year - int(str(year))
        aged = "over 89" if years >= _OLDEST else f"aged {years}"
        words = [
            f"A {SEXES[str(sex)]} {aged}.",
            f"Admission: {stay.type.rstrip('.') or 'of unknown type'}.",
        ]
        if self.task == OUTCOME:
            return " ".join([*words, f"Earlier admissions: {earlier}."])
        return " ".join([*words, f"Length of stay: {(stay.discharged - stay.admitted).days} days."])

    def _history(self, stays: Sequence[Stay], place: int) -> Iterator[Fact]:
        """Coded diagnoses: of earlier admissions for the outcome, of this one for readmission."""
        stay = stays[place]
        for number, other in enumerate(stays[:place], start=1) if self.task == OUTCOME else ():
            item = f"Earlier admission {number}"
            before = f"{item}, {(stay.admitted - other.admitted).days} days before"
            for seq, title in self._diagnoses(other):
                yield Fact(f"v{number}.{seq}", item, f"{before}: {title}.")
        for seq, title in self._diagnoses(stay) if self.task != OUTCOME else ():
            yield Fact(
                f"d{seq}", "Diagnoses of this admission", f"Diagnosis of this admission: {title}."
            )

    def _diagnoses(self, stay: Stay) -> list[tuple[object, ...]]:
        query = (
            "SELECT seq, title FROM found JOIN titles USING (code, version) "
            "WHERE hadm = ? ORDER BY seq"
        )
        return self.index.select(query, (stay.hadm,))

    def _labs(self, stay: Stay) -> Iterator[Fact]:
        """The first value of each test."""
        query = """SELECT item, COALESCE(name, 'Test ' || labs.item), value, reference FROM labs \
LEFT JOIN tests USING (item)
          WHERE hadm = ? AND time <= ? ORDER BY time, item"""
        for item, name, value, reference in self.index.stream(
            query, (stay.hadm, until(stay, self.task))
        ):
            text = f"{name}: {value}{f' (reference {reference})' if reference else ''}."
            yield Fact(f"l{item}", str(name), text, Kind.LABORATORY)

    def _notes(self, stay: Stay) -> Iterator[Fact]:
        query = (
            "SELECT seq, place, section, text FROM notes WHERE hadm = ? AND early >= ? ORDER "
            "BY seq, place"
        )
        for seq, place, section, text in self.index.stream(
            query, (stay.hadm, self.task == OUTCOME)
        ):
            for number, sentence in enumerate(sentences(str(text))):
                if self.task == OUTCOME and tells_death(str(section), sentence):
                    continue
                kind = _KINDS.get(str(section), Kind.HISTORY)
                yield Fact(
                    f"n{seq}.{place}.{number}",
                    str(section).capitalize(),
                    sentence,
                    kind_of(sentence, kind) if kind is Kind.LABORATORY else kind,
                )

    def _half(self, labs: Sequence[Fact], hadm: int) -> list[Fact]:
        """Half of the values, drawn by a hash: a case stays the same when other cases are added."""

        def place(fact: Fact) -> bytes:
            return blake2b(f"{self.split}\n{hadm}\n{fact.id}".encode(), digest_size=8).digest()

        drawn = sorted(labs, key=place)
        chosen = {fact.id for fact in drawn[: len(labs) // 2]}
        return [fact for fact in labs if fact.id in chosen]


def _beginning(notes: Sequence[Fact]) -> list[Fact]:
    """The sentences that are whole within the beginning of the note."""
    chosen: list[Fact] = []
    length = 0
    for fact in notes:
        length += len(fact.text) + 1
        if length > _BEGINNING:
            break
        chosen.append(fact)
    return chosen


def _under_headings(facts: Sequence[Fact]) -> list[str]:
    """One line per section: "Chief complaint: dyspnea"."""
    by_section: dict[str, list[str]] = {}
    for fact in facts:
        by_section.setdefault(fact.item, []).append(fact.text)
    return [f"{section}: {' '.join(texts)}" for section, texts in by_section.items()]
