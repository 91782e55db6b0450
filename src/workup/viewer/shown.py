"""The runs that are shown, each under the name of its folder; nothing in it is changed.

A run is checked when it is opened, and again when its files have changed. One that is damaged keeps
its place in the list, with the reason, and takes none of the others away.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workup.core.errors import UserError, printable
from workup.report.suite import is_suite
from workup.runs import Record, Run
from workup.runs.files import DamagedError
from workup.runs.folder import is_run, read_config
from workup.runs.store import KEY
from workup.runs.untouched import Untouched
from workup.viewer.asking import Key
from workup.viewer.columns import Columns

DEFAULT = Path("runs")
SMALL = ("config.yaml", "versions.json", "summary.json")  # read whole whenever they change
Stamp = tuple[tuple[int, int, int], ...]


@dataclass
class _Known:
    """What was found of a run, and the stamps of the files that it was found in."""

    run: tuple[Stamp, Run | str] | None = None  # or why it cannot be read
    lines: tuple[Stamp, str] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class ShownRun:
    """A run under its name in addresses, with the columns of its episodes.

    `restricted` and `hidden` say whether its cases were restricted when the viewer began, and
    whether it was not to show them then. `unreadable` says why its settings cannot be read. Whether
    its cases are restricted is not known then, so that it stays closed until the viewer is started
    again.
    """

    name: str
    path: Path
    columns: Columns
    restricted: bool
    hidden: bool
    unreadable: str = ""
    _known: _Known = field(default_factory=_Known, repr=False)

    @property
    def withheld(self) -> bool:
        """Whether none of its pages is shown.

        So it is for a run that has become restricted since: the viewer was not asked to show it,
        and may serve other machines.
        """
        if self.hidden or self.restricted or self.unreadable:
            return self.hidden
        try:
            return bool(self.run.config.get("restricted"))
        except DamagedError:
            return False

    @property
    def run(self) -> Run:
        """The run as its files are now; they are read again only after one of them has changed.

        Raises DamagedError where the folder is gone, or a file of it is damaged.
        """
        if self.unreadable:
            raise DamagedError(self.unreadable)
        with self._known.lock:
            stamp = _stamp(self.path, SMALL)
            if self._known.run is None or stamp != self._known.run[0]:
                self._known.run = stamp, _tried(self.path)
            found = self._known.run[1]
        if isinstance(found, str):
            raise DamagedError(found)
        return found

    @property
    def damage(self) -> str:
        """Why a file of the run cannot be read; "" where nothing is known to be damaged.

        Episodes are looked at one by one only when a page of the run is asked for.
        """
        try:
            run = self.run
            self.columns.check()
        except UserError as error:
            return str(error)
        stamp = _stamp(self.path, ("metrics.jsonl",))
        if self._known.lines is None or stamp != self._known.lines[0]:
            self._known.lines = stamp, _lines(run)
        return self._known.lines[1]

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


def _tried(path: Path) -> Run | str:
    try:
        return Run.open(path, Untouched)
    except UserError as error:
        return str(error)


def _lines(run: Run) -> str:
    try:
        for _ in run.metrics():
            pass
    except UserError as error:
        return str(error)
    return ""


def _stamp(folder: Path, names: Sequence[str]) -> Stamp:
    """Changes whenever one of these files is written, made or removed."""
    found = []
    for name in names:
        try:
            told = (folder / name).stat()
        except OSError:
            found.append((0, 0, 0))
        else:
            found.append((told.st_ino, told.st_size, told.st_mtime_ns))
    return tuple(found)


def opened(paths: Sequence[Path], *, restricted: bool) -> dict[str, ShownRun]:
    """The runs by name; of two with one name the second is "NAME~2".

    Without `paths` those in `runs/`. A suite stands for its evaluations, "SUITE:NAME". Restricted
    runs are withheld unless `restricted`. Damaged runs are among them. Raises UserError for a
    folder that holds no run.
    """
    if not paths:
        found = sorted(DEFAULT.iterdir()) if DEFAULT.is_dir() else []
        paths = [path for path in found if is_run(path)]
        if not paths:
            raise UserError(
                "there is no run in runs/; name run folders, as in workup view runs/mine"
            )
    shown: dict[str, ShownRun] = {}
    for path in dict.fromkeys(path.resolve() for path in paths):
        for each, name in _each(path):
            free = _free(printable(name), shown)
            shown[free] = _shown(each, free, restricted=restricted)
    return shown


def _each(path: Path) -> Iterator[tuple[Path, str]]:
    """The folders that `path` stands for, each with its name: itself, or a suite's evaluations."""
    try:
        run = Run.open(path, Untouched)
    except DamagedError:
        yield path, path.name
        return
    if not is_suite(run):
        yield path, run.name
        return
    played = [arm["folder"] for arm in run.config["arms"] if is_run(path / arm["folder"])]
    if not played:
        raise UserError(f"{path}: no evaluation of this suite has begun; `workup resume` plays it")
    for folder in played:
        yield path / folder, f"{run.name}:{folder.removeprefix('runs/').replace('/', ':')}"


def _shown(path: Path, name: str, *, restricted: bool) -> ShownRun:
    columns = Columns(Untouched(path / "episodes.sqlite"))
    try:
        closed = bool(read_config(path).get("restricted"))
    except DamagedError as error:
        return ShownRun(name, path, columns, False, False, str(error))
    return ShownRun(name, path, columns, closed, closed and not restricted)


def _free(name: str, taken: Container[str]) -> str:
    number = 2
    free = name
    while free in taken:
        free, number = f"{name}~{number}", number + 1
    return free
