"""The one name of an entity's synonyms, from a file of them (Med-R³ MR-9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel

from workup.cases.files import checked, existing, parse_object, scan
from workup.core.text import normalise

Normaliser = Callable[[str], str]
"""An entity's name → the one name of all its synonyms; a name that it gives is its own."""


class _Entity(BaseModel):
    """One JSON line; other fields are ignored."""

    name: str
    synonyms: list[str] = []


def normaliser(place: str) -> Normaliser:
    """`workup.core.text.normalise`, and for the synonyms of the file `place` the name there, so
    written.

    The file has JSON lines such as {"name": "myocardial infarction", "synonyms": ["heart attack"]}.
    A synonym of several names, or one that is itself a name of the file, stays apart. "" is no
    file. Raises UserError if there is no such file, CaseError (file, line, field) for a line that
    is no entity.
    """
    if not place:
        return normalise
    path = existing(place)
    known = _read(path, path.stat().st_mtime_ns)

    def name_of(name: str) -> str:
        form = normalise(name)
        return known.get(form, form)

    return name_of


@lru_cache(maxsize=4)
def _read(path: Path, changed: int) -> Mapping[str, str]:
    """Normal form of a synonym → normal form of its name, as the file was when it `changed`."""
    names: set[str] = set()
    found: dict[str, set[str]] = {}
    for line in scan(path):
        row = parse_object(line.text, file=path, line=line.number)
        entity = checked(_Entity, row, file=path, line=line.number)
        name = normalise(entity.name)
        names.add(name)
        for synonym in entity.synonyms:
            found.setdefault(normalise(synonym), set()).add(name)
    return {
        synonym: next(iter(of))
        for synonym, of in found.items()
        if synonym and len(of) == 1 and synonym not in names and all(of)
    }
