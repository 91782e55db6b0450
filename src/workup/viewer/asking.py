"""What a page of episodes is asked for, in the query of its address; and as SQL over the columns.

Paging is by key: a page begins behind the last episode of the page before, by the value that the
list is sorted by and the row's number. So a page costs the same wherever it is, and no episode is
shown twice when a running run adds some.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, unquote, urlencode

from workup.core.errors import UserError
from workup.runs.store import KEY

PAGE = 50  # episodes of a list
LONGEST = 500  # characters of a value in an address
POSITION = 4_000  # of a cursor: it holds the value of a row, a case's id for one
NEWEST = "newest"
SAME = ("phase", "doctor", "stage", "ending", "category")  # have to be equal
WITHIN = {"case": "case_id", "diagnosis": "diagnosis"}  # have to hold the text
VERDICTS = {"right": "correct = 1", "wrong": "correct = 0", "not judged": "correct IS NULL"}
# What an address says of a list.
READ = (*SAME, *WITHIN, "verdict", "step", "text", "sort", "order", "after", "before")
# What a list can be sorted by besides measures: the name in the address → the column.
SORTS = {
    NEWEST: "id",
    "case": "case_id",
    "doctor": "doctor",
    "step": "step",
    "questions": "questions",
    "return": "total",
    "ending": "ending",
    "diagnosis": "diagnosis",
    "verdict": "correct",
}
Key = tuple[str, str, str, int, str, int]  # identifies an episode in its run; ordered as KEY


class AddressError(UserError):
    """An address that nobody can answer, and why."""


@dataclass(frozen=True, slots=True)
class ListPosition:
    """Where a list is cut: behind (or before) this value and row."""

    value: str | float | None
    id: int

    @classmethod
    def read(cls, text: str) -> ListPosition:
        try:
            value, id = json.loads(text)
            if not isinstance(value, str | int | float | None) or type(id) is not int:
                raise ValueError
            if isinstance(value, str):
                value.encode()  # half a surrogate pair is no text that SQLite can hold
            elif value is not None and not abs(value) < 2**63:
                raise ValueError
            return cls(value, _small(id))
        except (ValueError, TypeError, RecursionError):
            raise AddressError(f"'{text[:80]}' is no place in a list; begin at its start") from None

    def __str__(self) -> str:
        return json.dumps([self.value, self.id], ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The filters, the order and the place of a list."""

    same: Mapping[str, str] = field(default_factory=dict)
    within: Mapping[str, str] = field(default_factory=dict)
    verdict: str = ""
    steps: tuple[int, int] | None = None
    text: str = ""
    sort: str = NEWEST
    descending: bool = True
    after: ListPosition | None = None
    before: ListPosition | None = None

    @classmethod
    def read(cls, query: Mapping[str, str]) -> ListQuery:
        """The list that an address asks for; raises AddressError for one that cannot be answered.

        Empty values are no filters. A stage "" is asked for as "-".
        """
        longest = dict.fromkeys(("after", "before"), POSITION)
        given = {
            name: _text(name, value, longest.get(name, LONGEST))
            for name in READ
            if (value := query.get(name))
        }
        verdict = given.get("verdict", "")
        if verdict and verdict not in VERDICTS:
            raise AddressError(f"verdict is {', '.join(VERDICTS)}, not '{verdict}'")
        sort = given.get("sort", NEWEST)
        order = given.get("order", "down" if sort == NEWEST else "up")
        if order not in ("up", "down"):
            raise AddressError(f"order is up or down, not '{order}'")
        places = {
            name: ListPosition.read(given[name]) for name in ("after", "before") if name in given
        }
        return cls(
            {name: "" if given[name] == "-" else given[name] for name in SAME if name in given},
            {name: given[name] for name in WITHIN if name in given},
            verdict,
            _steps(given["step"]) if "step" in given else None,
            given.get("text", ""),
            sort,
            order == "down",
            places.get("after"),
            places.get("before"),
        )

    @property
    def query(self) -> dict[str, str]:
        """The list as the query of an address; what is not set is left out."""
        found = {name: value or "-" for name, value in self.same.items()} | dict(self.within)
        found |= {"verdict": self.verdict} if self.verdict else {}
        if self.steps is not None:
            low, high = self.steps
            found["step"] = str(low) if low == high else f"{low}-{high}"
        found |= {"text": self.text} if self.text else {}
        found |= {"sort": self.sort} if self.sort != NEWEST else {}
        if self.descending != (self.sort == NEWEST):
            found["order"] = "down" if self.descending else "up"
        found |= {"after": str(self.after)} if self.after else {}
        found |= {"before": str(self.before)} if self.before else {}
        return found

    @property
    def filtered(self) -> bool:
        return bool(self.same or self.within or self.verdict or self.steps or self.text)

    def at(
        self, after: ListPosition | None = None, before: ListPosition | None = None
    ) -> ListQuery:
        """The same list from another place."""
        return replace(self, after=after, before=before)


@dataclass(frozen=True, slots=True)
class SqlStatement:
    """A list as SQL over the table `columns`; `column` is what it is sorted by."""

    column: str
    where: str
    values: tuple[Any, ...]
    order: str
    backwards: bool

    @classmethod
    def of(cls, asked: ListQuery, measures: Mapping[str, str]) -> SqlStatement:
        """The statement for a list. Raises AddressError for an order that the run does not have."""
        column = SORTS.get(asked.sort) or measures.get(asked.sort)
        if column is None:
            known = ", ".join(dict.fromkeys((*SORTS, *measures)))
            raise AddressError(f"the run has no '{asked.sort}' to sort by; it has {known}")
        clauses = list(_filters(asked))
        if (place := asked.before or asked.after) is not None:
            clauses.append(_beyond(column, place, asked))
        where = " AND ".join(f"({clause})" for clause, _ in clauses) or "1"
        values = tuple(value for _, each in clauses for value in each)
        backwards = asked.before is not None
        way = "DESC" if asked.descending != backwards else "ASC"
        nulls = "LAST" if not backwards else "FIRST"
        order = f"{column} {way} NULLS {nulls}, id {way}"
        return cls(column, where, values, order, backwards)


def _filters(asked: ListQuery) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for name, value in asked.same.items():
        yield f"{name} = ?", (value,)
    for name, value in asked.within.items():
        yield f"instr(lower({WITHIN[name]}), lower(?))", (value,)
    if asked.verdict:
        yield VERDICTS[asked.verdict], ()
    if asked.steps is not None:
        yield "step BETWEEN ? AND ?", asked.steps


def _beyond(column: str, place: ListPosition, asked: ListQuery) -> tuple[str, tuple[Any, ...]]:
    """What comes behind a place, or before it; undefined values come last in either order."""
    backwards = asked.before is not None
    sign = "<" if asked.descending != backwards else ">"
    if place.value is None:
        known = f"{column} IS NOT NULL OR " if backwards else ""
        return f"{known}({column} IS NULL AND id {sign} ?)", (place.id,)
    unknown = "" if backwards else f" OR {column} IS NULL"
    return (
        f"{column} {sign} ? OR ({column} = ? AND id {sign} ?){unknown}",
        (place.value, place.value, place.id),
    )


def written(key: Key) -> str:
    """An episode's key for an address, as in "eval~trained~~0~clinic:xs:0:test:7~0"."""
    return "~".join(str(part).replace("%", "%25").replace("~", "%7E") for part in key)


def key_of(text: str) -> Key:
    """The key that `written` wrote; raises AddressError for anything else."""
    parts = [unquote(part) for part in _text("episode", text, POSITION).split("~")]
    try:
        phase, doctor, stage, step, case, sample = parts
        return phase, doctor, stage, _small(int(step)), case, _small(int(sample))
    except ValueError:
        raise AddressError(
            f"'{text[:80]}' names no episode: it needs {', '.join(KEY)}, joined by ~"
        ) from None


def address(path: str, query: Mapping[str, Any] | None = None) -> str:
    """A path of ours with a query; both are escaped."""
    asked = urlencode(query or {}, doseq=True, safe="~:/,[]", quote_via=quote)
    return quote(path) + (f"?{asked}" if asked else "")


def _text(name: str, value: str, longest: int = LONGEST) -> str:
    if len(value) > longest:
        raise AddressError(f"{name} has {len(value):,} characters; at most {longest} are read")
    return value


def _steps(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"\s*(\d{1,12})\s*(?:[-–]\s*(\d{1,12})\s*)?", text, re.ASCII)
    if found is None:
        raise AddressError(f"step is a number or a range such as 10-20, not '{text[:40]}'")
    low, high = int(found[1]), int(found[2] or found[1])
    return min(low, high), max(low, high)


def _small(number: int) -> int:
    """A number that SQLite can hold; raises ValueError for others."""
    if abs(number) >= 2**63:
        raise ValueError(number)
    return number
