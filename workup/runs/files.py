"""Files that are whole or absent, and errors of the disk in words that say what to do."""

from __future__ import annotations

import errno
import json
import math
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from workup.disk import whole_file
from workup.errors import UserError

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
}


@contextmanager
def clear_errors(path: Path) -> Iterator[None]:
    """A context that reports errors of the disk or of SQLite in one line with a remedy."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {_os_hint(error)}") from error
    except sqlite3.DatabaseError as error:
        hint = _sqlite_hint(error)
        if hint is None:
            raise
        raise UserError(f"cannot use {path}: {hint}") from error


def _os_hint(error: OSError) -> str:
    if error.errno in _FULL:
        return f"the disk is full; {_ON}"
    if error.errno in _SEALED:
        return "the folder is read-only; choose a writable one with --out"
    if error.errno in {errno.ENOTDIR, errno.EEXIST}:
        return "part of this path is a file, not a folder; choose another with --out"
    return f"{error.strerror or error}"


def _sqlite_hint(error: sqlite3.DatabaseError) -> str | None:
    if "user-defined function" in str(error):  # ours, over what a block holds
        return _SQLITE_HINTS["SQLITE_CORRUPT"]
    name = getattr(error, "sqlite_errorname", "")
    return next((hint for prefix, hint in _SQLITE_HINTS.items() if name.startswith(prefix)), None)


def write_whole(path: Path, text: str, *, private: bool = False) -> None:
    """Writes `text` (UTF-8) so that a reader sees the old file or the new one, after a crash too.

    With `private` no other user may read it. Raises UserError when the disk refuses.
    """
    with clear_errors(path), whole_file(path, private=private) as draft:
        draft.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Mapping[str, Any], *, private: bool = False) -> None:
    text = json.dumps(finite(value), indent=2, ensure_ascii=False) + "\n"
    write_whole(path, text, private=private)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of ours; empty where the file is missing.

    Raises UserError where the file cannot be read or holds no object, as after a copy that was cut
    off.
    """
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        why = "" if isinstance(value, dict) else "it holds no JSON object"
    except (OSError, ValueError) as error:
        why = str(error)
    if why:
        raise UserError(
            f"{path}: this file is damaged ({why}); restore it from a copy, or go on without it: "
            f"type `rm {path}`"
        )
    return cast("dict[str, Any]", value)


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
    removes it. Every line has `fields`, of these types.
    """

    def __init__(self, path: Path, fields: Mapping[str, type]) -> None:
        self.path, self.fields = path, fields
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
        """(offset just after the line, its object) for every whole line."""
        if not self.path.exists():
            return
        offset = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                offset += len(line)
                if not line.endswith(b"\n"):
                    return
                yield offset, self._parse(line, number)

    def cut(self, offset: int) -> None:
        """Keeps the first `offset` bytes and drops the rest."""
        if self.path.exists():
            with clear_errors(self.path):
                os.truncate(self.path, offset)

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        """The object of a line. Raises UserError where the line is damaged."""
        try:
            value = json.loads(line)
        except ValueError as error:
            raise self._damaged(number, f"not JSON: {error}") from error
        if not isinstance(value, dict):
            raise self._damaged(number, "no JSON object")
        for name, kind in self.fields.items():
            if not isinstance(value.get(name), kind):
                raise self._damaged(number, f"it has no '{name}'")
        return value

    def _damaged(self, number: int, why: str) -> UserError:
        return UserError(
            f"{self.path}, line {number}: this line is damaged ({why}); restore the file from a "
            f"copy, or go on without this step's figures: type `sed -i {number}d {self.path}`"
        )

    def _repair(self) -> None:
        data = self.path.read_bytes()
        if data and not data.endswith(b"\n"):
            os.truncate(self.path, data.rfind(b"\n") + 1)
