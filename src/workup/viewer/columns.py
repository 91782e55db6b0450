"""A run's episodes without their transcripts, in a database in memory: what lists filter and sort.

The run's own file has no index for that, and gets none. The columns are read a few thousand rows at
a time, in the background; a page shows what has been read so far. Of 100,000 episodes they take
some tens of megabytes.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workup.core.errors import UserError, WorkupError
from workup.runs import checked
from workup.runs.files import DamagedError
from workup.runs.store import KEY, as_written
from workup.runs.untouched import Stamp, Untouched

FIXED = (*KEY, "ending", "correct", "questions", "total", "diagnosis", "category")
CHUNK = 4_000  # episodes read at a time
MEASURES = 200  # names of measures that get a column; a run of ours has some twenty
_READ = (
    f"SELECT episodes.rowid AS id, {', '.join(FIXED)}, measures FROM episodes "
    "JOIN cases ON cases.id = episodes.case_id WHERE episodes.rowid > ? "
    f"ORDER BY episodes.rowid LIMIT {CHUNK}"
)


class Columns:
    """The columns of one run; safe for several threads."""

    def __init__(self, store: Untouched) -> None:
        self.store = store
        self.measures: dict[str, str] = {}  # name → column
        self.failure: Exception | None = None
        self._failed: Stamp | None = None  # the file's stamp when the reading of it failed
        self._sound: tuple[Stamp, str] | None = None  # what `check` found, and when
        self._lock = threading.Lock()
        self._reading: threading.Thread | None = None
        self._counts: dict[tuple[str, int], list[tuple[Any, int]]] = {}
        self._stamp: Stamp | None = None  # the file's stamp when all of it had been read
        self._memory = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._memory.row_factory = sqlite3.Row
        self._empty()

    def catch_up(self, seconds: float) -> None:
        """Reads what is new, in the background, and waits for its end for so many seconds.

        A file that could not be read is read again when it has changed. Raises DamagedError for one
        that is not as we write it.
        """
        with self._lock:
            now = self.store.stamp
            behind = now not in (self._stamp, self._failed)
            if behind and (self._reading is None or not self._reading.is_alive()):
                self.failure = self._failed = None
                self._reading = threading.Thread(target=self._read, daemon=True)
                self._reading.start()
            reading = self._reading
        if reading is not None:
            reading.join(seconds)
        self._raise()

    def check(self) -> None:
        """Raises DamagedError where the file is known to be damaged; looks at its tables alone."""
        now = self.store.stamp
        if self._failed == now:
            self._raise()
        if self._sound is None or self._sound[0] != now:
            self._sound = now, self._looked()
        if self._sound[1]:
            raise DamagedError(self._sound[1])

    def _looked(self) -> str:
        try:
            self.store.check()
        except UserError as error:
            return str(error)
        return ""

    def _raise(self) -> None:
        if isinstance(self.failure, UserError):
            raise DamagedError(str(self.failure))
        if self.failure is not None:
            raise WorkupError(f"{self.store.path}: reading it failed") from self.failure

    @property
    def whole(self) -> bool:
        """Whether all that was written has been read."""
        return self._stamp == self.store.stamp

    def rows(self, text: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Rows of any SELECT from `columns`."""
        with self._lock:
            return self._memory.execute(text, values).fetchall()

    def count(self) -> int:
        return int(self.rows("SELECT COUNT(*) FROM columns")[0][0])

    def written(self) -> int:
        """How many episodes the run's file holds, whether they have been read or not."""
        found = [int(row[0]) for row in self.store.query("SELECT COUNT(*) FROM episodes")]
        return found[0] if found else 0

    def counts(self, column: str, most: int) -> list[tuple[Any, int]]:
        """The values of one of `FIXED`, the commonest first, with the number of their episodes."""
        assert column in FIXED
        # A new reading replaces the dictionary: counts of the old columns stay in the old one.
        known = self._counts
        if (column, most) not in known:
            known[column, most] = [
                (row[0], row[1])
                for row in self.rows(
                    f"SELECT {column}, COUNT(*) AS n FROM columns GROUP BY 1 "
                    "ORDER BY n DESC, 1 LIMIT ?",
                    (most,),
                )
            ]
        return known[column, most]

    def _read(self) -> None:
        """All that is new, chunk by chunk; from the beginning if earlier rows have changed."""
        before = self.store.stamp
        try:
            if self._changed():
                with self._lock:
                    self._empty()
            for chunk in self._chunks():
                self._add(chunk)
            self._stamp = before
        except Exception as error:  # raised again by `catch_up`: nobody sees what a thread raises
            self._failed, self.failure = before, error

    def _chunks(self) -> Iterator[list[sqlite3.Row]]:
        last = self._last()
        while chunk := list(self.store.query(_READ, (last["id"] if last else 0,))):
            yield chunk
            last = chunk[-1]

    def _last(self) -> sqlite3.Row | None:
        found = self.rows(
            f"SELECT id, {', '.join(KEY)} FROM columns WHERE id = (SELECT MAX(id) FROM columns)"
        )
        return found[0] if found else None

    def _changed(self) -> bool:
        """Whether rows that were read are gone or replaced, as after `workup resume`."""
        if (last := self._last()) is None:
            return False
        known = f"SELECT {', '.join(KEY)} FROM episodes WHERE rowid = ?"
        there = list(self.store.query(known, (last["id"],)))
        if not there or tuple(there[0]) != tuple(last)[1:]:
            return True
        up_to = "SELECT COUNT(*) FROM episodes WHERE rowid <= ?"
        return int(next(self.store.query(up_to, (last["id"],)))[0]) != self.count()

    def _empty(self) -> None:
        self.measures, self._counts, self._stamp = {}, {}, None
        self._memory.execute("DROP TABLE IF EXISTS columns")
        self._memory.execute(f"CREATE TABLE columns (id INTEGER PRIMARY KEY, {', '.join(FIXED)})")

    def _add(self, chunk: Sequence[sqlite3.Row]) -> None:
        measured = [self._measures(row) for row in chunk]
        with self._lock:
            for name in dict.fromkeys(name for each in measured for name in each):
                self._name(name)
            names = list(self.measures)
            columns = ("id", *FIXED, *self.measures.values())
            marks = ", ".join("?" * len(columns))
            self._memory.execute("BEGIN")
            self._memory.executemany(
                f"INSERT OR REPLACE INTO columns ({', '.join(columns)}) VALUES ({marks})",
                [
                    (*tuple(row)[:-1], *(each.get(name) for name in names))
                    for row, each in zip(chunk, measured, strict=True)
                ],
            )
            self._memory.execute("COMMIT")
            self._counts = {}

    def _measures(self, row: sqlite3.Row) -> Mapping[str, Any]:
        """The measures of a row; raises DamagedError where a column of it is not as we write it."""
        with as_written(self.store.path, row):
            checked.columns(row)
            found: Mapping[str, Any] = json.loads(row["measures"])
            checked.numbers(found, "measures", none=True)
        return found

    def _name(self, name: str) -> None:
        """A column for a measure: its name is the run's and never stands in a statement."""
        if name not in self.measures and len(self.measures) < MEASURES:
            self.measures[name] = f"m{len(self.measures)}"
            self._memory.execute(f"ALTER TABLE columns ADD COLUMN {self.measures[name]} REAL")
