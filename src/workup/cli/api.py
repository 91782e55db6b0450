"""The commands as Python functions, one call each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workup.core.errors import UserError
from workup.core.extras import explained
from workup.loops.training import folds as training
from workup.report import live
from workup.runs import Run, settings


@explained()
def train(method: str, *, out: str | Path, quiet: bool = False, **values: Any) -> Run:
    """Trains and returns the finished run.

    `values` are the settings of `workup train` (`steps=200`, `reward={"alpha": 2}`). Raises
    UserError for what the caller can mend, with the same text as the command line.
    """
    read = settings.with_user_config(settings.Settings, {"method": method, **values})
    with live.show(quiet=quiet) as view:
        return training.start(read, Path(out), view)


@explained()
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
    from workup.loops.evaluation import folds, loop

    given = {} if cases is None else {"cases": cases}
    read, notes = loop.completed({"policy": str(policy), **given, **values})
    with live.show(quiet=quiet) as view:
        for note in notes:
            view.note(note)
        return folds.start(read, Path(out), view)


@explained()
def evaluate_suite(
    doctors: str | Path | Sequence[str | Path],
    suite: str | Path,
    *,
    out: str | Path,
    data: str | Path | None = None,
    partial: bool = False,
    quiet: bool = False,
    **values: Any,
) -> Run:
    """Evaluates one or several policies on a suite of benchmarks and returns its run.

    `suite` is a built-in name or a YAML file, `data` the folder of its files; with `partial`
    benchmarks without files are left out. `values` are the settings of `workup evaluate`.
    """
    from workup.loops.evaluation.suites.play import Asked, start

    several = [doctors] if isinstance(doctors, str | Path) else doctors
    place = None if data is None else str(data)
    asked = Asked(str(suite), [str(each) for each in several], values, place, partial)
    with live.show(quiet=quiet) as view:
        return start(asked, Path(out), view)


@explained()
def exam(
    models: str | Path | Sequence[str | Path],
    *,
    size: str = "standard",
    cases: str | None = None,
    out: str | Path,
    data: str | Path | None = None,
    stations: Sequence[str] = (),
    quiet: bool = False,
    **values: Any,
) -> Run:
    """Examines one or several models and returns the exam, with its scorecard in the summary.

    `size` is "quick" or "standard", `cases` a station of your own, `data` the folder of stations
    that need files, `stations` the names of those that are played, all if none. `values` are the
    settings of `workup evaluate`. A folder `out` that holds this exam is gone on with.
    """
    from workup.cli import scorecard

    several = [models] if isinstance(models, str | Path) else models
    place = None if data is None else Path(data)
    asked = scorecard.asked_for([*map(str, several)], size, values, cases, place, stations)
    with live.show(quiet=quiet) as view:
        scorecard.sit(asked, Path(out), view)
    return Run.open(out)


@explained()
def resume(run: str | Path, **changes: Any) -> Run:
    """Goes on with an interrupted run, training or evaluation.

    `changes` are settings that may change in between, such as `budget=5`.
    """
    with live.show() as view:
        return go_on(Path(run), view, changes)


def go_on(run: Path, view: live.Live, changes: Mapping[str, Any] | None = None) -> Run:
    """Goes on with an interrupted run and shows it in `view`, which the caller has opened.

    Raises UserError if there is no run, or an incomplete config.yaml.
    """
    from workup.loops.evaluation import folds as evaluation
    from workup.loops.evaluation.suites import play
    from workup.report import suite

    with Run.open(run) as opened:
        config = opened.config
        if suite.is_suite(opened):
            return play.resume(run, view, changes)
    trains = "method" in config
    # what is written last is missing where a file was cut off
    last = "reward" if trains else "conclude"
    if missing := [key for key in ("cases", "policy", last) if key not in config]:
        raise UserError(
            f"{run / 'config.yaml'}: {', '.join(missing)} is missing, so the file has been cut "
            "off; restore it, or start anew and name another folder with --out"
        )
    how = training.resume if trains else evaluation.resume
    return how(run, view, changes)


@explained()
def compare(
    runs: Sequence[str | Path], *, apart: bool = False, doctor: str | None = None
) -> dict[str, Any]:
    """The figures of `workup compare`, in the form of its --json.

    Runs that differ by their seed alone are one group, unless `apart`. `doctor` is the evaluated
    row that is compared of every run, if not the trained policy. `groups` has for every group each
    measure's mean with its 95 % interval over patients and seeds, each seed's own mean (`by_seed`),
    and under `lead` the same of its paired differences to the first group, with the difference that
    was detectable. A group of one run has intervals by patient. Raises UserError as
    `workup.report.compare`.
    """
    from workup.report import figures

    return figures([Run.open(path) for path in runs], apart=apart, doctor=doctor)


def open_run(path: str | Path) -> Run:
    """A run folder: its summary, its metrics, its episodes."""
    return Run.open(path)
