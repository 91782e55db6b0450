"""Cross-validation: a run folder for each fold, and one over them with all test cases.

Fold k of n is tested by a policy that was trained on the other folds. So every case is tested
once, and the run over the folds is read as any other: its report, its intervals by case, its place
in a comparison.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from statistics import fmean
from typing import Any

from pydantic import BaseModel

from workup.core.errors import UserError
from workup.core.statistics import mean_of
from workup.loops.evaluation import loop
from workup.loops.evaluation.arms import Steps
from workup.loops.evaluation.examination import Examination
from workup.loops.frame import create, finish
from workup.report.live import Live
from workup.runs import Run
from workup.runs.files import DamagedError
from workup.runs.folder import free, is_run, part
from workup.runs.policies import Resolved, resolve
from workup.runs.settings import PolicySettings, Settings, build, merge, revised
from workup.runs.summary import repeats, summarise

Play = Callable[[str, Path, Live], Run]
"""Starts or goes on with the run of a fold ("2/5") in its folder, until it is finished."""
Resume = Callable[[Path, Live, Mapping[str, Any] | None], Run]
Start = Callable[[Mapping[str, Any], str, Path, Live, str], Run]
"""Starts the run of a fold: the settings over all folds, the fold, folder, live view, account."""


def start(settings: PolicySettings, out: Path, live: Live) -> Run:
    """Evaluates into the new folder `out`: the policies of a cross-validation, or one policy.

    Each policy of a cross-validation plays the cases that it was not trained on. Raises UserError
    as `loop.start`, and for other cases than it was trained on.
    """
    policy = resolve(settings.policy)
    if not policy.folds:
        return loop.start(settings, out, live)
    free(out)
    account, splits = token_hex(8), _splits(settings, policy)
    opened = [loop.Evaluation.of(_of(settings, split), account) for split in splits]
    for each in opened:
        each.supporting.close()
    played = [each.examination for each in opened]
    first, noted = opened[0], dict.fromkeys(note for each in opened for note in each.noted)
    config = {
        **{"kind": "evaluation", "account": account, "anchors": list(first.anchors)},
        **{"notes": [*noted, told(played)], "parts": splits},
        "encounter": loop.encounter(first.settings, first.policy).name,
        **first.asked(settings),
        **{"split": None, "folds": len(splits)},
    }
    create(out, config, first, several=True)
    return go_on(out, plays(out, {}, loop.resume, _start), live)


def resume(path: Path, live: Live, changes: Mapping[str, Any] | None = None) -> Run:
    """Goes on with an interrupted evaluation, of a cross-validation's policies or of one."""
    return resumed(path, live, changes, loop.resume, _start)


def resumed(
    path: Path, live: Live, changes: Mapping[str, Any] | None, resume: Resume, start: Start
) -> Run:
    """Goes on with the run in `path`: by `resume`, or fold by fold if it has folds."""
    with Run.open(path) as run:
        parts = run.parts
    if not parts:
        return resume(path, live, changes)
    return go_on(path, plays(path, changes or {}, resume, start), live, changes)


def plays(path: Path, changes: Mapping[str, Any], resume: Resume, start: Start) -> Play:
    """What plays a fold of the run in `path`, by `start` from its settings, or by `resume`."""

    def play(split: str, folder: Path, live: Live) -> Run:
        if is_run(folder):
            return resume(folder, live, changes)
        with Run.open(path) as run:
            settings, account = run.settings, run.account
        return start(settings, split, folder, live, account)

    return play


def told(folds: Sequence[Examination]) -> str:
    """The note of a run over folds with these evaluations."""
    tested, cases = sum(len(fold.played) for fold in folds), sum(len(fold.cases) for fold in folds)
    return (
        f"{len(folds)} folds: {tested:,} of {cases:,} cases are tested, each once, by a policy "
        "that was trained on the other folds. Intervals are by case. They do not allow for the "
        "training cases that the policies share."
    )


def go_on(path: Path, play: Play, live: Live, changes: Mapping[str, Any] | None = None) -> Run:
    """Plays the folds of the run in `path` one after the other, and puts their episodes together.

    What is finished of them is kept. Raises UserError for a change that no fold takes.
    """
    began = time.monotonic()
    with Run.open(path) as run, run.alone():
        if changes:
            trained = "method" in run.config
            model: type[BaseModel] = Settings if trained else PolicySettings
            revised(model, {**run.settings, **({"split": 0} if trained else {})}, changes)
            run.revise(merge(run.settings, changes), changes)
        quiet = Steps(live, several=True)
        for split, folder in run.parts.items():
            quiet.now = f"fold {split.replace('/', ' of ')}"
            play(split, path / folder, quiet).close()
        _together(run, live, began)
    return Run.open(path)


def _together(run: Run, live: Live, began: float) -> None:
    """Writes what the folds' evaluations have in common: episodes, summary, report."""
    folds = [Run.open(run.path / folder) for folder in run.parts.values()]
    for doctor in folds[0].doctors():
        for fold in folds:
            run.write(fold.evaluated(doctor))
    run.log_anew(_mean_steps([list(fold.metrics()) for fold in folds]))
    ends = [_end(fold) for fold in folds]
    trained = sum(end["seconds"] for end in ends)
    summary = summarise(
        run,
        steps=max(end["steps"] for end in ends),
        seconds=trained if run.config.get("method") else time.monotonic() - began,
        calls=ends[-1].get("calls", ()),  # all folds are on one account
    )
    finish(run, summary, repeats(summary), live)
    for fold in folds:
        fold.close()


def _end(fold: Run) -> dict[str, Any]:
    """The summary of a fold that has ended. Raises DamagedError where it lacks a figure."""
    summary = fold.summary
    for name in ("seconds", "steps"):
        if not isinstance(summary.get(name), int | float):
            raise DamagedError(
                f"{fold.path / 'summary.json'}: its '{name}' is no number; restore it from a copy, "
                "or remove the fold"
            )
    return summary


def _mean_steps(folds: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The steps that all folds logged, each figure its mean over the folds; seconds are added."""
    logged = [{(line["stage"], line["step"]): line for line in lines} for lines in folds]
    shared = [key for key in logged[0] if all(key in lines for lines in logged)]
    return [_mean([lines[key] for lines in logged]) for key in shared]


def _mean(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for line in lines for name in line):
        values = [line[name] for line in lines if line.get(name) is not None]
        if values and all(isinstance(value, Mapping) for value in values):
            names = dict.fromkeys(key for value in values for key in value)
            found[name] = {key: mean_of(v.get(key, 0) for v in values) for key in names}
        elif values and name != "step" and all(isinstance(v, int | float) for v in values):
            found[name] = sum(values) if name.endswith("seconds") else fmean(values)
        else:
            found[name] = next(iter(values), None)
    return found


def _splits(settings: PolicySettings, policy: Resolved) -> list[str]:
    """The folds of the policies that are evaluated.

    Raises UserError for settings that do not fit.
    """
    folders, name = policy.folds, policy.name
    if settings.folds not in (None, len(folders)):
        raise UserError(f"{name} has {len(folders)} folds, not {settings.folds}")
    newest = [resolve(folder).history[0] for folder in folders]
    if settings.split is not None:
        raise UserError(f"each policy of {name} plays its own fold: leave split=… out")
    if not newest[0].of(settings.cases):
        raise UserError(
            f"the policies of {name} play the cases that they were trained on, "
            f"{newest[0].cases}; for other cases name one of them, as in {folders[0]}"
        )
    return [str(one.split) for one in newest]


def _of(settings: PolicySettings, split: str) -> PolicySettings:
    """The evaluation of one fold's policy."""
    policy = str(Path(settings.policy) / part(split))
    return settings.model_copy(update={"policy": policy, "folds": None, "split": None})


def _start(values: Mapping[str, Any], split: str, folder: Path, live: Live, account: str) -> Run:
    return loop.start(_of(build(PolicySettings, values), split), folder, live, account)
