"""One command and one seed: the weights of two undisturbed runs are the same, bit for bit."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest
from command_line import environment
from trained import trained
from waiting import HANG, pause

from workup import methods
from workup.core.case import Passage
from workup.retrieval.index import Index
from workup.runs import Run

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("shared_cache", "unreported")]
_find = Index.find


@pytest.fixture
def unreported(monkeypatch: pytest.MonkeyPatch) -> None:
    """No report is made, which takes longer than such a run."""
    monkeypatch.setattr("workup.report.build", lambda run: None)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, str]]:
    """The folder of a method's run, and the digest of its weights."""

    @cache
    def run(name: str) -> tuple[Path, str]:
        folder = tmp_path_factory.mktemp(name) / "first"
        return folder, trained(name, folder)

    return run


def late(self: Index, queries: Sequence[str], k: int) -> Sequence[Sequence[Passage]]:
    """What the index finds, after a moment: another machine, or one with other work to do."""
    pause(random.random() * 0.01)
    return _find(self, queries, k)


def different() -> list[str]:
    """One method for each way to train: an environment, stages, and who declares it.

    A paper's baselines that train in one way differ only in what a reward counts.
    """
    ways: dict[tuple[object, ...], str] = {}
    for name in methods.names():
        method = methods.load(name)
        stages = vars(method)["stages"].__code__  # the same for all that one function makes
        way = (method.environment["name"], stages, method.settings.__module__)
        ways.setdefault(way, name)
    return list(ways.values())


@pytest.mark.parametrize("name", different())
def test_two_runs_of_one_command_have_the_same_weights(
    name: str,
    first: Callable[[str], tuple[Path, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one trains the warm start, the second one finds it, and its searches take long."""
    _, digest = first(name)
    monkeypatch.setattr(Index, "find", late)
    assert trained(name, tmp_path / "second") == digest


@pytest.mark.parametrize("name", ["cmig", "medr3"])
def test_the_runs_that_search_are_worth_comparing(
    name: str, first: Callable[[str], tuple[Path, str]]
) -> None:
    folder, _ = first(name)
    with Run.open(folder) as run:
        turns = [turn for r in run.episodes(phase="train") for turn in r.episode.turns]
    assert any(turn.observation.passages for turn in turns)


def test_nothing_depends_on_how_a_process_hashes_strings(
    first: Callable[[str], tuple[Path, str]], tmp_path: Path
) -> None:
    """Sets of names are in another order in each process."""
    name = "medr3"
    program = [sys.executable, Path(__file__).with_name("trained.py"), tmp_path, name]
    variables = environment(tmp_path / "cache", PYTHONHASHSEED="1")
    done = subprocess.run(
        list(map(str, program)),
        env=variables,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert done.stdout.split() == [name, first(name)[1]], done.stderr[-2000:]
