"""The server with Search-R1's API, its client, and OpenSearch's protocol, over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from command_line import told
from flooding import flooding
from pytest_httpserver import HTTPServer
from serving import free_port
from waiting import HANG, until
from werkzeug import Request, Response

from workup.core.case import Document, Passage
from workup.core.errors import RolloutError, UserError
from workup.retrieval import calls, local, open_retriever
from workup.retrieval.batching import BatchedRetriever
from workup.retrieval.calls import Caller
from workup.retrieval.connections import listening
from workup.retrieval.index import Index
from workup.retrieval.opensearch import OpenSearch
from workup.retrieval.remote import Remote
from workup.retrieval.server import Limits, Service
from workup.retrieval.server import server as listener

pytest.importorskip("uvicorn")
from uvicorn import Server

QUERIES = ["appendicitis", "fever and cough", "the of", "title:x AND (", "热"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@contextmanager
def both(service: Service) -> Iterator[tuple[str, Server]]:
    """The service on a free port of this machine: its address, and what serves it."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    server = listener(service, names=("search.example",))
    thread = threading.Thread(target=lambda: server.run(sockets=[listening]))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", server
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


@contextmanager
def running(service: Service) -> Iterator[str]:
    with both(service) as (url, _):
        yield url


def call(url: str, body: object = None, host: str = "") -> tuple[int, Any]:
    """Status and body of a request; a body that is no bytes goes out as JSON."""
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        named = {"Host": host} if host else {}
        request = urllib.request.Request(url, data, named)
        with urllib.request.urlopen(request, timeout=HANG) as answer:
            text = answer.read().decode()
            return answer.status, json.loads(text) if text.startswith("{") else text
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def ready(url: str) -> None:
    until(lambda: call(f"{url}/readyz")[0] == 200)


@pytest.fixture(scope="module")
def library() -> Index:
    return local("clinic:s")


@pytest.fixture(scope="module")
def server(library: Index) -> Iterator[str]:
    with running(
        Service(lambda: library, Limits(queries=8, topk=20, passages=100, bytes=20_000))
    ) as url:
        ready(url)
        yield url


def test_the_answer_has_search_r1s_form(server: str, library: Index) -> None:
    status, answer = call(
        f"{server}/retrieve", {"queries": QUERIES, "topk": 2, "return_scores": True}
    )
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
        ({"queries": ["a"], "topk": -1}, 422, "topk"),
        (b"[" * 15_000, 422, "no JSON"),
        ({"queries": ["a"], "topk": 21}, 422, "at most 20"),
        ({"queries": ["a"] * 9}, 422, "at most 8"),
        ({"queries": ["a"] * 6, "topk": 20}, 422, "at most 100 passages"),
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
        figures = dict(
            line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")
        )
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
        opened.wait(HANG)
        return library

    with running(service := Service(slowly)) as url:
        assert call(f"{url}/healthz")[0] == 200
        assert call(f"{url}/readyz")[0] == 503
        assert call(f"{url}/retrieve", {"queries": ["a"]})[0] == 503
        told = service.figures.statuses
        with ThreadPoolExecutor() as pool:
            found = pool.submit(Remote(url, deadline=HANG).find, ["appendicitis"], 1)
            until(lambda: told[503] >= 2)  # one of them to it
            opened.set()
            assert found.result()[0]


# Requests that never come whole

HEAD = b"POST /retrieve HTTP/1.1\r\nHost: 127.0.0.1\r\n"
HALVES = {
    "nothing": b"",
    "half a head": HEAD,
    "half a body": HEAD + b"Content-Length: 1000\r\n\r\n{",
    "half a chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nff\r\n{",
}


@contextmanager
def half_sent(url: str, parts: Sequence[bytes]) -> Iterator[list[socket.socket]]:
    """A connection for each part of a request, which is all that it sends."""
    with ExitStack() as stack:
        opened = []
        for part in parts:
            place = ("127.0.0.1", int(url.rpartition(":")[2]))
            opened.append(stack.enter_context(socket.create_connection(place, HANG)))
            opened[-1].sendall(part)
        yield opened


def rest(connection: socket.socket) -> bytes:
    """What still comes until the other side closes."""
    said = b""
    with suppress(ConnectionResetError):
        while more := connection.recv(1000):
            said += more
    return said


def test_three_hundred_half_sent_requests_do_not_silence_it(library: Index) -> None:
    with running(Service(lambda: library, Limits(head=HANG, body=HANG))) as url:
        ready(url)
        with half_sent(url, [part for part in HALVES.values() for _ in range(75)]):
            until(lambda: "arriving_bytes 150" in call(f"{url}/metrics")[1])
            assert call(f"{url}/retrieve", {"queries": ["appendicitis"]})[0] == 200
        until(lambda: "arriving_bytes 0" in call(f"{url}/metrics")[1])


@pytest.mark.parametrize("part", HALVES.values(), ids=HALVES)
def test_a_request_that_never_comes_whole_is_ended(
    part: bytes, library: Index, caplog: pytest.LogCaptureFixture
) -> None:
    with running(Service(lambda: library, Limits(head=0.1, body=0.1))) as url:
        ready(url)
        with half_sent(url, [part]) as (connection,):
            assert rest(connection).startswith(b"HTTP/1.1 408 ")
        # On a busy machine a whole request may be late too.
        until(lambda: call(f"{url}/retrieve", {"queries": ["appendicitis"]})[0] == 200)
    assert not caplog.records


def test_one_byte_now_and_then_does_not_keep_a_connection(library: Index) -> None:
    with running(Service(lambda: library, Limits(head=0.2))) as url:
        ready(url)
        with half_sent(url, [b""]) as (connection,):
            connection.settimeout(0.05)
            sent = 0
            with suppress(BrokenPipeError, ConnectionResetError):
                while sent < 600:  # half a minute
                    connection.sendall(
                        HEAD[sent % len(HEAD) :][:1].replace(b"\r", b"x").replace(b"\n", b"x")
                    )
                    sent += 1
                    with suppress(TimeoutError):
                        assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")
                        break
            assert sent < 600


def test_the_oldest_of_too_many_half_sent_requests_makes_room(library: Index) -> None:
    with running(Service(lambda: library, Limits(waiting=20, head=HANG))) as url:
        ready(url)
        with half_sent(url, [HEAD] * 60) as connections:
            for connection in connections[:40]:
                assert rest(connection).startswith(b"HTTP/1.1 408 ")
            for connection in connections[40:]:
                connection.setblocking(False)
                with pytest.raises(BlockingIOError):
                    connection.recv(1)
            assert call(f"{url}/healthz")[0] == 200


def test_the_bytes_of_all_half_sent_bodies_are_bounded(library: Index) -> None:
    body = HEAD + b"Content-Length: 9999\r\n\r\n" + b" " * 9000
    with running(Service(lambda: library, Limits(bytes=10_000, sent=20_000, body=HANG))) as url:
        ready(url)
        with half_sent(url, [body] * 3) as connections:
            (refused,), _, _ = select.select(connections, [], [], HANG)
            assert refused.recv(100).startswith(b"HTTP/1.1 503 ")
        assert call(f"{url}/retrieve", {"queries": ["appendicitis"]})[0] == 200


def test_an_answer_does_not_wait_for_the_acknowledgement_of_its_beginning(library: Index) -> None:
    """Without this option a kept connection has 21 answers a second, with it hundreds."""
    with both(Service(lambda: library)) as (url, server), half_sent(url, [HEAD]):
        until(lambda: bool(server.server_state.connections))
        open = list(server.server_state.connections)
        accepted = [connection.transport.get_extra_info("socket") for connection in open]
        assert all(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for one in accepted)


@pytest.mark.parametrize("reads", [True, False])
def test_a_slow_reader_gets_its_whole_answer_and_one_that_stops_does_not(reads: bool) -> None:
    index = Index.of(Document(f"d{n}", "", "fever " + 250 * f"{n:032} ") for n in range(100))
    body = json.dumps({"queries": 16 * ["fever"], "topk": 100}).encode()
    limits = Limits(head=HANG)
    with both(Service(lambda: index, limits)) as (url, server), socket.socket() as reader:
        ready(url)
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        reader.connect(("127.0.0.1", int(url.rpartition(":")[2])))
        reader.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answer, port = bytearray(reader.recv(1000)), reader.getsockname()[1]
        whole = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        accepted: list[Any] = list(server.server_state.connections)
        (one,) = (each for each in accepted if each.client[1] == port)
        until(lambda: one.phase == "head")
        for _ in range(3 if reads else 1):  # as when the time is over
            left = one.transport.get_write_buffer_size()
            assert left
            while reads and one.transport.get_write_buffer_size() >= left:
                answer += reader.recv(2**16)
            one.loop.call_soon_threadsafe(one.look)
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), one.loop).result(HANG)
        with suppress(ConnectionResetError):
            while len(answer) < whole and (more := reader.recv(2**16)):
                answer += more
        assert (len(answer) >= whole) == reads


# What it takes


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost:80", "127.0.0.1:1", "[::1]:8000", "10.0.0.3", "search.example"]
)
def test_it_answers_to_its_own_names(host: str, server: str) -> None:
    assert call(f"{server}/healthz", host=host)[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example:80",
        "[",
        "a b",
    ],
)
@pytest.mark.parametrize("path", ["/retrieve", "/metrics"])
def test_a_page_that_calls_it_by_another_name_learns_nothing(
    host: str, path: str, server: str
) -> None:
    status, said = call(f"{server}{path}", {"queries": ["appendicitis"]}, host=host)
    assert status == 421
    assert "--name" in said


def test_a_bad_string_spoils_no_other_query(server: str, library: Index) -> None:
    body = (
        b'{"queries": ["appendicitis", "\\ud800 fever", "\xff\xfe", "\\u0000", "cough"], "topk": 1}'
    )
    status, answer = call(f"{server}/retrieve", body)
    assert status == 200
    found = [[document["id"] for document in hits] for hits in answer["result"]]
    assert found == [
        [p.id for p in hits] for hits in library.find(["appendicitis", "fever", "", "", "cough"], 1)
    ]
    assert found[0]
    assert found[4]


def test_a_topk_of_0_is_the_servers_own_as_in_search_r1(server: str) -> None:
    answers = [
        call(f"{server}/retrieve", {"queries": QUERIES, "topk": topk}) for topk in (0, None, 3)
    ]
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][0] == 200


class Held(Index):
    """An index that answers when it is told to, and notes the size of each call."""

    def __init__(self, inner: Index) -> None:
        super().__init__(inner.passages, {})
        self.inner, self.calls, self.go = inner, [0], threading.Event()

    def find(self, queries: Any, k: int) -> list[list[Passage]]:
        self.calls.append(len(queries))
        self.go.wait(HANG)
        return self.inner.find(queries, k)


def test_requests_at_once_share_searches_and_too_many_are_told_to_come_back(library: Index) -> None:
    held = Held(library)
    with running(Service(lambda: held, Limits(requests=6))) as url:
        ready(url)
        statuses: list[int] = []
        body = {"queries": ["fever", "cough"]}
        threads = [
            threading.Thread(target=lambda: statuses.append(call(f"{url}/retrieve", body)[0]))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        until(lambda: statuses.count(503) == 2)
        held.go.set()
        for thread in threads:
            thread.join()
        assert sorted(statuses) == [200] * 6 + [503] * 2
        assert sum(held.calls) == 12
        assert len(held.calls) < 1 + 6


def started(port: int) -> subprocess.Popen[str]:
    """`workup serve retrieval` as users start it."""
    code = "from workup.cli.serve import app; app()"
    words = [sys.executable, "-c", code, "retrieval", "clinic:xs", "--port", str(port)]
    child = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert child.stderr is not None
    line = child.stderr.readline()
    assert line == f"http://127.0.0.1:{port}/retrieve\n", line + child.stderr.read()
    return child


@pytest.mark.long
def test_a_server_killed_halfway_is_waited_for_and_only_its_queries_fail() -> None:
    child = started(port := free_port())
    url = f"http://127.0.0.1:{port}"
    patient, hasty = (BatchedRetriever(Remote(url, deadline=s).find) for s in (HANG, 0.5))

    async def ask() -> None:
        nonlocal child
        assert await patient.search("fever", 1)
        child.send_signal(signal.SIGKILL)
        child.wait()
        with pytest.raises(RolloutError, match=r"no answer within 0\.5 s"):
            await hasty.search("fever", 1)
        waits = asyncio.create_task(patient.search("fever", 1))
        child = await asyncio.to_thread(started, port)
        assert await waits
        assert await hasty.search("fever", 1)

    try:
        asyncio.run(ask())
    finally:
        child.send_signal(signal.SIGINT)
        child.wait(HANG)


def test_an_index_that_does_not_open_ends_the_server_before_it_tells_an_address(
    tmp_path: Path,
) -> None:
    (tmp_path / "empty").mkdir()
    for library, said in (("empty", "is no index"), ("nowhere", "no library 'nowhere'")):
        assert said in told("serve", "retrieval", library, "--port", 0, cwd=tmp_path)


# Clients against servers that misbehave


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize(
    "said",
    [
        {},
        {"result": 3},
        {"result": [[]]},
        {"result": [[{"document": {}}], []]},
        [1],
        *(
            {"result": [[{"document": {"contents": "x"}, "score": score}], []]}
            for score in (10**400, float("nan"), float("inf"))
        ),
    ],
)
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
        assert Remote(other.url_for("")).find(["a"], 1) == [
            [Passage("3", "A disease.\nOf joints.", "Gout", 7.5)]
        ]
        assert other.log[0][0].json == {"queries": ["a"], "topk": 1, "return_scores": True}


def test_a_passage_from_elsewhere_can_be_written() -> None:
    document = {"id": "3\ud800", "title": "Gout\x00", "text": "A \udfffdisease."}
    with HTTPServer() as other:
        found = {"result": [[{"document": document, "score": 1}]]}
        other.expect_request("/retrieve").respond_with_json(found)
        ((passage,),) = Remote(other.url_for("")).find(["a"], 1)
    assert (passage.id, passage.title, passage.text) == ("3 ", "Gout ", "A  disease.")


def test_a_passage_may_be_called_0() -> None:
    hit = {"document": {"id": 0, "contents": "x"}, "score": 1}
    with HTTPServer() as other:
        other.expect_request("/retrieve").respond_with_json({"result": [[hit]]})
        assert Remote(other.url_for("")).find(["a"], 1)[0][0].id == "0"


def test_a_library_that_sends_a_byte_now_and_then_is_given_up() -> None:
    given_up = threading.Event()

    def drip(request: Request) -> Response:
        pieces = (" " for _ in range(100) if not given_up.wait(0.1))
        return Response(pieces, content_type="text/plain")

    with HTTPServer(threaded=True) as other:
        other.expect_request("/retrieve").respond_with_handler(drip)
        with pytest.raises(RolloutError, match=r"its answer is not over after 0\.5 s"):
            Remote(other.url_for(""), deadline=0.1, timeout=0.5).find(["a"], 1)
        given_up.set()


def test_a_refusal_is_not_repeated() -> None:
    with HTTPServer() as other:
        other.expect_request("/retrieve").respond_with_data("no such thing", 404)
        with pytest.raises(RolloutError, match="404: no such thing"):
            Remote(other.url_for("")).find(["a"], 1)
        assert len(other.log) == 1


@pytest.mark.parametrize(
    ("status", "said"), [(b"200 OK", "sends more than 4 MiB"), (b"404 No", "status 404")]
)
def test_a_library_that_floods_is_cut_off_early(
    status: bytes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "LARGEST", 4 * 2**20)
    head = b"HTTP/1.1 " + status + b"\r\nContent-Length: 1500000000\r\n\r\n"
    with flooding(head, b"x" * 65536) as (url, flooder), pytest.raises(RolloutError, match=said):
        Remote(url).find(["a"], 1)
    assert [sent < 20_000_000 for sent in flooder.sent] == [True]


def test_a_library_that_compresses_is_refused() -> None:
    with HTTPServer() as other:
        headers = {"Content-Encoding": "gzip"}
        other.expect_request("/retrieve").respond_with_data(gzip.compress(b"{}"), headers=headers)
        with pytest.raises(RolloutError, match="compresses its answers"):
            Remote(other.url_for("")).find(["a"], 1)
        assert other.log[0][0].headers["Accept-Encoding"] == "identity"


def test_the_key_of_a_library_comes_back_in_no_passage_and_no_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORKUP_OPENSEARCH_KEY", "reader:Pa55-word-of-ours")
    source = {
        "id": "1",
        "title": "pa55-WORD-of-ours",
        "text": "cmVhZGVyOlBhNTUtd29yZC1vZi1vdXJz \\u0050a55-word-of-ours",
    }
    hits = {"responses": [{"hits": {"hits": [{"_score": 1.0, "_source": source}]}}]}
    with HTTPServer() as other:
        other.expect_ordered_request("/notes/_msearch").respond_with_json(hits)
        other.expect_ordered_request("/notes/_msearch").respond_with_data(
            "not Pa55-word-of-ours", 403
        )
        library = OpenSearch.open(f"{other.url_for('')}#notes")
        ((passage,),) = library.find(["a"], 1)
        assert (passage.title, passage.text.split()[0][:3]) == ("…", "…")
        assert passage.text.split()[1] == "…"
        with pytest.raises(RolloutError, match=r"status 403: not …$"):
            library.find(["a"], 1)


class Cluster:
    """The part of OpenSearch's HTTP interface that we use, over a dictionary.

    It follows the interface's reference.

    Scores are the number of shared words: what is tested is the protocol, not their BM25.
    """

    def __init__(self, server: HTTPServer) -> None:
        self.shape: dict[str, Any] = {}
        self.documents: dict[str, dict[str, Any]] = {}
        self.refuse = False
        self.busy: set[str] = set()  # rows that are refused once
        server.expect_request(re.compile("/.*")).respond_with_handler(self._answer)

    def _answer(self, request: Request) -> Response:
        lines = [json.loads(line) for line in request.data.splitlines() if line.strip()]
        acts = {
            "/_cat/indices": self._indices,
            "/notes": self._create,
            "/notes/_bulk": self._bulk,
            "/notes/_msearch": self._msearch,
        }
        acts |= {
            "/notes/_refresh": lambda _: {},
            "/notes/_mapping": lambda _: {"notes": {"mappings": self.shape["mappings"]}},
            "/notes/_count": lambda _: {"count": len(self.documents)},
        }
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
            return {
                "errors": True,
                "items": [{"index": {"error": {"type": "mapper_parsing_exception"}}}],
            }
        busy, self.busy = self.busy, set()
        rows = {action["index"]["_id"]: source for action, source in pairs}
        self.documents |= {id: source for id, source in rows.items() if id not in busy}
        full = {"status": 429, "error": {"type": "rejected_execution_exception"}}
        items = [{"index": full if id in busy else {"status": 201}} for id in rows]
        return {"errors": bool(busy), "items": items}

    def _msearch(self, lines: list[Any]) -> dict[str, Any]:
        return {"responses": [self._search(body) for body in lines[1::2]]}

    def _search(self, body: dict[str, Any]) -> dict[str, Any]:
        asked = set(body["query"]["match"]["body"]["query"].lower().split())
        if len(asked) > 1024:
            return {"error": {"type": "too_many_clauses"}, "status": 400}
        scores = {
            name: len(asked & set(source["body"].lower().split()))
            for name, source in self.documents.items()
        }
        best = sorted((name for name in scores if scores[name]), key=lambda name: -scores[name])[
            : body["size"]
        ]
        sources = {
            name: {field: self.documents[name][field] for field in body["_source"]} for name in best
        }
        hits = [
            {"_id": name, "_score": float(scores[name]), "_source": source}
            for name, source in sources.items()
        ]
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
        assert cluster.shape["settings"]["index"]["similarity"]["ours"] == {
            "type": "BM25",
            "k1": 0.9,
            "b": 0.4,
        }
        found = OpenSearch.open(name).find(
            ["word7 title7", "word2400", "absent", "x " * 5000 + " ".join(map(str, range(3000)))], 2
        )
        assert [[(p.id, p.title, p.text) for p in one] for one in found[:3]] == [
            [("p7", "title7", "word7 common text")],
            [("p2400", "title2400", "word2400 common text")],
            [],
        ]
        assert {request.headers["Authorization"] for request, _ in other.log} == {
            "Basic dXNlcjpzZWNyZXQ="
        }
        assert {
            request.headers["Content-Type"]
            for request, _ in other.log
            if request.path.endswith("search")
        } == {"application/x-ndjson"}
        cluster.refuse = True
        with pytest.raises(RolloutError, match="mapper_parsing_exception"):
            OpenSearch.open(name).push(lambda start: [Passage("q", "")])


@pytest.mark.parametrize(
    "said",
    [{}, [], {"responses": []}, {"responses": [{}]}, {"responses": [{"hits": {"hits": [{}]}}]}],
)
def test_what_answers_no_search_as_opensearch_does_is_named(said: object) -> None:
    with HTTPServer() as other:
        other.expect_request("/notes/_msearch").respond_with_json(said)
        with pytest.raises(RolloutError, match="does not answer _msearch as OpenSearch does"):
            OpenSearch.open(f"{other.url_for('')}#notes").find(["a"], 1)


def test_rows_that_opensearch_refuses_for_now_are_sent_again() -> None:
    shelf = [Passage(f"p{i}", f"text{i}") for i in range(20)]
    with HTTPServer() as other:
        cluster = Cluster(other)
        cluster.busy = {"3", "7"}
        library = OpenSearch.open(f"{other.url_for('')}#notes")
        assert library.push(lambda start: shelf[start:]) == 20
        assert {int(id): row["id"] for id, row in cluster.documents.items()} == {
            row: f"p{row}" for row in range(20)
        }
        sent = [
            [json.loads(line)["index"]["_id"] for line in request.data.splitlines()[::2]]
            for request, _ in other.log
            if request.path.endswith("_bulk")
        ]
        assert list(map(len, sent)) == [20, 2]
        # A hole that an earlier call left is filled by the next one, and a count that is not that
        # of the passages is an error.
        del cluster.documents["5"]
        assert library.push(lambda start: shelf[start:]) == 20
        cluster.documents["x"] = {}
        with pytest.raises(RolloutError, match=r"holds 21 passages .* and 20 were sent"):
            library.push(lambda start: shelf[start:])


def test_one_index_of_opensearch_holds_the_passages_of_one_corpus() -> None:
    with HTTPServer() as other:
        cluster = Cluster(other)
        library = OpenSearch.open(f"{other.url_for('')}#notes")
        assert library.push(lambda start: [Passage("p", "x")][start:], corpus="a") == 1
        for more in ({"corpus": "b"}, {"corpus": "a", "language": "german"}):
            with pytest.raises(UserError, match=r"'notes' of .* holds other passages"):
                library.push(lambda start: [Passage("q", "y")], **more)  # type: ignore[arg-type]
        assert [row["id"] for row in cluster.documents.values()] == ["p"]


@pytest.mark.parametrize(
    "address",
    [
        *("file:///etc/passwd", "http://", "x", "ftp://h/"),
        *("http://[::1:8000", "http://localhost:80a0", "http://h:99999", "http://h:0"),
    ],
)
def test_only_addresses_of_the_web(address: str) -> None:
    with pytest.raises(UserError, match="address") as caught:
        Caller(address)
    assert "\n" not in str(caught.value)


def test_a_page_of_the_web_is_no_library() -> None:
    with HTTPServer() as other:
        other.expect_request("/retrieve").respond_with_data("<html>\nWelcome</html>")
        with pytest.raises(UserError, match="it sends no JSON, but '<html> Welcome"):
            Remote(other.url_for(""), patient=False).find(["a"], 1)
        assert len(other.log) == 1


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("", "--host is empty"),
        ("nowhere.invalid", "choose another --host"),
        ("192.0.2.1", "choose another --host"),  # an address of no machine (RFC 5737)
        ("a" * 64 + ".x", "choose another --host"),
        ("127.0.0.1", "choose another --port"),
    ],
)
def test_where_it_cannot_listen_is_said_of_the_right_option(host: str, said: str) -> None:
    with listening("127.0.0.1", 0) as taken, pytest.raises(UserError, match=said) as caught:
        listening(host, taken.getsockname()[1])
    assert "\n" not in str(caught.value)


def test_an_index_in_opensearch_has_a_name_that_cannot_lead_elsewhere() -> None:
    for name in ("", "a/../b", "A", "a?x", "*"):
        with pytest.raises(UserError, match="name of an index"):
            OpenSearch.open(f"http://h#{name}")
