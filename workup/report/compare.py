"""Several runs beside each other: one table, paired differences to the first run, curves overlaid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from workup.errors import UserError
from workup.report import curves, dynamics, tables
from workup.report.curves import Curve
from workup.report.page import render, title
from workup.report.tables import CHANGED, HEADINGS, ON_REQUEST, Change, Ends
from workup.runs import Run
from workup.runs.files import write_whole
from workup.runs.summary import describe
from workup.runs.words import ANCHORS, COLUMNS, DASH


@dataclass(frozen=True)
class Side:
    """One of the compared runs; `doctor` is who is compared, `changes` its paired differences to the first run."""

    label: str
    run: Run
    doctor: str
    entry: Mapping[str, Any]
    changes: list[Change]

    @property
    def row(self) -> str:
        return self.label if self.doctor == "trained" else f"{self.label}: {self.doctor}"


def compare(runs: Sequence[Run], html: Path | None = None, console: Console | None = None) -> None:
    """Print the comparison of `runs` (differences to the first), and write it as one offline page to `html` if given.

    Of each run the trained policy is compared, or where there is none whoever was evaluated last. Raises UserError for a run
    in which no one was evaluated.
    """
    sides = _sides(runs)
    console = console or Console(highlight=False)
    console.print(_results(sides))
    for side in sides[1:]:
        console.print(_differences(side, sides[0]))
    trained = [curve for curve in map(_curve, sides) if curve.lines]
    if trained:
        console.print(_dynamics(trained))
    if html is not None:
        write_whole(html, render("compare.html", **_content(sides)))
        console.print(f"page  {html}", soft_wrap=True, markup=False)


def _sides(runs: Sequence[Run]) -> list[Side]:
    names = [run.name for run in runs]
    labels = [run.name if names.count(run.name) == 1 else str(run.path) for run in runs]
    doctors = [_doctor(run) for run in runs]
    first = (runs[0], doctors[0])
    return [
        Side(
            label,
            run,
            doctor,
            describe(run, doctor),
            tables.gaps((run, doctor), first, (*CHANGED, *ON_REQUEST)) if number else [],
        )
        for number, (label, run, doctor) in enumerate(zip(labels, runs, doctors, strict=True))
    ]


def _doctor(run: Run) -> str:
    doctor = Ends.of(run.doctors()).after
    if doctor is None:
        raise UserError(
            f"{run.path}: no policy has been evaluated in this run yet; let it finish with `workup resume {run.path}`"
        )
    return doctor


def _rows(sides: Sequence[Side]) -> tuple[list[str], list[tables.Row]]:
    """The compared doctors, and the first run's anchors."""
    first = sides[0].run
    anchors = {doctor: describe(first, doctor) for doctor in first.doctors() if doctor in ANCHORS}
    shown, rows = tables.headline({**{side.row: side.entry for side in sides}, **anchors}, Ends(None, None))
    return [HEADINGS[metric] for metric in shown], rows


def _results(sides: Sequence[Side]) -> Table:
    headings, rows = _rows(sides)
    shown = [place for place, heading in enumerate(headings) if heading in COLUMNS.values()]  # what fits a terminal
    sizes = ", ".join(f"{row.name} {row.size}" for row in rows if row.role != "anchor")
    table = Table(box=SIMPLE_HEAD, caption=escape(sizes), caption_justify="left")
    table.add_column("", overflow="fold")
    for place in shown:
        table.add_column(headings[place], justify="right", no_wrap=True)
    for row in rows:
        style = "dim" if row.role == "anchor" else ""
        table.add_row(escape(row.name), *(row.cells[place].text for place in shown), style=style)
    return table


def _differences(side: Side, first: Side) -> Table | str:
    if not side.changes:
        return f"{side.row} and {first.row} were evaluated on different cases: no paired difference.\n"
    title = f"{side.row} − {first.row}, paired over {side.changes[0].cases:,} cases"
    table = Table(title=escape(title), title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for heading in ("", "difference", "95 % interval", ""):
        table.add_column(heading, justify="right" if heading else "left")
    for change in side.changes:
        table.add_row(HEADINGS[change.metric], change.by, change.interval, "clear" if change.sure else "unclear")
    return table


def _curve(side: Side) -> Curve:
    return Curve(side.label, curves.reinforced(list(side.run.metrics())))


def _dynamics(trained: Sequence[Curve]) -> Table:
    """How the runs trained, by `dynamics.COMPARED`; columns that none of them has are left out."""
    rows = {curve.label: dynamics.compared(curve) for curve in trained}
    shown = [place for place in range(len(dynamics.COMPARED)) if any(row[place] != DASH for row in rows.values())]
    table = Table(title="training, late stage: the last 30 % of the steps", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("", *(dynamics.COMPARED[place] for place in shown)):
        table.add_column(heading, justify="right" if heading else "left", overflow="fold")
    for label, row in rows.items():
        table.add_row(escape(label), *(row[place] for place in shown))
    return table


def _content(sides: Sequence[Side]) -> dict[str, Any]:
    shown, rows = _rows(sides)
    drawn = [_curve(side) for side in sides]
    return {
        "title": " · ".join(side.label for side in sides),
        "sides": sides,
        "titles": [title(side.run) for side in sides],
        "sources": {side.run.config.get("cases") for side in sides},
        "shown": shown,
        "rows": rows,
        "headings": HEADINGS,
        "anchored": any(row.role == "anchor" for row in rows),
        "dynamics": {curve.label: dynamics.compared(curve) for curve in drawn if curve.lines},
        "dynamic_headings": dynamics.COMPARED,
        "figure": curves.overlaid([curve for curve in drawn if curve.lines]),
        "untrained": [curve.label for curve in drawn if not curve.lines],
        "windows": {curve.label: curve.window for curve in drawn if curve.lines},
    }
