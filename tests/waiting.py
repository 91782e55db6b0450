"""How tests wait: for an event, and never for a time to pass."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

HANG = 600.0
"""Seconds after which a test takes a process, a server or a thread for hung.

Nothing that a test starts takes a tenth of it, even on a busy machine.
"""


def until(met: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    """Returns once the condition `met` holds; fails where `process` ends before."""
    end = time.monotonic() + HANG
    while not met():
        if process is not None and process.poll() is not None:
            raise AssertionError(f"it ended: {process.returncode} {process.communicate()}")
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.005)


def pause(seconds: float) -> None:
    """Lets some time pass where something is to happen at any moment, whichever that is."""
    time.sleep(seconds)
