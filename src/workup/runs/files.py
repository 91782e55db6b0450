"""Files that are whole or absent, and errors of the disk in words that say what to do."""

from __future__ import annotations

import errno
import json
import math
import os
import shlex
import sqlite3
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from workup.core.disk import whole_file
from workup.core.errors import UserError

LARGEST_JSON = 16 * 2**20
"""The most bytes of a file that holds one JSON object; those of a run have some ten thousand."""

LARGEST_LINES = 256 * 2**20
"""The most bytes of a file of JSON lines; a line of a run's metrics has one or two thousand."""

LONGEST_LINE = 2**20
DEEPEST = 32  # levels of JSON within each other
_KINDS = {stat.S_IFIFO: "pipe", stat.S_IFDIR: "folder", stat.S_IFSOCK: "socket"}
_DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_TOOBIG")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_SEALED = {errno.EROFS, errno.EACCES, errno.EPERM}
_ON = "free some space, then type the command again, or `workup resume` where a run had begun"
_SQLITE_HINTS = {
    "SQLITE_FULL": f"the disk is full; {_ON}",
    "SQLITE_IOERR": f"the disk failed or is full; {_ON}",
    "SQLITE_READONLY": "it is read-only; choose a writable folder with --out",
    "SQLITE_CANTOPEN": "it cannot be opened for writing; choose a writable folder with --out",
    "SQLITE_BUSY": "another process is writing to it; wait for it to end, or stop it",
    "SQLITE_CORRUPT": "it is damaged; restore it from a copy, or start again with another --out",
    "SQLITE_NOTADB": (
        "it is no SQLite file; restore it from a copy, or start again with another --out"
    ),
    "SQLITE_TOOBIG": (
        "it is damaged: it holds a value that is larger than any that is written; restore it from "
        "a copy"
    ),
}


class DamagedError(UserError):
    """A file that is not as we write it: cut off, changed, of another kind, or another program's.

    One line: which file, why, what to do.
    """


def present(path: Path, most: int | None = None) -> bool:
    """Whether there is a file at `path`, which a reader can open without waiting for anybody.

    Raises DamagedError for a pipe, a device or a folder in its place, for a link that leads out of
    the file's folder or nowhere, and for more than `most` bytes.
    """
    try:
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode):
            if not path.resolve(strict=True).is_relative_to(path.parent.resolve()):
                raise DamagedError(
                    f"{path}: it is a link that leads out of its folder; put the file itself there"
                )
            found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise DamagedError(
                f"{path}: it is a link to nothing; put the file itself there"
            ) from None
        return False
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle, before Python 3.13
        why = getattr(error, "strerror", None) or "its links lead in a circle"
        raise DamagedError(f"{path}: it cannot be read ({why})") from None
    if not stat.S_ISREG(found.st_mode):
        raise DamagedError(
            f"{path}: it is a {_KINDS.get(stat.S_IFMT(found.st_mode), 'device')}, not a file; "
            "remove it, and restore the file from a copy"
        )
    if most is not None and found.st_size > most:
        raise DamagedError(
            f"{path}: it has {found.st_size:,} bytes, where at most {most:,} are read; restore it "
            "from a copy"
        )
    return True


def parsed(text: str | bytes) -> Any:
    """The value of a JSON text in which nothing surprises a reader.

    Raises ValueError for what is no JSON, for NaN and infinities, whole numbers of more than 63
    bits, halves of characters, and for more than `DEEPEST` levels.
    """
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError(f"nested deeper than {DEEPEST} levels") from None
    plain(value)
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON's")


def plain(value: Any, depth: int = 0) -> None:
    """Raises ValueError where a value of `json` is none that `parsed` returns."""
    if isinstance(value, str):
        if not value.isascii():
            value.encode()  # half a character: UnicodeEncodeError is a ValueError
    elif isinstance(value, int):
        if abs(value) >= 2**63:
            raise ValueError("a whole number of more than 63 bits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("a number that is too large")
    elif depth >= DEEPEST:
        raise ValueError(f"nested deeper than {DEEPEST} levels")
    elif isinstance(value, dict):
        for key, item in value.items():
            plain(key, depth + 1)
            plain(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            plain(item, depth + 1)


@contextmanager
def clear_errors(path: Path) -> Iterator[None]:
    """A context that reports errors of the disk or of SQLite in one line with a remedy."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {_os_hint(error)}") from error
    except sqlite3.DatabaseError as error:
        name, hint = _sqlite_hint(error)
        if not hint:
            raise
        kind = DamagedError if name in _DAMAGE else UserError
        raise kind(f"cannot use {path}: {hint}") from error


def _os_hint(error: OSError) -> str:
    if error.errno in _FULL:
        return f"the disk is full; {_ON}"
    if error.errno in _SEALED:
        return "the folder is read-only; choose a writable one with --out"
    if error.errno in {errno.ENOTDIR, errno.EEXIST}:
        return "part of this path is a file, not a folder; choose another with --out"
    return f"{error.strerror or error}"


def _sqlite_hint(error: sqlite3.DatabaseError) -> tuple[str, str]:
    """The kind of error with what to do about it; two empty texts for one that we do not know."""
    # Two errors are Python's own: a text is no UTF-8, and a function of ours failed over a block.
    told = str(error)
    if "UTF-8" in told or "user-defined function" in told:
        name = "SQLITE_CORRUPT"
    else:
        name = getattr(error, "sqlite_errorname", "")
    found = (each for each in _SQLITE_HINTS.items() if name.startswith(each[0]))
    return next(found, ("", ""))


def damage(error: sqlite3.DatabaseError) -> str:
    """What is wrong with a database that is only read, whatever SQLite says about it."""
    return _sqlite_hint(error)[1] or f"it cannot be read ({error}); restore it from a copy"


def write_whole(path: Path, text: str, *, private: bool = False) -> None:
    """Writes `text` (UTF-8) so that a reader sees the old file or the new one, after a crash too.

    With `private` no other user may read it. Raises UserError when the disk refuses.
    """
    with clear_errors(path), whole_file(path, private=private) as draft:
        draft.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Mapping[str, Any], *, private: bool = False) -> None:
    text = json.dumps(finite(value), indent=2, ensure_ascii=False) + "\n"
    write_whole(path, text, private=private)


def read_json(
    path: Path, check: Callable[[dict[str, Any]], None] = lambda value: None
) -> dict[str, Any]:
    """The object in a JSON file of ours; empty where the file is missing.

    Raises DamagedError where the file cannot be read or holds no object, as after a copy that was
    cut off, and where `check` raises ValueError.
    """
    if not present(path, LARGEST_JSON):
        return {}
    try:
        value = parsed(path.read_bytes())
        if not isinstance(value, dict):
            raise ValueError("it holds no JSON object")
        check(value)
    except (OSError, ValueError) as error:
        raise DamagedError(
            f"{path}: this file is damaged ({error}); restore it from a copy, or go on without it: "
            f"type `rm {shlex.quote(str(path))}`"
        ) from None
    return value


def finite(value: Any) -> Any:
    """`value` with NaN and infinities as None, which JSON knows."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


class JsonLines:
    """A file of one JSON object per line that is only ever appended to, or cut after a line.

    A crash can leave its last line half-written; such a line never counts, and the next append
    removes it. `check` raises ValueError for a line that is none of this file's.
    """

    def __init__(self, path: Path, check: Callable[[dict[str, Any]], None]) -> None:
        self.path, self.check = path, check
        self._whole = False

    def append(self, value: Mapping[str, Any]) -> None:
        """Appends one object; numbers that JSON lacks (NaN, ∞) become null.

        Raises UserError when the disk refuses.
        """
        line = json.dumps(finite(value), ensure_ascii=False).encode() + b"\n"
        with clear_errors(self.path), self.path.open("ab", buffering=0) as file:
            if not self._whole:
                self._repair()
            self._whole = False
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._whole = True

    def lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(offset just after the line, its object) for every whole line.

        Raises DamagedError for a file that cannot be read, and where a line of it is damaged.
        """
        if not present(self.path, LARGEST_LINES):
            return
        offset, number = 0, 0
        with self._reading() as file:
            while line := file.readline(LONGEST_LINE):
                offset, number = offset + len(line), number + 1
                if len(line) == LONGEST_LINE:
                    raise self._damaged(number, f"it has {LONGEST_LINE:,} bytes or more")
                if not line.endswith(b"\n"):
                    return
                yield offset, self._parse(line, number)

    def _reading(self) -> BinaryIO:
        try:
            return self.path.open("rb")
        except OSError as error:
            raise DamagedError(f"{self.path}: it cannot be read ({error.strerror})") from None

    def cut(self, offset: int) -> None:
        """Keeps the first `offset` bytes and drops the rest."""
        if self.path.exists():
            with clear_errors(self.path):
                os.truncate(self.path, offset)

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        """The object of a line. Raises DamagedError where the line is damaged."""
        try:
            value = parsed(line)
        except ValueError as error:
            raise self._damaged(number, f"not JSON: {error}") from error
        if not isinstance(value, dict):
            raise self._damaged(number, "no JSON object")
        try:
            self.check(value)
        except ValueError as error:
            raise self._damaged(number, str(error)) from None
        return value

    def _damaged(self, number: int, why: str) -> DamagedError:
        typed = f"sed -i {number}d {shlex.quote(str(self.path))}"
        return DamagedError(
            f"{self.path}, line {number}: this line is damaged ({why}); restore the file from a "
            f"copy, or go on without this step's figures: type `{typed}`"
        )

    def _repair(self) -> None:
        data = self.path.read_bytes()
        if data and not data.endswith(b"\n"):
            os.truncate(self.path, data.rfind(b"\n") + 1)
