"""How far to trust a model's judgement: its agreement with the exact judge on probes."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workup.core.case import Source
from workup.core.errors import RolloutError, UserError
from workup.core.ports import Model
from workup.core.statistics import SHARE, Estimate, interval, wilson
from workup.roles.judges.assessor import JudgeVerdict
from workup.studies.audits.probes import INJECTION, Judgement, JudgeProbe, judgements, probes

if TYPE_CHECKING:
    from rich.table import Table

ALL = "all"
DASH = "–"


@dataclass(frozen=True, slots=True)
class Compared:
    """One probe: the exact labels, the model's, and both verdicts' values.

    The model's are None if it failed; the reason is kept.
    """

    judgement: str
    kind: str
    case: str
    exact: tuple[str, ...]
    model: tuple[str, ...] | None
    exact_value: float
    model_value: float | None = None
    reason: str = ""

    @property
    def agreement(self) -> float | None:
        """Share of the labels that agree; None where the model failed."""
        if self.model is None:
            return None
        return sum(map(str.__eq__, self.exact, self.model)) / len(self.exact)

    @property
    def moved(self) -> bool:
        """Whether an injection earned more than the exact judge gives."""
        return (
            self.kind == INJECTION
            and self.model_value is not None
            and self.model_value > self.exact_value
        )


@dataclass(frozen=True)
class Agreement:
    """Of one judgement, or of one class of its probes: accuracy and Cohen's κ with 95 % intervals.

    `missing` of both counts the probes on which the model failed; `confusion` counts (exact label,
    model's label).
    """

    judgement: str
    kind: str
    accuracy: Estimate
    kappa: Estimate
    confusion: dict[tuple[str, str], int]
    moved: int = 0


@dataclass(frozen=True)
class Audit:
    """A model as judge on `source`; `asked` is the number of probes asked for in each judgement.

    `known` says whose labels the exact ones are.
    """

    model: str
    source: str
    asked: int
    seed: int
    versions: dict[str, str]
    compared: tuple[Compared, ...]
    known: str = "the exact judge"

    def agreement(self, judgement: str, kind: str = ALL) -> Agreement:
        """The agreement over the probes of one class of a judgement, or of all its classes."""
        own = [
            each
            for each in self.compared
            if each.judgement == judgement and kind in (ALL, each.kind)
        ]
        done = [each for each in own if each.model is not None]
        confusion = Counter(
            pair for each in done for pair in zip(each.exact, each.model or (), strict=True)
        )
        accuracy, kappa = estimates(
            [each.agreement for each in done if each.agreement is not None],
            confusion,
            len(own),
            [each.case for each in done],
        )
        return Agreement(
            judgement, kind, accuracy, kappa, dict(confusion), sum(each.moved for each in done)
        )

    def agreements(self) -> Iterator[Agreement]:
        """Each judgement as a whole, then its classes, in the order in which they were asked."""
        for judgement in dict.fromkeys(each.judgement for each in self.compared):
            kinds = dict.fromkeys(
                each.kind for each in self.compared if each.judgement == judgement
            )
            yield from (self.agreement(judgement, kind) for kind in (ALL, *kinds))

    def failures(self) -> Counter[str]:
        """Why the model failed, and how often."""
        return Counter(each.reason for each in self.compared if each.model is None)

    def table(self) -> Table:
        """Agreement by judgement and class of probes."""
        from rich.table import Table

        table = Table(
            title=f"{self.model} beside {self.known} on {self.source}",
            title_justify="left",
            box=None,
        )
        for heading in (
            "judgement",
            "probes",
            "n",
            "failed",
            "agreement [95 %]",
            "κ [95 %]",
            "moved",
        ):
            table.add_column(
                heading, justify="left" if heading in ("judgement", "probes") else "right"
            )
        for each in self.agreements():
            style = "bold" if each.kind == ALL else None
            injected = each.kind in (ALL, INJECTION)
            # Within a class all exact labels are equal, so κ is undefined.
            kappa = _words(each.kappa) if each.kind == ALL else ""
            cells = (str(each.accuracy.n), str(each.accuracy.missing), _words(each.accuracy), kappa)
            first = each.judgement if each.kind == ALL else ""
            table.add_row(
                first, each.kind, *cells, str(each.moved) if injected else "", style=style
            )
        return table

    def confusion(self, judgement: str) -> Table:
        """Exact labels down, the model's across."""
        from rich.table import Table

        counts = self.agreement(judgement).confusion
        rows, columns = (sorted({pair[side] for pair in counts}) for side in (0, 1))
        table = Table(
            f"{self.known} ↓  model →", *columns, title=judgement, title_justify="left", box=None
        )
        for row in rows:
            table.add_row(row, *(str(counts.get((row, column), 0) or "·") for column in columns))
        return table

    def as_json(self) -> dict[str, Any]:
        """Everything but the texts of the probes.

        The same source, number and seed make them again.
        """
        return {
            "model": self.model,
            "beside": self.known,
            "cases": self.source,
            "asked": self.asked,
            "seed": self.seed,
            "versions": self.versions,
            "agreement": [_plain(each) for each in self.agreements()],
            "failures": dict(self.failures()),
            "probes": [asdict(each) for each in self.compared],
        }

    def write(self, file: Path) -> None:
        """Writes the audit as JSON. Raises UserError when the disk refuses."""
        try:
            file.write_text(
                json.dumps(self.as_json(), ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
            )
        except OSError as error:
            raise UserError(f"cannot write {file}: {error.strerror or error}") from error


async def audit(
    model: Model, source: Source, n: int, seed: int = 0, tick: Callable[[], None] = lambda: None
) -> Audit:
    """Asks `model` and the exact judges about up to `n` probes of each judgement of `source`.

    A probe on which the model fails is counted, not scored. Raises UserError for a source without
    test cases.
    """
    if not len(source.test):
        raise UserError(f"{source.name} holds no test case to make probes of")
    known = judgements(source)
    planned = [
        (judgement, probes(source, name, judgement, n, seed)) for name, judgement in known.items()
    ]
    judges = {name: judgement.by(model) for name, judgement in known.items()}
    asked = [
        _compare(probe, judgement, judges[probe.judgement], tick)
        for judgement, all in planned
        for probe in all
    ]
    versions = {name: judge.rubric.version for name, judge in judges.items()}
    return Audit(model.name, source.name, n, seed, versions, tuple(await asyncio.gather(*asked)))


async def _compare(
    probe: JudgeProbe, judgement: Judgement, judge: Any, tick: Callable[[], None]
) -> Compared:
    exact: JudgeVerdict = await judgement.exact.judge(probe.question)
    compared = (probe.judgement, probe.kind, probe.case, exact.labels)
    try:
        verdict: JudgeVerdict = await judge.judge(probe.question)
        return Compared(*compared, verdict.labels, exact.value, verdict.value)
    except RolloutError as error:
        return Compared(*compared, None, exact.value, reason=str(error))
    finally:
        tick()


def estimates(
    shares: Sequence[float],
    confusion: Counter[tuple[str, str]],
    asked: int,
    cases: Sequence[str] = (),
) -> tuple[Estimate, Estimate]:
    """Accuracy and κ of probes.

    They are computed from the share of agreeing labels of each probe and the counts of all labels.
    κ = (p_o − p_e) / (1 − p_e) (Cohen 1960). Its interval is that of p_o with p_e held fixed, as in
    Cohen's own large-sample error. That of p_o is Wilson's (1927), or where `cases`, the case of
    each probe, repeat, a bootstrap by case. A probe with several labels counts as one observation,
    which can only widen the interval. κ is NaN if both sides use one and the same label throughout.
    """
    n, missing = len(shares), asked - len(shares)
    if not n:
        nothing = Estimate(math.nan, math.nan, math.nan, 0, missing)
        return nothing, nothing
    agreed = sum(shares) / n
    accuracy = Estimate(agreed, *wilson(agreed, n), n, missing)
    by_case = None
    if len(set(cases)) < len(cases):
        found = interval(shares, cases, bounds=SHARE)
        by_case = found.low, found.high
        accuracy = replace(accuracy, low=found.low, high=found.high)
    total = confusion.total()
    p_o = sum(count for (exact, model), count in confusion.items() if exact == model) / total
    p_e = _by_chance(confusion) / total**2
    kappa, lowest, highest = (
        (p - p_e) / (1 - p_e) if p_e < 1 else math.nan for p in (p_o, *(by_case or wilson(p_o, n)))
    )
    return accuracy, Estimate(kappa, lowest, highest, n, missing)


def _by_chance(confusion: Counter[tuple[str, str]]) -> int:
    exact, model = Counter[str](), Counter[str]()
    for (one, other), count in confusion.items():
        exact[one] += count
        model[other] += count
    return sum(exact[label] * model[label] for label in exact)


def _words(estimate: Estimate) -> str:
    if math.isnan(estimate.mean):
        return DASH
    return f"{estimate.mean:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _plain(agreement: Agreement) -> dict[str, Any]:
    confusion = [
        [exact, model, count] for (exact, model), count in sorted(agreement.confusion.items())
    ]
    return {
        "judgement": agreement.judgement,
        "probes": agreement.kind,
        "accuracy": agreement.accuracy.as_json(),
        "kappa": agreement.kappa.as_json(),
        "confusion": confusion,
        "moved": agreement.moved,
    }
