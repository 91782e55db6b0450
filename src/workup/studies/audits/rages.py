"""How far simulated results of examinations are right, by source (ES-9, ES-14; paper Table 4).

The pathology wing knows every patient's own results and every tumour's rates exactly. The audit
hides a part of each record, orders hidden and recorded markers, and compares. A base's statistics
are compared with another table's as well.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from workup.cases.catalogue import built_in
from workup.core.case import Case, Source
from workup.core.errors import CaseError, RolloutError, UserError
from workup.core.ports import Model
from workup.core.statistics import SHARE, Estimate, interval
from workup.environments.exams.exam_base import ExamBase
from workup.environments.exams.exam_sources import lines
from workup.environments.exams.exam_terms import key, positive
from workup.environments.exams.rages import (
    CONFIDENCE,
    ExamResult,
    ExamSimulator,
    RagesSettings,
    ResultSource,
)
from workup.rl.rollout import seed_key
from workup.roles.judges.exact import DIFFERENCE

if TYPE_CHECKING:
    from rich.table import Table

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
class Result:
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
class Compared:
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
            yield "correlation", f"{np.corrcoef(here, there)[0, 1]:.2f}"
        yield "diseases that cannot be mapped", "; ".join(self.diseases) or "none"
        yield "examinations that cannot be mapped", "; ".join(self.tests) or "none"

    @property
    def furthest(self) -> list[Disagreement]:
        """The largest differences first."""
        return sorted(self.pairs, key=lambda pair: -abs(pair.here - pair.there))[:_SHOWN]

    def tables(self) -> Iterator[Table]:
        """The figures, and the largest differences."""
        from rich.table import Table

        title = f"the base {self.base} beside {self.table}"
        figures = Table(title=title, title_justify="left", box=None, show_header=False)
        for row in self.rows():
            figures.add_row(*row)
        yield figures
        apart = Table(title="furthest apart", title_justify="left", box=None)
        for heading in ("disease", "examination", "base", "table"):
            apart.add_column(heading, justify="right" if heading in ("base", "table") else "left")
        for pair in self.furthest:
            apart.add_row(pair.disease, pair.test, f"{pair.here:.2f}", f"{pair.there:.2f}")
        yield apart


@dataclass(frozen=True)
class RagesAudit:
    """The results of all configurations, and the comparison with a table where one was given."""

    base: str
    model: str
    n: int
    seed: int
    recorded: float
    results: tuple[Result, ...]
    compared: Compared | None = None
    configurations: tuple[str, ...] = field(default=())

    def some(
        self, configuration: str, source: ResultSource | None = None, kind: str = ALL
    ) -> list[Result]:
        """The results of one configuration, perhaps of one source or kind of marker alone."""
        return [
            each
            for each in self.results
            if each.configuration == configuration
            and not each.reason
            and source in (None, each.source)
            and (kind == ALL or each.probe.telling)
        ]

    def rate(self, measure: str, results: Sequence[Result]) -> Estimate:
        """The mean of `measure` with its interval by case; what says nothing is `missing`."""
        values = [getattr(each, measure) for each in results]
        numbers = [None if value is None else float(value) for value in values]
        cases = [each.probe.case for each in results]
        return interval(numbers, cases, bounds=SHARE, seed=self.seed)

    @property
    def asked(self) -> int:
        """How many orders there were."""
        return len(self.results)

    def failures(self) -> Counter[str]:
        """Why the model gave up, and how often."""
        return Counter(each.reason for each in self.results if each.reason)

    def rows(self) -> Iterator[tuple[str, str, str, list[Result]]]:
        """Configuration, source ("" for all of them) and kind of markers, with the results."""
        for configuration in self.configurations:
            sources = [s for s in SOURCES if self.some(configuration, s)]
            for kind in (ALL, TELLING):
                yield configuration, "", kind, self.some(configuration, None, kind)
            for source in sources if len(sources) > 1 else ():
                yield configuration, source, ALL, self.some(configuration, source)

    def table(self) -> Table:
        """How often results are right, by configuration and source, in percent."""
        from rich.table import Table

        about = f"{self.n} orders, {self.recorded:.0%} of each record known"
        title = f"{about}\nbase {self.base}, model {self.model}"
        table = Table(title=title, title_justify="left", box=None)
        headings = ("results from", "n", "answered %", "right %", "expected", "typical %")
        for heading in headings:
            left = heading == headings[0]
            table.add_column(heading, justify="left" if left else "right", no_wrap=True)
        for configuration, source, kind, results in self.rows():
            whole = not source and kind == ALL
            name = configuration if whole else f"  {source or kind}"
            table.add_row(name, *self._cells(results), style="bold" if whole else None)
        return table

    def _cells(self, results: Sequence[Result]) -> list[str]:
        said = [each for each in results if each.says is not None]
        typical = self.rate("typical", said).mean
        shares = (len(said) / len(results) if results else math.nan, _expected(said), typical)
        answered, expected, typically = (
            "–" if math.isnan(share) else f"{100 * share:.1f}" for share in shares
        )
        return [
            str(len(results)),
            answered,
            _percent(self.rate("right", said)),
            expected,
            typically,
        ]

    def calibration(self) -> Table:
        """Each source's confidence beside how often its results are right, over all markers."""
        from rich.table import Table

        table = Table(title="confidence and correctness", title_justify="left", box=None)
        for heading in ("source", "n", "confidence", "right %", "typical %"):
            table.add_column(heading, justify="left" if heading == "source" else "right")
        for source in SOURCES[:-1]:
            # Every configuration of a source reports the same: one of them, the fullest, counts.
            said = [
                each
                for each in next(
                    filter(None, (self.some(c, source) for c in reversed(self.configurations))), []
                )
                if each.says is not None
            ]
            if said:
                rates = (_percent(self.rate(name, said)) for name in ("right", "typical"))
                table.add_row(source, str(len(said)), f"{CONFIDENCE[source]:.1f}", *rates)
        return table

    def tables(self) -> Iterator[Table]:
        """All that there is to show."""
        yield self.table()
        yield self.calibration()
        if self.compared is not None:
            yield from self.compared.tables()

    def notes(self) -> list[str]:
        """What the tables leave out."""
        silent = [
            each.text
            for each in self.results
            if each.says is None and each.source != "none" and not each.reason
        ]
        such_as = f", such as '{silent[0][:_QUOTED]}'" if silent else ""
        withheld = sum(each.withheld for each in self.results)
        counted = (
            (len(silent), f"results are neither positive nor negative by their words{such_as}"),
            (withheld, "names of the diagnosis were withheld"),
        )
        failures = self.failures().most_common(5)
        return [
            *(f"{count} {what}" for count, what in counted if count),
            *(f"{count} × failed: {reason}" for reason, count in failures),
        ]

    def as_json(self) -> dict[str, Any]:
        """All of the audit."""
        rates = [
            {
                "results from": configuration,
                "source": source,
                "markers": kind,
                "n": len(results),
                "expected": _number(_expected([r for r in results if r.says is not None])),
                **{
                    name: self.rate(name, results).as_json()
                    for name in ("right", "typical", "likelihood")
                },
            }
            for configuration, source, kind, results in self.rows()
        ]
        about = {name: getattr(self, name) for name in ("base", "model", "n", "seed", "recorded")}
        return {
            **about,
            "rates": rates,
            "table": None if self.compared is None else asdict(self.compared),
            "results": [asdict(each) for each in self.results],
        }

    def write(self, file: Path) -> None:
        """Writes the audit as JSON. Raises UserError when the disk refuses."""
        text = json.dumps(self.as_json(), ensure_ascii=False, indent=1) + "\n"
        try:
            file.write_text(text, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise UserError(f"cannot write {file}: {error.strerror or error}") from error


def _expected(said: Sequence[Result]) -> float:
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


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _percent(rate: Estimate) -> str:
    if math.isnan(rate.mean):
        return "–"
    return f"{100 * rate.mean:.1f} [{100 * rate.low:.0f}, {100 * rate.high:.0f}]"


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
        if seed_key("recorded", seed, case.id, marker.name) / 2**64 < recorded
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
) -> Result:
    try:
        (result,) = await simulator.results(case, [probe.marker])
    except RolloutError as error:
        return Result(configuration, probe, reason=str(error))
    finally:
        tick()
    says = _says(probe.marker, result)
    found = simulator.statistic(case, probe.marker) if result.source == "base" else None
    share = found[1].share if found else None
    return Result(
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


def compare(base: ExamBase, table: Path) -> Compared:
    """The statistics of a base beside those of a table, as far as the names can be mapped.

    Raises UserError and CaseError for a table that cannot be read.
    """
    pairs, diseases, tests, left_out = [], list[str](), list[str](), list[str]()
    for placed in lines(table):
        if isinstance(placed, CaseError):
            left_out.append(str(placed))
            continue
        row = placed.row
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
    return Compared(
        base.name, str(table), tuple(pairs), _distinct(diseases), _distinct(tests), tuple(left_out)
    )


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
