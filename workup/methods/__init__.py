"""One folder per paper: the folder's name is the method's id. There is no registry."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import cast

from workup.errors import UserError, unknown
from workup.ports import Method

_PARTS = ("paper", "summary", "settings", "environment", "stages")


def names() -> list[str]:
    """The ids of the built-in methods, sorted; nothing is imported. A hyphen is an underscore in the folder's name."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__) if module.ispkg)


def load(name: str) -> Method:
    """The built-in method of this name, or what `package.module:attribute` names outside.

    Raises UserError if there is no such method, or if what is there is none.
    """
    if ":" not in name:
        if name not in names():
            raise unknown("method", name, names(), more="`workup methods` lists all")
        return cast(Method, import_module(f"{__name__}.{name.replace('-', '_')}").method)
    path, _, attribute = name.partition(":")
    method = getattr(_module(path, name), attribute, None)
    missing = [part for part in _PARTS if not hasattr(method, part)]
    if missing:
        raise UserError(f"'{name}' is no method: it lacks {', '.join(missing)} (see `workup.ports.Method`)")
    return cast(Method, method)


def _module(path: str, name: str) -> object:
    try:
        return import_module(path)
    except (ImportError, ValueError) as error:
        raise UserError(f"method '{name}': cannot import '{path}' ({error}); write package.module:attribute") from error
