"""What the reward of ranked lists pays for (ES-6).

R_d by place, length and τ, as in Fig. 3, and what honest lists of every length earn. The lists are
those of the exact posterior, so no policy is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from pydantic import Field

from workup.cases import open_source
from workup.cases.files import evenly_spaced
from workup.core.case import Case, Evidence, Knowledge, Source, evidence_of
from workup.core.errors import UserError
from workup.core.statistics import SHARE, Estimate, interval
from workup.environments.base.ranked_teacher import informative
from workup.methods.evidence_seeking.ranked import R_d, RewardWeights
from workup.report.sheets import Sheet
from workup.rl.running import run_to_end
from workup.roles.judges.exact import ExactExaminations
from workup.roles.judges.questions import Ordered
from workup.studies.base import plots
from workup.studies.base.result import Result, Section, for_each, sheet
from workup.studies.base.task import Numbers, SourceSettings, Study, StudyTask

Array = NDArray[np.float64]
LENGTHS = tuple(range(1, 11))
SHOWN = (1, 2, 3, 5, 10)  # lengths in the table
ORDERED = 5
"""How many examinations an order has: the most informative ones."""

PRESENTATION, RESULTS = "presentation", "with results"
KNOWN = (PRESENTATION, RESULTS)
BY_τ, GAIN, BY_LENGTH = "five candidates, by τ", "gain from 5 to 4 candidates", "τ = 1, by length"


class Settings(SourceSettings):
    """Which rewards are compared."""

    cases: str = Field("clinic:pathology", description="a source with a model of its cases")
    n: int = Field(400, ge=1, description="test cases at most, evenly spaced")
    taus: Numbers = Field(
        "0.4,0.8,1.5,3", validate_default=True, description="τ of the reward, each larger than 0"
    )


@dataclass(frozen=True, slots=True)
class Honest:
    """What an honest list of `length` earns at one τ: means over the cases.

    `paid` is R_d by the place of the truth, `expected` the same by the doctor's own posterior,
    `hit` DiffAcc. `best` is the share of cases in which no length has a higher expected R_d, and
    `rewarded` the share in which none has a higher expected R_d + R_e.
    """

    known: str
    τ: float
    length: int
    paid: Estimate
    expected: Estimate
    hit: Estimate
    best: Estimate
    rewarded: Estimate


@dataclass(frozen=True)
class Ranks(Result):
    """Fig. 3 by our code, and honest lists of every length."""

    titled = "Ranked lists on {source}"

    source: str
    seed: int
    cases: int
    taus: tuple[float, ...]
    bonus: float
    honest: tuple[Honest, ...]

    @property
    def facts(self) -> Mapping[str, str]:
        return {
            "Cases": f"{self.cases:,} of {self.source}",
            "Doctor": f"the exact posterior; it orders the {ORDERED} most informative examinations",
            "Bonus": f"B_e = {self.bonus:g} where these tell the candidates apart",
            "Seed": str(self.seed),
        }

    @property
    def lengths(self) -> Sequence[int]:
        """The lengths of lists, at most as many as there are diseases."""
        return sorted({each.length for each in self.honest})

    def sections(self) -> Sequence[Section]:
        columns = {
            "τ": lambda τ: f"{τ:g}",
            **for_each(range(1, 6), lambda i, τ: f"{R_d(i, 5, τ):.3f}", "place {}"),
            "place 1 of 4": lambda τ: f"{R_d(1, 4, τ):.3f}",
        }
        of_five = sheet("R_d of a list of five", self.taus, columns)
        drawn = "R_d as in Fig. 3 of the paper, by our code."
        means = (
            "Expected R_d with the presentation alone and with the results of the examinations: "
            "means with 95\u00a0% intervals by case."
        )
        return [
            Section("The reward", (of_five,), self._figure_3, drawn),
            Section("An honest list", (self._earned(), self._best()), self._expected, means),
        ]

    def _figure_3(self) -> Markup:
        panels: Mapping[str, plots.Curves] = {
            BY_τ: {
                f"τ = {τ:g}": [(i, Estimate.exact(R_d(i, 5, τ))) for i in range(1, 6)]
                for τ in self.taus
            },
            GAIN: {
                f"τ = {τ:g}": [
                    (i, Estimate.exact(R_d(i, 4, τ) - R_d(i, 5, τ))) for i in range(1, 5)
                ]
                for τ in self.taus
            },
            BY_LENGTH: {
                f"|D| = {D}": [(i, Estimate.exact(R_d(i, D, 1.0))) for i in range(1, D + 1)]
                for D in (1, 3, 5, 10)
            },
        }
        return plots.curves("R_d by place, length and τ", panels, "place of the truth")

    def _expected(self) -> Markup:
        panels: Mapping[str, plots.Curves] = {
            known: {
                f"τ = {τ:g}": [(each.length, each.expected) for each in self._at(known, τ)]
                for τ in self.taus
            }
            for known in KNOWN
        }
        return plots.curves("Expected R_d of an honest list", panels, "length of the list")

    def _at(self, known: str, τ: float) -> list[Honest]:
        """The honest lists at one τ, by their length from 1."""
        return [each for each in self.honest if (each.known, each.τ) == (known, τ)]

    def _earned(self) -> Sheet:
        """What lists hold, and what they are paid."""
        columns = {
            "known": lambda by: by[self.taus[0]].known,
            "|D|": lambda by: by[self.taus[0]].length,
            "DiffAcc": lambda by: by[self.taus[0]].hit,
            **for_each(self.taus, lambda τ, by: by[τ].paid, "R_d, τ = {:g}"),
        }
        rows = [
            {τ: self._at(known, τ)[D - 1] for τ in self.taus}
            for known in KNOWN
            for D in SHOWN
            if D in self.lengths
        ]
        return sheet("Honest lists by their length", rows, columns, words=2)

    def _best(self) -> Sheet:
        """The length of the highest expected reward."""
        columns = {
            "known": lambda lists: lists[0].known,
            "τ": lambda lists: f"{lists[0].τ:g}",
            "one, by R_d": lambda lists: lists[0].best,
            "one, R_d + R_e": lambda lists: lists[0].rewarded,
            "two": lambda lists: lists[1].rewarded,
            "three or more": lambda lists: f"{sum(e.rewarded.mean for e in lists[2:]):.2f}",
        }
        note = (
            "Shares of the cases in which this length has the highest expected reward. A list of "
            "one has no bonus R_e: nothing is told apart."
        )
        rows = [self._at(known, τ) for known in KNOWN for τ in self.taus]
        return sheet("The best length", rows, columns, note, words=2)

    def notes(self) -> Sequence[str]:
        return (
            "Expected R_d is a mean of the candidates' probabilities with weights that fall with "
            "the place and sum to 1. So no honest list is worth more than its first candidate's "
            "probability, which is what a list of one is worth, whatever τ is.",
            "The bonus changes that: two candidates are worth more than one where the first is "
            "ahead of the second by less than B_e·(1 + e^(1/τ)).",
        )


def earned(
    source: Source, n: int, taus: Sequence[float], seed: int, tick: Callable[[], None]
) -> Ranks:
    """Honest lists over `n` test cases, evenly spaced.

    Raises UserError for a source without a model of its cases, or without items, and for a τ that
    is not positive or named twice.
    """
    if source.knowledge is None or not source.items:
        raise UserError(
            f"{source.name} has no model of its cases, by whose posterior lists are ranked; "
            "clinic:pathology has one"
        )
    if not all(τ > 0 for τ in taus):
        raise UserError(f"taus={','.join(f'{τ:g}' for τ in taus)}: every τ is larger than 0")
    if len({*taus}) < len(taus):
        raise UserError(f"taus={','.join(f'{τ:g}' for τ in taus)}: name each τ once")
    cases = evenly_spaced(source.test, n)
    bonus = RewardWeights().B_e
    rows = []
    for case in cases:
        rows.append(_case(source, source.knowledge, case))
        tick()
    ids = [case.id for case in cases]
    honest = [
        _honest(known, τ, D, [row[known] for row in rows], ids, bonus, seed)
        for known in KNOWN
        for τ in taus
        for D in LENGTHS[: len(source.knowledge.diagnoses)]
    ]
    return Ranks(source.name, seed, len(ids), tuple(taus), bonus, tuple(honest))


@dataclass(frozen=True, slots=True)
class _Belief:
    """One case's ranked posterior: its LENGTHS[-1] highest probabilities, and the truth's place.

    `place` is 0 if it is not among them. `worths[D − 1]` is the sign of R_e for a list of D.
    """

    posterior: Array
    place: int
    worths: Array

    def expected(self, τ: float) -> Array:
        """Σ_i p_i·R_d(i, D, τ) for each length D."""
        return _paid(τ)[:, : len(self.posterior)] @ self.posterior


@cache
def _paid(τ: float) -> Array:
    """R_d(i, D, τ) for each length D (rows) and each place i (columns); 0 behind a list's end."""
    places = range(1, LENGTHS[-1] + 1)
    return np.array([[R_d(i, D, τ) if i <= D else 0.0 for i in places] for D in LENGTHS])


def _case(source: Source, knowledge: Knowledge, case: Case) -> dict[str, _Belief]:
    evidence = evidence_of(case.given)
    names = [item.name for item in source.items]
    ordered = informative(knowledge, evidence, names, ORDERED)
    found = evidence_of(fact for fact in case.truth.facts if fact.item in ordered)
    results: Evidence = {**evidence, **dict.fromkeys(ordered, ()), **found}
    return {
        PRESENTATION: _belief(knowledge, case, evidence, ordered),
        RESULTS: _belief(knowledge, case, results, informative(knowledge, results, names, ORDERED)),
    }


def _belief(
    knowledge: Knowledge, case: Case, evidence: Evidence, ordered: Sequence[str]
) -> _Belief:
    posterior = np.asarray(knowledge.posterior(evidence))
    order = np.argsort(-posterior, kind="stable")[: LENGTHS[-1]]
    ranked = tuple(knowledge.diagnoses[place] for place in order)
    truth = case.truth.diagnosis
    place = ranked.index(truth) + 1 if truth in ranked else 0
    judge = ExactExaminations()

    async def worths() -> list[float]:
        orders = tuple(ordered)
        return [(await judge.judge(Ordered(orders, ranked[:D]))).value for D in LENGTHS]

    return _Belief(posterior[order], place, np.array(run_to_end(worths())))


def _honest(
    known: str,
    τ: float,
    D: int,
    beliefs: Sequence[_Belief],
    ids: Sequence[str],
    bonus: float,
    seed: int,
) -> Honest:
    def mean(of: Callable[[_Belief], float]) -> Estimate:
        return interval([of(each) for each in beliefs], ids, bounds=SHARE, seed=seed)

    def first(worth: Callable[[_Belief], Array]) -> Estimate:
        return mean(lambda each: float(int(np.argmax(np.round(worth(each), 12))) + 1 == D))

    return Honest(
        known,
        τ,
        D,
        mean(lambda each: R_d(each.place if each.place <= D else 0, D, τ)),
        mean(lambda each: float(each.expected(τ)[D - 1])),
        mean(lambda each: float(0 < each.place <= D)),
        first(lambda each: each.expected(τ)),
        first(lambda each: each.expected(τ) + bonus * each.worths),
    )


def run(task: StudyTask) -> Ranks:
    """Honest lists over the test cases of the source."""
    s = task.settings
    return earned(open_source(s.cases), s.n, s.taus, s.seed, task.begin(s.n))


study = Study(
    "What does the reward of ranked lists pay for, and how long a list does it ask of a doctor who "
    "ranks by an exact posterior?",
    run,
    Settings,
)
