"""Seconds until `workup --help` has answered, beside the half second that it may take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.figures import Figure, race

ROUNDS, ALLOWED = 5, 0.5


def measure() -> list[Figure]:
    command = [str(Path(sys.executable).with_name("workup")), "--help"]
    seconds = race(
        {"help": lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=True)}, ROUNDS
    )["help"]
    return [
        Figure(
            "workup --help, of what it may take",
            seconds,
            ALLOWED,
            "s",
            seconds / ALLOWED,
            1.0,
            False,
        )
    ]
