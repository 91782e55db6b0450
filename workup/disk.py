"""Files and folders that are whole or absent, and where the user's own cache lies."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from weakref import WeakSet

from workup.errors import UserError

_held: WeakSet[IO[Any]] = WeakSet()


@contextmanager
def whole_file(path: Path, *, private: bool = False) -> Iterator[Path]:
    """An empty file beside `path`, which takes its place when the block ends.

    Any reader, and the next start after a crash or a power cut, sees the old file or the new one.
    With `private` no other user may read it. Where the block fails, `path` stays as it was. Raises
    OSError when the disk refuses.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.draft")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666))
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """An empty folder beside `path`, which takes its place when the block ends.

    With `shared` other processes may write the same folder at the same time, and the first one
    stays. Without, it replaces what was there, and what a killed process left is removed. Where the
    block fails, `path` stays as it was. Raises OSError when the disk refuses.
    """
    draft = path.with_name(
        f".{path.name}.{secrets.token_hex(4)}.draft" if shared else f"{path.name}.draft"
    )
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir()
        yield draft
        if path.exists() and not shared:
            shutil.rmtree(path)
        try:
            draft.rename(path)
        except OSError:
            if not (shared and path.is_dir()):
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def hold(file: IO[Any]) -> None:
    """Locks the open `file` against other processes until it is closed or this process ends.

    A process that this one forks does not hold it: a worker that outlives a killed run must not
    keep others out. Raises BlockingIOError when another process holds it.
    """
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    _held.add(file)


def _let_go() -> None:
    # Closing this copy leaves the lock to the process that took it; unlocking would end it there.
    for file in list(_held):
        file.close()


os.register_at_fork(after_in_child=_let_go)


def users_cache() -> Path:
    """The folder for what several runs share: $WORKUP_CACHE, or the one in the user's own cache."""
    return Path(os.environ.get("WORKUP_CACHE") or Path.home() / ".cache" / "workup")


@contextmanager
def cached_folder(path: Path) -> Iterator[Path]:
    """A `whole_folder` of the user's cache, which any process may write; the first one stays.

    Raises UserError when the disk refuses.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_folder(path, shared=True) as draft:
            yield draft
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error} (set WORKUP_CACHE to a writable "
            "folder)"
        ) from error


def slug(name: str) -> str:
    """`name` as the name of a folder: whatever is no letter, digit, dot or hyphen is a hyphen."""
    return "".join(c if c.isalnum() or c in "-." else "-" for c in name).strip("-.")
