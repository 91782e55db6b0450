"""Where cases come from.

A source is one module (or folder) of this package or of `datasets` within that defines `open(rest,
split, errors)` and returns a `Source`; every row that is no case is reported to `errors`. The
first line of its docstring says what it reads, `EXAMPLE` how it is named. `FILES` and `FIELDS` say
by what its files are known where somebody forgets to name the source (`workup.cases.recognised`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import NamedTuple

from workup.cases import datasets
from workup.cases.files import Split, numbered
from workup.cases.recognised import kind_of
from workup.cases.rows import RowErrors
from workup.core.case import Source, SourceLibrary
from workup.core.disk import there
from workup.core.errors import CaseError, UserError, nearest, unknown


class Scheme(NamedTuple):
    """One kind of source: its name before the colon, what it reads, and an example."""

    name: str
    summary: str
    example: str


def open_source(spec: str, *, split: Split = 0, strict: bool = False) -> Source:
    """Opens `SCHEME:REST`, as in `clinic:s`, `ddxplus:FOLDER`, `mediq:FILE`, `jsonl:FILE`.

    `split` is the number of the split: it decides which fifth of a file is held out, and which
    patients the built-in clinic draws. Or it is a fold of a file, as in "2/5". The same spec and
    split give the same cases in the same order. A row of a file that is no case is left out, and
    the notes say how many and why; with `strict` the first one is an error. Raises UserError for a
    scheme or a path that does not exist, and for a fold of cases that are divided already;
    CaseError (file, line, field) for a file that cannot be read or has no case.
    """
    return _opened(spec, split, RowErrors(strict=strict))


def problems(
    spec: str,
    each: Callable[[CaseError], None],
    remarked: Callable[[CaseError], None] = lambda remark: None,
) -> int:
    """Calls `each` with every problem of every row of a source, in order; returns their number.

    `remarked` is called with what is odd about rows that are cases, such as a presentation that
    names the diagnosis. Raises UserError and CaseError as `open_source` does, but accepts a source
    of bad rows alone.
    """
    count = 0

    def tell(error: CaseError) -> None:
        nonlocal count
        count += 1
        each(error)

    try:
        _opened(spec, 0, RowErrors(each=tell, remarked=remarked))
    except UserError:
        if not count:
            raise
    return count


def _opened(spec: str, split: Split, errors: RowErrors) -> Source:
    scheme, colon, rest = spec.partition(":")
    module = _module(scheme) if colon and scheme in _modules() else None
    if module is None or not hasattr(module, "open"):
        raise _no_scheme(spec, scheme)
    source: Source = module.open(rest, split, errors)
    if not source.undivided:
        numbered(split, source.name)
    return replace(source, notes=(*source.notes, *errors.notes(spec)))


def brought(spec: str) -> SourceLibrary | None:
    """The library of the source `spec`; None where `spec` does not name a source.

    Raises UserError for a source that cannot be opened, or brings no library.
    """
    scheme, colon, rest = spec.partition(":")
    if not (colon and rest and scheme in _modules() and hasattr(_module(scheme), "open")):
        return None
    found = open_source(spec).library
    if found is None:
        raise UserError(f"{spec} brings no library; clinic:s is a source that does")
    return found


def schemes() -> list[Scheme]:
    """Every kind of source that there is, sorted by name."""
    return [
        Scheme(
            name,
            summary=" ".join((module.__doc__ or "").partition("\n\n")[0].split()),
            example=getattr(module, "EXAMPLE", f"{name}:FILE"),
        )
        for name, module in _sources().items()
    ]


def _modules() -> dict[str, str]:
    """Every module that may be a source: its name → where it is."""
    return {
        module.name: f"{package.__name__}.{module.name}"
        for package in (sys.modules[__name__], datasets)
        for module in iter_modules(package.__path__)
    }


def _module(name: str) -> ModuleType:
    return import_module(_modules()[name])


def _sources() -> dict[str, ModuleType]:
    """Every module that is a source, by name."""
    found = {name: _module(name) for name in sorted(_modules())}
    return {name: module for name, module in found.items() if hasattr(module, "open")}


def _no_scheme(spec: str, scheme: str) -> UserError:
    place = spec.partition("#")[0]  # views may follow
    path, json = there(place), place.endswith((".jsonl", ".json"))
    lists = "`workup sources` lists all"
    if path is not None:
        kind = kind_of(path, _sources()) or ("jsonl" if json else "")
        if kind:
            return UserError(
                f"'{spec}' is a path; say what it holds. Did you mean '{kind}:{spec}'?"
            )
        return UserError(
            f"'{spec}' is a path; write the kind of its cases before it: SCHEME:{spec} ({lists})"
        )
    known = {each.name: each.example for each in schemes()}
    if spec in known:
        return UserError(f"'{spec}' lacks the rest of the source: write it as in '{known[spec]}'")
    rest = spec.removeprefix(scheme)
    if rest and (near := nearest(scheme, known)):
        return UserError(f"no case source '{scheme}'. Did you mean '{near}{rest}'? ({lists})")
    if not rest and (json or len(Path(place).parts) > 1):
        return UserError(
            f"there is no {spec}; write the kind of cases before the path, as in 'jsonl:{spec}'"
        )
    return unknown("case source", scheme, known, more=lists)
