"""Which of verl's checkpoints are whole. No other library is needed to know."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from workup.core.disk import whole_file
from workup.core.errors import UserError

PREFIX = "global_step_"  # verl's name of a checkpoint's folder
WHOLE = "workup.json"  # written when everything else is there


def seal(checkpoint: Path, step: int) -> None:
    """Marks a checkpoint as whole; the mark says which files it has, and their sizes in bytes."""
    files = {
        str(path.relative_to(checkpoint)): path.stat().st_size
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file()
    }
    with whole_file(checkpoint / WHOLE) as draft:
        draft.write_text(json.dumps({"step": step, "files": files}), encoding="utf-8")


def wait_for_files(checkpoint: Path, pauses: Iterable[float] = (1.0,) * 60) -> None:
    """Returns when every file of a whole checkpoint is there, in its size.

    A shared disk may show the mark before the files that another machine wrote. They are looked for
    again after each of `pauses`, in seconds. Raises UserError for the first that is still missing.
    """
    told = json.loads((checkpoint / WHOLE).read_text(encoding="utf-8"))
    for pause in chain(pauses, [None]):
        lacking = [
            name for name, size in told.get("files", {}).items() if _size(checkpoint / name) != size
        ]
        if not lacking:
            return
        if pause is not None:
            time.sleep(pause)
    raise UserError(
        f"{checkpoint / lacking[0]}: the checkpoint was whole, and this file is not there in its "
        "size; if the shared disk lags, wait and resume; else delete this checkpoint's folder, so "
        "that the stage goes on from the one before, or begins again"
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def whole(folder: Path) -> list[Path]:
    """The whole checkpoints in a stage's folder, oldest first.

    One that verl was writing when it was killed has no mark, and is passed over.
    """
    found = [path for path in folder.glob(f"{PREFIX}*") if (path / WHOLE).is_file()]
    return sorted((path for path in found if _number(path).isdigit()), key=step)


def step(checkpoint: Path) -> int:
    """How many steps a checkpoint has seen."""
    return int(_number(checkpoint))


def policy(checkpoint: Path) -> Path:
    """The model folder in a checkpoint, which transformers reads."""
    return checkpoint / "actor" / "huggingface"


def prune(folder: Path, keep: int) -> None:
    """Removes all but the newest `keep` whole checkpoints, and older incomplete ones."""
    kept = whole(folder)[-keep:]
    for path in folder.glob(f"{PREFIX}*"):
        if path not in kept and _number(path).isdigit() and step(path) < step(kept[-1]):
            shutil.rmtree(path)


def _number(path: Path) -> str:
    return path.name.removeprefix(PREFIX)
