"""Measures that an evaluation takes only on request: `evaluation.measures=[kg, rouge]`.

A measure is one module of this package that defines `open(option, cases, models) -> Measure` and
`METRICS`, the declarations of all values that it finds (`workup.metrics.metric.Metric`). Its name
is the module's; in "NAME:OPTION" the option is passed to `open`. A measure that reasons with the
source's own model defines `open_in(option, world) -> Measure` instead. `ROLES` are the supporting
roles that it asks, if any; those among them that several models may play at once are its `PANELS`.
Training never takes these measures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from inspect import isawaitable, signature
from numbers import Real
from pkgutil import iter_modules
from statistics import fmean
from types import ModuleType
from typing import NamedTuple

from workup.core.case import Case, Source
from workup.core.episode import Ending, Episode
from workup.core.errors import RolloutError, UserError, unknown
from workup.core.ports import Environment, Model
from workup.metrics import measures
from workup.metrics.metric import BY, Metric

Values = Mapping[str, float | None]
# episode, verdict → values by name, None where undefined; raises RolloutError for what a model
# could not decide
Measure = Callable[[Episode, bool], Awaitable[Values]]
Models = Mapping[str, Mapping[str, Model]]  # role → name as the settings have it → model
# option, evaluated cases, models in supporting roles → measure; raises UserError for what the user
# can mend
Opener = Callable[[str, Sequence[Case], Models], Measure]


def names() -> list[str]:
    """Every measure's name, sorted; nothing is imported."""
    return sorted(module.name for module in iter_modules(__path__))


class MeasuredWorld(NamedTuple):
    """What is played: cases of `source` in `environment`."""

    source: Source
    environment: Environment


def open_measures(
    specs: Sequence[str],
    cases: Sequence[Case],
    models: Models | None = None,
    world: MeasuredWorld | None = None,
) -> tuple[Measure, ...]:
    """The measures of these names, each with its option behind a colon ("kg:who").

    Raises UserError; so does a measure whose values are not all declared, or no numbers. So do two
    of one module, as "kg" and "kg:who": their values have the same names.
    """
    made = []
    for number, spec in enumerate(specs):
        name = spec.partition(":")[0]
        if earlier := [each for each in specs[:number] if each.partition(":")[0] == name]:
            raise UserError(
                f"the measures '{earlier[0]}' and '{spec}' find the same figures; take one, and "
                "evaluate once more for the other"
            )
        module, option = _module(spec), spec.partition(":")[2]
        if hasattr(module, "open_in"):
            if world is None:
                raise UserError(
                    f"measure '{spec}' is taken in evaluations alone: it needs a source"
                )
            measure = module.open_in(option, world)
        else:
            measure = _opener(module)(option, cases, models or {})
        made.append(_declaring(spec, measure))
    return tuple(made)


def _opener(module: ModuleType) -> Opener:
    """Its `open`. Raises UserError where there is none that can be called as `Opener` says."""
    found: Opener | None = getattr(module, "open", None)
    try:
        if found is not None:
            signature(found).bind("", (), {})
            return found
    except TypeError:  # it takes other arguments
        pass
    raise UserError(f"{module.__file__}: write open(option, cases, models)")


def declared(name: str) -> Sequence[Metric]:
    """What a measure declares of its values.

    Raises UserError where it declares nothing, or otherwise what every evaluation has.
    """
    module = _module(name)
    if not hasattr(module, "METRICS"):
        raise UserError(f"{module.__file__}: the measure has no METRICS; declare what it finds")
    found: Sequence[Metric] = module.METRICS
    always = {each.name: each for each in measures.METRICS}
    if taken := next((m.name for m in found if always.get(m.name, m) != m), ""):
        raise UserError(
            f"{module.__file__}: it declares '{taken}', which every evaluation has already; give "
            "it another name"
        )
    return found


def _declaring(spec: str, measure: Measure) -> Measure:
    """The measure, which raises UserError for a value that tables would know nothing of."""
    known = {metric.name for metric in declared(spec)}

    file = _module(spec).__file__

    async def taken(episode: Episode, correct: bool) -> Values:
        found = measure(episode, correct)
        if not isawaitable(found):
            raise UserError(f"{file}: the measure is a plain function; write `async def`")
        values = await found
        for name, value in values.items():
            if value is not None and not isinstance(value, Real):
                told = f"a {type(value).__name__}; give a number, or None where it is undefined"
                raise UserError(f"{file}: the measure's '{name}' is {told}")
        if others := sorted({name.partition(BY)[0] for name in values} - known):
            raise UserError(
                f"{file}: the measure finds '{others[0]}', which METRICS does "
                f"not declare; add Metric('{others[0]}', …) to it"
            )
        return values

    return taken


def roles(specs: Sequence[str]) -> set[str]:
    """The supporting roles that the measures of these names ask. Raises UserError."""
    return {role for spec in specs for role in getattr(_module(spec), "ROLES", ())}


def panels(specs: Sequence[str]) -> set[str]:
    """The roles of the measures of these names that several models may play. Raises UserError."""
    return {role for spec in specs for role in getattr(_module(spec), "PANELS", ())}


def averaged(by_judge: Mapping[str, Values]) -> dict[str, float | None]:
    """The mean over judges of every value, undefined where one of them leaves it undefined.

    Where there are several judges, each one's own values follow, as "diff_acc by NAME".
    """
    names = next(iter(by_judge.values()), {})
    columns = {name: [values[name] for values in by_judge.values()] for name in names}
    known = {name: [v for v in column if v is not None] for name, column in columns.items()}
    means = {
        name: fmean(known[name]) if len(known[name]) == len(by_judge) else None for name in names
    }
    own = {
        f"{name}{BY}{judge}": value
        for judge, values in by_judge.items()
        for name, value in values.items()
    }
    return {**means, **own} if len(by_judge) > 1 else means


def _module(spec: str) -> ModuleType:
    name = spec.partition(":")[0]
    if name not in names():
        raise unknown("measure", name, names())
    return import_module(f"{__name__}.{name}")


async def take(
    measures: Sequence[Measure], episode: Episode, correct: bool
) -> tuple[Episode, dict[str, float | None]]:
    """The episode with all its measures; if one fails, as FAILED with the reason and none."""
    try:
        found = await asyncio.gather(*(measure(episode, correct) for measure in measures))
    except RolloutError as error:
        return replace(episode, ending=Ending.FAILED, reason=f"measure: {error}"), {}
    return episode, {name: value for values in found for name, value in values.items()}
