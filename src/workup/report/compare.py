"""Several runs beside each other.

A table, paired differences, a regression, curves, transcripts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Unpack

from rich.console import Console

from workup.core.errors import UserError
from workup.core.text import several
from workup.metrics.known import metric
from workup.metrics.steps import RISE
from workup.report import (
    calibration,
    curves,
    diseases,
    dynamics,
    leaves,
    meanings,
    outcomes,
    plane,
    regression,
    suite,
    tables,
    transcripts,
)
from workup.report.curves import Curve
from workup.report.page import category_caption, title
from workup.report.plane import Plane
from workup.report.regression import Regression
from workup.report.rendering import render
from workup.report.sheets import Sheet
from workup.report.sides import Compared, Side, as_json, compared
from workup.report.tables import Ends
from workup.report.transcripts import Player
from workup.runs import Run
from workup.runs.estimates import common
from workup.runs.files import write_json, write_whole
from workup.runs.policies.unseen import alike
from workup.runs.rising import Learning, learning, with_sign
from workup.runs.words import DASH, UNTRAINED, WARM_START, columns, number, plus_minus

COVERS = "95 % intervals of several seeds cover other patients and other seeds"
DETECTABLE = "detectable: the true difference that would be found with a power of .8"
DISEASES = 8  # shown in a terminal
REGRESSION = "what success goes with (logistic regression)"


def compare(
    runs: Sequence[Run],
    html: Path | None = None,
    console: Console | None = None,
    *,
    transcripts: bool = False,
    json: Path | None = None,
    **chosen: Unpack[Compared],
) -> None:
    """Prints the comparison of `runs` with the first, and writes it as an offline page to `html`.

    `chosen` says what of the runs is compared (`sides.Compared`). `json` gets all figures. The page
    has all transcripts in a folder of its name beside it; those of restricted cases only if
    `transcripts` asks for them. Suites are compared with suites, benchmark by benchmark, and not
    pooled. Raises UserError for a run in which no one was evaluated, for one that is named twice,
    for a suite beside a run that is none, for a file that cannot be written, and as
    `sides.compared`.
    """
    _refuse_twice(runs)
    written = {"page": html, "json": json}
    _refuse_places([path for path in written.values() if path is not None])
    console = console or Console(highlight=False)
    if any(map(suite.is_suite, runs)):
        for option in ("measure", "doctor"):
            if chosen.get(option) is not None:
                raise UserError(
                    f"--{option} is for runs; suites are compared by accuracy and searches"
                )
        _suites(runs, console, html, json)
    else:
        sides, notes = compared(runs, **chosen)
        found = regression.regress(
            {side.row: list(chain.from_iterable(side.outcomes.values())) for side in sides}
        )
        private = any(run.restricted for run in runs)
        if html is not None:  # before anything is printed: a reader may close the pipe
            _write(html, sides, notes, found, asked=transcripts)
        if json is not None:
            write_json(json, as_json(sides, notes), private=private)
        _show(console, sides, notes, chosen.get("measure"))
        _show_regression(console, found)
        if (trained := _dynamics(sides)).rows:
            trained.show(console)
    for what, path in written.items():
        if path is not None:
            console.print(f"{what}  {path}", soft_wrap=True, markup=False)


def _refuse_places(files: Sequence[Path]) -> None:
    """Raises UserError for one file that is named twice, and for a missing folder."""
    for path in files:
        if not path.absolute().parent.is_dir():
            raise UserError(f"{path}: there is no folder {path.parent}; make it, or name another")
    if len({path.resolve() for path in files}) < len(files):
        raise UserError(f"--html and --json both name {files[0]}; each needs a file of its own")


def figures(runs: Sequence[Run], **chosen: Unpack[Compared]) -> dict[str, Any]:
    """What `compare` writes to `json`, as JSON values. Raises UserError as `compare`."""
    _refuse_twice(runs)
    if any(map(suite.is_suite, runs)):
        return _of_suites(*_beside(runs))
    return as_json(*compared(runs, **chosen))


def _show(
    console: Console, sides: Sequence[Side], notes: Sequence[str], measure: str | None
) -> None:
    _results(sides).show(console)
    for note in notes:
        console.print(f"{note}\n", markup=False)
    if measure is not None or any(side.pooled for side in sides):
        _by_seed(sides, measure or "accuracy").show(console)
    for side in sides[1:]:
        _show_differences(console, side, sides[0])
    if (sure := calibration.sheet({side.row: side.entry for side in sides})) is not None:
        sure.show(console)
    for side in sides[1:]:
        if side.diseases:
            diseases.sheet(side.diseases, side.row, sides[0].row, DISEASES).show(console)


def _suites(runs: Sequence[Run], console: Console, html: Path | None, json: Path | None) -> None:
    table, notes = _beside(runs)
    found = _of_suites(table, notes)
    private = any(run.restricted for run in runs)
    if html is not None:
        title = " · ".join(run.name for run in runs)
        suite.page_beside(table, notes, html, title, private=private)
    if json is not None:
        write_json(json, found, private=private)
    for sheet in suite.sheets(found):
        sheet.show(console)
    for note in found["notes"]:
        console.print(note, markup=False)


def _of_suites(table: suite.Table, notes: Sequence[str]) -> dict[str, Any]:
    found = suite.figures(table)
    return {**found, "notes": [*notes, *suite.warned(found)]}


def _beside(runs: Sequence[Run]) -> tuple[suite.Table, list[str]]:
    """Raises UserError where one of `runs` is no suite, or they have no benchmark in common."""
    if other := next((run for run in runs if not suite.is_suite(run)), None):
        one = next(run for run in runs if suite.is_suite(run))
        inner = one.path / one.config["arms"][0]["folder"]
        raise UserError(
            f"{one.path} is a suite and {other.path} is one evaluation: compare suites with "
            f"suites, or name an evaluation of the suite, as in {inner}"
        )
    return suite.beside(runs, alike)


def _refuse_twice(runs: Sequence[Run]) -> None:
    folders = [run.path.resolve() for run in runs]
    if twice := next(
        (run for run, folder in zip(runs, folders, strict=True) if folders.count(folder) > 1), None
    ):
        raise UserError(f"{twice.path} is named twice; name different runs")


def _rows(sides: Sequence[Side]) -> tuple[list[str], list[tables.DoctorRow]]:
    """What the runs began with, the compared doctors, and the first side's anchors.

    Where a side was trained, the first column is how that ended.
    """
    first = sides[0].run
    anchors = {
        doctor: entry
        for doctor in first.doctors()
        if doctor in first.anchors and (entry := sides[0].of(doctor))
    }
    ends = {side.row: side.entry for side in sides}
    metrics, rows = tables.headline(
        {**_began(sides, UNTRAINED), **_began(sides, WARM_START), **ends, **anchors},
        Ends(None, None, first.anchors),
    )
    rises: dict[str, tables.Cell] = {}
    for side in sides:
        if side.learned:
            # How the training ended; below it how far the reward rose, of a single run.
            rewards = [Learning.from_json(entry).reward for entry in side.learned.values()]
            rise = with_sign(rewards[0]) if len(rewards) == 1 and rewards[0] else ""
            rises[side.row] = tables.Cell(side.ended, rise)
    if not rises:
        return metrics, rows
    other = tables.Cell(DASH)
    rows = [replace(row, cells=[rises.get(row.name, other), *row.cells]) for row in rows]
    return [RISE.name, *metrics], rows


def _began(sides: Sequence[Side], doctor: str) -> dict[str, Mapping[str, Any]]:
    """The policies that runs began with, by row: one row where all of them had the same.

    The return goes by each run's own reward, so the same policy has several.
    """
    found = {
        side.named(doctor): entry
        for side in sides
        if doctor not in side.doctors.values() and (entry := side.of(doctor))
    }
    first, *others = (
        {name: value for name, value in entry.items() if name != "return"}
        for entry in found.values() or ({},)
    )
    if len(found) == len(sides) and all(entry == first for entry in others):
        return {doctor: first}
    return found


def _results(sides: Sequence[Side]) -> Sheet:
    metrics, rows = _rows(sides)
    standing = (RISE.name, *columns(side.entry for side in sides))
    shown = [place for place, name in enumerate(metrics) if name in standing]
    of_size: dict[str, list[str]] = {}
    for row in rows:
        if row.role != "anchor":
            of_size.setdefault(row.size, []).append(row.name)
    usual = max(of_size, key=lambda size: len(of_size[size]), default="")
    others = [f"; {', '.join(names)}: {size}" for size, names in of_size.items() if size != usual]
    return Sheet(
        ["", *(metric(metrics[place]).title for place in shown)],
        [[row.name, *(row.cells[place].text for place in shown)] for row in rows],
        caption=f"{usual} each{''.join(others)}",
        styles={number: "dim" for number, row in enumerate(rows) if row.role == "anchor"},
    )


def _by_seed(sides: Sequence[Side], measure: str) -> Sheet:
    """One measure of every side: pooled, seed by seed, and less the first side's."""
    gaps = {
        each.row: tables.gap_of(c.lead)
        for each in sides
        for c in each.changes
        if c.metric == measure
    }
    rows = []
    for side in sides:
        level = tables.level(side.entry, measure)
        mean = DASH if level is None else plus_minus(measure, level)
        each = _each_seed(side, measure)
        rows.append((side.row, mean, each, tables.gap_text(measure, gaps.get(side.row))))
    head = ("", "mean", "each seed", "difference")
    kept = [k for k in range(len(head)) if k < 2 or any(row[k] != DASH for row in rows)]
    title = f"{metric(measure).title}, and the difference to {sides[0].row}"
    return Sheet(
        [head[k] for k in kept],
        [[row[k] for k in kept] for row in rows],
        title if gaps else metric(measure).title,
        COVERS if any(side.pooled for side in sides) else "",
    )


def _each_seed(side: Side, metric: str) -> str:
    """Each seed's own figure; a dash for a side of one run."""
    found = side.entry.get(metric)
    if metric == RISE.name:
        return ", ".join(entry["verdict"] for entry in side.learned.values()) or DASH
    if not side.pooled or not isinstance(found, Mapping):
        return DASH
    return " ".join(number(metric, value) for value in found["by_seed"].values())


def _show_differences(console: Console, side: Side, first: Side) -> None:
    if not side.changes:
        console.print(f"{side.unpaired(first)}.\n", markup=False)
        return
    rows = [
        (
            *(metric(each.metric).title, each.by, each.interval, each.verdict),
            *(each.detectable, each.seeds),
        )
        for each in side.changes
    ]
    seeded = any(each.seeds for each in side.changes)
    head = ["", "difference", "95 % interval", "verdict", "detectable"]
    head += ["each seed"] if seeded else []
    Sheet(
        head,
        [row[: len(head)] for row in rows],
        _paired(side, first),
        _explained(side),
        joined=frozenset({2, 3}),
    ).show(console)


def _explained(side: Side) -> str:
    """What the words and figures beside a side's differences mean."""
    verdicts, covers = tables.explained(side.changes), tables.covering(side.changes)
    return "; ".join(filter(None, (covers, verdicts, DETECTABLE)))


def _paired(side: Side, first: Side) -> str:
    """ "b − a, paired over 300 cases, seeds 0, 1, 2" """
    cases = several(side.changes[0].cases, "case")
    seeds = f", {_shared(side, first)}" if side.pooled or first.pooled else ""
    return f"{side.row} − {first.row}, paired over {cases}{seeds}"


def _shared(side: Side, first: Side) -> str:
    seeds = common(side.played, first.played)
    if not seeds:
        return "no seed in common"
    return f"{'seeds' if len(seeds) > 1 else 'seed'} {', '.join(seeds)}"


def _show_regression(console: Console, found: Regression) -> None:
    notes = "; ".join(found.notes)
    if found.problem:
        console.print(
            f"{REGRESSION}: none, {found.problem}{f' ({notes})' if notes else ''}\n", markup=False
        )
        return
    _effects(found).show(console)


def _effects(found: Regression) -> Sheet:
    return Sheet(
        ("log odds of being right", "coefficient (error)", "p", "CRAFT, Table 2", "its p"),
        regression.rows(found),
        REGRESSION,
        "; ".join((f"{found.rests_on}, standard errors clustered by case", *found.notes)),
    )


def _dynamics(sides: Sequence[Side]) -> Sheet:
    """How each run trained; a mean curve would be smoother than any run.

    Columns that no run has are left out.
    """
    rows = {}
    for name, run in (each for side in sides for each in side.each):
        lines = list(run.metrics())
        curve = curves.averaged(name, [lines])
        if curve.lines:
            found = learning(lines)
            rise = with_sign(found.reward) if found and found.reward else DASH
            rows[name] = [*dynamics.compared(curve), rise]
    titles = (*dynamics.COMPARED, RISE.title)
    shown = [
        place for place in range(len(titles)) if any(row[place] != DASH for row in rows.values())
    ]
    return Sheet(
        ["", *(titles[place] for place in shown)],
        [[label, *(row[place] for place in shown)] for label, row in rows.items()],
        "training, late stage: the last 30 % of the steps; the reward's last quarter of updates "
        "less the one before",
    )


def _write(
    html: Path,
    sides: Sequence[Side],
    notes: Sequence[str],
    found: Regression,
    *,
    asked: bool,
) -> None:
    restricted = any(run.restricted for side in sides for run in side.runs.values())
    players = [] if restricted and not asked else _players(sides)
    content = (
        _content(sides)
        | {"notes": notes, "regression": found, "effects": _effects(found)}
        | _encounters(players)
    )
    folder = html.with_name(f"{html.stem}-transcripts")
    more = leaves.write(folder, players, content["title"], html.name, private=restricted)
    page = render("compare.html", **content, folder=folder.name, leaves=more, withheld=not players)
    write_whole(html, page, private=restricted)


def _players(sides: Sequence[Side]) -> list[Player]:
    """One run of every side, of a seed that all have where there is one."""
    paired = [side for side in sides if side.alike]
    shared = [seed for seed in sides[0].runs if all(seed in side.runs for side in paired)]
    found = []
    for side in paired:
        seed = shared[0] if shared else next(iter(side.runs))
        name = f"{side.row}, seed {seed}" if side.pooled else side.row
        found.append(Player(name, side.runs[seed], side.doctors[seed]))
    return found


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
    found = tables.by_category({side.row: side.outcomes for side in sides}, first.run.seed)
    doctors, anchors = first.run.doctors(), first.run.anchors
    start = Ends.of(doctors, anchors).before
    entry = first.of(start) if start else None
    before = {first.named(start): entry} if start and entry else {}
    marks = {each: entry for each in doctors if each in anchors and (entry := first.of(each))}
    ends = Ends(next(iter(before), None), None, anchors)
    looks = outcomes.looks([*rows, *before, *marks], ends)
    levels = tables.levels_of({**rows, **before, **marks})
    seeking = Plane.of(levels, ends, first.run.summary.get("stopped", {}))
    played = {side.row: side.outcomes for side in sides}
    played |= {mark: {"": first.run.outcomes(mark)} for mark in marks}
    return {
        **plane.content(seeking, looks, f" Anchors and start: {next(first.each)[0]}."),
        **calibration.content({**rows, **marks}, played, looks, first.run.seed),
        "scatter": outcomes.against_accuracy(levels, looks, Curve("", [])),
        "category_figure": outcomes.by_category(found, looks),
        "category_caption": category_caption(found),
        "categories": found,
        "by_category": Sheet(
            [found.kind, "cases", *found.accuracies],
            [
                [name, f"{size:,}", *(plus_minus("accuracy", each) for each in row)]
                for (name, size), *row in zip(
                    found.groups.items(), *found.accuracies.values(), strict=True
                )
            ],
        ),
    }


def _content(sides: Sequence[Side]) -> dict[str, Any]:
    metrics, rows = _rows(sides)
    drawn = [  # of several runs their mean
        curves.averaged(side.label, [list(run.metrics()) for run in side.runs.values()])
        for side in sides
    ]
    seed_rows = [
        tables.DoctorRow(
            side.row,
            "",
            f"seeds {', '.join(side.runs)}",
            [tables.Cell(_each_seed(side, metric)) for metric in metrics],
        )
        for side in sides
        if side.pooled
    ]
    return {
        "title": " · ".join(side.label for side in sides),
        "sides": sides,
        "titles": {run.path: title(run) for side in sides for run in side.runs.values()},
        "sources": {side.run.config.get("cases") for side in sides},
        "shown": [meanings.explained(name) for name in metrics],
        "glossary": meanings.legend(metrics),
        "rows": rows,
        "seed_rows": seed_rows,
        "shared": {side.row: _shared(side, sides[0]) for side in sides},
        "told": {side.row: _explained(side) for side in sides if side.changes},
        "diseases": [
            (side.row, diseases.sheet(side.diseases, side.row, sides[0].row))
            for side in sides
            if side.diseases
        ],
        "anchored": any(row.role == "anchor" for row in rows),
        "dynamics": _dynamics(sides),
        "figure": curves.overlaid([curve for curve in drawn if curve.lines]),
        "staged": any(curve.borders for curve in drawn),
        "untrained": [curve.label for curve in drawn if not curve.lines],
        **_figures(sides),
        "windows": [
            (window, [each.label for each in drawn if each.lines and each.window == window])
            for window in dict.fromkeys(each.window for each in drawn if each.lines)
        ],
    }
