"""episodes.sqlite: every episode of a run, one row each, one transaction per step.

In WAL mode a process killed at any moment leaves each step's episodes whole or absent. The primary
key makes a step that is run again after a crash replace its episodes instead of doubling them.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from workup.case import Case
from workup.episode import Message
from workup.errors import UserError, WorkupError, unknown
from workup.runs import checked
from workup.runs.files import DamagedError, clear_errors
from workup.runs.record import Record, encode, from_case_row, from_row, to_case_row, to_row

FORMAT = 1
KEY = ("phase", "doctor", "stage", "step", "case_id", "sample")
COLUMNS = (
    *KEY,
    *("ending", "reason", "correct", "questions", "total", "scores", "parts", "measures"),
    *("opening", "turns", "tokens", "mask", "logprobs", "advantages"),
)
FILTERS = (*KEY, "ending", "correct", "questions", "diagnosis", "category")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS cases (id TEXT PRIMARY KEY, diagnosis TEXT, category TEXT, body TEXT) \
WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS openings (key TEXT PRIMARY KEY, messages TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS episodes (
  phase TEXT, doctor TEXT, stage TEXT, step INTEGER, case_id TEXT REFERENCES cases(id), sample \
INTEGER,
  ending TEXT, reason TEXT, correct INTEGER, questions INTEGER, total REAL, scores TEXT, parts \
TEXT, measures TEXT,
  opening TEXT REFERENCES openings(key), turns TEXT, tokens BLOB, mask BLOB, logprobs BLOB, \
advantages BLOB,
  PRIMARY KEY (phase, doctor, stage, step, case_id, sample)
);
"""
_INSERT = (
    f"INSERT OR REPLACE INTO episodes ({', '.join(COLUMNS)}) VALUES "
    f"({', '.join('?' * len(COLUMNS))})"
)
_JOINED = "FROM episodes JOIN cases ON cases.id = episodes.case_id"
# Bytes: whole episodes fit a page, which makes writing them a fifth faster than SQLite's 4,096.
_PAGE = 32_768
_WAL_PAGES = 2_048  # 64 MiB between checkpoints: an fsync every hundred steps instead of every ten


class Store:
    """The open database; made on the first write, absent until then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None

    def write(self, records: Sequence[Record]) -> None:
        """Adds or replaces `records` in one transaction.

        Raises UserError when the disk refuses, WorkupError when two of them have the same key (one
        would be lost).
        """
        keys = [record.key for record in records]
        if len(set(keys)) != len(keys):
            raise WorkupError(
                f"{self.path}: two episodes of one batch have the same case and sample"
            )
        with self.transaction() as connection:
            self._write_cases(connection, records)
            openings: dict[tuple[Message, ...], str] = {}
            for record in records:
                if record.episode.opening not in openings:
                    openings[record.episode.opening] = _write_opening(
                        connection, record.episode.opening
                    )
            connection.executemany(
                _INSERT, [to_row(record, openings[record.episode.opening]) for record in records]
            )

    def read(self, where: Mapping[str, Any], limit: int = -1, offset: int = 0) -> Iterator[Record]:
        """Records in the order of their keys, one at a time.

        Raises DamagedError for an episode that is not as we write it.
        """
        clause, values = conditions(where)
        columns = ", ".join(f"episodes.{name}" for name in COLUMNS)
        query = (
            f"SELECT {columns}, cases.id, cases.diagnosis, cases.category, cases.body, "
            f"openings.messages {_JOINED} JOIN openings ON openings.key = episodes.opening "
            f"{clause} ORDER BY {', '.join(f'episodes.{name}' for name in KEY)} LIMIT ? OFFSET ?"
        )
        case: Case | None = None
        for row in self.query(query, (*values, limit, offset)):
            with as_written(self.path, row):
                checked.columns(row)
                if case is None or case.id != row["case_id"]:
                    case = from_case_row(row)
                record = from_row(row, case, row["messages"])
                checked.record(record)
            yield record

    def select(
        self, columns: str, where: Mapping[str, Any], then: str = ""
    ) -> Iterator[sqlite3.Row]:
        """Plain columns of the episodes (joined with their cases) that fit `where`."""
        clause, values = conditions(where)
        return self.query(f"SELECT {columns} {_JOINED} {clause} {then}", values)

    def query(self, text: str, values: Sequence[Any] = ()) -> Iterator[sqlite3.Row]:
        """Rows of any SELECT; none while nothing has been written."""
        if not self.path.exists():
            return
        with clear_errors(self.path):
            yield from self._open().execute(text, values)

    def forget(self, stages: Iterable[str], stage: str, step: int) -> None:
        """Deletes the episodes of `stage` after `step`, and those of stages not among `stages`.

        Episodes of searches stay.
        """
        if not self.path.exists():
            return
        kept = sorted(stages)
        marks = ", ".join("?" * len(kept))
        with self.transaction() as connection:
            connection.execute(
                (
                    "DELETE FROM episodes WHERE phase IN ('train', 'eval') AND ((stage = ? AND "
                    f"step > ?) OR stage NOT IN ({marks}))"
                ),
                (stage, step, *kept),
            )

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it is written, or nothing."""
        with clear_errors(self.path):
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _write_cases(self, connection: sqlite3.Connection, records: Iterable[Record]) -> None:
        cases = {record.episode.case.id: record.episode.case for record in records}
        new = [case for case in cases.values() if not _has(connection, case)]
        connection.executemany(
            "INSERT INTO cases VALUES (?, ?, ?, ?)", [to_case_row(case) for case in new]
        )

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = _connect(self.path)
        return self._connection


def _connect(path: Path) -> sqlite3.Connection:
    # A finished run has no write-ahead log. On read-only media SQLite could not make one.
    sealed = path.exists() and not os.access(path.parent, os.W_OK)
    uri = f"{path.absolute().as_uri()}{'?immutable=1' if sealed else ''}"
    connection = sqlite3.connect(
        uri, uri=True, timeout=30, isolation_level=None, check_same_thread=False
    )
    connection.row_factory = sqlite3.Row
    refuse_newer(connection, path)
    new = not written(connection, path)
    connection.execute(f"PRAGMA page_size = {_PAGE}")
    if not sealed:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")
    if new:
        connection.executescript(
            f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {FORMAT}; COMMIT;"
        )
    return connection


def refuse_newer(connection: sqlite3.Connection, path: Path) -> None:
    """Raises UserError for a file in a format that this version does not know."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > FORMAT:
        raise UserError(
            f"{path} was written by a newer workup (format {version}, this one reads {FORMAT}); "
            "update workup"
        )


@contextmanager
def as_written(path: Path, row: sqlite3.Row) -> Iterator[None]:
    """A context in which a row of `path` is decoded and checked.

    Raises DamagedError, with the case of the row, where it is not as we write it.
    """
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        why = str(error) if isinstance(error, ValueError) else f"not decoded: {error!r}"
        raise DamagedError(
            f"{path}, case '{checked.one_line(str(row['case_id']))}': an episode is damaged "
            f"({checked.one_line(why)}); restore the file from a copy"
        ) from None


def written(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether anything has been written to the database; False for an empty one.

    Raises DamagedError where a table or a column of ours is missing, and where a view is not as we
    make it: the database is another program's, or computes what it should hold.
    """
    there = _schema(connection)
    if not there:
        return False
    for name, columns in _ours().items():
        lacking = columns - there.get(name, frozenset())
        if lacking:
            part = checked.one_line(min(lacking))
            what = f"its '{name}' lacks '{part}'" if name in there else f"it has no table '{name}'"
            raise DamagedError(
                f"{path}: {what}, so it holds no episodes of ours; restore it from a copy"
            )
    return True


def _schema(connection: sqlite3.Connection) -> dict[str, frozenset[str]]:
    """Each stored table with its columns; of anything else, such as a view, its definition."""
    names = "SELECT name, sql, sql LIKE 'CREATE TABLE %' FROM sqlite_master"
    columns = "SELECT name FROM pragma_table_info(?)"
    return {
        name: frozenset(column for (column,) in map(tuple, connection.execute(columns, (name,))))
        if stored
        else frozenset([str(made)])
        for name, made, stored in map(tuple, connection.execute(names).fetchall())
    }


@cache
def _ours() -> dict[str, frozenset[str]]:
    """The same of a database of ours, without the indexes that SQLite makes by itself."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_SCHEMA)
        found = _schema(connection)
        return {name: columns for name, columns in found.items() if not name.startswith("sqlite_")}


def _has(connection: sqlite3.Connection, case: Case) -> bool:
    return connection.execute("SELECT 1 FROM cases WHERE id = ?", (case.id,)).fetchone() is not None


def _write_opening(connection: sqlite3.Connection, opening: Sequence[Message]) -> str:
    """The opening's key: a digest of its content, so that all episodes of a case share one copy."""
    body = encode([(message.role, message.content) for message in opening])
    key = hashlib.blake2b(body.encode(), digest_size=12).hexdigest()
    connection.execute("INSERT OR IGNORE INTO openings VALUES (?, ?)", (key, body))
    return key


def conditions(where: Mapping[str, Any]) -> tuple[str, tuple[Any, ...]]:
    """The WHERE clause for `where` (column → value), and its values; `case` means `case_id`.

    Raises UserError for an unknown column.
    """
    named = {("case_id" if name == "case" else name): value for name, value in where.items()}
    for name in named:
        if name not in FILTERS:
            raise unknown("column", name, FILTERS)
    clause = " AND ".join(f"{name} IS ?" for name in named)
    return (f"WHERE {clause}" if clause else ""), tuple(named.values())
