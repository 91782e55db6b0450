"""Warm starts of tiny policies by the hash of their recipe: none is made twice."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

from workup.errors import UserError
from workup.places import users_cache
from workup.whole import whole_folder

WEIGHTS = "model.safetensors"


class Store:
    """One warm start: in its run's `folder`, and for other runs of the same recipe in the user's
    cache.
    """

    def __init__(self, folder: Path, recipe: str) -> None:
        self.folder = folder
        self.shared = (
            users_cache() / "tiny" / hashlib.blake2b(recipe.encode(), digest_size=16).hexdigest()
        )

    @property
    def found(self) -> bool:
        """Whether this warm start has been made before."""
        return any(_complete(path) for path in (self.folder, self.shared))

    def take(self, load: Callable[[Path], str]) -> str:
        """Has `load` take the kept weights; returns why they do not fit, or "" if they did.

        The run's own copy comes first, so that it goes on from what it had.
        """
        why = "there are none"
        for folder in filter(_complete, (self.folder, self.shared)):
            if not (reason := load(folder)):
                return ""
            why = f"{folder}: {reason}"
        return why

    def discard(self) -> None:
        """Forgets weights that do not fit, so that those of `save` take their place."""
        for folder in (self.folder, self.shared):
            shutil.rmtree(folder, ignore_errors=True)

    def adopt(self) -> None:
        """Gives the run its own copy."""
        if not _complete(self.folder):
            _whole(self.folder, lambda path: shutil.copytree(self.shared, path, dirs_exist_ok=True))

    def save(self, write: Callable[[Path], object]) -> None:
        """Keeps the policy in both places: `write` makes a model folder."""
        _whole(self.folder, write)
        _whole(self.shared, write)


def _complete(folder: Path) -> bool:
    return (folder / WEIGHTS).exists()


def _whole(folder: Path, write: Callable[[Path], object]) -> None:
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
