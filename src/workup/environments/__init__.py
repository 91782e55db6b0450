"""The environments: the other side of an encounter, which answers the doctor.

There is one module per environment, whose name is the environment's.

    environments/consultation.py   the environment `consultation`
    environments/base/             what several are made from: no environment

A module defines what `EnvironmentModule` says, and as `ROLES` the roles that models can play in it,
if any. There is no registry. From outside a class is an environment: see `load`.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import getdoc, signature
from pkgutil import iter_modules
from types import SimpleNamespace
from typing import Any, Protocol, cast

from workup.core.case import Source
from workup.core.errors import UserError
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
    """The built-in environment of this name, or the class that `package.module:Class` names.

    The class is derived from `base.encounter.Encounter`. It is called with the source and the
    settings. Its attribute `Settings`, a pydantic class, says what can be set. A class without it
    has `max_turns` alone and needs no `__init__`; one with it defines `__init__(self, source,
    settings)`, which passes `settings.max_turns` on. Raises UserError if there is no such
    environment, and for a class that lacks something.
    """
    known = {each: f"{__name__}.{each.replace('-', '_')}" for each in names()}
    hint = "`workup methods` lists all"
    if ":" not in name:
        return cast(EnvironmentModule, named("environment", name, known, _PARTS, hint))
    return _outside(name, named("environment", name, known, (), hint))


def _outside(name: str, found: Any) -> EnvironmentModule:
    from workup.environments.base.encounter import Encounter, EncounterSettings  # loads numpy

    if not (isinstance(found, type) and issubclass(found, Encounter)):
        raise UserError(
            f"'{name}' is no environment: name a class that is derived from "
            f"{Encounter.__module__}.{Encounter.__name__}"
        )
    if missing := sorted(found.__abstractmethods__):
        raise UserError(f"'{name}' is no environment: it lacks {', '.join(missing)}")
    own = getattr(found, "Settings", EncounterSettings)
    plain = found.__init__ is Encounter.__init__ and own is EncounterSettings
    if not plain and not _called_with(found, "source", "settings"):
        raise UserError(f"'{name}': write __init__(self, source, settings)")
    made = SimpleNamespace(
        summary=(getdoc(found) or "").partition("\n")[0],
        Settings=own,
        open=(lambda source, settings: found(settings.max_turns)) if plain else found,
    )
    return cast(EnvironmentModule, made)


def _called_with(found: Callable[..., object], *names: str) -> bool:
    """Whether the first parameters have these names, and all others have defaults."""
    first = [*signature(found).parameters][: len(names)]
    try:
        signature(found).bind(*names)
    except TypeError:
        return False
    return first == [*names]


def settings() -> set[str]:
    """The names of all settings that the built-in environments have."""
    return {field for name in names() for field in load(name).Settings.model_fields}


def offered(name: str) -> set[str]:
    """What can be set in the built-in environment of this name: "environment.max_turns", "roles.…".

    Nothing for another one: whoever reads a run need not have its modules.
    """
    if name not in names():
        return set()
    found = load(name)
    own = {f"environment.{field}" for field in found.Settings.model_fields}
    return own | {f"roles.{role}" for role in getattr(found, "ROLES", ())}


def roles() -> set[str]:
    """The names of all roles that a model can play in a built-in environment."""
    return {role for name in names() for role in getattr(load(name), "ROLES", ())}
