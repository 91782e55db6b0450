"""An OpenAI-compatible server on loopback; a test decides its answers: `answer(body) -> text`."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import re
import socket
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from waiting import HANG
from werkzeug import Request, Response

Answer = Callable[[dict[str, Any]], "str | Response"]


class Server:
    """What it was asked, in order, and how much at once, and where it listens.

    An answer that is a Response goes out as it is: a fault (`fault`, `truncated`, `Reset` make
    them).
    """

    def __init__(self, url: str, answer: Answer) -> None:
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.most = 0  # requests in flight at once
        self.answer = answer
        self.url = url
        self._inside = 0
        self._lock = threading.Lock()

    def respond(self, request: Request) -> Response:
        body = json.loads(request.data)
        with self._lock:
            self.asked.append(body)
            self.headers.append(dict(request.headers))
            self._inside += 1
            self.most = max(self.most, self._inside)
        try:
            text = self.answer(body)
        finally:
            with self._lock:
                self._inside -= 1
        return text if isinstance(text, Response) else completion(text)


def completion(
    text: str | None, finish: str = "stop", prompt_tokens: int = 7, completion_tokens: int = 3
) -> Response:
    """The endpoint's JSON around one answer."""
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": 10,
    }
    choice = {
        "index": 0,
        "finish_reason": finish,
        "message": {"role": "assistant", "content": text},
    }
    answer = {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }
    return Response(json.dumps(answer), content_type="application/json")


def fault(status: int, message: str = "no", **headers: str) -> Response:
    """An error as OpenAI words it; `retry_after="2"` becomes the header Retry-After."""
    body = json.dumps({"error": {"message": message, "type": "error", "code": None}})
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(body, status=status, content_type="application/json", headers=named)


def truncated(text: str) -> Response:
    """An answer whose connection ends halfway through the body."""
    response = completion(text)
    whole = response.get_data()
    response.automatically_set_content_length = False
    response.set_data(whole[: len(whole) // 2])
    response.headers.update({"Content-Length": str(len(whole)), "Connection": "close"})
    return response


class Reset(Response):
    """The connection is reset in place of an answer."""

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        connection: socket.socket = environ["werkzeug.socket"]
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        ours, theirs = socket.socketpair()
        # Closes the connection under the server's hands, and leaves it one that has ended.
        os.dup2(ours.fileno(), connection.fileno())
        ours.close()
        theirs.close()
        raise ConnectionResetError


class Gate:
    """Answers as many questions as it is told to, and holds those that follow.

    So a test decides how far a client gets, whatever the speed of either.
    """

    def __init__(self, answer: Answer, free: int = 0) -> None:
        self.answer, self.free = answer, free
        self.held = 0  # questions that wait for an answer
        self._dropping = False
        self._changed = threading.Condition()

    def __call__(self, body: dict[str, Any]) -> str | Response:
        with self._changed:
            self.held += 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self.free > 0 or self._dropping, HANG)
            self.held -= 1
            if self._dropping:
                return Response("nobody waits for it", status=410)
            self.free -= 1
        return self.answer(body)

    def allow(self, more: int) -> None:
        """Answers `more` further questions, those that are held first."""
        with self._changed:
            self.free, self._dropping = self.free + more, False
            self._changed.notify_all()

    def full(self, count: int) -> None:
        """Returns once everything that was allowed is answered and `count` questions are held."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.held >= count and not self.free, HANG)

    def drop(self) -> None:
        """Gives up on a client that was killed: nothing that it asked is answered, until `allow`.

        Returns once everything that it left on the wire has reached the server.
        """
        with self._changed:
            self.free, self._dropping = 0, True
            self._changed.notify_all()
        settled()


@cache
def listening() -> HTTPServer:
    """The one server of this process; each test has an address of its own on it.

    Stopping a server takes half a second.
    """
    server = HTTPServer(threaded=True)
    server.expect_request(
        re.compile(r"/\d+/v1/chat/completions"), method="POST"
    ).respond_with_handler(_dispatch)
    server.start()
    atexit.register(server.stop)
    return server


_open: dict[str, Server] = {}
_numbers = itertools.count(1)


def _dispatch(request: Request) -> Response:
    server = _open.get(request.path.split("/")[1])
    return server.respond(request) if server else Response("this test is over", status=410)


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[Server]:
    """An address that answers for the length of a test."""
    number = str(next(_numbers))
    _open[number] = Server(listening().url_for(f"/{number}/v1"), answer)
    try:
        yield _open[number]
    finally:
        del _open[number]


def settled() -> None:
    """Returns once all requests of clients that have ended have reached their server."""
    # This request is accepted after all connections that were made before it.
    with pytest.raises(urllib.error.HTTPError, match="410"):
        urllib.request.urlopen(listening().url_for("/0/v1/chat/completions"), b"", HANG)
    for thread in threading.enumerate():
        if "process_request_thread" in thread.name:
            thread.join(HANG)


def free_port() -> int:
    """A port for a server that is yet to start.

    The kernel gives none of these to an outgoing connection, or to a server that leaves the choice
    to it, so nobody takes it in between. Test processes begin their search at different ports.
    """
    lowest, highest = 20_000, 32_000
    for step in range(highest - lowest):
        port = lowest + (os.getpid() * 97 + step) % (highest - lowest)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no free port")


def saying(server: Server, *answers: Any) -> None:
    """Answers with these, as JSON, in order; with the last one again and again."""
    left = list(answers)
    server.answer = lambda body: json.dumps(left.pop(0) if len(left) > 1 else left[0])
