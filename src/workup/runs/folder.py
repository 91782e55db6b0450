"""The run folder: all that is kept of a run, and all that reports and viewers read.

config.yaml       the fully resolved configuration; its presence makes a folder a run
versions.json     software, machine, seeds, command
metrics.jsonl     one object per training step
episodes.sqlite   every episode with tokens, masks, scores (see store.py)
checkpoints/      what `workup resume` continues from
policy/           the trained policy in HF format
summary.json      headline metrics of every evaluated doctor, with intervals
report.html       one page that opens offline
transcripts/      further pages with every evaluated episode, which report.html links to
folds/            of a cross-validation: a run folder for each fold, whose evaluated episodes stand
                  in this one's episodes.sqlite, and which has the checkpoints and policies
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, overload

from omegaconf import OmegaConf
from rich.table import Table

from workup.core.disk import hold
from workup.core.errors import UserError, unknown
from workup.core.mapping import load, parsed, refuse_filled
from workup.runs import checked
from workup.runs.files import (
    DamagedError,
    JsonLines,
    clear_errors,
    present,
    read_json,
    write_json,
    write_whole,
)
from workup.runs.record import Outcome, Record
from workup.runs.store import EpisodeStore, as_written, conditions
from workup.runs.untouched import Untouched
from workup.runs.words import TRAINED, WARM_START

CHECKPOINTS = "checkpoints"
_END = "..."  # how YAML marks the end of a document
FOLDS = "folds"
NOTED = (
    *("kind", "restricted", "account", "trained_before", "notes", "anchors", "changed"),
    "encounter",  # the environment's name, where an evaluation left it to its default
    "parts",
)


class Episodes(Sequence[Record]):
    """The records that fit a filter, read from disk when they are asked for."""

    def __init__(self, store: EpisodeStore, where: Mapping[str, Any]) -> None:
        conditions(where)  # an unknown column is reported here, not at first use
        self._store, self._where = store, dict(where)

    def __iter__(self) -> Iterator[Record]:
        return self._store.read(self._where)

    def __len__(self) -> int:
        return next((row["n"] for row in self._store.select("COUNT(*) AS n", self._where)), 0)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        if isinstance(index, slice):
            positions = range(*index.indices(len(self)))
            low, high = (min(positions), max(positions)) if positions else (0, -1)
            records = list(self._store.read(self._where, limit=high - low + 1, offset=low))
            return [records[position - low] for position in positions]
        offset = index if index >= 0 else len(self) + index
        found = list(self._store.read(self._where, limit=1, offset=offset)) if offset >= 0 else []
        if not found:
            raise IndexError(f"episode {index} of {len(self)}")
        return found[0]


class Run:
    """One run folder. Make it with `Run.create` or `Run.open`."""

    def __init__(
        self,
        path: Path,
        config: Mapping[str, Any],
        versions: Mapping[str, Any],
        store: type[EpisodeStore] = EpisodeStore,
    ) -> None:
        self.path, self.config, self.versions = path, config, versions
        self._metrics = JsonLines(path / "metrics.jsonl", checked.step)
        self._store = store(path / "episodes.sqlite")

    @classmethod
    def create(
        cls,
        path: str | Path,
        config: Mapping[str, Any],
        versions: Mapping[str, Any],
        *,
        restricted: bool = False,
    ) -> Run:
        """Starts a run in a new or empty folder.

        Restricted cases close it to other users (mode 0700). Raises UserError when the folder holds
        a run or anything else, or cannot be written, and for settings that could not be read again
        (see `mapping`): with `${…}` in one, too many, too deep.
        """
        path = Path(path)
        config = {**config, "restricted": True} if restricted else config
        text = _as_yaml(config)
        free(path)
        with clear_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            if restricted:
                path.chmod(0o700)
        with _alone(path):
            free(path)  # again: another process may have begun one since
            write_json(path / "versions.json", versions)
            write_whole(path / "config.yaml", text)
        return cls.open(path)

    @classmethod
    def open(cls, path: str | Path, store: type[EpisodeStore] = EpisodeStore) -> Run:
        """The run in `path`; with the store `untouched.Untouched` for one who changes nothing.

        Raises UserError when there is none, with the nearest one that exists, and DamagedError for
        a file of it that is not as we write it: its settings, its summary, or a database without
        our columns. Steps and episodes are checked when they are read.
        """
        path = Path(path)
        config = read_config(path)
        run = cls(path, config, read_json(path / "versions.json"), store)
        _ = run.summary
        Untouched(run.store.path).check()
        return run

    @property
    def started(self) -> str:
        """When it began, as "2026-01-31 12:00:00 UTC"; "" where that is not known."""
        said = str(self.versions.get("started", ""))
        return said.replace("T", " ").replace("+00:00", " UTC")

    @property
    def store(self) -> EpisodeStore:
        """The database of the episodes, for queries of one's own."""
        return self._store

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def seed(self) -> int:
        """The seed of the run and of its resampling."""
        return int(self.config.get("seed") or 0)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings among `config`, without the run's notes about itself."""
        return {name: value for name, value in self.config.items() if name not in NOTED}

    @property
    def encounter(self) -> str:
        """The name of the environment that was played; "" where that is not known."""
        found = self.config.get("environment")
        named = found.get("name") if isinstance(found, Mapping) else None
        # An evaluation that left the environment to its default keeps its name as the encounter.
        return str(named or self.config.get("encounter") or "")

    @property
    def restricted(self) -> bool:
        """Whether a data-use agreement forbids passing on the text of its cases."""
        return bool(self.config.get("restricted"))

    @property
    def anchors(self) -> tuple[str, ...]:
        """The anchors' labels, from the lowest to the highest."""
        return tuple(self.config.get("anchors", ()))

    @property
    def account(self) -> str:
        """The run's name in the ledger, the same in all its sessions."""
        return str(needed(self.path, self.config, "account"))

    def revise(self, settings: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
        """Writes `settings` into config.yaml; its list `changed` keeps when which were changed."""
        when = datetime.now(UTC).isoformat(timespec="seconds")
        changed = [*self.config.get("changed", ()), {"when": when, **changes}]
        config = {**self.config, **settings, "changed": changed}
        write_whole(self.path / "config.yaml", _as_yaml(config))
        self.config = config

    @property
    def parts(self) -> dict[str, str]:
        """The folders of a cross-validation's runs within this one, by fold ("2/5"); else empty."""
        return {str(split): part(split) for split in self.config.get("parts", ())}

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    @property
    def policy(self) -> Path:
        return self.path / "policy"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def transcripts(self) -> Path:
        return self.path / "transcripts"

    @property
    def summary(self) -> dict[str, Any]:
        """summary.json; empty until the run has been evaluated."""
        return read_json(self.path / "summary.json", checked.summary)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        write_json(self.path / "summary.json", summary)

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Appends one training step's metrics; they must name their `stage` and `step`."""
        self._metrics.append({"stage": metrics["stage"], "step": metrics["step"], **metrics})

    def log_anew(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Logs these steps in place of all that were logged before."""
        self._metrics.cut(0)
        for line in lines:
            self.log(line)

    def metrics(self) -> Iterator[dict[str, Any]]:
        """Every logged step in order."""
        return (line for _, line in self._metrics.lines())

    def write(self, records: Iterable[Record]) -> None:
        """Adds a step's episodes in one transaction; a step that is run again is replaced."""
        self._store.write(list(records))

    def episodes(self, **where: Any) -> Episodes:
        """Episodes by column.

        For example `run.episodes(phase="eval", doctor="trained", ending="out of turns")`.
        """
        return Episodes(self._store, where)

    def export_parquet(self, path: str | Path) -> int:
        """Writes all episodes to a Parquet file, a thousand at a time; returns how many.

        The columns are those of `workup.runs.parquet.schema`.
        """
        from workup.runs.parquet import export

        return export(self.episodes(), Path(path))

    def doctors(self) -> list[str]:
        """Everyone who was evaluated, in the order in which their (last) evaluations began.

        An episode that failed and is played again does not change the order.
        """
        rows = self._store.select(
            "doctor, MIN(episodes.rowid) AS first",
            {"phase": "eval"},
            "GROUP BY doctor, stage, step ORDER BY MAX(episodes.rowid)",
        )
        began = {row["doctor"]: row["first"] for row in rows}
        return sorted(began, key=began.__getitem__)

    def outcomes(self, doctor: str, phase: str = "eval") -> list[Outcome]:
        """How `doctor`'s episodes went in its last evaluation, in the order of cases.

        Those of `phase` "calibration" are not evaluated; they set a threshold.
        """
        columns = (
            "case_id, diagnosis, category, sample, ending, correct, questions, total, parts, "
            "measures"
        )
        return [
            _outcome(self._store.path, row)
            for row in self._store.select(
                columns, self._last(doctor, phase), "ORDER BY case_id, sample"
            )
        ]

    def evaluated(self, doctor: str, **where: Any) -> Episodes:
        """The episodes of `doctor`'s last evaluation, filtered by `where`, by case and sample."""
        return Episodes(self._store, {**self._last(doctor), **where})

    def _last(self, doctor: str, phase: str = "eval") -> dict[str, Any]:
        """What the episodes of `doctor`'s last evaluation have in common."""
        where = {"phase": phase, "doctor": doctor}
        last = self._store.select("stage, step", where, "ORDER BY episodes.rowid DESC LIMIT 1")
        return where | {key: row[key] for row in last for key in ("stage", "step")}

    def compare(self, other: str = WARM_START, doctor: str = TRAINED) -> Table:
        """`doctor` beside `other` with intervals and paired differences, as a table.

        Terminals and notebooks can show it. Raises UserError for someone who was not evaluated in
        this run.
        """
        from workup.runs.estimates import contrast  # numpy, which few readers need

        evaluated = self.doctors()
        for name in (other, doctor):
            if name not in evaluated:
                raise unknown("evaluated doctor", name, evaluated)
        return contrast({name: self.outcomes(name) for name in (other, doctor)}, self.seed)

    def truncate_after(self, stage: str, step: int, *, ahead: int = 0) -> None:
        """Forgets the steps of `stage` after `step`, and whatever was logged after these.

        A resumed run will do them again; the episodes of the next `ahead` steps stay, which it
        only learns from. Steps are counted from 1 within a stage. If no such step was logged, later
        stages stay: they have checkpoints of their own. Episodes of stages that logged no step are
        forgotten too, with two exceptions: those outside any stage (stage ""), and those of
        searches, since a search stage begins when the stages before it have ended for good.

        Raises UserError if the metrics of `step` itself are gone.
        """
        end, stages, last = _kept(self._metrics.lines(), stage, step)
        if last != step:
            raise UserError(
                f"{self._metrics.path}: step {step} of {stage}, which its checkpoint has seen, "
                "is missing; restore the file from a copy, or start a new run"
            )
        self._metrics.cut(end)
        self._store.forget(stages, stage, step + ahead)

    def refuse_lost(self, stage: str, step: int) -> None:
        """Raises UserError if episodes.sqlite has no episode of this step, counted from 1.

        Step 0 has no episodes and is not checked.
        """
        if step and not self.episodes(stage=stage, step=step):
            raise UserError(
                f"{self._store.path}: the episodes of step {step} of {stage}, which were "
                "played, are missing; restore the file from a copy, or start a new run"
            )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A context that locks the folder against a second process that would train into it.

        Raises UserError when one already does.
        """
        with _alone(self.path):
            yield

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with clear_errors(path), (path / ".lock").open("a") as lock:
        try:
            hold(lock)
        except BlockingIOError as error:
            raise UserError(
                f"{path}: another process is training into this run; wait for it, or stop it"
            ) from error
        yield


def _as_yaml(config: Mapping[str, Any]) -> str:
    """The text of config.yaml. Raises UserError for one that `read_config` would refuse."""
    refuse_filled(config, "settings")
    text = f"{OmegaConf.to_yaml(OmegaConf.create(dict(config)))}{_END}\n"
    parsed(text.encode("utf-8", "surrogatepass"), "settings")
    return text


def read_config(path: Path) -> dict[str, Any]:
    """The configuration of the run in the folder `path`.

    Raises UserError where there is no run, and DamagedError for a config.yaml that was cut off or
    is none of a run.
    """
    file = path / "config.yaml"
    if not present(file):
        raise UserError(no_run(path))
    try:
        config = load(file)
        if not file.read_bytes().rstrip().endswith(_END.encode()):
            raise UserError(
                f"{file}: its last line '{_END}' is missing, so the file seems to be cut off; "
                "restore it, or add that line if it is whole"
            )
        checked.config(config)
    except UserError as error:
        raise DamagedError(str(error)) from None
    except ValueError as error:
        raise DamagedError(f"{file}: {error}; restore it from a copy") from None
    return config


def needed(path: Path, config: Mapping[str, Any], field: str) -> Any:
    """A field of the settings of the run in `path`. Raises DamagedError where it is missing."""
    if field not in config:
        raise DamagedError(
            f"{path / 'config.yaml'}: field '{field}' is missing; restore it from a copy"
        )
    return config[field]


def part(split: str) -> str:
    """Where a cross-validation keeps the run of a fold: "folds/2" for "2/5"."""
    return f"{FOLDS}/{split.partition('/')[0]}"


def is_run(path: Path) -> bool:
    """Whether somebody may have kept a run there; what cannot be looked at is none."""
    return os.path.lexists(path / "config.yaml")


def goes_on(path: Path) -> str:
    """The command that goes on with the run at `path`, in backquotes, as a shell reads it."""
    return f"`workup resume {shlex.quote(str(path))}`"


def named(path: Path) -> Path:
    """`path`, with the folder's own name at its end.

    Example: in /runs/demo, "." is /runs/demo. "runs/demo" stays as it is.
    """
    return path.resolve() if path.name in ("", "..") else path


def free(path: Path) -> None:
    """Raises UserError where no run can be started in `path`; nothing is made.

    It must be new or empty, and the folder that exists already, itself or above it, writable.
    """
    if is_run(path):
        raise UserError(
            f"{path} already holds a run. Type {goes_on(path)} to go on with it, or choose "
            "another --out"
        )
    with clear_errors(path):
        if path.is_file():
            raise UserError(f"{path} is a file. Choose a folder with --out")
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UserError(
            f"{path!a}: this folder's name is no UTF-8, which config.yaml is; choose another --out"
        ) from None
    with clear_errors(path):
        # Files of a run that was killed while it was being created are no obstacle.
        if path.is_dir() and any(
            not file.name.lstrip(".").startswith(("versions.json", "config.yaml", "lock"))
            for file in path.iterdir()
        ):
            raise UserError(
                f"{path} is not empty and holds no run. Choose a new or empty folder with --out"
            )
        place = next(each for each in (path, *path.absolute().parents) if each.exists())
        if not place.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def no_run(path: Path) -> str:
    """Why `path` is no run folder, with the nearest one beside it or those in it."""
    siblings = sorted(path.parent.iterdir()) if path.parent.is_dir() else []
    runs = {folder.name: str(folder) for folder in siblings if is_run(folder)}
    near = get_close_matches(path.name, runs, n=1, cutoff=0.5)
    what = "is no run folder (it has no config.yaml)" if path.exists() else "does not exist"
    inside = sorted(path.iterdir()) if path.is_dir() and os.access(path, os.R_OK | os.X_OK) else []
    if own := [str(folder) for folder in inside if is_run(folder)]:
        return f"{path} {what}; it holds runs. Name one of them: {', '.join(own[:8])}."
    known = (
        f"Runs there: {', '.join(islice(runs.values(), 8))}."
        if runs
        else "`workup train` makes runs."
    )
    hint = f"Did you mean '{runs[near[0]]}'?" if near else known
    return f"{path} {what}. {hint}"


def _outcome(path: Path, row: sqlite3.Row) -> Outcome:
    with as_written(path, row):
        checked.columns(row)
        found = _decoded(row)
        checked.outcome(found)
    return found


def _decoded(row: sqlite3.Row) -> Outcome:
    decoded = {"parts": json.loads(row["parts"]), "measures": json.loads(row["measures"])}
    correct = None if row["correct"] is None else bool(row["correct"])
    return Outcome(**{**dict(row), **decoded, "correct": correct})


def _kept(
    lines: Iterable[tuple[int, dict[str, Any]]], stage: str, step: int
) -> tuple[int, set[str], int]:
    """The part of the metrics before the first step of `stage` after `step`.

    Three values: its length in bytes; the stages in it, with "" and `stage`; the last step of
    `stage` in it, or 0.
    """
    end, stages, last = 0, {"", stage}, 0
    for offset, line in lines:
        if line["stage"] == stage:
            if line["step"] > step:
                break
            last = line["step"]
        end = offset
        stages.add(line["stage"])
    return end, stages, last
