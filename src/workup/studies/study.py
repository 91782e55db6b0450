"""The result of a study: tables, figures and numbers, on the terminal, as JSON and as one page."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from markupsafe import Markup

from workup.core.statistics import Estimate
from workup.report import sheets
from workup.report.rendering import render
from workup.runs.files import clear_errors, write_json, write_whole

if TYPE_CHECKING:
    from rich.console import Console

DASH = "–"


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table of text; its first `words` columns name the row, the others are figures.

    `note` says how to read it.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    words: int = 1

    def show(self, console: Console) -> None:
        """Prints the sheet, in as many tables as the console's width needs."""
        sheets.Sheet(self.headings, self.rows, self.title, self.note, self.words).show(console)


@dataclass(frozen=True, slots=True)
class Section:
    """A figure with the tables it is drawn from; either may be missing."""

    heading: str
    sheets: tuple[Sheet, ...]
    figure: Markup | None = None
    caption: str = ""


class Study(ABC):
    """The result of a study: a frozen dataclass of numbers and names, without text of any case."""

    name: ClassVar[str]
    question: ClassVar[str]

    @property
    @abstractmethod
    def title(self) -> str: ...

    @property
    @abstractmethod
    def facts(self) -> Mapping[str, str]:
        """What was studied, for the head of the page."""

    @abstractmethod
    def sections(self) -> Sequence[Section]: ...

    @abstractmethod
    def notes(self) -> Sequence[str]:
        """What a reader has to know: what failed, what was left out and why."""

    @abstractmethod
    def as_json(self) -> dict[str, Any]: ...

    def show(self, console: Console) -> None:
        """Prints every table."""
        for section in self.sections():
            for sheet in section.sheets:
                sheet.show(console)

    def write(self, folder: Path, command: str = "") -> Path:
        """NAME.json and NAME.html in `folder`, made if need be; returns the page.

        Raises UserError when the disk refuses.
        """
        with clear_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_json(
            folder / f"{self.name}.json", {"study": self.name, "command": command, **self.as_json()}
        )
        page = folder / f"{self.name}.html"
        write_whole(
            page, render("study.html", study=self, sections=self.sections(), command=command)
        )
        return page


def plain(estimate: Estimate, digits: int = 2) -> str:
    """ "0.62 [0.55, 0.69]"; a dash for what is undefined."""
    if isnan(estimate.mean):
        return DASH
    ends = (
        ""
        if isnan(estimate.low)
        else f" [{_number(estimate.low, digits)}, {_number(estimate.high, digits)}]"
    )
    return _number(estimate.mean, digits) + ends


def signed(estimate: Estimate, digits: int = 2) -> str:
    """A difference: "+0.07 [0.01, 0.13] *", starred where the interval leaves out 0."""
    if isnan(estimate.mean):
        return DASH
    plus = "+" if round(estimate.mean, digits) > 0 else ""
    return f"{plus}{plain(estimate, digits)}{' *' if clear(estimate) else ''}"


def clear(estimate: Estimate) -> bool:
    """Whether the interval leaves out 0."""
    return estimate.low > 0 or estimate.high < 0


def _number(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    return (text if text.strip("-0.") else text.removeprefix("-")).replace("-", "−")
