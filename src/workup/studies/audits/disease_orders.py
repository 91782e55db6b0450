"""Does an order that names a disease tell whether the patient has it (RAGES, ES-9)?

A doctor who may order "is it glioblastoma" needs no examination. The audit plays such orders in
pairs: the same words once with the truth and once with another disease. The truth is given away if
the two replies differ, or if one of them names it. Without a model a candid writer takes its place,
who says yes to the truth and no to everything else: the worst case, which measures what the code
itself keeps back.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workup.cases.clinic.catalogue import clinic_catalogue
from workup.cases.clinic.pathology import markers
from workup.cases.clinic.tables import clinic_tables
from workup.core.case import Case, Source
from workup.core.errors import RolloutError, UserError
from workup.core.ports import Model, Reply, Request
from workup.core.statistics import SHARE, Estimate, interval
from workup.core.text import normalise
from workup.environments.exams.rages import REFUSED, ExamResult, ExamSimulator, RagesSettings

if TYPE_CHECKING:
    from rich.table import Table

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
class Told:
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


@dataclass(frozen=True)
class Adversarial:
    """What became of all pairs."""

    cases: str
    model: str
    n: int
    seed: int
    told: tuple[Told, ...]
    restricted: bool = False

    def rate(self, measure: str, told: Sequence[Told]) -> Estimate:
        """The share of the pairs with its interval by case."""
        values = [float(getattr(each, measure)) for each in told]
        return interval(values, [each.case for each in told], bounds=SHARE, seed=self.seed)

    @property
    def asked(self) -> int:
        """How many pairs there were."""
        return len(self.told)

    def failures(self) -> Counter[str]:
        """Why the model gave up, and how often."""
        return Counter(each.reason for each in self.told if each.reason)

    def rows(self) -> Iterator[tuple[str, list[Told]]]:
        """All orders that name a disease together, then each kind of order."""
        answered = [each for each in self.told if not each.reason]
        yield "naming a disease", [each for each in answered if each.kind != EXAMINATION]
        for kind in KINDS:
            if some := [each for each in answered if each.kind == kind]:
                yield kind, some

    def tables(self) -> Iterator[Table]:
        """How many orders were refused, and how many gave the truth away, in percent."""
        from rich.table import Table

        title = f"{self.n} pairs of orders, {self.cases}, written by {self.model}"
        table = Table(title=title, title_justify="left", box=None)
        for heading in ("order", "n", "refused %", "truth given away %"):
            table.add_column(heading, justify="left" if heading == "order" else "right")
        for kind, told in self.rows():
            shares = (self.rate(name, told) for name in ("refused", "given_away"))
            figures = (
                f"{100 * e.mean:.1f} [{100 * e.low:.0f}, {100 * e.high:.0f}]" for e in shares
            )
            table.add_row(kind, str(len(told)), *figures)
        yield table

    def notes(self) -> list[str]:
        """Orders that gave the truth away, examinations that were refused, and failures."""
        given = [each for each in self.told if each.given_away]
        lost = [each for each in self.told if each.refused and each.kind == EXAMINATION]
        failures = self.failures().most_common(5)
        return [
            *(f"given away: '{each.orders[0]}': {each.replies[0]}" for each in given[:5]),
            *(f"refused, though an examination: '{each.orders[0]}'" for each in lost[:5]),
            *(f"{count} × failed: {reason}" for reason, count in failures),
        ]

    def write(self, file: Path) -> None:
        """Writes all pairs as JSON, of restricted cases without texts.

        Raises UserError when the disk refuses.
        """
        about: dict[str, Any] = {
            name: getattr(self, name) for name in ("cases", "model", "n", "seed")
        }
        hidden = {"orders": (), "replies": ()} if self.restricted else {}
        whole = {**about, "told": [{**asdict(each), **hidden} for each in self.told]}
        text = json.dumps(whole, ensure_ascii=False, indent=1) + "\n"
        try:
            file.write_text(text, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise UserError(f"cannot write {file}: {error.strerror or error}") from error


def pairs(source: Source, n: int, seed: int) -> list[Pair]:
    """`n` pairs of orders for test cases, each kind in turn.

    Raises UserError for a source that has one disease alone.
    """
    rng = np.random.default_rng([seed, n])
    return [_pair(source, KINDS[number % len(KINDS)], rng) for number in range(n)]


def _pair(source: Source, kind: str, rng: np.random.Generator) -> Pair:
    case = source.test[int(rng.integers(len(source.test)))]
    if kind == EXAMINATION:
        known = [marker.name for marker in markers()]
        known += [finding.name for finding in clinic_tables().findings if finding.kind != "ask"]
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
    return (*(entry.code for entry in clinic_catalogue().find(name)), *OTHER_CODES)


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
    return Adversarial(source.name, writer, n, seed, tuple(told), source.restricted)


async def _told(
    yes: ExamSimulator, no: ExamSimulator, pair: Pair, tick: Callable[[], None]
) -> Told:
    orders = (pair.truth, pair.other)
    try:
        (right,) = await yes.results(pair.case, [pair.truth])
        (wrong,) = await (yes if pair.kind == EXAMINATION else no).results(pair.case, [pair.other])
    except RolloutError as error:
        return Told(pair.kind, pair.case.id, orders, reason=str(error))
    finally:
        tick()
    replies = (right.text, wrong.text)
    refused = right.source == wrong.source == REFUSED
    given = _said(right, pair.truth) != _said(wrong, pair.other)
    named = pair.kind != EXAMINATION and _names(pair.case, replies)
    return Told(pair.kind, pair.case.id, orders, replies, refused, given or named)


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
