"""MIMIC-IV: hospital admissions with laboratory values and discharge summaries (credentialed).

`mimiciv:FOLDER#outcome` asks whether the patient survives the last admission on file;
`#readmission` whether another admission follows within 30 days; `#readmission-any` whether one
follows at all (ProMed C.1, PM-16). With `all` after a comma every case is held out. The folder
holds `hosp/`, and `note/` if there are summaries.

For the outcome the record has the values of the first day, the summary's sections that are known on
arrival, and coded diagnoses of earlier admissions; for readmission all values, the whole summary
and coded diagnoses. The first value of each test is taken. Shown are age, sex, kind of admission,
half of the values (drawn by a hash) and the whole sentences within the first 500 characters of the
summary; the rest is hidden. For the outcome, sentences that tell a death (other than in the family
history) are left out and counted. Overlapping admissions are left out and counted. A later
admission counts whether planned or not.
"""

from __future__ import annotations

from array import array
from collections import Counter

from workup.cases.datasets.mimiciv.cohort import OUTCOME, TASKS, answered
from workup.cases.datasets.mimiciv.patients import Chart
from workup.cases.datasets.mimiciv.release import open_release
from workup.cases.files import ALL, Split, existing, held_out, words_of
from workup.cases.rows import RowErrors
from workup.cases.tables import RESTRICTED, TableIndex
from workup.core.case import Case, Source
from workup.core.errors import UserError
from workup.core.lazy import Lazy

EXAMPLE = "mimiciv:~/mimic-iv-3.1#readmission"
FILES = ("hosp/admissions.csv*",)


def open(rest: str, split: Split, errors: RowErrors) -> Source:
    """Opens `FOLDER#TASK`.

    Raises UserError (which file is missing, which tasks exist) and CaseError (file, line, field).
    """
    place, words = words_of(rest, "mimiciv", [*TASKS, ALL])
    folder, tasks = existing(place), [word for word in words if word != ALL]
    if len(tasks) != 1:
        raise UserError(
            f"mimiciv takes one task of {', '.join(TASKS)}, as in 'mimiciv:{place}#{OUTCOME}'."
        )
    if not folder.is_dir():
        raise UserError(f"{folder} is a file; mimiciv takes the folder that holds hosp/.")
    index, noted = open_release(folder, errors)
    sides = _Side(), _Side()
    counts = _counts(index, tasks[0])
    for stay, comes_true in answered(index, tasks[0], counts):
        side = sides[ALL in words or held_out(split, str(stay.subject))]
        side.add(stay.subject, stay.hadm, comes_true)
        counts.update(cases=1, true=comes_true)
    if not counts["cases"]:
        none = (
            f"no admission in {folder} for the task '{tasks[0]}' has laboratory values or a "
            "discharge summary."
        )
        raise errors.nothing(UserError(none))
    train, test = (side.cases(Chart(index, tasks[0], split)) for side in sides)
    return Source(
        name=f"mimiciv:{rest}",
        train=train,
        test=test,
        diagnoses=TASKS[tasks[0]].answers,
        notes=_notes(tasks[0], counts, noted),
        restricted=True,
        undivided=True,
    )


class _Side:
    """One side of the split: 18 bytes an admission."""

    def __init__(self) -> None:
        self.subjects, self.hadms, self.labels = array("Q"), array("Q"), array("H")

    def add(self, subject: int, hadm: int, comes_true: bool) -> None:
        self.subjects.append(subject)
        self.hadms.append(hadm)
        self.labels.append(not comes_true)

    def cases(self, chart: Chart) -> Lazy[Case]:
        return Lazy(
            len(self.hadms),
            lambda i: chart.case(self.subjects[i], self.hadms[i], not self.labels[i]),
            labels=self.labels,
        )


def _counts(index: TableIndex, task: str) -> Counter[str]:
    counts = Counter(
        {str(what): int(str(n)) for what, n in index.stream("SELECT what, n FROM counts")}
    )
    if task == OUTCOME:
        [(sentences,)] = index.select("SELECT COALESCE(SUM(telling), 0) FROM notes WHERE early")
        counts["telling"] = int(str(sentences))
    return counts


def _notes(task: str, counts: Counter[str], noted: bool) -> tuple[str, ...]:
    skipped = {
        "died": "{} admissions left out: the patient died in hospital.",
        "overlapping": "{} admissions left out: the next one begins before they end.",
        "bare": (
            "{} admissions left out: neither two laboratory values nor a summary is on file in "
            "time."
        ),
        "outside": "{} laboratory values belong to no admission and are not read.",
        "valueless": "{} laboratory rows without a value skipped.",
        "homeless": "{} summaries belong to no admission and are not read.",
        "telling": (
            "{} sentences of summaries left out: they tell a death, which may be the patient's."
        ),
    }
    answer = TASKS[task].answers[0]
    return (
        RESTRICTED,
        (
            f"'{answer}' is the answer for {counts['true']:,} of {counts['cases']:,} "
            f"({counts['true'] / counts['cases']:.1%})."
        ),
        *(
            []
            if noted
            else ["There is no folder note/ beside hosp/: cases have no discharge summaries."]
        ),
        *(text.format(f"{counts[what]:,}") for what, text in skipped.items() if counts[what]),
        (
            "Patients, not admissions, are split. Shown: age, sex, half of the laboratory "
            "values, the beginning of the note."
        ),
        "MIMIC-IV and MIMIC-IV-Note: PhysioNet Credentialed Health Data License.",
    )
