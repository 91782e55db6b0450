"""The `workup` command in a process of its own, with settings for runs of some seconds."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup
from waiting import HANG

from workup.report import plotting

Call = Callable[..., tuple[int, str, str]]  # words → exit status, standard output, standard error
# What a run imports; it takes longer than the run.
HEAVY = [
    "workup.loops.training.loop",
    "workup.engines.trl.trainer",
    "workup.engines.trl.preference",
    "workup.report.plotting",
]
QUIET = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
}
Done = subprocess.CompletedProcess[str]
Prepare = Callable[[], None]
SCRIPT = Path(sys.executable).with_name("workup")
# Small, and yet after this warm start most episodes ask something and end with a diagnosis.
SMALL = (
    "tiny.width=32",
    "sft.steps=30",
    "sft.lr=0.01",
    "steps=6",
    "batch=4",
    "group=4",
    "max_tokens=8",
    "evaluation.cases=10",
    "save_every=2",
)


def environment(cache: Path, **more: str) -> dict[str, str]:
    """This process's variables, with the warm-start cache in `cache`."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "WORKUP_CACHE": str(cache),
        "COLUMNS": "120",
        **more,
    }


def workup(*words: object, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs `workup WORDS` in `cwd` to its end."""
    return subprocess.run(
        [str(SCRIPT), *map(str, words)],
        cwd=cwd,
        env=environment(cwd / "cache"),
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
        **options,
    )


@cache
def warm() -> ForkServerContext:
    """Starts processes, each forked from one that has imported what a run needs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(HEAVY)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUIET.items():  # read when they are imported
            patch.setenv(name, value)
        forkserver.ensure_running()
    return context


def forked(*words: object, cwd: Path, prepare: Prepare | None = None) -> Done:
    """As `workup`, but five seconds sooner, since nothing has to be imported.

    Unlike real ones, all such processes hash strings alike, so what they do is worth comparing with
    what a real one did. Their reports have pictures where this process's have some. `prepare` is
    called there first: a function of a module, or a partial one.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        variables, picture = environment(cwd / "cache"), plotting._svg
        told = (list(map(str, words)), cwd, variables, out, err, prepare, picture)
        process = warm().Process(target=_run, args=told)
        process.start()
        process.join(HANG)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(f"workup {words} hangs: {err.read_text()}")
        return Done(words, process.exitcode, out.read_text(), err.read_text())


def _run(
    words: list[str],
    cwd: Path,
    variables: dict[str, str],
    out: Path,
    err: Path,
    prepare: Prepare | None,
    picture: Callable[..., Markup],
) -> None:
    assert sys.modules.keys() >= set(HEAVY), "something of HEAVY is gone, and slows the tests down"
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = ["workup", *words]
    gc.freeze()  # as in the tests themselves (conftest.py)
    vars(plotting)["_svg"] = picture
    if prepare is not None:
        prepare()
    from workup.cli import app as cli

    cli.main()


def finished(*words: object, cwd: Path) -> str:
    """What `workup WORDS` prints; it must succeed."""
    done = forked(*words, cwd=cwd)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def told(*words: object, cwd: Path, status: int = 2, start: Callable[..., Done] = forked) -> str:
    """The one line in which `workup WORDS` tells what is wrong.

    `start` is `workup` where what is imported has read variables that the test sets.
    """
    done = start(*words, cwd=cwd)
    assert done.returncode == status, (done.returncode, done.stdout[-500:], done.stderr[-2000:])
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")


def steps_of(run: Path, stage: str = "") -> list[dict[str, Any]]:
    """The whole lines of metrics.jsonl (of `stage`, if given), as the file stands now."""
    path = run / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [line for line in map(json.loads, lines) if stage in ("", line["stage"])]


# The figures of a step that a clock decides.
TINIEST: Mapping[str, Any] = {
    "tiny": {"width": 16, "layers": 1},
    "sft": {"steps": 2, "batch": 2},
    "steps": 2,
    "batch": 2,
    "group": 2,
    "max_tokens": 8,
    "quiet": True,
}
"""The shortest training there is, as keywords of `workup.train`."""
CLOCKED = (
    *("seconds", "processor_seconds", "update_seconds", "scoring_seconds"),
    "tokens_per_second",
)


def without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
