"""A real OpenAI-compatible server on loopback whose answers a test decides: `answer(body) -> text`."""

from __future__ import annotations

import atexit
import itertools
import json
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

Answer = Callable[[dict[str, Any]], "str | Response"]


class Server:
    """What it was asked, in order, when, and how much at once, and where it listens.

    An answer that is a Response goes out as it is: a fault (`fault`, `truncated`, `Reset` make them).
    """

    def __init__(self, url: str, answer: Answer) -> None:
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []  # time.monotonic() of each arrival
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
            self.times.append(time.monotonic())
            self._inside += 1
            self.most = max(self.most, self._inside)
        try:
            text = self.answer(body)
        finally:
            with self._lock:
                self._inside -= 1
        return text if isinstance(text, Response) else completion(text)


def completion(text: str | None, finish: str = "stop", prompt_tokens: int = 7, completion_tokens: int = 3) -> Response:
    """The endpoint's JSON around one answer."""
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": 10}
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text}}
    answer = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
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


@cache
def listening() -> HTTPServer:
    """The one server of this process, since stopping one takes half a second; each test has an address of its own on it."""
    server = HTTPServer(threaded=True)
    server.expect_request(re.compile(r"/\d+/v1/chat/completions"), method="POST").respond_with_handler(_dispatch)
    server.start()
    atexit.register(server.stop)
    return server


_open: dict[str, Server] = {}
_numbers = itertools.count(1)


def _dispatch(request: Request) -> Response:
    server = _open.get(request.path.split("/")[1])
    return server.respond(request) if server else Response("this test is over", status=410)


@contextmanager
def serving(answer: Answer) -> Iterator[Server]:
    """An address that answers for the length of a test."""
    number = str(next(_numbers))
    _open[number] = Server(listening().url_for(f"/{number}/v1"), answer)
    try:
        yield _open[number]
    finally:
        del _open[number]
