"""Warm-started tiny policies by the hash of their recipe: the same recipe is trained once."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from workup.core.disk import cached_folder, in_turn, refuse_unwritable, users_cache

WEIGHTS = "model.safetensors"


def refuse_unwritable_cache() -> None:
    """Raises UserError where no warm start could be kept in the user's cache, and none is there."""
    kept = users_cache() / "tiny"
    if not (os.access(kept, os.R_OK) and any(kept.glob(f"*/{WEIGHTS}"))):
        refuse_unwritable(kept)


class Store:
    """One warm start: in its run's `folder`, and in the user's cache for equal recipes."""

    def __init__(self, folder: Path, recipe: str) -> None:
        self.folder = folder
        self.shared = (
            users_cache() / "tiny" / hashlib.blake2b(recipe.encode(), digest_size=16).hexdigest()
        )

    def in_turn(self, waiting: Callable[[], object]) -> AbstractContextManager[None]:
        """Keeps runs of the same recipe from training it at once: the later ones wait."""
        return in_turn(self.shared.with_name(f"{self.shared.name}.lock"), waiting)

    @property
    def found(self) -> bool:
        """Whether this warm start exists."""
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
        """Forgets weights that do not fit, so that `save` can replace them."""
        for folder in (self.folder, self.shared):
            shutil.rmtree(folder, ignore_errors=True)

    def check(self) -> None:
        """Raises UserError where a warm start that is trained now could not be kept."""
        refuse_unwritable(self.shared)

    def adopt(self) -> None:
        """Copies the weights into the run's folder."""
        if not _complete(self.folder):
            _whole(self.folder, lambda path: shutil.copytree(self.shared, path, dirs_exist_ok=True))

    def save(self, write: Callable[[Path], object]) -> None:
        """Keeps the policy in both places; `write` makes a model folder."""
        _whole(self.folder, write)
        _whole(self.shared, write)


def _complete(folder: Path) -> bool:
    return (folder / WEIGHTS).exists()


def _whole(folder: Path, write: Callable[[Path], object]) -> None:
    """Writes a model folder whole or not at all.

    If another run of the same recipe was faster, its folder stays: the weights are the same.
    """
    with cached_folder(folder) as draft:
        write(draft)
