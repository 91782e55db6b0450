"""Exact Shapley values of findings, by enumeration: the oracle for sampled estimates."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, log

import numpy as np

from workup.core.case import Case, Fact, Knowledge, evidence_of

MOST_FACTS = 10
"""The most facts: 2^10 posteriors take some 50 ms in clinic s, and each further fact doubles it."""


def shapley(knowledge: Knowledge, case: Case, facts: Sequence[Fact]) -> list[float]:
    """φ of each of `facts` in nats, for the game v(S) = log P(d* | given, S) with S ⊆ facts.

    φ_f = Σ_{S ⊆ F∖f} |S|! (n−|S|−1)! / n! · (v(S ∪ f) − v(S)). They sum to v(facts) − v(∅). Raises
    ValueError for more than MOST_FACTS facts, and for a diagnosis that `knowledge` does not have.
    """
    if (n := len(facts)) > MOST_FACTS:
        raise ValueError(f"{n} facts are too many to enumerate: at most {MOST_FACTS}")
    truth = list(knowledge.diagnoses).index(case.truth.diagnosis)
    subsets = np.arange(2**n)  # as bit masks: fact i is in S if bit i is set
    coalitions = [
        [fact for place, fact in enumerate(facts) if subset >> place & 1] for subset in range(2**n)
    ]
    v = np.array([_value(knowledge, case, truth, coalition) for coalition in coalitions])
    # |S|! (n−|S|−1)! / n!
    weight = np.array([1 / (n * comb(n - 1, len(s))) if len(s) < n else 0.0 for s in coalitions])
    without = [subsets[subsets >> place & 1 == 0] for place in range(n)]
    return [float(weight[S] @ (v[S | 1 << place] - v[S])) for place, S in enumerate(without)]


def _value(knowledge: Knowledge, case: Case, truth: int, coalition: Sequence[Fact]) -> float:
    """v(S), the log-probability of the true diagnosis."""
    return log(knowledge.posterior(evidence_of((*case.given, *coalition)))[truth])
