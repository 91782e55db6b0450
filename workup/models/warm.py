"""Warm-started tiny policies by content hash: what was made once from the same recipe is not made again."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from workup.errors import UserError


def cache() -> Path:
    """Where they are kept between runs: $WORKUP_CACHE, or the user's cache folder."""
    return Path(os.environ.get("WORKUP_CACHE") or Path.home() / ".cache" / "workup")


class Store:
    """One warm start: in its run's `folder`, and for other runs of the same recipe in the user's cache."""

    def __init__(self, folder: Path, recipe: str) -> None:
        self.folder = folder
        self.shared = cache() / "tiny" / hashlib.blake2b(recipe.encode(), digest_size=16).hexdigest()

    def load_into(self, model: Any) -> bool:
        """Puts the kept weights into `model`; False when there are none.

        The run's own copy comes first, so that a resumed run goes on from exactly what it had.
        """
        from safetensors.torch import load_model

        found = next((path for path in (self.folder, self.shared) if (path / "model.safetensors").exists()), None)
        if found is None:
            return False
        load_model(model, str(found / "model.safetensors"))
        if found != self.folder:
            _whole(self.folder, lambda path: shutil.copytree(found, path, dirs_exist_ok=True))
        return True

    def save(self, model: Any, tokenizer: Any) -> None:
        """Keeps the policy in both places, in the Hugging Face format."""

        def write(path: Path) -> None:
            model.save_pretrained(path)
            tokenizer.save_pretrained(path)

        _whole(self.folder, write)
        _whole(self.shared, write)


def _whole(folder: Path, write: Any) -> None:
    """Fills a folder beside, then renames: it is complete or absent. Raises UserError when the disk refuses."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        write(beside)
        if folder.exists():
            shutil.rmtree(folder)
        beside.replace(folder)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror or error} (set WORKUP_CACHE to a writable folder)") from error
