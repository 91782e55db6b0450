"""The pages over HTTP: routes, templates, and the server that `workup view` runs."""

from __future__ import annotations

import secrets
import socket
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from ipaddress import ip_address
from typing import Any, TypeVar

from jinja2 import Environment
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp
from uvicorn import Server

from workup.core.errors import UserError
from workup.report import rendering
from workup.retrieval import connections
from workup.runs.files import DamagedError
from workup.viewer import pages
from workup.viewer.asking import AddressError, address
from workup.viewer.documents import Comparisons, document
from workup.viewer.guard import DOCUMENT, READING, TOKEN, Gate
from workup.viewer.pages import MissingError
from workup.viewer.shown import ShownRun

# The kinds of reasons why there is no page, and HTTP's word for each; the first that fits counts.
STATUS: Mapping[type[UserError], int] = {
    MissingError: 404,
    AddressError: 400,
    DamagedError: 422,
    UserError: 403,
}
T = TypeVar("T")
HEAD, BODY, WAITING = 10.0, 10.0, 64  # seconds for parts of a request; unfinished requests at once
ASSETS = {
    "style.css": "text/css",
    "view.js": "text/javascript",
    "review.js": "text/javascript",
}


class ViewerPages:
    """Answers the requests."""

    def __init__(self, shown: Mapping[str, ShownRun]) -> None:
        self.shown = shown
        self.comparisons = Comparisons()

    def runs(self, request: Request) -> Response:
        return self._answer("runs.html", lambda: pages.runs(self.shown))

    def overview(self, request: Request) -> Response:
        return self._answer("run.html", lambda: pages.overview(self._run(request)))

    def episodes(self, request: Request) -> Response:
        query = dict(request.query_params)
        return self._answer("episodes.html", lambda: pages.episodes(self._run(request), query))

    def episode(self, request: Request) -> Response:
        query = dict(request.query_params)
        return self._answer("episode.html", lambda: pages.episode(self._run(request), query))

    def case(self, request: Request) -> Response:
        query, chosen = dict(request.query_params), request.query_params.getlist("show")
        return self._answer(
            "case.html",
            lambda: pages.case(self.shown, self._run(request).name, query, chosen),
        )

    def document(self, request: Request) -> Response:
        """The run's report, or a page of transcripts beside it."""
        page = request.path_params.get("page")
        return self._written(lambda: document(self._run(request), page))

    def compare(self, request: Request) -> Response:
        """Compares the runs that are asked for, and leads to the page."""
        names = list(dict.fromkeys(request.query_params.getlist("run")))

        def made() -> str:
            return self.comparisons.make([self._shown(name) for name in names])

        found = self._tried(made)
        if not isinstance(found, str):
            return found
        to = address(f"/compared/{found}/{Comparisons.PAGE}")
        return RedirectResponse(to, 303)

    def compared(self, request: Request) -> Response:
        """A page of a comparison that was made."""
        path = request.path_params
        return self._written(lambda: self.comparisons.page(path["key"], path["page"]))

    def missing(self, request: Request, error: Exception) -> Response:
        return self._answer("told.html", lambda: {"told": "there is no such page"}, 404)

    def _run(self, request: Request) -> ShownRun:
        return self._shown(request.path_params["run"])

    def _shown(self, name: str) -> ShownRun:
        if name not in self.shown:
            raise MissingError(f"no run called '{name[:200]}' is shown here")
        if self.shown[name].withheld:
            raise UserError(
                f"{name}: its cases are restricted; `workup view --restricted` shows them to "
                "whoever may read them"
            )
        return self.shown[name]

    def _answer(
        self, template: str, content: Callable[[], dict[str, Any]], status: int = 200
    ) -> Response:
        """A page, or one line that says why there is none."""
        found = self._tried(lambda: render(template, **content()))
        return found if not isinstance(found, str) else _html(found, status)

    def _written(self, content: Callable[[], bytes]) -> Response:
        """A page that was made as a file of its own, or one line that says why there is none."""
        found = self._tried(content)
        if not isinstance(found, bytes):
            return found
        return _html(found, 200, {"Content-Security-Policy": DOCUMENT})

    def _tried(self, content: Callable[[], T]) -> T | Response:
        try:
            return content()
        except UserError as error:
            status = next(code for kind, code in STATUS.items() if isinstance(error, kind))
            return _html(render("told.html", told=str(error)), status)


def _html(text: str | bytes, status: int, headers: Mapping[str, str] | None = None) -> Response:
    return HTMLResponse(text, status, headers)


def render(template: str, **content: Any) -> str:
    """A page from one of our templates; all text is escaped."""
    return _templates().get_template(template).render(**content)


@cache
def _templates() -> Environment:
    # The report's parts of pages are ours too.
    return rendering.environment("workup.viewer", "workup.report")


def compile_templates() -> None:
    """Compiles all templates, so that nobody waits for it at the first page."""
    for name in _templates().list_templates(extensions=["html"]):
        _templates().get_template(name)


def assets() -> list[Any]:
    """The routes of our files."""

    def answer(request: Request) -> Response:
        name = request.url.path.lstrip("/")
        return Response(asset(name), media_type=ASSETS[name])

    return [Route(f"/{name}", answer) for name in ASSETS]


@cache
def asset(name: str) -> str:
    """A file of ours; the style is the report's and what these pages add to it."""
    own = resources.files("workup.viewer").joinpath(f"templates/{name}").read_text("utf-8")
    if name != "style.css":
        return own
    return resources.files("workup.report").joinpath(f"templates/{name}").read_text("utf-8") + own


def application(shown: Mapping[str, ShownRun]) -> ASGIApp:
    """The pages as an ASGI application, which belongs behind a gate."""
    answers = ViewerPages(shown)
    compile_templates()
    routes = [
        Route("/", answers.runs),
        Route("/run/{run}", answers.overview),
        Route("/run/{run}/episodes", answers.episodes),
        Route("/run/{run}/episode", answers.episode),
        Route("/run/{run}/case", answers.case),
        Route("/run/{run}/report.html", answers.document),
        Route("/run/{run}/transcripts/{page}", answers.document),
        Route("/compare", answers.compare),
        Route("/compared/{key}/{page:path}", answers.compared),
        *assets(),
    ]
    return Starlette(routes=routes, exception_handlers={404: answers.missing})


def server(app: ASGIApp) -> Server:
    """`app` as a uvicorn server, on sockets that `run` gets."""
    return connections.server(app, HEAD, BODY, WAITING)


def loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server listens: port 0 takes a free one. `names` are what it is called besides."""

    host: str
    port: int
    names: Collection[str] = ()

    def refuse_restricted(self, what: str) -> None:
        """Raises UserError where other machines reach the server, with `what` as subject."""
        if not loopback(self.host):
            raise UserError(
                f"{what} shown to this machine alone, and others reach {self.host}; leave --host "
                "out"
            )

    def serve(
        self, app: ASGIApp, tokens: Mapping[str, str], methods: Collection[str], told: str
    ) -> None:
        """Serves until interrupted; prints the link of each token with whose it is, and `told`.

        Raises UserError where the address is taken.
        """
        called = {"localhost", self.host.lower(), *(name.lower() for name in self.names)}
        if not loopback(self.host):
            called.add(socket.gethostname().lower())
        with connections.listening(self.host, self.port) as sock:
            taken = sock.getsockname()[1]
            running = server(Gate(tokens, taken, called, methods).guarded(app))
            host = f"[{self.host}]" if ":" in self.host else self.host
            for token, name in tokens.items():
                link = f"http://{host}:{taken}/?{TOKEN}={token}"
                print(f"{link}  {name}".rstrip(), flush=True)
            print(f"Ctrl-C ends it. {told}", file=sys.stderr)
            running.run(sockets=[sock])


def serve(shown: Mapping[str, ShownRun], place: ServerAddress) -> None:
    """Serves until interrupted, and prints the link with its token.

    Raises UserError where the address is taken, and for restricted runs on an address that other
    machines reach.
    """
    if any(each.restricted and not each.withheld for each in shown.values()):
        place.refuse_restricted("restricted runs are")
    told = "Whoever has the link can read these runs."
    place.serve(application(shown), {secrets.token_urlsafe(24): ""}, READING, told)
