"""Releases that are folders of large CSV files: read once, and kept as a private SQLite index.

MIMIC's tables are compressed, larger than memory, and not sorted by patient, so a case cannot be
read by byte offset. Each release is read once, row by row, into an index in the user's cache that
nobody else can open. It is built again when a file changes. Memory stays flat: one row at a time
here, one case at a time when cases are made.
"""

from __future__ import annotations

import gzip
import hashlib
import inspect
import sqlite3
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from workup.cases import findings
from workup.cases.files import Raw, raw_lines, reading
from workup.cases.pieces import csv_records
from workup.cases.rows import RowErrors
from workup.core import leaks
from workup.core.disk import users_cache, whole_file
from workup.core.errors import CaseError, UserError

RESTRICTED = (
    "Restricted: the data use agreement forbids passing this text on. Only local models and "
    "endpoints marked trusted may see it; the index in the cache folder can be opened by this "
    "user alone."
)


T = TypeVar("T")
Values = Sequence[object] | Mapping[str, object]
_DIGITS = 18  # digits that a whole number in SQLite can have
_ABOUT = """
CREATE TABLE about (stamp TEXT, rows INTEGER);
CREATE TABLE left_out (file TEXT, line INTEGER, field TEXT, problem TEXT);
"""


class CsvRow(NamedTuple):
    """One row of a CSV file: the values of the requested columns, in that order, and its place."""

    path: Path
    line: int
    columns: tuple[str, ...]
    values: list[str]

    def wrong(self, problem: str, column: str) -> CaseError:
        return CaseError(problem, file=self.path, line=self.line, field=column)

    def text(self, column: str) -> str:
        return self.values[self.columns.index(column)].strip()

    def number(self, column: str) -> int:
        """A whole number ≥ 0.

        Raises CaseError; the value itself is not repeated, since errors end up in logs.
        """
        text = self.text(column)
        if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
            raise self.wrong("must be a whole number." if text else "is empty.", column)
        return int(text)


def member(folder: Path, file: str, release: str) -> Path:
    """The path of a release's `file`, or of its compressed form `file`.gz.

    Raises UserError that names what the folder lacks.
    """
    for path in (folder / file, folder / f"{file}.gz"):
        if path.is_file():
            return path
    raise UserError(f"{folder} lacks {file} (or {file}.gz), a file of {release}.")


def rows(path: Path, columns: Sequence[str]) -> Iterator[CsvRow | CaseError]:
    """The rows of a CSV file with a header, plain or gzipped, as a stream.

    A row that cannot be read comes as its error. Raises CaseError for a file that cannot be read,
    is cut, or lacks a column.
    """
    wanted, places, width = tuple(columns), list[int](), 0
    for record in csv_records(_lines(path), path):
        if isinstance(record, CaseError):
            if not width:
                raise record
            yield record
            continue
        line = record.lines[0].number
        if not width:
            header = [name.strip() for name in record.cells]
            width, places = len(header), [_place(header, name, path) for name in wanted]
        elif len(record.cells) == width:
            yield CsvRow(path, line, wanted, [record.cells[place] for place in places])
        else:
            problem = f"{len(record.cells)} cells under {width} column names."
            yield CaseError(problem, file=path, line=line)
    if not width:
        raise CaseError("is empty; a header was expected.", file=path)


def _place(header: Sequence[str], name: str, path: Path) -> int:
    if name not in header:
        raise CaseError("there is no such column.", file=path, line=1, field=name)
    return header.index(name)


def _lines(path: Path) -> Iterator[Raw]:
    """Lines of bounded length, unpacked. Raises CaseError where the system or the archive fails."""
    if path.suffix != ".gz":
        with reading(path) as file:
            yield from raw_lines(file.readline, path)
        return
    number = 0
    try:
        with gzip.open(path, "rb") as unpacked:
            for line in raw_lines(unpacked.readline, path):
                number = line.number
                yield line
    except (EOFError, OSError, zlib.error) as error:
        problem = "not a whole gzip file; download it again."
        raise CaseError(problem, file=path, line=number + 1) from error


@dataclass(frozen=True, slots=True)
class TableIndex:
    """A release in SQLite.

    A connection lives for one call, so that threads and forks have nothing to share.
    """

    path: Path

    def select(self, query: str, values: Values = ()) -> list[tuple[object, ...]]:
        """All rows of a query."""
        return list(self.stream(query, values))

    def stream(self, query: str, values: Values = ()) -> Iterator[tuple[object, ...]]:
        """The rows of a query, one by one. Raises UserError if the index has gone."""
        try:
            with closing(
                sqlite3.connect(f"file:{quote(str(self.path))}?mode=ro", uri=True)
            ) as database:
                yield from database.execute(query, values)
        except sqlite3.Error as error:
            raise UserError(
                f"the index {self.path} cannot be read ({error}); delete it, and it is made anew."
            ) from error


class Filling:
    """What fills an index: its database, and the account of the rows that are left out of it."""

    def __init__(self, database: sqlite3.Connection, errors: RowErrors) -> None:
        self.database, self.errors = database, errors

    def rows(self, path: Path, columns: Sequence[str], read: Callable[[CsvRow], T]) -> Iterator[T]:
        """The results of `read` for the rows of a file.

        Rows for which it raises CaseError are left out.
        """
        yield from (made for _, made in self.errors.read(rows(path, columns), read))

    def load(
        self, path: Path, columns: Sequence[str], statement: str, values: Callable[[CsvRow], Values]
    ) -> None:
        """Inserts rows; a row whose key, the first column, exists already is left out."""

        def insert(row: CsvRow) -> None:
            try:
                self.database.execute(statement, values(row))
            except sqlite3.IntegrityError as error:
                raise row.wrong("stands here a second time.", row.columns[0]) from error

        for _ in self.rows(path, columns, insert):
            pass


def indexed(
    name: str,
    files: Mapping[str, Path],
    schema: str,
    fill: Callable[[Filling], None],
    errors: RowErrors,
) -> TableIndex:
    """The index of `files`, made by `schema` and `fill` unless it exists already.

    Files count as unchanged while path, size and modification time are. The index is made anew as
    well when the code that reads them has changed: it holds sentences and names withheld. It holds
    the rows that were left out; they are reported to `errors` whether it is new or not. Raises what
    `fill` raises, and UserError if the cache cannot be written; then nothing is left behind.
    """
    seen = [
        (name, str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns)
        for name, path in sorted(files.items())
    ]
    own = (sys.modules[name] for name in (__name__, fill.__module__))
    code = [inspect.getsource(module) for module in (*own, findings, leaks)]
    stamp = hashlib.blake2b(repr((_ABOUT, schema, code, seen)).encode()).hexdigest()
    folder = _private(users_cache() / "tables")
    place = hashlib.blake2b(
        "\n".join(sorted(str(path.resolve()) for path in files.values())).encode(), digest_size=10
    )
    path = folder / f"{name}-{place.hexdigest()}.sqlite"
    if not _current(path, stamp):
        _build(path, stamp, schema, fill, strict=errors.strict)
    index = TableIndex(path)
    [(count,)] = index.select("SELECT rows FROM about")
    errors.rows += int(str(count))
    for file, line, field, problem in index.stream(
        "SELECT file, line, field, problem FROM left_out ORDER BY rowid"
    ):
        number = None if line is None else int(str(line))
        errors.add(CaseError(str(problem), file=file, line=number, field=str(field or "") or None))
    return index


def _private(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise _unwritable(folder, error) from error
    return folder


def _unwritable(path: Path, error: Exception) -> UserError:
    return UserError(f"cannot write {path}: {error} (set WORKUP_CACHE to a folder with room)")


def _current(path: Path, stamp: str) -> bool:
    if not path.is_file():
        return False
    try:
        return TableIndex(path).select("SELECT stamp FROM about") == [(stamp,)]
    except UserError:
        return False


def _build(
    path: Path, stamp: str, schema: str, fill: Callable[[Filling], None], *, strict: bool
) -> None:
    """Fills the index, which is complete or absent, and readable by this user alone."""
    try:
        with whole_file(path, private=True) as draft, closing(sqlite3.connect(draft)) as database:
            database.executescript(
                f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; {_ABOUT} {schema}"
            )

            def leave_out(error: CaseError) -> None:
                values = (error.file, error.line, error.field, error.problem)
                database.execute("INSERT INTO left_out VALUES (?, ?, ?, ?)", values)

            errors = RowErrors(strict=strict, each=leave_out)
            fill(Filling(database, errors))
            database.execute("INSERT INTO about VALUES (?, ?)", (stamp, errors.rows))
            database.commit()
    except (sqlite3.OperationalError, OSError) as error:
        raise _unwritable(path, error) from error
