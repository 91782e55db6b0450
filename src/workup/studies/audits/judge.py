"""A model's verdicts beside the exact judge's, on probes whose exact verdict is known."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

from pydantic import Field

from workup.cases import open_source
from workup.core.case import Source
from workup.core.errors import RolloutError, UserError
from workup.core.ports import Model
from workup.core.statistics import Estimate
from workup.report.sheets import Sheet
from workup.rl.running import run_to_end
from workup.roles.judges.assessor import JudgeVerdict
from workup.runs.words import DASH
from workup.studies.base.agreement import estimates
from workup.studies.base.probes import INJECTION, Judgement, JudgeProbe, judgements, probes
from workup.studies.base.result import Result, Section, for_each, sheet
from workup.studies.base.task import Begin, SourceSettings, Study, StudyTask, quietly

ALL = "all"


class Settings(SourceSettings):
    """Who is audited, and with what."""

    model: str = Field(description="endpoint:NAME, a model folder, or a hub id")
    cases: str = Field(
        "clinic:pathology",
        description="where the probes are from; clinic:pathology tries all judgements",
    )
    n: int = Field(200, ge=1, description="probes of each judgement")


@dataclass(frozen=True, slots=True)
class JudgedProbe:
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
class JudgeAgreement:
    """Of one judgement, or of one class of its probes: accuracy and Cohen's κ with 95 % intervals.

    `missing` of both counts the probes on which the model failed; `confusion` has (exact label,
    model's label, how often). `moved` counts the injections that earned more than the exact judge
    gives, of those that the model judged; None where it judged none.
    """

    judgement: str
    kind: str
    accuracy: Estimate
    kappa: Estimate
    confusion: tuple[tuple[str, str, int], ...]
    moved: int | None = None


@dataclass(frozen=True)
class Audit(Result):
    """A model as judge on `source`; `n` is the number of probes asked for in each judgement.

    `beside` says whose labels the exact ones are.
    """

    titled = "{model} beside {beside} on {source}"
    asks = "probes"
    texts: ClassVar = {"probes": {"__all__": {"reason"}}}  # it may quote what the model wrote

    model: str
    source: str
    n: int
    seed: int
    versions: dict[str, str]
    probes: tuple[JudgedProbe, ...]
    beside: str = "the exact judge"

    def agreement(self, judgement: str, kind: str = ALL) -> JudgeAgreement:
        """The agreement over the probes of one class of a judgement, or of all its classes."""
        own = [
            each for each in self.probes if each.judgement == judgement and kind in (ALL, each.kind)
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
        pairs = tuple((*pair, count) for pair, count in sorted(confusion.items()))
        injected = [each.moved for each in done if each.kind == INJECTION]
        moved = sum(injected) if injected else None
        return JudgeAgreement(judgement, kind, accuracy, kappa, pairs, moved)

    @cached_property
    def agreements(self) -> list[JudgeAgreement]:
        """Each judgement as a whole, then its classes, in the order in which they were asked."""
        kinds = {each.judgement: {ALL: None} for each in self.probes}
        for each in self.probes:
            kinds[each.judgement][each.kind] = None
        return [self.agreement(name, kind) for name, own in kinds.items() for kind in own]

    def sections(self) -> Sequence[Section]:
        agreement = sheet(
            self.title,
            self.agreements,
            {
                "judgement": lambda row: row.judgement if row.kind == ALL else "",
                "probes": lambda row: row.kind,
                "n": lambda row: row.accuracy.n,
                "failed": lambda row: row.accuracy.missing,
                "agreement": lambda row: row.accuracy,
                # Within a class all exact labels are equal, so κ is undefined.
                "κ": lambda row: row.kappa if row.kind == ALL else "",
                "moved": lambda row: (
                    (DASH if row.moved is None else row.moved)
                    if row.kind in (ALL, INJECTION)
                    else ""
                ),
            },
            words=2,
            bold=lambda row: row.kind == ALL,
        )
        whole = [row for row in self.agreements if row.kind == ALL]
        confusion = [self._confusion(row) for row in whole]
        return [Section("Agreement", (agreement,)), Section("Confusion", confusion)]

    def _confusion(self, agreement: JudgeAgreement) -> Sheet:
        """Exact labels down, the model's across."""
        counts = {(exact, model): n for exact, model, n in agreement.confusion}
        exact, model = (sorted({pair[side] for pair in counts}) for side in (0, 1))
        columns = {
            f"{self.beside} ↓  model →": lambda row: row,
            **for_each(model, lambda label, row: counts.get((row, label), "·")),
        }
        return sheet(agreement.judgement, exact, columns)


async def audit(
    model: Model, source: Source, n: int, seed: int = 0, begin: Begin = quietly
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
    tick = begin(sum(len(made) for _, made in planned))
    asked = [
        _compare(probe, judgement, judges[probe.judgement], tick)
        for judgement, all in planned
        for probe in all
    ]
    versions = {name: judge.rubric.version for name, judge in judges.items()}
    about = (model.name, source.name, n, seed, versions)
    return Audit(*about, tuple(await asyncio.gather(*asked)), restricted=source.restricted)


async def _compare(
    probe: JudgeProbe, judgement: Judgement, judge: Any, tick: Callable[[], None]
) -> JudgedProbe:
    exact: JudgeVerdict = await judgement.exact.judge(probe.question)
    compared = (probe.judgement, probe.kind, probe.case, exact.labels)
    try:
        verdict: JudgeVerdict = await judge.judge(probe.question)
        return JudgedProbe(*compared, verdict.labels, exact.value, verdict.value)
    except RolloutError as error:
        return JudgedProbe(*compared, None, exact.value, reason=str(error))
    finally:
        tick()


def run(task: StudyTask) -> Audit:
    """Asks the model about the probes of a source."""
    s = task.settings
    source = open_source(s.cases)
    model = task.run_models(restricted=source.restricted).open(s.model)
    return run_to_end(audit(model, source, s.n, s.seed, partial(task.begin, unit="probe")))


study = Study(
    "How far does a model's judgement agree with the exact judge's, on probes whose exact verdict "
    "is known?",
    run,
    Settings,
)
