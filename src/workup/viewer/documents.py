"""Pages that are files of their own: a run's report with its transcripts, and comparisons of runs.

A comparison is the page of `workup compare --html`. It is made in a temporary folder and kept in
memory; no run folder is written to.
"""

from __future__ import annotations

import hashlib
import io
import re
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from workup.report import compare
from workup.runs.files import present
from workup.viewer.asking import AddressError
from workup.viewer.pages import REPORT, MissingError
from workup.viewer.shown import ShownRun

LARGEST = 128 * 2**20  # bytes of a page
TRANSCRIPTS = "transcripts"
LEAF = re.compile(r"[0-9]{1,6}\.html")  # a page of transcripts
KEPT = 4  # comparisons in memory
MOST = 12  # runs of one comparison


def document(shown: ShownRun, page: str | None = None) -> bytes:
    """The run's report, or the page of transcripts called `page`.

    Raises MissingError where there is none, and DamagedError for one that is no file in the run's
    folder.
    """
    if page is not None and LEAF.fullmatch(page) is None:
        raise MissingError(f"{shown.name} has no page of transcripts '{page[:40]}'")
    path = shown.path / REPORT if page is None else shown.path / TRANSCRIPTS / page
    inside = path.parent.resolve().is_relative_to(shown.path.resolve())
    if not inside or not present(path, LARGEST):
        raise MissingError(f"{shown.name} has no {page or REPORT}; `workup report` writes it")
    return path.read_bytes()


class Comparisons:
    """The comparisons that were asked for last; safe for several threads."""

    PAGE = "runs.html"

    def __init__(self) -> None:
        self._made: dict[str, Mapping[str, bytes]] = {}  # key → name of a page → its content
        self._lock = threading.Lock()

    def make(self, runs: Sequence[ShownRun]) -> str:
        """Compares runs anew, and returns the key of their pages.

        One comparison is made at a time. Raises UserError as `workup.report.compare` does.
        """
        if not 2 <= len(runs) <= MOST:
            raise AddressError(f"two to {MOST} runs are compared: tick them in the list of runs")
        key = hashlib.sha256("\n".join(each.name for each in runs).encode()).hexdigest()[:16]
        with self._lock, tempfile.TemporaryDirectory() as folder:
            quiet = Console(file=io.StringIO())
            # A restricted run reaches this line only if the viewer was started with --restricted.
            compare([each.run for each in runs], Path(folder) / self.PAGE, quiet, transcripts=True)
            self._made.pop(key, None)
            self._made[key] = {
                path.relative_to(folder).as_posix(): path.read_bytes()
                for path in Path(folder).rglob("*.html")
            }
            for old in list(self._made)[:-KEPT]:
                del self._made[old]
        return key

    def page(self, key: str, name: str) -> bytes:
        """A page of a comparison. Raises MissingError for one that is not kept."""
        found = self._made.get(key, {}).get(name)
        if found is None:
            raise MissingError("this comparison is not kept any more: ask for it again")
        return found
