"""episodes.sqlite: every episode of a run, in blocks of one step each, one transaction per step.

In WAL mode a process killed at any moment leaves each step's episodes whole or absent. A step that
is run again after a crash replaces its episodes instead of doubling them.

Readers ask the views `episodes` and `cases`. What lists filter and sort by are plain columns; the
rest lies compressed in blocks (see packed.py) and is unpacked where a statement names it:

    scores, parts, measures       JSON
    opening, turns                JSON: the messages; {"columns": names, "rows": one list per turn}
    tokens, mask                  int32 and uint8, one per token; the mask is 1 for the doctor's own
    logprobs, advantages          float32, one per token, or none

`rowid` grows with every write. Numbers are in the machine's byte order. The view `listed` has the
plain columns alone, for programs that know nothing of blocks.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from workup.core.case import Case
from workup.core.errors import WorkupError, unknown
from workup.runs import checked
from workup.runs.files import DamagedError, clear_errors
from workup.runs.packed import (
    PER_BLOCK,
    Connection,
    PackedEpisode,
    Sharing,
    likeness,
    opened,
    spans,
    squeezed,
)
from workup.runs.record import Record, columns, entry, from_case_row, from_row, to_case_row

FORMAT = 3
KEY = ("phase", "doctor", "stage", "step", "case_id", "sample")
PLACE = KEY[:4]  # what the episodes of a block have in common
COLUMNS = (
    *KEY,
    *("ending", "reason", "correct", "questions", "total", "scores", "parts", "measures"),
    *("opening", "turns", "tokens", "mask", "logprobs", "advantages"),
)
FILTERS = (*KEY, "ending", "correct", "questions", "diagnosis", "category")
TYPED = tuple("case" if name == "case_id" else name for name in FILTERS)
_PACKED = ", ".join(f"packed('{name}', rowid) AS {name}" for name in COLUMNS[11:])
# An episode's number is its block's times PER_BLOCK, plus its place there; so is a case's.
_SCHEMA = f"""
CREATE TABLE blocks (id INTEGER PRIMARY KEY AUTOINCREMENT, phase TEXT, doctor TEXT, stage TEXT,
  step INTEGER, told BLOB, said BLOB, logprobs BLOB, advantages BLOB);
CREATE INDEX places ON blocks (phase, doctor, stage, step);
CREATE TABLE kept (id INTEGER PRIMARY KEY, person INTEGER, sample INTEGER, ending INTEGER,
  reason TEXT, correct INTEGER, questions INTEGER, total REAL);
CREATE TABLE endings (id INTEGER PRIMARY KEY, name TEXT UNIQUE);
CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT UNIQUE, diagnosis TEXT, category TEXT);
CREATE TABLE bodies (id INTEGER PRIMARY KEY, lines BLOB);
CREATE TABLE shared (id INTEGER PRIMARY KEY, texts BLOB);
CREATE VIEW cases AS SELECT people.id AS number, name AS id, diagnosis, category,
  body(people.id) AS body FROM people;
CREATE VIEW listed AS SELECT kept.id AS rowid, phase, doctor, stage, step, people.name AS case_id,
  sample, endings.name AS ending, reason, correct, questions, total
  FROM kept JOIN blocks ON blocks.id = kept.id / {PER_BLOCK} AND kept.id
  BETWEEN blocks.id * {PER_BLOCK} AND blocks.id * {PER_BLOCK} + {PER_BLOCK - 1}
  JOIN people ON people.id = kept.person JOIN endings ON endings.id = kept.ending;
CREATE VIEW episodes AS SELECT listed.*, {_PACKED} FROM listed;
"""
_JOINED = "FROM episodes JOIN cases ON cases.id = episodes.case_id"
_ORDER = ", ".join(f"episodes.{name}" for name in KEY)
_FETCHED = 256  # episodes in memory at a time
_WAL_PAGES = 4_096  # 16 MiB between checkpoints


class EpisodeStore:
    """The open database; made on the first write, absent until then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None
        self._sharing: Sharing | None = None

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
            people, endings = _people(connection, records), _endings(connection, records)
            places: dict[tuple[Any, ...], list[Record]] = {}
            for record in records:
                places.setdefault(record.key[: len(PLACE)], []).append(record)
            for place, together in places.items():
                rows = []
                for record in together:
                    ending, *others = columns(record)
                    person = people[record.episode.case.id]
                    rows.append((person, record.sample, endings[ending], *others))
                _drop(connection, place, {row[:2] for row in rows})
                entries = [entry(record) for record in together]
                for part in spans([each.size for each in entries]):
                    block = self._write_block(connection, place, [entries[k] for k in part])
                    connection.executemany(
                        "INSERT INTO kept VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                        [(block * PER_BLOCK + k - part.start, *rows[k]) for k in part],
                    )

    def _write_block(
        self,
        connection: sqlite3.Connection,
        place: tuple[Any, ...],
        entries: Sequence[PackedEpisode],
    ) -> int:
        """Writes a block and what it shares from now on; returns its number."""
        sharing = self._sharing = self._shared(connection)
        start = len(sharing.numbers)
        parts, new = sharing.pack(entries)
        if new:
            connection.execute("INSERT INTO shared VALUES (?, ?)", (start, squeezed(new)))
            sharing.last = start
        names, marks = ", ".join(parts), ", ".join("?" * len(parts))
        written = connection.execute(
            f"INSERT INTO blocks ({', '.join(PLACE)}, {names}) VALUES (?, ?, ?, ?, {marks})",
            (*place, *parts.values()),
        )
        assert written.lastrowid is not None
        return written.lastrowid

    def _shared(self, connection: sqlite3.Connection) -> Sharing:
        """What is shared so far, as this process or another one has written it."""
        last = connection.execute("SELECT MAX(id) FROM shared").fetchone()[0]
        if self._sharing is not None and self._sharing.last == last:
            return self._sharing
        texts = connection.execute("SELECT texts FROM shared ORDER BY id")
        return Sharing((line for (part,) in texts for line in opened(part)), last)

    def read(self, where: Mapping[str, Any], limit: int = -1, offset: int = 0) -> Iterator[Record]:
        """Records in the order of their keys, a few hundred in memory at a time.

        Raises DamagedError for an episode that is not as we write it.
        """
        then = f"ORDER BY {_ORDER} LIMIT {int(limit)} OFFSET {int(offset)}"
        ids = [row["id"] for row in self.select("episodes.rowid AS id", where, then)]
        names = ", ".join(f"episodes.{name}" for name in COLUMNS if name != "mask")
        case: Case | None = None
        for start in range(0, len(ids), _FETCHED):
            some = ids[start : start + _FETCHED]
            rows = self.query(
                f"SELECT {names}, cases.id, cases.diagnosis, cases.category, cases.body {_JOINED} "
                f"WHERE episodes.rowid IN ({', '.join('?' * len(some))}) ORDER BY {_ORDER}",
                some,
            )
            for row in rows:
                with as_written(self.path, row):
                    checked.columns(row)
                    if case is None or case.id != row["case_id"]:
                        case = from_case_row(row)
                    record = from_row(row, case)
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
        query = (
            "SELECT id FROM blocks WHERE phase IN ('train', 'eval') AND ((stage = ? AND step > ?) "
            f"OR stage NOT IN ({marks}))"
        )
        with self.transaction() as connection:
            for (block,) in connection.execute(query, (stage, step, *kept)).fetchall():
                connection.execute("DELETE FROM kept WHERE id BETWEEN ? AND ?", _held(block))
                connection.execute("DELETE FROM blocks WHERE id = ?", (block,))

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it is written, or nothing."""
        try:
            with clear_errors(self.path), self._open() as connection:  # it commits or rolls back
                connection.execute("BEGIN IMMEDIATE")
                yield connection
        except BaseException:
            self._sharing = None
            raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = _connect(self.path)
        return self._connection


def _connect(path: Path) -> sqlite3.Connection:
    # A finished run has no write-ahead log. On read-only media SQLite could not make one.
    sealed = path.exists() and not os.access(path.parent, os.W_OK)
    uri = f"{path.absolute().as_uri()}{'?immutable=1' if sealed else ''}"
    connection = sqlite3.connect(
        uri,
        uri=True,
        timeout=30,
        isolation_level=None,
        check_same_thread=False,
        factory=Connection,
    )
    connection.row_factory = sqlite3.Row
    refuse_others(connection, path)
    new = not written(connection, path)
    if not sealed:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")
    if new:
        connection.executescript(
            f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {FORMAT}; COMMIT;"
        )
    return connection


def refuse_others(connection: sqlite3.Connection, path: Path) -> None:
    """Raises DamagedError for a file in another format than this version's."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version and version != FORMAT:
        raise DamagedError(
            f"{path} was written by another workup (format {version}, this one reads {FORMAT}); "
            "read it with that one, or start again with another --out"
        )


@contextmanager
def as_written(path: Path, row: sqlite3.Row) -> Iterator[None]:
    """A context in which a row of `path` is decoded and checked.

    Raises DamagedError, with the case of the row, where it is not as we write it.
    """
    try:
        yield
    except RecursionError:
        raise _damaged(path, row, "nested too deeply") from None
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        why = str(error) if isinstance(error, ValueError) else f"not decoded: {error!r}"
        raise _damaged(path, row, why) from None


def _damaged(path: Path, row: sqlite3.Row, why: str) -> DamagedError:
    return DamagedError(
        f"{path}, case '{checked.one_line(str(row['case_id']))}': an episode is damaged "
        f"({checked.one_line(why)}); restore the file from a copy"
    )


def written(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether anything has been written to the database; False for a file without tables.

    Raises DamagedError where a table or a view of ours is missing or made by another statement: the
    file is another program's, and what it computes could be without end.
    """
    found = _shape(connection)
    if not found:
        return False
    for (type, name), statement in _ours().items():
        if found.get((type, name)) != statement:
            raise DamagedError(
                f"{path}: it has no {type} '{name}' as we write it, so it holds no episodes of "
                "ours; restore it from a copy"
            )
    return True


def _shape(connection: sqlite3.Connection) -> dict[tuple[str, str], str]:
    """The tables and views by type and name, with the statements that made them."""
    query = "SELECT type, name, sql FROM sqlite_master WHERE type IN ('table', 'view')"
    return {(type, name): sql for type, name, sql in connection.execute(query)}


@cache
def _ours() -> dict[tuple[str, str], str]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_SCHEMA)
        return _shape(connection)


def _people(connection: sqlite3.Connection, records: Iterable[Record]) -> dict[str, int]:
    """The numbers of the records' cases by their ids; new ones are written."""
    cases = {record.episode.case.id: record.episode.case for record in records}
    query = "SELECT id FROM people WHERE name = ?"
    found = {id: connection.execute(query, (id,)).fetchone() for id in cases}
    numbers = {id: int(row[0]) for id, row in found.items() if row is not None}
    new = [to_case_row(case) for id, case in cases.items() if id not in numbers]
    for span in spans([len(body) for *_, body in new]):
        rows = [new[place] for place in span]
        lines = squeezed((body for *_, body in rows), likeness(connection))
        chunk = connection.execute("INSERT INTO bodies (lines) VALUES (?)", (lines,)).lastrowid
        assert chunk is not None
        for number, (id, diagnosis, category, _) in enumerate(rows, chunk * PER_BLOCK):
            connection.execute(
                "INSERT INTO people VALUES (?, ?, ?, ?)", (number, id, diagnosis, category)
            )
            numbers[id] = number
    return numbers


def _endings(connection: sqlite3.Connection, records: Iterable[Record]) -> dict[str, int]:
    """The numbers of all endings by their names; those of `records` that are new are written."""
    new = [(name,) for name in dict.fromkeys(record.episode.ending.value for record in records)]
    connection.executemany(
        "INSERT INTO endings (name) SELECT ?1 WHERE ?1 NOT IN (SELECT name FROM endings)", new
    )
    return dict(map(tuple, connection.execute("SELECT name, id FROM endings")))


def _held(block: int) -> tuple[int, int]:
    """The first and the last number that an episode of this block can have."""
    return block * PER_BLOCK, block * PER_BLOCK + PER_BLOCK - 1


def _drop(
    connection: sqlite3.Connection, place: Sequence[Any], keys: Container[tuple[Any, ...]]
) -> None:
    """Deletes the episodes of a place with these cases and samples, and blocks that are empty."""
    same = " AND ".join(f"{name} = ?" for name in PLACE)
    for (block,) in connection.execute(f"SELECT id FROM blocks WHERE {same}", place).fetchall():
        query = "SELECT id, person, sample FROM kept WHERE id BETWEEN ? AND ?"
        rows = connection.execute(query, _held(block)).fetchall()
        gone = [(id,) for id, *key in rows if tuple(key) in keys]
        connection.executemany("DELETE FROM kept WHERE id = ?", gone)
        if len(gone) == len(rows):
            connection.execute("DELETE FROM blocks WHERE id = ?", (block,))


def conditions(where: Mapping[str, Any]) -> tuple[str, tuple[Any, ...]]:
    """The WHERE clause for `where` (column → value), and its values; `case` means `case_id`.

    Raises UserError for an unknown column.
    """
    named = {("case_id" if name == "case" else name): value for name, value in where.items()}
    for name in named:
        if name not in FILTERS:
            raise unknown("column", name, TYPED)
    clause = " AND ".join(f"{name} IS ?" for name in named)
    return (f"WHERE {clause}" if clause else ""), tuple(named.values())
