"""One profile for all property tests: a slow or crowded machine is no failure.

What many tests share.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Call
from hypothesis import HealthCheck, settings
from pictures import blank

from workup.cli import app as cli

settings.register_profile("workup", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("workup")


def pytest_collection_finish() -> None:
    """Every training stage ends with a garbage collection, which need not go through libraries."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def pictures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Reports have no pictures, except in files that look at them (`pytestmark`: drawn)."""
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("drawn") is None:
            patch.setattr("workup.report.plotting._svg", blank)
        yield


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One cache for a whole file: runs of one recipe share their warm start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKUP_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """`workup WORDS` in this process and an empty folder.

    Returns (exit status, standard output, standard error).
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["workup", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run
