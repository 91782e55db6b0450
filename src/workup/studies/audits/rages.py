"""How often simulated examination results are right, by source (ES-9, ES-14; paper Table 4).

The pathology wing knows every patient's own results and every tumour's rates exactly. The audit
hides a part of each record, orders hidden and recorded markers, and compares. A base's statistics
are compared with another table's as well.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from workup.cases import open_source
from workup.cases.catalogue import built_in
from workup.cases.exam_terms import key, positive
from workup.cases.files import existing
from workup.core.case import Case, Source
from workup.core.draws import uniform
from workup.core.errors import CaseError, RolloutError, UserError
from workup.core.ports import Model
from workup.core.statistics import SHARE, Estimate, interval
from workup.environments.exams.exam_base import ExamBase
from workup.environments.exams.exam_sources import lines
from workup.environments.exams.rages import (
    CONFIDENCE,
    ExamResult,
    ExamSimulator,
    RagesSettings,
    ResultSource,
)
from workup.report.sheets import Sheet
from workup.rl.running import run_to_end
from workup.roles.judges.exact import DIFFERENCE
from workup.runs.settings import Seed
from workup.runs.words import DASH, decimal
from workup.studies.base.result import Result, Section, percent, sheet
from workup.studies.base.task import Study, StudySettings, StudyTask

WING = "clinic:pathology"
ALL, TELLING = "all markers", "telling markers"
MODELLED = {
    "generation": ("generated",),
    "record, generation": ("record", "generated"),
    "base, generation": ("base", "generated"),
    "record, base, generation": ("record", "base", "generated"),
}
BUILT_IN = {"record": ("record",), "base": ("base",), "record, base": ("record", "base")}
SOURCES: tuple[ResultSource, ...] = ("record", "base", "generated", "none")
_SHOWN = 10  # disagreements of two tables
_QUOTED = 80  # characters of a result that a note quotes


class Settings(StudySettings):
    """What is ordered, and where results are from."""

    base: str = Field(
        "clinic", description="a folder of `workup index build --kind exams`, or clinic"
    )
    tables: str = Field(
        "", description="another table of statistics that the base is compared with"
    )
    model: str = Field(
        "", description="who writes what is missing: endpoint:NAME, a folder, a hub id"
    )
    nearest: Literal["exact", "embedding"] = Field(
        "exact", description="how the base's disease is found"
    )
    recorded: float = Field(
        0.5, ge=0, le=1, description="share of each record that the simulator knows"
    )
    n: int = Field(400, ge=1, description="orders of each configuration")
    seed: Seed = Field(0, description="which orders, and which part of the records")


@dataclass(frozen=True, slots=True)
class Probe:
    """One marker ordered for one patient.

    `rate` is P(positive | tumour) and `positive` this patient's own result. `telling` says that the
    marker separates the tumour from one of the reference differentials.
    """

    case: str
    marker: str
    rate: float
    positive: bool
    telling: bool


@dataclass(frozen=True, slots=True)
class OrderResult:
    """What a configuration reported; `says` is None where the text is neither one nor the other.

    `share` is the base's statistic of what was drawn from it. `text` is what was reported, and
    `reason` says why the model failed.
    """

    configuration: str
    probe: Probe
    source: ResultSource = "none"
    says: bool | None = None
    share: float | None = None
    withheld: int = 0
    reason: str = ""
    text: str = ""

    @property
    def right(self) -> bool | None:
        """Whether it is this patient's own result."""
        return None if self.says is None else self.says == self.probe.positive

    @property
    def likelihood(self) -> float | None:
        """P(result | tumour) by the wing's table."""
        if self.says is None:
            return None
        return self.probe.rate if self.says else 1 - self.probe.rate

    @property
    def typical(self) -> bool | None:
        """Whether it is the result that most patients with the tumour have."""
        return None if self.likelihood is None else self.likelihood >= 0.5


@dataclass(frozen=True)
class Disagreement:
    """A statistic that two tables have: the share here, and there."""

    disease: str
    test: str
    here: float
    there: float


@dataclass(frozen=True)
class TablesCompared:
    """The statistics of a base beside those of a table; what could not be mapped, by name."""

    base: str
    table: str
    pairs: tuple[Disagreement, ...]
    diseases: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def rows(self) -> Iterator[tuple[str, str]]:
        """Figures and their names."""
        here = np.array([pair.here for pair in self.pairs])
        there = np.array([pair.there for pair in self.pairs])
        yield "statistics in both", str(len(self.pairs))
        if len(self.pairs) > 1:
            yield "mean difference", f"{np.mean(np.abs(here - there)):.2f}"
            yield "on the same side of ½", f"{np.mean((here >= 0.5) == (there >= 0.5)):.0%}"
            vary = bool(np.ptp(here) and np.ptp(there))
            yield "correlation", f"{np.corrcoef(here, there)[0, 1]:.2f}" if vary else DASH
        yield "diseases that cannot be mapped", "; ".join(self.diseases) or "none"
        yield "examinations that cannot be mapped", "; ".join(self.tests) or "none"

    @property
    def furthest(self) -> list[Disagreement]:
        """The largest differences first."""
        return sorted(self.pairs, key=lambda pair: -abs(pair.here - pair.there))[:_SHOWN]

    def tables(self) -> list[Sheet]:
        """The figures, and the largest differences."""
        named = {"": lambda row: row[0], "figure": lambda row: row[1]}
        apart = {
            "disease": lambda pair: pair.disease,
            "examination": lambda pair: pair.test,
            "base": lambda pair: f"{pair.here:.2f}",
            "table": lambda pair: f"{pair.there:.2f}",
        }
        return [
            sheet(f"the base {self.base} beside {self.table}", self.rows(), named),
            sheet("furthest apart", self.furthest, apart, words=2),
        ]


@dataclass(frozen=True, slots=True)
class SourceRates:
    """Of one configuration, of one source of it ("" for all) and of all or the telling markers.

    `answered` is a share, `expected` how often results are right if those of the record are and
    those of the base are drawn. The others are as in `OrderResult`.
    """

    configuration: str
    source: str
    markers: str
    n: int
    answered: float
    expected: float
    right: Estimate
    typical: Estimate
    likelihood: Estimate

    @property
    def whole(self) -> bool:
        """Whether it is a configuration with everything."""
        return not self.source and self.markers == ALL


@dataclass(frozen=True, slots=True)
class Calibration:
    """A source's confidence beside how often its results are right, and typical."""

    source: ResultSource
    n: int
    confidence: float
    right: Estimate
    typical: Estimate


@dataclass(frozen=True)
class RagesAudit(Result):
    """The results of all configurations, and the comparison with a table where one was given."""

    titled = "RAGES: base {base}, model {model}"
    asks = "results"

    base: str
    model: str
    n: int
    seed: int
    recorded: float
    results: tuple[OrderResult, ...]
    compared: TablesCompared | None = None
    configurations: tuple[str, ...] = field(default=())

    def some(
        self, configuration: str, source: ResultSource | None = None, kind: str = ALL
    ) -> list[OrderResult]:
        """The results of one configuration, perhaps of one source or kind of marker alone."""
        return [
            each
            for each in self.results
            if each.configuration == configuration
            and not each.reason
            and source in (None, each.source)
            and (kind == ALL or each.probe.telling)
        ]

    def rate(self, measure: str, results: Sequence[OrderResult]) -> Estimate:
        """The mean of `measure` with its interval by case; what says nothing is `missing`."""
        values = [getattr(each, measure) for each in results]
        numbers = [None if value is None else float(value) for value in values]
        cases = [each.probe.case for each in results]
        return interval(numbers, cases, bounds=SHARE, seed=self.seed)

    @cached_property
    def rates(self) -> list[SourceRates]:
        """Of every configuration all markers and the telling ones, then each source's."""
        found = []
        for configuration in self.configurations:
            sources = [s for s in SOURCES if self.some(configuration, s)]
            for kind in (ALL, TELLING):
                found.append(self._rates(configuration, None, kind))
            for source in sources if len(sources) > 1 else ():
                found.append(self._rates(configuration, source, ALL))
        return found

    def _rates(self, configuration: str, source: ResultSource | None, kind: str) -> SourceRates:
        results = self.some(configuration, source, kind)
        said = [each for each in results if each.says is not None]
        return SourceRates(
            configuration,
            source or "",
            kind,
            len(results),
            len(said) / len(results) if results else math.nan,
            _expected(said),
            *(self.rate(name, results) for name in ("right", "typical", "likelihood")),
        )

    @cached_property
    def calibration(self) -> list[Calibration]:
        """Each source's confidence beside how often its results are right, over all markers.

        Every configuration of a source reports the same: one of them, the fullest, counts.
        """
        found = []
        for source in SOURCES[:-1]:
            own = (self.some(c, source) for c in reversed(self.configurations))
            said = [each for each in next(filter(None, own), []) if each.says is not None]
            if said:
                rates = (self.rate(name, said) for name in ("right", "typical"))
                found.append(Calibration(source, len(said), CONFIDENCE[source], *rates))
        return found

    def sections(self) -> Sequence[Section]:
        rates = sheet(
            f"{self.n} orders, {self.recorded:.0%} of each record known",
            self.rates,
            {
                "results from": lambda row: (
                    row.configuration if row.whole else f"  {row.source or row.markers}"
                ),
                "n": lambda row: row.n,
                "answered %": lambda row: decimal(100 * row.answered, 1),
                "right %": lambda row: percent(row.right),
                "expected": lambda row: decimal(100 * row.expected, 1),
                "typical %": lambda row: decimal(100 * row.typical.mean, 1),
            },
            bold=lambda row: row.whole,
        )
        calibration = sheet(
            "confidence and correctness",
            self.calibration,
            {
                "source": lambda row: row.source,
                "n": lambda row: row.n,
                "confidence": lambda row: f"{row.confidence:.1f}",
                "right %": lambda row: percent(row.right),
                "typical %": lambda row: percent(row.typical),
            },
        )
        found = [Section("Right results by source", (rates, calibration))]
        if self.compared is not None:
            found.append(Section("Another table", self.compared.tables()))
        return found

    def notes(self) -> Sequence[str]:
        withheld = sum(each.withheld for each in self.results)
        names = [f"{withheld} names of the diagnosis were withheld"] if withheld else []
        unread = self.compared.left_out if self.compared else ()
        told = f"{len(unread)} rows of the other table are left out; the first: "
        return [*names, *([told + unread[0]] if unread else [])]

    def quotes(self) -> Sequence[str]:
        silent = [
            each.text
            for each in self.results
            if each.says is None and each.source != "none" and not each.reason
        ]
        if not silent:
            return []
        what = "results are neither positive nor negative by their words"
        return [f"{len(silent)} {what}, such as '{silent[0][:_QUOTED]}'"]


def _expected(said: Sequence[OrderResult]) -> float:
    """How often results are right if those of the record are, and those of the base are drawn.

    A draw with share q agrees with a patient's own result, of rate p, with probability
    q p + (1 − q) (1 − p). NaN without a result, and where a model wrote one.
    """
    chances = []
    for each in said:
        if each.source == "record":
            chances.append(1.0)
        elif each.share is not None:
            rate = each.probe.rate
            chances.append(each.share * rate + (1 - each.share) * (1 - rate))
        else:
            return math.nan
    return float(np.mean(chances)) if chances else math.nan


def _probe(case: Case, column: int, telling: bool) -> Probe:
    name = built_in().examinations[column].name
    rate = built_in().shares(case.truth.diagnosis)[name]
    own = any(fact.item == name for fact in case.truth.facts)
    return Probe(case.id, name, rate, own, telling)


def _telling(case: Case) -> NDArray[np.bool_]:
    """Which markers differ by DIFFERENCE between the tumour and its reference differentials."""
    names = (case.truth.diagnosis, *case.truth.differentials)
    rates = np.array([[*built_in().shares(name).values()] for name in names])
    return np.asarray(np.ptp(rates, axis=0) >= DIFFERENCE)


def _partial(case: Case, seed: int, recorded: float) -> Case:
    """The case with the share `recorded` of its markers on record; which, is drawn by marker."""
    kept = {
        marker.name
        for marker in built_in().examinations
        if uniform("recorded", seed, case.id, marker.name) < recorded
    }
    facts = tuple(fact for fact in case.truth.facts if fact.item in kept)
    reported = {fact.item: fact.text for fact in facts}
    tests = [reported.get(m.name, m.negative) for m in built_in().examinations if m.name in kept]
    record = "\n".join((case.presentation, *tests))
    return replace(case, truth=replace(case.truth, facts=facts, record=record))


def probes(source: Source, n: int, seed: int) -> list[tuple[Case, Probe]]:
    """`n` orders for test cases, every second one of a telling marker where there are some."""
    rng = np.random.default_rng([seed, n])
    found = []
    for number in range(n):
        case = source.test[int(rng.integers(len(source.test)))]
        telling = _telling(case)
        chosen = (
            np.flatnonzero(telling) if number % 2 and telling.any() else np.arange(len(telling))
        )
        column = int(rng.choice(chosen))
        found.append((case, _probe(case, column, bool(telling[column]))))
    return found


@dataclass(frozen=True, slots=True)
class Orders:
    """What an audit orders: `n` markers of every configuration.

    A share `recorded` of each record is known to RAGES, within [0, 1].
    """

    settings: RagesSettings
    n: int
    seed: int = 0
    recorded: float = 0.5

    def configurations(self, model: Model | None) -> Mapping[str, Any]:
        """Those of the paper's Table 4; without a model the record, the base and both."""
        return BUILT_IN if model is None else MODELLED


async def audit(
    source: Source, orders: Orders, model: Model | None, tick: Callable[[], None] = lambda: None
) -> RagesAudit:
    """Orders markers for test cases of the pathology wing from every configuration.

    An order at which the model gives up is counted, not scored.
    """
    n, seed, recorded = orders.n, orders.seed, orders.recorded
    planned = probes(source, n, seed)
    configurations = orders.configurations(model)
    # The wing's records are complete, and half-hidden ones are not: without knowledge, the text of
    # the record decides what is normal.
    partial = replace(source, knowledge=None)
    simulators = {
        name: ExamSimulator(partial, orders.settings.model_copy(update={"sources": sources}), model)
        for name, sources in configurations.items()
    }
    asked = [
        _ask(name, simulator, _partial(case, seed, recorded), probe, tick)
        for name, simulator in simulators.items()
        for case, probe in planned
    ]
    opened = (simulator.base.name for simulator in simulators.values() if simulator.base)
    base = next(opened, "")
    results = tuple(await asyncio.gather(*asked))
    named = model.name if model is not None else "none"
    return RagesAudit(base, named, n, seed, recorded, results, None, tuple(configurations))


async def _ask(
    configuration: str,
    simulator: ExamSimulator,
    case: Case,
    probe: Probe,
    tick: Callable[[], None],
) -> OrderResult:
    try:
        (result,) = await simulator.results(case, [probe.marker])
    except RolloutError as error:
        return OrderResult(configuration, probe, reason=str(error))
    finally:
        tick()
    says = _says(probe.marker, result)
    found = simulator.statistic(case, probe.marker) if result.source == "base" else None
    share = found[1].share if found else None
    return OrderResult(
        configuration, probe, result.source, says, share, result.withheld, text=result.text
    )


def _says(name: str, result: ExamResult) -> bool | None:
    """Whether a result is positive: by the wing's own wordings, else by its words."""
    if result.source == "none":
        return None
    marker = next(each for each in built_in().examinations if each.name == name)
    if result.text == marker.negative:
        return False
    if any(result.text == fact.text for fact in marker.positives):
        return True
    return positive(result.text)


def compare(base: ExamBase, table: Path) -> TablesCompared:
    """The statistics of a base beside those of a table, as far as the names can be mapped.

    Raises UserError and CaseError for a table that cannot be read, or has no row that can.
    """
    pairs, diseases, tests, left_out = [], list[str](), list[str](), list[str]()
    read = 0
    for placed in lines(table):
        if isinstance(placed, CaseError):
            left_out.append(str(placed))
            continue
        row = placed.row
        read += 1
        disease = base.disease((row.disease, *row.disease_names))
        exam = next(
            (found for name in (row.test, *row.test_names) if (found := base.test(key(name)))), None
        )
        if not disease:
            diseases.append(row.disease)
        if exam is None:
            tests.append(row.test)
        share = base.share(disease, exam) if disease and exam else None
        if share is not None:
            pairs.append(Disagreement(disease, share.test, share.share, row.share))
    if not read:
        first = f"; the first: {left_out[0]}" if left_out else ""
        raise UserError(f"{table}: no row of statistics can be read{first}")
    return TablesCompared(
        base.name, str(table), tuple(pairs), _distinct(diseases), _distinct(tests), tuple(left_out)
    )


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def run(task: StudyTask) -> RagesAudit:
    """Orders markers for test cases of the pathology wing. Raises UserError."""
    s = task.settings
    orders = Orders(RagesSettings(base=s.base, nearest=s.nearest), s.n, s.seed, s.recorded)
    other = compare(ExamBase.open(s.base), existing(s.tables)) if s.tables else None
    writer = task.run_models(restricted=False).open(s.model) if s.model else None
    tick = task.begin(s.n * len(orders.configurations(writer)), "order")
    found = run_to_end(audit(open_source(WING), orders, writer, tick))
    return replace(found, compared=other)


study = Study(
    "How often are simulated results of examinations right? Right is the patient's own result, "
    "which the pathology wing knows.",
    run,
    Settings,
)
