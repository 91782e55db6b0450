"""Files and folders that are whole or absent, and where the user's own cache lies.

What is being written is a draft beside its place, and its process holds a lock on it. So a draft
that nobody holds is one whose process was killed: the next one that writes to the same place, on
the same machine, removes it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from weakref import WeakSet
from zlib import crc32

from workup.core.errors import UserError

# Another machine's lock on a shared disk may not show: its drafts are left alone.
_HERE = f"{crc32(socket.gethostname().encode()) & 0xFFFF:04x}"


class _Lock:
    """An open file or folder that this process alone holds, as far as the disk knows locks."""

    def __init__(self, path: Path) -> None:
        self._opened = os.open(path, os.O_RDONLY)
        with suppress(OSError):  # a disk without locks: nobody can take the draft for abandoned
            fcntl.flock(self._opened, fcntl.LOCK_EX)
        _held.add(self)

    def close(self) -> None:
        if self._opened >= 0:
            os.close(self._opened)
        self._opened = -1


_held: WeakSet[IO[Any] | _Lock] = WeakSet()


@contextmanager
def whole_file(path: Path, *, private: bool = False) -> Iterator[Path]:
    """An empty file beside `path`, which takes its place when the block ends.

    Any reader, and the next start after a crash or a power cut, sees the old file or the new one.
    With `private` no other user may read it. Where the block fails, `path` stays as it was. Raises
    OSError when the disk refuses.
    """
    sweep(path)
    mode = 0o600 if private else 0o666
    draft, lock = _begun(path, lambda new: os.close(os.open(new, os.O_CREAT | os.O_EXCL, mode)))
    try:
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
        lock.close()


@contextmanager
def whole_folder(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """An empty folder beside `path`, which takes its place when the block ends.

    With `shared` other processes may write the same folder at the same time, and the first one
    stays. Without, it replaces what was there. Where the block fails, `path` stays as it was.
    Raises OSError when the disk refuses.
    """
    lock: _Lock | None = None
    if shared:
        sweep(path)
        draft, lock = _begun(path, Path.mkdir)
    else:
        draft = path.with_name(f"{path.name}.draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
    try:
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
        if lock is not None:
            lock.close()


@contextmanager
def new_parents(path: Path) -> Iterator[None]:
    """A context that makes the folders above `path`.

    Where it fails, those that it has made and that are empty go. Raises OSError when the disk
    refuses.
    """
    made = [each for each in path.parents if not each.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):  # one of them holds something
            for each in made:
                each.rmdir()
        raise


def _begun(path: Path, make: Callable[[Path], None]) -> tuple[Path, _Lock]:
    """A new draft of `path`, and the lock on it."""
    while True:
        draft = path.with_name(f".{path.name}.{_HERE}{secrets.token_hex(4)}.draft")
        make(draft)
        try:
            lock = _Lock(draft)
        except FileNotFoundError:  # swept away before it was locked
            continue
        if draft.exists():
            return draft, lock
        lock.close()


def sweep(path: Path) -> None:
    """Removes the drafts of `path` whose processes were killed on this machine."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.{_HERE}[0-9a-f]{{8}}\.draft")
    try:
        found = [Path(each) for each in os.scandir(path.parent) if ours.fullmatch(each.name)]
    except OSError:  # no such folder yet, or one that nobody may list
        return
    for draft in found:
        with suppress(OSError):  # another process holds it, or has just removed it
            opened = os.open(draft, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if stat.S_ISDIR(os.fstat(opened).st_mode):
                    shutil.rmtree(draft, ignore_errors=True)
                else:
                    draft.unlink()
            finally:
                os.close(opened)


def hold(file: IO[Any], *, wait: bool = False) -> None:
    """Locks the open `file` against other processes until it is closed or this process ends.

    A process that this one forks does not hold it: a worker that outlives a killed run must not
    keep others out. Where another process holds it, it waits or raises BlockingIOError.
    """
    fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    _held.add(file)


@contextmanager
def in_turn(path: Path, waiting: Callable[[], object]) -> Iterator[None]:
    """Runs the block while no other process of this machine runs one for the same `path`.

    Where another one does, `waiting` is called first; then this process waits. `path` is an empty
    file, which is made and stays. On a disk that refuses files or locks nobody waits.
    """
    with ExitStack() as opened:
        busy: IO[Any] | None = None
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = opened.enter_context(path.open("a"))
            try:
                hold(file)
            except BlockingIOError:
                busy = file
        if busy:
            waiting()
            hold(busy, wait=True)
        yield


def _let_go() -> None:
    # Closing this copy leaves the lock to the process that took it; unlocking would end it there.
    for file in list(_held):
        file.close()


os.register_at_fork(after_in_child=_let_go)


def checksum(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def users_cache() -> Path:
    """The folder for what several runs share: $WORKUP_CACHE, or the one in the user's own cache."""
    return Path(os.environ.get("WORKUP_CACHE") or Path.home() / ".cache" / "workup")


def refuse_unwritable(path: Path) -> None:
    """Raises UserError where `path`, in the user's cache, could not be made; nothing is made."""
    try:
        place = next(each for each in (path, *path.absolute().parents) if each.exists())
        if not place.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> UserError:
    return UserError(
        f"cannot write {path}: {error.strerror or error} (set WORKUP_CACHE to a writable folder)"
    )


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
        raise _unwritable(path, error) from error


def there(name: str) -> Path | None:
    """The file or folder of this name; None without one, and for a name that none can have."""
    try:
        path = Path(name).expanduser()
        return path if name and path.exists() else None
    except (OSError, RuntimeError, ValueError):  # a name too long, ~ of nobody, half a character
        return None


def slug(name: str) -> str:
    """`name` as the name of a folder: whatever is no letter, digit, dot or hyphen is a hyphen."""
    return "".join(c if c.isalnum() or c in "-." else "-" for c in name).strip("-.")
