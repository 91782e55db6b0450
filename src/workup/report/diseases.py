"""Accuracy by disease: where the difference between two sides lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workup.core.crossed import adjusted, null
from workup.core.statistics import Estimate
from workup.report.sheets import Sheet
from workup.report.tables import gap_of, of_both, signed, span
from workup.runs import Outcome
from workup.runs.estimates import Seeds, paired_means
from workup.runs.summary import lead
from workup.runs.words import number, share

FEWEST = 10
"""Common cases of a disease that is shown."""


@dataclass(frozen=True, slots=True)
class DiseaseGap:
    """How accurate two sides are over the cases of one disease that were judged on both.

    `before` and `after` are means over these cases, and `lead` their paired difference as
    `summary.lead` has it. `p` is of no difference, two-sided; `adjusted` is it for all diseases
    together (Benjamini & Hochberg). NaN without an interval.
    """

    disease: str
    cases: int
    before: float
    after: float
    lead: Mapping[str, Any]
    p: float
    adjusted: float

    @property
    def found(self) -> Estimate:
        return gap_of(self.lead)

    def as_json(self) -> dict[str, Any]:
        return {**self.lead, "p": null(self.p), "adjusted_p": null(self.adjusted)}


def by_disease(ours: Seeds, theirs: Seeds, seed: int) -> list[DiseaseGap]:
    """Ours − theirs for each true diagnosis with `FEWEST` common cases, the largest gap first."""
    mine, other = (_split(side) for side in of_both(ours, theirs))
    found = [
        _gap(disease, mine[disease], other[disease], seed) for disease in mine if disease in other
    ]
    shown = [each for each in found if each.cases >= FEWEST]
    chances = adjusted([each.p for each in shown])
    shown = [replace(each, adjusted=p) for each, p in zip(shown, chances, strict=True)]
    return sorted(shown, key=lambda each: -abs(each.found.mean))


def _split(side: Seeds) -> dict[str, dict[str, list[Outcome]]]:
    """disease → seed → outcomes; a seed without a case of it is left out."""
    found: dict[str, dict[str, list[Outcome]]] = {}
    for key, outcomes in side.items():
        for outcome in outcomes:
            found.setdefault(outcome.diagnosis, {}).setdefault(key, []).append(outcome)
    return found


def _gap(disease: str, ours: Seeds, theirs: Seeds, seed: int) -> DiseaseGap:
    gap = lead(ours, theirs, "accuracy", seed)
    after, before = paired_means(ours, theirs, "accuracy")
    p = gap_of(gap).p
    return DiseaseGap(disease, gap["n"], before, after, gap, p, p)


def sheet(found: Sequence[DiseaseGap], ours: str, theirs: str, most: int | None = None) -> Sheet:
    """A table of them, or of the first `most`."""
    rows = [
        [
            each.disease,
            f"{each.cases:,}",
            number("accuracy", each.before),
            number("accuracy", each.after),
            signed("accuracy", each.found.mean),
            span("accuracy", each.found),
            share(each.adjusted, 3),
        ]
        for each in found[:most]
    ]
    left = len(found) - len(rows)
    more = f" {left} more with smaller differences are on the page and in the JSON." if left else ""
    return Sheet(
        ["", "cases", theirs, ours, "difference", "95 % interval", "adjusted p"],
        rows,
        f"Accuracy by disease, {ours} − {theirs}",
        f"Diseases with at least {FEWEST} common cases. p is adjusted for their number (Benjamini "
        f"& Hochberg): of those with at most .05, a twentieth is expected to be chance.{more}",
        joined=frozenset({5}),
    )
