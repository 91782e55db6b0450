"""The stations of `workup exam`: a fixed suite in sizes, to which the user's own cases are added.

They are in `exam.yaml` beside this file. A station needs no file but those with `{data}` in their
cases, which are played where the user names a folder. One with a `role` needs a model in it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from workup.cases import open_source
from workup.cases.files import evenly_spaced, every_case
from workup.core.case import Case
from workup.core.errors import UserError, unknown
from workup.core.leaks import Mask
from workup.loops.evaluation.suites import DATA, Benchmark, Suite, read
from workup.runs.settings import merge

FILE = Path(__file__).with_name("exam.yaml")
OWN = "own cases"
LOOKED = 1_000  # own cases that are looked at for their diagnosis, evenly spaced


def exam(
    size: str,
    *,
    data: bool = False,
    roles: Collection[str] = (),
    own: Benchmark | None = None,
    only: Sequence[str] = (),
) -> tuple[Suite, list[str]]:
    """The suite of this size, and notes on the stations that are left out.

    With `data` there is a folder for those that need files; models play `roles`. `own` is the
    station of the user's cases. With `only`, the suite has the stations of these names and `own`.
    Raises UserError for a size or a name that there is not, and where no station is left.
    """
    whole = read(str(FILE))
    if size not in whole.sizes:
        raise unknown("size", size, whole.sizes)
    every = [*whole.benchmarks, *([own] if own else ())]
    names = [each.name for each in every]
    for name in only:
        if name not in names:
            raise unknown("station", name, names)
    kept, notes = [], []
    for each in every:
        if only and each.name not in only and each is not own:
            continue
        if DATA in each.cases and not data:
            notes.append(f"{each.name}: it needs files ({each.needs}); name their folder, --data")
        elif each.role and each.role not in roles:
            notes.append(f"{each.name}: it needs a model, roles.{each.role}=endpoint:NAME")
        else:
            kept.append(each)
    if not kept:
        raise UserError("; ".join(notes))
    shared = merge(whole.settings, whole.sizes[size])
    return whole.model_copy(update={"benchmarks": kept, "settings": shared}), notes


def own_station(cases: str, environment: dict[str, Any]) -> tuple[Benchmark, list[str]]:
    """The station of the user's cases, and what a reader has to know of them.

    Without a named `environment` it is the consultation where there are items to ask for, else
    questioning. Raises UserError for cases that cannot be read.
    """
    source = open_source(cases)
    usual = {"name": "consultation" if source.items else "questioning"}
    settings = {"environment": {**({} if "name" in environment else usual), **environment}}
    named = {"name": OWN, "cases": cases, "domain": "in-domain", "settings": settings}
    made = Benchmark.model_validate({**named, "tests": "the user's own cases"})
    looked = evenly_spaced(every_case(source).test, LOOKED)
    count = sum(tells_diagnosis(case) for case in looked)
    told = (
        f"{OWN}: {count:,} of {len(looked):,} cases name their diagnosis in the presentation, so "
        "that it can be copied"
    )
    return made, [told] if count else []


def tells_diagnosis(case: Case) -> bool:
    """Whether what the doctor reads at the outset holds the diagnosis, or an alias of it."""
    mask = Mask((case.truth.diagnosis, *case.truth.aliases))
    mask(case.presentation)
    return bool(mask.found)
