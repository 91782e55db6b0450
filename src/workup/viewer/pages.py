"""What each page shows, as values for its template."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workup.core.case import Case
from workup.core.episode import DIAGNOSE
from workup.metrics.known import metric
from workup.report import meanings
from workup.report.page import title
from workup.report.tables import Ends, calls, headline, level
from workup.report.transcripts import VERDICTS, Meeting, TranscriptEpisode, legend, side
from workup.runs import Record, Run, warnings
from workup.runs.files import DamagedError
from workup.runs.record import turns_of
from workup.runs.settings import flat
from workup.runs.store import KEY, as_written
from workup.runs.words import DASH, adds_up, duration, in_order, number
from workup.viewer import drawing, progress, tokens
from workup.viewer.asking import (
    SORTS,
    AddressError,
    Key,
    ListPosition,
    ListQuery,
    SqlStatement,
    address,
    key_of,
    written,
)
from workup.viewer.asking import VERDICTS as ASKED
from workup.viewer.listing import Listing, listed
from workup.viewer.progress import StageSteps, State
from workup.viewer.shown import ShownRun

WAIT = 0.05  # seconds that a page waits for columns that are being read
FIRST = 0.3  # the same for a run's page, where they are asked for first
OPTIONS = 300  # values that a filter offers
BESIDE = 8  # episodes side by side
REPORT = "report.html"
OF_A_CASE = 200  # episodes of one case that are listed
LAST = 8  # episodes on a run's page
VIEWS = ("read", "tokens")
_PLAYED = (
    "SELECT doctor, COUNT(*) FROM columns WHERE phase = 'eval' GROUP BY doctor ORDER BY MIN(id)"
)
Content = dict[str, Any]


class MissingError(AddressError):
    """An address of something that is not there."""


def runs(shown: Mapping[str, ShownRun]) -> Content:
    """The first page: every run with its state, damaged ones with the reason."""
    rows = [_run_row(each) for each in shown.values()]
    return {
        "rows": rows,
        "live": any(row.get("state") == State.RUNNING for row in rows),
        "comparable": sum(row.get("comparable", False) for row in rows) > 1,
        "compare": address("/compare"),
    }


def _run_row(shown: ShownRun) -> Content:
    head: Content = {"name": shown.name, "withheld": shown.withheld, "damage": ""}
    if shown.withheld:
        return head
    if damage := shown.damage:
        return head | {"damage": damage}
    run = shown.run
    entries = _entries(run)
    order = Ends.of(entries, run.anchors)
    after = next(iter(_whose(run, entries, order)), None)
    accuracy = level(entries[after], "accuracy") if after else None
    return head | {
        "href": address(f"/run/{shown.name}"),
        "title": title(run),
        "restricted": shown.restricted,
        "state": progress.state(run),
        "started": run.started[:16] or DASH,
        "environment": _named(run, "environment") or DASH,
        "strategy": _named(run, "strategy"),
        "policy": run.config.get("policy") or "",
        "accuracy": number("accuracy", accuracy.mean) if accuracy else DASH,
        "of": after if accuracy else "",
        "comparable": order.after is not None,
        "report": _report(shown),
    }


def _whose(run: Run, entries: Mapping[str, Any], order: Ends) -> list[str]:
    """The policies that the run is about, the last one first; in an evaluation maybe an anchor."""
    policy = str(run.config.get("policy"))
    return order.names[::-1] or [name for name in (policy,) if name in entries]


def _named(run: Run, setting: str) -> str:
    """The name of the run's environment or strategy; "" where it has none."""
    if setting == "environment":
        return run.encounter
    found = run.config.get(setting)
    return str((found.get("name") if isinstance(found, Mapping) else None) or "")


def _report(shown: ShownRun) -> str:
    """The address of the run's report; "" while there is none."""
    there = (shown.path / REPORT).is_file()
    return address(f"/run/{shown.name}/{REPORT}") if there else ""


def overview(shown: ShownRun) -> Content:
    """One run: how far it is, what it has found, its curves and its last episodes."""
    run, columns = shown.run, shown.columns
    columns.catch_up(FIRST)
    state, lines, entries = progress.state(run), list(run.metrics()), _entries(run)
    total = columns.written()
    phases = progress.stages(run, lines)
    order = Ends.of(entries, run.anchors)
    metrics, rows = headline(entries, order) if entries else ([], [])
    last = listed(columns, ListQuery(), LAST)
    money = progress.spent(run, lines)
    finished = state is State.FINISHED
    played = [] if finished else [(doctor, count) for doctor, count in columns.rows(_PLAYED)]
    return _head(shown, run, state) | {
        "facts": list(_facts(run, state, phases, money)),
        "stages": phases,
        "playing": progress.evaluations(run, played),
        "shown": [meanings.explained(name) for name in metrics],
        "rows": rows,
        "warnings": warnings.lines(entries),
        "figures": drawing.figures(lines, entries, run.anchors),
        "episodes": _rows(shown, [place.id for place in last.places], ListQuery()),
        "live": state is State.RUNNING or not columns.whole,
        "running": state is State.RUNNING,
        "total": total,
        "whole": columns.whole,
        "wrong": list(_wrong(shown, _whose(run, entries, order))),
        "report": _report(shown),
        "glossary": meanings.legend(metrics),
        "notes": run.config.get("notes") or (),
        "calls": calls(run.summary.get("calls") or ()),
        "config": list(flat(run.config)),
        "versions": [(name, value) for name, value in run.versions.items() if value is not None],
    }


def _facts(
    run: Run, state: State, phases: Sequence[StageSteps], money: float | None
) -> Iterator[tuple[str, str]]:
    left = phases[-1].left if phases else None
    if state is State.RUNNING and left:
        yield "Left of this stage", f"about {duration(left)}"
    for name in ("policy", "cases", "seed", "split"):
        if run.config.get(name) is not None:
            yield name.capitalize(), str(run.config[name])
    for name in ("strategy", "environment"):
        if named := _named(run, name):
            yield name.capitalize(), named
    yield "Started", run.started[:16] or DASH
    if (seconds := run.summary.get("seconds")) is not None:
        # A training's summary counts the steps alone, without its evaluations.
        yield "Training time" if phases else "Took", duration(float(seconds))
    if money is not None:
        yield "Spent", f"{money:.4g}"
    if run.config.get("budget") is not None:
        yield "Budget", f"{run.config['budget']:g}"


def _wrong(shown: ShownRun, doctors: Sequence[str]) -> Iterator[tuple[str, int, str]]:
    """(doctor, wrong episodes, address of their list) of those who have any."""
    for doctor in doctors:
        asked = ListQuery({"doctor": doctor, "phase": "eval"}, verdict="wrong")
        if count := len(shown.run.episodes(doctor=doctor, phase="eval", correct=0)):
            yield doctor, count, address(f"/run/{shown.name}/episodes", asked.query)


def episodes(shown: ShownRun, query: Mapping[str, str]) -> Content:
    """A page of the list of episodes."""
    run, columns = shown.run, shown.columns
    columns.catch_up(WAIT)
    asked = ListQuery.read(query)
    found = listed(columns, asked)
    sorts = dict.fromkeys((*SORTS, *columns.measures))
    state = progress.state(run)
    options: dict[str, list[tuple[str, str, int]]] = {}
    for name in ("phase", "doctor", "stage", "ending", "category"):
        values = columns.counts(name, OPTIONS)
        chosen = values if len(values) > 1 or name == "doctor" else []
        options[name] = [(value or "-", value or "none", n) for value, n in chosen]
    return _head(shown, run, state) | {
        "live": state is State.RUNNING or not columns.whole,
        "asked": asked.query,
        "filtered": asked.filtered,
        "rows": _rows(shown, [place.id for place in found.places], asked),
        "found": found,
        "all": columns.count(),
        "whole": columns.whole,
        "measure": asked.sort if asked.sort in columns.measures else "",
        "options": options,
        "verdicts": list(ASKED),
        "sorts": [(name, name if name in SORTS else metric(name).title) for name in sorts],
        "descending": asked.descending,
        **_around(shown, asked, found),
    }


def _around(shown: ShownRun, asked: ListQuery, found: Listing) -> Content:
    """The links to the pages before and after, and to where a search goes on."""
    path = f"/run/{shown.name}/episodes"
    onward = found.unsearched and (
        asked.at(before=found.unsearched) if asked.before else asked.at(after=found.unsearched)
    )
    return {
        "earlier": address(path, asked.at(before=found.before).query) if found.before else "",
        "later": address(path, asked.at(after=found.after).query) if found.after else "",
        "onward": address(path, onward.query) if onward else "",
        "start": address(path, asked.at().query) if asked.after or asked.before else "",
    }


def episode(shown: ShownRun, query: Mapping[str, str]) -> Content:
    """One episode, as a clinician or as a trainer reads it, with its neighbours in the list.

    Raises AddressError for a query that cannot be answered, MissingError for no such episode.
    """
    run, columns = shown.run, shown.columns
    columns.catch_up(WAIT)
    key = key_of(query.get("episode", ""))
    view, colour = query.get("view") or VIEWS[0], query.get("colour") or tokens.COLOURS[0]
    if view not in VIEWS or colour not in tokens.COLOURS:
        raise AddressError(f"view is {' or '.join(VIEWS)}, colour is {', '.join(tokens.COLOURS)}")
    asked = ListQuery.read(query).at()
    record = shown.record(key)
    if record is None:
        raise MissingError(f"{shown.name} has no episode {written(key)}")
    own = {"episode": written(key)}
    turned = {"view": view} if view != VIEWS[0] else {}
    path = f"/run/{shown.name}/episode"
    here = {**asked.query, **own}
    own_side = side(record, record.doctor)
    sources = [
        [each.id for each in turn.observation.passages or ()] for turn in record.episode.turns
    ]
    return _head(shown, run, progress.state(run)) | {
        "live": False,
        "record": record,
        "key": dict(zip(KEY, key, strict=True)),
        "verdict": VERDICTS[record.correct],
        "side": own_side,
        "turns": list(zip(own_side.lines, sources, strict=True)),
        "parts": _parts(record),
        "measures": [(name, number(name, value)) for name, value in record.measures.items()],
        "view": view,
        "reading": address(path, here),
        "training": address(path, here | {"view": "tokens"}),
        "case": address(f"/run/{shown.name}/case", {"case": record.episode.case.id}),
        "up": address(f"/run/{shown.name}/episodes", asked.query),
        **legend([Meeting(record.episode.case, [own_side], "")]),
        **(_tokens(shown, record, path, here, colour) if view == "tokens" else {}),
        **_neighbours(shown, asked, key, path, turned),
    }


def _parts(record: Record) -> Content:
    """The terms of the reward, and whether they add up to it."""
    if record.score is None:
        return {}
    terms = [(name, tokens.signed(value)) for name, value in record.score.parts.items()]
    return {
        "total": tokens.signed(record.score.total),
        "terms": terms,
        "additive": adds_up(record.score.total, record.score.parts),
    }


def _tokens(
    shown: ShownRun, record: Record, path: str, here: Mapping[str, str], colour: str
) -> Content:
    spell = tokens.spelling(shown.path)
    count = sum(
        len(turn.prompt_tokens) + len(turn.completion.tokens) for turn in record.episode.turns
    )
    return {
        "tokens": tokens.turns(record, spell, colour) if count else [],
        "spelled": spell is not None,
        "count": count,
        "most": tokens.MOST,
        "colour": colour,
        "colours": [
            (name, address(path, {**here, "view": "tokens", "colour": name}))
            for name in tokens.COLOURS
        ],
    }


def _neighbours(
    shown: ShownRun, asked: ListQuery, key: Key, path: str, turned: Mapping[str, str]
) -> Content:
    """The links to the episodes before and after this one in the list; "" where there is none."""
    column = SqlStatement.of(asked, shown.columns.measures).column
    rows = shown.columns.rows(
        f"SELECT {column} AS value, id FROM columns WHERE "
        + " AND ".join(f"{name} = ?" for name in KEY),
        key,
    )
    if not rows:
        return {"earlier": "", "later": ""}
    here = ListPosition(rows[0]["value"], rows[0]["id"])
    links = {}
    for name, there in (("earlier", asked.at(before=here)), ("later", asked.at(after=here))):
        found = listed(shown.columns, there, most=1).places
        row = next(iter(shown.rows([found[0].id])), None) if found else None
        to = {**asked.query, "episode": written(_key(row)), **turned} if row else None
        links[name] = address(path, to) if to else ""
    return links


def case(
    shown: Mapping[str, ShownRun], name: str, query: Mapping[str, str], chosen: Sequence[str]
) -> Content:
    """The same case under several doctors, steps and runs, side by side.

    Raises AddressError for a query without a case, MissingError where no episode fits.
    """
    wanted, asked = query.get("case", ""), ListQuery.read({**query, "case": ""})
    if not wanted:
        raise AddressError("a case is asked for by its id, as in ?case=clinic:xs:0:test:7")
    rows, damaged = _rows_of_case(shown, name, wanted, asked)
    if not rows:
        raise MissingError(f"no episode of the case '{wanted[:200]}' fits")
    known = {row["choice"]: row for row in rows}
    ticked = [choice for choice in chosen if choice in known]
    picked = (ticked or _by_default(rows))[:BESIDE]
    sides, more = _sides(shown, name, [known[choice] for choice in picked])
    if not sides:
        raise MissingError(f"no episode of the case '{wanted[:200]}' is there any more")
    for row in rows:
        row["chosen"] = row["choice"] in picked
    first = sides[0][1]
    meeting = Meeting(first, [each for _, _, each in sides], "")
    run = shown[name].run
    return _head(shown[name], run, progress.state(run)) | {
        "live": False,
        "case_id": wanted,
        "first": first,
        "asked": asked.query,
        "rows": rows[:OF_A_CASE],
        "more": len(rows) - OF_A_CASE,
        "damaged": list(dict.fromkeys([*damaged, *more])),
        "beside": BESIDE,
        "left_out": max(0, len(ticked) - BESIDE),
        "sides": [
            (row, case.presentation if case.presentation != first.presentation else "", each)
            for row, case, each in sides
        ],
        **legend([meeting]),
    }


# A case page shows other runs of the same case too. A damaged one is left out, and the page says
# why; if the run that was asked for is damaged, there is no page.
def _rows_of_case(
    shown: Mapping[str, ShownRun], name: str, case: str, asked: ListQuery
) -> tuple[list[Content], list[str]]:
    """The episodes of a case, first those of the run `name`; and why runs are left out.

    Raises DamagedError if the run `name` is damaged.
    """
    rows, damaged = _of_case(shown[name], case, asked), []
    for other in shown.values():
        if not other.withheld and other.name != name:
            try:
                rows += _of_case(other, case, asked)
            except DamagedError as error:
                damaged.append(str(error))
    return rows, damaged


def _sides(
    shown: Mapping[str, ShownRun], name: str, rows: Sequence[Content]
) -> tuple[list[tuple[Content, Case, TranscriptEpisode]], list[str]]:
    """Each row with its case and its encounter; and why some are left out, as `_rows_of_case`."""
    found, damaged = [], []
    for row in rows:
        try:
            record = shown[row["run"]].record(row["key"])
        except DamagedError as error:
            if row["run"] == name:
                raise
            damaged.append(str(error))
            continue
        if record is not None:
            label = f"{row['run']}: {record.doctor}" if len(shown) > 1 else record.doctor
            found.append((row, record.episode.case, side(record, label)))
    return found, damaged


def _of_case(shown: ShownRun, case: str, asked: ListQuery) -> list[Content]:
    _ = shown.run  # raises DamagedError
    shown.columns.catch_up(WAIT)
    statement = SqlStatement.of(asked, shown.columns.measures)
    rows = shown.columns.rows(
        f"SELECT * FROM columns WHERE {statement.where} AND case_id = ? "
        f"ORDER BY phase, doctor, stage, step, sample LIMIT {OF_A_CASE + 1}",
        (*statement.values, case),
    )
    return [
        _row(shown, row, "", asked) | {"choice": f"{shown.name}/{written(_key(row))}"}
        for row in rows
    ]


def _by_default(rows: Sequence[Content]) -> list[str]:
    """The first evaluated episode of every doctor, or else the first episodes."""
    first: dict[tuple[str, str], str] = {}
    for row in rows:
        if row["phase"] == "eval":
            first.setdefault((row["run"], row["doctor"]), row["choice"])
    return list(first.values())[:BESIDE] or [row["choice"] for row in rows[:BESIDE]]


def _rows(shown: ShownRun, ids: Sequence[int], asked: ListQuery) -> list[Content]:
    answers = dict(_answers(shown, ids))
    return [_row(shown, row, answers.get(row["id"], ""), asked) for row in shown.rows(ids)]


def _row(shown: ShownRun, row: sqlite3.Row, answer: str, asked: ListQuery) -> Content:
    """An episode in a list."""
    key = _key(row)
    query = asked.at().query | {"episode": written(key)}
    column = shown.columns.measures.get(asked.sort)
    correct = None if row["correct"] is None else bool(row["correct"])
    return {
        "run": shown.name,
        "key": key,
        "href": address(f"/run/{shown.name}/episode", query),
        "case_href": address(f"/run/{shown.name}/case", {"case": row["case_id"]}),
        **{name: row[name] for name in (*KEY, "ending", "questions", "diagnosis", "category")},
        "verdict": VERDICTS[correct],
        "answer": answer,
        "return": tokens.signed(row["total"]),
        "measure": number(asked.sort, row[column]) if column else "",
    }


def _answers(shown: ShownRun, ids: Sequence[int]) -> Iterator[tuple[int, str]]:
    """The diagnoses of these episodes, as far as they gave one."""
    marks = ", ".join("?" * len(ids))
    for row in shown.columns.store.query(
        f"SELECT rowid, case_id, turns FROM episodes WHERE rowid IN ({marks})", tuple(ids)
    ):
        with as_written(shown.columns.store.path, row):
            last = turns_of(row["turns"])[-1:]
            given = [", ".join(turn["content"]) for turn in last if turn["kind"] == DIAGNOSE]
        if given:
            yield row["rowid"], given[0]


def _key(row: sqlite3.Row) -> Key:
    phase, doctor, stage, step, case, sample = (row[name] for name in KEY)
    return phase, doctor, stage, step, case, sample


def _head(shown: ShownRun, run: Run, state: State) -> Content:
    """What every page of a run begins with."""
    path = f"/run/{shown.name}"
    return {
        "name": shown.name,
        "title": title(run),
        "state": state,
        "live": state is State.RUNNING,
        "home": address(path),
        "list": address(f"{path}/episodes"),
        "case_path": address(f"{path}/case"),
    }


def _entries(run: Run) -> dict[str, Any]:
    """The doctors of summary.json, from the lowest anchor to the highest.

    There are none before it is written.
    """
    found = run.summary.get("doctors")
    if not isinstance(found, Mapping):
        return {}
    return {doctor: found[doctor] for doctor in in_order(found, run.anchors)}
