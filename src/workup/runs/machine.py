"""Which software on which machine made a run."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

MADE = ("started", "workup", "commit", "torch", "processor", "cpus", "accelerator")
"""What a published figure is kept with: parts of `versions` that name nobody's folders."""

_LIBRARIES = ("workup", "torch", "transformers", "trl", "verl", "peft", "numpy", "scipy")


def command() -> str:
    """What was typed to start this process, as a shell reads it."""
    return shlex.join(["workup", *sys.argv[1:]])


def versions(
    seeds: Mapping[str, int],
    made_by: str | None = None,
    weights: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What versions.json holds: versions, machine, seeds, and the command that makes the run again.

    The command is `made_by`, by default that of this process. `weights` names the local weights of
    each role, with a digest or a commit. Threads and accelerator are torch's, and null in a process
    that has not loaded torch.
    """
    torch = sys.modules.get("torch")
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        **{name: _version(name) for name in _LIBRARIES},
        "commit": _commit(),
        "weights": dict(weights) if weights else None,
        "platform": platform.platform(),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads() if torch else None,
        "accelerator": torch.cuda.get_device_name()
        if torch and torch.cuda.is_available()
        else None,
        "seeds": dict(seeds),
        "command": command() if made_by is None else made_by,
    }


def origin(found: Mapping[str, Any]) -> dict[str, Any]:
    """Of `versions` the parts that a published figure is kept with, those that are known."""
    return {key: found[key] for key in MADE if found.get(key) is not None}


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """The processor's marketing name, if Linux reports it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _commit() -> str | None:
    """The commit of the source checkout that this package runs from, if it is one.

    "+" after it means local changes.
    """
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    commit = _git(root, "rev-parse", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return commit + ("+" if changed else "") if commit else None


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
