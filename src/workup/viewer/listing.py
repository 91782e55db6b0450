"""A page of a list of episodes: those that fit, in their order, and how to go on.

A text is searched for in what doctors said and were answered, and in the reasons of failures. There
is no index of texts, so a search reads the transcripts of the episodes that fit the other filters,
for a limited time per page; the page says how far it came and goes on from there.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from workup.runs.record import encode, turns_of
from workup.runs.store import as_written
from workup.viewer.asking import PAGE, ListPosition, ListQuery, SqlStatement
from workup.viewer.columns import Columns

SECONDS = 0.3  # seconds that one page may search for a text
_READ, _ASKED = 2_000, 32_000  # transcripts per query; episodes asked for in one go, at most


@dataclass(frozen=True, slots=True)
class Listing:
    """A page: row numbers with the list's place of each, in the list's order.

    `total` counts the episodes that fit all filters but the text. `searched` says how many of those
    behind (or before) the place were looked at; `unsearched` is where to go on, if time ran out.
    """

    places: Sequence[ListPosition]
    total: int
    before: ListPosition | None
    after: ListPosition | None
    searched: int = 0
    unsearched: ListPosition | None = None


def listed(
    columns: Columns, asked: ListQuery, most: int = PAGE, seconds: float = SECONDS
) -> Listing:
    """A page of the list.

    Raises AddressError for an order that the run does not have, UserError for a damaged file.
    """
    whole = SqlStatement.of(asked.at(), columns.measures)
    counted = f"SELECT COUNT(*) FROM columns WHERE {whole.where}"
    total = int(columns.rows(counted, whole.values)[0][0])
    if not asked.text:
        return _page(_places(columns, asked, most + 1), asked, most, total)
    return _searched(columns, asked, most, total, seconds)


def _places(columns: Columns, asked: ListQuery, most: int) -> list[ListPosition]:
    """The first of those that fit all filters but the text, behind (or before) the list's place."""
    statement = SqlStatement.of(asked, columns.measures)
    rows = columns.rows(
        f"SELECT {statement.column}, id FROM columns WHERE {statement.where} "
        f"ORDER BY {statement.order} LIMIT ?",
        (*statement.values, most),
    )
    return [ListPosition(*row) for row in rows]


def _page(found: list[ListPosition], asked: ListQuery, most: int, total: int) -> Listing:
    """The first `most` of the places that were found, in the list's order."""
    more, found = len(found) > most, found[:most]
    if asked.before is not None:
        found = found[::-1]
        return Listing(found, total, found[0] if more else None, found[-1] if found else None)
    before = found[0] if asked.after is not None and found else None
    return Listing(found, total, before, found[-1] if more else None)


def _searched(columns: Columns, asked: ListQuery, most: int, total: int, seconds: float) -> Listing:
    ends = time.monotonic() + seconds
    hits: list[ListPosition] = []
    searched, unsearched = 0, None
    onward, size = asked, _READ
    while len(hits) <= most and (places := _places(columns, onward, size)):
        for start in range(0, len(places), _READ):
            chunk = places[start : start + _READ]
            holding = set(_holding(columns, asked.text, [place.id for place in chunk]))
            hits += [place for place in chunk if place.id in holding]
            searched += len(chunk)
            if len(hits) > most or time.monotonic() >= ends:
                break
        last = chunk[-1]
        onward = asked.at(before=last) if asked.before else asked.at(after=last)
        if time.monotonic() >= ends and len(hits) <= most:
            unsearched = last if _places(columns, onward, 1) else None
            break
        size = min(2 * size, _ASKED)
    page = _page(hits, asked, most, total)
    return replace(page, searched=searched, unsearched=unsearched)


def _holding(columns: Columns, text: str, ids: Sequence[int]) -> Iterator[int]:
    """Those of the rows whose transcript holds `text`; letters A to Z match in either case."""
    pattern = "".join(f"\\{c}" if c in "\\%_" else c for c in encode(text)[1:-1])
    marks = ", ".join("?" * len(ids))
    query = (
        f"SELECT rowid, case_id, turns, reason FROM episodes WHERE rowid IN ({marks}) "
        "AND (turns LIKE ? ESCAPE '\\' OR reason LIKE ? ESCAPE '\\')"
    )
    for row in columns.store.query(query, (*ids, *[f"%{pattern}%"] * 2)):
        with as_written(columns.store.path, row):
            found = any(text.lower() in told.lower() for told in (row["reason"], *_told(row)))
        if found:
            yield row["rowid"]


def _told(row: sqlite3.Row) -> Iterator[str]:
    """What was said and answered; the file's own words around it ("user", "ask") do not count."""
    for turn in turns_of(row["turns"]):
        yield turn["text"]
        yield from (content for _, content in turn["observation"])
