"""An index behind Search-R1's `/retrieve`, for rollout workers on other machines or in other programs.

POST /retrieve {"queries": […], "topk": 3, "return_scores": true} → {"result": [[{"document": {"id", "contents"}, "score"}]]};
GET /healthz says that it lives, /readyz that the index is open, /metrics counts in Prometheus' text form.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from workup.errors import UserError, WorkupError
from workup.extras import wanted
from workup.ports import Passage
from workup.retrieval.batching import Together
from workup.retrieval.index import Index
from workup.retrieval.remote import contents

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

LIVES = "/healthz", "/readyz", "/metrics"
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds: the upper ends of the histogram of response times."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may ask, and how much is answered at once; more is refused with status 413, 422 or 503."""

    queries: int = 512
    topk: int = 100
    bytes: int = 8 * 2**20
    requests: int = 256
    default_topk: int = 3


class Asked(BaseModel):
    """The body of a request to /retrieve."""

    model_config = ConfigDict(extra="ignore")

    queries: list[str]
    topk: int | None = Field(None, ge=1)
    return_scores: bool = False


@dataclass
class Figures:
    """What /metrics tells."""

    statuses: Counter[int] = field(default_factory=Counter)
    slower: Counter[float] = field(default_factory=Counter)
    queries: int = 0
    passages: int = 0
    seconds: float = 0.0
    inside: int = 0

    def text(self) -> str:
        """Prometheus' text form."""
        count = sum(self.statuses.values())
        lines = ["# TYPE workup_retrieval_requests_total counter"]
        lines += [f'workup_retrieval_requests_total{{status="{status}"}} {n}' for status, n in sorted(self.statuses.items())]
        lines += ["# TYPE workup_retrieval_queries_total counter", f"workup_retrieval_queries_total {self.queries}"]
        lines += ["# TYPE workup_retrieval_in_flight gauge", f"workup_retrieval_in_flight {self.inside}"]
        lines += ["# TYPE workup_retrieval_passages gauge", f"workup_retrieval_passages {self.passages}"]
        lines += ["# TYPE workup_retrieval_seconds histogram"]
        lines += [f'workup_retrieval_seconds_bucket{{le="{bound}"}} {count - self.slower[bound]}' for bound in BOUNDS]
        lines += [f'workup_retrieval_seconds_bucket{{le="+Inf"}} {count}', f"workup_retrieval_seconds_sum {self.seconds:.6f}"]
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
    """The requests' other side. `load` opens the index, in the background while the server already answers /readyz."""

    def __init__(self, load: Callable[[], Index], limits: Limits = Limits()) -> None:
        self._load, self._limits = load, limits
        self._library: Together | None = None
        self.failure: Exception | None = None
        self.figures = Figures()

    async def open(self, ended: Callable[[], None]) -> None:
        """Opens the index; when that fails, `failure` says why and `ended` is called."""
        try:
            index = await asyncio.to_thread(self._load)
        except Exception as error:
            self.failure = error
            ended()
            return
        self._library = Together(index.find)
        self.figures.passages = len(index)

    async def retrieve(self, request: Request) -> Response:
        """POST /retrieve."""
        answer = wanted("starlette.responses").JSONResponse
        begun = time.perf_counter()
        self.figures.inside += 1
        try:
            response = answer({"result": await self._answer(request)})
        except _Refused as refusal:
            headers = {"Retry-After": "1"} if refusal.status == 503 else None
            response = answer({"detail": str(refusal)}, refusal.status, headers)
        except WorkupError as error:
            response = answer({"detail": str(error)}, 500)
        finally:
            self.figures.inside -= 1
        self.figures.note(response.status_code, time.perf_counter() - begun)
        return response  # type: ignore[no-any-return]

    async def _answer(self, request: Request) -> list[list[dict[str, Any]]]:
        if self._library is None:
            raise _Refused(503, "the index is being opened")
        if self.figures.inside > self._limits.requests:
            raise _Refused(503, f"{self._limits.requests} requests are waiting already")
        asked = self._checked(await self._body(request))
        k = asked.topk or self._limits.default_topk
        self.figures.queries += len(asked.queries)
        found = await asyncio.gather(*(self._library.search(query, k) for query in asked.queries))
        return [[_hit(passage, asked.return_scores) for passage in passages] for passages in found]

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self._limits.bytes:
                raise _Refused(413, f"more than {self._limits.bytes} bytes")
        return bytes(body)

    def _checked(self, body: bytes) -> Asked:
        try:
            asked = Asked.model_validate_json(body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise _Refused(422, f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}") from error
        if len(asked.queries) > self._limits.queries:
            raise _Refused(422, f"queries: {len(asked.queries)}, at most {self._limits.queries} in one request")
        if asked.topk and asked.topk > self._limits.topk:
            raise _Refused(422, f"topk: {asked.topk}, at most {self._limits.topk}")
        return asked

    async def lives(self, request: Request) -> Response:
        """GET /healthz, /readyz and /metrics."""
        plain = wanted("starlette.responses").PlainTextResponse
        if request.url.path == "/metrics":
            return plain(self.figures.text())  # type: ignore[no-any-return]
        ready = request.url.path == "/healthz" or self._library is not None
        return plain("ok\n" if ready else "the index is being opened\n", 200 if ready else 503)  # type: ignore[no-any-return]


def _hit(passage: Passage, scored: bool) -> dict[str, Any]:
    document = {"id": passage.id, "contents": contents(passage), "title": passage.title, "text": passage.text}
    return {"document": document, "score": passage.score} if scored else document


def application(service: Service, ended: Callable[[], None] = lambda: None) -> Starlette:
    """The service as an ASGI application."""
    route = wanted("starlette.routing").Route

    @asynccontextmanager
    async def opening(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(service.open(ended))
        yield
        task.cancel()

    routes = [route("/retrieve", service.retrieve, methods=["POST"]), *(route(path, service.lives) for path in LIVES)]
    return wanted("starlette.applications").Starlette(routes=routes, lifespan=opening)  # type: ignore[no-any-return]


def serve(load: Callable[[], Index], host: str, port: int, limits: Limits = Limits()) -> None:
    """Serves until interrupted; port 0 takes a free one. Says on standard error where. Raises what opening the index raised."""
    uvicorn = wanted("uvicorn")
    service = Service(load, limits)
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024)
    except OSError as error:
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from error
    app = application(service, lambda: setattr(server, "should_exit", True))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
    place = f"[{host}]" if ":" in host else host
    print(f"http://{place}:{listening.getsockname()[1]}/retrieve", file=sys.stderr, flush=True)
    with listening:
        server.run(sockets=[listening])
    if service.failure is not None:
        raise service.failure
