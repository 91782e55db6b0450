"""Several runs beside each other.

A table, paired differences, a regression, curves, transcripts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from workup.errors import UserError
from workup.policies.unseen import alike, played_cases
from workup.report import curves, dynamics, leaves, outcomes, regression, suite, tables, transcripts
from workup.report.curves import Curve
from workup.report.page import category_caption, title
from workup.report.regression import Regression
from workup.report.rendering import render
from workup.report.sheets import Sheet
from workup.report.tables import CHANGED, HEADINGS, ON_REQUEST, Change, Ends
from workup.report.transcripts import Player
from workup.runs import Outcome, Run
from workup.runs.files import write_whole
from workup.runs.summary import describe
from workup.runs.words import COLUMNS, DASH, plus_minus

REGRESSION = "what success goes with (logistic regression)"


@dataclass(frozen=True)
class Side:
    """One of the compared runs.

    `doctor` is who is compared, `changes` its paired differences to the first run. `alike` says
    whether it was evaluated on the same cases as the first run (`unseen.alike`).
    """

    label: str
    run: Run
    doctor: str
    entry: Mapping[str, Any]
    changes: list[Change]
    alike: bool = True

    @property
    def cases(self) -> str:
        """The source and the split of its cases, for a reader."""
        split = self.run.settings["split"]
        return f"{self.run.config.get('cases')}, {'whole' if split is None else f'split {split}'}"

    def outcomes(self) -> list[Outcome]:
        """How its episodes went; other cases than the first run's have ids of their own."""
        found = self.run.outcomes(self.doctor)
        source = "" if self.alike else f"{played_cases(self.run)}: "
        return [each._replace(case_id=source + each.case_id) for each in found]

    @property
    def row(self) -> str:
        return self.label if self.doctor == "trained" else f"{self.label}: {self.doctor}"


def compare(
    runs: Sequence[Run],
    html: Path | None = None,
    console: Console | None = None,
    *,
    transcripts: bool = False,
) -> None:
    """Prints the comparison of `runs` with the first, and writes it as an offline page to `html`.

    The page has all transcripts in a folder of its name beside it; those of restricted cases only
    if `transcripts` asks for them. Of each run the trained policy is compared, or if there is none,
    whoever was evaluated last. Suites are compared with suites, benchmark by benchmark. Raises
    UserError for a run in which no one was evaluated, for one that is named twice, and for a suite
    beside a run that is none.
    """
    _refuse_twice(runs)
    console = console or Console(highlight=False)
    if any(map(suite.is_suite, runs)):
        _suites(runs, html, console)
        return
    sides = _sides(runs)
    found = regression.regress({side.row: side.outcomes() for side in sides})
    _results(sides).show(console)
    for side in sides[1:]:
        _show_differences(console, side, sides[0])
    _show_regression(console, found)
    trained = [curve for curve in map(_curve, sides) if curve.lines]
    if trained:
        _dynamics(trained).show(console)
    if html is not None:
        _write(html, sides, found, asked=transcripts)
        console.print(f"page  {html}", soft_wrap=True, markup=False)


def _suites(runs: Sequence[Run], html: Path | None, console: Console) -> None:
    """Raises UserError where one of `runs` is no suite, or they have no benchmark in common."""
    if other := next((run for run in runs if not suite.is_suite(run)), None):
        one = next(run for run in runs if suite.is_suite(run))
        inner = one.path / one.config["arms"][0]["folder"]
        raise UserError(
            f"{one.path} is a suite and {other.path} is one evaluation: compare suites with "
            f"suites, or name an evaluation of the suite, as in {inner}"
        )
    table, notes = suite.beside(runs, alike)
    for sheet in suite.sheets(suite.figures(table)):
        sheet.show(console)
    for note in notes:
        console.print(note, markup=False)
    if html is not None:
        suite.page_beside(table, notes, html, " · ".join(run.name for run in runs))
        console.print(f"page  {html}", soft_wrap=True, markup=False)


def _refuse_twice(runs: Sequence[Run]) -> None:
    folders = [run.path.resolve() for run in runs]
    if twice := next(
        (run for run, folder in zip(runs, folders, strict=True) if folders.count(folder) > 1), None
    ):
        raise UserError(f"{twice.path} is named twice; name different runs")


def _sides(runs: Sequence[Run]) -> list[Side]:
    names = [run.name for run in runs]
    labels = [run.name if names.count(run.name) == 1 else str(run.path) for run in runs]
    doctors = [_doctor(run) for run in runs]
    first = (runs[0], doctors[0])
    sides = []
    for label, run, doctor in zip(labels, runs, doctors, strict=True):
        same, metrics = alike(run, runs[0]), (*CHANGED, *ON_REQUEST)
        gaps = tables.gaps((run, doctor), first, metrics) if same and run is not runs[0] else []
        sides.append(Side(label, run, doctor, describe(run, doctor), gaps, same))
    return sides


def _doctor(run: Run) -> str:
    doctor = Ends.of(run.doctors(), run.anchors).after
    if doctor is None:
        raise UserError(
            f"{run.path}: no policy has been evaluated in this run yet; let it finish with "
            f"`workup resume {run.path}`"
        )
    return doctor


def _rows(sides: Sequence[Side]) -> tuple[list[str], list[tables.Row]]:
    """What the runs began with, the compared doctors, and the first run's anchors."""
    first = sides[0].run
    exact = [doctor for doctor in first.doctors() if doctor in first.anchors]
    anchors = {doctor: describe(first, doctor) for doctor in exact}
    ends = {side.row: side.entry for side in sides}
    shown, rows = tables.headline(
        {**_began(sides, "untrained"), **_began(sides, "warm start"), **ends, **anchors},
        Ends(None, None, first.anchors),
    )
    return [tables.heading(metric) for metric in shown], rows


def _began(sides: Sequence[Side], doctor: str) -> dict[str, Mapping[str, Any]]:
    """The policies that runs began with, by row: one row where all of them had the same."""
    found = {
        side.label: describe(side.run, doctor)
        for side in sides
        if doctor in side.run.doctors() and side.doctor != doctor
    }
    entries = list(found.values())
    if len(found) == len(sides) and all(entry == entries[0] for entry in entries):
        return {doctor: entries[0]}
    return {f"{label}: {doctor}": entry for label, entry in found.items()}


def _results(sides: Sequence[Side]) -> Sheet:
    headings, rows = _rows(sides)
    shown = [place for place, heading in enumerate(headings) if heading in COLUMNS.values()]
    sizes = dict.fromkeys(row.size for row in rows if row.role != "anchor")
    sizes_by_row = [f"{row.name}: {row.size}" for row in rows if row.role != "anchor"]
    return Sheet(
        ["", *(headings[place] for place in shown)],
        [[row.name, *(row.cells[place].text for place in shown)] for row in rows],
        caption=f"{next(iter(sizes))} each" if len(sizes) == 1 else "; ".join(sizes_by_row),
        styles={number: "dim" for number, row in enumerate(rows) if row.role == "anchor"},
    )


def _show_differences(console: Console, side: Side, first: Side) -> None:
    if not side.changes:
        both = f"{side.row} and {first.row} were evaluated on different cases"
        if not side.alike:
            both += f" ({side.cases}; {first.cases})"
        console.print(f"{both}: no paired difference.\n", markup=False)
        return
    rows = [
        (HEADINGS[each.metric], each.by, each.interval, "clear" if each.sure else "unclear")
        for each in side.changes
    ]
    title = f"{side.row} − {first.row}, paired over {side.changes[0].cases:,} cases"
    Sheet(("", "difference", "95 % interval", ""), rows, title).show(console)


def _show_regression(console: Console, found: Regression) -> None:
    notes = "; ".join(found.notes)
    if found.problem:
        console.print(
            f"{REGRESSION}: none, {found.problem}{f' ({notes})' if notes else ''}\n", markup=False
        )
        return
    caption = f"{found.rests_on}, standard errors clustered by case{f'; {notes}' if notes else ''}"
    headings = ("", "coefficient (error)", "p", "CRAFT, Table 2", "p")
    Sheet(headings, regression.rows(found), REGRESSION, caption).show(console)


def _curve(side: Side) -> Curve:
    return Curve(side.label, curves.reinforced(list(side.run.metrics())))


def _dynamics(trained: Sequence[Curve]) -> Sheet:
    """How the runs trained, by `dynamics.COMPARED`; columns that none of them has are left out."""
    rows = {curve.label: dynamics.compared(curve) for curve in trained}
    shown = [
        place
        for place in range(len(dynamics.COMPARED))
        if any(row[place] != DASH for row in rows.values())
    ]
    return Sheet(
        ["", *(dynamics.COMPARED[place] for place in shown)],
        [[label, *(row[place] for place in shown)] for label, row in rows.items()],
        "training, late stage: the last 30 % of the steps",
    )


def _write(html: Path, sides: Sequence[Side], found: Regression, *, asked: bool) -> None:
    restricted = any(side.run.restricted for side in sides)
    paired = [side for side in sides if side.alike]
    players = (
        []
        if restricted and not asked
        else [Player(side.row, side.run, side.doctor) for side in paired]
    )
    content = (
        _content(sides)
        | {"regression": found, "effects": regression.rows(found)}
        | _encounters(players)
    )
    folder = html.with_name(f"{html.stem}-transcripts")
    more = leaves.write(folder, players, content["title"], html.name, private=restricted)
    page = render("compare.html", **content, folder=folder.name, leaves=more, withheld=not players)
    write_whole(html, page, private=restricted)


def _encounters(players: Sequence[Player]) -> dict[str, Any]:
    chosen = transcripts.groups([each.run.outcomes(each.doctor) for each in players], between=" · ")
    meetings = list(transcripts.shown(players, chosen))
    return {
        "players": players,
        "groups": chosen,
        "meetings": meetings,
        **transcripts.legend(meetings),
    }


def _figures(sides: Sequence[Side]) -> dict[str, Any]:
    """Accuracy by category, and accuracy against evidence (CRAFT's Figs. 2 and 3), of every run.

    The first run's anchors, and its policy before training, are drawn for reference.
    """
    first, rows = sides[0], {side.row: side.entry for side in sides}
    found = tables.by_category({side.row: side.outcomes() for side in sides}, first.run.seed)
    doctors, anchors = first.run.doctors(), first.run.anchors
    start = Ends.of(doctors, anchors).before
    before = {f"{first.label}: {start}": describe(first.run, start)} if start else {}
    marks = {doctor: describe(first.run, doctor) for doctor in doctors if doctor in anchors}
    ends = Ends(next(iter(before), None), None, anchors)
    looks = outcomes.looks([*rows, *before, *marks], ends)
    return {
        "scatter": outcomes.against_accuracy(
            tables.levels_of({**rows, **before, **marks}), looks, Curve("", [])
        ),
        "category_figure": outcomes.by_category(found, looks),
        "category_caption": category_caption(found),
        "categories": found,
        "plus_minus": plus_minus,
    }


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
        **_figures(sides),
        "windows": {curve.label: curve.window for curve in drawn if curve.lines},
    }
