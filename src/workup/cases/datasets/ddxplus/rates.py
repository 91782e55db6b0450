"""How often each condition's patients have each finding, counted or assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workup.cases.datasets.ddxplus.patients import DdxplusPatient
from workup.cases.datasets.ddxplus.release import AGE_GROUPS, Evidence, Release, age_fact, sex_fact
from workup.cases.knowledge import Categorical, MultiLabel, Table, TabularKnowledge, grade
from workup.core.case import Fact

Array = NDArray[np.float64]
SEXES = ("F", "M")
_SHRINKAGE = 1.0  # pseudo-patients per condition, spread as all patients are


@dataclass(frozen=True)
class Rates:
    """Rates per condition (rows, in the release's order).

    `prior` is (conditions,); `age` conditions × age groups and `sex` conditions × 2, rows summing
    to 1; `facts` maps an item to conditions × its facts: P(fact | condition, the question above it
    answered yes).
    """

    release: Release
    prior: Array
    age: Array
    sex: Array
    facts: Mapping[str, Array]

    def knowledge(self) -> TabularKnowledge:
        """The tables as a generative model of whole answers, sub-questions below their parents."""
        evidences = self.release.evidences.values()
        tables = [_table(evidence, self.facts[evidence.item.name]) for evidence in evidences]
        return TabularKnowledge(self.release.diagnoses, self.prior, [*self._person(), *tables])

    def _person(self) -> list[Table]:
        ages = tuple((age_fact(age).id,) for age in range(len(AGE_GROUPS)))
        sexes = tuple((sex_fact(sex).id,) for sex in SEXES)
        return [Categorical("age", ages, self.age), Categorical("sex", sexes, self.sex)]

    def criticality(self) -> Criticality:
        single: list[Table] = [
            Categorical(fact.id, ((), (fact.id,)), np.stack([1 - rate, rate], axis=1))
            for evidence in self.release.evidences.values()
            for fact, rate in zip(evidence.facts, self.facts[evidence.item.name].T, strict=True)
        ]
        return Criticality(
            self.release,
            TabularKnowledge(self.release.diagnoses, self.prior, [*self._person(), *single]),
        )


def _table(evidence: Evidence, rates: Array) -> Table:
    ids = [fact.id for fact in evidence.facts]
    item, parent = evidence.item.name, evidence.item.parent
    if evidence.multiple:
        return MultiLabel(item, tuple(ids), rates, parent)
    normal = 1 - rates.sum(axis=1, keepdims=True)
    return Categorical(item, ((), *((id,) for id in ids)), np.hstack([normal, rates]), parent)


@dataclass(frozen=True)
class Criticality:
    """ψ(f | d*, o_0) of a single finding.

    Every finding is a yes–no matter of its own here (one of several places of pain is a finding),
    and a sub-question's is judged among patients whose answer to the question above it is yes:
    learning THAT there is pain is paid once.
    """

    release: Release
    single: TabularKnowledge

    def weights(
        self, facts: Sequence[Fact], diagnosis: str, given: Sequence[Fact]
    ) -> dict[str, int]:
        """The criticality of each of `facts`, by id, given the facts of the presentation."""
        stated = {
            (fact.item if fact.item in {"age", "sex"} else fact.id): (fact.id,) for fact in given
        }
        above: dict[str | None, list[Fact]] = {}
        for fact in facts:
            above.setdefault(self.release.by_item[fact.item].item.parent, []).append(fact)
        weights: dict[str, int] = {}
        for parent, findings in above.items():
            evidence = stated | {fact.id: (fact.id,) for fact in facts if fact.item == parent}
            ratios = self.single.likelihood_ratios(
                {f.id: (f.id,) for f in findings}, diagnosis, evidence
            )
            weights |= {fact.id: grade(ratio) for fact, ratio in zip(findings, ratios, strict=True)}
        return weights


class Tally:
    """Counts patients one by one; `rates` may be asked at any time."""

    def __init__(self, release: Release) -> None:
        self._release = release
        evidences = release.evidences.values()
        self._items = {evidence.item.name: column for column, evidence in enumerate(evidences)}
        self._facts = {
            fact.id: column for column, fact in enumerate(f for e in evidences for f in e.facts)
        }
        size = len(release.conditions)
        self._patients = np.zeros(size)
        self._age, self._sex = np.zeros((size, len(AGE_GROUPS))), np.zeros((size, len(SEXES)))
        self._positive = np.zeros((size, len(self._items)))  # patients with any finding of the item
        self._found = np.zeros((size, len(self._facts)))

    def add(self, patient: DdxplusPatient) -> None:
        row = patient.condition
        self._patients[row] += 1
        self._age[row, patient.age] += 1
        self._sex[row, SEXES.index(patient.sex)] += 1
        self._positive[row, list({self._items[fact.item] for fact in patient.facts})] += 1
        self._found[row, [self._facts[fact.id] for fact in patient.facts]] += 1

    def rates(self) -> Rates:
        """Relative frequencies by condition, each shrunk towards that of all patients."""
        facts = {}
        for evidence in self._release.evidences.values():
            parent = evidence.item.parent
            asked = self._patients if parent is None else self._positive[:, self._items[parent]]
            found = self._found[:, [self._facts[fact.id] for fact in evidence.facts]]
            facts[evidence.item.name] = _shrunk(
                found, asked[:, None], 2 if evidence.multiple else len(evidence.facts) + 1
            )
        people = self._patients[:, None]
        return Rates(
            self._release,
            prior=self._patients + 1,
            age=_shrunk(self._age, people, len(AGE_GROUPS)),
            sex=_shrunk(self._sex, people, len(SEXES)),
            facts=facts,
        )


def _shrunk(counts: Array, trials: Array, answers: int) -> Array:
    """(n_da + m·p_a) / (n_d + m), with p_a = (n_a + 1) / (n + number of answers).

    p_a is the rate over all conditions.
    """
    pooled = (counts.sum(axis=0) + 1) / (trials.sum() + answers)
    return np.asarray((counts + _SHRINKAGE * pooled) / (trials + _SHRINKAGE))
