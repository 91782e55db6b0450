"""An endpoint that means harm.

What it sends beyond what was asked for is not read, and no key comes back.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import sqlite3
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from flooding import FLOOD, flooding
from hypothesis import given
from hypothesis import strategies as st
from serving import fault, serving
from werkzeug import Response

from workup.core.episode import Message
from workup.core.errors import RolloutError, WorkupError
from workup.core.ports import Reply, Request
from workup.roles import keys
from workup.roles.account import Account
from workup.roles.cached import Cached
from workup.roles.endpoint import Endpoint, EndpointSettings, Price
from workup.roles.replies import FILE, Replies

MEGA = 10**6
KEY = "sk-Test/51Hx9+QpLwZ7vRk2Tn8"
JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def endpoint(url: str, **settings: Any) -> Endpoint:
    return Endpoint(
        EndpointSettings(base_url=url, model="m", **{"backoff": 0.01, "retries": 0, **settings})
    )


def request(**more: Any) -> Request:
    return Request("judge", "1", (Message("user", "hello"),), **more)


def ask(model: Any, one: Request = request()) -> Reply:  # noqa: B008
    reply: Reply = asyncio.run(model.complete(one))
    return reply


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """The SDK's own memory is no part of what is measured."""
    with serving(lambda body: "yes") as server:
        ask(endpoint(server.url))


CHUNK = b"10000\r\n" + b"x" * 65536 + b"\r\n"
FLOODS = {
    "with a length": (
        JSON + b"Content-Length: 1500000000\r\n\r\n",
        b'{"a": "' + b"x" * 65000,
        "longer than",
    ),
    "in chunks": (JSON + b"Transfer-Encoding: chunked\r\n\r\n", CHUNK, "longer than"),
    "until it closes": (JSON + b"Connection: close\r\n\r\n", b" " * 65536, "longer than"),
    "as a stream of events": (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n",
        b'data: {"choices": []}\n\n' * 3000,
        "longer than",
    ),
    "as an error": (
        JSON.replace(b"200 OK", b"400 No") + b"\r\n",
        b'{"error": {"message": "' + b"x" * 65536,
        "400",
    ),
    "as a fault": (JSON.replace(b"200 OK", b"500 No") + b"\r\n", b"y" * 65536, "500"),
    "as a redirect": (
        JSON.replace(b"200 OK", b"302 No") + b"Location: /x\r\n\r\n",
        b"y" * 65536,
        "302",
    ),
    "as one header": (JSON + b"X: ", b"y" * 65536, "connection failed"),
    "as headers": (JSON, b"X: y\r\n" * 10_000, "connection failed"),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_a_flood_is_cut_off_early(flood: tuple[bytes, bytes, str]) -> None:
    head, block, said = flood
    with flooding(head, block) as (url, flooder):
        tracemalloc.start()
        try:
            with pytest.raises(WorkupError, match=said) as caught:
                ask(endpoint(url), request(max_tokens=100))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(str(caught.value)) < 500
    # Of these, a few million lie in the buffers of the two sockets.
    assert [sent < 20 * MEGA for sent in flooder.sent] == [True]
    assert peak < 20 * MEGA


def test_a_compressed_flood_is_not_unpacked() -> None:
    """100 kB that decompress to 100 MB, from an endpoint that was asked not to compress."""
    bomb = gzip.compress(b'{"choices": [{"message": {"content": "' + b"x" * FLOOD + b'"}}]}')
    assert len(bomb) < MEGA
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    with serving(lambda body: Response(bomb, headers=headers)) as server:
        tracemalloc.start()
        try:
            with pytest.raises(RolloutError, match="compresses its answers"):
                ask(endpoint(server.url))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert server.headers[0]["Accept-Encoding"] == "identity"
    assert peak < 20 * MEGA


def chat(text: str | None, **more: Any) -> Response:
    """A whole answer, with what is `more` in its message and `usage` beside."""
    usage = more.pop("usage", {"prompt_tokens": 7, "completion_tokens": 3})
    choice = {"finish_reason": "stop", "message": {"role": "assistant", "content": text, **more}}
    return Response(
        json.dumps({"choices": [choice], "usage": usage}), content_type="application/json"
    )


def test_an_answer_much_longer_than_asked_for_is_none() -> None:
    with serving(lambda body: chat("w" * 200_000)) as server:
        with pytest.raises(RolloutError, match="200,000 characters are no answer of 100 tokens"):
            ask(endpoint(server.url), request(max_tokens=100))
        assert len(server.asked) == 1
        assert len(ask(endpoint(server.url), request(max_tokens=2000)).text) == 200_000
        # The limit that counts is the one that the endpoint is told.
        more = {"max_tokens": None, "max_completion_tokens": 2000}
        for parameters in (more, {"max_tokens": 2000}, {"max_tokens": None}):
            model = endpoint(server.url, parameters=parameters)
            assert len(ask(model, request(max_tokens=100)).text) == 200_000


def test_thoughts_beside_a_short_answer_are_no_flood() -> None:
    """Some servers send thoughts that the limit does not count.

    Here they have 32,000 tokens, each character escaped.
    """
    with serving(lambda body: chat("gout", reasoning_content="病" * 100_000)) as server:
        assert ask(endpoint(server.url), request(max_tokens=5)).text == "gout"


COUNTS = [2**63, 10**30, -1, 1.5, "12", True, None, [1], 10**9 + 1]


@pytest.mark.long
@pytest.mark.parametrize("count", COUNTS, ids=repr)
@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens", None])
def test_a_count_that_is_none_is_unknown_and_said(
    count: Any, name: str | None, tmp_path: Path
) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3, name: count} if name else count
    with serving(lambda body: chat("yes", usage=usage)) as server:
        model = endpoint(server.url)
        replies = Replies(tmp_path / FILE)
        reply = ask(
            Cached(model, Account(replies, "run"), Price(output=1.0)), request(max_tokens=1000)
        )
        (cost,) = replies.costs("run")
        replies.close()
    assert (reply.text, reply.prompt_tokens, reply.completion_tokens) == ("yes", 0, 0)
    assert len(model.notes) == 1
    assert "tokens" in model.notes[0]
    # What cannot be known is charged as the most that it can be.
    assert cost.cost == pytest.approx(1000 / 10**6)


# Keys


def escaped(text: str, how: str) -> str:
    """`text` with each character written otherwise."""
    return "".join(how.format(ord(letter)) for letter in text)


FORMS = {
    "as it is": KEY,
    "in capitals": KEY.upper(),
    "in small letters": KEY.lower(),
    "as in a URL": quote(KEY, safe=""),
    "every character as in a URL": escaped(KEY, "%{:02X}"),
    "as in JSON": escaped(KEY, "\\u{:04x}"),
    "as in JSON in JSON": escaped(KEY, "\\\\u{:04X}"),
    "as in HTML": escaped(KEY, "&#{};"),
    "as in HTML, hexadecimal": escaped(KEY, "&#x{:X};"),
    "in Base64": base64.b64encode(KEY.encode()).decode(),
    "in Base64 for URLs": base64.urlsafe_b64encode(KEY.encode()).decode(),
    "in Base64, as a header": base64.b64encode(f"Bearer {KEY}".encode()).decode(),
    "in Base64, behind one": base64.b64encode(f"u{KEY} and more".encode()).decode(),
    "in Base64, behind two": base64.b64encode(f"u:{KEY}.".encode()).decode(),
}


@pytest.fixture
def variable(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("WORKUP_TEST_KEY", KEY)
    return "WORKUP_TEST_KEY"


def tells(text: str) -> bool:
    """Whether the key, or a part of it that is long enough to matter, can be read in `text`."""
    forms = (*FORMS.values(), KEY[4:-4], KEY[4:-4].lower(), KEY[4:-4].upper())
    return any(form in text for form in forms)


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_key_that_is_quoted_is_cut_out_of_answers_and_refusals(form: str, variable: str) -> None:
    assert tells(form)
    answers: Sequence[Response] = [
        chat(f"Your key is {form}, I think."),
        chat(None, refusal=f"Not with {form}!"),
        fault(400, f"no {form}"),
        Response(f"no {form}", status=418),
    ]
    told = []
    for answer in answers:
        with serving(lambda body, answer=answer: answer) as server:
            try:
                told.append(ask(endpoint(server.url, api_key_env=variable)).text)
            except RolloutError as error:
                told.append(str(error))
    assert not [text for text in told if tells(text)]
    # In Base64 the first and last characters belong to what stands around the key as well.
    assert told[0].startswith("Your key is ")
    assert told[0].endswith(", I think.")
    assert len(told[0]) <= len("Your key is dTp…gBhbmQgbW9yZQ==, I think.")
    assert all("…" in text for text in told)


def test_a_key_of_one_endpoint_is_cut_out_of_the_answers_of_another(variable: str) -> None:
    with serving(lambda body: chat(f"somebody told me {KEY}")) as server:
        endpoint("http://x.example/v1", api_key_env=variable)  # opened, and never asked
        assert ask(endpoint(server.url)).text == "somebody told me …"


def test_no_key_reaches_the_cache(variable: str, tmp_path: Path) -> None:
    with serving(lambda body: chat(f"{KEY.title()} {KEY}")) as server:
        replies = Replies(tmp_path / FILE)
        ask(Cached(endpoint(server.url, api_key_env=variable), Account(replies, "run")))
        replies.close()
    with sqlite3.connect(tmp_path / FILE) as kept:
        assert not tells("".join(kept.iterdump()))


@given(st.text(max_size=200), st.text(max_size=200))
def test_what_is_no_key_stays(before: str, after: str) -> None:
    keys.learn(KEY)
    keys.learn("EMPTY")  # what servers without keys are given
    text = f"{before} EMPTY {after}"
    if not tells(text):
        assert keys.without_keys(text) == text
    assert keys.without_keys(f"{before}{KEY}{after}") in (
        f"{before}…{after}",
        keys.without_keys(before + "…" + after),
    )


@pytest.mark.long
@pytest.mark.parametrize("unit", ["\\", "s", "%7", "&#0", "&#x0", "sk-", KEY[:-1], "\\u00"])
def test_cutting_keys_out_is_linear(unit: str) -> None:
    """Counted in the work of one character: a megabyte ends."""
    keys.learn(KEY)
    text = unit * (MEGA // len(unit))
    assert keys.without_keys(text) == text
