"""DDXPlus: 49 conditions, 223 evidences, over a million synthetic patients in the released files.

`ddxplus:FOLDER` or `ddxplus:FILE` reads patients; `#simulated` after it trains on patients made
from the list of conditions alone and tests on released ones.

The folder holds `release_conditions.json`, `release_evidences.json` and patients as CSV or JSON
lines; all patient files are pooled and split anew. Both codings are read (`douleurxx_@_front`,
`E_55_@_V_89`). Every evidence is an item, named by the released English question; answers are built
from question and value. Scales from 0 to 10 become none (0), low (1 to 3), moderate (4 to 6) and
high (7 to 10). Only positive findings are facts; a finding whose parent question is not answered
yes is left out and counted. The presentation states age group, sex and the initial evidence.

Rates are counted over the training split, each shrunk by one pseudo-patient towards the rate over
all conditions. Criticality is CRAFT's ψ(f | d*, o_0) from LR = P(f | d*) / P(f | not d*, o_0): 3
from 10 on, 2 from 5, 1 from 2, else 0. Each finding is judged alone, and a sub-finding given that
its parent is present.

Simulated patients have a listed evidence with probability 0.6 and any other with 0.01; places and
qualities are independent, scales and categories uniform. Condition, age group and sex are uniform,
and the complaint is a listed symptom that is always present. The test side has up to 20 released
patients per condition.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workup.cases.datasets.ddxplus.patients import DdxplusPatient, PatientIndex
from workup.cases.datasets.ddxplus.rates import Criticality, Rates, Tally
from workup.cases.datasets.ddxplus.release import Release, age_fact, person, read_release, sex_fact
from workup.cases.datasets.ddxplus.simulator import LISTED, SIZE, UNLISTED, DdxplusSimulator
from workup.cases.files import Split, existing, held_out, numbered, view_of
from workup.cases.icd import chapter
from workup.cases.rows import RowErrors
from workup.core.case import Case, Fact, Source, Truth
from workup.core.errors import UserError
from workup.core.lazy import Lazy

EXAMPLE = "ddxplus:~/ddxplus"
FILES = ("release_conditions.json", "release_*_patients*")
FIELDS = ("PATHOLOGY EVIDENCES INITIAL_EVIDENCE",)

_PATTERNS = (
    "*.csv",
    "*.jsonl",
    "release_*_patients",
)  # the last: as the released archives name their content
_PER_CONDITION = 20  # released patients per condition that test a policy trained on simulated ones
_SIMULATED = "simulated"
_LICENCE = (
    "DDXPlus (Mila), CC BY; its patients are synthetic, made by its authors from a rule base."
)


def open(rest: str, split: Split, errors: RowErrors) -> Source:
    """Opens `FOLDER`, `FILE`, or either with `#simulated`.

    Raises UserError, and CaseError for malformed files.
    """
    place, view = view_of(rest, "ddxplus", [_SIMULATED])
    path = existing(place)
    release = read_release(path if path.is_dir() else path.parent)
    name = f"ddxplus:{rest}"
    index, number = PatientIndex(), numbered(split, name)
    return (_simulated if view else _released)(name, _Rows(path, release, index, errors), number)


def _patient_files(path: Path) -> list[Path]:
    files = (
        sorted({f for pattern in _PATTERNS for f in path.glob(pattern)})
        if path.is_dir()
        else [path]
    )
    if not files:
        raise UserError(
            f"no patients in {path}: expected {' or '.join(_PATTERNS)} beside "
            "release_conditions.json."
        )
    return files


@dataclass(frozen=True, slots=True)
class _Rows:
    """The patients' files of a release while they are read."""

    path: Path
    release: Release
    index: PatientIndex
    errors: RowErrors

    def read(self, each: Callable[[int, DdxplusPatient], None]) -> None:
        """Puts every patient into the index, and calls `each` with it."""
        for file in _patient_files(self.path):
            self.index.add(file, self.release, self.errors, each)


def _released(name: str, rows: _Rows, split: int) -> Source:
    release, index, tally = rows.release, rows.index, Tally(rows.release)
    sides: tuple[array[int], array[int]] = (
        array("L"),
        array("L"),
    )  # patients of the training and the test split

    def place(row: int, patient: DdxplusPatient) -> None:
        # the hash is over what a policy could see, so that the two sides share no set of
        # findings and no set of released codes
        test = held_out(split, "\n".join(sorted(fact.id for fact in patient.facts)))
        sides[test].append(row)
        if not test:
            tally.add(patient)

    rows.read(place)
    if not len(sides[0]) or not len(sides[1]):
        few = UserError(
            f"{rows.path} has {len(index)} patients: too few for a training and a test split."
        )
        raise few if len(index) else rows.errors.nothing(few)
    rates = tally.rates()
    train, test = (_cases(index, side, release, rates.criticality()) for side in sides)
    notes = (
        f"{len(index):,} patients of {len(set(index.labels))} of {len(release.conditions)} "
        f"conditions in {len(index.files)} file(s): {len(train):,} to train on, {len(test):,} to "
        "test on; no set of findings stands on both sides.",
        *_common_notes(index),
    )
    return _source(name, release, train, test, rates, notes)


def _simulated(name: str, rows: _Rows, split: int) -> Source:
    release, index = rows.release, rows.index
    simulator = DdxplusSimulator(release, split)
    rows.read(lambda row, patient: None)
    if not len(index):
        raise rows.errors.nothing(UserError(f"{rows.path} has no patients to test on."))
    criticality = simulator.rates.criticality()

    def make(i: int) -> Case:
        return case_of(simulator.patient(i), _simulated_id(i), release, criticality)

    test = _cases(index, _balanced_rows(index.labels, split), release, criticality)
    covered = len(set(test.labels or ()))
    notes = (
        "Training patients are simulated from release_conditions.json alone: a listed evidence "
        f"is present with probability {LISTED}, any other with {UNLISTED}; values, ages, sexes "
        "and conditions are uniform.",
        f"Test: {len(test):,} released patients, up to {_PER_CONDITION} per condition ({covered} "
        f"of {len(release.conditions)} conditions) drawn from {len(index):,}.",
        *_common_notes(index),
    )
    train = Lazy(SIZE, make, id_of=_simulated_id)
    return _source(name, release, train, test, simulator.rates, notes)


def _simulated_id(index: int) -> str:
    return f"simulated#{index}"


def _source(
    name: str,
    release: Release,
    train: Lazy[Case],
    test: Lazy[Case],
    rates: Rates,
    notes: Sequence[str],
) -> Source:
    return Source(
        name=name,
        train=train,
        test=test,
        items=release.items,
        diagnoses=release.diagnoses,
        phrases=release.phrases,
        knowledge=rates.knowledge(),
        must_not_miss=release.must_not_miss,
        notes=tuple(notes),
    )


def _cases(
    index: PatientIndex, rows: array[int], release: Release, criticality: Criticality
) -> Lazy[Case]:
    def make(i: int) -> Case:
        id, patient = index.read(rows[i])
        return case_of(patient, id, release, criticality)

    labels = array("H", (index.labels[row] for row in rows))
    return Lazy(len(rows), make, labels, id_of=lambda i: index.id_of(rows[i]))


def _balanced_rows(labels: array[int], split: int) -> array[int]:
    """Up to _PER_CONDITION rows of every label, drawn by the number of the split, in file order."""
    order = np.random.default_rng(split).permutation(len(labels))
    mixed = np.frombuffer(labels, dtype=np.uint16)[order]
    chosen = [order[np.flatnonzero(mixed == label)[:_PER_CONDITION]] for label in np.unique(mixed)]
    return array("L", sorted(int(row) for rows in chosen for row in rows))


def case_of(patient: DdxplusPatient, id: str, release: Release, criticality: Criticality) -> Case:
    """The case of one patient.

    Age group, sex and the initial evidence are presented; the other positive findings are hidden.
    """
    condition = release.conditions[patient.condition]
    evidence, complaint = release.find(patient.initial)
    given = [age_fact(patient.age), sex_fact(patient.sex)]
    given += [complaint] if complaint else []
    given += [fact for fact in patient.facts if fact.item == evidence.item.parent]
    hidden = [fact for fact in patient.facts if fact not in given]
    weights = criticality.weights(hidden, condition.name, given)
    presentation = (
        f"{person(patient.age, patient.sex)} "
        f"{complaint.text if complaint else evidence.item.normal}"
    )
    truth = Truth(
        diagnosis=condition.name,
        codes=condition.codes,
        aliases=condition.aliases,
        differentials=tuple(release.conditions[other].name for other in patient.differentials),
        facts=tuple(Fact(f.id, f.item, f.text, f.kind, weights[f.id]) for f in hidden),
        record="\n".join([presentation, *(fact.text for fact in hidden)]),
    )
    return Case(
        id,
        presentation,
        truth,
        given=tuple(given),
        category=chapter(condition.codes[0] if condition.codes else ""),
    )


def _common_notes(index: PatientIndex) -> list[str]:
    orphans = (
        f"{index.orphans:,} sub-findings left out: the question above them is not answered yes."
    )
    return [
        (
            "Negative and default answers are normal answers, not findings; 0–10 scales are read "
            "in four buckets."
        ),
        *([orphans] if index.orphans else []),
        _LICENCE,
    ]
