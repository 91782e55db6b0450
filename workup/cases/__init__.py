"""Where cases come from. A source is one module (or folder) of this package that defines `open(rest, seed) -> Source`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from workup.case import Source
from workup.errors import UserError, unknown

_AS_IN = {"clinic": "clinic:s", "ddxplus": "ddxplus:FOLDER"}


def open_source(spec: str, *, seed: int = 0) -> Source:
    """Opens `SCHEME:REST`, as in `clinic:s`, `ddxplus:FOLDER`, `mediq:FILE`, `jsonl:FILE`.

    The same spec and seed give the same cases in the same order. Raises UserError for a scheme or a path that does not
    exist, CaseError (file, line, field) for malformed files.
    """
    scheme, colon, rest = spec.partition(":")
    if not colon or scheme not in _modules():
        raise _no_scheme(spec, scheme)
    opener = _opener(scheme)
    if opener is None:
        raise _no_scheme(spec, scheme)
    return opener(rest, seed)


def _modules() -> list[str]:
    return [module.name for module in iter_modules(__path__)]


def _opener(scheme: str) -> Callable[[str, int], Source] | None:
    return getattr(import_module(f"{__name__}.{scheme}"), "open", None)


def _no_scheme(spec: str, scheme: str) -> UserError:
    if spec and Path(spec).expanduser().exists():
        kind = "jsonl" if Path(spec).suffix in {".jsonl", ".json"} else "ddxplus"
        return UserError(f"'{spec}' is a path; say what it holds. Did you mean '{kind}:{spec}'?")
    schemes = [name for name in _modules() if _opener(name) is not None]
    if spec in schemes:
        return UserError(f"'{spec}' lacks the rest of the source: write '{_AS_IN.get(spec, f'{spec}:FILE')}'")
    return unknown("case source", scheme, schemes, more="a source is SCHEME:REST, as in clinic:s or ddxplus:FOLDER")
