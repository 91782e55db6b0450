"""Endpoints against a real server on loopback: faults, limits, formats, keys."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import threading
import time
import traceback
import zlib
from collections import Counter
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from serving import Reset, completion, fault, serving, truncated
from still_time import Clock, Watched
from waiting import HANG
from werkzeug import Response

from workup.core.episode import Message
from workup.core.errors import RolloutError, UserError, WorkupError
from workup.core.ports import Reply, Request
from workup.roles.endpoint import Endpoint, EndpointSettings
from workup.roles.faults import retry_after

SCHEMA = json.dumps({"type": "object", "properties": {"same": {"type": "boolean"}}})
KEY = "sk-test-51Hx9QpLwZ7vRk2Tn8"


def endpoint(url: str, **settings: Any) -> Endpoint:
    return Endpoint(EndpointSettings(base_url=url, model="m", **{"backoff": 0.01, **settings}))


def request(text: str = "hello", **more: Any) -> Request:
    return Request("judge", "1", (Message("user", text),), **more)


def watched(clock: Clock, url: str, **settings: Any) -> Endpoint:
    """An endpoint whose waits take no time; to be asked by `clock`."""
    model = Watched(endpoint(url, **settings).settings)
    model.clock = clock
    return model


def ask(model: Endpoint, *requests: Request) -> list[Reply]:
    async def together() -> list[Reply]:
        return await asyncio.gather(*(model.complete(one) for one in requests))

    return model.clock.run(together()) if isinstance(model, Watched) else asyncio.run(together())


def asked_text(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


def echo(body: dict[str, Any]) -> str:
    return hashlib.sha256(asked_text(body).encode()).hexdigest()


# Faults


class Faulty:
    """One answer in five is a fault; which, depends on the request's text and how often it came."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.seen: Counter[str] = Counter()
        self.kinds: Counter[int] = Counter()
        self.lock = threading.Lock()

    def __call__(self, body: dict[str, Any]) -> str | Response:
        text = asked_text(body)
        with self.lock:
            self.seen[text] += 1
            draw = zlib.crc32(f"{text} {self.seen[text]}".encode())
        if draw % 5:
            return echo(body)
        kind = draw // 5 % 9
        with self.lock:
            self.kinds[kind] += 1
        if kind == 0:
            return self.clock.hang()
        wrong = Response(
            '{"choices": [{"message": {"content": 5}}]}', content_type="application/json"
        )
        return (
            fault(429, **{"retry_after_ms": "20"}),
            fault(500),
            fault(503, retry_after="0"),
            Reset(),
            truncated("half an answer"),
            wrong,
            Response('{"choices": []}', content_type="application/json"),
            Response("<html>bad gateway</html>", content_type="text/html"),
        )[kind - 1]


def test_with_a_fault_in_five_answers_200_requests_end_as_without() -> None:
    requests = [request(f"patient {i}") for i in range(200)]
    with serving(echo) as server:
        clean = ask(endpoint(server.url, concurrency=32), *requests)
    faulty = Faulty(clock := Clock())
    with serving(faulty) as server:
        replies = ask(watched(clock, server.url, concurrency=32, retries=8), *requests)
    assert replies == clean
    assert set(faulty.kinds) == set(range(9))
    assert 30 <= sum(faulty.kinds.values()) <= 90
    assert max(faulty.seen.values()) >= 3


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_what_may_pass_is_tried_again(status: int) -> None:
    answers = iter([fault(status), fault(status), completion("yes")])
    with serving(lambda body: next(answers)) as server:
        assert ask(endpoint(server.url), request())[0].text == "yes"
        assert len(server.asked) == 3


def test_retries_end_with_the_last_reason() -> None:
    with serving(lambda body: fault(500, "out of memory")) as server:
        with pytest.raises(
            RolloutError, match=r"^m at http://localhost:\d+/\d+/v1: gave up: 500 out of memory$"
        ):
            ask(endpoint(server.url, retries=2), request())
        assert len(server.asked) == 3


@pytest.mark.parametrize("answer", [completion(""), completion(None), completion(" \n")])
def test_an_empty_answer_is_no_answer(answer: Response) -> None:
    with serving(lambda body: answer) as server:
        with pytest.raises(RolloutError, match="an empty answer"):
            ask(endpoint(server.url, retries=1), request())
        assert len(server.asked) == 2


def test_a_refusal_is_no_answer() -> None:
    body = {
        "choices": [
            {
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": None, "refusal": "I will not"},
            }
        ]
    }
    with serving(
        lambda asked: Response(json.dumps(body), content_type="application/json")
    ) as server:
        model = endpoint(server.url, retries=1)
        with pytest.raises(RolloutError, match="it refused: I will not"):
            ask(model, request())
        assert "does not say how many tokens" in model.notes[0]


def test_an_answer_cut_off_says_so_and_one_cut_off_before_it_began_fails_at_once() -> None:
    answers = iter([completion("the dia", finish="length"), completion("", finish="length")])
    with serving(lambda body: next(answers)) as server:
        model = endpoint(server.url)
        assert ask(model, request())[0] == Reply("the dia", 7, 3, truncated=True)
        with pytest.raises(RolloutError, match="all 5 tokens were spent"):
            ask(model, request(max_tokens=5))
        assert len(server.asked) == 2


def test_a_request_that_is_refused_is_not_repeated() -> None:
    with serving(lambda body: fault(400, "the context is 4096 tokens")) as server:
        with pytest.raises(
            RolloutError, match="refuses the request: 400 the context is 4096 tokens"
        ):
            ask(endpoint(server.url), request(schema=SCHEMA))
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            fault(404, "no such model"),
            r"knows no model 'm'.*base_url usually ends in /v1.*no such model",
        ),
        (
            fault(308, location="http://elsewhere.example/v1"),
            r"it sends us to http://elsewhere\.example/v1",
        ),
        (fault(402, "pay first"), "no credit left: 402 pay first"),
        (
            fault(401, "who are you"),
            r"without a key \(api_key_env names its variable\): 401 who are you",
        ),
    ],
)
def test_what_the_user_can_mend_is_said_in_one_line_and_not_repeated(
    answer: Response, said: str
) -> None:
    with serving(lambda body: answer) as server:
        with pytest.raises(UserError, match=said) as caught:
            ask(endpoint(server.url), request())
        assert len(server.asked) == 1
    assert "\n" not in str(caught.value)


def test_where_nobody_listens_the_request_fails_with_the_address() -> None:
    with pytest.raises(
        RolloutError, match=r"127\.0\.0\.1:9/v1: gave up: the connection failed \(ConnectError\)"
    ):
        ask(endpoint("http://127.0.0.1:9/v1", retries=1), request())


# Waiting


@pytest.mark.parametrize("dated", [False, True])
def test_retry_after_is_honoured_by_every_request(dated: bool) -> None:
    clock, arrivals = Clock(), list[float]()
    wish = formatdate(time.time() + 36_000, usegmt=True) if dated else "36000"

    def answer(body: dict[str, Any]) -> str | Response:
        arrivals.append(clock.now)
        return fault(429, retry_after=wish) if len(arrivals) == 1 else "yes"

    with serving(answer) as server:
        model = watched(clock, server.url, concurrency=1, deadline=40_000)
        ask(model, request("a"), request("b"), request("c"))
    first, *others = arrivals
    assert (first, len(others)) == (0, 3)
    # The time until a date is counted from the second that the server names in its answer.
    wait = min(others) if dated else 36_000
    assert 30_000 < wait <= 36_001
    assert all(wait <= arrival < wait + 0.011 for arrival in others)


def test_a_wish_beyond_the_deadline_ends_it_at_once_for_those_in_the_queue_too() -> None:
    with serving(lambda body: fault(429, retry_after="3600")) as server:
        model = watched(clock := Clock(), server.url, concurrency=1)

        async def together() -> list[Any]:
            return await asyncio.gather(
                *(model.complete(request(str(i))) for i in range(4)), return_exceptions=True
            )

        first, *others = clock.run(together())
        assert clock.now == 0
        assert len(server.asked) == 1
        assert "gave up: 429 no (it asks to wait 3600 s)" in str(first)
        assert all(
            isinstance(error, RolloutError) and "3600 s of silence" in str(error)
            for error in others
        )


@given(st.one_of(st.text(), st.floats().map(str), st.integers().map(str)), st.text())
def test_any_header_is_a_wait_or_none(value: str, date: str) -> None:
    wait = retry_after({"retry-after": value, "date": date})
    assert wait is None or 0 <= wait < math.inf


def test_a_date_is_measured_by_the_endpoint_s_own_clock() -> None:
    headers = {
        "retry-after": formatdate(1_000_030, usegmt=True),
        "date": formatdate(1_000_000, usegmt=True),
    }
    assert retry_after(headers) == 30
    assert retry_after({"retry-after": formatdate(1_000_000, usegmt=True)}) == 0
    assert retry_after({"retry-after-ms": "1500", "retry-after": "7"}) == 1.5
    assert retry_after({}) is None


def test_the_deadline_ends_a_request_between_attempts_and_within_one() -> None:
    with serving(lambda body: fault(500)) as server:
        model = watched(clock := Clock(), server.url, retries=1000, backoff=10, deadline=59)
        with pytest.raises(RolloutError, match=r"its deadline of 59 s passed: 500 no"):
            ask(model, request())
        assert clock.now == pytest.approx(59)
        # At once, 10 to 20 s later, 20 to 30 s after that; the next one would be 30 s later.
        assert len(server.asked) == 3
    clock = Clock()
    with serving(lambda body: clock.hang()) as server:
        with pytest.raises(RolloutError, match=r"its deadline of 5 s passed: no answer"):
            ask(watched(clock, server.url, deadline=5), request())
        assert clock.now == pytest.approx(5)
        assert len(server.asked) == 1


def test_the_timeout_ends_an_attempt() -> None:
    clock = Clock()
    with serving(lambda body: clock.hang()) as server:
        with pytest.raises(RolloutError, match=r"gave up: no answer within 40 s"):
            ask(watched(clock, server.url, timeout=40, retries=1), request())
        assert len(server.asked) == 2
        assert 80.01 <= clock.now < 80.021  # two attempts, and the backoff between them


# Limits


def test_no_more_than_allowed_are_in_flight_and_a_queue_does_not_age() -> None:
    clock = Clock()

    def later() -> None:
        clock.now += 30

    three = threading.Barrier(3, later, HANG)  # three are answered together, after half a minute
    with serving(lambda body: f"yes {three.wait()}") as server:
        model = watched(clock, server.url, concurrency=3, deadline=100)
        ask(model, *(request(str(i)) for i in range(36)))
        assert server.most == 3
        assert clock.now == 12 * 30


def test_connections_are_kept_in_small_pools_and_used_again() -> None:
    """The first 40 requests are under way at once; those after them need one pool alone."""
    together, count = threading.Barrier(40), 40

    def answer(body: dict[str, Any]) -> str:
        if asked_text(body).startswith("first"):
            together.wait(HANG)
        return echo(body)

    async def pools() -> list[int]:
        model = endpoint(server.url, concurrency=count)
        made = []
        for texts in (("first", count), ("then", 5), ("again", 5)):
            asked = [request(f"{texts[0]} {number}") for number in range(texts[1])]
            await asyncio.gather(*(model.complete(one) for one in asked))
            clients = (await model._line()).clients
            made.append(len(clients._under_way))
            assert set(clients._under_way.values()) == {0}
        with pytest.raises(RolloutError, match="m at http"):
            await endpoint(f"{server.url}/none", retries=0).complete(request())
        return made

    with serving(answer) as server:
        assert asyncio.run(pools()) == [3, 3, 3]  # 16 + 16 + 8
        assert server.most == count


def test_a_retry_does_not_age_in_the_queue_either() -> None:
    clock, first = Clock(), iter([fault(500)])

    def slow(body: dict[str, Any]) -> str | Response:
        clock.now += 10
        return next(first, "yes")

    with serving(slow) as server:
        model = watched(clock, server.url, concurrency=1, deadline=100)
        ask(model, *(request(str(i)) for i in range(15)))
        assert len(server.asked) == 16
        assert asked_text(server.asked[0]) == asked_text(server.asked[-1])
        assert clock.now == 160


def test_requests_are_spaced_by_the_rate() -> None:
    clock, arrivals = Clock(), list[float]()

    def answer(body: dict[str, Any]) -> str:
        arrivals.append(clock.now)
        return "yes"

    with serving(answer) as server:
        model = watched(clock, server.url, requests_per_minute=12)
        ask(model, *(request(str(i)) for i in range(12)))
    assert arrivals == pytest.approx([5.0 * i for i in range(12)])


def test_no_place_is_held_while_backing_off() -> None:
    answers = {"a": iter([fault(500), completion("late")]), "b": iter([completion("soon")])}
    order: list[str] = []
    with serving(lambda body: next(answers[asked_text(body)])) as server:
        model = watched(clock := Clock(), server.url, concurrency=1, backoff=20)

        async def one(text: str) -> None:
            order.append((await model.complete(request(text))).text)

        async def both() -> None:
            await asyncio.gather(one("a"), one("b"))

        clock.run(both())
    assert order == ["soon", "late"]
    assert 20 <= clock.now <= 40


def test_a_cancelled_request_gives_its_place_back() -> None:
    release = threading.Event()

    def answer(body: dict[str, Any]) -> str:
        return str(asked_text(body) == "go on" or release.wait(HANG))

    with serving(answer) as server:
        model = endpoint(server.url, concurrency=1)

        async def story() -> Reply:
            hanging = asyncio.create_task(model.complete(request("hang")))
            while not server.asked:
                await asyncio.sleep(0.01)
            hanging.cancel()
            return await model.complete(request("go on"))

        assert asyncio.run(story()).text == "True"
        release.set()


# What is sent


def sent(answer: str = "{}", request: Request = request(), **settings: Any) -> dict[str, Any]:  # noqa: B008
    with serving(lambda body: answer) as server:
        ask(endpoint(server.url, **settings), request)
        return server.asked[0]


def test_a_plain_request_is_sent_as_it_is() -> None:
    body = sent(request=request("你好 \ud800", max_tokens=9, temperature=0.5))
    messages = [{"role": "user", "content": "你好 \ufffd"}]
    assert body == {"model": "m", "messages": messages, "max_tokens": 9, "temperature": 0.5}


def test_parameters_add_replace_and_remove() -> None:
    parameters = {"temperature": None, "reasoning_effort": "low", "top_p": 0.9}
    body = sent(max_tokens_name="max_completion_tokens", parameters=parameters)
    assert "temperature" not in body
    assert "max_tokens" not in body
    assert (body["max_completion_tokens"], body["reasoning_effort"], body["top_p"]) == (
        1024,
        "low",
        0.9,
    )


def test_parameters_are_part_of_the_name() -> None:
    names = {
        endpoint("http://x.example/v1/", parameters=own).name
        for own in ({}, {"top_p": 1}, {"top_p": 0.9})
    }
    assert len(names) == 3
    assert "m at http://x.example/v1" in names
    assert 'm at http://x.example/v1 with {"top_p": 1}' in names


def test_what_else_changes_a_request_is_part_of_the_name_where_it_is_not_usual() -> None:
    """The usual settings leave the names, hence the keys of the cache, as they have been."""
    settings: list[dict[str, Any]] = [
        {"seed": seed, "structured": structured, "parameters": own}
        for seed in (False, True)
        for structured in ("json_schema", "json_object", "none")
        for own in ({}, {"top_p": 1})
    ]
    names = {
        (
            json.dumps(sent(request=request(schema=SCHEMA, temperature=1.0), **more)),
            endpoint("http://x.example/v1", **more).name,
        )
        for more in settings
    }
    assert len({body for body, _ in names}) == len({name for _, name in names}) == 12
    usual = endpoint("http://x.example/v1", seed=False, structured="json_schema").name
    assert usual == "m at http://x.example/v1"


def test_a_seed_is_sent_where_it_is_asked_for_and_means_something() -> None:
    assert sent(request=request(temperature=1.0, sample=4), seed=True)["seed"] == 4
    assert "seed" not in sent(request=request(temperature=0.0, sample=4), seed=True)
    assert "seed" not in sent(request=request(temperature=1.0, sample=4))


def test_a_schema_is_sent_the_way_the_endpoint_takes_it() -> None:
    field = sent(request=Request("fact checker", "1", (Message("user", "hello"),), schema=SCHEMA))
    assert field["response_format"]["json_schema"] == {
        "name": "fact_checker",
        "schema": json.loads(SCHEMA),
    }
    assert asked_text(field) == "hello"
    for structured, form in (("json_object", {"type": "json_object"}), ("none", None)):
        body = sent(request=request(schema=SCHEMA), structured=structured)
        assert body.get("response_format") == form
        assert asked_text(body).startswith("hello\n")
        assert SCHEMA in asked_text(body)
    assert "response_format" not in sent(structured="json_object")


@pytest.mark.parametrize("status", [400, 422])
def test_an_endpoint_without_response_format_gets_the_schema_in_the_prompt_from_then_on(
    status: int,
) -> None:
    refused = fault(status, "Unrecognized request argument: response_format")
    with serving(lambda body: refused if "response_format" in body else echo(body)) as server:
        model = endpoint(server.url, retries=0)
        ask(model, *(request(str(i), schema=SCHEMA) for i in range(4)))
        assert len(model.notes) == 1
        assert "response_format; the schema goes into the prompt" in model.notes[0]
        before = len(server.asked)
        ask(model, request("again", schema=SCHEMA))
        assert len(server.asked) == before + 1
        assert SCHEMA in asked_text(server.asked[-1])


def test_a_refusal_of_a_request_without_a_schema_says_nothing_of_schemas() -> None:
    refused = fault(400, "response_format: null is not allowed")
    with serving(lambda body: echo(body) if "response_format" in body else refused) as server:
        model = endpoint(server.url, retries=0)
        with pytest.raises(RolloutError, match="null is not allowed"):
            ask(model, request("plain"))
        assert not model.notes
        ask(model, request("shaped", schema=SCHEMA))
        assert "response_format" in server.asked[-1]


def test_an_endpoint_that_refuses_both_forms_fails() -> None:
    with serving(lambda body: fault(400, "guided decoding is broken")) as server:
        with pytest.raises(RolloutError, match="guided decoding is broken"):
            ask(endpoint(server.url), request(schema=SCHEMA))
        assert len(server.asked) == 2


# Keys


@pytest.mark.parametrize(
    "answer",
    [
        fault(401, f"the key {KEY} is wrong"),
        fault(403, f"{KEY}\n{KEY}"),
        fault(400, f"bad response_format {KEY}"),
        fault(404, KEY, location=f"http://x.example/{KEY}"),
        fault(429, f"slow down, {KEY}"),
        fault(500, KEY),
        Response(KEY, status=418, content_type="text/plain"),
        Response(json.dumps({"choices": KEY}), content_type="application/json"),
        truncated(KEY * 20),
        Reset(),
    ],
)
def test_the_key_is_sent_and_never_told(
    answer: Response,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WORKUP_TEST_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    with serving(lambda body: answer) as server:
        model = endpoint(server.url, api_key_env="WORKUP_TEST_KEY", retries=1)
        with pytest.raises(WorkupError) as caught:
            ask(model, request(schema=SCHEMA))
        assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    told = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    # Headers that the endpoint itself makes up are shown to whoever turns the wire's own log on.
    ours = [
        record for record in caplog.records if "receive_response_headers" not in record.getMessage()
    ]
    logged = [record.getMessage() + repr(record.__dict__) for record in ours]
    texts = [
        *told.format(),
        *chain(caught.value),
        *logged,
        *model.notes,
        repr(model),
        model.name,
        *capfd.readouterr(),
    ]
    assert not [text for text in texts if KEY in text]


def chain(error: BaseException | None) -> list[str]:
    """Every error behind one, shown or not."""
    return (
        [] if error is None else [repr(error), *chain(error.__cause__), *chain(error.__context__)]
    )


def test_a_refused_key_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKUP_TEST_KEY", KEY)
    with (
        serving(lambda body: fault(401, f"wrong: {KEY}")) as server,
        pytest.raises(UserError, match=r"refuses the key in WORKUP_TEST_KEY: 401 wrong: …$"),
    ):
        ask(endpoint(server.url, api_key_env="WORKUP_TEST_KEY"), request())


@pytest.mark.parametrize(
    ("key", "said"),
    [(None, "is not set"), ("  ", "is not set"), ("sk-a b", "spaces"), ("schlüssel", "non-ASCII")],
)
def test_a_variable_without_a_usable_key_is_named_before_anything_is_sent(
    key: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORKUP_TEST_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("WORKUP_TEST_KEY", key)
    with serving(echo) as server:
        with pytest.raises(UserError, match=f"WORKUP_TEST_KEY .*{said}") as caught:
            ask(endpoint(server.url, api_key_env="WORKUP_TEST_KEY"), request())
        assert not server.asked
    assert not (key or "").strip() or str(key) not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"api_key": KEY},
        {"api_key_env": KEY},
        {"api_key_env": "hf_abcdefghijklmnop"},
        {"base_url": f"https://user:{KEY}@x.example/v1"},
        {"base_url": f"https://x.example/v1?key={KEY}"},
        {"base_url": "x.example/v1"},
        {"parameters": {"stream": True}},
        {"parameters": {"max_tokens": "900"}},
        {"parameters": {"max_tokens": True}},
        {"parameters": {"max_completion_tokens": 0}},
        {"concurrency": 0},
    ],
)
def test_settings_refuse_what_may_hold_a_key_without_quoting_it(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        EndpointSettings(**{"base_url": "https://x.example/v1", "model": "m", **settings})
    assert KEY not in str(caught.value)
    assert "abcdefghij" not in str(caught.value)
