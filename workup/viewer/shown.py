"""The runs that are shown, each under the name of its folder; nothing in it is changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from workup.errors import UserError
from workup.report.suite import is_suite
from workup.runs import Record, Run
from workup.runs.folder import is_run
from workup.runs.store import KEY
from workup.runs.untouched import Untouched
from workup.viewer.asking import Key
from workup.viewer.columns import Columns

DEFAULT = Path("runs")


@dataclass(frozen=True)
class Shown:
    """A run under its name in addresses, with the columns of its episodes."""

    name: str
    path: Path
    columns: Columns
    restricted: bool
    withheld: bool

    @property
    def run(self) -> Run:
        """The run as it is now.

        Raises UserError where the folder is gone or a file of it is damaged.
        """
        return Run.open(self.path, Untouched)

    def record(self, key: Key) -> Record | None:
        found = self.run.episodes(**dict(zip(KEY, key, strict=True)))
        return next(iter(found), None)

    def rows(self, ids: Sequence[int]) -> list[sqlite3.Row]:
        """The rows of these episodes in the table `columns`, in the order of `ids`."""
        marks = ", ".join("?" * len(ids))
        rows = {
            row["id"]: row
            for row in self.columns.rows(f"SELECT * FROM columns WHERE id IN ({marks})", tuple(ids))
        }
        return [rows[id] for id in ids if id in rows]


def opened(paths: Sequence[Path], *, restricted: bool) -> dict[str, Shown]:
    """The runs by name; of two with one name the second is "NAME~2".

    Without `paths` those in `runs/`. A suite stands for its evaluations, "SUITE:NAME". Restricted
    runs are withheld unless `restricted`. Raises UserError for a folder that holds no run.
    """
    if not paths:
        found = sorted(DEFAULT.iterdir()) if DEFAULT.is_dir() else []
        paths = [path for path in found if is_run(path)]
        if not paths:
            raise UserError(
                "there is no run in runs/; name run folders, as in workup view runs/mine"
            )
    shown: dict[str, Shown] = {}
    for path in dict.fromkeys(path.resolve() for path in paths):
        run = Run.open(path, Untouched)
        if not is_suite(run):
            _show(shown, run, run.name, restricted=restricted)
            continue
        for inside in sorted(filter(is_run, (path / "runs").glob("*"))):
            _show(
                shown,
                Run.open(inside, Untouched),
                f"{run.name}:{inside.name}",
                restricted=restricted,
            )
    return shown


def _show(shown: dict[str, Shown], run: Run, name: str, *, restricted: bool) -> None:
    store = run.store
    assert isinstance(store, Untouched)
    closed = run.restricted
    name = _free(name, shown)
    shown[name] = Shown(name, run.path, Columns(store), closed, closed and not restricted)


def _free(name: str, taken: Container[str]) -> str:
    number = 2
    free = name
    while free in taken:
        free, number = f"{name}~{number}", number + 1
    return free
