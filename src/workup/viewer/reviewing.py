"""The pages of a review over HTTP: one item at a time, for reviewers with a link each.

The token of the request alone says who writes. A form names its reviewer as well, so that a page
which was opened by one link is not sent by another that was opened since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from workup.core.errors import UserError
from workup.runs.words import duration
from workup.studies.review.answers import LONGEST_NOTE, AnswerEntry, Standing
from workup.studies.review.folder import Review
from workup.studies.review.form import SIDES
from workup.viewer import blind
from workup.viewer.app import ServerAddress, assets, compile_templates, render
from workup.viewer.guard import READER, WRITING

LARGEST = 65_536  # bytes of a form
URLENCODED = "application/x-www-form-urlencoded"


class RefusedError(UserError):
    """A form that is not taken, and why; `status` is HTTP's."""

    def __init__(self, told: str, status: int) -> None:
        super().__init__(told)
        self.status = status


@dataclass(frozen=True, slots=True)
class Sent:
    """A form as it came."""

    values: Mapping[str, str]

    @classmethod
    async def read(cls, request: Request) -> Sent:
        """The form in a request.

        Raises RefusedError for one that is too large, of another type, or another reviewer's.
        """
        if request.headers.get("content-type", "").partition(";")[0].strip() != URLENCODED:
            raise RefusedError(f"a form is sent as {URLENCODED}", 415)
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > LARGEST:
                raise RefusedError(f"a form has at most {LARGEST:,} bytes", 413)
        try:
            pairs = parse_qsl(
                body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=200
            )
        except ValueError:
            raise RefusedError("the form cannot be read", 400) from None
        found = cls(dict(pairs))
        if found.values.get("as") != request.scope[READER]:
            raise RefusedError(
                "this browser has opened another reviewer's link since; open your own link again",
                409,
            )
        return found

    @property
    def note(self) -> str:
        note = self.values.get("note", "").replace("\r\n", "\n").strip()
        if len(note) > LONGEST_NOTE:
            raise RefusedError(f"a note has at most {LONGEST_NOTE:,} characters", 400)
        return note

    def answers(self, review: Review) -> tuple[dict[str, str | None], list[str]]:
        """Field → what was said, and the fields of which nothing was said.

        Raises RefusedError for an answer that the question does not have.
        """
        given: dict[str, str | None] = {}
        missing = []
        for field, _, question in blind.fields(review):
            value = self.values.get(field)
            if value is None:
                missing.append(field)
            elif value and value not in question.answers:
                raise RefusedError(f"'{value[:80]}' is no answer to '{question.ask}'", 400)
            else:
                given[field] = value or None
        return given, missing


class ReviewPages:
    """Answers the requests."""

    def __init__(self, review: Review) -> None:
        self.review = review

    async def start(self, request: Request) -> Response:
        reader, standing = await self._standing(request)
        items = [
            (number, _state(standing.entries.get(number)))
            for number in range(1, len(self.review.items) + 1)
        ]
        content = {
            "items": items,
            "open": self._next(standing, 0),
            "asked": list(blind.asked(self.review, {})),
            "pairs": self.review.manifest.pairs,
            "truth": self.review.manifest.truth,
        }
        return _page("review.html", self._head(reader, standing) | content)

    async def item(self, request: Request) -> Response:
        number = self._number(request)
        reader, standing = await self._standing(request)
        entry = standing.entries.get(number)
        content = await self._item(number, entry.answers if entry else {})
        head = self._head(reader, standing) | {
            "note": entry.note if entry else "",
            "state": _state(entry),
            "told": "",
        }
        return _page("item.html", head | content)

    async def save(self, request: Request) -> Response:
        """Keeps an answer or a skip, and shows the next item."""
        number, sent = self._number(request), await Sent.read(request)
        reader, note, store = request.scope[READER], sent.note, self.review.answers
        if sent.values.get("act") == "skip":
            await run_in_threadpool(store.skip, reader, number, note)
        else:
            given, missing = sent.answers(self.review)
            if missing:
                return await self._incomplete(request, number, sent, missing)
            await run_in_threadpool(store.answer, reader, number, given, note)
        _, standing = await self._standing(request)
        following = self._next(standing, number)
        return _redirect(f"/item/{following}" if following else "/")

    async def undo(self, request: Request) -> Response:
        """Takes the last entry back, and shows its item.

        Raises RefusedError for a form that names no entry.
        """
        sent = await Sent.read(request)
        entry = sent.values.get("entry", "")
        if not (entry.isascii() and entry.isdigit() and len(entry) < 16):
            raise RefusedError("the form names no entry", 400)
        item = await run_in_threadpool(self.review.answers.undo, request.scope[READER], int(entry))
        return _redirect(f"/item/{item}" if item else "/")

    async def missing(self, request: Request, error: Exception) -> Response:
        return _page("declined.html", {"told": "there is no such page"}, 404)

    async def refused(self, request: Request, error: Exception) -> Response:
        status = error.status if isinstance(error, RefusedError) else 500
        return _page("declined.html", {"told": str(error)}, status)

    async def _incomplete(
        self, request: Request, number: int, sent: Sent, missing: Sequence[str]
    ) -> Response:
        """The same page with all that was filled in; nothing was kept."""
        reader, standing = await self._standing(request)
        given, _ = sent.answers(self.review)
        count = len(missing)
        told = "1 answer is missing" if count == 1 else f"{count} answers are missing"
        give = "it" if count == 1 else "them"
        head = self._head(reader, standing) | {
            "note": sent.note,
            "state": _state(standing.entries.get(number)),
            "told": f"Not saved: {told}. Give {give}, choose “{blind.CANNOT}”, or skip the item.",
        }
        return _page("item.html", head | await self._item(number, given, missing), 400)

    async def _standing(self, request: Request) -> tuple[str, Standing]:
        reader = request.scope[READER]
        return reader, await run_in_threadpool(self.review.answers.standing, reader)

    def _number(self, request: Request) -> int:
        text = request.path_params["number"]
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
        if not 1 <= number <= len(self.review.items):
            raise RefusedError(f"there is no item {text[:20]}", 404)
        return number

    def _next(self, standing: Standing, behind: int) -> int | None:
        """The first item of which nothing was said, behind one or else from the start."""
        left = [n for n in range(1, len(self.review.items) + 1) if n not in standing.entries]
        return next((number for number in left if number > behind), left[0] if left else None)

    async def _item(
        self, number: int, given: Mapping[str, str | None], missing: Sequence[str] = ()
    ) -> dict[str, Any]:
        records = await run_in_threadpool(self.review.records, self.review.items[number - 1])
        names = SIDES if self.review.manifest.pairs else ("",)
        return {
            "number": number,
            "patient": blind.patient(self.review, records[0]),
            "sides": [
                blind.side(record, name) for record, name in zip(records, names, strict=True)
            ],
            "asked": list(blind.asked(self.review, given, missing=missing)),
            "longest": LONGEST_NOTE,
        }

    def _head(self, reader: str, standing: Standing) -> dict[str, Any]:
        """Who reviews, and how far they are."""
        total, done = len(self.review.items), len(standing.entries)
        left = (total - done) * standing.pace if standing.pace else None
        return {
            "reader": reader,
            "total": total,
            "done": done,
            "skipped": sum(entry.skipped for entry in standing.entries.values()),
            "left": f"about {duration(left)} left" if left else "",
            "last": standing.last.id if standing.last else None,
        }


def _state(entry: AnswerEntry | None) -> str:
    return "open" if entry is None else "skipped" if entry.skipped else "done"


def _page(template: str, content: Mapping[str, Any], status: int = 200) -> Response:
    text = render(template, **content)
    return HTMLResponse(text, status)


def _redirect(path: str) -> Response:
    return RedirectResponse(path, 303)


def application(review: Review) -> ASGIApp:
    """The pages as an ASGI application, which belongs behind a gate."""
    pages = ReviewPages(review)
    compile_templates()
    routes = [
        Route("/", pages.start),
        Route("/item/{number}", pages.item, methods=["GET"]),
        Route("/item/{number}", pages.save, methods=["POST"]),
        Route("/undo", pages.undo, methods=["POST"]),
        *assets(),
    ]
    return Starlette(
        routes=routes, exception_handlers={404: pages.missing, UserError: pages.refused}
    )


def serve_review(
    path: Path, names: Sequence[str], place: ServerAddress, *, restricted: bool
) -> None:
    """Serves until interrupted; prints a link for each reviewer, known ones and those in `names`.

    Raises UserError where there is no review or no reviewer, where the address is taken, and for
    restricted cases that are not asked for or that other machines would reach.
    """
    review = Review.open(path)
    if review.manifest.restricted:
        if not restricted:
            raise UserError(
                f"{path}: its cases are restricted; `--restricted` shows them to whoever may read "
                "them"
            )
        place.refuse_restricted("restricted cases are")
    for name in names:
        review.answers.admit(name)
    readers = review.answers.reviewers()
    if not readers:
        raise UserError(f"{path} has no reviewer yet: name one, as in --reviewer 'Dr Ada'")
    tokens = {token: name for name, token in readers.items()}
    told = "The links stay the same: who opens one writes in that reviewer's name."
    place.serve(application(review), tokens, WRITING, told)
