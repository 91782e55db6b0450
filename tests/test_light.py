"""Without torch, pyarrow and statsmodels endpoints are evaluated; runs are shown and exported.

The libraries are installed here, so a process is told that they are not.
`tests/light_environment.py` does the same in an environment that has none of them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from command_line import environment
from light_world import ABSENT, run, walk

PROGRAM = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
sys.argv[0] = "workup"
from workup.cli.app import main
main()
"""


@pytest.mark.long
def test_what_needs_no_weights_works_without_the_heavy_libraries(tmp_path: Path) -> None:
    variables = {**environment(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    folder = tmp_path / "here"
    folder.mkdir()
    walk(lambda typed: run([sys.executable, "-c", PROGRAM], typed, folder, **variables), folder)
