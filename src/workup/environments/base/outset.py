"""What is told of a case at the outset (ProMed, PM-17)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from workup.core.case import Case, Fact, Source
from workup.core.draws import seed_key
from workup.core.errors import UserError
from workup.core.lazy import Lazy
from workup.environments.base.lexical import stems
from workup.environments.base.withheld import withheld

STATED = 0.6  # of a sentence's word stems, from which on a fact states it
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[^a-z\s])|\n+|(?<=[。！？])")  # where one ends
LOOKED_AT = 20  # training cases


def partial(case: Case, share: float, seed: int = 0) -> Case:
    """The case with the share `share` ∈ [0, 1] of its facts told at the outset (PM-17).

    The opening then holds these facts and the question, nothing else. F are all facts, those of the
    presentation included; each of its sentences that they do not state (`_unstated`) is one more,
    so that a share of 1 tells all of the case. round(share · |F|) of them, drawn by `seed` and the
    case's id, become `given` and, in the record's order and without the names of the answer, the
    presentation; the others are hidden. A larger share tells what a smaller one tells, and more. A
    case without facts is returned as it is. Raises ValueError for a share outside [0, 1].
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share is {share}; it lies between 0 and 1")
    if not case.all_facts:
        return case
    facts = (*_unstated(case), *case.all_facts)
    order = np.random.default_rng(seed_key("partial", seed, case.id)).permutation(len(facts))
    chosen = set(order[: round(share * len(facts))].tolist())
    shown = tuple(fact for place, fact in enumerate(facts) if place in chosen)
    hidden = tuple(fact for place, fact in enumerate(facts) if place not in chosen)
    return replace(
        case,
        presentation="\n".join(withheld(case, fact) for fact in shown),
        given=shown,
        truth=replace(case.truth, facts=hidden),
    )


def _unstated(case: Case) -> list[Fact]:
    """The sentences of the presentation that the facts do not state.

    They state one whose word stems they have all, or of which a single fact has STATED or more and
    all facts together have every number.
    """
    facts = [stems(fact.text) for fact in case.all_facts]
    known = frozenset().union(*facts)
    every = [(part.strip(), stems(part)) for part in _SENTENCE.split(case.presentation)]
    return [
        Fact(f"presentation:{number}", "", sentence)
        for number, (sentence, words) in enumerate(every, start=1)
        if (unknown := words - known)
        and (
            any(character.isdigit() for word in unknown for character in word)
            or all(len(words & fact) < STATED * len(words) for fact in facts)
        )
    ]


def told_at_outset(source: Source, share: float, seed: int = 0) -> Source:
    """`source`, whose cases tell a part of their facts in the presentation; test cases too.

    With `share` 0.5 half of a case's facts stand there, and the doctor has to ask for the others.

    Raises UserError where none of the first cases has facts.
    """
    first = [case for side in (source.train, source.test) for case in islice(side, LOOKED_AT)]
    if first and not any(case.all_facts for case in first):
        raise UserError(
            f"environment.share={share:g} needs facts, and the cases of {source.name} have none: "
            "make them with `workup prepare facts`"
        )

    def presented(cases: Sequence[Case]) -> Sequence[Case]:
        return Lazy(len(cases), lambda index: partial(cases[index], share, seed))

    note = f"{share:.0%} of each case's facts are told at the outset."
    return replace(
        source,
        train=presented(source.train),
        test=presented(source.test),
        notes=(*source.notes, note),
    )
