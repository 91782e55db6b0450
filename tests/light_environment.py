"""The wheel in an environment of its own: `make wheel` (not part of `make test`, it installs).

Without extras nothing heavy comes along, and everything of `light_world` works; `view` serves.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from light_world import ABSENT, run, walk
from serving import free_port
from waiting import HANG

ROOT = Path(__file__).parents[1]
LARGEST = 400  # MB of files, without the caches of compiled code that Python makes


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel and its extra `view`."""
    place = tmp_path_factory.mktemp("light") / "venv"
    wheels = list((ROOT / "build/wheel").glob("workup-*.whl"))
    assert len(wheels) == 1, "type: make wheel"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    pip = [str(place / "bin/python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, f"{wheels[0]}[view]"], check=True)
    return place


def test_it_is_small_and_has_nothing_heavy(place: Path) -> None:
    packages = next(place.glob("lib/*/site-packages"))
    assert not [name for name in ABSENT if (packages / name).exists()]
    files = [each for each in place.rglob("*") if each.is_file() and not each.is_symlink()]
    size = sum(each.stat().st_size for each in files if each.suffix != ".pyc") / 1e6
    print(f"the light environment has {size:.0f} MB")
    assert size <= LARGEST


def test_everything_works_that_needs_no_weights(place: Path, tmp_path: Path) -> None:
    variables = {"PATH": os.environ["PATH"], "WORKUP_CACHE": str(tmp_path / "cache")}
    folder = tmp_path / "here"
    folder.mkdir()
    program = [str(place / "bin/workup")]
    walk(lambda typed: run(program, typed, folder, **variables), folder)
    words = [*program, "view", "one", "--port", str(free_port())]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            link = process.stdout.readline().strip()
            answer = httpx2.get(link, timeout=HANG, follow_redirects=True)
        finally:
            process.terminate()
    assert answer.status_code == 200
    assert "clinic:xs" in answer.text
