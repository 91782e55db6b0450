"""The clinic's knowledge as data: diseases, findings and P(finding | disease), from CSV files.

The files are in this folder. They are written from general medical knowledge with rounded,
plausible numbers: a test bench, not medicine. tests/test_clinic.py checks what they have to fulfil.

- diseases: `prevalence` is a weight. `female` is the share of women (0 or 1 for a sex-bound
  disease). Ages run from `age_from` to `age_to`, with most patients at `age_peak`. `variants` is
  `name=weight|name=weight` where a disease has inner structure. `must_not_miss` is "yes" where a
  delay of hours or days can kill or cripple.
- findings: `present` and `absent` hold alternative sentences, separated by `|`, in which `{value}`,
  `{unit}` and `{reference}` stand for the numbers. `background` is P(finding) in a disease that
  has no row in likelihoods. `complaint` is the probability that a patient comes because of it
  (empty: never). `parent` is the finding without which this one cannot be present; its
  probabilities hold given the parent. `sex` limits the finding to one sex, `ages` to whole decades
  of age: `10-50` is from 10 to under 50, `20-` from 20 on. `synonyms` are what people call it
  besides.
- panels: names that several findings have in common, as "complete blood count". Who asks by one is
  told which findings it can mean. In a clinic that has one of them alone, it means that one. One
  that ends with "examination" is a part of the body: whoever wants just that examined means it.
- likelihoods: P(finding | disease). A row that names a variant overrides the disease's own row.
- `subset` is the smallest clinic that a disease or finding belongs to. A larger clinic contains
  the smaller ones.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from workup.core.case import Kind
from workup.core.errors import UserError, unknown

SUBSETS = ("xs", "s", "m", "full")
RENAMED = "#renamed"  # ends the name of a clinic whose diseases bear marks in place of names
# Options stand behind a renamed clinic's name, separated by commas.
HELD_OUT, LINKED, PAPERS, STATEMENTS = OPTIONS = "held-out", "linked", "papers", "statements"
HANDBOOK = (LINKED, STATEMENTS)  # what a handbook can be, and papers are none
PLACES = (*SUBSETS, *(f"{subset}{RENAMED}" for subset in SUBSETS))
SEXES = ("female", "male")
DECADES = ("under 10", "10s", "20s", "30s", "40s", "50s", "60s", "70s", "80 or more")
KINDS = {
    "history": Kind.HISTORY,
    "symptom": Kind.HISTORY,
    "sign": Kind.EXAMINATION,
    "laboratory": Kind.LABORATORY,
    "imaging": Kind.IMAGING,
    "procedure": Kind.PROCEDURE,
    "pathology": Kind.PROCEDURE,
}


@dataclass(frozen=True, slots=True)
class Disease:
    """One row of diseases.csv.

    `variants` are (name, weight); the weights sum to 1. Without variants it is ("", 1.0).
    """

    name: str
    code: str
    synonyms: tuple[str, ...]
    family: str
    prevalence: float
    female: float
    ages: tuple[float, float, float]
    variants: tuple[tuple[str, float], ...]
    subset: str
    must_not_miss: bool = False


@dataclass(frozen=True, slots=True)
class ClinicFinding:
    """One row of findings.csv.

    `present` and `absent` are all sentences that can occur, with every value filled in. `ages` is
    (first decade, decade after the last): (2, 9) is from 20 years on.
    """

    name: str
    kind: Kind
    question: str
    present: tuple[str, ...]
    absent: tuple[str, ...]
    unit: str
    reference: str
    background: float
    complaint: float
    parent: str | None
    sex: str
    ages: tuple[int, int]
    cost: float
    subset: str
    synonyms: tuple[str, ...]

    def possible_at(self, first: int, end: int) -> bool:
        """Whether age allows it in all patients from the decade `first` to before `end`."""
        return self.ages[0] <= first and end <= self.ages[1]


@dataclass(frozen=True)
class Tables:
    """All tables, or one subset of them.

    `given[disease, variant, finding]` holds the rows of likelihoods.csv.
    """

    diseases: tuple[Disease, ...]
    findings: tuple[ClinicFinding, ...]
    given: dict[tuple[str, str, str], float] = field(repr=False)

    def probability(self, disease: str, variant: str, finding: ClinicFinding) -> float:
        """P(finding | disease, variant, parent present) in a patient who can have it."""
        own = self.given.get((disease, "", finding.name), finding.background)
        return self.given.get((disease, variant, finding.name), own)

    def subset(self, name: str) -> Tables:
        """The diseases and findings of a clinic and of all smaller ones.

        "s#renamed" is the clinic "s" with marks in place of its diseases' names. Raises UserError
        for an unknown name.
        """
        if name.endswith(RENAMED):
            return self.subset(name.removesuffix(RENAMED)).masked()
        if name not in SUBSETS:
            raise unknown("clinic", name, SUBSETS)
        within = SUBSETS[: SUBSETS.index(name) + 1]
        diseases = tuple(disease for disease in self.diseases if disease.subset in within)
        return Tables(
            diseases,
            tuple(finding for finding in self.findings if finding.subset in within),
            self.given,
        )

    def masked(self) -> Tables:
        """These tables with a mark in place of each disease's name, and without synonyms.

        The marks are "disease00", "disease01", … in the order of the diseases.
        """
        marks = {disease.name: f"disease{place:02}" for place, disease in enumerate(self.diseases)}
        return Tables(
            tuple(replace(each, name=marks[each.name], synonyms=()) for each in self.diseases),
            self.findings,
            {(marks[d], v, f): p for (d, v, f), p in self.given.items() if d in marks},
        )


def place(text: str) -> tuple[str, frozenset[str]]:
    """The clinic that stands behind `clinic:` in a name, and its options.

    Example: "s#renamed,papers" is ("s#renamed", {"papers"}). Raises UserError for an unknown clinic
    or option, and for options that exclude each other.
    """
    name, *options = text.split(",")
    if name not in PLACES:
        raise unknown("clinic", name, PLACES)
    for option in options:
        if not name.endswith(RENAMED) or option not in OPTIONS:
            raise unknown(f"option of clinic:{name}", option, OPTIONS)
    if LINKED in options and name == f"full{RENAMED}":
        raise UserError(
            f"{name} has more diseases than there are names for twice as many; type m{RENAMED},"
            f"{LINKED}"
        )
    if PAPERS in options and (kinds := [option for option in options if option in HANDBOOK]):
        raise UserError(
            f"clinic:{text} would have two libraries; type {name},{PAPERS} or "
            f"{','.join((name, *kinds))}"
        )
    return name, frozenset(options)


def rows(name: str) -> list[dict[str, str]]:
    """The lines of a CSV file of this folder, by column; lines that begin with # are left out."""
    with Path(__file__).with_name(name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def parts(cell: str) -> tuple[str, ...]:
    """Example: "a|b" is ("a", "b")."""
    return tuple(cell.split("|")) if cell else ()


def shares(cell: str) -> dict[str, float]:
    """Example: "lung=0.6|lymph node=0.4" is {"lung": 0.6, "lymph node": 0.4}."""
    return {name: float(share) for name, share in (entry.split("=") for entry in parts(cell))}


def _ages(cell: str) -> tuple[int, int]:
    """Example: "10-50" is (1, 5), "20-" is (2, 9)."""
    first, _, end = cell.partition("-")
    return int(first or 0) // 10, int(end) // 10 if end else len(DECADES)


def _sentences(row: Mapping[str, str], column: str, values: str) -> tuple[str, ...]:
    """The column's phrasings, once per representative value where they hold a number."""
    sentences = (
        phrase.format(value=value, unit=row["unit"], reference=row["reference"])
        for phrase in parts(row[column])
        for value in (parts(row[values]) if "{value}" in phrase else ("",))
    )
    return tuple(dict.fromkeys(sentences))


@cache
def clinic_tables() -> Tables:
    """The built-in tables, read once."""
    diseases = (
        Disease(
            name=row["name"],
            code=row["code"],
            synonyms=parts(row["synonyms"]),
            family=row["family"],
            prevalence=float(row["prevalence"]),
            female=float(row["female"]),
            ages=(float(row["age_from"]), float(row["age_peak"]), float(row["age_to"])),
            variants=tuple(shares(row["variants"]).items()) or (("", 1.0),),
            subset=row["subset"],
            must_not_miss=row["must_not_miss"] == "yes",
        )
        for row in rows("diseases.csv")
    )
    panels = [(parts(row["names"]), parts(row["findings"])) for row in rows("panels.csv")]
    findings = (
        ClinicFinding(
            name=row["name"],
            kind=KINDS[row["kind"]],
            question=row["question"],
            present=_sentences(row, "present", "abnormal_values"),
            absent=_sentences(row, "absent", "normal_values"),
            unit=row["unit"],
            reference=row["reference"],
            background=float(row["background"]),
            complaint=float(row["complaint"] or 0),
            parent=row["parent"] or None,
            sex=row["sex"],
            ages=_ages(row["ages"]),
            cost=float(row["cost"]),
            subset=row["subset"],
            synonyms=(
                *parts(row["synonyms"]),
                *(name for names, members in panels if row["name"] in members for name in names),
            ),
        )
        for row in rows("findings.csv")
    )
    given = {
        (row["disease"], row["variant"], row["finding"]): float(row["probability"])
        for row in rows("likelihoods.csv")
    }
    return Tables(tuple(diseases), tuple(findings), given)
