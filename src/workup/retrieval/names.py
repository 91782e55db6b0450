"""Ids that no two passages of one index share, whatever ids the documents came with.

A document whose id another text already has gets a number behind its id: the second "12" becomes
"12~2", the third "12~3". A document with id, title and text of an earlier one is the same document,
and is left out.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Sequence
from pathlib import Path

from workup.core.text import digest

JOURNAL, TABLE = "passages.names", "passages.names.sqlite"
COUNTED = ("names", "numbered", "repeated")
RECORD = struct.Struct("<qqq")
"""An id in the journal: its hash, the hash of the text that it names, its last number."""

MEMORY = 64_000
"""KiB of the table that are held in memory; the rest of a large one is on disk."""

AT_ONCE = 100_000
"""Records of the journal that are read at once."""


class PassageIds:
    """The ids that one index has given so far.

    `folder` is that of the index; None keeps all in memory. `counts` is kept up to date: the
    records in the folder's journal (`names`), the documents that got a number (`numbered`) and
    those that were left out (`repeated`). An interrupted build goes on from what it noted there;
    records behind them are dropped.
    """

    def __init__(self, folder: Path | None = None, counts: dict[str, int] | None = None) -> None:
        self.counts = dict.fromkeys(COUNTED, 0) if counts is None else counts
        self._folder = folder
        if folder is None:
            self._table = _table(":memory:")
        else:
            (folder / TABLE).unlink(missing_ok=True)  # a killed build left it there
            self._table = _table(str(folder / TABLE))
            (folder / JOURNAL).touch()
            self._journal = (folder / JOURNAL).open("r+b", buffering=2**20)
            self._journal.truncate(self.counts["names"] * RECORD.size)
            while read := self._journal.read(AT_ONCE * RECORD.size):
                self._table.executemany(_INSERT.format("REPLACE"), RECORD.iter_unpack(read))

    def give(self, identity: str, title: str, pieces: Sequence[str]) -> list[str]:
        """The ids of a document's `pieces` (one or more); none where the same document came before.

        A single piece is called after the document, the k-th of several (from 0) "ID#k".
        """
        content = _content(title, *pieces)
        first, last = content, 1
        name, free = identity, self._take(identity, content)
        if not free:
            first, last = self._found(identity)
            # No document is called like this second entry: `words.plain` leaves no "\0" in an id.
            if content == first or not self._take(f"{identity}\0{content}", content):
                self.counts["repeated"] += 1
                return []
        parts = [_content(title, piece) for piece in pieces]
        while not (free and all(map(self._take, _parts(name, pieces), parts))):
            last += 1
            name = f"{identity}~{last}"
            free = self._take(name, content)
        if name != identity:
            self.counts["numbered"] += 1
            self._write("REPLACE", (_hash(identity), first, last))
        return _parts(name, pieces) or [name]

    def save(self) -> None:
        """Puts the journal on the disk; what is in memory has none."""
        if self._folder is not None:
            self._journal.flush()
            os.fsync(self._journal.fileno())

    def close(self) -> None:
        """Deletes the table, which can be rebuilt from the journal."""
        self._table.close()
        if self._folder is not None:
            self._journal.close()
            (self._folder / TABLE).unlink()

    def _take(self, id: str, content: int) -> bool:
        """Takes `id`; False where it was taken already."""
        return self._write("IGNORE", (_hash(id), content, 1))

    def _found(self, id: str) -> tuple[int, int]:
        """The hash of the text that `id` names, and the id's last number."""
        query = "SELECT content, last FROM taken WHERE key = ?"
        ((content, last),) = self._table.execute(query, (_hash(id),))
        return content, last

    def _write(self, otherwise: str, record: tuple[int, int, int]) -> bool:
        written = self._table.execute(_INSERT.format(otherwise), record).rowcount == 1
        if written and self._folder is not None:
            self._journal.write(RECORD.pack(*record))
            self.counts["names"] += 1
        return written


_INSERT = "INSERT OR {} INTO taken VALUES (?, ?, ?)"


def _table(place: str) -> sqlite3.Connection:
    """An empty table of one process: it need not survive a crash nor serve another process."""
    table = sqlite3.connect(place, isolation_level=None)
    for pragma in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{MEMORY}"):
        table.execute(f"PRAGMA {pragma}")
    table.execute("CREATE TABLE taken (key INTEGER PRIMARY KEY, content INTEGER, last INTEGER)")
    table.execute("BEGIN")
    return table


def _parts(name: str, pieces: Sequence[str]) -> list[str]:
    """The ids of a document's pieces, where there are several."""
    return [f"{name}#{k}" for k in range(len(pieces))] if len(pieces) > 1 else []


def _content(title: str, *pieces: str) -> int:
    return _hash("\0".join((title, *pieces)))


def _hash(text: str) -> int:
    return int.from_bytes(digest(text), "little", signed=True)
