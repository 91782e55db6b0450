"""DDXPlus patients: rows of the released CSV or JSON-lines layout, read by offset."""

from __future__ import annotations

import ast
import csv
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from workup.cases.datasets.ddxplus.release import SEPARATOR, Release, age_group
from workup.cases.files import line_at, lines_of, parse_object
from workup.cases.rows import RowErrors
from workup.core.case import Fact
from workup.core.errors import CaseError, unknown

FIELDS = ("AGE", "DIFFERENTIAL_DIAGNOSIS", "SEX", "PATHOLOGY", "EVIDENCES", "INITIAL_EVIDENCE")
_LITERAL_LIMIT = 100_000  # characters of one Python-style list; released ones stay below 3,000
_OLDEST = 130


@dataclass(frozen=True, slots=True)
class DdxplusPatient:
    """One row, checked.

    `condition` and `differentials` index the release's conditions, `age` its age groups.

    `facts` are the positive findings in the file's order, the `initial` evidence's among them;
    `orphans` counts findings left out because the question above them is not answered yes.
    """

    condition: int
    age: int
    sex: str
    facts: tuple[Fact, ...]
    initial: str
    differentials: tuple[int, ...] = ()
    orphans: int = 0


@dataclass(frozen=True, slots=True)
class Rows:
    """How to read the rows of one file.

    `columns` are a CSV header's names, or empty for JSON lines.
    """

    path: Path
    release: Release
    columns: tuple[str, ...]

    def patient(self, text: str, line: int | None = None) -> DdxplusPatient:
        """The patient in one line. Raises CaseError with the line and the field."""
        return _PatientRow(self._values(text, line), self.path, line, self.release).patient()

    def _values(self, text: str, line: int | None) -> Mapping[str, Any]:
        if not self.columns:
            return parse_object(text, file=self.path, line=line)
        cells = _cells(text, self.path, line)
        if len(cells) != len(self.columns):
            raise CaseError(
                f"{len(cells)} cells under {len(self.columns)} column names.",
                file=self.path,
                line=line,
            )
        return dict(zip(self.columns, cells, strict=True))


def _cells(text: str, path: Path, line: int | None) -> list[str]:
    try:
        return next(csv.reader([text], strict=True))
    except csv.Error as error:
        raise CaseError(
            f"not a CSV row: {error} (a cell may not span lines).", file=path, line=line
        ) from error


@dataclass(frozen=True, slots=True)
class _PatientRow:
    values: Mapping[str, Any]
    path: Path
    line: int | None
    release: Release

    def patient(self) -> DdxplusPatient:
        evidences = [self._known(code, "EVIDENCES") for code in self._list("EVIDENCES")]
        facts, orphans = self._facts(evidences)
        return DdxplusPatient(
            condition=self._condition(self._text("PATHOLOGY"), "PATHOLOGY"),
            age=self._age(),
            sex=self._sex(),
            facts=facts,
            initial=self._known(self._text("INITIAL_EVIDENCE"), "INITIAL_EVIDENCE"),
            differentials=self._differentials(),
            orphans=orphans,
        )

    def _wrong(self, problem: str, field: str) -> CaseError:
        return CaseError(problem, file=self.path, line=self.line, field=field)

    def _value(self, field: str) -> Any:
        if field not in self.values:
            raise self._wrong("missing.", field)
        return self.values[field]

    def _text(self, field: str) -> str:
        value = self._value(field)
        if not isinstance(value, str):
            raise self._wrong(f"must be text, not {type(value).__name__}.", field)
        return value

    def _age(self) -> int:
        text = str(self._value("AGE")).strip()
        if not (text.isascii() and text.isdigit() and len(text) <= 3 and int(text) <= _OLDEST):
            raise self._wrong(f"must be whole years from 0 to {_OLDEST}, not '{text[:20]}'.", "AGE")
        return age_group(int(text))

    def _sex(self) -> str:
        sex = self._text("SEX")
        if sex not in {"F", "M"}:
            raise self._wrong(f"must be F or M, not '{sex[:20]}'.", "SEX")
        return sex

    def _condition(self, name: object, field: str) -> int:
        if not isinstance(name, str) or name not in self.release.names:
            raise self._wrong(str(unknown("condition", str(name)[:80], self.release.names)), field)
        return self.release.names[name]

    def _known(self, code: object, field: str) -> str:
        """`code`, checked to name an evidence and one of its values. Raises CaseError otherwise."""
        if not isinstance(code, str) or code not in self.release.answers:
            raise self._wrong(self._strange(str(code)[:80]), field)
        return code

    def _strange(self, code: str) -> str:
        name, separator, value = code.partition(SEPARATOR)
        if name not in self.release.evidences:
            return str(unknown("evidence", name, self.release.evidences))
        if not separator:
            return f"the evidence '{name}' needs a value, as in '{name}{SEPARATOR}…'."
        return str(unknown(f"value of '{name}'", value, self.release.evidences[name].answers))

    def _facts(self, codes: Sequence[str]) -> tuple[tuple[Fact, ...], int]:
        found = {
            fact.id: fact for code in codes if (fact := self.release.find(code)[1]) is not None
        }
        positive = {fact.item for fact in found.values()}
        parents = {item: self.release.by_item[item].item.parent for item in positive}
        orphaned = {
            item
            for item, parent in parents.items()
            if parent is not None and parent not in positive
        }
        facts = tuple(fact for fact in found.values() if fact.item not in orphaned)
        return facts, len(found) - len(facts)

    def _differentials(self) -> tuple[int, ...]:
        field = "DIFFERENTIAL_DIAGNOSIS"
        pairs = self._list(field)
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
            raise self._wrong("must be a list of [condition, probability] pairs.", field)
        return tuple(dict.fromkeys(self._condition(name, field) for name, _ in pairs))

    def _list(self, field: str) -> list[Any]:
        """A list, written as JSON or as a Python literal (never evaluated)."""
        value = self._value(field)
        if isinstance(value, str):
            value = self._literal(value, field)
        if not isinstance(value, list):
            raise self._wrong(f"must be a list, not {type(value).__name__}.", field)
        return value

    def _literal(self, text: str, field: str) -> object:
        if len(text) > _LITERAL_LIMIT:
            raise self._wrong(f"longer than {_LITERAL_LIMIT:,} characters.", field)
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
            raise self._wrong(f"not a list of Python literals: {text[:40]!r}.", field) from error


@dataclass
class PatientIndex:
    """Where every patient is, in 10 bytes each: byte offset, label (condition index), file.

    `gaps` has, for every row of a file that is no patient, the number of patients before it. So a
    patient's id is the number of its row, whatever the other rows hold.
    """

    files: list[Rows] = field(default_factory=list)
    gaps: list[array[int]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)  # the index of each file's first patient
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    labels: array[int] = field(default_factory=lambda: array("H"))
    orphans: int = 0

    def add(
        self,
        path: Path,
        release: Release,
        errors: RowErrors,
        each: Callable[[int, DdxplusPatient], None],
    ) -> None:
        """Appends a file's patients, calling `each(index, patient)`.

        Raises CaseError for a file without a header.
        """
        lines = lines_of(path)
        first = next(lines, None)
        if first is None:
            raise CaseError("this file is empty.", file=path)
        if isinstance(first, CaseError):
            raise first
        json_lines = first.text.startswith("{")
        rows = Rows(path, release, () if json_lines else _header(first.text, path))
        start, before = len(self.offsets), errors.rows
        gaps = array("L")
        found = errors.read(
            chain([first] if json_lines else [], lines),
            lambda line: rows.patient(line.text, line.number),
        )
        for line, patient in found:
            while errors.rows - before > len(self.offsets) - start + len(gaps) + 1:
                gaps.append(len(self.offsets) - start)
            each(len(self.offsets), patient)
            self.offsets.append(line.offset)
            self.labels.append(patient.condition)
            self.orphans += patient.orphans
        self.files.append(rows)
        self.starts.append(start)
        self.gaps.append(gaps)

    def read(self, index: int) -> tuple[str, DdxplusPatient]:
        """The id and the patient at `index`, parsed again from the file."""
        rows = self.files[bisect_right(self.starts, index) - 1]
        return self.id_of(index), rows.patient(line_at(rows.path, self.offsets[index]))

    def id_of(self, index: int) -> str:
        """The name of the patient's file, and the patient's place in it, counted from 1."""
        which = bisect_right(self.starts, index) - 1
        place = index - self.starts[which]
        number = place + bisect_right(self.gaps[which], place) + 1
        return f"{self.files[which].path.name}#{number}"

    def __len__(self) -> int:
        return len(self.offsets)


def _header(text: str, path: Path) -> tuple[str, ...]:
    columns = tuple(_cells(text, path, 1))
    missing = [name for name in FIELDS if name not in columns]
    if missing:
        raise CaseError(f"the header lacks {', '.join(missing)}.", file=path, line=1)
    return columns
