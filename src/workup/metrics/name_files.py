"""Files that say which ICD-10 codes disease names have: curators' tables, and lists of synonyms."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pydantic import AliasChoices, BaseModel, Field

from workup.cases.files import Line, cells, checked, existing, parse_object, reading, scan
from workup.core.errors import CaseError, UserError
from workup.metrics.icd_distance import IcdTree
from workup.metrics.icd_names import IcdNames, key

_ICD = re.compile(r"ICD(?:-?10|$)", re.IGNORECASE)  # not ICD9CM, ICDO, ICD11
_BETWEEN = re.compile(r"[\s,;|]+")  # "J17, J18"; a code may have a prefix, "ICD10CM:J45"


@dataclass(frozen=True, slots=True)
class CodedNames:
    """One row: the names of one disease, its codes in the release, and the cell to group by."""

    names: tuple[str, ...]
    codes: tuple[str, ...]
    group: str = ""


class _Synonyms(BaseModel):
    """A JSON line of the Disease Ontology's synonyms; other fields are ignored."""

    name: str
    synonyms: list[str] = []
    codes: list[str] = Field([], validation_alias=AliasChoices("codes", "icd10", "icd10cm"))


def read(
    path: Path, tree: IcdTree, columns: Sequence[str] = (), by: str = ""
) -> Iterator[CodedNames]:
    """The rows of a table with tabs or commas, or of JSON lines with names and codes.

    A JSON line is `{"name", "synonyms": […], "codes": […]}`. `columns` are the headings of names
    and codes in a table; without them its first two columns are read. `by` is the heading of the
    column to group by. The first row is one of headings where either is given. A cell may hold
    several codes. A code that the release lacks becomes the narrowest group around it that the
    release has, or is left out. Lines that begin with "#" are comments. Raises CaseError (file,
    line, field), UserError.
    """
    objects = path.suffix in {".jsonl", ".json"}
    if objects and (columns or by):
        raise UserError(
            f"{path}: JSON lines have no columns, but name, synonyms and codes; leave out the "
            "headings, or give a table"
        )
    lines = (line for line in scan(path, whole=not objects) if not line.text.startswith("#"))
    if objects:
        for line in lines:
            one = checked(
                _Synonyms,
                parse_object(line.text, file=path, line=line.number),
                file=path,
                line=line.number,
            )
            yield CodedNames((one.name, *one.synonyms), _codes(" ".join(one.codes), tree))
        return
    for number, row, places in _rows(path, lines, columns, by):
        if len(row) <= max(places):
            raise CaseError(
                f"it has {len(row)} columns, {max(places) + 1} are needed", file=path, line=number
            )
        name, codes, *group = (row[place].strip() for place in places)
        yield CodedNames((name,), _codes(codes, tree), *group)


def _rows(
    path: Path, lines: Iterator[Line], columns: Sequence[str], by: str
) -> Iterator[tuple[int, list[str], tuple[int, ...]]]:
    """Line number, cells, and which of them hold name, code and group. A row is one line."""
    first = list(islice(lines, 1))
    if not first:
        raise UserError(f"{path}: is empty; a line holds a name and its ICD-10 code")
    tabs = "\t" in first[0].text
    heading = [cell.strip() for cell in cells(first[0], path, tabs=tabs)]
    places = _places(path, columns, by, heading)
    if not (columns or by):
        yield first[0].number, heading, places
    for line in lines:
        yield line.number, cells(line, path, tabs=tabs), places


def _places(path: Path, columns: Sequence[str], by: str, heading: Sequence[str]) -> tuple[int, ...]:
    """Which cells hold the name, the code and, with `by`, the group."""
    if columns and (len(columns) != 2 or not set(columns) <= set(heading)):
        raise UserError(f"{path}: columns must name two of {', '.join(heading)}")
    if by and by not in heading:
        raise UserError(f"{path}: by={by}: it must name one of {', '.join(heading)}")
    places = tuple(heading.index(column) for column in columns) or (0, 1)
    return (*places, heading.index(by)) if by else places


def _codes(cell: str, tree: IcdTree) -> tuple[str, ...]:
    """The codes in a cell as the release has them, or the narrowest groups around them.

    Codes of other systems are left out.
    """
    parted = (code.rpartition(":") for code in _BETWEEN.split(cell))
    found = (tree.nearest(code) for prefix, _, code in parted if not prefix or _ICD.search(prefix))
    return tuple(dict.fromkeys(filter(None, found)))


def look(spec: str) -> None:
    """Raises UserError and CaseError where `synonyms` could not open its file.

    To load a release and to index its names takes seconds; a mistyped file must not wait for it.
    """
    if spec:
        with reading(existing(spec.partition("#")[0])):
            pass


def synonyms(spec: str, tree: IcdTree, names: IcdNames) -> dict[str, str]:
    """Name → code from `FILE` or `FILE#NAMES,CODES` (headings of a table); {} for "".

    A row without a code has that of the first of its names that the release knows. A name to which
    rows give codes of several categories is ambiguous and left out. Raises UserError, and CaseError
    for malformed files.
    """
    if not spec:
        return {}
    place, _, columns = spec.partition("#")
    held: dict[str, dict[str, str]] = defaultdict(dict)  # key of a name → category → code
    said: dict[str, str] = {}
    for row in read(
        existing(place), tree, [name.strip() for name in columns.split(",") if name.strip()]
    ):
        code = next(iter(row.codes), "") or next(filter(None, map(names.exact, row.names)), "")
        for name in row.names if code else ():
            held[key(name)].setdefault(code[:3], code)
            said.setdefault(name, key(name))
    if not said:
        raise UserError(f"{place}: no row has a name and a code of the release")
    return {
        name: next(iter(held[form].values())) for name, form in said.items() if len(held[form]) == 1
    }
