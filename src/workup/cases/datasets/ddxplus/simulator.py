"""Patients made from the list of conditions alone.

The release says which symptoms and antecedents belong to a condition, not how often. We assume one
rate for everything listed and a small one for everything else, and no preference at all among
places, qualities and intensities: a policy that learns here has seen no released patient.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from workup.cases.datasets.ddxplus.patients import DdxplusPatient
from workup.cases.datasets.ddxplus.rates import SEXES, Array, Rates
from workup.cases.datasets.ddxplus.release import AGE_GROUPS, Evidence, Release
from workup.core.case import Fact

SIZE = 1_000_000  # as good as endless: patient i depends on (seed, i) only
# P(a listed symptom or antecedent is present): between half and two thirds of them are, over all
# released files.
LISTED = 0.6
# P(anything else is present). It is 0 in the released files; a small value teaches exceptions.
UNLISTED = 0.01
SEVERAL = 3.0  # values expected in an answer that may hold several (places of pain)


@dataclass(frozen=True)
class DdxplusSimulator:
    """Draws patients: condition, age group and sex uniformly, then the complaint, then the rest.

    The complaint is one of the condition's listed symptoms; all else is drawn independently, by
    `rates`.
    """

    release: Release
    seed: int

    @cached_property
    def rates(self) -> Rates:
        """Exactly what patients are drawn from, but for the complaint, which is always present."""
        size = len(self.release.conditions)
        return Rates(
            self.release,
            prior=np.ones(size),
            age=np.full((size, len(AGE_GROUPS)), 1 / len(AGE_GROUPS)),
            sex=np.full((size, len(SEXES)), 1 / len(SEXES)),
            facts={
                e.item.name: _assumed(code, e, self.release)
                for code, e in self.release.evidences.items()
            },
        )

    def patient(self, index: int) -> DdxplusPatient:
        rng = np.random.default_rng([self.seed, index])
        condition, age, sex = (
            int(rng.integers(n))
            for n in (len(self.release.conditions), len(AGE_GROUPS), len(SEXES))
        )
        complaints = self.complaints[condition]
        complaint = complaints[rng.integers(len(complaints))]
        return DdxplusPatient(
            condition, age, SEXES[sex], self._facts(condition, complaint, rng), complaint
        )

    @cached_property
    def complaints(self) -> tuple[tuple[str, ...], ...]:
        """The symptoms that can bring a patient in: listed, yes–no, and no sub-question.

        One tuple per condition.
        """
        evidences = self.release.evidences
        return tuple(
            tuple(
                code
                for code in condition.symptoms
                if "" in evidences[code].answers and evidences[code].item.parent is None
            )
            for condition in self.release.conditions
        )

    def _facts(self, condition: int, complaint: str, rng: np.random.Generator) -> tuple[Fact, ...]:
        layout, rates = self._layout, self._flat[condition]
        uniform = rng.random(len(rates))
        found = uniform < rates
        for place in layout.exclusive:
            found[place] = False
            chosen = int(
                np.searchsorted(np.cumsum(rates[place]), uniform[place.start], side="right")
            )
            found[place.start : place.stop][chosen : chosen + 1] = True
        found[layout.places[self.release.evidences[complaint].item.name]] = True
        for place, parent in layout.below:
            found[place] &= found[parent].any()
        return tuple(layout.facts[column] for column in np.flatnonzero(found))

    @cached_property
    def _layout(self) -> _Layout:
        return _lay_out(self.release)

    @cached_property
    def _flat(self) -> Array:
        """Conditions × all facts."""
        return np.hstack([self.rates.facts[item.name] for item in self.release.items])


@dataclass(frozen=True)
class _Layout:
    """All facts in one array: the slices of items, of items with one answer, of sub-questions."""

    facts: tuple[Fact, ...]
    places: dict[str, slice]
    exclusive: tuple[slice, ...]
    below: tuple[tuple[slice, slice], ...]  # (sub-question, the question above it)


def _lay_out(release: Release) -> _Layout:
    facts: list[Fact] = []
    places: dict[str, slice] = {}
    for evidence in release.evidences.values():
        places[evidence.item.name] = slice(len(facts), len(facts) + len(evidence.facts))
        facts.extend(evidence.facts)
    one_of = [
        e.item.name for e in release.evidences.values() if not e.multiple and len(e.facts) > 1
    ]
    below = [
        (places[item.name], places[item.parent])
        for item in release.items
        if item.parent is not None
    ]
    return _Layout(tuple(facts), places, tuple(places[name] for name in one_of), tuple(below))


def _assumed(code: str, evidence: Evidence, release: Release) -> Array:
    """Conditions × facts: P(fact | condition, the question above it answered yes)."""
    share = _flat(evidence)
    if evidence.item.parent is not None:
        return np.tile(share, (len(release.conditions), 1))
    # a root question with values (travel) is listed for every condition, so it is not
    # informative: its default is the usual answer
    informative = "" in evidence.answers
    present = np.array(
        [
            LISTED if informative and code in (*each.symptoms, *each.antecedents) else UNLISTED
            for each in release.conditions
        ]
    )
    return np.asarray(present[:, None] * share / share.sum())


def _flat(evidence: Evidence) -> Array:
    """P(fact | asked) with equal probability of all released values; several may name one fact."""
    if evidence.multiple:
        return np.full(len(evidence.facts), min(SEVERAL / len(evidence.facts), 0.5))
    values = list(evidence.answers.values())
    return np.array([values.count(fact) / len(values) for fact in evidence.facts])
