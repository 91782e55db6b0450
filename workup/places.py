"""Folders outside of run folders."""

from __future__ import annotations

import os
from pathlib import Path


def users_cache() -> Path:
    """The folder for what several runs share: $WORKUP_CACHE, or the one in the user's own cache."""
    return Path(os.environ.get("WORKUP_CACHE") or Path.home() / ".cache" / "workup")
