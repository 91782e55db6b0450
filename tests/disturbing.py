"""Runs of the command that get a signal at some moment.

The program looks for the moment itself, whenever it touches a file of its run, has written episodes
or begins one of an evaluation. Somebody who watched it from outside could miss a short moment.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from command_line import forked, steps_of

from workup.core.episode import Episode
from workup.core.errors import WorkupError
from workup.loops.evaluation import examination
from workup.rl.rollout import ToPlay
from workup.runs import Run

TOUCHED = {"open", "os.mkdir", "os.rename", "os.rmdir", "os.remove"}  # Python's audit events
FOLDER = "run"  # of the run, in the working directory

Words = tuple[object, ...]
Moment = tuple[str, *tuple[str | int, ...]]
"""A name of MOMENTS, and what it takes."""


def after(stage: str, count: int) -> bool:
    """Whether `count` steps of `stage` are logged."""
    return len(steps_of(Path(FOLDER), stage)) >= count


def there(pattern: str) -> bool:
    """Whether the run has a file like `pattern`."""
    return any(Path(FOLDER).glob(pattern))


def written(phase: str, count: int, stage: str | None = None) -> bool:
    """Whether `count` episodes of `phase` (and `stage`) are kept."""
    try:
        with Run.open(FOLDER) as run:
            return len(run.episodes(phase=phase, stage=stage)) >= count
    except WorkupError:  # there is no run yet
        return False


def examined(count: int) -> bool:
    """Whether `count` episodes of an evaluation have begun."""
    return len(begun) >= count


MOMENTS: dict[str, Callable[..., bool]] = {
    "after": after,
    "there": there,
    "written": written,
    "examined": examined,
}
begun: list[str] = []  # the cases of the evaluation's episodes


def disturbed(words: Words, home: Path, moment: Moment, number: int, delay: float = 0) -> int:
    """Runs `workup WORDS` in `home`, sends it the signal `delay` seconds after the moment.

    What it says goes to output.txt. Returns the exit status.
    """
    done = forked(*words, cwd=home, prepare=partial(lie_in_wait, moment, number, delay))
    (home / "output.txt").write_text(done.stdout + done.stderr)
    return done.returncode


def lie_in_wait(moment: Moment, number: int, delay: float) -> None:
    """Has this process send itself the signal."""
    name, *arguments = moment
    lock, struck = threading.Lock(), False

    def heed() -> None:
        nonlocal struck
        if struck or not lock.acquire(blocking=False):  # looking touches files too
            return
        try:
            struck = MOMENTS[name](*arguments)
        finally:
            lock.release()
        if struck and delay:
            # No daemon: the program cannot end before.
            threading.Timer(delay, os.kill, (os.getpid(), number)).start()
        elif struck:
            os.kill(os.getpid(), number)

    def touched(event: str, told: tuple[Any, ...]) -> None:
        paths = [Path(path) for path in told if isinstance(path, str | Path)]
        if event in TOUCHED and any(FOLDER in path.parts for path in paths):
            heed()

    write, play = Run.write, examination.rollout

    def wrote(run: Run, records: Any) -> None:
        write(run, records)
        heed()

    async def begin(job: ToPlay, *others: Any) -> Episode:
        begun.append(job.case.id)
        heed()
        return await play(job, *others)

    Run.write, examination.rollout = wrote, begin
    sys.addaudithook(touched)
    # A background job would ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
