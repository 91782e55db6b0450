"""Which of verl's checkpoints are whole. No other library is needed to know."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from workup.disk import whole_file

PREFIX = "global_step_"  # verl's name of a checkpoint's folder
WHOLE = "workup.json"  # written when everything else is there


def seal(checkpoint: Path, step: int) -> None:
    """Marks a checkpoint as whole."""
    with whole_file(checkpoint / WHOLE) as draft:
        draft.write_text(json.dumps({"step": step}), encoding="utf-8")


def whole(folder: Path) -> list[Path]:
    """The whole checkpoints in a stage's folder, oldest first.

    One that verl was writing when it was killed has no mark, and is passed over.
    """
    found = [path for path in folder.glob(f"{PREFIX}*") if (path / WHOLE).is_file()]
    return sorted((path for path in found if _number(path).isdigit()), key=step)


def step(checkpoint: Path) -> int:
    """How many steps a checkpoint has seen."""
    return int(_number(checkpoint))


def prune(folder: Path, keep: int) -> None:
    """Removes all but the newest `keep` whole checkpoints, and older remains of kills."""
    kept = whole(folder)[-keep:]
    for path in folder.glob(f"{PREFIX}*"):
        if path not in kept and _number(path).isdigit() and step(path) < step(kept[-1]):
            shutil.rmtree(path)


def _number(path: Path) -> str:
    return path.name.removeprefix(PREFIX)
