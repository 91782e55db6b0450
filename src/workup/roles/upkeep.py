"""The care of the cache of answers: what is in it, pruning, and export as JSON lines.

The ledger is never pruned: what was paid stays on record.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from workup.core.disk import whole_file
from workup.core.episode import Message
from workup.core.errors import CaseError, UserError, unknown
from workup.core.ports import Reply, Request
from workup.core.shapes import first_problem
from workup.roles.replies import DAY, CanonicalRequest, Replies, asked, clear_errors, insert

LONGEST = 1 << 26  # bytes of a line that is read in
PAGE = 500  # answers in memory at a time
YEAR_3000 = 32_503_680_000  # as a Unix time; what is later is taken for no time


@dataclass(frozen=True, slots=True)
class Shelf:
    """The answers of one role and model: how many, their bytes, and two Unix times.

    The times are those of the first answer made and the last one used.
    """

    role: str
    model: str
    entries: int
    size: int
    created: float
    used: float


@dataclass(frozen=True, slots=True)
class KeptReply:
    """One answer with its request, both as they are kept."""

    key: str
    created: float
    used: float
    size: int
    request: dict[str, Any]
    reply: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Which:
    """The answers of a role, of a model (None: of all), that were not used for `older` seconds.

    A use is noted at most once a day, so an age counts from a day after the last one that is.
    """

    role: str | None = None
    model: str | None = None
    older: float = 0.0

    def where(self) -> tuple[str, tuple[Any, ...]]:
        # Without an age no time is compared: another machine's clock may be ahead.
        clause, values = (
            ("WHERE used <= ?", [time.time() - self.older - DAY])
            if self.older
            else ("WHERE true", [])
        )
        named = {
            column: value
            for column, value in (("role", self.role), ("model", self.model))
            if value is not None
        }
        return clause + "".join(f" AND {column} = ?" for column in named), (
            *values,
            *named.values(),
        )


def shelves(replies: Replies) -> list[Shelf]:
    """What is in the cache, the largest first."""
    sums = "count(*), sum(size), min(created), max(used)"
    rows = replies.query(
        f"SELECT role, model, {sums} FROM replies GROUP BY role, model ORDER BY sum(size) DESC, "
        "role, model"
    )
    return [Shelf(*row) for row in rows]


def entry(replies: Replies, prefix: str) -> KeptReply:
    """The one answer whose key begins with `prefix`; UserError if there is none or several."""
    query = (
        "SELECT key, created, used, size, body, reply FROM replies JOIN requests USING (id) "
        "WHERE substr(key, 1, ?) = ? LIMIT 2"
    )
    rows = replies.query(query, (len(prefix), prefix.lower()))
    if len(rows) != 1:
        raise UserError(
            f"{'more than one' if rows else 'no'} answer in {replies.path} has a key that begins "
            f"with '{prefix}'"
        )
    found, created, used, size, request, reply = rows[0]
    return KeptReply(found, created, used, size, json.loads(request), json.loads(reply))


def prune(
    replies: Replies, which: Which, limit: int | None = None, *, dry: bool = False
) -> tuple[int, int]:
    """Deletes the answers that `which` names. Returns how many, and how many bytes.

    With `limit` it deletes only those unused for longest, until the whole cache holds at most
    `limit` bytes. With `dry` it deletes nothing and returns what it would have deleted.
    """
    replies.flush()
    check(replies, which)
    clause, values = which.where()
    found = replies.query(f"SELECT key, size FROM replies {clause} ORDER BY used, key", values)
    if limit is None:
        doomed = found
    else:
        ((total,),) = replies.query("SELECT coalesce(sum(size), 0) FROM replies")
        doomed = _until(found, total - limit)
    if doomed and not dry:
        with replies.transaction() as connection:
            connection.executemany(
                "DELETE FROM replies WHERE key = ?", [(key,) for key, _ in doomed]
            )
        replies.shrink()
    return len(doomed), sum(size for _, size in doomed)


def check(replies: Replies, which: Which) -> None:
    """Raises UserError where `which` names a role or a model of which nothing is kept."""
    for kind, name in (("role", which.role), ("model", which.model)):
        if name is not None:
            known = [value for (value,) in replies.query(f"SELECT DISTINCT {kind} FROM replies")]
            if name not in known:
                raise unknown(f"{kind} in {replies.path}", name, known)


def export(replies: Replies, file: Path, which: Which) -> int:
    """Writes one JSON object per line, in the order of their keys; returns how many.

    An object has `request` (in canonical form), `reply` and `created`. The file is readable by its
    owner alone; it is whole or absent. Raises UserError for a place that cannot be written.
    """
    check(replies, which)
    count = 0
    if file.is_dir() or not file.parent.is_dir():
        problem = "is a folder" if file.is_dir() else f"there is no folder {file.parent}"
        raise UserError(f"{file}: {problem}; name the file to write")
    with (
        clear_errors(file),
        whole_file(file, private=True) as draft,
        draft.open("w", encoding="utf-8", newline="\n") as out,
    ):
        for body, reply, created in _pages(replies, which):
            out.write(f'{{"request": {body}, "reply": {reply}, "created": {created!r}}}\n')
            count += 1
    return count


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    model: str
    role: str
    version: str
    messages: list[Message]  # as strict as this model
    answer_schema: str = Field(alias="schema")
    max_tokens: int
    temperature: float
    sample: int
    run: str = ""

    def asked(self) -> CanonicalRequest:
        sizes = (self.max_tokens, self.temperature, self.sample)
        messages = tuple(self.messages)
        request = Request(self.role, self.version, messages, self.answer_schema, *sizes)
        return asked(self.model, request, self.run)


class _Reply(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    text: str
    prompt_tokens: int = Field(0, ge=0)
    completion_tokens: int = Field(0, ge=0)
    truncated: bool = False


class _ExportedReply(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    request: _Request
    reply: _Reply
    created: float = Field(ge=0, lt=YEAR_3000, allow_inf_nan=False)


def look(file: Path) -> None:
    """Raises UserError for a folder and for a file without a line, and as its first line does."""
    if file.is_dir():
        raise UserError(f"{file} is a folder; name a file that `workup cache export` wrote")
    if next(_lines(file), None) is None:
        raise UserError(f"{file} is empty; `workup cache export FILE` writes one with answers")


def take_in(replies: Replies, file: Path) -> tuple[int, int]:
    """Adds the answers of an exported file; nothing is charged, and what is kept already stays.

    Returns how many were new and how many there were. Raises CaseError, with nothing added, where a
    line is not as `export` writes it.
    """
    total, new = sum(1 for _ in _lines(file)), 0
    with replies.transaction() as connection:
        for line in _lines(file):
            reply = Reply(**line.reply.model_dump())
            new += insert(connection, line.request.asked(), reply, line.created)
    return new, total


def _lines(file: Path) -> Iterator[_ExportedReply]:
    try:
        with file.open("rb") as lines:
            number = 0
            while line := lines.readline(LONGEST):
                number += 1
                yield _parse(line, file, number)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}") from error


def _parse(line: bytes, file: Path, number: int) -> _ExportedReply:
    try:
        return _ExportedReply.model_validate_json(line)
    except ValidationError as error:
        field, problem = first_problem(error)
        raise CaseError(problem, file=file, line=number, field=field or None) from error


def _pages(replies: Replies, which: Which) -> Iterator[tuple[str, str, float]]:
    clause, values = which.where()
    last = ""
    while rows := replies.query(
        (
            f"SELECT body, reply, created, key FROM replies JOIN requests USING (id) {clause} "
            f"AND key > ? ORDER BY key LIMIT {PAGE}"
        ),
        (*values, last),
    ):
        yield from (row[:3] for row in rows)
        last = rows[-1][3]


def _until(found: list[tuple[Any, ...]], surplus: int) -> list[tuple[Any, ...]]:
    """The first of `found` (key, size) that together make up `surplus` bytes."""
    doomed = []
    for key, size in found:
        if surplus <= 0:
            break
        doomed.append((key, size))
        surplus -= size
    return doomed
