"""An index behind Search-R1's `/retrieve`, for rollout workers in other programs or machines.

POST /retrieve {"queries": […], "topk": 3, "return_scores": true} → {"result": [[{"document": {"id",
"contents"}, "score"}]]}. GET /healthz says that the server runs, /readyz that the index is open;
/metrics has counts in Prometheus' text form. Only requests that use an address or the server's own
name are answered. So a web page in somebody's browser, which uses another name, learns nothing.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, ValidationError

from workup.core.case import Passage
from workup.core.errors import WorkupError
from workup.core.extras import wanted
from workup.core.shapes import first_problem
from workup.retrieval import words
from workup.retrieval.batching import BatchedRetriever
from workup.retrieval.index import Index
from workup.retrieval.remote import contents

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send
    from uvicorn import Server

LIVES = "/healthz", "/readyz", "/metrics"
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper ends of the histogram of response times, in seconds."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may ask, and how much is answered at once.

    More is refused (408, 413, 422, 503). `head` and `body` are the seconds in which these parts of
    a request have to arrive. At most `waiting` connections may be open without a whole request.
    `sent` limits the bytes of all bodies that are arriving. `passages` limits the passages of one
    answer.
    """

    queries: int = 512
    topk: int = 100
    passages: int = 12_800  # 100 for each search that `BatchedRetriever` sends at once
    bytes: int = 8 * 2**20
    requests: int = 256
    default_topk: int = 3
    head: float = 10.0
    body: float = 30.0
    waiting: int = 512
    sent: int = 256 * 2**20


def _query(value: Any) -> Any:
    """A string as it is searched: half a surrogate pair in it is no reason to refuse its batch."""
    return words.query(value) if isinstance(value, str) else value


class SearchRequest(BaseModel):
    """The body of a request to /retrieve; a `topk` of 0 or none takes the server's own."""

    model_config = ConfigDict(extra="ignore")

    queries: Annotated[list[Annotated[str, BeforeValidator(_query)]], FailFast()]
    topk: int | None = Field(None, ge=0)
    return_scores: bool = False


@dataclass
class Figures:
    """The counts of /metrics."""

    statuses: Counter[int] = field(default_factory=Counter)
    slower: Counter[float] = field(default_factory=Counter)
    queries: int = 0
    passages: int = 0
    seconds: float = 0.0
    inside: int = 0
    arriving: int = 0

    def text(self) -> str:
        """Prometheus' text form."""
        count = sum(self.statuses.values())
        lines = ["# TYPE workup_retrieval_requests_total counter"]
        lines += [
            f'workup_retrieval_requests_total{{status="{status}"}} {n}'
            for status, n in sorted(self.statuses.items())
        ]
        lines += [
            "# TYPE workup_retrieval_queries_total counter",
            f"workup_retrieval_queries_total {self.queries}",
        ]
        lines += [
            "# TYPE workup_retrieval_in_flight gauge",
            f"workup_retrieval_in_flight {self.inside}",
        ]
        lines += ["# TYPE workup_retrieval_arriving_bytes gauge"]
        lines += [f"workup_retrieval_arriving_bytes {self.arriving}"]
        lines += [
            "# TYPE workup_retrieval_passages gauge",
            f"workup_retrieval_passages {self.passages}",
        ]
        lines += ["# TYPE workup_retrieval_seconds histogram"]
        lines += [
            f'workup_retrieval_seconds_bucket{{le="{bound}"}} {count - self.slower[bound]}'
            for bound in BOUNDS
        ]
        lines += [
            f'workup_retrieval_seconds_bucket{{le="+Inf"}} {count}',
            f"workup_retrieval_seconds_sum {self.seconds:.6f}",
        ]
        return "\n".join([*lines, f"workup_retrieval_seconds_count {count}", ""])

    def note(self, status: int, seconds: float) -> None:
        self.statuses[status] += 1
        self.seconds += seconds
        self.slower.update(bound for bound in BOUNDS if seconds > bound)


class _Refused(Exception):
    """A request that is not answered: status and reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Service:
    """Answers the requests.

    `load` opens the index, in the background while the server already answers /readyz.
    """

    def __init__(self, load: Callable[[], Index], limits: Limits = Limits()) -> None:
        self.limits = limits
        self._load = load
        self._library: BatchedRetriever | None = None
        self.figures = Figures()

    async def open(self, report: Callable[[Exception | None], None]) -> None:
        """Opens the index; `report` gets None when it is open, or the reason why it is not."""
        try:
            index = await asyncio.to_thread(self._load)
        except Exception as error:
            report(error)
            return
        self._library = BatchedRetriever(index.find)
        self.figures.passages = len(index)
        report(None)

    async def retrieve(self, request: Request) -> Response:
        """POST /retrieve."""
        responses = wanted("starlette.responses")
        answer = responses.JSONResponse
        begun = time.perf_counter()
        try:
            content = await self._answer(request)
            response = responses.Response(content, media_type="application/json")
        except _Refused as refusal:
            headers = {"Retry-After": "1"} if refusal.status == 503 else None
            response = answer({"detail": str(refusal)}, refusal.status, headers)
        except WorkupError as error:
            response = answer({"detail": str(error)}, 500)
        self.figures.note(response.status_code, time.perf_counter() - begun)
        return response  # type: ignore[no-any-return]

    async def _answer(self, request: Request) -> bytes:
        if self._library is None:
            raise _Refused(503, "the index is being opened")
        asked = self._checked(await self._body(request))
        # A request has a place only when it is complete; an incomplete one would keep it forever.
        if self.figures.inside >= self.limits.requests:
            raise _Refused(503, f"{self.limits.requests} requests are waiting already")
        k = asked.topk or self.limits.default_topk
        if len(asked.queries) * k > self.limits.passages:
            most = self.limits.passages
            raise _Refused(
                422,
                f"queries: {len(asked.queries)} with {k} passages each, at most "
                f"{most} passages in one answer",
            )
        self.figures.queries += len(asked.queries)
        self.figures.inside += 1
        try:
            found = await asyncio.gather(
                *(self._library.search(query, k) for query in asked.queries)
            )
        finally:
            self.figures.inside -= 1
        # A large answer takes long to write: other requests have their turn meanwhile.
        return await asyncio.to_thread(_written, found, asked.return_scores)

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        try:
            async for chunk in request.stream():
                body += chunk
                self.figures.arriving += len(chunk)
                if len(body) > self.limits.bytes:
                    raise _Refused(413, f"more than {self.limits.bytes} bytes")
                if self.figures.arriving > self.limits.sent:
                    raise _Refused(503, "too much is being sent at once")
        except wanted("starlette.requests").ClientDisconnect as error:
            raise _Refused(408, "the request did not come whole") from error
        finally:
            self.figures.arriving -= len(body)
        return bytes(body)

    def _checked(self, body: bytes) -> SearchRequest:
        try:
            # Not pydantic's own parser: it refuses the whole text for one character of one string.
            asked = SearchRequest.model_validate(json.loads(body.decode("utf-8", "replace")))
        except ValidationError as error:
            where, problem = first_problem(error)
            raise _Refused(422, f"{where or 'body'}: {problem}") from error
        except (ValueError, RecursionError) as error:
            raise _Refused(422, f"body: no JSON ({str(error)[:100]})") from error
        if len(asked.queries) > self.limits.queries:
            raise _Refused(
                422, f"queries: {len(asked.queries)}, at most {self.limits.queries} in one request"
            )
        if asked.topk and asked.topk > self.limits.topk:
            raise _Refused(422, f"topk: {asked.topk}, at most {self.limits.topk}")
        return asked

    async def lives(self, request: Request) -> Response:
        """GET /healthz, /readyz and /metrics."""
        plain = wanted("starlette.responses").PlainTextResponse
        if request.url.path == "/metrics":
            return plain(self.figures.text())  # type: ignore[no-any-return]
        ready = request.url.path == "/healthz" or self._library is not None
        return plain("ok\n" if ready else "the index is being opened\n", 200 if ready else 503)  # type: ignore[no-any-return]


def _written(found: Sequence[Sequence[Passage]], scored: bool) -> bytes:
    """The answer as JSON, made query by query: `json` lets no other thread run within a call."""
    results = []
    for passages in found:
        hits: list[dict[str, Any]] = []
        for passage in passages:
            document = {
                "id": passage.id,
                "contents": contents(passage),
                "title": passage.title,
                "text": passage.text,
            }
            hits.append({"document": document, "score": passage.score} if scored else document)
        results.append(json.dumps(hits, ensure_ascii=False, allow_nan=False))
    return f'{{"result": [{", ".join(results)}]}}'.encode()


def application(
    service: Service,
    report: Callable[[Exception | None], None] = lambda failure: None,
    names: Collection[str] = (),
) -> ASGIApp:
    """The service as an ASGI application.

    It answers requests that use one of `names`, an address or "localhost".
    """
    route = wanted("starlette.routing").Route

    @asynccontextmanager
    async def opening(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(service.open(report))
        yield
        task.cancel()

    routes = [
        route("/retrieve", service.retrieve, methods=["POST"]),
        *(route(path, service.lives) for path in LIVES),
    ]
    return _called(
        wanted("starlette.applications").Starlette(routes=routes, lifespan=opening),
        {"localhost", socket.gethostname().lower(), *(name.lower() for name in names)},
    )


def _called(app: ASGIApp, names: Collection[str]) -> ASGIApp:
    """`app` for requests whose Host is an address or one of `names`; the others get status 421."""
    refused = wanted("starlette.responses").PlainTextResponse

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
            if not known_host(host, names):
                said = f"this server is not called {host[:200]!r}; --name lets it be\n"
                await refused(said, 421)(scope, receive, send)
                return
        await app(scope, receive, send)

    return called


def known_host(host: str, names: Collection[str]) -> bool:
    """Whether a Host header holds an IP address or one of `names`, with or without a port.

    Names are in lower case. An address is safe: a page that reaches the server through a name of
    its own sends that name.
    """
    try:
        called = urlsplit(f"//{host}").hostname or ""
        if called in names:
            return True
        ip_address(called)
    except ValueError:
        return False
    return True


def server(
    service: Service,
    report: Callable[[Exception | None], None] = lambda failure: None,
    names: Collection[str] = (),
) -> Server:
    """The service as a uvicorn server, on sockets that `run` gets."""
    wanted("uvicorn")
    from workup.retrieval import connections

    limits = service.limits
    app = application(service, report, names)
    return connections.server(app, limits.head, limits.body, limits.waiting)


def serve(
    load: Callable[[], Index],
    host: str,
    port: int,
    limits: Limits = Limits(),
    names: Collection[str] = (),
) -> None:
    """Serves until interrupted; port 0 takes a free one.

    Raises what opening the index raised, and UserError where the address is taken.

    Says on standard error where it listens, once the index is open. `names` are what the server may
    be called besides its addresses, "localhost", the machine's name and `host`.
    """
    failures: list[Exception] = []

    def report(failure: Exception | None) -> None:
        if failure is None:
            print(f"http://{place}:{sock.getsockname()[1]}/retrieve", file=sys.stderr, flush=True)
        else:
            failures.append(failure)
            running.should_exit = True

    running = server(Service(load, limits), report, (host, *names))
    place = f"[{host}]" if ":" in host else host
    from workup.retrieval.connections import listening

    with listening(host, port) as sock:
        running.run(sockets=[sock])
    for failure in failures:
        raise failure
