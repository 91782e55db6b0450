"""Runs of a claims file, several at once, each in a process of its own: resumable, within a time.

The queue's folder has SETUP/ARM-SEED, a run folder each, and beside it ARM-SEED.log, what the run
said. A run that has ended is left alone; one that was interrupted goes on where it was.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from workup.core.errors import UserError
from workup.runs import Run
from workup.runs.files import DamagedError
from workup.studies.claims import last_settings, meaning

PROGRAM = "import sys; from workup.cli.app import main; sys.argv[0] = 'workup'; main()"
POLL = 0.2  # seconds between two looks at the processes
TRAIN, EVALUATE = "train", "evaluate"
PATIENCE = 10.0  # seconds that a run has to end by itself, before it is killed


@dataclass(frozen=True)
class ClaimRun:
    """One run: `words` are what is typed behind `workup train`, or `verb`, without its folder.

    Runs of one `kin` share a warm start, which the first of them trains. So a run is not started
    while one of its kin is running, unless only such runs are left.
    """

    out: Path
    words: tuple[str, ...]
    kin: str
    verb: str = TRAIN

    @property
    def name(self) -> str:
        return f"{self.out.parent.name}/{self.out.name}"

    @property
    def typed(self) -> str:
        """What one types to begin it, but for its folder. Of settings of one name the last."""
        plain = chain(*last_settings(self.words[1:]).values())
        return shlex.join(["workup", self.verb, self.words[0], *plain])

    @property
    def log(self) -> Path:
        return self.out.with_name(f"{self.out.name}.log")

    @property
    def ended(self) -> bool:
        return summary_of(self.out) is not None

    def refuse_another(self) -> None:
        """Raises UserError where the folder has a run that was begun with other words.

        Raises it too for an evaluation whose trained run was replaced by a newer one. `--out` and
        `--policy` are not compared, since folders may have been moved.
        """
        if not (self.out / "config.yaml").exists():
            return
        with Run.open(self.out) as run:
            verb, typed = _typed(run)
        if (verb, _compared(verb, typed)) != (self.verb, _compared(self.verb, self.words)):
            raise UserError(
                f"{self.out} was begun with other words ({shlex.join(typed)}); remove it, or "
                "choose another --out"
            )
        if self.verb == EVALUATE:
            self._refuse_older(run.started)

    def _refuse_older(self, started: str) -> None:
        """Raises UserError where the trained run is gone, or was begun after its evaluation."""
        trained = Path(self.words[0])
        there = (trained / "config.yaml").exists()
        if there:
            with Run.open(trained) as run:
                there = run.started <= started
        if not there:
            raise UserError(f"{self.out} evaluates another run than {trained} has now; remove it")

    def command(self) -> tuple[str, ...]:
        """The words behind `workup`: they begin the run, or go on with it."""
        if (self.out / "config.yaml").exists():
            return ("resume", str(self.out))
        return (self.verb, *self.words, "--out", str(self.out))

    def why(self, said_before: int = 0) -> str:
        """The last line with words that a failed run said, after `said_before` bytes of its log."""
        told = self.log.read_bytes()[said_before:].decode("utf-8", errors="replace")
        lines = told.splitlines()
        return next((line for line in reversed(lines) if line.strip()), "it said nothing")


def _typed(run: Run) -> tuple[str, list[str]]:
    """The verb and the words behind it that began a run. Raises DamagedError."""
    said = run.versions.get("command")
    try:
        _, verb, first, *rest = shlex.split(said if isinstance(said, str) else "")
    except ValueError:
        raise DamagedError(
            f"{run.path / 'versions.json'}: its 'command' is not what begins a run ({said!r}); "
            "restore it from a copy, or remove the run"
        ) from None
    return verb, [first, *rest]


def _compared(verb: str, words: Sequence[str]) -> tuple[str, Mapping[str, str]]:
    """What two runs have to have in common: neither their folder nor that of their policy."""
    first, settings = meaning(words)
    return "" if verb == EVALUATE else first, {**settings, "--out": "", "--policy": ""}


def summary_of(folder: Path) -> Mapping[str, Any] | None:
    """The summary of a run that has ended; None while it has not.

    Raises DamagedError for a folder that holds something else, such as a suite's.
    """
    if not (folder / "config.yaml").exists():
        return None
    with Run.open(folder) as run:
        summary = run.summary
    if summary and summary.get("seconds") is None:
        raise DamagedError(
            f"{folder / 'summary.json'}: it does not say how many seconds the run took; restore it "
            "from a copy, or remove the run"
        )
    return summary or None


class _Started(NamedTuple):
    """A process that runs a job: since when, and how many bytes stood in the job's log before."""

    process: subprocess.Popen[bytes]
    at: float
    said_before: int


@dataclass
class Queue:
    """Starts jobs as they come, `workers` at once, and tells of each that has ended.

    `budget` is in seconds; None is no end. A run is begun only if it would end within the budget,
    going by the mean of those of its verb that have ended here; before the first has ended nothing
    is known, and any is begun. What still runs when the budget is over is stopped. `failed` has the
    reason of every job that failed. `took` has the seconds by the clock of the jobs that ended
    well, of a resumed one since it was resumed. `short` says whether the time was too short for
    some job.
    """

    workers: int
    budget: float | None = None
    failed: dict[ClaimRun, str] = field(default_factory=dict)
    took: dict[ClaimRun, float] = field(default_factory=dict)
    short: bool = False
    clock: Callable[[], float] = time.monotonic
    began: float = field(init=False)
    _running: dict[ClaimRun, _Started] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.began = self.clock()

    def run(self, jobs: Sequence[ClaimRun], told: Callable[[ClaimRun], object]) -> None:
        """Runs those `jobs` that have neither ended nor failed, each once, while there is time.

        `told` is called with each whose process ended by itself, also where it failed.

        The end of the budget stops the processes, which keep what they have. So does an
        interruption, which goes on to the caller.
        """
        left = [job for job in dict.fromkeys(jobs) if job not in self.failed and not job.ended]
        try:
            while left or self._running:
                while left and len(self._running) < self.workers and self.has_time(left[0].verb):
                    self._start(left.pop(self.following(left)))
                if self.budget is not None and self.spent > self.budget and self._running:
                    self.short = True
                    self._stop()
                if not self._running:
                    self.short |= bool(left)
                    return
                for job in self._over():
                    told(job)
                time.sleep(POLL)
        except BaseException:
            self._stop()
            raise

    @property
    def spent(self) -> float:
        """Seconds since the queue began."""
        return self.clock() - self.began

    def length(self, verb: str) -> float:
        """The mean time of a run of this verb, in seconds; 0 before the first has ended."""
        known = [seconds for job, seconds in self.took.items() if job.verb == verb]
        return fmean(known) if known else 0.0

    def has_time(self, verb: str = TRAIN) -> bool:
        """Whether one more run of this verb would probably end within the budget."""
        return self.budget is None or self.spent + self.length(verb) <= self.budget

    def following(self, left: Sequence[ClaimRun]) -> int:
        """The place of the first job that has no kin among the running ones, else 0."""
        busy = {job.kin for job in self._running}
        return next((place for place, job in enumerate(left) if job.kin not in busy), 0)

    def _start(self, job: ClaimRun) -> None:
        job.out.parent.mkdir(parents=True, exist_ok=True)
        with job.log.open("ab") as log:
            said = log.tell()
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *job.command()],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={"OMP_NUM_THREADS": "1", **os.environ},
            )
        self._running[job] = _Started(process, self.clock(), said)

    def _over(self) -> Iterator[ClaimRun]:
        for job, started in list(self._running.items()):
            if started.process.poll() is None:
                continue
            del self._running[job]
            try:
                if job.ended:
                    self.took[job] = self.clock() - started.at
                else:
                    self.failed[job] = job.why(started.said_before)
            except (UserError, DamagedError) as error:
                self.failed[job] = str(error)
            yield job

    def _stop(self) -> None:
        """Ends what runs, and waits until it has. A run can be ended at any moment."""
        processes = [started.process for started in self._running.values()]
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()
