"""The commands as Python functions, one call each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workup import settings
from workup.errors import UserError
from workup.report import live
from workup.runs import Run
from workup.training import loop as training


def train(method: str, *, out: str | Path, quiet: bool = False, **values: Any) -> Run:
    """Trains and returns the finished run.

    `values` are the settings of `workup train` (`steps=200`, `reward={"alpha": 2}`). Raises
    UserError for what the caller can mend, with the same text as the command line.
    """
    read = settings.furnished(settings.Settings, {"method": method, **values})
    with live.show(stream=_nowhere() if quiet else None) as view:
        return training.start(read, Path(out), view)


def evaluate(
    policy: str | Path,
    *,
    cases: str | None = None,
    out: str | Path,
    quiet: bool = False,
    **values: Any,
) -> Run:
    """Evaluates a policy and returns the run with its episodes and summary.

    `values` are the settings of `workup evaluate`. Without `cases` a trained policy is evaluated on
    the test side of the cases that it was trained on.
    """
    from workup.evaluation import loop as evaluation

    given = {} if cases is None else {"cases": cases}
    read, notes = evaluation.completed({"policy": str(policy), **given, **values})
    with live.show(stream=_nowhere() if quiet else None) as view:
        for note in notes:
            view.note(note)
        return evaluation.start(read, Path(out), view)


def resume(run: str | Path, **changes: Any) -> Run:
    """Goes on with an interrupted run, training or evaluation.

    `changes` are settings that may change in between, such as `budget=5`.
    """
    with live.show() as view:
        return go_on(Path(run), view, changes)


def go_on(run: Path, view: live.Live, changes: Mapping[str, Any] | None = None) -> Run:
    """`resume` in an open view.

    Raises UserError if there is no run, or an incomplete config.yaml.
    """
    from workup.evaluation import loop as evaluation

    with Run.open(run) as opened:
        config = opened.config
    trains = "method" in config
    last = (
        "reward" if trains else "conclude"
    )  # what is written last is missing where a file was cut off
    if missing := [key for key in ("cases", "policy", last) if key not in config]:
        raise UserError(
            f"{run / 'config.yaml'}: {', '.join(missing)} is missing, so the file has been cut "
            "off; restore it, or start anew and name another folder with --out"
        )
    how = training.resume if trains else evaluation.resume
    return how(run, view, changes)


def open_run(path: str | Path) -> Run:
    """A run folder: its summary, its metrics, its episodes."""
    return Run.open(path)


def _nowhere() -> Any:
    import io

    return io.StringIO()
