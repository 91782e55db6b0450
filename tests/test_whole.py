"""Files and folders that are written beside and renamed."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from workup.core.disk import whole_file, whole_folder

KILLED = """
import os, pathlib, signal, sys
from workup.core.disk import whole_file, whole_folder
make = {"file": whole_file, "folder": whole_folder}[sys.argv[1]]
with make(pathlib.Path(sys.argv[2])) as draft:
    (draft if draft.is_file() else draft / "part").write_text("new")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(kind: str, path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, kind, path], check=False).returncode == -9


@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o640)])
def test_a_file_takes_its_place_when_it_is_whole(tmp_path: Path, private: bool, mode: int) -> None:
    path, before = tmp_path / "file", os.umask(0o027)
    try:
        path.write_text("old")
        with whole_file(path, private=private) as draft:
            draft.write_text("new")
            assert path.read_text() == "old"
    finally:
        os.umask(before)
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError), whole_file(path) as draft:
        draft.write_text(f"half{chr(0xD800)}", encoding="utf-8")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    killed("file", path)
    assert path.read_text() == "old"


def test_a_folder_replaces_the_old_one_and_what_a_killed_process_left(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").touch()
    killed("folder", path)
    assert [each.name for each in path.iterdir()] == ["old"]
    with whole_folder(path) as draft:
        assert not list(draft.iterdir())
        (draft / "new").touch()
    assert [each.name for each in path.iterdir()] == ["new"]
    with pytest.raises(FileNotFoundError), whole_folder(path) as draft:
        (draft / "absent").read_text()
    assert [each.name for each in path.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [path]


def test_of_two_that_write_a_shared_folder_the_first_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with whole_folder(path, shared=True) as one:
        (one / "one").touch()
        with whole_folder(path, shared=True) as other:
            (other / "other").touch()
    assert [each.name for each in path.iterdir()] == ["other"]
    assert list(tmp_path.iterdir()) == [path]
