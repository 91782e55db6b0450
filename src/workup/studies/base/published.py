"""Published ranks: where a ranking of somebody else has the truth of the same patients."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from workup.cases.files import cells, existing, parse_object, scan
from workup.cases.publications import without_publication
from workup.core.case import Case
from workup.core.errors import CaseError, UserError
from workup.core.extras import wanted

CASE, RANK = "case_id", "rank"
DISEASE, RIGHT = "disease_identifier", "true_positive"
RESULTS = "pheval_disease_results"
"""The folder of a PhEval run in which each case has a file of ranked diseases."""

_RESULT = re.compile(r"(?P<case>.{1,200})-(?:pheval_)?disease_result\.(?:parquet|tsv)")
_RIGHT = {"true": True, "1": True, "false": False, "0": False}
_SIGNS = re.compile(r"[^0-9A-Za-z]+")


@dataclass(frozen=True)
class PublishedRanks:
    """The ranks of one table: case id → the truth's place from 1, 0 where it is not ranked.

    `notes` say how many of its cases are not among ours, and how many files are empty.
    """

    name: str
    ranks: Mapping[str, int]
    notes: tuple[str, ...] = ()


def read(place: str, cases: Sequence[Case]) -> PublishedRanks:
    """The ranks of `cases` in a table, or in a folder of PhEval's results.

    A table is one with tabs or commas, or JSON lines, with CASE and RANK; an empty rank, NA or 0,
    says that the truth is not ranked. A folder has a file for each case, of ranked diseases.
    The truth is what PhEval marked as right, in its older tables a disease with a code of the case.

    A case that no id names as it stands is found by its id without the publication before it and
    without signs, where that names one row and one case. Raises CaseError (file, line, field), and
    UserError where no case of the table is among `cases`.
    """
    path = existing(place)
    name = path.resolve().name if path.is_dir() else path.stem
    codes = {case.id: case.truth.codes for case in cases}
    rows: Mapping[str, int | Path] = _files(path) if path.is_dir() else _table(path)
    meant = _meant(rows, codes)
    if not meant:
        raise UserError(f"{place}: none of its {len(rows):,} cases is one of these patients")
    ranks: dict[str, int] = {}
    empty = 0
    for case, id in meant.items():
        row = rows[id]
        rank = row if isinstance(row, int) else _place(row, codes[case])
        empty += rank is None
        ranks[case] = rank or 0
    told = {
        f"{name}: {len(meant):,} of its {len(rows):,} cases are these patients.": len(rows)
        - len(meant),
        f"{name}: {empty:,} files rank nothing at all; their patients are missed.": empty,
    }
    return PublishedRanks(name, ranks, tuple(note for note, count in told.items() if count))


def _plain(id: str) -> str:
    return _SIGNS.sub("_", without_publication(id)).lower()


def _meant(ids: Collection[str], cases: Collection[str]) -> dict[str, str]:
    """The id of a case → that of `ids` which means it."""
    shared, known = Counter(map(_plain, ids)), Counter(map(_plain, cases))
    loose = {_plain(id): id for id in ids if id not in cases and shared[_plain(id)] == 1}
    found = {case: case for case in cases if case in ids}
    near = {case: _plain(case) for case in cases if known[_plain(case)] == 1}
    return {**{case: loose[form] for case, form in near.items() if form in loose}, **found}


def _table(path: Path) -> dict[str, int]:
    ranks: dict[str, int] = {}
    for number, row in _rows(path):
        id = str(_cell(row, path, number, CASE)).strip()
        if id in ranks:
            raise CaseError("a second rank of one case.", file=path, line=number, got=id[:60])
        ranks[id] = _rank(_cell(row, path, number, RANK), path, number)
    return ranks


def _cell(row: Mapping[str, object], path: Path, number: int, column: str) -> object:
    if column not in row:
        raise CaseError(f"no column '{column}'.", file=path, line=number)
    return row[column]


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    """The line's number and its cells by heading; a line of JSON is a row of its own."""
    heading: list[str] = []
    tabs = False
    for line in scan(path, whole=True):
        if path.suffix == ".jsonl":
            yield line.number, parse_object(line.text, file=path, line=line.number)
            continue
        tabs = tabs or (not heading and "\t" in line.text)
        row = cells(line, path, tabs=tabs)
        if not heading:
            heading = [cell.strip() for cell in row]
        elif len(row) != len(heading):
            problem = f"it has {len(row)} cells, and the table {len(heading)} columns."
            raise CaseError(problem, file=path, line=line.number)
        else:
            yield line.number, dict(zip(heading, row, strict=True))


def _rank(value: object, path: Path, number: int) -> int:
    text = "" if value is None else str(value).strip()
    if not re.fullmatch(r"(?:\d{1,9}(?:\.0)?|NA|)", text):
        problem = "is no rank (1, 2 …; empty, NA or 0 where the truth is not ranked)."
        raise CaseError(problem, file=path, line=number, field=RANK, got=text[:60])
    return 0 if text in ("", "NA") else int(text.removesuffix(".0"))


def _files(path: Path) -> dict[str, Path]:
    """The files in a folder of PhEval, by case."""
    folder = path / RESULTS if (path / RESULTS).is_dir() else path
    files: dict[str, Path] = {}
    for file in sorted(folder.iterdir()):
        if not (found := _RESULT.fullmatch(file.name)):
            continue
        if other := files.get(found["case"]):
            problem = f"is a second result of the case of {other.name}; keep one of them."
            raise CaseError(problem, file=file)
        files[found["case"]] = file
    if not files:
        raise UserError(f"{path}: is no folder of PhEval's results; it has no {RESULTS}")
    return files


def _place(file: Path, codes: Collection[str]) -> int | None:
    """The truth's place in a file of ranked diseases, 0 where it has none; None for an empty one.

    The truth of an older file is a disease with one of `codes`.
    """
    rows = [*(_parquet if file.suffix == ".parquet" else _rows)(file)]
    places = []
    for number, row in rows:
        rank = _cell(row, file, number, RANK)
        told = str(row.get(RIGHT)).strip()
        right = _RIGHT.get(told.lower())
        if RIGHT not in row:
            right = _cell(row, file, number, DISEASE) in codes
        if right is None:
            problem = "is neither true nor false."
            raise CaseError(problem, file=file, line=number, field=RIGHT, got=told[:60])
        places += [_rank(rank, file, number)] if right else []
    return min(filter(None, places), default=0) if rows else None


def _parquet(file: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    library = wanted("pyarrow.parquet", "parquet")
    try:
        rows = library.read_table(file).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own errors are of these
        raise CaseError(f"is no Parquet file ({error}).", file=file) from error
    yield from enumerate(rows, 1)
