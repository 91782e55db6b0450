"""A real OpenAI-compatible server on loopback whose answers a test decides: `answer(body) -> text`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

Answer = Callable[[dict[str, Any]], "str | Response"]


class Server:
    """What it was asked, in order, and where it listens. An answer that is a Response goes out as it is: a fault."""

    def __init__(self, server: HTTPServer, answer: Answer) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answer = answer
        self.url = server.url_for("/v1")
        server.expect_request("/v1/chat/completions", method="POST").respond_with_handler(self._respond)

    def _respond(self, request: Request) -> Response:
        body = json.loads(request.data)
        self.asked.append(body)
        text = self.answer(body)
        return text if isinstance(text, Response) else completion(text)


def completion(text: str, finish: str = "stop", prompt_tokens: int = 7, completion_tokens: int = 3) -> Response:
    """The endpoint's JSON around one answer."""
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": 10}
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text}}
    answer = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
    return Response(json.dumps(answer), content_type="application/json")


@contextmanager
def serving(answer: Answer) -> Iterator[Server]:
    """A threaded server for the length of a test."""
    with HTTPServer(threaded=True) as server:
        yield Server(server, answer)
