"""A local page on run folders: runs, episodes, tokens. It reads folders and changes nothing."""

from workup.viewer.app import serve
from workup.viewer.shown import opened

__all__ = ["opened", "serve"]
