"""What a preparation has finished: one line per case, appended at once.

The first line says how the file is made (step, model, version, settings, first day). Every other
line is one case, kept or dropped, with a digest of its input, so that a case that was edited since
counts as a new one.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workup.cases.files import LINE_LIMIT, parse_object
from workup.core.disk import hold
from workup.core.errors import CaseError, UserError
from workup.prepare.steps import Drop

_SYNC_EVERY = 1.0  # seconds; a kill loses nothing, a power failure at most this
_LONGEST = 5 * LINE_LIMIT  # bytes of a line: a case as a text in JSON, with its id, and signs
_HOW = {
    "step": "the step",
    "model": "the model",
    "version": "the prompts",
    "settings": "the settings",
}
_BEGINS = b'{"step": "'  # of every journal


class Journal:
    """An append-only file, held against other processes while it is open.

    Raises UserError if another process holds it, if it has cases made in another way than `header`
    says, if it is another file or damaged, or if it cannot be written.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], *, private: bool = False) -> None:
        self.path = path
        self._places: dict[str, tuple[str, int]] = {}  # id → (digest, byte offset)
        self._synced = time.monotonic()
        try:
            self._file = os.fdopen(
                os.open(path, os.O_RDWR | os.O_CREAT, 0o600 if private else 0o644),
                "r+b",
                buffering=0,
            )
            if private:  # an earlier call may have made it before its input was restricted
                os.fchmod(self._file.fileno(), 0o600)
            self._reader = path.open("rb")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from error
        try:
            hold(self._file)
        except BlockingIOError as error:
            self._shut()
            raise UserError(
                f"{path}: another process is preparing this file; wait for it, or stop it"
            ) from error
        try:
            self.header = self._read(dict(header))
        except BaseException:
            self._shut()
            raise

    def _read(self, header: dict[str, Any]) -> dict[str, Any]:
        """The header in the file, or `header`, newly written where nothing is finished yet.

        An incomplete last line is cut off.
        """
        known: dict[str, Any] = {}
        offset = 0
        read = iter(lambda: self._reader.readline(_LONGEST + 1), b"")
        for number, line in enumerate(read, start=1):
            if number == 1 and line[: len(_BEGINS)] != _BEGINS[: len(line)]:
                raise UserError(f"{self.path} is no journal of a preparation; choose another --out")
            if not line.endswith(b"\n") and len(line) <= _LONGEST:
                break
            entry = self._parse(line, number)
            if number == 1:
                known = entry
            else:
                self._places[entry["id"]] = entry["digest"], offset
            offset += len(line)
        self._file.truncate(offset)
        other = next((key for key in _HOW if known.get(key) != header[key]), None)
        if other and self._places:
            raise UserError(
                f"{self.path} was begun with {_HOW[other]} {_short(known.get(other))}, not "
                f"{_short(header[other])}: one file is made in one way. Take another --out, or "
                f"delete {self.path} to begin anew"
            )
        if other:
            self._file.truncate(0)  # of a call that finished no case
            self._append(header)
        return header if other else known

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        """The header, which is line 1, or a finished case. Raises UserError for any other line."""
        try:
            if len(line) > _LONGEST:
                raise ValueError(f"it is longer than {_LONGEST:,} bytes")
            entry = parse_object(line.decode(), file=self.path, line=number)
            kept = ("kept",) if "kept" in entry else ("dropped", "detail")
            for name in ("started",) if number == 1 else ("id", "digest", *kept):
                if not isinstance(entry.get(name), str):
                    raise ValueError(f"it has no text '{name}'")
        except (ValueError, CaseError) as error:
            problem = error.problem.rstrip(".") if isinstance(error, CaseError) else error
            path = shlex.quote(str(self.path))
            rest = (
                f"`rm {path}` begins anew"
                if number == 1
                else f"`sed -i {number}d {path}` removes it, and its case is done again"
            )
            raise UserError(
                f"{self.path}, line {number}: this line is damaged ({problem}); {rest}"
            ) from error
        return entry

    def has(self, id: str, digest: str) -> bool:
        """Whether this very case is finished."""
        return self._places.get(id, ("", 0))[0] == digest

    def add(self, id: str, digest: str, result: str | Drop) -> None:
        """Writes down a finished case: its line if it was kept.

        Raises UserError when the disk refuses.
        """
        entry: dict[str, Any] = {"id": id, "digest": digest}
        if isinstance(result, Drop):
            entry |= {"dropped": result.reason, "detail": result.detail}
        else:
            entry["kept"] = result
        self._places[id] = digest, self._append(entry)

    def _append(self, entry: Mapping[str, Any]) -> int:
        line = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
        offset = self._file.seek(0, os.SEEK_END)
        try:
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if time.monotonic() - self._synced > _SYNC_EVERY:
                self.sync()
        except OSError as error:
            self._file.truncate(offset)  # the next line must not continue a half-written one
            raise UserError(
                f"cannot write {self.path}: {error.strerror}; what is finished is kept"
            ) from error
        return offset

    def sync(self) -> None:
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def result(self, id: str) -> str | Drop:
        """What became of a finished case."""
        self._reader.seek(self._places[id][1])
        entry = json.loads(self._reader.readline())
        return entry["kept"] if "kept" in entry else Drop(entry["dropped"], entry["detail"])

    def close(self) -> None:
        self.sync()
        self._shut()

    def _shut(self) -> None:
        self._reader.close()
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"'{text}'" if len(text) <= 120 else f"'{text[:120]} …'"
