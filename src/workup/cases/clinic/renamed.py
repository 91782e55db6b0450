"""The renamed clinic: in every case the diseases bear other, made-up names.

`clinic:s#renamed` has the patients of `clinic:s`. What a name means in a case stands in the library
alone, so that it cannot be learned beforehand. Findings keep their names.

Tables, documents and statements of a renamed clinic hold marks in place of names ("disease07", see
`Tables.masked`). A case's `truth.extra` says what each mark is called in that case. `said` turns
the marks of a text into these names, `in_marks` turns names back into marks. The index of documents
knows marks alone: a disease's true name finds nothing.

A name has two syllables, so that a tiny policy can copy a name that it has never met. The first
syllables of a case's names all differ. A quarter of all pairs of syllables is held out: no training
case has such a name, and with the option `held-out` the test cases have no others.

A disease's picture is the list of its findings. With the option `linked` the picture bears a
made-up name too, with a mark of its own ("picture07"). One document lists the picture's findings.
Another one says which disease has that picture. Only a reader of both knows what a name means.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from typing import TypedDict

import numpy as np

from workup.cases.clinic.patients import SIDES, Patients, clinic
from workup.cases.knowledge import TabularKnowledge
from workup.core.case import Case, Evidence
from workup.core.channel import Channel
from workup.core.lazy import Lazy

FIRST = tuple(map("".join, product("BCDFGHJKLMNPRSTV", "aeiou")))
SECOND = ("bral", "dex", "fom", "gult", "lin", "mork", "nesh", "tov")
FOURTH = 4  # of so many pairs of syllables one is held out

DISEASE, PICTURE = "disease", "picture"  # what marks begin with
_MARK = re.compile(rf"(?:{DISEASE}|{PICTURE})\d\d", re.IGNORECASE)
_WORD = re.compile(r"\w+")
_NAMES = 1  # tells the draw of names from the draw of the patient

NOTES = (
    (
        "The diseases bear made-up names, drawn anew for every case. What they mean stands in the "
        "library alone: use environment=library, environment=inquiry or environment=reasoning."
    ),
    "Which name is right depends on the case, so that macro-accuracy has no meaning here.",
)
LINKED_NOTE = (
    "Two documents together say what a name means: one tells a picture's findings, the other which "
    "disease has that picture."
)


class Called(TypedDict):
    """`Truth.extra` of a case in a renamed clinic: mark → name, in the order of the diseases.

    The marks of pictures come after those of diseases. Plain JSON, so that the case format keeps
    it.
    """

    called: dict[str, str]


def names(*, held_out: bool) -> tuple[str, ...]:
    """All names that are held out, or all others."""
    return tuple(name for row in _rows(held_out=held_out) for name in row)


@lru_cache(maxsize=2)
def _rows(*, held_out: bool) -> tuple[tuple[str, ...], ...]:
    """The names of each first syllable."""
    return tuple(
        tuple(
            first + second
            for column, second in enumerate(SECOND)
            if ((row + column) % FOURTH == 0) == held_out
        )
        for row, first in enumerate(FIRST)
    )


def called(case: Case) -> Mapping[str, str]:
    """Mark → name in this case; empty where the cases are of no renamed clinic."""
    extra = case.truth.extra
    found: Mapping[str, str] = extra.get("called", {}) if isinstance(extra, Mapping) else {}
    return found


def diseases(case: Case) -> tuple[str, ...]:
    """The names of diseases in this case, in their order; none outside of a renamed clinic."""
    return _of(called(case), DISEASE)


def pictures(case: Case) -> tuple[str, ...]:
    """The names of pictures in this case, in the order of the diseases; without links none."""
    return _of(called(case), PICTURE)


def _of(names: Mapping[str, str], kind: str) -> tuple[str, ...]:
    """The names of all marks that begin with `kind`."""
    return tuple(map(names.__getitem__, _marks_of(tuple(names), kind)))


@lru_cache(maxsize=64)
def _marks_of(marks: tuple[str, ...], kind: str) -> tuple[str, ...]:
    return tuple(mark for mark in marks if mark.startswith(kind))


def pictured(case: Case) -> str:
    """The name of the picture that the case's diagnosis has; "" without links."""
    names = called(case)
    marks = (mark for mark, name in names.items() if name == case.truth.diagnosis)
    return next((names.get(picture(mark), "") for mark in marks), "")


def picture(mark: str) -> str:
    """The mark of a disease's picture: "disease07" → "picture07"."""
    return mark.replace(DISEASE, PICTURE)


def said(case: Case, text: str) -> str:
    """`text` with the case's names in place of marks."""
    names = called(case)
    return _MARK.sub(lambda mark: names[mark[0].lower()], text) if names else text


def in_marks(case: Case, text: str) -> str:
    """`text` with marks in place of the case's names; marks that stood in it are removed first."""
    return _masked(called(case), text)


def _masked(names: Mapping[str, str], text: str) -> str:
    marks = {name.lower(): mark for mark, name in names.items()}
    if not marks:
        return text
    return _WORD.sub(lambda word: marks.get(word[0].lower(), word[0]), _MARK.sub(" ", text))


def unmarked(phrases: Iterable[str]) -> Iterator[str]:
    """The phrases, cut at their marks: "In disease07 fever" becomes "In " and " fever"."""
    for phrase in phrases:
        yield from filter(str.strip, _MARK.split(phrase))


def renamed(patients: Patients, linked: bool, *, held_out: bool) -> Sequence[Case]:
    """The same patients, with made-up names for their diseases, or with those held out."""
    make = partial(_case, patients, _rows(held_out=held_out), linked)
    return Lazy(len(patients), make, id_of=patients.id_of)


def _case(patients: Patients, rows: Sequence[Sequence[str]], linked: bool, index: int) -> Case:
    """The patient with names that depend on split, side and index alone.

    The diseases have the same names with links as without.
    """
    diseases = clinic(patients.subset).knowledge.diagnoses
    marks = (*diseases, *(map(picture, diseases) if linked else ()))
    rng = np.random.default_rng([patients.split, SIDES.index(patients.side), index, _NAMES])
    chosen = [rows[row] for row in rng.permutation(len(rows))[: len(marks)]]
    drawn = (row[int(rng.integers(len(row)))] for row in chosen)
    extra = Called(called=dict(zip(marks, drawn, strict=True)))
    case = patients[index]
    truth = case.truth
    return replace(
        case,
        truth=replace(
            truth,
            diagnosis=extra["called"][truth.diagnosis],
            codes=(),
            differentials=tuple(extra["called"][mark] for mark in truth.differentials),
            extra=extra,
        ),
    )


def meanings(case: Case, read: Iterable[str] | None = None) -> Evidence:
    """What the case's names mean, as evidence for `RenamedKnowledge`: name → (mark,).

    With `read`, titles of passages, only of the names that are among them; with links, of those
    whose picture is among them too. Empty where the cases are of no renamed clinic.
    """
    names = called(case)
    pairs = tuple(names.items())
    stand = (mark for text in read or () for mark in _marks_in(pairs, text))
    wanted = {*names} if read is None else {*stand}
    # With links the findings are listed under the disease's picture, which then has to be read too.
    return {
        names[mark]: (mark,)
        for mark in _marks_of(tuple(names), DISEASE)
        if mark in wanted and ((seen := picture(mark)) not in names or seen in wanted)
    }


@lru_cache(maxsize=1 << 12)  # the ideal searcher tries about fifty queries, of the same titles
def _marks_in(names: Sequence[tuple[str, str]], text: str) -> frozenset[str]:
    """The marks of the (mark, name) pairs whose names stand in the text."""
    return frozenset(mark.lower() for mark in _MARK.findall(_masked(dict(names), text)))


class RenamedKnowledge:
    """A `Knowledge` of a renamed clinic: which name is the diagnosis.

    Evidence says what the patient has, as in the clinic itself, and what some of the names mean
    (`meanings`). A name that is not known to mean a disease is as probable as any other such name:
    names are drawn without regard to the patient. So without a meaning all names are equally
    probable, whatever the patient has. That a name was read as a picture's, or begins as a known
    one does, rules it out too; this is not counted, and changes the other names' small shares only.
    """

    def __init__(self, masked: TabularKnowledge, names: Sequence[str]) -> None:
        """`masked` is the clinic's knowledge, whose diagnoses are marks."""
        self._masked, self._names = masked, tuple(names)
        self._known = {name: place for place, name in enumerate(self._names)}
        # The ideal searcher tries about fifty queries for a patient, whose findings stay the same.
        self._chances = lru_cache(maxsize=256)(
            lambda findings: tuple(masked.posterior(dict(findings)))
        )
        self._told_apart = lru_cache(maxsize=256)(
            lambda marks: masked.grouped([m if m in marks else "" for m in masked.diagnoses])
        )

    @property
    def diagnoses(self) -> Sequence[str]:
        return self._names

    def posterior(self, evidence: Evidence) -> list[float]:
        """P(name | evidence), in the order of `diagnoses`."""
        known, findings = self._divided(evidence)
        chances = self._chances(frozenset(findings.items()))
        chance = dict(zip(self._masked.diagnoses, chances, strict=True))
        meant = {name: chance.pop(mark) for name, mark in known.items()}
        other = sum(chance.values()) / max(len(self._names) - len(meant), 1)
        every = [other] * len(self._names)
        for name, own in meant.items():
            every[self._known[name]] = own
        return every

    def gains(self, evidence: Evidence, items: Sequence[str]) -> list[float]:
        """What each item's answer tells about the name, in nats; 0 while no name is known.

        Diseases without a known name count as one: to distinguish them does not help to name one.
        """
        known, findings = self._divided(evidence)
        if not known:
            return [0.0] * len(items)
        return self._told_apart(frozenset(known.values())).gains(findings, items)

    def through(self, channel: Channel) -> RenamedKnowledge:
        return RenamedKnowledge(self._masked.through(channel), self._names)

    def read(self, case: Case, headings: Iterable[str] | None = None) -> Evidence:
        """The names whose meaning the `headings` tell (`meanings`)."""
        return meanings(case, headings)

    def _divided(self, evidence: Evidence) -> tuple[dict[str, str], Evidence]:
        """What is known of names, and of the patient."""
        known = {item: ids[0] for item, ids in evidence.items() if item in self._known}
        return known, {item: ids for item, ids in evidence.items() if item not in self._known}
