"""Two predictions about admissions (ProMed C.1): who is asked about, and what came true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from workup.cases.tables import TableIndex

DAYS = 30
OUTCOME = "outcome"
_ANY = "readmission-any"


@dataclass(frozen=True, slots=True)
class Task:
    """A question and its two answers; the first is the one that is rare and to be foreseen."""

    question: str
    answers: tuple[str, str]


TASKS = {
    OUTCOME: Task(
        "Does the patient survive this admission?", ("Dies in hospital", "Survives to discharge")
    ),
    "readmission": Task(
        f"Is the patient admitted again within {DAYS} days of this discharge?",
        (f"Readmitted within {DAYS} days", f"Not readmitted within {DAYS} days"),
    ),
    _ANY: Task(
        "Is the patient ever admitted again after this discharge?",
        ("Readmitted later", "Not readmitted"),
    ),
}


@dataclass(frozen=True, slots=True)
class Stay:
    """One admission to hospital."""

    subject: int
    hadm: int
    admitted: datetime
    discharged: datetime
    type: str
    died: bool


def answered(index: TableIndex, task: str, counts: Counter[str]) -> Iterator[tuple[Stay, bool]]:
    """The admissions of a task, each with whether the task's first answer is right.

    Admissions that are left out are counted by reason. "outcome" asks about each patient's last
    admission; the other tasks ask about every admission that the patient left alive.
    """
    for (stay, recorded), following in _followed(index, task):
        if task == OUTCOME and following is not None:
            continue
        if task != OUTCOME and (reason := _excluded(stay, following)):
            counts[reason] += 1
        elif not recorded:
            counts["bare"] += 1
        else:
            returned = following is not None and (
                task == _ANY or following.admitted - stay.discharged <= timedelta(days=DAYS)
            )
            yield stay, stay.died if task == OUTCOME else returned


def _excluded(stay: Stay, following: Stay | None) -> str:
    if stay.died:
        return "died"
    return "overlapping" if following is not None and following.admitted < stay.discharged else ""


def _followed(index: TableIndex, task: str) -> Iterator[tuple[tuple[Stay, bool], Stay | None]]:
    """Every admission, whether anything on file can be asked for, and the patient's next one."""
    held: tuple[Stay, bool] | None = None
    for *row, recorded in index.stream(_RECORDED, {"early": task == OUTCOME}):
        stay = _stay(row)
        if held is not None:
            yield held, stay if stay.subject == held[0].subject else None
        held = stay, recorded == 1
    if held is not None:
        yield held, None


# What may be known. For the outcome: values up to a day after arrival, and early sections. For the
# other tasks: all up to the discharge. Two values are enough, since one of them is shown.
_KNOWN = "CASE WHEN :early THEN datetime(admitted, '+1 day') ELSE discharged END"
_COLUMNS = "subject, hadm, admitted, discharged, type, died"
_RECORDED = f"""
SELECT {_COLUMNS},
  (SELECT COUNT(*) FROM (SELECT 1 FROM labs WHERE labs.hadm = stays.hadm AND time <= {_KNOWN} \
LIMIT 2)) = 2
  OR EXISTS (SELECT 1 FROM notes WHERE notes.hadm = stays.hadm AND notes.early >= :early)
FROM stays ORDER BY subject, admitted, hadm
"""


def stays_of(index: TableIndex, subject: int) -> list[Stay]:
    """All admissions of a patient, in order."""
    query = f"SELECT {_COLUMNS} FROM stays WHERE subject = ? ORDER BY admitted, hadm"
    return [_stay(row) for row in index.stream(query, (subject,))]


def _stay(row: Sequence[object]) -> Stay:
    subject, hadm, admitted, discharged, type, died = map(str, row)
    times = datetime.fromisoformat(admitted), datetime.fromisoformat(discharged)
    return Stay(int(subject), int(hadm), *times, type, died == "1")


def until(stay: Stay, task: str) -> str:
    """The time up to which laboratory values may be known."""
    end = stay.admitted + timedelta(days=1) if task == OUTCOME else stay.discharged
    return end.isoformat(sep=" ", timespec="seconds")
