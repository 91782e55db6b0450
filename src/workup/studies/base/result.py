"""The result of a study or an audit: rows of figures, as tables, as JSON and as one page."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from markupsafe import Markup
from pydantic_core import to_jsonable_python

from workup.core.errors import RolloutError, printable
from workup.core.statistics import Estimate
from workup.core.text import several
from workup.report.rendering import render
from workup.report.sheets import Sheet
from workup.runs.files import clear_errors, write_whole
from workup.runs.machine import origin, versions
from workup.runs.words import DASH, decimal

if TYPE_CHECKING:
    from rich.console import Console

K = TypeVar("K")
R = TypeVar("R")
Cell = str | int | Estimate
INTERVALS = "Means over cases with 95\u00a0% intervals (bootstrap by case)."
STARRED = "*: the interval leaves out 0."
QUOTED = 5  # reasons of failures, the commonest first


@dataclass(frozen=True, slots=True)
class Section:
    """Tables with the figure that is drawn from them; `figure` draws it when the page is made.

    `about` is a paragraph below the heading.
    """

    heading: str
    sheets: Sequence[Sheet]
    figure: Callable[[], Markup | None] | None = None
    caption: str = ""
    about: str = ""


@dataclass(frozen=True)
class Result(ABC):
    """What a study or an audit found: a frozen dataclass of numbers, names and rows of both.

    Pages and JSON files hold no text of a case that is `restricted`.
    """

    restricted: bool = field(default=False, kw_only=True)
    texts: ClassVar[Mapping[str, Any]] = {}
    """Which parts of its fields hold texts, as pydantic's `exclude` names them."""
    titled: ClassVar[str]
    """The title, with fields in braces: "Stopping on {source}"."""
    asks: ClassVar[str] = ""
    """The field with the rows of what a model was asked; "" where it was asked nothing."""

    @property
    def title(self) -> str:
        return self.titled.format(**vars(self))

    @property
    def facts(self) -> Mapping[str, str]:
        """What was studied, for the head of the page: by default all fields that are one value."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name.replace("_", " ").capitalize(): str(value)
            for name, value in values.items()
            if isinstance(value, str | int | float) and not isinstance(value, bool)
        }

    @abstractmethod
    def sections(self) -> Sequence[Section]: ...

    def notes(self) -> Sequence[str]:
        """What a reader has to know: what was left out and why. Without text of any case."""
        return ()

    def quotes(self) -> Sequence[str]:
        """The same with texts, which stand on no page of restricted cases."""
        return ()

    def figures(self) -> Mapping[str, Any]:
        """The computed fields of the JSON file: every `cached_property`, under its own name.

        `Rare.untold`, say, stands there as "untold". The fields in `texts` are left out where cases
        are restricted; computed ones never are, so that none may hold a text of a case.
        """
        every = {name: each for kind in type(self).__mro__ for name, each in vars(kind).items()}
        names = [name for name, each in every.items() if isinstance(each, cached_property)]
        return {name: getattr(self, name) for name in names}

    def asked(self) -> Sequence[Any]:
        """The rows of `asks`: `reason` says why the model gave up, "" where it did not."""
        return getattr(self, self.asks) if self.asks else ()

    def failures(self) -> Counter[str]:
        """Why a model gave up, and how often."""
        return Counter(row.reason for row in self.asked() if row.reason)

    def check(self) -> None:
        """Raises RolloutError, with the commonest reason, where a model answered nothing."""
        failures, asked = self.failures(), len(self.asked())
        if asked and failures.total() == asked:
            raise RolloutError(f"all {asked} probes failed: {failures.most_common(1)[0][0]}")

    def remarks(self, *, texts: bool = True) -> list[str]:
        """Everything that a reader has to know; without `texts` nothing that quotes one."""
        lost = [f"{n} × failed: {why}" for why, n in self.failures().most_common(QUOTED)]
        return [*self.notes(), *((*self.quotes(), *lost) if texts else ())]

    def show(self, console: Console) -> None:
        """Prints every table, and what a reader has to know."""
        for section in self.sections():
            for each in section.sheets:
                each.show(console)
        for remark in self.remarks():
            console.print(remark, markup=False, soft_wrap=True)

    def as_json(self) -> dict[str, Any]:
        """The fields and the `figures`; NaN is None."""
        hidden: Any = self.texts if self.restricted else None
        own = to_jsonable_python(self, exclude=hidden, inf_nan_mode="null")
        return {**own, **to_jsonable_python(self.figures(), inf_nan_mode="null")}

    def tables_as_json(self) -> list[dict[str, Any]]:
        """Every printed table, as JSON."""
        return [each.as_json() for section in self.sections() for each in section.sheets]

    def write(self, folder: Path, name: str, question: str, command: str = "") -> Path:
        """NAME.json and NAME.html in `folder`, made if need be; returns the page.

        Raises UserError when the disk refuses.
        """
        with clear_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        numbers = {
            "study": name,
            "command": command,
            "made": origin(versions({}, command)),
            **self.as_json(),
            "tables": self.tables_as_json(),
        }
        text = printable(json.dumps(numbers, ensure_ascii=False, indent=2))
        write_whole(folder / f"{name}.json", f"{text}\n")
        about = {"title": self.title, "facts": self.facts, "sections": self.sections()}
        about |= {"name": name, "question": question, "command": command}
        page = folder / f"{name}.html"
        shown = render("study.html", **about, remarks=self.remarks(texts=not self.restricted))
        write_whole(page, printable(shown))
        return page


def sheet(
    title: str,
    rows: Iterable[R],
    columns: Mapping[str, Callable[[R], Cell]],
    note: str = "",
    *,
    words: int = 1,
    bold: Callable[[R], bool] = lambda row: False,
) -> Sheet:
    """A table of `rows`: heading → what stands there; estimates with their intervals.

    The first `words` columns name the row, the others are figures.
    """
    every = list(rows)
    cells = [
        [plain(cell) if isinstance(cell, Estimate) else str(cell) for cell in line]
        for line in ([column(row) for column in columns.values()] for row in every)
    ]
    styles = {place: "bold" for place, row in enumerate(every) if bold(row)}
    return Sheet(tuple(columns), cells, title, note, words, styles)


def for_each(
    keys: Iterable[K], cell: Callable[[K, Any], Cell], heading: str = "{}"
) -> dict[str, Callable[[Any], Cell]]:
    """The columns of a `sheet` for some keys; `heading` is filled with each."""
    return {heading.format(key): partial(cell, key) for key in keys}


def left_out(reasons: Mapping[str, int]) -> list[str]:
    """One line for each reason for which cases were left out."""
    return [f"{several(count, 'case')} left out: {reason}" for reason, count in reasons.items()]


def plain(estimate: Estimate, digits: int = 2) -> str:
    """ "0.62 [0.55, 0.69]"; a dash for what is undefined."""
    low, high = (decimal(end, digits) for end in (estimate.low, estimate.high))
    ends = "" if isnan(estimate.low) else f" [{low}, {high}]"
    return decimal(estimate.mean, digits) + ends


def signed(estimate: Estimate, digits: int = 2) -> str:
    """A difference: "+0.07 [0.01, 0.13] *", starred where the interval leaves out 0."""
    plus = "+" if round(estimate.mean, digits) > 0 else ""
    return f"{plus}{plain(estimate, digits)}{' *' if estimate.clear else ''}"


def percent(share: Estimate) -> str:
    """A share in percent: "97.5 [91.3, 100]"; a dash for what is undefined."""
    if isnan(share.mean):
        return DASH
    mean, low, high = (
        f"{100 * value:.1f}".removesuffix(".0") for value in (share.mean, share.low, share.high)
    )
    return f"{mean} [{low}, {high}]"
