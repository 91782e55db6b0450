"""episodes.sqlite of a run that may be running, read so that no file of its folder changes.

How it can be read depends on SQLite's own files beside it:

- a log (`-wal`) with its index (`-shm`): the run is open, or was killed. A read-only index is all
  that a reader needs.
- no log: nobody writes, and the database is whole. It is opened as a file that does not change,
  since otherwise SQLite would make a log; if it does change meanwhile, it is read again.
- a log without its index, as in a copy of half a folder: a reader would have to make the index, so
  that both files are read from a temporary copy.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from workup.core.errors import UserError
from workup.runs.files import DamagedError, damage, present
from workup.runs.packed import LARGEST, Connection
from workup.runs.store import EpisodeStore, refuse_others, written

Stamp = tuple[int, ...]
_TRIES, _PAUSE = 5, 0.05  # attempts to read a file that is being replaced; seconds between


class Untouched(EpisodeStore):
    """The episodes of a run whose folder stays as it is: same bytes, same times, no new file."""

    def query(self, text: str, values: Sequence[Any] = ()) -> Iterator[sqlite3.Row]:
        """Rows of any SELECT, all of them in memory; none while nothing has been written.

        Raises UserError for a file that cannot be read.
        """
        yield from self._rows(text, values)

    def check(self) -> None:
        """Raises UserError for a file that cannot be read, or that holds no episodes of ours.

        A log without its index is checked when it is read, since that takes a copy.
        """
        log, index = _beside(self.path, "-wal"), _beside(self.path, "-shm")
        if not present(log) or present(index):
            self._rows("SELECT 1 FROM episodes LIMIT 1", ())

    @property
    def stamp(self) -> Stamp:
        """Changes whenever something is written: times and sizes of database and log."""
        return (*_times(self.path), *_times(_beside(self.path, "-wal")))

    def _rows(self, text: str, values: Sequence[Any]) -> list[sqlite3.Row]:
        for attempt in range(_TRIES):
            if not present(self.path):
                return []
            before = self.stamp
            try:
                with _opened(self.path) as (connection, logged):
                    there = written(connection, self.path)
                    rows = connection.execute(text, values).fetchall() if there else []
                if logged or self.stamp == before:
                    return rows
            except FileNotFoundError:
                pass  # the last writer has just ended, and its log is gone
            except sqlite3.DatabaseError as error:  # for the same reason, perhaps
                if attempt + 1 == _TRIES:
                    raise DamagedError(f"{self.path}: {damage(error)}") from None
            except OSError as error:
                raise UserError(
                    f"{self.path}: it, or a copy of it in {tempfile.gettempdir()}, cannot be "
                    f"opened ({error.strerror or error}); see to the rights and the room there"
                ) from None
            time.sleep(_PAUSE)
        raise UserError(f"{self.path}: it is replaced all the time; try again when it is whole")


@contextmanager
def _opened(path: Path) -> Iterator[tuple[sqlite3.Connection, bool]]:
    """A connection that reads, and whether a log protects it from what is written meanwhile."""
    log, index = _beside(path, "-wal"), _beside(path, "-shm")
    if not present(log):
        with closing(_connected(path, "immutable=1")) as connection:
            yield connection, False
    elif present(index):
        with closing(_connected(path, "mode=ro&readonly_shm=1")) as connection:
            yield connection, True
    else:
        with tempfile.TemporaryDirectory() as folder:
            _refuse_large((path, log), Path(folder))
            copies = [Path(shutil.copy(each, folder)) for each in (path, log)]
            with closing(_connected(copies[0], "mode=rw")) as connection:
                yield connection, False


def _refuse_large(files: Sequence[Path], folder: Path) -> None:
    size, free = sum(file.stat().st_size for file in files), shutil.disk_usage(folder).free
    if size > free / 2:
        raise UserError(
            f"{files[0]}: it lacks its -shm, and to read a copy of {size:,} bytes {folder.parent} "
            f"has too little room ({free:,} bytes); open the run once with `workup report`"
        )


def _connected(path: Path, how: str) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, factory=Connection)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST)
    try:
        connection.row_factory = sqlite3.Row
        refuse_others(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _times(path: Path) -> Stamp:
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns
