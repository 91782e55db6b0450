"""Warm-started tiny policies by content hash: what was made once from the same recipe is not made
again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

from workup.errors import UserError
from workup.whole import whole_folder

WEIGHTS = "model.safetensors"


def cache() -> Path:
    """Where they are kept between runs: $WORKUP_CACHE, or the user's cache folder."""
    return Path(os.environ.get("WORKUP_CACHE") or Path.home() / ".cache" / "workup")


class Store:
    """One warm start: in its run's `folder`, and for other runs of the same recipe in the user's
    cache.
    """

    def __init__(self, folder: Path, recipe: str) -> None:
        self.folder = folder
        self.shared = (
            cache() / "tiny" / hashlib.blake2b(recipe.encode(), digest_size=16).hexdigest()
        )

    @property
    def found(self) -> bool:
        """Whether this warm start has been made before."""
        return any(_complete(path) for path in (self.folder, self.shared))

    def load_into(self, model: Any) -> str:
        """Puts the kept weights into `model`; returns why they do not fit, or "" if they did.

        The run's own copy comes first, so that it goes on from what it had. Weights that do not fit
        may leave the model half loaded.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_model

        why = "there are none"
        for folder in filter(_complete, (self.folder, self.shared)):
            try:
                load_model(model, str(folder / WEIGHTS))
            except (RuntimeError, SafetensorError, OSError) as error:
                why = f"{folder}: {' '.join(str(error).split())[:200]}"
            else:
                return ""
        return why

    def discard(self) -> None:
        """Forgets weights that do not fit, so that those of `save` take their place."""
        for folder in (self.folder, self.shared):
            shutil.rmtree(folder, ignore_errors=True)

    def adopt(self) -> None:
        """Gives the run its own copy."""
        if not _complete(self.folder):
            _whole(self.folder, lambda path: shutil.copytree(self.shared, path, dirs_exist_ok=True))

    def save(self, model: Any, tokenizer: Any) -> None:
        """Keeps the policy in both places, in the Hugging Face format."""

        def write(path: Path) -> None:
            model.save_pretrained(path)
            tokenizer.save_pretrained(path)

        _whole(self.folder, write)
        _whole(self.shared, write)


def _complete(folder: Path) -> bool:
    return (folder / WEIGHTS).exists()


def _whole(folder: Path, write: Any) -> None:
    """Another run of the same recipe may be faster: its weights are the same.

    Raises UserError when the disk refuses.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with whole_folder(folder, shared=True) as draft:
            write(draft)
    except OSError as error:
        raise UserError(
            f"cannot write {folder}: {error.strerror or error} (set WORKUP_CACHE to a writable "
            "folder)"
        ) from error
