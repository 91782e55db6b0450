"""Whether an order that names a disease gives the diagnosis away (RAGES, ES-9).

A doctor who may order "is it glioblastoma" needs no examination. The audit plays such orders in
pairs: the same words once with the truth and once with another disease. The truth is given away if
the two replies differ, or if one of them names it. Without a model a candid writer takes its place,
who says yes to the truth and no to everything else: the worst case, which measures what the code
itself keeps back.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from workup.cases import open_source
from workup.cases.catalogue import built_in
from workup.core.case import Case, Source
from workup.core.errors import RolloutError, UserError
from workup.core.ports import Model, Reply, Request
from workup.core.statistics import SHARE, Estimate, interval
from workup.core.text import normalise
from workup.environments.exams.rages import REFUSED, ExamResult, ExamSimulator, RagesSettings
from workup.rl.running import run_to_end
from workup.studies.base.result import Result, Section, percent, sheet
from workup.studies.base.task import SourceSettings, Study, StudyTask

EXAMINATION = "an examination"
OTHER_CODES = ("K92.9", "R68.8")
_SHORT = 4  # letters of a name that is looked for inside a reply


def _split(name: str) -> str:
    """The name with hyphens for blanks, and one within its longest word."""
    longest = max(name.split(), key=len)
    half = len(longest) // 2
    return name.replace(longest, f"{longest[:half]}-{longest[half:]}").replace(" ", "-")


FORMS: Mapping[str, Callable[[str], str]] = {
    "the name alone": lambda name: name,
    "in capitals": str.upper,
    "a question": lambda name: f"is it {name}?",
    "a longer order": lambda name: f"stains and molecular tests to confirm {name} in this tissue",
    "beside a marker": lambda name: f"CD45 and {name}",
    "in brackets": lambda name: f"second opinion ({name})",
    "in the plural": lambda name: f"{name}s",
    "with hyphens": _split,
    "run together": lambda name: name.replace(" ", ""),
    "words turned round": lambda name: f"{' '.join(reversed(name.split()))}: yes or no",
    "in Chinese": lambda name: f"是不是{name}？",
}
"""What is done with a name to make an order of it."""

KINDS = (*FORMS, "a code", EXAMINATION)
NAMING = "naming a disease"  # all kinds but EXAMINATION


class Settings(SourceSettings):
    """Which orders are made, and who writes results."""

    cases: str = Field("clinic:pathology", description="whose test cases are ordered for")
    n: int = Field(400, ge=1, description="pairs of orders, each kind in turn")
    base: str = Field(
        "clinic", description="a folder of `workup index build --kind exams`, or clinic"
    )
    nearest: Literal["exact", "embedding"] = Field(
        "exact", description="how the base's disease is found"
    )
    model: str = Field(
        "",
        description="who writes results: endpoint:NAME, a folder, a hub id; else a candid writer",
    )


@dataclass(frozen=True, slots=True)
class Pair:
    """The same words with the truth and with another disease, ordered for one patient.

    Of an examination there is no other disease, and both orders are the same.
    """

    kind: str
    case: Case
    truth: str
    other: str


@dataclass(frozen=True, slots=True)
class PairReplies:
    """What the two replies were; `reason` says why the model failed."""

    kind: str
    case: str
    orders: tuple[str, str]
    replies: tuple[str, ...] = ()
    refused: bool = False
    given_away: bool = False
    reason: str = ""


class Candid:
    """A `Model` in RAGES that takes every order for an examination, and answers it truthfully."""

    def __init__(self, yes: bool) -> None:
        self._yes = yes

    @property
    def name(self) -> str:
        return "candid"

    async def complete(self, request: Request) -> Reply:
        result = "positive, that is it." if self._yes else "negative, that is not it."
        return Reply(json.dumps({"exists": True, "disease": False, "test": "", "result": result}))


@dataclass(frozen=True, slots=True)
class PairRates:
    """Of all pairs of one kind: the shares that were refused, and that gave the truth away."""

    kind: str
    n: int
    refused: Estimate
    given_away: Estimate


@dataclass(frozen=True)
class Adversarial(Result):
    """What became of all pairs."""

    texts: ClassVar = {"told": {"__all__": {"orders", "replies", "reason"}}}
    titled = "{n} pairs of orders, {cases}, written by {model}"
    asks = "told"

    cases: str
    model: str
    n: int
    seed: int
    told: tuple[PairReplies, ...]

    def rate(self, measure: str, told: Sequence[PairReplies]) -> Estimate:
        """The share of the pairs with its interval by case."""
        values = [float(getattr(each, measure)) for each in told]
        return interval(values, [each.case for each in told], bounds=SHARE, seed=self.seed)

    @cached_property
    def rates(self) -> list[PairRates]:
        """All orders that name a disease together, then each kind of order."""
        answered = [each for each in self.told if not each.reason]
        kinds = {NAMING: [each for each in answered if each.kind != EXAMINATION]}
        kinds |= {kind: [each for each in answered if each.kind == kind] for kind in KINDS}
        return [
            PairRates(kind, len(own), self.rate("refused", own), self.rate("given_away", own))
            for kind, own in kinds.items()
            if own or kind == NAMING
        ]

    def sections(self) -> Sequence[Section]:
        columns = {
            "order": lambda row: row.kind,
            "n": lambda row: row.n,
            "refused %": lambda row: percent(row.refused),
            "truth given away %": lambda row: percent(row.given_away),
        }
        return [Section("Orders that name a disease", (sheet(self.title, self.rates, columns),))]

    def quotes(self) -> Sequence[str]:
        """Orders that gave the truth away, and examinations that were refused."""
        given = [each for each in self.told if each.given_away]
        lost = [each for each in self.told if each.refused and each.kind == EXAMINATION]
        return [
            *(f"given away: '{each.orders[0]}': {each.replies[0]}" for each in given[:5]),
            *(f"refused, though an examination: '{each.orders[0]}'" for each in lost[:5]),
        ]


def pairs(source: Source, n: int, seed: int) -> list[Pair]:
    """`n` pairs of orders for test cases, each kind in turn.

    Raises UserError for a source without test cases, or with one disease alone.
    """
    if not source.test:
        raise UserError(f"{source.name}: there is no test case to order examinations for")
    rng = np.random.default_rng([seed, n])
    return [_pair(source, KINDS[number % len(KINDS)], rng) for number in range(n)]


def _pair(source: Source, kind: str, rng: np.random.Generator) -> Pair:
    case = source.test[int(rng.integers(len(source.test)))]
    if kind == EXAMINATION:
        known = [each.name for each in built_in().examinations]
        known += [finding.name for finding in built_in().findings if finding.kind != "ask"]
        order = known[int(rng.integers(len(known)))]
        return Pair(kind, case, order, order)
    names, others = (case.truth.diagnosis, *case.truth.aliases), _other(source, case, rng)
    if kind == "a code":
        right = (*case.truth.codes, *_codes(names[0]))
        return Pair(kind, case, right[0], next(c for c in _codes(others[0]) if c != right[0]))
    write = FORMS[kind]
    truth, other = (some[int(rng.integers(len(some)))] for some in (names, others))
    return Pair(kind, case, write(truth), write(other))


def _codes(name: str) -> tuple[str, ...]:
    """The codes of a disease that the clinic knows; behind them the codes of no disease of it."""
    return (*(entry.code for entry in built_in().find(name)), *OTHER_CODES)


def _other(source: Source, case: Case, rng: np.random.Generator) -> tuple[str, ...]:
    """The names of another disease: a reference differential, or that of another case."""
    known = {normalise(name) for name in (case.truth.diagnosis, *case.truth.aliases)}
    if left := [name for name in case.truth.differentials if normalise(name) not in known]:
        return (left[int(rng.integers(len(left)))],)
    begin = int(rng.integers(len(source.test)))
    for step in range(len(source.test)):
        truth = source.test[(begin + step) % len(source.test)].truth
        if normalise(truth.diagnosis) not in known:
            return (truth.diagnosis, *truth.aliases)
    raise UserError(
        f"{source.name}: all test cases have one disease, '{case.truth.diagnosis}'; the audit "
        "compares it with another one"
    )


async def audit(
    source: Source,
    settings: RagesSettings,
    n: int,
    seed: int = 0,
    model: Model | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Adversarial:
    """Asks RAGES for `n` pairs of orders: one names the truth, one another disease.

    `model` writes the results; without one a writer that answers every order truthfully does.
    """
    planned = pairs(source, n, seed)
    plain = ExamSimulator(source, settings)
    yes, no = (plain.with_model(model or Candid(says)) for says in (True, False))
    told = await asyncio.gather(*(_told(yes, no, pair, tick) for pair in planned))
    writer = (model or Candid(True)).name
    return Adversarial(source.name, writer, n, seed, tuple(told), restricted=source.restricted)


async def _told(
    yes: ExamSimulator, no: ExamSimulator, pair: Pair, tick: Callable[[], None]
) -> PairReplies:
    orders = (pair.truth, pair.other)
    try:
        (right,) = await yes.results(pair.case, [pair.truth])
        (wrong,) = await (yes if pair.kind == EXAMINATION else no).results(pair.case, [pair.other])
    except RolloutError as error:
        return PairReplies(pair.kind, pair.case.id, orders, reason=str(error))
    finally:
        tick()
    replies = (right.text, wrong.text)
    refused = right.source == wrong.source == REFUSED
    given = _said(right, pair.truth) != _said(wrong, pair.other)
    named = pair.kind != EXAMINATION and _names(pair.case, replies)
    return PairReplies(pair.kind, pair.case.id, orders, replies, refused, given or named)


def _said(result: ExamResult, order: str) -> str:
    """A reply without the doctor's own words in front of it."""
    echo = " ".join(order.split())
    return f"{result.source} {result.text.removeprefix(echo)}"


def _names(case: Case, replies: Sequence[str]) -> bool:
    """Whether a reply holds a name of the diagnosis, letter by letter."""
    names = [_letters(name) for name in (case.truth.diagnosis, *case.truth.aliases)]
    shown = [_letters(reply) for reply in replies]
    return any(len(name) >= _SHORT and name in reply for name in names for reply in shown)


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, normalise(text)))


def run(task: StudyTask) -> Adversarial:
    """Asks RAGES for pairs of orders, one of which names the truth."""
    s = task.settings
    source, settings = open_source(s.cases), RagesSettings(base=s.base, nearest=s.nearest)
    writer = task.run_models(restricted=source.restricted).open(s.model) if s.model else None
    return run_to_end(audit(source, settings, s.n, s.seed, writer, task.begin(s.n, "pair")))


study = Study(
    "Does an order that names a disease tell whether the patient has it? The same words are "
    "ordered once with the truth and once with another disease; the truth is given away if the "
    "replies differ, or name it.",
    run,
    Settings,
)
