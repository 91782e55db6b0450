"""What a file or folder holds that was named without its kind: told from its names and fields.

A source may say by what its release is known. `FILES` are patterns of its files' places within the
folder, `FIELDS` names of fields that its rows have together, separated by blanks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from types import ModuleType

SEEN = 1_000  # entries of a folder, at most
HEAD = 65_536  # bytes of a file
DATA = (".json", ".jsonl", ".csv", "")  # endings of files whose fields are read
_KEY = re.compile(r'"((?:[^"\\]|\\.){1,80})"\s*:')


def kind_of(path: Path, sources: Mapping[str, ModuleType]) -> str:
    """The name of the source that `path` is made for; "" where none or several fit.

    Names of files decide; else the fields at the beginning of the file, or of a folder's first file
    with any that are known.
    """
    try:
        if named := _by_names(path, sources):
            return named
        files: Iterable[Path] = [path]
        if path.is_dir():
            entries = sorted(islice(path.rglob("*"), SEEN))
            files = (file for file in entries if file.suffix in DATA and file.is_file())
        return next((kind for file in files if (kind := _by_fields(file, sources))), "")
    except OSError:  # what cannot be read is not recognised
        return ""


def _by_names(path: Path, sources: Mapping[str, ModuleType]) -> str:
    def fits(pattern: str) -> bool:
        return any(path.glob(pattern)) if path.is_dir() else path.match(pattern)

    found = [name for name, source in sources.items() if any(map(fits, _said(source, "FILES")))]
    return found[0] if len(found) == 1 else ""


def _by_fields(file: Path, sources: Mapping[str, ModuleType]) -> str:
    """The source most of whose fields are there."""
    with file.open("rb") as opened:
        head = opened.read(HEAD).decode("utf-8", "replace")
    known = {*_KEY.findall(head), *head.partition("\n")[0].strip().split(",")}
    found: dict[str, int] = {}
    for name, source in sources.items():
        several = [set(each.split()) for each in _said(source, "FIELDS")]
        if whole := [fields for fields in several if fields <= known]:
            found[name] = max(map(len, whole))
    best = [name for name, count in found.items() if count == max(found.values())]
    return best[0] if len(best) == 1 else ""


def _said(source: ModuleType, what: str) -> tuple[str, ...]:
    said: tuple[str, ...] = getattr(source, what, ())
    return said
