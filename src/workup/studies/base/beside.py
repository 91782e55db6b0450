"""Our ranks of rare diseases beside published ranks of the same patients.

Patients of a table are counted if a publication is known of them. One whose disease we cannot rank
is missed, as one is whose disease the others did not name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from markupsafe import Markup

from workup.cases.files import evenly_spaced
from workup.cases.publications import Groups, publications
from workup.core.case import Case, Source
from workup.core.errors import UserError
from workup.core.statistics import SHARE, Estimate, interval
from workup.core.text import several
from workup.report.sheets import Sheet
from workup.retrieval.hpo.documents import open_release
from workup.retrieval.hpo.phenotypes import (
    LikelihoodRatio,
    PatientFindings,
    Profiles,
    ordered,
)
from workup.retrieval.hpo.release import DATABASE
from workup.studies.base import plots
from workup.studies.base.published import PublishedRanks
from workup.studies.base.result import Result, Section, for_each, plain, sheet, signed

WITH, OUT = "ours, all annotations", "ours, own paper out"
PLACES = (1, 3, 10)
FINDINGS = (1, 5, 9, 16)  # least findings of each band
ANNOTATED = (0, 1, 11, 21, 41)  # least annotated findings of the disease, own paper out


@dataclass(frozen=True, slots=True)
class ComparedCase:
    """One patient: the truth's place in each ranking, 0 where it has none.

    `group` names all patients that share a disease or a publication with this one, directly or
    through others. `findings` are present, `annotated` those of the disease without the own paper.
    """

    case: str
    group: str
    findings: int
    annotated: int
    ranks: Mapping[str, int]


@dataclass(frozen=True)
class RanksBeside(Result):
    """The ranks of all patients of the tables who name a publication."""

    titled = "Rare diseases of {source}, beside published ranks"

    source: str
    seed: int
    diseases: int
    attribution: str
    tables: tuple[str, ...]
    cases: tuple[ComparedCase, ...]
    untold: int
    warnings: tuple[str, ...]

    @property
    def facts(self) -> Mapping[str, str]:
        groups = {each.group for each in self.cases}
        return {
            "Cases": f"{len(self.cases):,} of {self.source}, in {len(groups)} groups",
            "Ranked": f"{self.diseases:,} diseases",
            "Annotations": self.attribution,
            "Seed": str(self.seed),
        }

    def of(self, table: str) -> list[ComparedCase]:
        """The patients of a table."""
        return [each for each in self.cases if table in each.ranks]

    def mean(
        self,
        cases: Sequence[ComparedCase],
        value: Callable[[ComparedCase], float],
        *,
        difference: bool = False,
    ) -> Estimate:
        """A share of patients, or a difference of two; whole groups are drawn for its interval."""
        values, groups = [value(each) for each in cases], [each.group for each in cases]
        return interval(values, groups, bounds=SHARE, difference=difference, seed=self.seed)

    def top(self, cases: Sequence[ComparedCase], ranking: str, k: int) -> Estimate:
        """The share of patients whose disease is among the first k."""
        return self.mean(cases, lambda each: hit(each, ranking, k))

    def gap(self, cases: Sequence[ComparedCase], ours: str, theirs: str, k: int) -> Estimate:
        """The paired difference of two such shares."""
        return self.mean(
            cases, lambda each: hit(each, ours, k) - hit(each, theirs, k), difference=True
        )

    @cached_property
    def compared(self) -> Mapping[str, Mapping[str, Any]]:
        return {table: self._compared(table) for table in self.tables}

    def _compared(self, table: str) -> dict[str, Any]:
        cases = self.of(table)
        rankings = (table, WITH, OUT)
        return {
            "n": len(cases),
            "top": {r: {k: self.top(cases, r, k) for k in PLACES} for r in rankings},
            "gap": {r: {k: self.gap(cases, r, table, k) for k in PLACES} for r in rankings[1:]},
            "right": {k: self._right(cases, table, k) for k in PLACES},
        }

    def _right(self, cases: Sequence[ComparedCase], table: str, k: int) -> dict[str, Estimate]:
        """Who is right among the first k, ours with the own paper out or theirs."""

        def share(ours: float, theirs: float) -> Estimate:
            def value(each: ComparedCase) -> float:
                return float((hit(each, OUT, k), hit(each, table, k)) == (ours, theirs))

            return self.mean(cases, value)

        return {
            "both": share(1, 1),
            "ours alone": share(1, 0),
            "theirs alone": share(0, 1),
            "neither": share(0, 0),
        }

    def sections(self) -> Sequence[Section]:
        return [part for table in self.tables for part in self._sections(table)]

    def _sections(self, table: str) -> list[Section]:
        cases = self.of(table)
        rankings = (table, WITH, OUT)
        shares = {
            "": lambda ranking: ranking,
            **for_each(PLACES, lambda k, r: plain(self.top(cases, r, k), 3), "top-{}"),
        }
        gaps = {
            "paired difference": lambda pair: f"{pair[0]} − {pair[1]}",
            **for_each(PLACES, lambda k, p: signed(self.gap(cases, p[0], p[1], k), 3), "top-{}"),
        }
        right = {k: self._right(cases, table, k) for k in PLACES}
        who = {
            "own paper out": lambda k: f"top-{k}",
            **for_each(right[1], lambda name, k: plain(right[k][name], 3)),
        }
        pairs = [(WITH, table), (OUT, table), (WITH, OUT)]
        sheets = [
            sheet(several(len(cases), "patient"), rankings, shares),
            sheet("Differences", pairs, gaps, "A star: the interval leaves out 0."),
            sheet("Who is right", PLACES, who),
        ]
        bands = [
            self._bands(table, "findings", FINDINGS, lambda each: each.findings),
            self._bands(table, "annotated findings", ANNOTATED, lambda each: each.annotated),
        ]
        return [
            Section(f"Beside {table}", sheets, lambda: self._points(table)),
            Section(f"{table}: by what is known", bands, lambda: self._curves(table)),
        ]

    def _bands(
        self,
        table: str,
        title: str,
        least: Sequence[int],
        of: Callable[[ComparedCase], int],
    ) -> Sheet:
        bands = banded(self.of(table), least, of)
        columns = {
            title: lambda band: band[0],
            "patients": lambda band: f"{len(band[1]):,}",
            **for_each((table, WITH, OUT), lambda r, b: plain(self.top(b[1], r, 1)), "{}"),
        }
        return sheet(f"Top-1 by {title}", list(bands.items()), columns)

    def _points(self, table: str) -> Markup:
        cases, rankings = self.of(table), (table, WITH, OUT)
        panels: Mapping[str, plots.Rows] = {
            f"top-{k}": {"": [self.top(cases, ranking, k) for ranking in rankings]} for k in PLACES
        }
        ends = dict.fromkeys(panels, (0.0, 1.0))
        return plots.rows("Share of patients whose disease is found", rankings, panels, ends=ends)

    def _curves(self, table: str) -> Markup:
        by: Mapping[str, tuple[Sequence[int], Callable[[ComparedCase], int]]] = {
            "findings, at least": (FINDINGS, lambda each: each.findings),
            "annotated findings, at least": (ANNOTATED, lambda each: each.annotated),
        }
        panels: Mapping[str, plots.Curves] = {
            title: {
                ranking: [
                    (float(low), self.top(cases, ranking, 1))
                    for low, cases in zip(
                        least, banded(self.of(table), least, of).values(), strict=True
                    )
                    if cases and low
                ]
                for ranking in (table, WITH, OUT)
            }
            for title, (least, of) in by.items()
        }
        return plots.curves("Top-1", panels, "the band's lower end")

    def notes(self) -> Sequence[str]:
        untold = (
            f"{self.untold:,} patients of the tables are left out: no publication of theirs is "
            "known, so that nothing of their own can be left out."
        )
        return [
            *([untold] if self.untold else []),
            *self.warnings,
            "A disease that the release does not annotate, or not without the own paper, is "
            "counted as missed.",
            "Intervals draw whole groups: patients who share a disease or a publication.",
            self.attribution,
        ]


def hit(case: ComparedCase, ranking: str, k: int) -> float:
    """1 where the disease is among the first k, else 0."""
    return float(0 < case.ranks[ranking] <= k)


def banded(
    cases: Sequence[ComparedCase], least: Sequence[int], of: Callable[[ComparedCase], int]
) -> dict[str, list[ComparedCase]]:
    """The cases by bands of `of`, each from one number of `least` to below the next."""
    bands: dict[str, list[ComparedCase]] = {}
    for place, low in enumerate(least):
        high = least[place + 1] if place + 1 < len(least) else None
        name = f"{low}+" if high is None else f"{low}" if high == low + 1 else f"{low}–{high - 1}"
        inside = [each for each in cases if low <= of(each) and (high is None or of(each) < high)]
        bands[name] = inside
    return bands


def compared(
    source: Source,
    place: str,
    tables: Sequence[PublishedRanks],
    n: int,
    seed: int,
    begin: Callable[[int], Callable[[], None]],
) -> RanksBeside:
    """The ranks of `n` patients of each table, evenly spaced, by the release at `place`.

    Raises UserError for a release that cannot be read, where no patient names a publication, and
    for two tables of one name.
    """
    for name, count in Counter(each.name for each in tables).items():
        if count > 1:
            raise UserError(f"against: {count} tables are called '{name}'; rename one of the files")
    release = open_release(place)
    ratio = LikelihoodRatio(Profiles(release))
    asked = [case for case in source.test if any(case.id in each.ranks for each in tables)]
    told = [case for case in asked if publications(case)]
    if not told:
        raise UserError(f"{source.name}: no publication is known of any patient of the tables")
    groups = Groups()
    for case in source.test:
        groups.join(_ties(case))
    taken: dict[str, set[str]] = {}  # table → the patients drawn of it
    for each in tables:
        own = [case for case in told if case.id in each.ranks]
        taken[each.name] = {case.id for case in evenly_spaced(own, n)}
    every = set().union(*taken.values())
    drawn = [case for case in told if case.id in every]
    tick = begin(len(drawn))
    rows = []
    for case in drawn:
        theirs = {each.name: each.ranks[case.id] for each in tables if case.id in taken[each.name]}
        rows.append(_compared(case, ratio, groups.of(_ties(case)[0]), theirs, seed))
        tick()
    return RanksBeside(
        source.name,
        seed,
        len(release.diseases),
        release.attribution,
        tuple(each.name for each in tables),
        tuple(rows),
        len(asked) - len(told),
        (*(note for each in tables for note in each.notes), *unread(ratio.profiles, drawn)),
    )


def unread(profiles: Profiles, cases: Iterable[Case]) -> list[str]:
    """What a reader should know of findings that the release does not have."""
    terms = [fact.id for case in cases for fact in case.all_facts]
    count = profiles.unknown(terms)
    if not count:
        return []
    told = f"{count:,} of {len(terms):,} findings are no abnormality of the release"
    return [f"{told}; they count nothing to rankers by terms."]


def _ties(case: Case) -> tuple[str, ...]:
    """What a case shares with others of its group: its disease and its publications."""
    return (*case.truth.codes[:1], *sorted(publications(case)))


def _compared(
    case: Case, ratio: LikelihoodRatio, group: str, theirs: Mapping[str, int], seed: int
) -> ComparedCase:
    profiles, own = ratio.profiles, publications(case)
    disease = next((code for code in case.truth.codes if code.startswith(DATABASE)), "")
    present = tuple(fact.id for fact in case.all_facts)
    ranks = dict(theirs)
    for name, withheld in ((WITH, frozenset[str]()), (OUT, own)):
        ranks[name] = 0
        if profiles.annotated(disease, withheld):
            order = ordered(ratio.scores(PatientFindings(present, own=withheld)), seed, case.id)
            ranks[name] = int(np.flatnonzero(order == profiles.row[disease])[0]) + 1
    return ComparedCase(case.id, group, len(present), profiles.annotated(disease, own), ranks)
