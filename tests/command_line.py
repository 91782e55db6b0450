"""The installed `workup` command in a process of its own, with settings that make a whole run a matter of seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCRIPT = Path(sys.executable).with_name("workup")
# Small, and yet after this warm start most episodes ask something and end with a diagnosis.
SMALL = (
    "tiny.width=32", "sft.steps=30", "sft.lr=0.01", "steps=6", "batch=4", "group=4", "max_tokens=8", "evaluation.cases=10",
    "save_every=2",
)  # fmt: skip


def environment(cache: Path, **more: str) -> dict[str, str]:
    """This process's variables, with the warm-start cache in `cache`."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "WORKUP_CACHE": str(cache), "COLUMNS": "120", **more}


def workup(*words: object, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs `workup WORDS` in `cwd` to its end."""
    command = [str(SCRIPT), *map(str, words)]
    env = environment(cwd / "cache")
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=240, check=False, **options)


def finished(*words: object, cwd: Path) -> str:
    """What `workup WORDS` prints; it must succeed."""
    done = workup(*words, cwd=cwd)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def told(*words: object, cwd: Path, status: int = 2) -> str:
    """The one line in which `workup WORDS` tells what is wrong."""
    done = workup(*words, cwd=cwd)
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


def without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
