"""The other side of an encounter. An environment is one module of this package that defines `open(source, max_turns)`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules

from workup.case import Source
from workup.errors import unknown
from workup.ports import Environment


def open_environment(name: str, source: Source, max_turns: int) -> Environment:
    """The environment of this name for the cases of `source`. Raises UserError when there is none."""
    opener = _opener(name) if name in _modules() else None
    if opener is None:
        raise unknown("environment", name, [module for module in _modules() if _opener(module) is not None])
    return opener(source, max_turns)


def _modules() -> list[str]:
    return [module.name for module in iter_modules(__path__)]


def _opener(name: str) -> Callable[[Source, int], Environment] | None:
    return getattr(import_module(f"{__name__}.{name}"), "open", None)
