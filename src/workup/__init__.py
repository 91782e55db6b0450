"""Workup: train and evaluate language models that seek evidence before they diagnose.

    import workup

    run = workup.train("craft", cases="clinic:s", out="runs/mine", steps=200)
    run.summary["doctors"]["trained"]["accuracy"]
    run.episodes(doctor="trained", ending="out of turns")[0].show()

A test bench, no medical device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workup.cases import open_source
    from workup.cli.api import compare, evaluate, evaluate_suite, exam, open_run, resume, train

__all__ = [
    "compare",
    "evaluate",
    "evaluate_suite",
    "exam",
    "open_run",
    "open_source",
    "resume",
    "train",
]


def __getattr__(name: str) -> Any:
    """Imports on first use: `import workup` stays cheap."""
    if name not in __all__:
        raise AttributeError(f"module 'workup' has no attribute '{name}'")
    from importlib import import_module

    return getattr(
        import_module("workup.cases" if name == "open_source" else "workup.cli.api"), name
    )
