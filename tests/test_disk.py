"""Drafts: what a killed process was writing is removed, and what a living one writes is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner
from waiting import HANG

from workup.cases import open_source
from workup.cli import complete
from workup.cli.app import app
from workup.core.disk import in_turn, there, whole_file, whole_folder
from workup.core.errors import UserError
from workup.models import hub
from workup.report.live import Live
from workup.runs.policies import identities, resolve
from workup.runs.policies.trained import place_of
from workup.runs.settings import yaml_file
from workup.studies.base import task

WRITER = """
import sys
from pathlib import Path
from workup.core.disk import in_turn, whole_file, whole_folder
path = Path(sys.argv[2])
context = whole_file(path) if sys.argv[1] == "file" else whole_folder(path, shared=True)
with context as draft:
    (draft if sys.argv[1] == "file" else draft / "part").write_text("half")
    print(draft, flush=True)
    sys.stdin.read()
"""


TURN = """
import sys
from pathlib import Path
from workup.core.disk import in_turn
with in_turn(Path(sys.argv[1]), lambda: print("waits", flush=True)):
    print("begins", flush=True)
    sys.stdin.readline()
"""


def drafts(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.endswith(".draft")]


def begun(kind: str, path: Path) -> subprocess.Popen[str]:
    """A process that has begun to write `path` and waits."""
    words = [sys.executable, "-c", WRITER, kind, str(path)]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_killed_process_left_is_removed_by_the_next(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "made"
    killed, living = begun(kind, place), begun(kind, place)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert len(drafts(tmp_path)) == 2
    if kind == "file":
        with whole_file(place) as draft:
            draft.write_text("whole")
        assert place.read_text() == "whole"
    else:
        with whole_folder(place, shared=True) as draft:
            (draft / "part").write_text("whole")
        assert (place / "part").read_text() == "whole"
    assert len(drafts(tmp_path)) == 1, "the living one still writes"
    living.communicate("", timeout=HANG)
    assert living.returncode == 0
    assert drafts(tmp_path) == []


def test_a_writer_after_a_fork_keeps_its_draft(tmp_path: Path) -> None:
    """A child that outlives its parent holds nothing of the parent's."""
    script = WRITER.replace("sys.stdin.read()", "import os, time\n    os.fork() or time.sleep(600)")
    words = [sys.executable, "-c", script, "folder", str(tmp_path / "made")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as it:
        assert it.stdout is not None
        assert it.stdout.readline()
        it.wait()  # the parent has ended, and its folder is whole
        assert (tmp_path / "made" / "part").read_text() == "half"
        os.killpg(it.pid, signal.SIGKILL)


def test_other_names_are_left_alone(tmp_path: Path) -> None:
    others = (".made.draft", ".made.0000000000.draft", ".mad.deadbeef.draft", "made.x.draft")
    for name in others:
        (tmp_path / name).mkdir()
    with whole_folder(tmp_path / "made", shared=True):
        pass
    assert sorted(drafts(tmp_path)) == sorted(others)


def told(process: subprocess.Popen[str]) -> str:
    """The next line of its output."""
    assert process.stdout is not None
    return process.stdout.readline()


def test_what_must_not_be_done_twice_at_once_is_done_in_turn(tmp_path: Path) -> None:
    def taking_turns() -> subprocess.Popen[str]:
        words = [sys.executable, "-c", TURN, str(tmp_path / "new" / "warm.lock")]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    first = taking_turns()
    assert told(first) == "begins\n"
    second = taking_turns()
    assert told(second) == "waits\n"
    first.communicate("\n", timeout=HANG)
    assert told(second) == "begins\n", "as soon as the first is over"
    third = taking_turns()
    assert told(third) == "waits\n"
    second.kill()
    second.communicate(timeout=HANG)
    assert told(third) == "begins\n", "a process that is killed keeps nobody waiting"
    third.communicate("\n", timeout=HANG)


def test_nobody_waits_where_the_disk_refuses(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with in_turn(tmp_path / "file" / "warm.lock", lambda: pytest.fail("nobody is waited for")):
        pass


def test_what_is_there_has_a_name() -> None:
    assert there("~") == Path.home()
    assert there(".") == Path()
    assert there(str(Path(__file__))) == Path(__file__)
    assert there("") is None
    assert there("no such file") is None


IMPOSSIBLE = ["x" * 300, f"{'x' * 300}=1", "~nobody_of_this_name", "~nobody_of_this_name/x", "a\0b"]


def typed(*words: str) -> None:
    CliRunner().invoke(app, words, catch_exceptions=False)


@pytest.mark.parametrize("name", IMPOSSIBLE)
@pytest.mark.parametrize(
    "asks",
    [
        open_source,
        resolve,
        hub.weights,
        place_of,
        lambda name: identities({"judge": name}),
        lambda name: list(complete.paths(f"{name}/x")),
        lambda name: yaml_file("suite", name, Path()),
        lambda name: task.commissioned("study", "noise", [name], "clinic:xs", Live()),
        lambda name: typed("cases", name, "--validate"),
        lambda name: typed("exam", name, "--dry"),
    ],
)
def test_a_name_that_no_file_can_have_is_no_error_of_the_disk(
    name: str, asks: Callable[[str], object]
) -> None:
    assert there(name) is None
    with suppress(UserError):
        asks(name)
