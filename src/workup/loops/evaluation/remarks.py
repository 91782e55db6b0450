"""What the cases of a run lack for its encounter, counted before anything is played."""

from __future__ import annotations

from collections.abc import Sequence

from workup.cases.files import evenly_spaced
from workup.cases.publications import unpublished
from workup.core.case import Case, Source
from workup.core.ports import Environment

MOST = 1_000  # cases of each kind that are looked at, evenly spaced


def remarks(
    source: Source,
    environment: Environment,
    played: Sequence[Case],
    trained_on: Sequence[Case] = (),
) -> list[str]:
    """Lines for the reader of a run in `environment`: on the cases that it plays or trains on.

    A source that knows the model of its cases made them for asking, and needs no look.
    """
    if source.knowledge is not None:
        return []
    looked = evenly_spaced(played, MOST)
    found = []
    if environment.about.asks:
        found += _silent([*looked, *evenly_spaced(trained_on, MOST)])
    ranks = environment.about.searches or environment.about.anchors(source, 0)
    if ranks and (count := unpublished(looked)):
        found.append(
            f"{count:,} of {len(looked):,} patients name no publication: what their own paper "
            "says cannot be left out of what is searched or ranked."
        )
    return found


def _silent(cases: Sequence[Case]) -> list[str]:
    count = sum(not case.truth.facts for case in cases)
    if not count:
        return []
    return [
        f"{count:,} of {len(cases):,} cases have no hidden finding: in this encounter there is "
        "nothing to ask for in them."
    ]
