"""How far a run is, from its folder alone."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import Any

from workup.runs import Run
from workup.runs.words import WARM_START

LOCKS = Path("/proc/locks")
FRESH = 120.0  # seconds since the last write, where the system does not tell who holds a lock
PACE = 50  # the last steps, by whose pace the time left is estimated


class State(StrEnum):
    """What a run is doing."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class StageSteps:
    """One stage: its steps so far, of how many where that is known, and the seconds left.

    `at_most`: there may be fewer than `total`.
    """

    name: str
    done: int
    total: int | None = None
    left: float | None = None
    at_most: bool = False


def state(run: Run) -> State:
    """Running while a process holds the run; finished with a summary; else stopped."""
    if held(run.path / ".lock"):
        return State.RUNNING
    if (run.path / "summary.json").exists():
        return State.FINISHED
    if LOCKS.exists():
        return State.STOPPED
    times = [file.stat().st_mtime for file in run.path.iterdir() if file.is_file()]
    return State.RUNNING if time.time() - max(times, default=0.0) < FRESH else State.STOPPED


def held(lock: Path) -> bool:
    """Whether a process holds the lock on this file; it is not touched.

    Trying to take the lock would refuse a run that begins at the same moment.
    """
    try:
        inode, lines = lock.stat().st_ino, LOCKS.read_text().splitlines()
    except OSError:
        return False
    # "1: FLOCK ADVISORY WRITE 7652 fe:00:2336669 0 EOF"
    words = [line.split() for line in lines]
    return any("FLOCK" in each and each[-3].rpartition(":")[2] == str(inode) for each in words)


def stages(run: Run, lines: Sequence[Mapping[str, Any]]) -> list[StageSteps]:
    """The stages of a training that have begun; the last one with the time left at its pace."""
    names = list(dict.fromkeys(line["stage"] for line in lines))
    return [_stage(run, name, [line for line in lines if line["stage"] == name]) for name in names]


def _stage(run: Run, name: str, lines: Sequence[Mapping[str, Any]]) -> StageSteps:
    total, done = _total(run.config, lines), int(lines[-1]["step"])
    paces = [float(line["seconds"]) for line in lines[-PACE:] if line.get("seconds")]
    left = (total - done) * fmean(paces) if total and paces else None
    return StageSteps(name, done, total, left)


def _total(config: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> int | None:
    """The steps that a stage will have, where the settings say so: reinforcement and warm starts.

    Those of the other stages depend on the cases.
    """
    first = lines[0]
    if "reward" in first:
        return _whole(config.get("steps"), lines)
    settings = config.get("sft")
    warm = "kept" not in first and "preferred" not in first and first["stage"] == WARM_START
    return _whole(settings.get("steps"), lines) if warm and isinstance(settings, Mapping) else None


def _whole(value: object, lines: Sequence[Mapping[str, Any]]) -> int | None:
    return value if isinstance(value, int) and value >= int(lines[-1]["step"]) else None


def evaluations(run: Run, counts: Sequence[tuple[str, int]]) -> list[StageSteps]:
    """The doctors that have been evaluated, and the one that is, with the episodes played so far.

    They play one after the other, so that only the last may have episodes left. All play the same
    cases, of which there may be fewer than the settings allow: how many is not known of the first.
    """
    settings = run.config.get("evaluation")
    cases, samples = (
        (settings.get(name) for name in ("cases", "samples"))
        if isinstance(settings, Mapping)
        else (None, None)
    )
    known = isinstance(cases, int) and isinstance(samples, int) and cases > 0
    total = cases * samples if known else None  # type: ignore[operator]
    done = [StageSteps(doctor, count, count) for doctor, count in counts[:-1]]
    last = [
        StageSteps(doctor, count, done[0].total)
        if done
        else StageSteps(doctor, count, total, at_most=True)
        for doctor, count in counts[-1:]
    ]
    return done + last


def spent(run: Run, lines: Sequence[Mapping[str, Any]]) -> float | None:
    """The money that the run has cost: by its summary, or until the last step that told it."""
    calls = run.summary.get("calls") or ()
    if calls:
        return float(sum(row.get("cost") or 0.0 for row in calls))
    told = [line["spent"] for line in lines[-1:] if isinstance(line.get("spent"), int | float)]
    return float(told[0]) if told else None
