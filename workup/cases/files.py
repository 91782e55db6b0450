"""Large files read lazily: byte offsets instead of rows, one line at a time, with limits.

Every reader of a line-based file (DDXPlus, mediQ, our own) goes through here, so that byte order marks, Windows line ends,
bad UTF-8 and absurdly long lines mean the same thing everywhere.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, overload

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from workup.case import Case
from workup.errors import CaseError, UserError, unknown

M = TypeVar("M", bound=BaseModel)

ALL = "all"  # the view of a source that holds every case out
LINE_LIMIT = 1_000_000  # bytes in one line; a case is a few kilobytes
DOCUMENT_LIMIT = 64_000_000  # bytes in one JSON document that is read whole
_JSON = {list: "list", str: "text", int: "number", float: "number", bool: "truth value", type(None): "null"}
BOM = b"\xef\xbb\xbf"
_HELD_OUT_IN = 5  # one group in five is held out


@dataclass(frozen=True, slots=True)
class Line:
    """One non-blank line: where it starts (byte offset), its 1-based number, and its text without the line end."""

    offset: int
    number: int
    text: str


def existing(place: str) -> Path:
    """The path that the user typed, `~` expanded. Raises UserError, with the nearest neighbour, if it does not exist."""
    if not place:
        raise UserError("a path is missing after the colon, as in 'ddxplus:FOLDER'.")
    path = Path(place).expanduser()
    if path.exists():
        return path
    folder = path.parent
    near = get_close_matches(path.name, [file.name for file in folder.iterdir()], n=1) if folder.is_dir() else []
    hint = f" Did you mean '{folder / near[0]}'?" if near else ("" if folder.is_dir() else f" There is no folder {folder}.")
    raise UserError(f"no file or folder '{place}'.{hint}")


def scan(path: Path) -> Iterator[Line]:
    """Every non-blank line of `path`, in order, holding one line at a time. Raises CaseError."""
    for line in lines_of(path):
        if isinstance(line, CaseError):
            raise line
        yield line


def lines_of(path: Path) -> Iterator[Line | CaseError]:
    """As `scan`, but a line that cannot be read comes as its error, and the next one follows."""
    with opened(path) as file:
        offset, number = 0, 0
        while raw := file.readline(LINE_LIMIT + 1):
            number += 1
            try:
                if text := decoded(raw, path, number):
                    yield Line(offset, number, text)
            except CaseError as error:
                yield error
            while len(raw) > LINE_LIMIT and not raw.endswith(b"\n"):  # to the end of a line that is too long
                offset += len(raw)
                raw = file.readline(LINE_LIMIT + 1)
            offset += len(raw)


def line_at(path: Path, offset: int) -> str:
    """The text of the line that starts at byte `offset`, as `scan` gave it. Raises CaseError if the file has gone."""
    with opened(path) as file:
        file.seek(offset)
        return decoded(file.readline(LINE_LIMIT + 1), path, None)


def opened(path: Path) -> BinaryIO:
    """The file's bytes. Raises CaseError if they cannot be read."""
    try:
        return path.open("rb")
    except OSError as error:
        raise CaseError(f"cannot be read ({error.strerror}).", file=path) from error


def decoded(raw: bytes, path: Path, number: int | None) -> str:
    """One line or record as text, stripped. Raises CaseError."""
    if len(raw) > LINE_LIMIT:
        raise CaseError(f"this line is longer than {LINE_LIMIT:,} bytes.", file=path, line=number)
    if number == 1 and raw.startswith(b"PK\x03\x04"):
        raise CaseError("this is a zip archive; unpack it and give the file inside.", file=path)
    try:
        return raw.removeprefix(BOM).decode("utf-8").strip("\r\n\t ")
    except UnicodeDecodeError as error:
        raise CaseError(f"byte {error.start + 1} of this line is not UTF-8.", file=path, line=number) from error


def parse_json(text: str, *, file: Path, line: int | None = None) -> Any:
    """The JSON value in `text`. Raises CaseError, also where it is nested too deeply for the parser."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = line if line is not None else error.lineno
        raise CaseError(f"not JSON: {error.msg} at column {error.colno}.", file=file, line=where) from error
    except (RecursionError, ValueError) as error:
        raise CaseError(f"not JSON that can be read here: {error}.", file=file, line=line) from error


def parse_object(text: str, *, file: Path, line: int | None) -> dict[str, Any]:
    """The JSON object in one line. Raises CaseError for anything else."""
    value = parse_json(text, file=file, line=line)
    if not isinstance(value, dict):
        raise CaseError(f"each line is one JSON object {{…}}, not a {_JSON[type(value)]}.", file=file, line=line)
    return value


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file that is read whole. Raises CaseError."""
    with opened(path) as file:
        raw = file.read(DOCUMENT_LIMIT + 1)
    if len(raw) > DOCUMENT_LIMIT:
        raise CaseError(f"this file is larger than {DOCUMENT_LIMIT:,} bytes.", file=path)
    try:
        value = parse_json(raw.decode("utf-8-sig"), file=path)
    except UnicodeDecodeError as error:
        raise CaseError(f"byte {error.start + 1} is not UTF-8.", file=path) from error
    if not isinstance(value, dict):
        raise CaseError(f"the file is one JSON object {{…}}, not a {_JSON[type(value)]}.", file=path)
    return value


def checked(model: type[M], value: object, *, file: Path, line: int | None = None, within: str = "") -> M:
    """`value` as a pydantic model. Raises CaseError for the first field that does not fit."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise invalid(error, file=file, line=line, within=within)[0] from error


def invalid(error: ValidationError, *, file: Path, line: int | None = None, within: str = "") -> list[CaseError]:
    """One CaseError per field that does not fit."""
    return [_invalid(detail, file, line, within) for detail in error.errors(include_url=False)]


def _invalid(detail: ErrorDetails, file: Path, line: int | None, within: str) -> CaseError:
    field = ".".join(filter(None, [within, *map(str, detail["loc"])]))
    got = "" if detail["type"] == "missing" else f" (got {str(detail['input'])[:60]!r})"
    message = detail["msg"].removeprefix("Value error, ")
    return CaseError(f"{message[:1].lower()}{message[1:]}{got}.", file=file, line=line, field=field or None)


def view_of(rest: str, scheme: str, views: Sequence[str]) -> tuple[str, str]:
    """Splits `PLACE#VIEW` of a source's spec; the view is "" where none is asked for. Raises UserError for others."""
    place, _, view = rest.partition("#")
    if view and view not in views:
        raise unknown(f"view of {scheme}", view, views, more=f"as in '{scheme}:{place}#{views[0]}'")
    return place, view


def held_out(seed: int, key: str) -> bool:
    """Whether the group of cases named `key` is in the test split (one in five) under `seed`.

    A hash, not a draw: it depends on nothing else in the file, so a case keeps its side when rows are added or moved.
    """
    digest = blake2b(f"{seed}\n{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % _HELD_OUT_IN == 0


class Lazy(Sequence[Case]):
    """Cases made when they are indexed, the last few kept.

    `make(index)` must be a function of its index alone. `labels`, where given, has one small integer per case (its
    diagnosis), so that classes can be counted without making a single case.
    """

    def __init__(self, size: int, make: Callable[[int], Case], labels: array[int] | None = None, keep: int = 256) -> None:
        self._size, self._make, self.labels = size, lru_cache(keep)(make), labels

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> Case: ...

    @overload
    def __getitem__(self, index: slice) -> list[Case]: ...

    def __getitem__(self, index: int | slice) -> Case | list[Case]:
        if isinstance(index, slice):
            return [self._make(i) for i in range(*index.indices(self._size))]
        if not -self._size <= index < self._size:
            raise IndexError(f"case {index} of {self._size}")
        return self._make(index % self._size)
