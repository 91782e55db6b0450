"""Episodes and cases as files that other programs read: `workup export RUN|CASES --as FORMAT`.

There is one module of `formats` per format, whose name is the format's; there is no registry. A
format defines what `Format` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, cast

from workup.core.errors import UserError, unknown
from workup.interop.exports import formats


@dataclass(frozen=True)
class Written:
    """What a format wrote: the files with their rows, and what their columns hold.

    `columns` is empty for files that are no tables. `notes` are sentences for the data card.
    `measures` says what each measure of the episodes is, where the files hold them.
    """

    rows: Mapping[str, int]
    columns: Mapping[str, str]
    notes: tuple[str, ...] = ()
    measures: Mapping[str, str] = field(default_factory=dict)


class Format:
    """A module of `formats`.

    It defines `summary`, and one or both of `of_run(chosen, folder)` and `of_cases(drawn, folder)`,
    which write into `folder` and return what they wrote. Both read their material once, in order,
    and keep a bounded part of it in memory. They raise UserError where the material holds nothing
    that the format can show.
    """

    def __init__(self, name: str, module: Any) -> None:
        self.name, self.summary = name, str(module.summary)
        self._module = module

    @property
    def takes(self) -> tuple[str, ...]:
        """What it can be made from: "run", "cases"."""
        return tuple(kind for kind in ("run", "cases") if hasattr(self._module, f"of_{kind}"))

    def write(self, kind: str, material: Any, folder: Path) -> Written:
        """Writes `material` ("run": episodes, "cases": cases) into the folder.

        Raises UserError for a kind that the format does not take.
        """
        if kind not in self.takes:
            others = ", ".join(name for name in names() if kind in load(name).takes)
            raise UserError(
                f"--as {self.name} is made from {' or '.join(_WORDS[each] for each in self.takes)},"
                f" not from {_WORDS[kind]}; these are: {others}"
            )
        return cast(Written, getattr(self._module, f"of_{kind}")(material, folder))


_WORDS = {"run": "a run's episodes", "cases": "cases"}


def names() -> list[str]:
    """The formats, sorted; nothing is imported. `prompt_completion.py` is "prompt-completion"."""
    return sorted(each.name.replace("_", "-") for each in iter_modules(formats.__path__))


def load(name: str) -> Format:
    """The format of this name. Raises UserError when there is none."""
    if name not in names():
        raise unknown("format", name, names(), more="`workup export --help` lists all")
    return Format(name, import_module(f"{formats.__name__}.{name.replace('-', '_')}"))
