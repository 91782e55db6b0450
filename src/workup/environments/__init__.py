"""The environments: the other side of an encounter, which answers the doctor.

There is one module per environment, whose name is the environment's.

    environments/consultation.py   the environment `consultation`
    environments/base/             what several are made from: no environment

A module defines what `EnvironmentModule` says, and as `ROLES` the roles that models can play in it,
if any. There is no registry.
"""

from __future__ import annotations

from pkgutil import iter_modules
from typing import Any, Protocol, cast

from workup.core.case import Source
from workup.core.extras import named
from workup.core.ports import Environment

_PARTS = ("summary", "Settings", "open")


class EnvironmentModule(Protocol):
    """What an environment's module defines: `summary`, `Settings` (a pydantic class), `open`.

    `open` raises UserError if the cases of `source` cannot be played in this environment.
    """

    summary: str
    Settings: type[Any]

    def open(self, source: Source, settings: Any) -> Environment: ...


def names() -> list[str]:
    """The built-in environments, sorted; nothing is imported."""
    return sorted(each.name.replace("_", "-") for each in iter_modules(__path__) if not each.ispkg)


def load(name: str) -> EnvironmentModule:
    """The built-in environment of this name, or what `package.module:attribute` names outside.

    Raises UserError if there is no such environment, or if what is there is none.
    """
    known = {each: f"{__name__}.{each.replace('-', '_')}" for each in names()}
    found = named("environment", name, known, _PARTS, "`workup methods` lists all")
    return cast(EnvironmentModule, found)


def settings() -> set[str]:
    """The names of all settings that the built-in environments have."""
    return {field for name in names() for field in load(name).Settings.model_fields}


def roles() -> set[str]:
    """The names of all roles that a model can play in a built-in environment."""
    return {role for name in names() for role in getattr(load(name), "ROLES", ())}
