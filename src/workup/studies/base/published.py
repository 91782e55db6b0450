"""Published ranks: where a ranking of somebody else has the truth of the same patients."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from workup.cases.files import existing, parse_object, scan
from workup.cases.publications import without_publication
from workup.core.case import Case
from workup.core.errors import CaseError, UserError
from workup.core.extras import wanted

CASE, RANK = "case_id", "rank"
DISEASE, RIGHT = "disease_identifier", "true_positive"
RESULTS = "pheval_disease_results"
"""The folder of a PhEval run in which each case has a file of ranked diseases."""

_RESULT = re.compile(r"(?P<case>.{1,200})-(?:pheval_)?disease_result\.(?:parquet|tsv)")
_SIGNS = re.compile(r"[^0-9A-Za-z]+")


@dataclass(frozen=True)
class PublishedRanks:
    """The ranks of one table: case id → the truth's place from 1, 0 where it is not ranked."""

    name: str
    ranks: Mapping[str, int]


def read(place: str, cases: Sequence[Case]) -> PublishedRanks:
    """The ranks of `cases` in a table, or in a folder of PhEval's results.

    A table is one with tabs or commas, or JSON lines, with CASE and RANK; an empty rank says that
    the truth is not ranked. A case that no id names as it stands is found by its id without the
    publication before it and without signs, where that names one row and one case. Raises
    CaseError (file, line, field), and UserError where no case of the table is among `cases`.
    """
    path = existing(place)
    rows = _folder(path, cases) if path.is_dir() else _table(path)
    exact = {case.id for case in cases}
    shared = Counter(map(_plain, rows))
    known = Counter(map(_plain, exact))
    loose = {
        _plain(id): rank for id, rank in rows.items() if id not in exact and shared[_plain(id)] == 1
    }
    found = {
        id: rows[id] if id in rows else loose[_plain(id)]
        for id in (case.id for case in cases)
        if id in rows or (known[_plain(id)] == 1 and _plain(id) in loose)
    }
    if not found:
        raise UserError(f"{place}: none of its {len(rows):,} cases is one of these patients")
    return PublishedRanks(path.stem, found)


def _plain(id: str) -> str:
    return _SIGNS.sub("_", without_publication(id)).lower()


def _table(path: Path) -> dict[str, int]:
    ranks: dict[str, int] = {}
    for number, row in _rows(path):
        for field in (CASE, RANK):
            if field not in row:
                raise CaseError(f"no column '{field}'.", file=path, line=number)
        id = str(row[CASE]).strip()
        if id in ranks:
            raise CaseError("a second rank of one case.", file=path, line=number, got=id[:60])
        ranks[id] = _rank(row[RANK], path, number)
    return ranks


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    """The line's number and its cells by heading; a line of JSON is a row of its own."""
    heading: list[str] = []
    tabs = False
    for line in scan(path):
        if path.suffix == ".jsonl":
            yield line.number, parse_object(line.text, file=path, line=line.number)
            continue
        tabs = tabs or (not heading and "\t" in line.text)
        cells = line.text.split("\t") if tabs else next(csv.reader([line.text]), [])
        if not heading:
            heading = cells
        elif len(cells) > len(heading):
            raise CaseError(f"it has {len(cells)} cells.", file=path, line=line.number)
        else:  # blanks at the end of a line are gone: the last cells may be empty
            yield line.number, dict(zip(heading, [*cells, *[""] * len(heading)], strict=False))


def _rank(value: object, path: Path, number: int | None) -> int:
    text = "" if value is None else str(value).strip()
    if not text:
        return 0
    if not re.fullmatch(r"\d{1,9}", text):
        raise CaseError(
            "is no rank (1, 2 … or empty).", file=path, line=number, field=RANK, got=text[:60]
        )
    return int(text)


def _folder(path: Path, cases: Sequence[Case]) -> dict[str, int]:
    """The ranks in a folder of PhEval: a file for each case, of diseases with their ranks.

    The truth is what PhEval marked as right, in its older tables a disease with a code of the case.
    """
    folder = path / RESULTS if (path / RESULTS).is_dir() else path
    codes = {_plain(case.id): {*case.truth.codes} for case in cases}
    files = {found["case"]: f for f in folder.iterdir() if (found := _RESULT.fullmatch(f.name))}
    if not files:
        raise UserError(f"{path}: is no folder of PhEval's results; it has no {RESULTS}")
    ranks = {}
    for id, file in sorted(files.items()):
        truth = codes.get(_plain(id), set())
        places = [
            _rank(row.get(RANK), file, number)
            for number, row in (_parquet if file.suffix == ".parquet" else _rows)(file)
            if row.get(RIGHT, str(row.get(DISEASE)) in truth) in (True, "true", "True")
        ]
        ranks[id] = min(filter(None, places), default=0)
    return ranks


def _parquet(file: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    library = wanted("pyarrow.parquet", "parquet")
    try:
        rows = library.read_table(file).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own errors are of these
        raise CaseError(f"is no Parquet file ({error}).", file=file) from error
    yield from enumerate(rows, 1)
