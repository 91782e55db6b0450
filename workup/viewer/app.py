"""The pages over HTTP: routes, templates, and the server that `workup view` runs."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Collection, Mapping
from functools import cache
from importlib import resources
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from workup.errors import UserError
from workup.extras import wanted
from workup.viewer import pages
from workup.viewer.asking import AddressError
from workup.viewer.guard import TOKEN, Gate
from workup.viewer.pages import MissingError
from workup.viewer.shown import Shown

if TYPE_CHECKING:
    from jinja2 import Environment
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp
    from uvicorn import Server

HEAD, BODY, WAITING = 10.0, 10.0, 64  # seconds for parts of a request; unfinished requests at once
ASSETS = {"style.css": "text/css", "view.js": "text/javascript"}


class Pages:
    """The requests' other side."""

    def __init__(self, shown: Mapping[str, Shown]) -> None:
        self.shown = shown

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

    def missing(self, request: Request, error: Exception) -> Response:
        return self._answer("told.html", lambda: {"told": "there is no such page"}, 404)

    def asset(self, request: Request) -> Response:
        name = request.url.path.lstrip("/")
        return wanted("starlette.responses").Response(asset(name), media_type=ASSETS[name])  # type: ignore[no-any-return]

    def _run(self, request: Request) -> Shown:
        name = request.path_params["run"]
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
        try:
            text = render(template, **content())
        except MissingError as error:
            text, status = render("told.html", told=str(error)), 404
        except AddressError as error:
            text, status = render("told.html", told=str(error)), 400
        except UserError as error:
            text, status = render("told.html", told=str(error)), 403
        return wanted("starlette.responses").HTMLResponse(text, status)  # type: ignore[no-any-return]


def render(template: str, **content: Any) -> str:
    """A page from one of our templates; all text is escaped."""
    return _templates().get_template(template).render(**content)


@cache
def _templates() -> Environment:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    return Environment(
        # The report's parts of pages are ours too.
        loader=ChoiceLoader([PackageLoader("workup.viewer"), PackageLoader("workup.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def asset(name: str) -> str:
    """A file of ours; the style is the report's and what these pages add to it."""
    own = resources.files("workup.viewer").joinpath(f"templates/{name}").read_text("utf-8")
    if name != "style.css":
        return own
    return resources.files("workup.report").joinpath(f"templates/{name}").read_text("utf-8") + own


def application(shown: Mapping[str, Shown], gate: Gate) -> ASGIApp:
    """The pages as an ASGI application behind the gate."""
    route = wanted("starlette.routing").Route
    answers = Pages(shown)
    for name in _templates().list_templates(extensions=["html"]):
        _templates().get_template(name)  # compiled now: nobody waits for it at the first page
    routes = [
        route("/", answers.runs),
        route("/run/{run}", answers.overview),
        route("/run/{run}/episodes", answers.episodes),
        route("/run/{run}/episode", answers.episode),
        route("/run/{run}/case", answers.case),
        *(route(f"/{name}", answers.asset) for name in ASSETS),
    ]
    app = wanted("starlette.applications").Starlette(
        routes=routes, exception_handlers={404: answers.missing}
    )
    return gate.guarded(app)


def server(app: ASGIApp) -> Server:
    """`app` as a uvicorn server, on sockets that `run` gets."""
    uvicorn = wanted("uvicorn")
    from workup.retrieval.connections import bounded

    return uvicorn.Server(  # type: ignore[no-any-return]
        uvicorn.Config(
            app,
            http=bounded(HEAD, BODY, WAITING),
            ws="none",
            log_level="error",
            access_log=False,
            server_header=False,
        )
    )


def loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def listening(host: str, port: int) -> socket.socket:
    """A socket at the address; port 0 takes a free one.

    Raises UserError where none can be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port (0 takes a "
            "free one)"
        ) from error


def serve(shown: Mapping[str, Shown], host: str, port: int, names: Collection[str] = ()) -> None:
    """Serves until interrupted, and prints the link with its token.

    Raises UserError where the address is taken, and for restricted runs on an address that other
    machines reach.
    """
    if not loopback(host) and any(each.restricted and not each.withheld for each in shown.values()):
        raise UserError(
            f"restricted runs are shown to this machine alone, and others reach {host}; leave "
            "--host out"
        )
    wanted("starlette")
    called = {"localhost", host.lower(), *(name.lower() for name in names)}
    if not loopback(host):
        called.add(socket.gethostname().lower())
    with listening(host, port) as sock:
        taken = sock.getsockname()[1]
        gate = Gate.new(taken, called)
        running = server(application(shown, gate))
        place = f"[{host}]" if ":" in host else host
        print(f"http://{place}:{taken}/?{TOKEN}={gate.token}", flush=True)
        print("Ctrl-C ends it. Whoever has the link can read these runs.", file=sys.stderr)
        running.run(sockets=[sock])
