"""All transcripts on further pages beside a report, linked to each other and from the report.

Each page holds a limited number.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workup.report.rendering import render
from workup.report.transcripts import Player, everything, in_pages, legend
from workup.runs.files import clear_errors, write_whole


@dataclass(frozen=True)
class Leaf:
    """One of the further pages: its file, and the places (from 1) of its first and last case."""

    name: str
    first: int
    last: int


def write(
    folder: Path, players: Sequence[Player], title: str, back: str, *, private: bool = False
) -> list[Leaf]:
    """Writes every evaluated episode of `players` into `folder` as 1.html, 2.html, ….

    Older pages are removed. At most two pages are in memory at a time. `back` is the file that
    links here, beside `folder`. With `private` the folder and its files are their owner's alone.
    Without players nothing is left. Raises UserError when the disk refuses.
    """
    leaves: list[Leaf] = []
    if players:
        with clear_errors(folder):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o700 if private else 0o755)
        pages = in_pages(everything(players))
        page = next(pages, None)
        while page is not None:
            following = next(pages, None)
            last = leaves[-1].last if leaves else 0
            leaves.append(Leaf(f"{len(leaves) + 1}.html", last + 1, last + len(page)))
            head = {
                "title": title,
                "back": f"../{back}",
                "leaf": leaves[-1],
                "number": len(leaves),
                "last": following is None,
            }
            text = render("transcripts.html", **head, meetings=page, **legend(page))
            write_whole(folder / leaves[-1].name, text, private=private)
            page = following
    _remove_others(folder, {leaf.name for leaf in leaves})
    return leaves


def _remove_others(folder: Path, kept: Container[str]) -> None:
    if not folder.is_dir():
        return
    with clear_errors(folder):
        for path in folder.iterdir():
            if re.fullmatch(r"\d+\.html", path.name) and path.name not in kept:
                path.unlink()
    with suppress(OSError):
        folder.rmdir()  # where nothing is left in it
