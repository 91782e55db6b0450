"""Tables for a terminal of any width: headings stay whole, and columns that do not fit go below."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from workup.core.text import unsteering

UNBOUNDED = 10_000
LABEL = 28  # columns of the terminal for a row's names, at most


@dataclass(frozen=True)
class Sheet:
    """Rows of text under `headings`.

    The first `words` columns (at least one) name the row, the others are figures. `styles` gives
    the rich style of a row by its number. A column in `joined` stands beside the one before it, if
    a table holds both. What stands in a column of `typed` is a command; it looks so on a page.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    caption: str = ""
    words: int = 1
    styles: Mapping[int, str] = field(default_factory=dict)
    joined: frozenset[int] = frozenset()
    typed: frozenset[int] = frozenset()

    def as_json(self) -> dict[str, Any]:
        """`title`, `headings`, `rows` of text, and `words`, how many columns name a row."""
        return {
            "title": self.title,
            "headings": [*self.headings],
            "rows": [[*row] for row in self.rows],
            "words": self.words,
        }

    def show(self, console: Console) -> None:
        """Prints the first of three layouts that fits the console.

        One table with headings in one line; with headings over several lines; several tables below
        each other. What a name holds cannot steer the terminal.
        """
        plain = replace(
            self,
            title=unsteering(self.title),
            caption=unsteering(self.caption),
            headings=[unsteering(heading) for heading in self.headings],
            rows=[[unsteering(cell) for cell in row] for row in self.rows],
        )
        plain._show(console)

    def _show(self, console: Console) -> None:
        # Around the tables and not in them: so they are as wide as the console, however narrow
        # the tables are.
        if self.title:
            console.print(Text(self.title, style="bold"))
        for table in self._fitting(console):
            console.print(table)
        if self.caption:
            console.print(Text(self.caption, style="dim italic"), end="\n\n")

    def _fitting(self, console: Console) -> Iterator[Table]:
        everything = range(self.words, len(self.headings))
        whole = self._table(everything, wrapped=False)
        if not everything or _width(console, whole) <= console.width:
            yield whole
            return
        start = self.words
        while start < len(self.headings):
            ends = [
                stop
                for stop in range(start + 1, len(self.headings))
                if _width(console, self._table(range(start, stop + 1), wrapped=True))
                <= console.width
            ]
            whole_groups = [stop for stop in ends if stop + 1 not in self.joined]
            stop = max(whole_groups or ends, default=start)
            yield self._table(range(start, stop + 1), wrapped=True)
            start = stop + 1

    def _table(self, columns: range, *, wrapped: bool) -> Table:
        table = Table(box=SIMPLE_HEAD)
        for heading, width in zip(self.headings, self._names(wrapped=wrapped), strict=False):
            table.add_column(Text(heading), overflow="fold", width=width)
        for column in columns:
            heading = self.headings[column]
            words = heading.split(" ") if wrapped else [heading]
            width = max(map(cell_len, [*words, *(row[column] for row in self.rows)]))
            table.add_column(Text(heading), justify="right", width=width)
        for number, row in enumerate(self.rows):
            cells = [Text(row[column]) for column in (*range(self.words), *columns)]
            table.add_row(*cells, style=self.styles.get(number, ""))
        return table

    def _names(self, *, wrapped: bool) -> list[int]:
        """The width of each column that names the row: that of its longest text, at most `LABEL`.

        If `wrapped`, the widest are narrowed until all of them together have `LABEL`: first down to
        their longest words, which are broken only where that is not enough.
        """
        names = [
            [self.headings[place], *(row[place] for row in self.rows)]
            for place in range(self.words)
        ]
        widths = [min(LABEL, max(map(cell_len, column))) for column in names]
        words = [
            max((cell_len(word) for text in column for word in text.split()), default=0)
            for column in names
        ]
        while wrapped and sum(widths) > LABEL:
            spare = [width - word for width, word in zip(widths, words, strict=True)]
            widest = max(range(self.words), key=lambda place: (spare[place] > 0, widths[place]))
            widths[widest] -= 1
        return widths


def _width(console: Console, table: Table) -> int:
    """The width that the table's columns need, however wide the console is."""
    return Measurement.get(console, console.options.update(max_width=UNBOUNDED), table).maximum
