"""A local page on run folders, which it does not change, and one on which people review."""

from workup.viewer.app import ServerAddress, serve
from workup.viewer.reviewing import serve_review
from workup.viewer.shown import opened

__all__ = ["ServerAddress", "opened", "serve", "serve_review"]
