"""The same from Python: what the commands do, in one call each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workup import live, settings, training
from workup.runs import Run


def train(method: str, *, out: str | Path, quiet: bool = False, **values: Any) -> Run:
    """Trains and returns the finished run; `values` are the settings of `workup train` (`steps=200`, `reward={"alpha": 2}`).

    Raises UserError for what the caller can mend, in the command line's words.
    """
    read = settings.build(settings.Settings, settings.furnished({"method": method, **values}))
    with live.show(stream=_nowhere() if quiet else None) as view:
        return training.start(read, Path(out), view)


def evaluate(policy: str | Path, *, cases: str, out: str | Path, quiet: bool = False, **values: Any) -> Run:
    """Evaluates a policy and returns the run with its episodes and summary; `values` as for `workup evaluate`."""
    from workup import evaluation

    read = settings.build(settings.PolicySettings, settings.furnished({"policy": str(policy), "cases": cases, **values}))
    with live.show(stream=_nowhere() if quiet else None) as view:
        return evaluation.start(read, Path(out), view)


def resume(run: str | Path) -> Run:
    """Goes on with an interrupted run, training or evaluation."""
    with live.show() as view:
        return go_on(Path(run), view)


def go_on(run: Path, view: live.Live) -> Run:
    """`resume` in an open view. Raises UserError where there is no run."""
    from workup import evaluation

    with Run.open(run) as opened:
        trains = "method" in opened.config
    return training.resume(run, view) if trains else evaluation.resume(run, view)


def open_run(path: str | Path) -> Run:
    """A run folder: its summary, its metrics, its episodes."""
    return Run.open(path)


def _nowhere() -> Any:
    import io

    return io.StringIO()
