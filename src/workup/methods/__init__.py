"""One folder per paper, named as its method; the baselines of its tables are rows of one module.

    methods/promed/              the method `promed`
    methods/promed/baselines.py  `baselines`: name → method, of those that it is compared with
    methods/base/                what the methods of several papers share: no method

A hyphen in a method's name is an underscore in its folder's. There is no registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any, cast

from workup.core.errors import UserError
from workup.core.extras import named
from workup.core.stages import Method

EXACT_GAIN = "exact-gain"
"""The reward that can take the place of a method's own (`methods.base.exact_gain`)."""

_SHARED = "base"
_PARTS = ("paper", "summary", "settings", "environment", "stages")


def by_paper() -> dict[str, list[str]]:
    """Every paper's own method, and after it the baselines beside it; sorted.

    >>> by_paper()["craft"]
    ['craft', 'outcome']
    """
    return {paper: [paper, *sorted(_baselines(paper))] for paper in _papers()}


def names() -> list[str]:
    """The ids of the built-in methods, sorted."""
    return sorted(name for listed in by_paper().values() for name in listed)


def load(name: str) -> Method:
    """The built-in method of this name, or the one at `package.module:attribute`.

    Raises UserError if there is no such method, or if the attribute is none.
    """
    papers = _papers()
    rows: dict[str, Method] = {}
    if name not in papers and ":" not in name:
        rows = {each: row for paper in papers for each, row in _baselines(paper).items()}
    if name in rows:
        return rows[name]
    known = dict.fromkeys(rows, "") | {each: f"{_module(each)}:method" for each in papers}
    method = cast(Method, named("method", name, known, _PARTS, "`workup methods` lists all"))
    if not isinstance(method.environment, Mapping):
        raise UserError(
            f"'{name}': `environment` names one, as in {{'name': 'consultation', 'max_turns': 5}} "
            "(see `workup.core.stages.Method`)"
        )
    return method


def printed(method: Method) -> Mapping[str, Any] | None:
    """The settings that the method's paper prints, nested by their dots; None where it has none."""
    return getattr(method, "printed", None)


def _papers() -> list[str]:
    found = (module.name for module in iter_modules(__path__) if module.ispkg)
    return sorted(name.replace("_", "-") for name in found if name != _SHARED)


def _module(paper: str) -> str:
    return f"{__name__}.{paper.replace('-', '_')}"


def _baselines(paper: str) -> Mapping[str, Method]:
    """The rows beside a paper's method; none where its folder has no `baselines.py`."""
    module = f"{_module(paper)}.baselines"
    rows: Mapping[str, Method] = import_module(module).baselines if find_spec(module) else {}
    return rows
