"""The built-in clinic: patients sampled from the tables, and the exact knowledge behind them.

A patient is drawn by (split, side, index).

Who comes to the clinic: of a population in which each disease has its prevalence, a person comes
because of one finding c with a chance proportional to its `complaint` weight, if it is present:
P(profile, c) ∝ prior(profile) · w_c · P(c | profile). So the posterior given age, sex and
complaint, and everything asked later, is the one of the tables alone: nothing about the choice of
the complaint has to be modelled. A profile is a disease, its variant, a sex and a range of ages
within which the same findings are possible; given it, findings are independent but for parents. Who
comes with a finding that has a parent has the parent too: who coughs up blood coughs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise
from typing import overload

import numpy as np
from numpy.typing import NDArray

from workup.cases.clinic.tables import (
    DECADES,
    RENAMED,
    SEXES,
    SUBSETS,
    ClinicFinding,
    Disease,
    Tables,
    clinic_tables,
)
from workup.cases.knowledge import Array, Categorical, TabularKnowledge, grade
from workup.core.case import HEADINGS, Case, Fact, Item, Truth, evidence_of

TRAIN, TEST = 1_000_000, 100_000
SIDES = ("train", "test")
DIFFERENTIALS = 4

_AGED = {
    "female": (
        "A girl under ten.",
        "A teenage girl.",
        *(
            f"A woman in her {ten}."
            for ten in ("twenties", "thirties", "forties", "fifties", "sixties", "seventies")
        ),
        "A woman over eighty.",
    ),
    "male": (
        "A boy under ten.",
        "A teenage boy.",
        *(
            f"A man in his {ten}."
            for ten in ("twenties", "thirties", "forties", "fifties", "sixties", "seventies")
        ),
        "A man over eighty.",
    ),
}
_SEXED = {"female": "The patient is female.", "male": "The patient is male."}

NOTES = (
    (
        "An invented clinic: a test bench, no medical device. Its probabilities are plausible, "
        "not measured."
    ),
    (
        "A patient has one disease; given the disease (and its variant), findings are "
        "independent but for a few sub-questions."
    ),
    (
        "What is present is on record, the rest is answered as absent or normal; numbers are a "
        "few representative values."
    ),
)


def evidence_id(item: str, answer: str) -> str:
    """The id of the fact that the item has this answer: `fever:yes`, `age:40s`."""
    return f"{item}:{answer}"


def _decades(ages: tuple[float, float, float]) -> Array:
    """P(decade) of a triangular distribution over the ages, highest at the middle one."""
    low, mode, high = ages[0], ages[1] + 0.5, ages[2] + 1.0
    x = np.clip([0.0, *range(10, 90, 10), 200.0], low, high)
    rising = (x - low) ** 2 / ((high - low) * max(mode - low, 1e-9))
    falling = 1 - (high - x) ** 2 / ((high - low) * (high - mode))
    return np.diff(np.where(x < mode, rising, falling))


def _share(disease: Disease, ages: tuple[int, int]) -> float:
    """P(age within the range | disease)."""
    decades = _decades(disease.ages)
    return float(decades[slice(*ages)].sum() / decades.sum())


def _within(disease: Disease, ages: tuple[int, int]) -> Array:
    """P(decade | disease, age within the range)."""
    inside = np.zeros(len(DECADES))
    inside[slice(*ages)] = 1
    return np.asarray(_decades(disease.ages) * inside / _share(disease, ages))


@dataclass(frozen=True, slots=True)
class Profile:
    """One way to be ill: the disease's index, its variant, the patient's sex and range of ages.

    `ages` are decades, as in `ClinicFinding`.
    """

    disease: int
    variant: str
    sex: str
    ages: tuple[int, int]

    def can_have(self, finding: ClinicFinding) -> bool:
        """Whether sex and age allow the finding."""
        return finding.possible_at(*self.ages) and finding.sex in ("", self.sex)


class Clinic:
    """One subset's tables as arrays over profiles, and the exact knowledge made of them.

    `present` is P(finding | profile, parent present) and `chance` is P(finding | profile), both
    profiles × findings; `ages` profiles × decades; `prior` one per profile.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        ranges = list(
            pairwise(sorted({0, len(DECADES), *chain(*(f.ages for f in tables.findings))}))
        )
        weighted = [
            (Profile(index, variant, sex, ages), disease.prevalence * weight * share * aged)
            for index, disease in enumerate(tables.diseases)
            for variant, weight in disease.variants
            for sex, share in zip(SEXES, (disease.female, 1 - disease.female), strict=True)
            for ages in ranges
            if (aged := _share(disease, ages)) * share > 0
        ]
        self.profiles = tuple(profile for profile, _ in weighted)
        self.prior: Array = np.array([weight for _, weight in weighted]) / sum(
            weight for _, weight in weighted
        )
        self.present: Array = np.array(
            [[self._chance(p, f) for f in tables.findings] for p in self.profiles]
        )
        self.ages: Array = np.array(
            [_within(tables.diseases[profile.disease], profile.ages) for profile in self.profiles]
        )
        places = {finding.name: place for place, finding in enumerate(tables.findings)}
        self._parents = {
            place: places[f.parent]
            for place, f in enumerate(tables.findings)
            if f.parent is not None
        }
        self.chance: Array = self.present.copy()
        for child, parent in self._parents.items():
            self.chance[:, child] *= self.present[:, parent]
        joint = self.prior[:, None] * self.chance * [f.complaint for f in tables.findings]
        self._comes: Array = np.cumsum(joint) / joint.sum()
        self.knowledge = self._knowledge()

    def _chance(self, profile: Profile, finding: ClinicFinding) -> float:
        if not profile.can_have(finding):
            return 0.0
        return self.tables.probability(
            self.tables.diseases[profile.disease].name, profile.variant, finding
        )

    def _knowledge(self) -> TabularKnowledge:
        sexes = np.array(
            [[profile.sex == sex for sex in SEXES] for profile in self.profiles], dtype=np.float64
        )
        return TabularKnowledge(
            [disease.name for disease in self.tables.diseases],
            self.prior,
            [
                Categorical(
                    "age", tuple((evidence_id("age", decade),) for decade in DECADES), self.ages
                ),
                Categorical("sex", tuple((evidence_id("sex", sex),) for sex in SEXES), sexes),
                *(
                    Categorical(
                        finding.name,
                        ((), (evidence_id(finding.name, "yes"),)),
                        np.stack([1 - chance, chance], axis=1),
                        finding.parent,
                    )
                    for finding, chance in zip(self.tables.findings, self.present.T, strict=True)
                ),
            ],
            [profile.disease for profile in self.profiles],
        )

    def draw(self, rng: np.random.Generator) -> tuple[int, int, int, NDArray[np.bool_]]:
        """One patient: the places of profile, decade and complaint, and the present findings."""
        chosen = int(np.searchsorted(self._comes, rng.random(), side="right"))
        profile, complaint = divmod(min(chosen, self._comes.size - 1), len(self.tables.findings))
        decade = int(np.searchsorted(np.cumsum(self.ages[profile]), rng.random(), side="right"))
        present = rng.random(len(self.tables.findings)) < self.present[profile]
        present[[complaint, self._parents.get(complaint, complaint)]] = True
        for child, parent in self._parents.items():
            present[child] &= present[parent]
        return profile, min(decade, self.profiles[profile].ages[1] - 1), complaint, present

    def case(self, id: str, rng: np.random.Generator) -> Case:
        """One patient's case: every present finding, weighted by its exact likelihood ratio (CR-4).

        What is absent or normal is not a fact but an answer, `Item.normal`: a chart does not list
        all that a patient does not have.
        """
        place, decade, complaint, present = self.draw(rng)
        profile = self.profiles[place]
        wording = rng.random(len(present))
        found: dict[int, Fact] = {}
        for index in map(int, np.flatnonzero(present)):
            finding = self.tables.findings[index]
            told = finding.present[int(wording[index] * len(finding.present))]
            found[index] = Fact(evidence_id(finding.name, "yes"), finding.name, told, finding.kind)
        given = (
            Fact(evidence_id("age", DECADES[decade]), "age", _AGED[profile.sex][decade]),
            Fact(evidence_id("sex", profile.sex), "sex", _SEXED[profile.sex]),
            found.pop(complaint),
        )
        facts = tuple(found.values())
        presentation = f"{given[0].text} {given[2].text}"
        disease = self.tables.diseases[profile.disease]
        truth = Truth(
            diagnosis=disease.name,
            codes=(disease.code,),
            aliases=disease.synonyms,
            differentials=self._differentials(disease.name, given),
            facts=weighed(self.knowledge, facts, disease.name, given),
            record=recorded(presentation, facts),
        )
        return Case(id, presentation, truth, given=given, category=disease.family)

    def _differentials(self, diagnosis: str, given: Sequence[Fact]) -> tuple[str, ...]:
        """The other diagnoses that the presentation makes most probable, best first."""
        order = np.argsort(-np.array(self.knowledge.posterior(evidence_of(given))), kind="stable")
        names = (self.knowledge.diagnoses[index] for index in order)
        return tuple([name for name in names if name != diagnosis][:DIFFERENTIALS])


def weighed(
    knowledge: TabularKnowledge, facts: Sequence[Fact], diagnosis: str, given: Sequence[Fact]
) -> tuple[Fact, ...]:
    """`facts` with their criticality for `diagnosis`, given what the presentation states (CR-4)."""
    ratios = knowledge.likelihood_ratios(evidence_of(facts), diagnosis, evidence_of(given))
    return tuple(
        Fact(fact.id, fact.item, fact.text, fact.kind, grade(ratio))
        for fact, ratio in zip(facts, ratios, strict=True)
    )


def recorded(presentation: str, facts: Sequence[Fact]) -> str:
    """The whole chart, chapter by chapter."""
    chapters = [
        (title, [fact.text for fact in facts if fact.kind == kind])
        for kind, title in HEADINGS.items()
    ]
    return "\n".join(
        [presentation, *(f"{title}: {' '.join(texts)}" for title, texts in chapters if texts)]
    )


@dataclass(frozen=True, slots=True)
class Patients(Sequence[Case]):
    """Cases made when they are looked at: the index-th depends on split, side and index alone."""

    subset: str
    split: int
    side: str
    indices: range

    def __len__(self) -> int:
        return len(self.indices)

    def id_of(self, index: int) -> str:
        """The id of the index-th case."""
        place = self.subset.removesuffix(RENAMED)
        return f"clinic:{place}:{self.split}:{self.side}:{self.indices[index]}"

    @overload
    def __getitem__(self, index: int) -> Case: ...
    @overload
    def __getitem__(self, index: slice) -> Patients: ...
    def __getitem__(self, index: int | slice) -> Case | Patients:
        if isinstance(index, slice):
            return Patients(self.subset, self.split, self.side, self.indices[index])
        number = self.indices[index]
        rng = np.random.default_rng([self.split, SIDES.index(self.side), number])
        return clinic(self.subset).case(self.id_of(index), rng)


@lru_cache
def clinic(subset: str) -> Clinic:
    """The clinic of that name: xs, s, m or full; with marks for names, as in "s#renamed".

    Raises UserError for any other.
    """
    return Clinic(clinic_tables().subset(subset))


def items(tables: Tables) -> tuple[Item, ...]:
    """The findings as what can be asked for.

    Only the full clinic tells who cannot have one of them: the smaller ones answer as they did when
    policies were trained there.
    """
    sexed = any(finding.subset == SUBSETS[-1] for finding in tables.findings)
    return tuple(
        Item(
            finding.name,
            finding.question,
            finding.absent[0],
            finding.kind,
            finding.parent,
            finding.cost,
            finding.synonyms,
            sex=finding.sex if sexed else "",
        )
        for finding in tables.findings
    )


def phrases(tables: Tables) -> tuple[str, ...]:
    """The fixed phrases of prompts and answers."""
    names = [
        *(finding.name for finding in tables.findings),
        *(disease.name for disease in tables.diseases),
    ]
    aged = [phrase for sex in SEXES for phrase in (*_AGED[sex], _SEXED[sex])]
    sentences = [
        sentence
        for finding in tables.findings
        for sentence in (*finding.present, finding.absent[0])
    ]
    return tuple(dict.fromkeys([*names, *aged, *sentences]))
