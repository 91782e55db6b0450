"""Seconds until `workup --help` has answered: nobody waits for torch to read a usage line."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from bench.figures import Figure

RUNS, TARGET = 5, 0.5


def measure() -> list[Figure]:
    command = [str(Path(sys.executable).with_name("workup")), "--help"]
    seconds = []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        seconds.append(time.perf_counter() - start)
    # The first run pays for the disk.
    ours = median(seconds[1:])
    return [Figure("workup --help, seconds of the half allowed", ours, TARGET, "s", ours / TARGET, 1.0, False)]
