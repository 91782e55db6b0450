"""What a built folder says of itself: its format, and every file with its checksum."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from workup.core.disk import checksum
from workup.core.errors import UserError


def entries(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The files of `folder` as a manifest has them: bytes and sha256 by name."""
    return {
        name: {"bytes": (folder / name).stat().st_size, "sha256": checksum(folder / name)}
        for name in names
    }


def read(
    path: Path, what: str, form: int, sound: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """The manifest at `path` as `sound` returns it, which raises ValueError, KeyError or TypeError.

    `what` is "index" or "base". Raises UserError for another format than `form`, and for what is
    not sound.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != form:
            raise UserError(
                f"{path}: format {found['format']}, and this version reads {form}; build the "
                f"{what} anew"
            )
        return sound(found)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: damaged ({str(error).splitlines()[0]}); build the {what} anew"
        ) from error


def opened(folder: Path, what: str, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Compares the files' sizes with the manifest's `files`. Raises UserError."""
    for name, entry in files.items():
        if problem := _wrong_size(folder / name, entry["bytes"]):
            raise UserError(f"{folder / name}: {problem}; restore it, or build the {what} anew")


def damages(
    folder: Path,
    files: Mapping[str, Mapping[str, Any]],
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> list[str]:
    """What differs from the manifest's `files`, in words; none when all checksums hold."""
    found, done, total = [], 0, sum(entry["bytes"] for entry in files.values())
    for name, entry in files.items():
        problem = _wrong_size(folder / name, entry["bytes"])
        if not problem and checksum(folder / name) != entry["sha256"]:
            problem = "its checksum is another"
        if problem:
            found.append(f"{name}: {problem}")
        done += entry["bytes"]
        progress("check", done, total)
    return found


def _wrong_size(path: Path, expected: int) -> str:
    if not path.exists():
        return "missing"
    size = path.stat().st_size
    return "" if size == expected else f"{size:,} bytes instead of {expected:,}"
