"""What is told of a case at the outset (ProMed, PM-17)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from workup.core.case import Case, Source
from workup.core.draws import seed_key
from workup.core.lazy import Lazy


def partial(case: Case, share: float, seed: int = 0) -> Case:
    """The case with the share `share` ∈ [0, 1] of its facts told at the outset (PM-17).

    The opening then holds these facts and the question, nothing else. F are all facts, those of the
    presentation included. round(share · |F|) of them, drawn by `seed` and the case's id, become
    `given` and, in the record's order, the presentation; the others are hidden. A larger share
    tells what a smaller one tells, and more. Raises ValueError for a share outside [0, 1].
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share is {share}; it lies between 0 and 1")
    facts = case.all_facts
    order = np.random.default_rng(seed_key("partial", seed, case.id)).permutation(len(facts))
    chosen = set(order[: round(share * len(facts))].tolist())
    shown = tuple(fact for place, fact in enumerate(facts) if place in chosen)
    hidden = tuple(fact for place, fact in enumerate(facts) if place not in chosen)
    return replace(
        case,
        presentation="\n".join(fact.text for fact in shown),
        given=shown,
        truth=replace(case.truth, facts=hidden),
    )


def told_at_outset(source: Source, share: float, seed: int = 0) -> Source:
    """`source` with a part of each case's facts told at the outset, test cases too."""

    def presented(cases: Sequence[Case]) -> Sequence[Case]:
        return Lazy(len(cases), lambda index: partial(cases[index], share, seed))

    note = f"{share:.0%} of each case's facts are told at the outset."
    return replace(
        source,
        train=presented(source.train),
        test=presented(source.test),
        notes=(*source.notes, note),
    )
