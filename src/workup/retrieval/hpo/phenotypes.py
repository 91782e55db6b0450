"""Rankers of rare diseases: by a likelihood ratio, by a similarity of phenotypes, and by words.

They know what the HPO annotates, as exact anchors for doctors who read it. A matrix has a row for
each disease and a column for each term. Annotations that rest on the patient's own publications
alone can be left out for one patient: the rows that change, and what is counted over all rows, are
made anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array, csr_array

from workup.core.case import Passage
from workup.core.draws import seed_key
from workup.retrieval.hpo.release import Annotation, HpoRelease
from workup.retrieval.index import Index
from workup.retrieval.provenance import rests_on, subject

Array = NDArray[np.float64]
NOBODYS: frozenset[str] = frozenset()

UNTOLD = 0.5
"""Prior mean of P(finding | disease): it smooths small counts, and stands where none is known."""

DEEPEST = 1_000  # passages of a ranking by words
ASPECTS = "PH"  # findings, of the present or the past; not inheritance, course or modifiers


class Profiles:
    """P(term | disease) for all diseases of a release, without what rests on `withheld` alone.

    `diseases` are the ids in the order of the rows, `terms` those in the order of the columns: all
    abnormalities, without their root. A term that holds wherever a narrower one does is at least as
    frequent, so it has the largest share of itself and all that are below it.
    """

    def __init__(self, release: HpoRelease, withheld: frozenset[str] = NOBODYS) -> None:
        self._release, self.withheld = release, withheld
        self.diseases = tuple(release.diseases)
        self.row = {id: place for place, id in enumerate(self.diseases)}
        self.terms = release.ontology.abnormalities
        self.column = {id: place for place, id in enumerate(self.terms)}
        self._above: dict[int, NDArray[np.intp]] = {}
        self.shares = self._matrix(self.diseases, NOBODYS)
        self._citing: dict[str, set[str]] = {}
        for disease in release.diseases.values():
            for each in disease.annotations:
                for reference in each.references:
                    self._citing.setdefault(reference, set()).add(disease.id)

    def columns(self, terms: Iterable[str]) -> list[int]:
        """The columns of a patient's terms; earlier ids are resolved, `unknown` ones left out."""
        present = dict.fromkeys(map(self._release.ontology.resolve, terms))
        return [self.column[id] for id in present if id in self.column]

    def unknown(self, terms: Iterable[str]) -> int:
        """How many of the terms are no abnormality of the release."""
        return sum(self._release.ontology.resolve(id) not in self.column for id in terms)

    def changed(self, own: frozenset[str]) -> tuple[list[int], csr_array]:
        """The rows that change without what rests on `own` alone, and their new values."""
        citing = set().union(*(self._citing.get(each, set()) for each in own))
        diseases = sorted(citing, key=self.row.__getitem__)
        return [self.row[id] for id in diseases], self._matrix(diseases, own)

    def annotated(self, disease: str, own: frozenset[str] = NOBODYS) -> int:
        """How many terms are stated of the disease, without what rests on `own` alone.

        0 for a disease that the release does not have.
        """
        return len(self._shares(disease, own)) if disease in self.row else 0

    def above(self, column: int) -> NDArray[np.intp]:
        """The columns of a term and of everything that it is a kind of, in no order."""
        if column not in self._above:
            found = self._release.ontology.ancestors(self.terms[column])
            self._above[column] = np.array([self.column[id] for id in found if id in self.column])
        return self._above[column]

    def _matrix(self, diseases: Sequence[str], own: frozenset[str]) -> csr_array:
        """The rows of these diseases."""
        return self._rows([self._profile(disease, own) for disease in diseases])

    def stated(self, diseases: Sequence[str], own: frozenset[str] = NOBODYS) -> csr_array:
        """The same rows with the stated terms alone, without those that they are kinds of."""
        return self._rows([self._shares(disease, own) for disease in diseases])

    def _rows(self, profiles: Sequence[Mapping[int, float]]) -> csr_array:
        """A row for each mapping of column → share."""
        starts = np.cumsum([0, *map(len, profiles)])
        columns = [column for profile in profiles for column in profile]
        values = [share for profile in profiles for share in profile.values()]
        shape = (len(profiles), len(self.terms))
        found = csr_array((np.array(values, float), np.array(columns, int), starts), shape=shape)
        found.sort_indices()  # rows with the same terms have the same sums, to the last bit
        return found

    def _profile(self, disease: str, own: frozenset[str]) -> dict[int, float]:
        """Column → P(term | disease), of the terms that any annotation implies."""
        profile: dict[int, float] = {}
        for stated, share in self._shares(disease, own).items():
            for column in self.above(stated).tolist():
                profile[column] = max(profile.get(column, 0.0), share)
        return profile

    def _shares(self, disease: str, own: frozenset[str]) -> dict[int, float]:
        """Column → share of the patients, of the terms that an annotation states."""
        stated: dict[str, list[Annotation]] = {}
        withheld = self.withheld | own
        for each in self._release.diseases[disease].annotations:
            if each.aspect in ASPECTS and each.term in self.column and not each.rests_on(withheld):
                stated.setdefault(each.term, []).append(each)
        shares = {self.column[term]: pooled(rows) for term, rows in stated.items()}
        return {column: share for column, share in shares.items() if share > 0}


def pooled(rows: Sequence[Annotation]) -> float:
    """One share of patients from all rows of a disease about one term.

    Counts are added up: k of n patients are (k + UNTOLD) / (n + 1), or 0 where k is 0. Without any
    counts it is the largest share that a row states, or UNTOLD where none does.
    """
    counted = [(each.share or 0.0, each.n) for each in rows if each.n]
    if counted:
        hits, n = sum(share * n for share, n in counted), sum(n for _, n in counted)
        return (hits + UNTOLD) / (n + 1) if hits > 0 else 0.0
    stated = [each.share for each in rows if each.share is not None]
    return max(stated, default=UNTOLD)


@dataclass(frozen=True, slots=True)
class PatientFindings:
    """What is known of a patient, by term ids, and the publications that report the patient."""

    present: tuple[str, ...]
    absent: tuple[str, ...] = ()
    own: frozenset[str] = NOBODYS


class LikelihoodRatio:
    """A likelihood ratio over annotated frequencies, and how much of the findings a disease covers.

        S(d) = Σ_t log LR(t, d) + λ·log(C(d) + δ)

    The sum is naive Bayes with equal priors. Each finding t of the patient counts by itself:

        LR(t, d) = (1 − ε)·max_{a ⪰ t} P(a | d) / P(a) + ε

    a ⪰ t are t and all terms that it is a kind of, below the root. So a disease that is annotated
    with a wider term than the patient's explains it as far as the wider term is rarer than chance:
    P(t | d) = P(a | d)·P(t) / P(a). ε draws the ratio of each finding towards 1.
    P(a) = (κ + Σ_d P(a | d)) / (1 + D) is the frequency over all D diseases, each as probable. An
    excluded finding counts (1 − P(t | d)) / (1 − P(t)), with P(t | d) = LR(t, d)·P(t), at most
    1 − ε. So with ε = .95 it tells two diseases apart by at most .05 nats, and not at all where
    P(t) ≥ .0526.

    Findings are no independent draws: several tell of one organ. So C counts what they share once.
    A are the findings and all terms that they are a kind of, and of their information the share
    that is annotated of d, whatever its frequency, is

        C(d) = Σ_{a ∈ A, annotated of d} I(a) / Σ_{a ∈ A} I(a),   I(a) = (−log P(a))^1.5

    The scores are no calibrated probabilities. ε, λ, δ and the power were chosen by hand on
    published patients (docs/results/rare_diseases.md). With λ = 0 it is the likelihood ratio alone.
    """

    def __init__(
        self, profiles: Profiles, ε: float = 0.95, κ: float = 0.5, λ: float = 12.0, δ: float = 0.02
    ) -> None:
        self.profiles, self.ε, self.κ, self.λ, self.δ = profiles, ε, κ, λ, δ
        self._columns = csc_array(profiles.shares)
        self._has = _pattern(profiles.shares)
        self._sums = profiles.shares.sum(axis=0)

    def scores(self, findings: PatientFindings) -> Array:
        """S(d) for each disease; −∞ where none is annotated."""
        rows, new = self.profiles.changed(findings.own)
        base = self.base(rows, new)
        columns = csc_array(new)
        present = self.profiles.columns(findings.present)
        total = self._coverage(present, base, rows, new)
        for column in present:
            total += np.log(self._ratio(column, base, (rows, columns)))
        for column in self.profiles.columns(findings.absent):
            share = self._ratio(column, base, (rows, columns)) * base[column]
            total += np.log((1 - np.minimum(share, 1 - self.ε)) / (1 - base[column]))
        return _without_empty(total, self.profiles.shares, rows, new)

    def base(self, rows: Sequence[int], new: csr_array) -> Array:
        """P(a) for each term, where `rows` have the values `new`."""
        sums = self._sums - self.profiles.shares[rows].sum(axis=0) + new.sum(axis=0)
        found: Array = (self.κ + sums) / (1 + len(self.profiles.diseases))
        return found

    def _coverage(
        self, present: Sequence[int], base: Array, rows: Sequence[int], new: csr_array
    ) -> Array:
        """λ·log(C(d) + δ) for each disease d; 0 without findings."""
        if not present or not self.λ:
            return np.zeros(len(self.profiles.diseases))
        above = np.unique(np.concatenate([self.profiles.above(column) for column in present]))
        information = np.zeros(len(base))
        information[above] = (-np.log(base[above])) ** 1.5
        covered = self._has @ information
        covered[rows] = _pattern(new) @ information
        logs: Array = np.log(covered / information.sum() + self.δ)
        return self.λ * logs

    def _ratio(self, column: int, base: Array, changed: tuple[list[int], csc_array]) -> Array:
        """LR(t, d) for each disease d."""
        above = self.profiles.above(column)
        best = self._largest(self._columns, above, base)
        rows, columns = changed
        best[rows] = self._largest(columns, above, base)
        return (1 - self.ε) * best + self.ε

    @staticmethod
    def _largest(shares: csc_array, above: NDArray[np.intp], base: Array) -> Array:
        """max_a P(a | d) / P(a) for each row d of `shares`; 0 where no a is annotated."""
        best = np.zeros(shares.shape[0])
        for a in above:
            start, end = shares.indptr[a], shares.indptr[a + 1]
            having = shares.indices[start:end]
            best[having] = np.maximum(best[having], shares.data[start:end] / base[a])
        return best


class Similarity:
    """simGIC (Pesquita et al. 2008): of the information of two sets of terms, the share in both.

    Σ_{t ∈ A ∩ B} IC(t) / Σ_{t ∈ A ∪ B} IC(t), where A and B are closed upwards, and
    IC(t) = −log of the share of diseases with t. Frequencies and excluded findings do not count.
    """

    def __init__(self, profiles: Profiles) -> None:
        self.profiles = profiles
        self._has = _pattern(profiles.shares)
        self._counts = self._has.sum(axis=0)

    def scores(self, findings: PatientFindings) -> Array:
        """simGIC ∈ [0, 1] for each disease; −∞ where none is annotated."""
        rows, new = self.profiles.changed(findings.own)
        having = _pattern(new)
        counts = self._counts - self._has[rows].sum(axis=0) + having.sum(axis=0)
        known = np.maximum(counts, 1) / len(self.profiles.diseases)
        information = -np.log(known)
        asked = np.zeros(len(information))
        for column in self.profiles.columns(findings.present):
            asked[self.profiles.above(column)] = 1
        shared, own = self._has @ (information * asked), self._has @ information
        shared[rows], own[rows] = having @ (information * asked), having @ information
        either = own + float(information @ asked) - shared
        found = np.divide(shared, either, out=np.zeros_like(shared), where=either > 0)
        return _without_empty(found, self.profiles.shares, rows, new)


def ordered(scores: Array, seed: int, case: str) -> NDArray[np.intp]:
    """The rows by their scores; equal ones in a random order that seed and the case's id decide."""
    rng = np.random.default_rng(seed_key("rare", seed, case))
    return np.lexsort((rng.permutation(len(scores)), -scores))


def by_words(library: Index, findings: Iterable[str]) -> list[Passage]:
    """The first DEEPEST passages that a library finds for the names of all findings at once."""
    ((*passages,),) = library.find([", ".join(dict.fromkeys(findings))], DEEPEST)
    return passages


def named(passages: Iterable[Passage], own: frozenset[str], release: HpoRelease) -> list[str]:
    """The release's diseases in the order of their first passage that rests on more than `own`."""
    kept = (subject(each.id) for each in passages if not rests_on(each.id, own))
    return [id for id in dict.fromkeys(kept) if id in release.diseases]


def _pattern(shares: csr_array) -> csr_array:
    """1 where a disease has a term."""
    return csr_array((np.ones_like(shares.data), shares.indices, shares.indptr), shape=shares.shape)


def _without_empty(scores: Array, shares: csr_array, rows: Sequence[int], new: csr_array) -> Array:
    """The scores, −∞ for diseases without any annotation."""
    sizes = np.diff(shares.indptr)
    sizes[list(rows)] = np.diff(new.indptr)
    return np.where(sizes > 0, scores, -np.inf)
