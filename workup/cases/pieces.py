"""The records of a file, found without holding them: objects in JSON documents of any size, rows of CSV, lines.

A lazy source keeps where a record is and reads it again when it is asked for.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import NamedTuple

from workup.cases.files import BOM, LINE_LIMIT, Line, decoded, line_at, opened, parse_json, scan
from workup.errors import CaseError

# JSON's lexis in bytes, which UTF-8 keeps apart from text. Possessive, and a string that never ends matches too: linear.
_STRING = rb'"(?:[^"\\]++|\\.)*+'
_TOKEN = re.compile(_STRING + rb'("?)|[{}\[\]]', re.DOTALL)
_MEMBER = re.compile(rb"\s*+(,?)\s*+(?:(" + _STRING + rb'")\s*+:\s*+)?', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,{}\[\]\"]++")
_SPACE = re.compile(rb"\s*+")


@dataclass(frozen=True, slots=True)
class Piece:
    """One record of a file: where its bytes are, the line it begins on (None when it is read again), and its text.

    A length of 0 reaches to the end of the line. `key` is its name where records are the members of a JSON object.
    """

    offset: int
    length: int
    line: int | None
    text: str
    key: str = ""


def piece_at(path: Path, offset: int, length: int) -> Piece:
    """The record at these bytes, as it was found. Raises CaseError if the file has gone or is another one now."""
    if not length:
        return Piece(offset, 0, None, line_at(path, offset))
    with opened(path) as file:
        file.seek(offset)
        raw = file.read(length)
    member = _member(raw, 0, path) if raw.startswith(b'"') else _Member(False, 0, "", 0)
    return Piece(offset, length, None, _text(raw[member.value :], path, None), member.key)


def pieces(path: Path, *, under: str = "") -> Iterator[Piece]:
    """The JSON objects in a file, in order, one in memory at a time: one per line, or the members of one document.

    A document is an array of objects, an object whose values are objects, or, with `under`, an object that holds such an
    array by that name; which of them is seen from the file itself, not from its name. Raises CaseError.
    """
    with opened(path) as file:
        if not path.stat().st_size:
            raise CaseError("is empty.", file=path)
        with mmap(file.fileno(), 0, access=ACCESS_READ) as text:
            document = _Document(text, path)
            if document.whole(under):
                yield from document.members(under)
                return
    for line in scan(path):
        yield Piece(line.offset, 0, line.number, line.text)


class _Member(NamedTuple):
    """What stands before a value: whether a comma does, where the key or else the value begins, the key, the value."""

    comma: bool
    begin: int
    key: str
    value: int


def _member(text: bytes | mmap, at: int, path: Path) -> _Member:
    found = _MEMBER.match(text, at)
    if found is None or not found[2]:
        value = found.end() if found else at
        return _Member(bool(found and found[1]), value, "", value)
    return _Member(bool(found[1]), found.start(2), str(parse_json(found[2].decode("utf-8", "replace"), file=path)), found.end())


class _Document:
    """One JSON value of any size, walked bracket by bracket; what is inside a member is left to the parser."""

    def __init__(self, text: mmap, path: Path) -> None:
        self.text, self.path = text, path
        self.start = self._skip(3 if text[:3] == BOM else 0)
        self._counted, self._line = 0, 1

    def whole(self, under: str) -> bool:
        """Whether the file is one document of members rather than rows."""
        if self.text[self.start : self.start + 1] != b"{":
            return self.text[self.start : self.start + 1] == b"["
        end = self._end(self.start)
        if end is None or self._skip(end) < len(self.text):
            return end is None and self.path.suffix == ".json"
        value = _member(self.text, self.start + 1, self.path).value
        return self.text[value : value + 1] == b"{" or bool(under and self._find(under))

    def members(self, under: str) -> Iterator[Piece]:
        """The objects of the outermost array or object, or of the array named `under`. Raises CaseError."""
        at = (under and self.text[self.start : self.start + 1] == b"{" and self._find(under)) or self.start
        keyed = self.text[at : at + 1] == b"{"
        at += 1
        for number in count():
            comma, begin, key, value = _member(self.text, at, self.path)
            if self.text[value : value + 1] == (b"}" if keyed else b"]") and not comma and not key:
                break
            if self.text[value : value + 1] != b"{" or comma != bool(number) or bool(key) != keyed:
                raise self._error(value, "here a JSON object {…} should begin")
            end = self._end(value)
            if end is None:
                raise self._error(value, "the JSON object that begins here does not end")
            if end - value > LINE_LIMIT:
                raise self._error(value, f"the JSON object that begins here is longer than {LINE_LIMIT:,} bytes")
            yield Piece(begin, end - begin, self._line_of(value), _text(self.text[value:end], self.path, None), key)
            at = end
        if not under and (rest := self._skip(value + 1)) < len(self.text):
            raise self._error(rest, "something follows the end")

    def _find(self, name: str) -> int | None:
        """Where the array called `name` begins in the outermost object."""
        at: int | None = self.start + 1
        while at is not None:
            member = _member(self.text, at, self.path)
            if member.key == name and self.text[member.value : member.value + 1] == b"[":
                return member.value
            at = self._end(member.value) if member.key else None
        return None

    def _end(self, at: int) -> int | None:
        """Behind the value that begins at `at`; None if it does not end."""
        if scalar := _SCALAR.match(self.text, at):
            return scalar.end()
        depth = 0
        for token in _TOKEN.finditer(self.text, at):
            first = token[0][:1]
            if first == b'"' and not token[1]:
                return None
            depth += (first in b"{[") - (first in b"}]")
            if depth <= 0:
                return token.end()
        return None

    def _skip(self, at: int) -> int:
        found = _SPACE.match(self.text, at)
        return found.end() if found else at

    def _line_of(self, at: int) -> int:
        self._line += self.text[self._counted : at].count(b"\n")
        self._counted = at
        return self._line

    def _error(self, at: int, problem: str) -> CaseError:
        return CaseError(f"not JSON: {problem}.", file=self.path, line=self._line_of(at))


def csv_pieces(path: Path) -> Iterator[Piece]:
    """The records of a CSV file, blank ones left out; a quoted cell may hold line breaks. Raises CaseError."""
    taken: list[Line] = []

    def lines() -> Iterator[str]:
        for line in _raw_lines(path):
            taken.append(line)
            yield line.text

    reader = csv.reader(lines(), strict=True)
    while True:
        taken.clear()
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise CaseError(f"not CSV: {error}.", file=path, line=taken[0].number) from error
        if cells is None:
            return
        if any(cells):
            text = "".join(line.text for line in taken)
            yield Piece(taken[0].offset, len(text.encode()), taken[0].number, text)


def csv_cells(text: str) -> list[str]:
    """The cells of one record that `csv_pieces` found."""
    return next(csv.reader(text.splitlines(keepends=True), strict=True))


def _text(raw: bytes, path: Path, number: int | None) -> str:
    """The bytes as text, blanks at the ends included."""
    decoded(raw, path, number)  # complains
    return raw.decode("utf-8")


def _raw_lines(path: Path) -> Iterator[Line]:
    """Every line with its end."""
    with opened(path) as file:
        offset = 0
        for number in count(1):
            raw = file.readline(LINE_LIMIT + 1)
            if not raw:
                return
            start = len(BOM) if number == 1 and raw.startswith(BOM) else 0
            yield Line(offset + start, number, _text(raw[start:], path, number))
            offset += len(raw)
