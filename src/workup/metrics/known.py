"""Every metric by its name: those of all episodes, of training steps, and of further measures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache, lru_cache

from workup.core.errors import UserError
from workup.metrics import calibration, conformal, extra, measures, steps
from workup.metrics.metric import ANY, BY, Metric, Where

ALWAYS = tuple(each.name for each in measures.METRICS if each.always)
"""What summary.json has of every doctor, whatever was measured."""


@lru_cache(maxsize=1 << 12)  # names come from files, so that there may be any number of them
def metric(name: str) -> Metric:
    """The declaration of a metric, or of one judge's own figure, as in "diff_acc by NAME".

    A name that nobody declares, such as what a reward from outside finds, stands on pages as it is.
    """
    base, by, judge = name.partition(BY)
    # Further measures are loaded only for names that are none of the others.
    found = _everyday().get(base) or _further().get(base)
    if found is None:
        found = Metric(base, "", base, range=ANY, where=Where.PAGES)
    return replace(found, name=name, heading=f"{found.title}{by}{judge}") if by else found


def shown(names: Iterable[str], where: Where) -> list[str]:
    """Those of `names` that are shown in one of these places, in the order of their columns.

    Each judge's own figures stand behind their mean.
    """
    kept = [name for name in dict.fromkeys(names) if metric(name).where & where]
    return sorted(kept, key=lambda name: (metric(name).rank, name.partition(BY)[0], BY in name))


def declared() -> list[str]:
    """The names of all metrics that are declared."""
    return [*_everyday(), *_further()]


@cache
def _everyday() -> Mapping[str, Metric]:
    modules = (measures, calibration, conformal, steps)
    return {each.name: each for module in modules for each in module.METRICS}


@cache
def _further() -> Mapping[str, Metric]:
    """Those of the further measures. Raises UserError where two of one name differ."""
    found: dict[str, Metric] = {}
    for module in extra.names():
        for each in extra.declared(module):
            if {*filter(None, (found.get(each.name), _everyday().get(each.name)))} - {each}:
                raise UserError(
                    f"the measure '{module}' declares '{each.name}', which another one does "
                    "already; give it another name"
                )
            found[each.name] = each
    return found
