"""Answers of models, kept by content, and their costs: one SQLite file for several processes.

An answer and its charge are written in one transaction, and an answer is used only when it is on
the disk. So a process that is killed at any moment has lost no answer that it had used, and every
paid answer has its charge.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import stamina

from workup.core.errors import UserError
from workup.core.ports import Reply, Request

FILE = "replies.sqlite"
FORMAT = 1
PATIENCE = 30.0  # seconds to wait for another process that writes
UNWRITTEN = 1_000  # hits that a killed process may leave uncounted
DAY = 86_400.0
_NAMES = "CREATE TABLE IF NOT EXISTS names (run TEXT PRIMARY KEY, name TEXT)"
# Requests are ten times as long as replies, and no look-up reads them. In a table of their own they
# leave more memory for what look-ups read.
_SCHEMA = """
CREATE TABLE replies (
  id INTEGER PRIMARY KEY, key TEXT UNIQUE, role TEXT, model TEXT, version TEXT, created REAL, used \
REAL, size INTEGER, reply TEXT
);
CREATE TABLE requests (id INTEGER PRIMARY KEY REFERENCES replies ON DELETE CASCADE, body TEXT);
CREATE TABLE charges (
  id INTEGER PRIMARY KEY, time REAL, run TEXT, role TEXT, model TEXT,
  prompt_tokens INTEGER, completion_tokens INTEGER, cost REAL, key TEXT
);
CREATE INDEX charges_of_run ON charges (run);
CREATE TABLE hits (run TEXT, role TEXT, model TEXT, count INTEGER, PRIMARY KEY (run, role, model));
"""
_ROOM = (
    "free some space there, shrink the cache with `workup cache prune`, or set WORKUP_CACHE to a "
    "folder on another disk"
)
_HINTS = {
    "SQLITE_FULL": f"the disk is full; {_ROOM}",
    "SQLITE_IOERR": f"the disk failed or is full; {_ROOM}",
    "SQLITE_READONLY": "it is read-only; set WORKUP_CACHE to a writable folder",
    "SQLITE_CANTOPEN": "it cannot be opened; set WORKUP_CACHE to a writable folder",
    "SQLITE_BUSY": "another process has been writing to it for too long; wait for it to end",
    "SQLITE_CORRUPT": "it is damaged; restore it from a copy, or move it away",
    "SQLITE_NOTADB": "it is no SQLite file; move it away",
}


@dataclass(frozen=True, slots=True)
class CanonicalRequest:
    """A request in its canonical form.

    `body` is JSON with sorted keys, `key` its BLAKE2b digest (128 bits, hexadecimal).
    """

    model: str
    role: str
    version: str
    body: str
    key: str


def asked(model: str, request: Request, run: str = "") -> CanonicalRequest:
    """The key of the answer to `request` by `model`; with `run`, only this run may use it."""
    fields = {
        "model": model,
        "role": request.role,
        "version": request.version,
        "messages": [
            {"role": message.role, "content": message.content} for message in request.messages
        ],
        "schema": request.schema,
        "max_tokens": request.max_tokens,
        "temperature": float(request.temperature),
        "sample": request.sample,
        **({"run": run} if run else {}),
    }
    body = _json(fields)
    model, role, version = (
        name.encode("utf-8", "replace").decode() for name in (model, request.role, request.version)
    )
    return CanonicalRequest(
        model, role, version, body, hashlib.blake2b(body.encode(), digest_size=16).hexdigest()
    )


@dataclass(frozen=True, slots=True)
class Charge:
    """What one call of a model took: tokens, and money in the currency of the prices."""

    run: str
    prompt_tokens: int
    completion_tokens: int
    cost: float


@dataclass(frozen=True, slots=True)
class CallCost:
    """The calls of one role to one model.

    How many were sent, how many the cache answered, their cost.
    """

    role: str
    model: str
    calls: int
    hits: int
    prompt_tokens: int
    completion_tokens: int
    cost: float


_Kept = tuple[CanonicalRequest, Reply, Charge, bool, "Future[Reply]"]


class Replies:
    """The open file, for any number of threads and event loops.

    If `path` does not exist, it is made, readable by its owner alone. Raises UserError, here and in
    every method, when the disk or the file does not allow it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with clear_errors(path):
            # Folder and empty file are made before SQLite would make them readable to everybody.
            # SQLite's other files take over the file's mode.
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._reader, self._writer = _connect(path), _connect(path)
        self._reading, self._writing = threading.Lock(), threading.Lock()
        self._lock = threading.Lock()  # guards the three attributes that follow
        self._waiting: list[_Kept] = []
        self._hits: Counter[tuple[str, str, str]] = Counter()
        self._touched: set[str] = set()
        self._thread = ThreadPoolExecutor(1, "replies")

    def find(self, key: str) -> Reply | None:
        """The answer kept under `key`, marked as cached."""
        row = next(iter(self.query("SELECT reply, used FROM replies WHERE key = ?", (key,))), None)
        if row is None:
            return None
        if time.time() - row[1] > DAY:  # more often would make a write of every look-up
            with self._lock:
                self._touched.add(key)
        return Reply(**json.loads(row[0]), cached=True)

    def keep(
        self, request: CanonicalRequest, reply: Reply, charge: Charge, *, lost: bool = False
    ) -> Future[Reply]:
        """Writes an answer and its charge, if it is `lost` the charge alone.

        The future has its result when they are on the disk.

        Calls at the same time share a transaction. If another process has kept an answer to the
        same request meanwhile, that answer is the result, so that both go on alike. The charge is
        written anyway.
        """
        kept: Future[Reply] = Future()
        kept.set_running_or_notify_cancel()  # whoever stops waiting does not stop the writing
        with self._lock:
            self._waiting.append((request, reply, charge, lost, kept))
            first = len(self._waiting) == 1
        if first:
            self._thread.submit(self.flush)
        return kept

    def hit(self, run: str, role: str, model: str) -> None:
        """Counts an answer that cost nothing.

        The count is written with the next answer, or when a thousand have come together.
        """
        with self._lock:
            self._hits[run, role, model] += 1
            full = self._hits.total() % UNWRITTEN == 0
        if full:
            self._thread.submit(self.flush)

    def flush(self) -> None:
        """Writes what is still in memory, in one transaction."""
        with self._lock:
            kept, self._waiting = self._waiting, []
            hits, self._hits = self._hits, Counter()
            touched, self._touched = self._touched, set()
        try:
            replies = self._write(kept, hits, touched)
        except BaseException as error:
            for *_, future in kept:
                future.set_exception(error)
            if not kept:
                raise
            return
        for (*_, future), reply in zip(kept, replies, strict=True):
            future.set_result(reply)

    def charged(self, run: str, after: int = 0) -> tuple[int, float]:
        """The number of `run`'s last charge, and the sum of its charges after number `after`."""
        query = "SELECT max(id), total(cost) FROM charges WHERE run = ? AND id > ?"
        ((last, money),) = self.query(query, (run, after))
        return last or after, money

    def costs(self, run: str | None = None) -> list[CallCost]:
        """What `run`, or all runs together, took: a row per role and model, the costliest first."""
        self.flush()
        where, values = ("", ()) if run is None else ("WHERE run = ?", (run,))
        sums = "count(*), total(prompt_tokens), total(completion_tokens), total(cost)"
        paid = {
            row[:2]: row[2:]
            for row in self.query(
                f"SELECT role, model, {sums} FROM charges {where} GROUP BY 1, 2", values
            )
        }
        hits = {
            r[:2]: r[2]
            for r in self.query(
                f"SELECT role, model, sum(count) FROM hits {where} GROUP BY 1, 2", values
            )
        }
        rows = []
        for role, model in {**paid, **hits}:
            calls, read, written, cost = paid.get((role, model), (0, 0, 0, 0.0))
            rows.append(
                CallCost(
                    role, model, calls, hits.get((role, model), 0), int(read), int(written), cost
                )
            )
        return sorted(rows, key=lambda row: (-row.cost, row.role, row.model))

    def runs(self) -> list[str]:
        """The names of all runs in the ledger, in the order of their first call."""
        self.flush()
        paid = self.query("SELECT run FROM charges GROUP BY run ORDER BY min(id)")
        return list(
            dict.fromkeys(run for (run,) in [*paid, *self.query("SELECT DISTINCT run FROM hits")])
        )

    def name(self, run: str, name: str) -> None:
        """Sets the name that people use for `run`: the full path of its folder."""
        with self.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO names VALUES (?, ?)", (run, name))

    def names(self) -> dict[str, str]:
        """The names that people use, by the runs' names in the ledger; not all runs have one."""
        rows = self.query("SELECT run, name FROM names ORDER BY rowid")
        return {str(run): str(name) for run, name in rows}

    def query(self, text: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a SELECT."""
        with clear_errors(self.path), self._reading:
            return self._reader.execute(text, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it is on the disk, or nothing."""
        with self._writing, clear_errors(self.path), self._writer:  # which commits or rolls back
            self._writer.execute("BEGIN IMMEDIATE")
            yield self._writer

    def shrink(self) -> None:
        """Returns the space of deleted rows to the disk."""
        with clear_errors(self.path), self._writing:
            # A script: `execute` would stop after the first page.
            self._writer.executescript("PRAGMA incremental_vacuum")
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Writes what is still in memory and closes the file."""
        self._thread.shutdown()
        self.flush()
        self._reader.close()
        self._writer.close()

    def _write(
        self, kept: Sequence[_Kept], hits: Counter[tuple[str, str, str]], touched: set[str]
    ) -> list[Reply]:
        if not (kept or hits or touched):
            return []
        now = time.time()
        with self.transaction() as connection:
            replies = [_write_one(connection, now, *entry[:4]) for entry in kept]
            connection.executemany(
                (
                    "INSERT INTO hits VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET count = "
                    "count + excluded.count"
                ),
                [(*who, count) for who, count in hits.items()],
            )
            connection.executemany(
                "UPDATE replies SET used = ? WHERE key = ?", [(now, key) for key in touched]
            )
        return replies


def insert(
    connection: sqlite3.Connection, request: CanonicalRequest, reply: Reply, created: float
) -> bool:
    """Adds an answer; False if there is one already, which stays."""
    kept = _json({name: value for name, value in asdict(reply).items() if name != "cached"})
    size = len(request.body.encode()) + len(kept.encode())
    row = (request.key, request.role, request.model, request.version, created, created, size, kept)
    done = connection.execute(
        "INSERT INTO replies VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", row
    )
    if done.rowcount:
        connection.execute("INSERT INTO requests VALUES (?, ?)", (done.lastrowid, request.body))
    return done.rowcount == 1


@contextmanager
def clear_errors(path: Path) -> Iterator[None]:
    """A context that reports errors of the disk or of SQLite in one line, with a remedy."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise UserError(
            f"cannot use the cache {path}: {reason} (set WORKUP_CACHE to a writable folder)"
        ) from error
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", "")
        hint = next((hint for prefix, hint in _HINTS.items() if name.startswith(prefix)), None)
        if hint is None:
            raise
        raise UserError(f"cannot use the cache {path}: {hint}") from error


def _write_one(
    connection: sqlite3.Connection,
    now: float,
    request: CanonicalRequest,
    reply: Reply,
    charge: Charge,
    lost: bool,
) -> Reply:
    connection.execute(
        "INSERT INTO charges VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            now,
            charge.run,
            request.role,
            request.model,
            charge.prompt_tokens,
            charge.completion_tokens,
            charge.cost,
            request.key,
        ),
    )
    if lost:
        return reply
    insert(connection, request, reply, now)
    # Read back even if it is new: now and later the same value is returned.
    ((kept,),) = connection.execute("SELECT reply FROM replies WHERE key = ?", (request.key,))
    return Reply(**json.loads(kept))


def _json(value: Any) -> str:
    """Canonical JSON. A lone surrogate, which no encoding knows, becomes a question mark."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False).encode("utf-8", "replace").decode()


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=PATIENCE, isolation_level=None, check_same_thread=False
    )
    # Switching to a write-ahead log does not wait for others that do so at the same moment.
    for attempt in stamina.retry_context(
        on=_is_busy, timeout=PATIENCE, attempts=None, wait_initial=0.01, wait_max=0.5
    ):
        with attempt:
            _prepare(connection, path)
    # An answer that was paid survives a power cut too.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _is_busy(error: Exception) -> bool:
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorname.startswith(
        "SQLITE_BUSY"
    )


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    version = _version(connection)
    if version > FORMAT:
        raise UserError(
            f"{path} was written by a newer workup (format {version}, this one reads {FORMAT}); "
            "update workup"
        )
    if version == FORMAT:
        connection.execute(_NAMES)  # files of earlier versions have no such table
        return
    # pruning frees disk space while other processes use the file
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")
    if _version(connection) == 0:  # no other process has made the tables meanwhile
        for statement in (*_SCHEMA.split(";"), _NAMES):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {FORMAT}")
    connection.execute("COMMIT")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
