"""The clinic's knowledge as data: diseases, findings and P(finding | disease), from CSV files.

The files are in this folder. They are written from general medical knowledge with rounded,
plausible numbers: a test bench, not medicine. Every table may be split over several files
(`diseases*.csv`, `findings*.csv`, `likelihoods*.csv`), which are read one after the other.

- diseases: `prevalence` is a weight. `female` is the share of women (0 or 1 for a sex-bound
  disease). Ages run from `age_from` to `age_to`, with most patients at `age_peak`. `variants` is
  `name=weight|name=weight` where a disease has inner structure. `must_not_miss` is "yes" where a
  delay of hours or days can kill or cripple.
- findings: `present` and `absent` hold alternative sentences, separated by `|`, in which `{value}`,
  `{unit}` and `{reference}` stand for the numbers. `background` is P(finding) in a disease that
  has no row in likelihoods. `complaint` is the probability that a patient comes because of it
  (empty: never). `parent` is the finding without which this one cannot be present; its
  probabilities hold given the parent. `sex` limits the finding to one sex. `synonyms` are what
  people call it besides.
- likelihoods: P(finding | disease). A row that names a variant overrides the disease's own row.
- `subset` is the smallest clinic that a disease or finding belongs to. A larger clinic contains
  the smaller ones.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from workup.core.case import Kind
from workup.core.errors import CaseError, UserError, unknown

SUBSETS = ("xs", "s", "m", "full")
RENAMED = "#renamed"  # ends the name of a clinic whose diseases bear marks in place of names
# Options stand behind a renamed clinic's name, separated by commas.
HELD_OUT, LINKED, PAPERS, STATEMENTS = OPTIONS = "held-out", "linked", "papers", "statements"
HANDBOOKS = (LINKED, PAPERS, STATEMENTS)  # a library is one of them at most
PLACES = (*SUBSETS, *(f"{subset}{RENAMED}" for subset in SUBSETS))
SEXES = ("female", "male")
KINDS = {
    "history": Kind.HISTORY,
    "symptom": Kind.HISTORY,
    "sign": Kind.EXAMINATION,
    "laboratory": Kind.LABORATORY,
    "imaging": Kind.IMAGING,
    "procedure": Kind.PROCEDURE,
    "pathology": Kind.PROCEDURE,
}

COMMON_COMPLAINT = 0.3
"""Every disease needs a complaint of at least this probability, or its patients would not come."""


@dataclass(frozen=True, slots=True)
class Disease:
    """One row of diseases*.csv.

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
    """One row of findings*.csv.

    `present` and `absent` are all sentences that can occur, with every value filled in.
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
    cost: float
    subset: str
    synonyms: tuple[str, ...]


@dataclass(frozen=True)
class Tables:
    """All tables, or one subset of them.

    `given[disease, variant, finding]` holds the rows of likelihoods*.csv.
    """

    diseases: tuple[Disease, ...]
    findings: tuple[ClinicFinding, ...]
    given: dict[tuple[str, str, str], float] = field(repr=False)

    def probability(self, disease: str, variant: str, finding: ClinicFinding) -> float:
        """P(finding | disease, variant, parent present) in a patient of a sex that can have it."""
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
    if len(kinds := [option for option in options if option in HANDBOOKS]) > 1:
        raise UserError(
            f"clinic:{text} would have {len(kinds)} libraries; type one of "
            f"{', '.join(f'{name},{kind}' for kind in kinds)}"
        )
    return name, frozenset(options)


@dataclass(frozen=True, slots=True)
class _TableRow:
    """One line of a CSV file, and its place."""

    file: Path
    line: int
    cells: dict[str, str]

    def error(self, problem: str, column: str) -> CaseError:
        return CaseError(problem, file=self.file.name, line=self.line, field=column)

    def text(self, column: str) -> str:
        if column not in self.cells or self.cells[column] is None:
            raise self.error("the column is missing", column)
        return self.cells[column].strip()

    def required(self, column: str) -> str:
        if not (value := self.text(column)):
            raise self.error("must not be empty", column)
        return value

    def parts(self, column: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.text(column).split("|") if part.strip())

    def number(self, column: str, fits: Callable[[float], bool], range_: str) -> float:
        try:
            value = float(self.text(column))
        except ValueError:
            raise self.error(f"'{self.text(column)}' is no number", column) from None
        if not fits(value):
            raise self.error(f"{value:g} is not {range_}", column)
        return value

    def probability(self, column: str) -> float:
        return self.number(column, lambda p: 0 < p < 1, "between 0 and 1 (both excluded)")

    def positive(self, column: str) -> float:
        return self.number(column, lambda x: 0 < x < 1e6, "positive")

    def choice(self, column: str, known: tuple[str, ...]) -> str:
        if (value := self.text(column)) not in known:
            raise self.error(f"'{value}' is none of {', '.join(repr(k) for k in known)}", column)
        return value


def _rows(folder: Path, table: str) -> Iterator[_TableRow]:
    files = sorted(folder.glob(f"{table}*.csv"))
    if not files:
        raise CaseError("the file is missing", file=folder / f"{table}.csv")
    for file in files:
        with file.open(encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines)
            for cells in reader:
                yield _TableRow(file, reader.line_num, cells)


def _variants(row: _TableRow) -> tuple[tuple[str, float], ...]:
    variants = []
    for part in row.parts("variants"):
        name, _, weight = part.partition("=")
        try:
            variants.append((name.strip(), float(weight)))
        except ValueError:
            raise row.error(f"'{part}' is not name=weight", "variants") from None
    if variants and (
        abs(sum(weight for _, weight in variants) - 1) > 1e-6
        or min(weight for _, weight in variants) <= 0
    ):
        raise row.error("weights must be positive and sum to 1", "variants")
    return tuple(variants) or (("", 1.0),)


def _disease(row: _TableRow) -> Disease:
    ages = [
        row.number(c, lambda age: 0 <= age <= 120, "an age")
        for c in ("age_from", "age_peak", "age_to")
    ]
    if not ages[0] <= ages[1] <= ages[2]:
        raise row.error("must lie between age_from and age_to", "age_peak")
    return Disease(
        name=row.required("name"),
        code=row.required("code"),
        synonyms=row.parts("synonyms"),
        family=row.required("family"),
        prevalence=row.positive("prevalence"),
        female=row.number("female", lambda share: 0 <= share <= 1, "a share between 0 and 1"),
        ages=(ages[0], ages[1], ages[2]),
        variants=_variants(row),
        subset=row.choice("subset", SUBSETS),
        must_not_miss=row.choice("must_not_miss", ("", "yes")) == "yes",
    )


def _sentences(row: _TableRow, column: str, values: str) -> tuple[str, ...]:
    """The column's phrasings, once per representative value where they hold a number."""
    numbers = {"unit": row.text("unit"), "reference": row.text("reference")}
    try:
        sentences = [
            phrase.format(value=value, **numbers)
            for phrase in row.parts(column)
            for value in (row.parts(values) if "{value}" in phrase else ("",))
        ]
    except (KeyError, IndexError, ValueError):
        raise row.error(
            "only {value}, {unit} and {reference} may stand in braces", column
        ) from None
    if not sentences:
        raise row.error("needs a sentence (and a value, where it names one)", column)
    return tuple(dict.fromkeys(sentences))


def _finding(row: _TableRow) -> ClinicFinding:
    kind = KINDS[row.choice("kind", tuple(KINDS))]
    if kind != Kind.HISTORY and row.text("complaint"):
        raise row.error("only a symptom or a piece of history can be a complaint", "complaint")
    return ClinicFinding(
        name=row.required("name"),
        kind=kind,
        question=row.required("question"),
        present=_sentences(row, "present", "abnormal_values"),
        absent=_sentences(row, "absent", "normal_values"),
        unit=row.text("unit"),
        reference=row.text("reference"),
        background=row.probability("background"),
        complaint=row.positive("complaint") if row.text("complaint") else 0.0,
        parent=row.text("parent") or None,
        sex=row.choice("sex", ("", *SEXES)),
        cost=row.positive("cost"),
        subset=row.choice("subset", SUBSETS),
        synonyms=row.parts("synonyms"),
    )


def _unique(names: dict[str, str], row: _TableRow, column: str, values: tuple[str, ...]) -> None:
    """Raises CaseError for a name that something else has: an action must name one thing alone."""
    for value in values:
        place = f"{row.file.name}, line {row.line}"
        if (first := names.setdefault(value.casefold(), place)) != place:
            raise row.error(f"'{value}' is already named in {first}", column)


def _likelihoods(
    folder: Path, diseases: dict[str, Disease], findings: set[str]
) -> dict[tuple[str, str, str], float]:
    given: dict[tuple[str, str, str], float] = {}
    for row in _rows(folder, "likelihoods"):
        disease, variant, finding = row.text("disease"), row.text("variant"), row.text("finding")
        for column, name, known in (
            ("disease", disease, set(diseases)),
            ("finding", finding, findings),
        ):
            if name not in known:
                raise row.error(str(unknown(column, name, known)), column)
        if variant and variant not in dict(diseases[disease].variants):
            raise row.error(
                str(unknown("variant", variant, dict(diseases[disease].variants))), "variant"
            )
        if (disease, variant, finding) in given:
            raise row.error("this probability is already given", "finding")
        given[disease, variant, finding] = row.probability("probability")
    return given


def _check_parent(
    row: _TableRow, finding: ClinicFinding, findings: dict[str, ClinicFinding]
) -> None:
    if finding.parent is None:
        return
    if finding.parent not in findings:
        raise row.error(str(unknown("finding", finding.parent, findings)), "parent")
    parent = findings[finding.parent]
    if SUBSETS.index(parent.subset) > SUBSETS.index(finding.subset) or parent.sex not in (
        "",
        finding.sex,
    ):
        raise row.error("the parent is missing in a smaller clinic or in one sex", "parent")
    if parent.parent is not None or finding.complaint:
        raise row.error(
            "a finding with a parent can be neither a complaint nor a parent itself", "parent"
        )


def _check_complaint(row: _TableRow, disease: Disease, tables: Tables) -> None:
    at_hand = tables.subset(disease.subset).findings
    for sex, share in zip(SEXES, (disease.female, 1 - disease.female), strict=True):
        possible = [
            finding for finding in at_hand if finding.complaint and finding.sex in ("", sex)
        ]
        for variant, _ in disease.variants if share else ():
            chances = [tables.probability(disease.name, variant, finding) for finding in possible]
            if max(chances, default=0.0) < COMMON_COMPLAINT:
                who = f"a {sex} patient" + (f" with variant '{variant}'" if variant else "")
                raise row.error(
                    f"{who} has no complaint of probability {COMMON_COMPLAINT} or more", "name"
                )


def read_tables(folder: Path) -> Tables:
    """Reads and checks the tables of a folder. Raises CaseError naming file, line and column."""
    names: dict[str, str] = {}
    diseases: dict[str, tuple[_TableRow, Disease]] = {}
    for row in _rows(folder, "diseases"):
        disease = _disease(row)
        _unique(names, row, "name", (disease.name, *disease.synonyms))
        diseases[disease.name] = row, disease
    findings: dict[str, tuple[_TableRow, ClinicFinding]] = {}
    for row in _rows(folder, "findings"):
        finding = _finding(row)
        _unique(names, row, "name", (finding.name, *finding.synonyms))
        findings[finding.name] = row, finding
    of_disease = {name: disease for name, (_, disease) in diseases.items()}
    of_finding = {name: finding for name, (_, finding) in findings.items()}
    given = _likelihoods(folder, of_disease, set(of_finding))
    tables = Tables(tuple(of_disease.values()), tuple(of_finding.values()), given)
    for row, finding in findings.values():
        _check_parent(row, finding, of_finding)
    for row, disease in diseases.values():
        _check_complaint(row, disease, tables)
    return tables


@lru_cache(maxsize=1)
def clinic_tables() -> Tables:
    """The built-in tables, read once."""
    return read_tables(Path(__file__).parent)
