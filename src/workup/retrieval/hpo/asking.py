"""Questions about terms of the HPO: what a published patient answers, and which tells most.

A patient's record says of few terms that they are present, of fewer that they were looked for and
not found, and nothing of all others. What is not recorded is not absent: it moves no belief.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from workup.cases.publications import excluded
from workup.core.case import Case, Fact
from workup.retrieval.hpo.ontology import Ontology
from workup.retrieval.hpo.phenotypes import Array, LikelihoodRatio, PatientFindings

LIKELY = 1_500  # diseases over which a question's information is summed; the others hardly count
τ = 0.37
"""How far the ranker's scores are log-odds: P(d) ∝ exp(τ·S(d)), by maximum likelihood of the truth
among PhenoBrain's public patients."""
NOISE = 0.1
"""How far the frequency of a term in one disease is drawn towards its mean over all diseases."""


class TermAnswer(NamedTuple):
    """The findings that are the term or a kind of it; `denied` that it was looked for in vain.

    Without either nothing is recorded.
    """

    facts: tuple[Fact, ...] = ()
    denied: bool = False


def answer(ontology: Ontology, case: Case, term: str) -> TermAnswer:
    """What the record says of a term.

    A finding affirms all that it is a kind of; an excluded term denies all of its kinds.
    """
    facts = tuple(
        fact
        for fact in case.all_facts
        if (id := ontology.resolve(fact.id)) and term in ontology.ancestors(id)
    )
    gone = {*map(ontology.resolve, excluded(case))}
    return TermAnswer(facts, not facts and not gone.isdisjoint(ontology.ancestors(term)))


@dataclass(frozen=True)
class AskedTerms:
    """What a doctor knows of a patient: findings, denied terms, and columns that are settled.

    What is settled is not asked for, and adds nothing to the gain of wider terms: its answer is
    known, or no question can mean it.
    """

    findings: PatientFindings
    settled: frozenset[int] = frozenset()


class TermQuestions:
    """Chooses the term whose answer is expected to tell most about the disease.

    The answer to a term a tells all findings t that are a or a kind of it. As if these were
    independent, it is expected to tell

        G(a) = Σ_{t ⪯ a} Σ_d P(d)·q(t, d)·log(q(t, d) / q̄(t)),   q̄(t) = Σ_d P(d)·q(t, d)

    nats. q(t, d) = (1 − e)·A(t | d) + e·A(t), where A(t | d) is the frequency that is stated of t
    itself, A(t) = (κ + Σ_d A(t | d)) / (1 + D) and e NOISE. Terms without an answer add nothing.
    Where an answer tells at most m findings, G(a) is multiplied by min(1, m / n(a)),
    n(a) = Σ_{t ⪯ a} q̄(t). P(d) is the belief of the ranker (τ). Nothing rests on the patient's own
    publications.
    """

    def __init__(self, ratio: LikelihoodRatio) -> None:
        self.ratio, self.profiles = ratio, ratio.profiles
        self._stated = self.profiles.stated(self.profiles.diseases)
        self._sums = self._stated.sum(axis=0)
        above = [self.profiles.above(column) for column in range(len(self.profiles.terms))]
        starts = np.cumsum([0, *map(len, above)])
        ones, columns = np.ones(starts[-1]), np.concatenate(above)
        self._kinds = csr_array((ones, columns, starts)).T.tocsr()  # [a, t]: t is a kind of a

    def kinds(self, column: int) -> frozenset[int]:
        """The columns of a term and of all its kinds."""
        start, end = self._kinds.indptr[column : column + 2]
        return frozenset(self._kinds.indices[start:end].tolist())

    def belief(self, findings: PatientFindings) -> Array:
        """P(d) for each disease; all as probable where no annotation is left of any."""
        scores = τ * self.ratio.scores(findings)
        if np.isneginf(scores).all():
            scores = np.zeros_like(scores)
        likely: Array = np.exp(scores - scores.max())
        likely /= likely.sum()
        return likely

    def best(self, known: AskedTerms, most: int = 0) -> int | None:
        """The column of the term to ask for; None where none is left.

        An answer tells at most `most` findings, with 0 all.
        """
        gains = self.gains(known, most)
        column = int(np.argmax(gains))
        return column if gains[column] > 0 else None

    def gains(self, known: AskedTerms, most: int = 0) -> Array:
        """G for each term, in nats; 0 for one that is settled."""
        open_ = np.ones(len(self.profiles.terms))
        open_[list(known.settled)] = 0
        for column in self.profiles.columns(known.findings.present):
            open_[self.profiles.above(column)] = 0
        nats, expected = self._information(known.findings)
        gains: Array = self._kinds @ (nats * open_)
        if most:
            n = np.maximum(self._kinds @ (expected * open_), 1e-12)
            gains = gains * np.minimum(1, most / n)
        gains[list(known.settled)] = 0
        return gains

    def _information(self, findings: PatientFindings) -> tuple[Array, Array]:
        """Σ_d P(d)·q·log(q / q̄) and q̄ for each term t."""
        P = self.belief(findings)
        rows, _ = self.profiles.changed(findings.own)
        new = self.profiles.stated([self.profiles.diseases[row] for row in rows], findings.own)
        sums = self._sums - self._stated[rows].sum(axis=0) + new.sum(axis=0)
        floor = NOISE * (self.ratio.κ + sums) / (1 + len(P))
        likely = _likely(P, rows)
        A = csr_array(vstack([self._stated[likely], new]))
        P = np.concatenate([P[likely], P[rows]])
        P = P / P.sum()
        q = (1 - NOISE) * A.data + floor[A.indices]
        weights = np.repeat(P, np.diff(A.indptr))
        size = len(floor)
        rest = np.maximum(1 - np.bincount(A.indices, weights, size), 0)
        mean = np.bincount(A.indices, weights * q, size) + rest * floor
        logs = np.bincount(A.indices, weights * _xlog(q), size) + rest * _xlog(floor)
        return np.maximum(logs - _xlog(mean), 0), mean


def _likely(P: Array, without: Sequence[int]) -> NDArray[np.intp]:
    """The rows of the LIKELY most probable diseases, but for some."""
    P = P.copy()
    P[list(without)] = -1
    found = np.argpartition(-P, min(LIKELY, len(P) - 1))[:LIKELY]
    return found[P[found] >= 0]


def _xlog(x: Array) -> Array:
    found: Array = x * np.log(x)
    return found
