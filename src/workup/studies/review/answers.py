"""What reviewers have said: one SQLite file to which entries are only ever added.

Each answer is a transaction that is on the disk before the reviewer sees the next item. A later
entry of an item takes the place of an earlier one, and an undo is an entry as well, so that the
file keeps all that ever was.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

from workup.core.errors import UserError
from workup.runs.files import clear_errors

FORMAT = 1
LONGEST_NAME, LONGEST_NOTE = 80, 10_000  # characters
BREAK = 900.0  # seconds between two entries from which a reviewer is taken to have paused
_SCHEMA = """
CREATE TABLE IF NOT EXISTS reviewers (
  name TEXT PRIMARY KEY, token TEXT UNIQUE NOT NULL, since TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS entries (
  id INTEGER PRIMARY KEY AUTOINCREMENT, reviewer TEXT NOT NULL REFERENCES reviewers(name),
  item INTEGER NOT NULL, act TEXT NOT NULL CHECK (act IN ('answer', 'skip', 'undo')),
  answers TEXT NOT NULL, note TEXT NOT NULL, at TEXT NOT NULL
);
CREATE TRIGGER IF NOT EXISTS unchanged BEFORE UPDATE ON entries
BEGIN SELECT RAISE(ABORT, 'entries are kept'); END;
CREATE TRIGGER IF NOT EXISTS kept BEFORE DELETE ON entries
BEGIN SELECT RAISE(ABORT, 'entries are kept'); END;
"""


@dataclass(frozen=True, slots=True)
class AnswerEntry:
    """What a reviewer said of the item with this number (from 1).

    `answers` has a value for every question, None for "cannot say"; it is empty where the item was
    skipped. `at` is the time in UTC, ISO 8601.
    """

    id: int
    item: int
    skipped: bool
    answers: Mapping[str, str | None]
    note: str
    at: str


@dataclass(frozen=True, slots=True)
class Standing:
    """What stands of a reviewer: the last entry of every item, and the one that undo takes back.

    `pace` is the median time of an item in seconds, None before two of them.
    """

    entries: Mapping[int, AnswerEntry]
    last: AnswerEntry | None
    pace: float | None


class Answers:
    """The file; it is made when the first reviewer is named. Several processes may use it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def reviewers(self) -> dict[str, str]:
        """Each with the token of its link, in the order in which they were named."""
        if not self.path.exists():
            return {}
        with self._connected() as connection:
            query = "SELECT name, token FROM reviewers ORDER BY since, name"
            return {row["name"]: row["token"] for row in connection.execute(query)}

    def admit(self, name: str) -> str:
        """The token of a reviewer, who is new or known.

        Raises UserError for a name that is empty, too long, or not printable.
        """
        name = " ".join(name.split())
        if not name or len(name) > LONGEST_NAME or not name.isprintable():
            raise UserError(f"a reviewer's name has 1 to {LONGEST_NAME} printable characters")
        with self._change() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO reviewers VALUES (?, ?, ?)",
                (name, secrets.token_urlsafe(24), _now()),
            )
        return self.reviewers()[name]

    def answer(
        self, reviewer: str, item: int, answers: Mapping[str, str | None], note: str = ""
    ) -> None:
        """Keeps an answer, which is on the disk on return; sent twice, it counts once."""
        self._add(reviewer, item, "answer", answers, note)

    def skip(self, reviewer: str, item: int, note: str = "") -> None:
        self._add(reviewer, item, "skip", {}, note)

    def undo(self, reviewer: str, entry: int) -> int | None:
        """Takes back `entry` if it is the reviewer's last one that stands; the item's number.

        The item stands then as it did before. None, and nothing is done, where it is not the last.
        """
        with self._change() as connection:
            last = _standing(connection, reviewer).last
            if last is None or last.id != entry:
                return None
            _insert(connection, reviewer, last.item, "undo", {}, "")
            return last.item

    def standing(self, reviewer: str) -> Standing:
        """What the reviewer's entries come to."""
        if not self.path.exists():
            return Standing({}, None, None)
        with self._connected() as connection:
            return _standing(connection, reviewer)

    def _add(
        self, reviewer: str, item: int, act: str, answers: Mapping[str, str | None], note: str
    ) -> None:
        with self._change() as connection:
            last = _standing(connection, reviewer).last
            same = last is not None and (
                (last.item, last.skipped, last.note) == (item, act == "skip", note)
                and dict(last.answers) == dict(answers)
            )
            if not same:
                _insert(connection, reviewer, item, act, answers, note)

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """One transaction, which has reached the disk when the block has ended."""
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with clear_errors(self.path):
            if not self.path.exists():
                # For its owner alone, since it holds the links' tokens.
                os.close(os.open(self.path, os.O_CREAT, 0o600))
            with closing(
                sqlite3.connect(self.path, timeout=30, isolation_level=None)
            ) as connection:
                connection.row_factory = sqlite3.Row
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("PRAGMA foreign_keys = ON")
                version = int(connection.execute("PRAGMA user_version").fetchone()[0])
                if version > FORMAT:
                    raise UserError(
                        f"{self.path} was written by a newer workup (format {version}); update "
                        "workup"
                    )
                if version == 0:
                    connection.executescript(
                        f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {FORMAT}; COMMIT;"
                    )
                yield connection


def _standing(connection: sqlite3.Connection, reviewer: str) -> Standing:
    rows = connection.execute(
        "SELECT * FROM entries WHERE reviewer = ? ORDER BY id", (reviewer,)
    ).fetchall()
    done: list[AnswerEntry] = []
    for row in rows:
        if row["act"] == "undo":
            done.pop()
            continue
        skipped, answers = row["act"] == "skip", json.loads(row["answers"])
        done.append(AnswerEntry(row["id"], row["item"], skipped, answers, row["note"], row["at"]))
    times = [datetime.fromisoformat(row["at"]) for row in rows]
    return Standing({each.item: each for each in done}, done[-1] if done else None, _pace(times))


def _insert(
    connection: sqlite3.Connection,
    reviewer: str,
    item: int,
    act: str,
    answers: Mapping[str, str | None],
    note: str,
) -> None:
    body = json.dumps(answers, ensure_ascii=False)
    connection.execute(
        "INSERT INTO entries (reviewer, item, act, answers, note, at) VALUES (?, ?, ?, ?, ?, ?)",
        (reviewer, item, act, body, note, _now()),
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _pace(times: Sequence[datetime]) -> float | None:
    gaps = [(after - before).total_seconds() for before, after in pairwise(times)]
    worked = [gap for gap in gaps if 0 < gap < BREAK]
    return median(worked) if worked else None
