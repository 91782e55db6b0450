"""Whole checkpoints: their files are listed when written, and checked before they are loaded."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

from workup.core.errors import UserError

CONTENTS = "contents.json"  # each file's path within the checkpoint → its size in bytes


def seal(checkpoint: Path) -> None:
    """Writes the names and sizes of a checkpoint's files into its `contents.json`."""
    sizes = {name: file.stat().st_size for name, file in sorted(_files(checkpoint).items())}
    (checkpoint / CONTENTS).write_text(json.dumps(sizes, indent=1), encoding="utf-8")


def refuse_incomplete(checkpoint: Path) -> None:
    """Compares a checkpoint with its `contents.json`, without reading the other files.

    A trainer continues silently without a missing file: without the optimiser's state it would end
    with other weights. Raises UserError for the first file that is missing or has another size; it
    names the file and the command that continues without this checkpoint.
    """
    noted = checkpoint / CONTENTS
    try:
        sizes = json.loads(noted.read_text(encoding="utf-8"))
        expected = {str(name): int(size) for name, size in sizes.items()}
    except FileNotFoundError:
        raise _damaged(checkpoint, noted, "it is missing") from None
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise _damaged(checkpoint, noted, _reason(error)) from error
    present = _files(checkpoint)
    for name, size in expected.items():
        if name not in present:
            raise _damaged(checkpoint, checkpoint / name, "it is missing")
        if (found := present[name].stat().st_size) != size:
            raise _damaged(checkpoint, present[name], f"{found:,} bytes instead of {size:,}")


def refuse_damaged(checkpoint: Path) -> None:
    """Reads every file of a checkpoint that a resumed run needs.

    Raises UserError for the first one that cannot be read, as after a disk failure. It names the
    file and the command that continues without this checkpoint.
    """
    for _, file in sorted(_files(checkpoint).items()):
        if reason := _unreadable(file):
            raise _damaged(checkpoint, file, reason)


def _files(checkpoint: Path) -> dict[str, Path]:
    """The checkpoint's files by their path within it, without `contents.json`."""
    found = {
        file.relative_to(checkpoint).as_posix(): file
        for file in checkpoint.rglob("*")
        if file.is_file()
    }
    found.pop(CONTENTS, None)
    return found


def _damaged(checkpoint: Path, file: Path, reason: str) -> UserError:
    return UserError(
        f"{file}: this checkpoint is damaged ({reason}); type `rm -r {checkpoint}` and then "
        "`workup resume` again: it goes on from the checkpoint before, or else begins this "
        "stage anew"
    )


def _unreadable(file: Path) -> str:
    """Why a file cannot be read; "" if it can be read, or if nothing reads it."""
    import torch
    from safetensors import SafetensorError, safe_open
    from transformers.trainer_pt_utils import safe_globals

    try:
        if file.suffix == ".json":
            json.loads(file.read_text(encoding="utf-8"))
        elif file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as weights:
                weights.keys()
        elif file.suffix in {".pt", ".pth"}:
            # The folder may come from elsewhere: nothing but tensors and the numpy arrays of a
            # random state is made of these pickles, as in the trainer that reads them next.
            with safe_globals():
                torch.load(file, map_location="cpu", weights_only=True)
    except (
        OSError,
        EOFError,
        RuntimeError,
        ValueError,
        KeyError,
        pickle.UnpicklingError,
        SafetensorError,
    ) as error:
        return _reason(error)
    return ""


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
