"""The records of a file, found without holding them all in memory.

Records are objects in JSON documents of any size, rows of CSV, or lines. A lazy source keeps where
a record is and reads it again when it is asked for.
"""

from __future__ import annotations

import csv
import io
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import NamedTuple

from workup.cases.files import (
    BOM,
    LINE_LIMIT,
    Line,
    Raw,
    bytes_at,
    line_at,
    lines_of,
    parse_json,
    raw_lines,
    reading,
    text_of,
)
from workup.core.errors import CaseError

# JSON's tokens in bytes; in UTF-8 no other character contains these bytes. The pattern is linear:
# it is possessive, and an unterminated string matches too.
_STRING = rb'"(?:[^"\\]++|\\.)*+'
_TOKEN = re.compile(_STRING + rb'("?)|[{}\[\]]', re.DOTALL)
_MEMBER = re.compile(rb"\s*+(,?)\s*+(?:(" + _STRING + rb'")\s*+:\s*+)?', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,{}\[\]\"]++")
_SPACE = re.compile(rb"\s*+")
_AGAIN = 10_000  # lines of CSV that may be read a second time, besides as many as were read


@dataclass(frozen=True, slots=True)
class Piece:
    """One record of a file: where its bytes are, its first line, and its text.

    The line is None when the record is read again. A length of 0 reaches to the end of the line.
    `key` is its name if records are the members of a JSON object.
    """

    offset: int
    length: int
    line: int | None
    text: str
    key: str = ""


def piece_at(path: Path, offset: int, length: int) -> Piece:
    """The record at these bytes, as it was found.

    Raises CaseError if the file has gone or is another one now.
    """
    if not length:
        return Piece(offset, 0, None, line_at(path, offset))
    raw = bytes_at(path, offset, length)
    member = _member(raw, 0) if raw.startswith(b'"') else _Member(False, 0, b"", 0)
    key = _name(member.key, path, None) if member.key else ""
    return Piece(offset, length, None, text_of(raw[member.value :], path, None), key)


def pieces(path: Path, *, under: str = "") -> Iterator[Piece | CaseError]:
    """The JSON objects in a file, in order, one in memory at a time.

    They are one per line, or the members of one document. A document is an array of objects, an
    object whose values are objects, or, with `under`, an object that holds such an array by that
    name. The file's content decides which, not its name. A member that is no object, and a line
    that cannot be read, comes as its error, and the next one follows. Raises CaseError for a file
    that is empty or cannot be read.
    """
    with reading(path) as file:
        if not path.stat().st_size:
            raise CaseError("is empty.", file=path)
        with mmap(file.fileno(), 0, access=ACCESS_READ) as text:
            document = _Document(text, path)
            if document.whole(under):
                yield from document.members(under)
                return
    for line in lines_of(path):
        yield Piece(line.offset, 0, line.number, line.text) if isinstance(line, Line) else line


class _Member(NamedTuple):
    """What stands before a value.

    `comma` says whether a comma stands there. `begin` is where the key begins, or without a key the
    value. `key` is as written, with its quotation marks, or empty. `value` is where the value
    begins.
    """

    comma: bool
    begin: int
    key: bytes
    value: int


def _member(text: bytes | mmap, at: int) -> _Member:
    found = _MEMBER.match(text, at)
    if found is None or not found[2]:
        value = found.end() if found else at
        return _Member(bool(found and found[1]), value, b"", value)
    return _Member(bool(found[1]), found.start(2), found[2], found.end())


def _name(key: bytes, path: Path, line: int | None) -> str:
    """A member's name. Raises CaseError."""
    return str(parse_json(text_of(key, path, line), file=path, line=line))


class _Document:
    """One JSON value of any size, read bracket by bracket; the parser reads what is in a member."""

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
        if under and self._find(under):
            return True
        value = _member(self.text, self.start + 1).value
        # one line whose first member alone is an object is a file of one row
        row = self.path.suffix == ".jsonl" and self.text.find(b"\n", self.start, end) < 0
        return self.text[value : value + 1] == b"{" and not (row and self._mixed())

    def members(self, under: str) -> Iterator[Piece | CaseError]:
        """The objects of the outermost array or object, or of the array named `under`.

        A member that is no object, or has no comma or no name where one belongs, comes as its
        error. So does one that does not end, and nothing after it can be told apart.
        """
        at = (
            under and self.text[self.start : self.start + 1] == b"{" and self._find(under)
        ) or self.start
        keyed = self.text[at : at + 1] == b"{"
        at += 1
        for number in count():
            member = _member(self.text, at)
            last = self.text[member.value : member.value + 1] == (b"}" if keyed else b"]")
            if last and not member.comma and not member.key:
                break
            end = self._end(member.value)
            if end is None or last:
                what = (
                    "here a JSON object {…} should begin"
                    if last
                    else "the JSON object that begins here does not end"
                )
                yield self._error(member.value, what)
                return
            yield self._piece(
                member, end, sound=member.comma == bool(number) and bool(member.key) == keyed
            )
            at = end
        if not under and (rest := self._skip(member.value + 1)) < len(self.text):
            yield self._error(rest, "something follows the end")

    def _piece(self, member: _Member, end: int, *, sound: bool) -> Piece | CaseError:
        """The member that ends at `end`; its error if it is no object, too long, or not `sound`."""
        begin, value = member.begin, member.value
        line = self._line_of(value)
        if self.text[value : value + 1] != b"{" or not sound:
            return self._error(value, "here a JSON object {…} should begin")
        if end - value > LINE_LIMIT:
            return self._error(
                value, f"the JSON object that begins here is longer than {LINE_LIMIT:,} bytes"
            )
        try:
            key = _name(member.key, self.path, line) if member.key else ""
            return Piece(
                begin, end - begin, line, text_of(self.text[value:end], self.path, line), key
            )
        except CaseError as error:
            return error

    def _mixed(self) -> bool:
        """Whether a member of the outermost object is no object."""
        at: int | None = self.start + 1
        while at is not None and (member := _member(self.text, at)).key:
            if self.text[member.value : member.value + 1] != b"{":
                return True
            at = self._end(member.value)
        return False

    def _find(self, name: str) -> int | None:
        """Where the array called `name` begins in the outermost object."""
        at: int | None = self.start + 1
        while at is not None:
            member = _member(self.text, at)
            if (
                member.key == b'"%s"' % name.encode()
                and self.text[member.value : member.value + 1] == b"["
            ):
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


class CsvRecord(NamedTuple):
    """One record of a CSV file: its cells, and the numbers of its lines."""

    cells: list[str]
    lines: list[Raw]


class _Lines:
    """Lines for the CSV reader. Those of a record that it gives up may be read again."""

    def __init__(self, lines: Iterator[Raw], path: Path) -> None:
        self._lines, self._again, self.path = lines, deque[Raw](), path
        self._spare = _AGAIN  # lines that may be read again, so that reading stays linear
        self.taken: list[Raw] = []  # lines of the present record
        self.broken: CaseError | None = None  # the error of its first line that has one
        self._length = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        if self._again:
            line = self._again.popleft()
        else:
            line = next(self._lines)
            self._spare += 1
        self.taken.append(line)
        self.broken = self.broken or line.error
        self._length += line.length
        if self._length > LINE_LIMIT and len(self.taken) > 1:
            problem = f"the record that begins here is longer than {LINE_LIMIT:,} bytes."
            self.broken = self.broken or CaseError(
                problem, file=self.path, line=self.taken[0].number
            )
            raise csv.Error(problem)
        return line.text

    def begin(self) -> None:
        """A new record begins."""
        self.taken, self.broken, self._length = [], None, 0

    def back(self) -> None:
        """Returns to the second line of a record that was given up.

        An unpaired quotation mark had run into other records.
        """
        again = self.taken[1:]
        if len(again) <= self._spare:
            self._spare -= len(again)
            self._again.extendleft(reversed(again))


def csv_records(lines: Iterator[Raw], path: Path) -> Iterator[CsvRecord | CaseError]:
    """The records of a CSV file without blank ones; one that is not CSV or not UTF-8 is its error.

    A quoted cell may hold line breaks. After a record that is no CSV, reading goes on with the line
    after its first one. What `lines` raises ends it.
    """
    source = _Lines(lines, path)
    reader = csv.reader(source, strict=True)
    while True:
        source.begin()
        problem: csv.Error | None = None
        try:
            cells = next(reader, None)
            if cells is None:
                return
        except csv.Error as error:
            problem = error
            source.back()
        if source.broken:
            yield source.broken
        elif problem:
            yield CaseError(f"not CSV: {problem}.", file=path, line=source.taken[0].number)
        elif cells and any(cells):
            yield CsvRecord(cells, source.taken)


def csv_pieces(path: Path) -> Iterator[Piece | CaseError]:
    """The records of a CSV file, as `csv_records` finds them.

    Raises CaseError for a file that cannot be read.
    """
    with reading(path) as file:
        for record in csv_records(raw_lines(file.readline, path), path):
            if isinstance(record, CaseError):
                yield record
                continue
            text = "".join(line.text for line in record.lines)
            first = record.lines[0]
            yield Piece(first.offset, len(text.encode()), first.number, text)


def csv_cells(text: str) -> list[str]:
    """The cells of one record that `csv_pieces` found."""
    return next(csv.reader(io.StringIO(text, newline=""), strict=True))
