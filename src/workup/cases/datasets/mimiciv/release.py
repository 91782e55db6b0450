"""The files of MIMIC-IV and what is kept of them: one index for all tasks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import TypeVar

from workup.cases.findings import sentences
from workup.cases.rows import RowErrors
from workup.cases.tables import CsvRow, Filling, TableIndex, Values, indexed, member

T = TypeVar("T")
RELEASE = "MIMIC-IV"
NOTES = "note/discharge.csv"
_COLUMNS = {
    "hosp/patients.csv": ("subject_id", "gender", "anchor_age", "anchor_year"),
    "hosp/admissions.csv": (
        "hadm_id",
        "subject_id",
        "admittime",
        "dischtime",
        "admission_type",
        "hospital_expire_flag",
    ),
    "hosp/diagnoses_icd.csv": ("hadm_id", "seq_num", "icd_code", "icd_version"),
    "hosp/d_icd_diagnoses.csv": ("icd_code", "icd_version", "long_title"),
    "hosp/d_labitems.csv": ("itemid", "label", "fluid"),
    "hosp/labevents.csv": (
        "hadm_id",
        "itemid",
        "charttime",
        "value",
        "valueuom",
        "ref_range_lower",
        "ref_range_upper",
    ),
}
_NOTE_COLUMNS = ("hadm_id", "text")
_SCHEMA = """
CREATE TABLE patients (subject INTEGER PRIMARY KEY, sex TEXT, age INTEGER, year INTEGER);
CREATE TABLE stays (subject INTEGER, admitted TEXT, hadm INTEGER UNIQUE, discharged TEXT, type \
TEXT, died INTEGER,
  PRIMARY KEY (subject, admitted, hadm)) WITHOUT ROWID;
CREATE TABLE found (hadm INTEGER, seq INTEGER, code TEXT, version TEXT, PRIMARY KEY (hadm, seq)) \
WITHOUT ROWID;
CREATE TABLE titles (code TEXT, version TEXT, title TEXT, PRIMARY KEY (code, version)) WITHOUT \
ROWID;
CREATE TABLE tests (item INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE labs (hadm INTEGER, item INTEGER, time TEXT, value TEXT, reference TEXT, PRIMARY KEY \
(hadm, item)) WITHOUT ROWID;
CREATE TABLE notes (hadm INTEGER, seq INTEGER, place INTEGER, section TEXT, early INTEGER, telling \
INTEGER, text TEXT,
  PRIMARY KEY (hadm, seq, place)) WITHOUT ROWID;
CREATE TABLE counts (what TEXT PRIMARY KEY, n INTEGER);
"""
_KEEP_FIRST = """
INSERT INTO labs VALUES (?, ?, ?, ?, ?) ON CONFLICT (hadm, item) DO UPDATE
SET time = excluded.time, value = excluded.value, reference = excluded.reference WHERE \
excluded.time < time
"""
SEXES = {"F": "woman", "M": "man"}

# the sections of a discharge summary: those that are known on arrival, and the others
EARLY = (
    "allergies",
    "chief complaint",
    "history of present illness",
    "past medical history",
    "social history",
    "family history",
    "physical exam",
    "medications on admission",
)
_LATE = (
    "major surgical or invasive procedure",
    "pertinent results",
    "brief hospital course",
    "discharge medications",
    "discharge disposition",
    "discharge diagnosis",
    "discharge condition",
    "discharge instructions",
    "followup instructions",
)
_HEADING = re.compile(rf"({'|'.join((*EARLY, *_LATE))})(?:ination)?\s{{0,2}}:", re.I)
# an examination before discharge follows the first one without a heading
_AT_DISCHARGE = re.compile(
    r"\W*(?:(?:physical )?exam(?:ination)?|pe|vitals?)?\W*(?:on |at |upon )?(?:discharge|death)\b",
    re.I,
)
_TIME = re.compile(
    r"\d{4}-(?:0\d|1[0-2])-(?:[0-2]\d|3[01]) (?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d", re.ASCII
)
_DEATH = re.compile(
    r"\b(?:expired|deceased|passed away|pronounced dead|time of death|died|death)\b", re.I
)


def open_release(folder: Path, errors: RowErrors) -> tuple[TableIndex, bool]:
    """The index of a folder's files, and whether discharge summaries are among them.

    Raises UserError and CaseError.
    """
    files = {name: member(folder, name, RELEASE) for name in _COLUMNS}
    noted = (folder / "note").is_dir()
    if noted:
        files[NOTES] = member(folder, NOTES, "MIMIC-IV-Note")
    index = indexed(
        "mimiciv", files, _SCHEMA, lambda filling: _ReleaseReader(files, filling).fill(), errors
    )
    return index, noted


class _ReleaseReader:
    """Fills the index from the files, one pass each."""

    def __init__(self, files: dict[str, Path], filling: Filling) -> None:
        self.files, self.filling, self.database = files, filling, filling.database
        self.counts: Counter[str] = Counter()
        self.notes = 0  # discharge summaries that were read

    def fill(self) -> None:
        self._load("hosp/patients.csv", "INSERT INTO patients VALUES (?, ?, ?, ?)", _patient)
        self._load("hosp/admissions.csv", "INSERT INTO stays VALUES (?, ?, ?, ?, ?, ?)", self._stay)
        self._load("hosp/diagnoses_icd.csv", "INSERT INTO found VALUES (?, ?, ?, ?)", _diagnosis)
        self._load("hosp/d_icd_diagnoses.csv", "INSERT INTO titles VALUES (?, ?, ?)", _title)
        self._load("hosp/d_labitems.csv", "INSERT INTO tests VALUES (?, ?)", _test)
        self.database.executemany(
            _KEEP_FIRST, filter(None, self._made("hosp/labevents.csv", self._value))
        )
        if NOTES in self.files:
            sections = chain.from_iterable(self._made(NOTES, self._note))
            self.database.executemany("INSERT INTO notes VALUES (?, ?, ?, ?, ?, ?, ?)", sections)
        self.database.executemany("INSERT INTO counts VALUES (?, ?)", self.counts.items())

    def _load(self, name: str, statement: str, values: Callable[[CsvRow], Values]) -> None:
        self.filling.load(self.files[name], _COLUMNS[name], statement, values)

    def _made(self, name: str, read: Callable[[CsvRow], T]) -> Iterator[T]:
        return self.filling.rows(self.files[name], _COLUMNS.get(name, _NOTE_COLUMNS), read)

    def _stay(self, row: CsvRow) -> Values:
        subject = row.number("subject_id")
        if not self.database.execute(
            "SELECT 1 FROM patients WHERE subject = ?", (subject,)
        ).fetchone():
            raise row.wrong("names a patient whom patients.csv lacks.", "subject_id")
        return _stay(row)

    def _value(self, row: CsvRow) -> tuple[object, ...] | None:
        """A laboratory value of an admission.

        None for others, and for "___", which the release withholds.
        """
        hadm, _, _, value, unit, low, high = map(str.strip, row.values)
        if not hadm:
            self.counts["outside"] += 1
        elif not value or value == "___":
            self.counts["valueless"] += 1
        else:
            reference = f"{low or '…'} to {high or '…'}" if low or high else ""
            text = f"{value} {unit}".strip()
            return (
                row.number("hadm_id"),
                row.number("itemid"),
                _time(row, "charttime"),
                text,
                reference,
            )
        return None

    def _note(self, row: CsvRow) -> list[tuple[object, ...]]:
        """The sections of a discharge summary."""
        number, self.notes = self.notes, self.notes + 1
        if not row.text("hadm_id"):
            self.counts["homeless"] += 1
            return []
        hadm, found = row.number("hadm_id"), list[tuple[object, ...]]()
        for place, (section, text) in enumerate(_cut(row.text("text"))):
            telling = (
                sum(tells_death(section, sentence) for sentence in sentences(text))
                if section in EARLY
                else 0
            )
            found.append((hadm, number, place, section, section in EARLY, telling, text))
        return found


def tells_death(section: str, sentence: str) -> bool:
    """Whether a sentence says that somebody died who may be the patient.

    Relatives have a section of their own.
    """
    return section != "family history" and _DEATH.search(sentence) is not None


def _patient(row: CsvRow) -> Values:
    sex = row.text("gender")
    if sex not in SEXES:
        raise row.wrong("must be F or M.", "gender")
    return row.number("subject_id"), sex, row.number("anchor_age"), row.number("anchor_year")


def _stay(row: CsvRow) -> Values:
    died = row.number("hospital_expire_flag")
    if died not in {0, 1}:
        raise row.wrong("must be 0 or 1.", "hospital_expire_flag")
    admitted, discharged = _day(row, "admittime"), _day(row, "dischtime")
    return (
        row.number("subject_id"),
        admitted,
        row.number("hadm_id"),
        discharged,
        row.text("admission_type"),
        died,
    )


def _diagnosis(row: CsvRow) -> Values:
    return (
        row.number("hadm_id"),
        row.number("seq_num"),
        row.text("icd_code"),
        row.text("icd_version"),
    )


def _title(row: CsvRow) -> Values:
    return row.text("icd_code"), row.text("icd_version"), row.text("long_title")


def _test(row: CsvRow) -> Values:
    label, fluid = row.text("label") or f"Test {row.number('itemid')}", row.text("fluid")
    return row.number("itemid"), f"{label} ({fluid.lower()})" if fluid else label


def _time(row: CsvRow, column: str) -> str:
    """The text of a time. Texts of this form sort in the order of their times."""
    text = row.text(column)
    if not _TIME.fullmatch(text):
        raise row.wrong("must be a time, as in 2180-05-06 22:23:00.", column)
    return text


def _day(row: CsvRow, column: str) -> str:
    """A time whose day is in the calendar."""
    try:
        datetime.fromisoformat(_time(row, column))
    except ValueError:
        raise row.wrong("there is no such day.", column) from None
    return row.text(column)


def _cut(text: str) -> Iterator[tuple[str, str]]:
    """The sections of a discharge summary, without the names and dates before the first heading."""
    section, held = "", list[str]()
    for line in text.splitlines():
        heading = _HEADING.match(line.strip())
        late = section == "physical exam" and _AT_DISCHARGE.match(line)
        if heading or late:
            if section and held:
                yield section, "\n".join(held)
            section, held = heading[1].lower() if heading else "exam at discharge", []
            line = line.strip()[heading.end() :] if heading else line
        held.append(line)
    if section:
        yield section, "\n".join(held)
