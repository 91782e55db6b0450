"""What the reward of ranked lists pays for: Fig. 3, and how long an honest list should be (ES-6).

The lists are those of the exact posterior, so no policy is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from workup.cases.files import evenly_spaced
from workup.core.case import Case, Evidence, Knowledge, Source, evidence_of
from workup.core.errors import UserError
from workup.core.statistics import SHARE, Estimate, interval
from workup.environments.base.ranked_teacher import informative
from workup.methods.evidence_seeking.ranked import R_d, RewardWeights
from workup.rl.running import run_to_end
from workup.roles.judges.exact import ExactExaminations
from workup.roles.judges.questions import Ordered
from workup.studies import plots
from workup.studies.study import Section, Sheet, Study, plain

Array = NDArray[np.float64]
LENGTHS = tuple(range(1, 11))
ORDERED = 5
"""How many examinations an order has: the most informative ones."""

PRESENTATION, RESULTS = "presentation", "with results"
LEFT, MIDDLE, RIGHT = "τ = 1, by length", "five candidates, by τ", "gain from 5 to 4 candidates"


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
class Ranks(Study):
    """Fig. 3 by our code, and honest lists of every length."""

    name: ClassVar[str] = "ranks"
    question: ClassVar[str] = (
        "What does the reward of ranked lists pay for, and how long a list does it ask of a doctor "
        "who ranks by an exact posterior?"
    )
    source: str
    seed: int
    cases: int
    taus: tuple[float, ...]
    bonus: float
    honest: tuple[Honest, ...]

    @property
    def title(self) -> str:
        return f"Ranked lists on {self.source}"

    @property
    def facts(self) -> Mapping[str, str]:
        return {
            "Cases": f"{self.cases:,} of {self.source}",
            "Doctor": f"the exact posterior; it orders the {ORDERED} most informative examinations",
            "Bonus": f"B_e = {self.bonus:g} where these tell the candidates apart",
            "Seed": str(self.seed),
        }

    def sections(self) -> Sequence[Section]:
        reward = plots.curves(
            "R_d by place, length and τ", _figure_3(self.taus), "place of the truth"
        )
        honest = plots.curves(
            "Expected R_d of an honest list", self._expected(), "length of the list"
        )
        drawn = "Fig. 3 of the paper, by our code."
        means = "Means with 95\u00a0% intervals by case."
        return [
            Section("The reward", tuple(_tables(self.taus)), reward, drawn),
            Section("An honest list", (self._earned(), self._best()), honest, means),
        ]

    def _expected(self) -> Mapping[str, plots.Curves]:
        return {
            known: {
                f"τ = {τ:g}": [(each.length, each.expected) for each in self._at(known, τ)]
                for τ in self.taus
            }
            for known in self._known()
        }

    def _known(self) -> list[str]:
        return list(dict.fromkeys(each.known for each in self.honest))

    def _at(self, known: str, τ: float) -> list[Honest]:
        """The honest lists at one τ, by their length from 1."""
        return [each for each in self.honest if (each.known, each.τ) == (known, τ)]

    def _earned(self) -> Sheet:
        """What lists hold, and what they are paid."""
        rows = []
        for known in self._known():
            by_tau = [self._at(known, τ) for τ in self.taus]
            for D in (1, 2, 3, 5, 10):
                hit, paid = by_tau[0][D - 1].hit, [each[D - 1].paid for each in by_tau]
                rows.append((known, str(D), plain(hit), *map(plain, paid)))
        headings = ("known", "|D|", "DiffAcc", *(f"R_d, τ = {τ:g}" for τ in self.taus))
        return Sheet("Honest lists by their length", headings, tuple(rows), words=2)

    def _best(self) -> Sheet:
        """The length of the highest expected reward."""
        rows = []
        for known in self._known():
            for τ in self.taus:
                lists = self._at(known, τ)
                more = sum(each.rewarded.mean for each in lists[2:])
                rows.append(
                    (
                        known,
                        f"{τ:g}",
                        plain(lists[0].best),
                        *(plain(each.rewarded) for each in lists[:2]),
                        f"{more:.2f}",
                    )
                )
        headings = ("known", "τ", "one, by R_d", "one, R_d + R_e", "two", "three or more")
        note = (
            "Shares of the cases in which this length has the highest expected reward. A list of "
            "one has no bonus R_e: nothing is told apart."
        )
        return Sheet("The best length", headings, tuple(rows), note, words=2)

    def notes(self) -> Sequence[str]:
        return (
            "Expected R_d is a mean of the candidates' probabilities with weights that fall with "
            "the place and sum to 1. So no honest list is worth more than its first candidate's "
            "probability, which is what a list of one is worth, whatever τ is.",
            "The bonus changes that: two candidates are worth more than one where the first is "
            "ahead of the second by less than B_e·(1 + e^(1/τ)).",
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "seed": self.seed,
            "cases": self.cases,
            "bonus": self.bonus,
            "reward": [
                {"tau": τ, "length": D, "R_d": [R_d(i, D, τ) for i in range(1, D + 1)]}
                for τ in self.taus
                for D in LENGTHS
            ],
            "honest": [
                {
                    "known": each.known,
                    "tau": each.τ,
                    "length": each.length,
                    **{
                        name: getattr(each, name).as_json()
                        for name in ("paid", "expected", "hit", "best", "rewarded")
                    },
                }
                for each in self.honest
            ],
        }


def study(
    source: Source, n: int, taus: Sequence[float], seed: int, tick: Callable[[], None]
) -> Ranks:
    """Honest lists over `n` test cases, evenly spaced.

    Raises UserError for a source without a model of its cases, or without items, and for a τ that
    is not positive.
    """
    if source.knowledge is None or not source.items:
        raise UserError(
            f"{source.name} has no model of its cases, by whose posterior lists are ranked; "
            "clinic:pathology has one"
        )
    if not all(τ > 0 for τ in taus):
        raise UserError(f"--taus {', '.join(f'{τ:g}' for τ in taus)}: every τ is larger than 0")
    cases = evenly_spaced(source.test, n)
    bonus = RewardWeights().B_e
    rows = []
    for case in cases:
        rows.append(_case(source, source.knowledge, case))
        tick()
    ids = [case.id for case in cases]
    honest = [
        _honest(known, τ, D, [row[known] for row in rows], ids, bonus, seed)
        for known in (PRESENTATION, RESULTS)
        for τ in taus
        for D in LENGTHS
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
        return np.array(
            [
                sum(p * R_d(i, D, τ) for i, p in enumerate(self.posterior[:D].tolist(), 1))
                for D in LENGTHS
            ]
        )


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


def _exact(value: float) -> Estimate:
    """A figure without an interval."""
    return Estimate(value, nan, nan, 1)


def _figure_3(taus: Sequence[float]) -> Mapping[str, plots.Curves]:
    return {
        LEFT: {
            f"|D| = {D}": [(i, _exact(R_d(i, D, 1.0))) for i in range(1, D + 1)]
            for D in (1, 3, 5, 10)
        },
        MIDDLE: {f"τ = {τ:g}": [(i, _exact(R_d(i, 5, τ))) for i in range(1, 6)] for τ in taus},
        RIGHT: {
            f"τ = {τ:g}": [(i, _exact(R_d(i, 4, τ) - R_d(i, 5, τ))) for i in range(1, 5)]
            for τ in taus
        },
    }


def _tables(taus: Sequence[float]) -> list[Sheet]:
    places = range(1, 6)
    return [
        Sheet(
            "R_d of a list of five",
            ("τ", *(f"place {i}" for i in places), "place 1 of 4"),
            tuple(
                (f"{τ:g}", *(f"{R_d(i, 5, τ):.3f}" for i in places), f"{R_d(1, 4, τ):.3f}")
                for τ in taus
            ),
        )
    ]
