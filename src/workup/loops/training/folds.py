"""Cross-validation in training: one run for each fold, then one run over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any

from workup.cases import open_source
from workup.core.errors import UserError
from workup.loops.evaluation import folds
from workup.loops.frame import create
from workup.loops.training import loop
from workup.loops.training.plan import Plan
from workup.report.live import Live
from workup.runs import Run
from workup.runs.folder import free, part
from workup.runs.policies import resolve
from workup.runs.settings import Settings, build


def start(settings: Settings, out: Path, live: Live) -> Run:
    """Trains into the new folder `out`: once, or once for each of `settings.folds`.

    Raises UserError as `loop.start`, and for cases that cannot be divided.
    """
    if settings.folds is None:
        return loop.start(settings, out, live)
    free(out)
    sizes = _sizes(settings)
    splits, empty = [*sizes], settings.folds - len(sizes)
    missing = f"{empty} of {settings.folds} folds hold no case and are left out."
    left_out = [missing] if empty else []
    account = token_hex(8)
    plans = [Plan.of(_of(settings, split), account) for split in splits]
    for plan in plans:
        plan.introduced()  # refuses cases that the policy was trained on
        plan.supporting.close()
    first, noted = plans[0], dict.fromkeys(note for plan in plans for note in plan.notes)
    config = {
        **{"account": account, "trained_before": [], "parts": splits},
        **{"notes": [*noted, folds.told([plan.examination for plan in plans]), *left_out]},
        **first.config,
        **{"split": None, "folds": settings.folds, "policy": settings.policy},
    }
    create(out, config, first, several=True)
    live.note(
        f"cases   {len(sizes)} folds of {sum(sizes.values()):,} cases of {settings.cases}, with "
        f"{', '.join(map(str, sizes.values()))} test cases"
    )
    for note in left_out:
        live.note(note)
    return folds.go_on(out, folds.plays(out, {}, loop.resume, _start), live)


def resume(path: Path, live: Live, changes: Mapping[str, Any] | None = None) -> Run:
    """Goes on with an interrupted training, of one policy or of one for each fold."""
    return folds.resumed(path, live, changes, loop.resume, _start)


def _sizes(settings: Settings) -> dict[str, int]:
    """How many test cases the folds hold, without those that hold none.

    Raises UserError where fewer than two do, and for settings that say otherwise.
    """
    s = settings
    if s.split != 0:
        raise UserError(f"folds={s.folds} tests every case once: leave split=… out")
    every = [f"{number}/{s.folds}" for number in range(1, (s.folds or 0) + 1)]
    sizes = [len(open_source(s.cases, split=each, strict=s.strict).test) for each in every]
    found = {each: size for each, size in zip(every, sizes, strict=True) if size}
    if len(found) < 2:
        raise UserError(
            f"{s.cases}: its {sum(sizes):,} cases are all in one of {s.folds} folds; more folds or "
            "more cases are needed"
        )
    return found


def _of(settings: Settings, split: str) -> Settings:
    """The training of one fold; it begins with the policy of that fold, where there are several.

    Raises UserError for the policies of another number of folds.
    """
    policy = resolve(settings.policy)
    if policy.folds and (number := policy.config["folds"]) != settings.folds:
        raise UserError(f"{policy.name} has {number} folds: type folds={number}")
    name = str(Path(policy.name) / part(split)) if policy.folds else policy.name
    return settings.model_copy(update={"policy": name, "folds": None, "split": split})


def _start(values: Mapping[str, Any], split: str, folder: Path, live: Live, account: str) -> Run:
    settings = build(Settings, {**values, "split": 0})
    return loop.start(_of(settings, split), folder, live, account)
