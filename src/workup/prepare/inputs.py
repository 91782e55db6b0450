"""The input of a preparation: cases with their provenance, or raw reports.

A raw report is a case of which only the record is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from workup.cases import jsonl, open_source
from workup.cases.files import LINE_LIMIT, checked, existing, reading
from workup.cases.jsonl import ProvenanceLine
from workup.cases.lines import CaseLines
from workup.cases.rows import Filled, RowErrors
from workup.core.case import Case, Source, Truth
from workup.core.errors import CaseError, UserError, unknown
from workup.core.lazy import Lazy

SIDES = ("all", "train", "test")


@dataclass(frozen=True)
class Input:
    """`cases` in order, each with a unique id; `histories` holds their provenance, if any."""

    source: Source
    cases: Sequence[Sequence[Case]]
    histories: dict[str, tuple[ProvenanceLine, ...]] = field(default_factory=dict)
    limit: int | None = None

    def __iter__(self) -> Iterator[Case]:
        return islice(chain.from_iterable(map(iter, self.cases)), self.limit)

    def __len__(self) -> int:
        size = sum(map(len, self.cases))
        return size if self.limit is None else min(size, self.limit)


class ReportLine(BaseModel):
    """One raw report."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: Filled
    text: Filled
    restricted: bool = False


def open_input(
    spec: str,
    *,
    of: str = "all",
    split: int = 0,
    limit: int | None = None,
    reports: bool = False,
    strict: bool = False,
) -> Input:
    """Opens the side `of` (train, test or all) of `SCHEME:REST` or of a jsonl file of cases.

    The source holds out its fifth `split`.
    With `reports` also a jsonl file of reports or a folder of texts. Rows that are no cases, and
    texts that are no reports, are left out; with `strict` the first one is an error. Raises
    UserError and CaseError.
    """
    if of not in SIDES:
        raise unknown("side", of, SIDES)
    if reports and (place := Path(spec).expanduser()).exists():
        errors = RowErrors(strict=strict)
        source = _folder(spec, place, errors) if place.is_dir() else _lines(spec, place, errors)
        if of != "all" or split:
            raise UserError("raw reports are not held out: leave --of and --split out")
        return Input(source, [source.test], limit=limit)
    source = open_source(_spec(spec, of), split=split, strict=strict)
    sides = {"all": [source.train, source.test], "train": [source.train], "test": [source.test]}[of]
    scheme, _, rest = source.name.partition(":")
    file = Path(rest.partition("#")[0]).expanduser()
    histories = jsonl.provenances(file) if scheme == "jsonl" else {}
    return Input(source, sides, histories, limit)


def _spec(spec: str, of: str) -> str:
    """`spec` as a source: a bare path is read as jsonl, all sides of it in its own order."""
    if not spec.endswith(".jsonl") or ":" in spec:
        return spec
    return f"jsonl:{existing(spec)}#all" if of == "all" else f"jsonl:{spec}"


def _folder(name: str, folder: Path, errors: RowErrors) -> Source:
    files = sorted(folder.glob("*.txt"))
    if not files:
        raise UserError(
            f"{folder} holds no .txt file; a folder of reports has one text file per report."
        )

    def read(file: Path) -> None:
        _refuse_unfit(_report(file.stem, _text(file)), file)

    sound = [file for file, _ in errors.read(files, read)]
    if not sound:
        raise errors.nothing(UserError(f"{folder} holds no report."))

    def make(i: int) -> Case:
        return _report(sound[i].stem, _text(sound[i]))

    return Source(name, (), Lazy(len(sound), make), notes=errors.notes(name, listed=False))


def _text(path: Path) -> str:
    """A report. Raises CaseError."""
    with reading(path) as file:
        raw = file.read(LINE_LIMIT + 1)
    if len(raw) > LINE_LIMIT:
        raise CaseError(f"has more than {LINE_LIMIT:,} bytes.", file=path)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"byte {error.start + 1} is not UTF-8 (save the file as UTF-8)."
        raise CaseError(problem, file=path) from error
    if not text.strip():
        raise CaseError("is blank.", file=path)
    return text


def _lines(name: str, path: Path, errors: RowErrors) -> Source:
    file = CaseLines(path)
    restricted = False

    def read(row: dict[str, Any], line: int) -> ReportLine:
        nonlocal restricted
        restricted |= row.get("restricted") is True  # even where the line is no report
        report = checked(ReportLine, row, file=path, line=line)
        _refuse_unfit(_report(report.id, report.text), path, line)
        errors.once(report.id, file=path, line=line)
        return report

    def make(row: dict[str, Any], _: int) -> Case:
        report = checked(ReportLine, row, file=path)
        return _report(report.id, report.text)

    for line, report in file.read(errors, read):
        file.keep(line, report.id)
    if not len(file):
        raise errors.nothing(UserError(f"{path} holds no report."))
    notes = errors.notes(name, listed=False)
    return Source(name, (), file.cases(make)[1], notes=notes, restricted=restricted)


def _report(id: str, text: str) -> Case:
    return Case(id, "", Truth("", record=text))


def _refuse_unfit(report: Case, file: Path, line: int | None = None) -> None:
    """Raises CaseError for a report that no line of the format holds."""
    try:
        jsonl.line_of(report, restricted=True)
    except UserError as error:
        raise CaseError(str(error), file=file, line=line) from error
