"""The server that speaks Search-R1's API, its client, and OpenSearch's protocol: over real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from workup.errors import RolloutError, UserError
from workup.ports import Passage
from workup.retrieval import local, open_retriever
from workup.retrieval.batching import Together
from workup.retrieval.calls import Caller
from workup.retrieval.index import Index
from workup.retrieval.opensearch import OpenSearch
from workup.retrieval.remote import Remote
from workup.retrieval.server import Limits, Service, application

pytest.importorskip("uvicorn")
import uvicorn

QUERIES = ["appendicitis", "fever and cough", "the of", "title:x AND (", "热"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@contextmanager
def running(service: Service) -> Iterator[str]:
    """The service on a free port of this machine; its address."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application(service), log_level="error"))
    thread = threading.Thread(target=lambda: server.run(sockets=[listening]))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def call(url: str, body: object = None) -> tuple[int, Any]:
    """Status and body of a request; a body that is no bytes goes out as JSON."""
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=20) as answer:
            text = answer.read().decode()
            return answer.status, json.loads(text) if text.startswith("{") else text
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def ready(url: str) -> None:
    end = time.monotonic() + 20
    while call(f"{url}/readyz")[0] != 200:
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture(scope="module")
def library() -> Index:
    return local("clinic:s")


@pytest.fixture(scope="module")
def server(library: Index) -> Iterator[str]:
    with running(Service(lambda: library, Limits(queries=8, topk=20, bytes=20_000))) as url:
        ready(url)
        yield url


def test_the_answer_has_search_r1s_form(server: str, library: Index) -> None:
    status, answer = call(f"{server}/retrieve", {"queries": QUERIES, "topk": 2, "return_scores": True})
    assert status == 200
    for hits, passages in zip(answer["result"], library.find(QUERIES, 2), strict=True):
        for hit, passage in zip(hits, passages, strict=True):
            assert hit["document"]["id"] == passage.id
            assert hit["document"]["contents"] == f'"{passage.title}"\n{passage.text}'
            assert hit["score"] == pytest.approx(passage.score)
    assert [len(hits) for hits in answer["result"]] == [2, 2, 0, 0, 0]
    bare = call(f"{server}/retrieve", {"queries": QUERIES[:1]})[1]["result"][0]
    assert [document["id"] for document in bare] == [p.id for p in library.find(QUERIES[:1], 3)[0]]


def test_a_client_finds_what_the_index_finds(server: str, library: Index) -> None:
    assert Remote(server).find(QUERIES, 4) == library.find(QUERIES, 4)
    assert Remote(f"{server}/retrieve").find([], 4) == []
    found = asyncio.run(open_retriever(server).search("appendicitis", 3))
    assert found == library.find(["appendicitis"], 3)[0]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 422, "JSON"),
        ({"queries": "one"}, 422, "queries"),
        ({"queries": [1]}, 422, "queries.0"),
        ({}, 422, "queries"),
        ({"queries": ["a"], "topk": 0}, 422, "topk"),
        ({"queries": ["a"], "topk": 21}, 422, "at most 20"),
        ({"queries": ["a"] * 9}, 422, "at most 8"),
        ({"queries": ["a" * 30_000]}, 413, "20000 bytes"),
    ],
)
def test_what_goes_too_far_is_refused(server: str, body: object, status: int, said: str) -> None:
    answered, text = call(f"{server}/retrieve", body)
    assert answered == status
    assert said in text
    if isinstance(body, dict) and body.get("topk") == 21:
        with pytest.raises(RolloutError, match="at most 20"):
            Remote(server).find(["a"], 21)


def test_figures_count_what_happened(library: Index) -> None:
    with running(Service(lambda: library)) as url:
        ready(url)
        call(f"{url}/retrieve", {"queries": ["a", "b"]})
        call(f"{url}/retrieve", b"{")
        _, text = call(f"{url}/metrics")
        figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert figures['workup_retrieval_requests_total{status="200"}'] == "1"
        assert figures['workup_retrieval_requests_total{status="422"}'] == "1"
        assert figures["workup_retrieval_queries_total"] == "2"
        assert figures["workup_retrieval_in_flight"] == "0"
        assert int(figures["workup_retrieval_passages"]) == len(library)
        buckets = [int(n) for name, n in figures.items() if "_bucket" in name]
        assert buckets == sorted(buckets)
        assert buckets[-1] == 2


def test_it_says_that_it_is_not_ready_yet(library: Index) -> None:
    opened = threading.Event()

    def slowly() -> Index:
        opened.wait(20)
        return library

    with running(Service(slowly)) as url:
        assert call(f"{url}/healthz")[0] == 200
        assert call(f"{url}/readyz")[0] == 503
        assert call(f"{url}/retrieve", {"queries": ["a"]})[0] == 503
        waiting = threading.Timer(0.5, opened.set)
        waiting.start()
        assert Remote(url, deadline=20).find(["appendicitis"], 1)[0]


class Held(Index):
    """An index that answers when it is told to, and notes the size of each call."""

    def __init__(self, inner: Index) -> None:
        super().__init__(inner.passages, {})
        self.inner, self.calls, self.go = inner, [0], threading.Event()

    def find(self, queries: Any, k: int) -> list[list[Passage]]:
        self.calls.append(len(queries))
        self.go.wait(20)
        return self.inner.find(queries, k)


def test_requests_at_once_share_searches_and_too_many_are_told_to_come_back(library: Index) -> None:
    held = Held(library)
    with running(Service(lambda: held, Limits(requests=6))) as url:
        ready(url)
        statuses: list[int] = []
        body = {"queries": ["fever", "cough"]}
        threads = [threading.Thread(target=lambda: statuses.append(call(f"{url}/retrieve", body)[0])) for _ in range(8)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + 20
        while statuses.count(503) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        held.go.set()
        for thread in threads:
            thread.join()
        assert sorted(statuses) == [200] * 6 + [503] * 2
        assert sum(held.calls) == 12
        assert len(held.calls) < 1 + 6


def started(port: int = 0) -> tuple[subprocess.Popen[str], int]:
    """`workup serve retrieval` as users start it, and its port."""
    code = "from workup.commands.serve import app; app()"
    words = [sys.executable, "-c", code, "retrieval", "clinic:xs", "--port", str(port)]
    child = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert child.stderr is not None
    line = child.stderr.readline()
    found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/retrieve\n", line)
    assert found, line + child.stderr.read()
    return child, int(found[1])


def test_a_server_killed_halfway_is_waited_for_and_only_its_queries_fail() -> None:
    child, port = started()
    url = f"http://127.0.0.1:{port}"
    patient, hasty = Together(Remote(url, deadline=60).find), Together(Remote(url, deadline=0.5).find)

    async def ask() -> None:
        nonlocal child
        assert await patient.search("fever", 1)
        child.send_signal(signal.SIGKILL)
        child.wait()
        with pytest.raises(RolloutError, match=r"no answer within 0\.5 s"):
            await hasty.search("fever", 1)
        waits = asyncio.create_task(patient.search("fever", 1))
        child, _ = await asyncio.to_thread(started, port)
        assert await waits
        assert await hasty.search("fever", 1)

    try:
        asyncio.run(ask())
    finally:
        child.send_signal(signal.SIGINT)
        child.wait(20)


def test_an_index_that_does_not_open_ends_the_server(tmp_path: Path) -> None:
    code = "from workup.cli import main; from workup import cli; from workup.commands.serve import app\n"
    code += "if 'serve' not in {g.name for g in cli.app.registered_groups}: cli.app.add_typer(app, name='serve')\nmain()"
    words = [sys.executable, "-c", code, "serve", "retrieval", str(tmp_path), "--port", "0"]
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, timeout=60, check=False, env=ENVIRONMENT)
    assert done.returncode == 2
    assert "is no index" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


# Clients against servers that misbehave


@pytest.mark.parametrize(
    ("faults", "tries"),
    [
        ([Response("busy", 503), Response("slow down", 429)], 3),
        ([Response("{", 200)], 2),
        ([Response("x", 500)], 2),
    ],
)
def test_passing_faults_are_retried(faults: list[Response], tries: int) -> None:
    answers = [*faults, Response(json.dumps({"result": [[]]}))]
    with HTTPServer() as other:
        other.expect_request("/retrieve").respond_with_handler(lambda request: answers.pop(0))
        assert Remote(other.url_for("")).find(["a"], 1) == [[]]
        assert len(other.log) == tries


@pytest.mark.parametrize("said", [{}, {"result": 3}, {"result": [[]]}, {"result": [[{"document": {}}], []]}, [1]])
def test_another_protocol_is_named(said: object) -> None:
    with HTTPServer() as other:
        other.expect_request("/retrieve").respond_with_json(said)
        with pytest.raises(RolloutError, match=r"/retrieve|answered 1 of 2"):
            Remote(other.url_for("")).find(["a", "b"], 1)


def test_search_r1s_own_server_is_understood() -> None:
    """Its documents have `id` and `contents` alone."""
    hit = {"document": {"id": "3", "contents": '"Gout"\nA disease.\nOf joints.'}, "score": 7.5}
    with HTTPServer() as other:
        other.expect_request("/retrieve", method="POST").respond_with_json({"result": [[hit]]})
        assert Remote(other.url_for("")).find(["a"], 1) == [[Passage("3", "A disease.\nOf joints.", "Gout", 7.5)]]
        assert other.log[0][0].json == {"queries": ["a"], "topk": 1, "return_scores": True}


def test_a_refusal_is_not_repeated() -> None:
    with HTTPServer() as other:
        other.expect_request("/retrieve").respond_with_data("no such thing", 404)
        with pytest.raises(RolloutError, match="404: no such thing"):
            Remote(other.url_for("")).find(["a"], 1)
        assert len(other.log) == 1


class Cluster:
    """The part of OpenSearch's HTTP interface that we use, as its reference describes it, over a dictionary.

    Scores are the number of shared words: what is tested is the protocol, not their BM25.
    """

    def __init__(self, server: HTTPServer) -> None:
        self.shape: dict[str, Any] = {}
        self.documents: dict[str, dict[str, Any]] = {}
        self.refuse = False
        server.expect_request(re.compile("/.*")).respond_with_handler(self._answer)

    def _answer(self, request: Request) -> Response:
        lines = [json.loads(line) for line in request.data.splitlines() if line.strip()]
        acts = {
            "/_cat/indices": self._indices,
            "/notes": self._create,
            "/notes/_bulk": self._bulk,
            "/notes/_msearch": self._msearch,
        }
        acts |= {"/notes/_refresh": lambda _: {}, "/notes/_count": lambda _: {"count": len(self.documents)}}
        if request.path.startswith("/notes/_") and not self.shape:
            return Response('{"error": "index_not_found_exception"}', 404)
        return Response(json.dumps(acts[request.path](lines)), content_type="application/json")

    def _indices(self, lines: list[Any]) -> list[dict[str, str]]:
        return [{"index": "notes"}] if self.shape else []

    def _create(self, lines: list[Any]) -> dict[str, bool]:
        (self.shape,) = lines
        return {"acknowledged": True}

    def _bulk(self, lines: list[Any]) -> dict[str, Any]:
        pairs = list(zip(lines[::2], lines[1::2], strict=True))
        if self.refuse:
            return {"errors": True, "items": [{"index": {"error": {"type": "mapper_parsing_exception"}}}]}
        self.documents |= {action["index"]["_id"]: source for action, source in pairs}
        return {"errors": False, "items": [{"index": {"status": 201}} for _ in pairs]}

    def _msearch(self, lines: list[Any]) -> dict[str, Any]:
        return {"responses": [self._search(body) for body in lines[1::2]]}

    def _search(self, body: dict[str, Any]) -> dict[str, Any]:
        asked = set(body["query"]["match"]["body"]["query"].lower().split())
        if len(asked) > 1024:
            return {"error": {"type": "too_many_clauses"}, "status": 400}
        scores = {name: len(asked & set(source["body"].lower().split())) for name, source in self.documents.items()}
        best = sorted((name for name in scores if scores[name]), key=lambda name: -scores[name])[: body["size"]]
        sources = {name: {field: self.documents[name][field] for field in body["_source"]} for name in best}
        hits = [{"_id": name, "_score": float(scores[name]), "_source": source} for name, source in sources.items()]
        return {"hits": {"hits": hits}}


def test_opensearch_by_its_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = [Passage(f"p{i}", f"word{i} common text", f"title{i}") for i in range(2500)]
    monkeypatch.setenv("WORKUP_OPENSEARCH_KEY", "user:secret")
    with HTTPServer() as other:
        cluster = Cluster(other)
        name = f"{other.url_for('')}#notes"
        assert OpenSearch.open(name).push(lambda start: shelf[start:1200], k1=0.9, b=0.4) == 1200
        assert OpenSearch.open(name).push(lambda start: shelf[start:]) == 2500
        assert list(cluster.documents) == [str(row) for row in range(2500)]
        assert cluster.shape["settings"]["index"]["similarity"]["ours"] == {"type": "BM25", "k1": 0.9, "b": 0.4}
        found = OpenSearch.open(name).find(
            ["word7 title7", "word2400", "absent", "x " * 5000 + " ".join(map(str, range(3000)))], 2
        )
        assert [[(p.id, p.title, p.text) for p in one] for one in found[:3]] == [
            [("p7", "title7", "word7 common text")],
            [("p2400", "title2400", "word2400 common text")],
            [],
        ]
        assert {request.headers["Authorization"] for request, _ in other.log} == {"Basic dXNlcjpzZWNyZXQ="}
        assert {request.headers["Content-Type"] for request, _ in other.log if request.path.endswith("search")} == {
            "application/x-ndjson"
        }
        cluster.refuse = True
        with pytest.raises(RolloutError, match="mapper_parsing_exception"):
            OpenSearch.open(name).push(lambda start: [Passage("q", "")])


@pytest.mark.parametrize("address", ["file:///etc/passwd", "http://", "x", "ftp://h/"])
def test_only_addresses_of_the_web(address: str) -> None:
    with pytest.raises(UserError, match="address"):
        Caller(address)


def test_an_index_in_opensearch_has_a_name_that_cannot_lead_elsewhere() -> None:
    for name in ("", "a/../b", "A", "a?x", "*"):
        with pytest.raises(UserError, match="name of an index"):
            OpenSearch.open(f"http://h#{name}")
