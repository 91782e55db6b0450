"""The passages themselves: one JSON object per line, opened by memory map, with line offsets.

They are written as a stream. After a kill, the next process can continue it.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, overload

import numpy as np

from workup.core.case import Document, Passage
from workup.core.disk import whole_file
from workup.core.errors import UserError
from workup.retrieval import words
from workup.retrieval.corpus import Fields, documents
from workup.retrieval.names import COUNTED, PassageIds
from workup.retrieval.names import JOURNAL as NAMES

LINES, PLACES, JOURNAL = "passages.jsonl", "passages.places", "passages.journal.json"
JOURNALS = JOURNAL, NAMES
"""What an interrupted build continues from; a finished index has neither."""

PLACE = np.dtype("<u8")  # where a line ends, in bytes
EVERY = 20_000
"""Passages between two points from which an interrupted build can go on."""


class PassageStore(Sequence[Passage]):
    """The passages of a folder by row number.

    Many processes may open it at once; they share the memory it takes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ends = (
            np.fromfile(folder / PLACES, PLACE)
            if not _size(folder / PLACES)
            else np.memmap(folder / PLACES, PLACE, "r")
        )
        with (folder / LINES).open("rb") as file:
            self._lines = (
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                if _size(folder / LINES)
                else b""
            )

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> Passage: ...

    @overload
    def __getitem__(self, index: slice) -> list[Passage]: ...

    def __getitem__(self, index: int | slice) -> Passage | list[Passage]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(f"passage {index} of {len(self)}")
        start = int(self._ends[index - 1]) if index else 0
        return _passage(self._lines[start : int(self._ends[index])], self.folder / LINES)


def _size(path: Path) -> int:
    return path.stat().st_size


def _passage(line: bytes, file: Path) -> Passage:
    try:
        return Passage(**json.loads(line))
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{file}: damaged; `workup index check {file.parent}` tells more"
        ) from error


def stream(folder: Path, start: int = 0) -> Iterator[Passage]:
    """The passages from row `start` on, read as a file and not by memory map.

    So a build's memory stays small. From the last row on there are none.
    """
    if start >= size(folder):
        return
    with (folder / PLACES).open("rb") as places, (folder / LINES).open("rb") as lines:
        if start:
            places.seek((start - 1) * PLACE.itemsize)
            lines.seek(int.from_bytes(places.read(PLACE.itemsize), "little"))
        for line in lines:
            yield _passage(line, folder / LINES)


def size(folder: Path) -> int:
    """How many passages a folder's store has."""
    return _size(folder / PLACES) // PLACE.itemsize


class _Writer:
    """Appends passages, and now and then writes how far it is.

    `state` is what the reader of the corpora needs to go on.
    """

    def __init__(self, folder: Path) -> None:
        self._journal = folder / JOURNAL
        noted = ("file", "document", "rows", "bytes", "empty", *COUNTED)
        self.state: dict[str, int] = dict.fromkeys(noted, 0)
        if self._journal.exists():
            self.state = json.loads(self._journal.read_text())
        self._names = PassageIds(folder, self.state)
        self._lines = _at(folder / LINES, self.state["bytes"])
        self._places = _at(folder / PLACES, self.state["rows"] * PLACE.itemsize)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._places.close()
        self._names.close()

    def add(self, document: Document, limit: int) -> None:
        """Writes the passages that `cut` makes of a document."""
        for passage in cut(document, limit, self._names):
            self._write(passage)
        self.state["empty"] += not (document.title.strip() or document.text.strip())

    def _write(self, passage: Passage) -> None:
        fields = {"id": passage.id, "title": passage.title, "text": passage.text}
        self.state["bytes"] += self._lines.write(
            json.dumps(fields, ensure_ascii=False).encode() + b"\n"
        )
        self._places.write(self.state["bytes"].to_bytes(PLACE.itemsize, "little"))
        self.state["rows"] += 1

    def note(self) -> None:
        """Writes the data to the disk, and then the journal that says how far it is."""
        for file in (self._lines, self._places):
            file.flush()
            os.fsync(file.fileno())
        self._names.save()
        write_whole(self._journal, self.state)


def _at(path: Path, place: int) -> Any:
    """The file cut off at `place`; what an interrupted build wrote after it is written again."""
    path.touch()
    file = path.open("r+b", buffering=2**20)
    file.truncate(place)
    file.seek(place)
    return file


def noted(folder: Path) -> int:
    """The number of passages from which an interrupted build continues."""
    path = folder / JOURNAL
    return int(json.loads(path.read_text())["rows"]) if path.exists() else 0


def write_whole(path: Path, value: object) -> None:
    """JSON into a file that is there whole or not at all."""
    with whole_file(path) as draft:
        draft.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")


def write(
    folder: Path,
    corpus: Sequence[Path],
    fields: Fields,
    limit: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, int]:
    """Cuts the documents of `corpus` into passages of at most `limit` tokens; writes missing ones.

    `progress` gets, now and then, the bytes read and their total. Returns how many `passages`
    were written, how many documents were left out because they were `empty` (neither title nor
    text) or `repeated`, and how many were `numbered` (see `names`). Raises UserError for a corpus
    that cannot be read.
    """
    sizes = [_size(file) for file in corpus]
    with _Writer(folder) as writer:
        for number in range(writer.state["file"], len(corpus)):
            done, since = sum(sizes[:number]), writer.state["rows"]
            for position, (document, place) in enumerate(documents(corpus[number], fields)):
                if position < writer.state["document"]:
                    continue
                writer.add(document, limit)
                writer.state["document"] = position + 1
                if writer.state["rows"] - since >= EVERY:
                    writer.note()
                    progress(done + place, sum(sizes))
                    since = writer.state["rows"]
            writer.state |= {"file": number + 1, "document": 0}
            writer.note()
            progress(done + sizes[number], sum(sizes))
        told_of = ("empty", "repeated", "numbered")
        return {"passages": writer.state["rows"], **{name: writer.state[name] for name in told_of}}


def cut(document: Document, limit: int, names: PassageIds) -> Iterator[Passage]:
    """A document's passages under the ids that `names` gives; none of an empty or repeated one."""
    pieces = [piece.strip() for piece in words.passages(document.text, limit) if piece.strip()]
    if not pieces and document.title.strip():
        pieces = [""]
    if pieces:
        ids = names.give(document.id, document.title, pieces)
        yield from (
            Passage(id, piece, document.title) for id, piece in zip(ids, pieces, strict=False)
        )
