"""One folder per paper, named as its method; the baselines of its tables are folders within.

    methods/promed/         the method `promed`
    methods/promed/sft_gt/  the baseline `sft-gt`, beside the paper whose it is
    methods/base/           what the methods of one encounter share: no method

A hyphen in a name is an underscore in the folder's. There is no registry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, cast

from workup.core.errors import UserError
from workup.core.extras import named
from workup.core.stages import Method

_SHARED = "base"
_PARTS = ("paper", "summary", "settings", "environment", "stages")


def by_paper() -> dict[str, list[str]]:
    """Every paper's own method, and after it the baselines beside it; sorted, nothing is imported.

    >>> by_paper()["craft"]
    ['craft', 'outcome']
    """
    found: dict[str, list[str]] = {}
    for module in _places():
        paper, *baseline = module.split(".")
        found.setdefault(_name(paper), []).append(_name(baseline[0] if baseline else paper))
    return found


def names() -> list[str]:
    """The ids of the built-in methods, sorted; nothing is imported."""
    return sorted(_name(module.rpartition(".")[2]) for module in _places())


def load(name: str) -> Method:
    """The built-in method of this name, or the one at `package.module:attribute`.

    Raises UserError if there is no such method, or if the attribute is none.
    """
    known = {
        _name(module.rpartition(".")[2]): f"{__name__}.{module}:method" for module in _places()
    }
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


def _places() -> Iterator[str]:
    """The methods' places, such as `promed` and `promed.sft_gt`; a paper before its baselines."""
    for paper, folder in _packages(__path__):
        if paper != _SHARED:
            yield paper
            yield from (f"{paper}.{baseline}" for baseline, _ in _packages([str(folder)]))


def _packages(path: Iterable[str]) -> list[tuple[str, Path]]:
    """The packages in these folders, with the folder of each; sorted by name."""
    found = [
        (module.name, Path(getattr(module.module_finder, "path", "")) / module.name)
        for module in iter_modules(path)
        if module.ispkg
    ]
    return sorted(found)


def _name(folder: str) -> str:
    return folder.replace("_", "-")
