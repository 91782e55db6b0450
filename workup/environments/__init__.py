"""The environments: the other side of an encounter, which answers the doctor.

An environment is one module of this package that defines `open(source, max_turns, …)`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from pkgutil import iter_modules
from typing import Any

from workup.case import Source
from workup.errors import UserError, unknown
from workup.ports import Environment


def open_environment(name: str, source: Source, max_turns: int, **options: Any) -> Environment:
    """The environment of this name for the cases of `source`.

    Raises UserError when there is none, and for an option that it does not have.
    """
    opener = _opener(name) if name in _modules() else None
    if opener is None:
        raise unknown(
            "environment", name, [module for module in _modules() if _opener(module) is not None]
        )
    known = list(signature(opener).parameters)[2:]
    for option in options:
        if option not in known:
            raise UserError(
                f"environment '{name}' has no setting '{option}'"
                + (f"; it has {', '.join(known)}" if known else "")
            )
    return opener(source, max_turns, **options)


def _modules() -> list[str]:
    return [module.name for module in iter_modules(__path__)]


def _opener(name: str) -> Callable[..., Environment] | None:
    return getattr(import_module(f"{__name__}.{name}"), "open", None)
