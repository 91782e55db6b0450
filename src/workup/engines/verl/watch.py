"""Ends a stage whose TransferQueue has lost a process: verl itself would wait without a word."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from transfer_queue import interface

from workup.core.errors import WorkupError

PERIOD = 5.0  # seconds between two looks
ANSWER = 30.0  # seconds for which a process may be busy with something else
SIGNAL = signal.SIGUSR2
Lost = Callable[[], str]


def lost(answer: float = ANSWER) -> str:
    """Which process of TransferQueue is gone, in words; "" while all of them live.

    A process that only gives no answer within `answer` seconds is busy, not gone: Ray says so when
    a node is lost.
    """
    storage = (interface._TQ_STORAGE or {}).get("SimpleStorage", {})
    handles = {"its controller": interface._TQ_CONTROLLER}
    handles |= {f"its storage {number}": each for number, each in enumerate(storage.values(), 1)}
    for name, handle in handles.items():
        if handle is None:
            continue
        try:
            ray.get(handle.__ray_ready__.remote(), timeout=answer)
        except RayActorError:
            return name
        except GetTimeoutError:
            continue
    return ""


@contextmanager
def watched(look: Lost = lost, period: float = PERIOD) -> Iterator[None]:
    """A context that raises WorkupError soon after `look` finds a process gone.

    The main thread may then be in the middle of a wait, so a signal ends it (SIGUSR2). In another
    thread than the main one, where Python delivers no signal, nothing is watched.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    over, found = threading.Event(), list[str]()

    def watch() -> None:
        while not over.wait(period):
            if name := look():
                found.append(name)
                signal.pthread_kill(main, SIGNAL)
                return

    def end(signum: int, frame: FrameType | None) -> None:
        if not found:  # somebody else's signal
            if callable(before):
                before(signum, frame)
            return
        # asyncio would log the wait that ends here at the process's end, after this error.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        raise WorkupError(
            f"TransferQueue has lost a process ({found[0]}), and the step with it: nothing before "
            "it is lost; look after the machine, then type `workup resume` with the run's folder"
        )

    main, before = threading.main_thread().ident or 0, signal.getsignal(SIGNAL)
    signal.signal(SIGNAL, end)
    thread = threading.Thread(target=watch, name="TransferQueue's watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        signal.signal(SIGNAL, before if before is not None else signal.SIG_DFL)


def ended(error: Any) -> WorkupError:
    """A worker's end, which Ray reports in many lines, as an error of one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    why = lines[-1][:200] if lines else type(error).__name__
    return WorkupError(
        f"a worker of verl's ended, and the step with it ({why}); the steps since the last "
        "checkpoint are played again: type `workup resume` with the run's folder"
    )
