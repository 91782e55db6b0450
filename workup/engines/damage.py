"""Which file of a checkpoint cannot be read."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

from workup.errors import UserError


def refuse_damaged(checkpoint: Path) -> None:
    """Reads every file of a checkpoint that a resumed run needs.

    Raises UserError for the first one that cannot be read, as after a disk that was full or a copy
    that was cut off. It names the file and the command that goes on without this checkpoint.
    """
    for file in sorted(checkpoint.iterdir()):
        reason = _unreadable(file)
        if reason:
            raise UserError(
                f"{file}: this checkpoint is damaged ({reason}); type `rm -r {checkpoint}` and then "
                "`workup resume` again: it goes on from the checkpoint before, or else begins this stage anew"
            )


def _unreadable(file: Path) -> str:
    """Why a file cannot be read; "" where it can be, or where nothing reads it."""
    import torch
    from safetensors import SafetensorError, safe_open

    try:
        if file.suffix == ".json":
            json.loads(file.read_text(encoding="utf-8"))
        elif file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as weights:
                weights.keys()
        elif file.suffix in {".pt", ".pth"}:
            # Only pickles of our own making are here; a random state holds numpy arrays, which
            # the restricted reader refuses.
            torch.load(file, map_location="cpu", weights_only=False)
    except (
        OSError, EOFError, RuntimeError, ValueError, KeyError, pickle.UnpicklingError, SafetensorError,
    ) as error:  # fmt: skip
        return " ".join(str(error).split())[:120] or type(error).__name__
    return ""
