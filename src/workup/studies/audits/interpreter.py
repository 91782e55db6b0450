"""What the exact record, and a model that interprets, make of requests in natural words."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from workup.cases import open_source
from workup.cases.files import cells, existing, scan
from workup.core.case import Case, Item, Kind, Source, Truth
from workup.core.episode import Action
from workup.core.errors import CaseError, RolloutError, UserError
from workup.core.statistics import SHARE, Estimate, interval
from workup.environments.base.encounter import MatchSettings
from workup.environments.base.interpreter import Interpreter
from workup.environments.base.matcher import MEANING, MODEL, STEPS
from workup.environments.base.recorded import RecordedConsultation
from workup.rl.running import run_to_end
from workup.runs.settings import Seed
from workup.studies.base.result import Result, Section, for_each, percent, sheet
from workup.studies.base.task import Study, StudySettings, StudyTask

ALL, REWORDED, FOREIGN = "all", "reworded", "foreign"
RIGHT, OTHER, SEVERAL, LOST = "right", "other", "several", "not understood"
OUTCOMES = (RIGHT, OTHER, SEVERAL, LOST)
OURS = "clinic:s"
COLUMNS = ("half", "kind", "item", "request")
NOBODY = Case("nobody", "", Truth(""))
_FRAMES = (
    "Before we go on I would like to know one more thing. {question}",
    "{question} Please think about the last few weeks as well.",
    "Could you tell me, as far as you remember, whether {clause}?",
    "It would help me to hear if {clause}, even if it was only once.",
)
_OPENING = re.compile(r"^(?:do|did|are|were|have) you\b ?", re.IGNORECASE)


class Settings(StudySettings):
    """What is asked, and who reads it."""

    cases: str = Field(OURS, description="the source whose items can be asked for")
    requests: str = Field(
        "",
        description=f"a CSV file with the columns {', '.join(COLUMNS)}; by default ours for "
        f"{OURS}, elsewhere the items' own questions in other words",
    )
    half: Literal["held out", "tuned"] = Field(
        "held out", description="held out, or tuned (on which steps and thresholds were chosen)"
    )
    encoder: str = Field("", description="as environment.encoder")
    least: float = Field(
        MatchSettings.model_fields["least"].default, description="as environment.least"
    )
    terms: str = Field("", description="as environment.terms")
    model: str = Field("", description="the interpreter: endpoint:NAME, a model folder, a hub id")
    seed: Seed = Field(0, description="of the draw of other words")


@dataclass(frozen=True, slots=True)
class NaturalRequest:
    """A request of a kind, and the item that it means; "" where it means none."""

    kind: str
    item: str
    request: str


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What a request was taken for, by which step; `ms` is how long that took.

    `outcome` is one of OUTCOMES. Of a request that means no item it is right to understand none.
    """

    kind: str
    item: str
    request: str
    found: str = ""
    step: str = ""
    outcome: str = ""
    ms: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class InterpreterAudit(Result):
    """All requests of one source, as they were read."""

    texts: ClassVar = {"read": {"__all__": {"request", "reason"}}}
    asks = "read"

    source: str
    requests: str
    encoder: str
    model: str
    seed: int
    read: tuple[ReadRequest, ...]

    @property
    def title(self) -> str:
        by = ", ".join(filter(None, (self.encoder and Path(self.encoder).name, self.model)))
        return f"Requests to {self.source} read by words{f', {by}' if by else ''}"

    def _of(self, kind: str) -> list[ReadRequest]:
        return [each for each in self.read if kind in (ALL, each.kind) and not each.reason]

    def rate(self, outcome: str, kind: str = ALL) -> Estimate:
        """The share of the requests of this kind with this outcome, by request."""
        values = [float(each.outcome == outcome) for each in self._of(kind)]
        return interval(values, list(range(len(values))), bounds=SHARE, seed=self.seed)

    @property
    def kinds(self) -> list[str]:
        return [*dict.fromkeys(each.kind for each in self.read), ALL]

    @cached_property
    def rates(self) -> Mapping[str, Mapping[str, Estimate]]:
        return {kind: {name: self.rate(name, kind) for name in OUTCOMES} for kind in self.kinds}

    @cached_property
    def steps(self) -> Mapping[str, Mapping[str, int]]:
        found = {kind: [each.step for each in self._of(kind)] for kind in self.kinds}
        return {kind: Counter(filter(None, steps)) for kind, steps in found.items()}

    def sections(self) -> Sequence[Section]:
        kinds = [kind for kind in self.kinds if self._of(kind)]
        columns = {
            "requests": lambda kind: kind,
            "n": lambda kind: len(self._of(kind)),
            **for_each(OUTCOMES, lambda name, kind: percent(self.rates[kind][name]), "{} %"),
        }
        by_step = {
            "requests": lambda kind: kind,
            **for_each(STEPS, lambda step, kind: self.steps[kind].get(step, 0)),
        }
        return [
            Section("What was understood", (sheet(self.title, kinds, columns),)),
            Section("By which step", (sheet("Requests by step", kinds, by_step),)),
        ]

    def notes(self) -> Sequence[str]:
        words = frozenset(STEPS) - {MEANING, MODEL}
        took = {
            "words decided": [each.ms for each in self._of(ALL) if each.step in words],
            # Models answer many requests at a time, so that one has no time of its own.
            "words did not decide": [
                each.ms for each in self._of(ALL) if each.step not in words and not self.model
            ],
        }
        return [
            "right: the item that is meant, of a foreign request none; several: asked back",
            *(
                f"{len(ms)} requests that {how} took {median(ms):.2f} ms each (median), "
                f"{max(ms):.1f} ms at most"
                for how, ms in took.items()
                if ms
            ),
        ]

    def quotes(self) -> Sequence[str]:
        """The requests that were taken for another item."""
        return [
            f"'{each.request}' was taken for {each.found} ({each.step})"
            for each in self.read
            if each.outcome == OTHER
        ]


def ours(path: Path | None = None, half: str = "held out") -> list[NaturalRequest]:
    """One half of a file of requests, by default of ours.

    Raises CaseError, with the line, for a file that has other columns or an unknown half, and for
    one without a request of this half.
    """
    file = path or Path(str(files("workup.studies.base") / "requests.csv"))
    rows = [(line.number, cells(line, file, tabs=False)) for line in scan(file)]
    if not rows or tuple(rows[0][1]) != COLUMNS:
        raise CaseError(f"its columns are not {', '.join(COLUMNS)}.", file=file, line=1)
    asked = []
    for number, row in rows[1:]:
        named = dict(zip(COLUMNS, row, strict=False))
        if len(row) != len(COLUMNS) or named["half"] not in ("held out", "tuned"):
            raise CaseError("half is neither 'held out' nor 'tuned'.", file=file, line=number)
        if named["half"] == half:
            asked.append(NaturalRequest(named["kind"], named["item"], named["request"]))
    if not asked:
        raise CaseError(f"it has no request of the half '{half}'.", file=file)
    return asked


def reworded(items: Sequence[Item], seed: int = 0) -> list[NaturalRequest]:
    """The question of every item within a longer sentence, one of four, drawn by `seed`."""
    rng = np.random.default_rng(seed)
    return [
        NaturalRequest(REWORDED, item.name, _in_other_words(item.question or item.name, frame))
        for item, frame in zip(items, rng.integers(len(_FRAMES), size=len(items)), strict=True)
    ]


def _in_other_words(question: str, frame: int) -> str:
    opening = _OPENING.match(question)
    if opening is None:  # no question that can be turned round: one of the two that quote it
        return _FRAMES[frame % 2].format(question=question)
    clause = f"you {question[opening.end() :].rstrip('?')}"
    return _FRAMES[frame].format(question=question, clause=clause)


def requests_of(source: Source, settings: Settings) -> list[NaturalRequest]:
    """What is asked: the file's requests, ours, or the items' questions in other words.

    Raises UserError where the source lists no items, and for an item that it does not have.
    """
    if not source.items:
        raise UserError(
            f"{source.name} lists no items: put them into a sidecar (docs/cases.md), or type "
            "`workup audit simulator`"
        )
    if not settings.requests and source.name != OURS:
        return reworded(source.items, settings.seed)
    path = existing(settings.requests) if settings.requests else None
    asked = ours(path, settings.half)
    names = {item.name for item in source.items}
    if strange := next((each.item for each in asked if each.item and each.item not in names), ""):
        raise UserError(f"{settings.requests}: '{strange}' is no item of {source.name}")
    return asked


async def read(
    record: RecordedConsultation, asked: NaturalRequest, tick: Callable[[], None]
) -> ReadRequest:
    """What the record takes a request for."""
    about, started = ReadRequest(asked.kind, asked.item, asked.request), perf_counter()
    try:
        seen = await record.interpreted(NOBODY, Action(Kind.HISTORY.value, (asked.request,)))
    except RolloutError as error:
        return replace(about, reason=str(error))
    finally:
        tick()
    took = 1000 * (perf_counter() - started)
    several = not seen.understood and seen.messages[0].content != record.unknown
    kind = SEVERAL if several else LOST
    if seen.item:
        kind = RIGHT if seen.item == asked.item else OTHER
    elif not several and not asked.item:
        kind = RIGHT
    return replace(about, found=seen.item, step=seen.understood_by, outcome=kind, ms=took)


def run(task: StudyTask) -> InterpreterAudit:
    """Puts every request to the record."""
    s: Settings = task.settings
    source = open_source(s.cases)
    asked = requests_of(source, s)
    how = MatchSettings(encoder=s.encoder, least=s.least, terms=s.terms)
    record = RecordedConsultation(source.items, matcher=how.matcher(source.items))
    if s.model:
        model = task.run_models(restricted=source.restricted).open(s.model)
        record = record.with_interpreter(Interpreter(model))
    record.matcher.match("?")  # so that no request is charged with what is loaded once
    tick = task.begin(len(asked), "request")

    async def all_read() -> Sequence[ReadRequest]:
        return await asyncio.gather(*(read(record, each, tick) for each in asked))

    found = tuple(run_to_end(all_read()))
    of = s.requests or (f"ours, {s.half}" if source.name == OURS else REWORDED)
    about = (source.name, of, s.encoder, s.model, s.seed)
    return InterpreterAudit(*about, found, restricted=source.restricted)


study = Study(
    "Which of the requests that people make in their own words are understood, by which step, and "
    "which are taken for something else?",
    run,
    Settings,
)
