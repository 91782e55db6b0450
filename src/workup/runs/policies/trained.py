"""What a run was trained on, and which cases a spec names as seen from another folder."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from workup.cases.files import Split
from workup.core.disk import there

CLINIC = "clinic"  # a source without files


@dataclass(frozen=True, slots=True)
class Trained:
    """What a run was trained on: the training side of the source `cases` in split `split`."""

    run: str
    cases: str
    split: Split

    @property
    def spec(self) -> str:
        """`cases`, with a path that is valid in the current folder."""
        return found_from(self.run, self.cases)

    def of(self, spec: str) -> bool:
        """Whether `spec` names the same file or folder, or the same clinic."""
        return place_of(self.spec) == place_of(spec)


def found_from(run: str, cases: str) -> str:
    """The `cases` of `run`, with a path that is valid in the current folder.

    A relative path starts at the folder in which the run was made: the run's folder or one above
    it, or else the current one.
    """
    scheme, _, rest = cases.partition(":")
    place, hash_, view = rest.partition("#")
    if scheme == CLINIC:
        return cases
    folders = (*Path(run).resolve().parents, Path())
    paths = (there(str(folder / place)) for folder in folders)
    home = there(place) if place.startswith("~") else None
    found = home or next(filter(None, paths), place)
    return f"{scheme}:{found}{hash_}{view}"


def place_of(spec: str) -> tuple[str, str]:
    """The scheme of a spec, and its file or folder by its real path, without the view."""
    scheme, _, rest = spec.partition(":")
    place = rest.partition("#")[0]
    path = None if scheme == CLINIC else there(place)
    return scheme, place if path is None else str(path.resolve())


def held(spec: str) -> list[str]:
    """The digest of a spec's file, and of what stands beside it as `NAME.source.json`.

    For a folder, each file's name, size and time. Empty for a source without files.
    """
    scheme, place = place_of(spec)
    path = Path(place)
    if scheme == CLINIC or not path.exists():
        return []
    if path.is_file():
        digests = []
        for each in filter(Path.is_file, (path, path.with_suffix(".source.json"))):
            with each.open("rb") as file:
                digests.append(hashlib.file_digest(file, "blake2b").hexdigest())
        return digests
    found = sorted(each for each in path.rglob("*") if each.is_file())
    seen = ((each.relative_to(path), each.stat()) for each in found)
    return [f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in seen]


def view_of(spec: str) -> tuple[str, str, str]:
    return (*place_of(spec), spec.partition("#")[2])
