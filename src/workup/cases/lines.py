"""A file of JSON lines as a source: a case is its line, read again when it is asked for."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from workup.cases.files import (
    ALL,
    Line,
    Split,
    existing,
    held_out,
    json_lines,
    line_at,
    parse_object,
    view_of,
)
from workup.cases.rows import RowErrors
from workup.core.case import Case
from workup.core.errors import UserError
from workup.core.lazy import Lazy

T = TypeVar("T")


class CaseLines:
    """The lines of `path` that were kept, in 8 bytes each; `held_out` says of an id on which side.

    Every line is an object. Raises UserError and CaseError where it is read.
    """

    def __init__(self, path: Path, held_out: Callable[[str], bool] = lambda id: True) -> None:
        self.path, self._held_out = path, held_out
        self._offsets = array("Q"), array("Q")

    @classmethod
    def named(cls, scheme: str, rest: str, split: Split, example: str) -> CaseLines:
        """Those of `SCHEME:FILE`, or of `SCHEME:FILE#all` with every case held out."""
        place, view = view_of(rest, scheme, [ALL])
        path = existing(place)
        if path.is_dir():
            like = f"{scheme}:{path}/{example}"
            raise UserError(f"{path} is a folder; {scheme} takes one file, as in '{like}'.")
        return cls(path, lambda id: view == ALL or held_out(split, id))

    def read(
        self, errors: RowErrors, make: Callable[[dict[str, Any], int], T], *, unique: bool = False
    ) -> Iterator[tuple[Line, T]]:
        """Each line with what `make` makes of its object and number; `unique` as `parse_json`."""

        def made(line: Line) -> T:
            row = parse_object(line.text, file=self.path, line=line.number, unique=unique)
            return make(row, line.number)

        return errors.read(json_lines(self.path), made)

    def keep(self, line: Line, id: str) -> None:
        """The line is the case `id`."""
        self._offsets[self._held_out(id)].append(line.offset)

    def __len__(self) -> int:
        return sum(map(len, self._offsets))

    def cases(self, make: Callable[[dict[str, Any], int], Case]) -> tuple[Lazy[Case], Lazy[Case]]:
        """The cases to train on and those to test on; `make` has a line's object and offset."""

        def side(kept: array[int]) -> Lazy[Case]:
            offsets = array("Q", sorted(kept))  # the order of the lines, whenever they were kept

            def case(i: int) -> Case:
                text = line_at(self.path, offsets[i])
                return make(parse_object(text, file=self.path, line=None), offsets[i])

            return Lazy(len(offsets), case)

        train, test = map(side, self._offsets)
        return train, test
