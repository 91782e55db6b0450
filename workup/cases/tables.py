"""Releases that are folders of large CSV files: read once as a stream, kept as a private SQLite index.

MIMIC's tables are compressed, sorted by nobody's needs and larger than memory, so a case cannot be read by byte offset. Each
release is read once, row by row, into an index in the user's cache that nobody else can open; it is built anew when a file
changes. Memory stays flat: one row at a time here, one case at a time when cases are made.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import os
import sqlite3
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple
from urllib.parse import quote

from workup.cases.files import LINE_LIMIT
from workup.errors import CaseError, UserError, unknown
from workup.models.warm import cache

RESTRICTED = (
    "Restricted: the data use agreement forbids passing this text on. Only local models and endpoints marked trusted may see "
    "it; the index in the cache folder can be opened by this user alone."
)


Values = Sequence[object] | Mapping[str, object]
_DIGITS = 18  # of a whole number that SQLite can hold


class Row(NamedTuple):
    """One row of a CSV file: the values of the columns asked for, in that order, and where it stands."""

    path: Path
    line: int
    columns: tuple[str, ...]
    values: list[str]

    def wrong(self, problem: str, column: str) -> CaseError:
        return CaseError(problem, file=self.path, line=self.line, field=column)

    def text(self, column: str) -> str:
        return self.values[self.columns.index(column)].strip()

    def number(self, column: str) -> int:
        """A whole number ≥ 0. Raises CaseError; the value itself is not repeated, since errors end up in logs."""
        text = self.text(column)
        if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
            raise self.wrong("must be a whole number." if text else "is empty.", column)
        return int(text)


def member(folder: Path, file: str, release: str) -> Path:
    """`file` of a release, or the same with `.gz` behind it. Raises UserError naming what the folder lacks."""
    for path in (folder / file, folder / f"{file}.gz"):
        if path.is_file():
            return path
    raise UserError(f"{folder} lacks {file} (or {file}.gz), a file of {release}.")


def rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """The rows of a CSV file with a header, plain or gzipped, as a stream. Raises CaseError with line and field."""
    wanted = tuple(columns)
    with _opened(path) as file:
        reader = csv.reader(_lines(file, path), strict=True)
        header: list[str] | None = None
        try:
            for cells in reader:
                if header is None:
                    header = [name.strip() for name in cells]
                    places = [_place(header, name, path) for name in wanted]
                elif len(cells) == len(header):
                    yield Row(path, reader.line_num, wanted, [cells[place] for place in places])
                elif cells:
                    problem = f"{len(cells)} cells under {len(header)} column names."
                    raise CaseError(problem, file=path, line=reader.line_num)
        except csv.Error as error:
            raise CaseError(f"not a CSV row: {error}.", file=path, line=reader.line_num) from error
        if header is None:
            raise CaseError("is empty; a header was expected.", file=path)


def _place(header: Sequence[str], name: str, path: Path) -> int:
    if name not in header:
        raise CaseError("there is no such column.", file=path, line=1, field=name)
    return header.index(name)


def _opened(path: Path) -> IO[str]:
    try:
        if path.suffix == ".gz":
            return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
        return path.open(encoding="utf-8-sig", newline="")
    except OSError as error:
        raise CaseError(f"cannot be read ({error.strerror}).", file=path) from error


def _lines(file: IO[str], path: Path) -> Iterator[str]:
    """Lines of bounded length; what cannot be unpacked or decoded becomes a CaseError at its line."""
    number = 1
    try:
        while line := file.readline(LINE_LIMIT + 1):
            if len(line) > LINE_LIMIT:
                raise CaseError(f"this line is longer than {LINE_LIMIT:,} characters.", file=path, line=number)
            yield line
            number += 1
    except UnicodeDecodeError as error:
        raise CaseError("not UTF-8 on this line or soon after it.", file=path, line=number) from error
    except (EOFError, OSError, zlib.error) as error:
        raise CaseError("not a whole gzip file; download it again.", file=path, line=number) from error


@dataclass(frozen=True, slots=True)
class Index:
    """A release in SQLite. A connection lives for one call, so that threads and forks have nothing to share."""

    path: Path

    def select(self, query: str, values: Values = ()) -> list[tuple[object, ...]]:
        """All rows of a query."""
        return list(self.stream(query, values))

    def stream(self, query: str, values: Values = ()) -> Iterator[tuple[object, ...]]:
        """The rows of a query, one by one. Raises UserError if the index has gone."""
        try:
            with closing(sqlite3.connect(f"file:{quote(str(self.path))}?mode=ro", uri=True)) as database:
                yield from database.execute(query, values)
        except sqlite3.Error as error:
            raise UserError(f"the index {self.path} cannot be read ({error}); delete it, and it is made anew.") from error


def load(database: sqlite3.Connection, statement: str, rows: Iterable[Row], values: Callable[[Row], Values]) -> None:
    """Inserts a row each. Raises CaseError where a key, the first column, stands a second time."""
    for row in rows:
        try:
            database.execute(statement, values(row))
        except sqlite3.IntegrityError as error:
            raise row.wrong("stands here a second time.", row.columns[0]) from error


def indexed(name: str, files: Mapping[str, Path], schema: str, fill: Callable[[sqlite3.Connection], None]) -> Index:
    """The index of `files`, made by `schema` and `fill` unless one of the same files and schema exists.

    Files count as unchanged while path, size and time of change are. Raises what `fill` raises, and UserError where the cache
    cannot be written; then nothing is left behind.
    """
    stamp = _stamp(files, schema)
    folder = _private(cache() / "tables")
    place = hashlib.blake2b("\n".join(sorted(str(path.resolve()) for path in files.values())).encode(), digest_size=10)
    path = folder / f"{name}-{place.hexdigest()}.sqlite"
    if not _current(path, stamp):
        _build(path, stamp, schema, fill)
    return Index(path)


def _stamp(files: Mapping[str, Path], schema: str) -> str:
    seen = [(name, str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for name, path in sorted(files.items())]
    return hashlib.blake2b(repr((schema, seen)).encode()).hexdigest()


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
        return Index(path).select("SELECT stamp FROM about") == [(stamp,)]
    except UserError:
        return False


def _build(path: Path, stamp: str, schema: str, fill: Callable[[sqlite3.Connection], None]) -> None:
    """Fills a file beside (created for this user alone), then renames: the index is complete or absent."""
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        with closing(sqlite3.connect(beside)) as database:
            database.executescript(f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; {schema} CREATE TABLE about (stamp TEXT);")
            fill(database)
            database.execute("INSERT INTO about VALUES (?)", (stamp,))
            database.commit()
        Path(beside).replace(path)
    except (sqlite3.OperationalError, OSError) as error:
        raise _unwritable(path, error) from error
    finally:
        Path(beside).unlink(missing_ok=True)


def words_of(rest: str, scheme: str, known: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Splits `PLACE#WORD,WORD` of a source's spec. Raises UserError for a word that is not among `known`."""
    place, _, behind = rest.partition("#")
    words = tuple(word.strip() for word in behind.split(",") if word.strip())
    for word in words:
        if word not in known:
            raise unknown(f"view of {scheme}", word, known, more=f"as in '{scheme}:{place}#{known[0]}'")
    return place, words
