"""The cache and the ledger, in front of a real endpoint on loopback.

Tested is what is sent, kept, charged, refused and found again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asking import RUN, question
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import Gate, Reset, Server, completion, fault, serving, truncated
from waiting import HANG
from werkzeug import Response

from workup.core.episode import Message
from workup.core.errors import BudgetError, CaseError, RolloutError, UserError
from workup.core.ports import Reply, Request
from workup.roles import upkeep
from workup.roles.account import Account, cost, most
from workup.roles.cached import Cached
from workup.roles.endpoint import Endpoint, EndpointSettings, Price
from workup.roles.replies import DAY, FILE, Charge, Replies, asked
from workup.roles.upkeep import Which

FREE = Charge("r", 7, 3, 0.0)
DEAR = Price(
    input=10_000, output=20_000
)  # 0.13 for one answer of the server: 7 tokens read, 3 written


@pytest.fixture
def replies(tmp_path: Path) -> Iterator[Replies]:
    opened = Replies(tmp_path / "cache" / FILE)
    yield opened
    opened.close()


def endpoint(server: Server, **more: Any) -> Endpoint:
    return Endpoint(
        EndpointSettings(
            base_url=server.url, model="m", **{"retries": 0, "concurrency": 64, **more}
        )
    )


def echo(body: dict[str, Any]) -> str:
    return f"to {body['messages'][-1]['content']}"


def numbers(server: Server) -> Counter[str]:
    """How often each question reached the server."""
    return Counter(body["messages"][-1]["content"] for body in server.asked)


def charges(path: Path) -> list[tuple[Any, ...]]:
    return (
        sqlite3.connect(path)
        .execute("SELECT run, role, key, cost FROM charges ORDER BY id")
        .fetchall()
    )


def kept(path: Path) -> set[str]:
    return {key for (key,) in sqlite3.connect(path).execute("SELECT key FROM replies")}


# --------------------------------------------------------------------------------------------- keys

TEXT = st.text(st.characters(codec=None), max_size=12)  # lone surrogates and NUL too
SOUND = st.text(max_size=12)


def requests(text: st.SearchStrategy[str] = SOUND) -> st.SearchStrategy[Request]:
    messages = st.lists(
        st.builds(Message, st.sampled_from(["system", "user", "assistant"]), text),
        min_size=1,
        max_size=3,
    )
    return st.builds(
        Request,
        text,
        text,
        messages.map(tuple),
        text,
        st.integers(1, 9),
        st.sampled_from([0, 0.0, 0.5, 1]),
        st.integers(0, 2),
    )


@given(requests(), requests(), SOUND, SOUND)
def test_keys_are_equal_exactly_where_everything_is(
    one: Request, other: Request, model: str, another: str
) -> None:
    same = (one, model) == (other, another)
    assert (asked(model, one).key == asked(another, other).key) == same
    assert asked(model, one) == asked(model, replace(one, temperature=float(one.temperature)))


@given(requests())
def test_each_part_of_a_request_makes_another_key(request: Request) -> None:
    shifted = Message(request.messages[0].role, request.messages[0].content + "x")
    others = [
        replace(request, role=request.role + "x"),
        replace(request, version=request.version + "x"),
        replace(request, messages=(shifted, *request.messages[1:])),
        replace(request, messages=(*request.messages, Message("user", ""))),
        replace(request, schema=request.schema + " "),
        replace(request, max_tokens=request.max_tokens + 1),
        replace(request, temperature=request.temperature + 0.1),
        replace(request, sample=request.sample + 1),
    ]
    keys = [asked("m", other).key for other in (request, *others)] + [
        asked("n", request).key,
        asked("m", request, "run").key,
    ]
    assert len(set(keys)) == len(keys)


@given(requests(TEXT))
def test_a_key_is_the_digest_of_the_body(request: Request) -> None:
    what = asked("m", request)
    assert what.key == hashlib.blake2b(what.body.encode(), digest_size=16).hexdigest()
    assert json.loads(what.body)["max_tokens"] == request.max_tokens


@settings(max_examples=20)
@given(
    st.lists(
        st.tuples(requests(TEXT), TEXT, st.integers(0, 99), st.booleans()), min_size=1, max_size=8
    )
)
def test_what_is_kept_is_found(drawn: list[tuple[Request, str, int, bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        replies = Replies(Path(folder) / FILE)
        first: dict[str, Reply] = {}
        for request, text, tokens, cut in drawn:
            what = asked("m", request)
            handed = replies.keep(what, Reply(text, tokens, tokens, cut), FREE).result()
            first.setdefault(what.key, handed)
            assert handed == first[what.key]  # the first answer is the answer
            assert replies.find(what.key) == replace(handed, cached=True)
            assert first[what.key].text.encode().decode() == handed.text
        assert len(charges(replies.path)) == len(drawn)
        replies.close()
        again = Replies(Path(folder) / FILE)
        assert {key: again.find(key) for key in first} == {
            key: replace(reply, cached=True) for key, reply in first.items()
        }
        again.close()


# --------------------------------------------------------------------------------- asking only once


def test_equal_requests_at_the_same_time_are_sent_once(replies: Replies) -> None:
    with serving(echo) as server:
        model = Cached(endpoint(server), Account(replies, "r"))

        async def ask() -> list[Reply]:
            return await asyncio.gather(*(model.complete(question(i % 5)) for i in range(40)))

        first, second = asyncio.run(ask()), asyncio.run(ask())
    assert (
        [reply.text for reply in first]
        == [f"to {i % 5}" for i in range(40)]
        == [reply.text for reply in second]
    )
    assert numbers(server) == {str(i): 1 for i in range(5)}
    assert [sum(reply.cached for reply in some) for some in (first, second)] == [0, 40]
    (row,) = replies.costs("r")
    assert (row.calls, row.hits, row.prompt_tokens, row.completion_tokens) == (5, 75, 35, 15)


def test_one_who_stops_waiting_stops_nobody_else(replies: Replies) -> None:
    gate = threading.Event()

    def slow(body: dict[str, Any]) -> str:
        gate.wait(HANG)
        return "late"

    async def ask(model: Cached) -> None:
        tasks = [asyncio.create_task(model.complete(question(1))) for _ in range(3)]
        await asked_of(server, 1)
        tasks[0].cancel()
        tasks[2].cancel()
        await asyncio.wait([tasks[0], tasks[2]])
        gate.set()
        assert (await tasks[1]).text == "late"
        assert [task.cancelled() for task in tasks] == [True, False, True]

    with serving(slow) as server:
        asyncio.run(ask(Cached(endpoint(server), Account(replies, "r"))))
    assert len(server.asked) == len(charges(replies.path)) == 1


def test_the_last_who_stops_waiting_stops_the_call_and_the_next_one_sends_it_anew(
    replies: Replies,
) -> None:
    gate = threading.Event()

    def slow(body: dict[str, Any]) -> str:
        if len(server.asked) == 1:
            gate.wait(HANG)
        return "there"

    async def ask(model: Cached) -> None:
        tasks = [asyncio.create_task(model.complete(question(1))) for _ in range(3)]
        await asked_of(server, 1)
        for task in tasks:
            task.cancel()
        await asyncio.sleep(
            0
        )  # the tasks end now; the call that they share has been told, and has not ended
        assert (await model.complete(question(1))).text == "there"
        assert all(task.cancelled() for task in tasks)

    with serving(slow) as server:
        asyncio.run(ask(Cached(endpoint(server), Account(replies, "r", 100.0), DEAR)))
        gate.set()
    assert len(server.asked) == 2
    assert len(charges(replies.path)) == 1


async def asked_of(server: Server, count: int) -> None:
    while len(server.asked) < count:
        await asyncio.sleep(0.005)


def test_a_failure_reaches_everybody_and_is_not_kept(replies: Replies) -> None:
    faults = [Response("no", status=500)]

    def answer(body: dict[str, Any]) -> str | Response:
        return faults.pop() if faults else "better"

    with serving(answer) as server:
        model = Cached(endpoint(server), Account(replies, "r", 100.0), DEAR)

        async def ask() -> list[Reply | BaseException]:
            return await asyncio.gather(
                *(model.complete(question(1)) for _ in range(4)), return_exceptions=True
            )

        assert all(isinstance(outcome, RolloutError) for outcome in asyncio.run(ask()))
        assert charges(replies.path) == []
        assert [reply.text for reply in asyncio.run(ask()) if isinstance(reply, Reply)] == [
            "better"
        ] * 4
    assert len(server.asked) == 2


def test_faults_change_no_answer_and_charge_nothing_twice(replies: Replies) -> None:
    draw, lock, faults = random.Random(3), threading.Lock(), 0

    def faulty(body: dict[str, Any]) -> str | Response:
        nonlocal faults
        with lock:
            if draw.random() > 0.2:
                return echo(body)
            faults += 1
            kind = draw.randrange(4)
        return [fault(429, retry_after="0"), fault(500), Reset(), truncated(echo(body))][kind]

    with serving(faulty) as server:
        settings = EndpointSettings(base_url=server.url, model="m", retries=12, backoff=0.01)
        model = Cached(Endpoint(settings), Account(replies, "r", 1_000.0), DEAR)

        async def ask() -> list[Reply]:
            return await asyncio.gather(*(model.complete(brief(i % 100)) for i in range(200)))

        assert [reply.text for reply in asyncio.run(ask())] == [f"to {i % 100}" for i in range(200)]
    assert faults > 10
    assert len(server.asked) == 100 + faults
    ledger = charges(replies.path)
    assert len(ledger) == len({key for _, _, key, _ in ledger}) == 100
    assert sum(money for *_, money in ledger) == pytest.approx(100 * 0.13)


def test_replay_answers_from_the_cache_alone(replies: Replies) -> None:
    with serving(echo) as server:
        asyncio.run(Cached(endpoint(server), Account(replies, "one")).complete(question(1)))
        model = Cached(endpoint(server), Account(replies, "two"), replay=True)
        assert asyncio.run(model.complete(question(1))) == Reply("to 1", 7, 3, cached=True)
        with pytest.raises(
            UserError,
            match=r"as judge \(version 1, key [0-9a-f]{32}\).*without replay to record it",
        ):
            asyncio.run(model.complete(question(2)))
    assert len(server.asked) == 1
    assert [(row.calls, row.hits) for row in replies.costs("two")] == [(0, 1)]


def test_a_fresh_run_uses_its_own_answers_alone(replies: Replies) -> None:
    with serving(lambda body: f"number {len(server.asked)}") as server:

        def text(run: str, *, fresh: bool) -> str:
            return asyncio.run(
                Cached(endpoint(server), Account(replies, run), fresh=fresh).complete(question(1))
            ).text

        asked_by = [("a", False), ("b", False), ("b", True), ("b", True), ("c", True), ("c", False)]
        assert [text(run, fresh=fresh)[-1] for run, fresh in asked_by] == [
            "1",
            "1",
            "2",
            "2",
            "3",
            "1",
        ]


# ---------------------------------------------------------------------------- on the disk, in order


def test_an_answer_is_handed_out_only_when_it_is_written(replies: Replies) -> None:
    other = sqlite3.connect(replies.path, isolation_level=None)  # another process that writes

    async def ask(model: Cached) -> None:
        other.execute("BEGIN IMMEDIATE")
        task = asyncio.create_task(model.complete(question(1)))
        while not replies._writing.locked():  # it has the answer, and waits to write it
            await asyncio.sleep(0.001)
        for _ in range(50):  # the event loop goes on meanwhile
            await asyncio.sleep(0.001)
        assert not task.done()
        other.execute("COMMIT")
        assert (await task).text == "to 1"
        other.execute("BEGIN IMMEDIATE")
        assert (
            await model.complete(question(1))
        ).cached  # nobody who writes keeps others from reading
        other.execute("COMMIT")

    with serving(echo) as server:
        asyncio.run(ask(Cached(endpoint(server), Account(replies, "r"))))
    other.close()


def test_answers_that_come_together_share_transactions(replies: Replies) -> None:
    said: list[str] = []
    replies._writer.set_trace_callback(said.append)
    other = sqlite3.connect(replies.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # nothing can be written until all have come
    futures = [replies.keep(asked("m", question(i)), Reply(str(i)), FREE) for i in range(2_000)]
    other.execute("COMMIT")
    assert [future.result().text for future in futures] == [str(i) for i in range(2_000)]
    assert 1 <= said.count("COMMIT") <= 2
    other.close()


def test_hits_are_counted_without_a_write_each(replies: Replies) -> None:
    said: list[str] = []
    replies._writer.set_trace_callback(said.append)
    for _ in range(2_500):
        replies.hit("r", "judge", "m")
    assert [(row.calls, row.hits) for row in replies.costs("r")] == [(0, 2_500)]
    assert said.count("COMMIT") <= 3


def test_the_file_is_the_owners_alone(replies: Replies) -> None:
    replies.keep(asked("m", question(1)), Reply("x"), FREE).result()
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in (replies.path.parent, *replies.path.parent.iterdir())
    }
    assert modes.pop("cache") == 0o700
    assert set(modes) >= {FILE, f"{FILE}-wal"}
    assert set(modes.values()) == {0o600}


def test_an_answer_without_usage_is_charged_the_most_it_can_cost(replies: Replies) -> None:
    bare = {
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "x"}}
        ]
    }
    with serving(
        lambda body: Response(json.dumps(bare), content_type="application/json")
    ) as server:
        asyncio.run(Cached(endpoint(server), Account(replies, "r"), DEAR).complete(question(1)))
    assert [row[-1] for row in charges(replies.path)] == [most(question(1), DEAR)]


LONG = {"parameters": {"max_tokens": None, "max_completion_tokens": 20_000}}


@pytest.mark.parametrize(
    ("more", "written"),
    [
        (LONG, 20_000),
        ({"parameters": {"max_tokens": 5}}, 5),
        ({"parameters": {"max_completion_tokens": 300}}, 300),
        ({"parameters": {"max_tokens": None}}, 2**15),
        ({"max_tokens_name": "max_completion_tokens"}, 10),
    ],
)
def test_the_limit_that_the_endpoint_is_sent_is_what_a_call_may_cost(
    replies: Replies, more: dict[str, Any], written: int
) -> None:
    dearest = 0.01 * (1 + 32 + 512) + 0.02 * written
    with serving(lambda body: completion("x", prompt_tokens=0, completion_tokens=0)) as server:
        for short, run in ((0.01, "poor"), (-0.01, "rich")):
            account = Account(replies, run, dearest - short)
            model = Cached(endpoint(server, **more), account, DEAR)
            with pytest.raises(BudgetError) if short > 0 else nullcontext():
                asyncio.run(model.complete(brief(0)))
    assert len(server.asked) == 1
    assert [row[-1] for row in charges(replies.path)] == [pytest.approx(dearest)]


# ------------------------------------------------------------------- answers that end as errors


def reporting(status: int, body: dict[str, Any]) -> Response:
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    text = json.dumps({**body, "usage": usage})
    return Response(text, status=status, content_type="application/json")


VAIN = {
    "empty": completion(""),
    "refused": completion(None, finish="content_filter"),
    "no choice": reporting(200, {"choices": []}),
    "overloaded": reporting(503, {"error": {"message": "no"}}),
    "a long error": reporting(503, {"error": {"message": "no" * 9_000}}),
}


@pytest.mark.parametrize("vain", VAIN)
def test_what_is_answered_in_vain_is_charged_once_and_kept_never(
    replies: Replies, vain: str
) -> None:
    def answer(body: dict[str, Any]) -> str | Response:
        return "fine" if len(server.asked) == 3 else VAIN[vain]

    with serving(answer) as server:
        model = Cached(endpoint(server, retries=2, backoff=0.01), Account(replies, "r", 99.0), DEAR)
        first = asyncio.run(model.complete(question(1)))
        assert asyncio.run(model.complete(question(1))) == replace(first, cached=True)
        assert (first.text, first.prompt_tokens, first.completion_tokens) == ("fine", 7, 3)
        (row,) = replies.costs("r")
    assert (row.calls, row.hits, row.prompt_tokens, row.completion_tokens) == (3, 1, 21, 9)
    assert row.cost == pytest.approx(3 * 0.13)
    assert len(kept(replies.path)) == 1


@pytest.mark.parametrize(
    "vain", [completion("", finish="length"), completion("w" * 9_000), reporting(400, {})]
)
def test_an_answer_that_fails_at_once_is_charged(replies: Replies, vain: Response) -> None:
    with serving(lambda body: vain) as server:
        model = Cached(endpoint(server), Account(replies, "r"), DEAR)
        with pytest.raises(RolloutError):
            asyncio.run(model.complete(brief(1)))
    assert [row[-1] for row in charges(replies.path)] == [pytest.approx(0.13)]
    assert kept(replies.path) == set()


def test_an_empty_answer_without_usage_is_charged_the_most_it_can_cost(replies: Replies) -> None:
    empty = Response(
        json.dumps({"choices": [{"message": {"content": ""}}]}), content_type="application/json"
    )
    with serving(lambda body: empty) as server:
        model = Cached(endpoint(server), Account(replies, "r"), DEAR)
        with pytest.raises(RolloutError, match="an empty answer"):
            asyncio.run(model.complete(brief(1)))
    assert [row[-1] for row in charges(replies.path)] == [most(brief(1), DEAR)]


def test_the_budget_ends_calls_that_fail(replies: Replies) -> None:
    """At 2.0 an answer, and 0.555 at most by the request, 3.0 allow two requests."""
    spent = completion("", finish="length", prompt_tokens=1_000, completion_tokens=1_000)
    with serving(lambda body: spent) as server:
        price = Price(input=1_000, output=1_000)
        model = Cached(endpoint(server), Account(replies, "r", 3.0), price)
        for number in range(6):
            with pytest.raises(RolloutError if number < 2 else BudgetError):
                asyncio.run(model.complete(brief(number)))
        (row,) = replies.costs("r")
    assert len(server.asked) == row.calls == 2
    assert (row.prompt_tokens, row.completion_tokens, row.cost) == (2_000, 2_000, 4.0)


@pytest.mark.long
@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("budget", [7.0, 9.0, 1_000.0])
def test_the_ledger_is_what_the_server_counts_and_retries_stay_within_the_budget(
    replies: Replies, budget: float, concurrency: int
) -> None:
    """Requests wait for money and for a place at once, and never for each other."""
    lock, told, tries = threading.Lock(), Counter[str](), Counter[int]()

    def answer(body: dict[str, Any]) -> str | Response:
        number = int(body["messages"][-1]["content"])
        with lock:
            tries[number] += 1
            fails = tries[number] <= number % 4
            kind = (
                ("empty", "overloaded", "free")[(tries[number] + number) % 3] if fails else "fine"
            )
            told[kind] += 1
        return fault(500) if kind == "free" else VAIN.get(kind) or echo(body)

    async def ask() -> list[Reply | BaseException]:
        settings = {"retries": 3, "backoff": 0.001, "concurrency": concurrency}
        model = Cached(endpoint(server, **settings), Account(replies, "r", budget), DEAR)
        return await asyncio.gather(
            *(model.complete(brief(i)) for i in range(20)), return_exceptions=True
        )

    with serving(answer) as server:
        outcomes = asyncio.run(asyncio.wait_for(ask(), HANG))
    done = sum(isinstance(outcome, Reply) for outcome in outcomes)
    assert all(isinstance(outcome, Reply | BudgetError) for outcome in outcomes)
    assert (done == 20) == (budget == 1_000.0)
    paid = told["empty"] + told["overloaded"] + told["fine"]
    assert min(told["empty"], told["overloaded"]) > 0
    assert told["fine"] == done
    (row,) = replies.costs("r")
    assert (row.calls, row.prompt_tokens, row.completion_tokens) == (paid, 7 * paid, 3 * paid)
    assert row.cost == pytest.approx(0.13 * paid)
    assert row.cost <= budget
    assert len(kept(replies.path)) == done


def test_the_next_attempt_after_a_refused_format_is_reserved_too(replies: Replies) -> None:
    refused = reporting(400, {"error": {"message": "no response_format"}})
    wanted = replace(brief(1), schema="{}")
    with serving(lambda body: refused) as server:
        account = Account(replies, "r", most(wanted, DEAR) + 0.1)
        with pytest.raises(BudgetError):
            asyncio.run(Cached(endpoint(server), account, DEAR).complete(wanted))
    assert len(server.asked) == len(charges(replies.path)) == 1


# ------------------------------------------------------------------------------------------ budgets


def brief(number: int, longest: int = 10) -> Request:
    return replace(question(number), max_tokens=longest)


def spend(
    replies: Replies, server: Server, budget: float, count: int, run: str = "r"
) -> list[Reply | BaseException]:
    model = Cached(endpoint(server), Account(replies, run, budget), DEAR)

    async def ask() -> list[Reply | BaseException]:
        return await asyncio.gather(
            *(model.complete(brief(i)) for i in range(count)), return_exceptions=True
        )

    return asyncio.run(ask())


@pytest.mark.parametrize("budget", [0.0, 5.0, 7.0, 8.5])
def test_concurrent_calls_stop_where_one_after_the_other_would(
    replies: Replies, budget: float
) -> None:
    worst, real = most(brief(0), DEAR), 0.13
    assert worst == pytest.approx(0.01 * (1 + 32 + 512) + 0.02 * 10)
    assert cost(brief(0), Reply("", 7, 3), DEAR) == pytest.approx(real)
    # Where a part is not reported, that part is charged as the most that it can be.
    assert cost(brief(0), Reply("told", 7, 0), DEAR) == pytest.approx(0.01 * 7 + 0.02 * 10)
    assert cost(brief(0), Reply("", 7, 0), DEAR) == pytest.approx(0.01 * 7)
    assert cost(brief(0), Reply("told", 0, 3), DEAR) == pytest.approx(worst)
    allowed, spent = 0, 0.0
    while spent + worst <= budget and allowed < 30:
        allowed, spent = allowed + 1, spent + real
    with serving(echo) as server:
        outcomes = spend(replies, server, budget, 30)
    assert len(server.asked) == sum(isinstance(outcome, Reply) for outcome in outcomes) == allowed
    refused = [str(outcome) for outcome in outcomes if isinstance(outcome, BudgetError)]
    assert len(refused) == 30 - allowed
    assert all("raise `budget` and resume" in text and "\n" not in text for text in refused)
    assert replies.charged("r")[1] == pytest.approx(spent)
    assert spent <= budget


def test_the_budget_counts_earlier_sessions_and_a_higher_one_goes_on(tmp_path: Path) -> None:
    with serving(echo) as server:
        done = []
        for budget in (6.0, 6.0, 7.0, 20.0):
            session = Replies(tmp_path / FILE)
            done.append(
                sum(isinstance(outcome, Reply) for outcome in spend(session, server, budget, 12))
            )
            session.close()
    assert done == [3, 3, 11, 12]
    assert numbers(server) == {str(i): 1 for i in range(12)}


def test_the_budget_is_the_runs_own(replies: Replies) -> None:
    with serving(echo) as server:
        spend(replies, server, 6.0, 12, "one")
        model = Cached(endpoint(server), Account(replies, "two", 5.7), DEAR)
        assert asyncio.run(model.complete(brief(99))).text == "to 99"


def test_a_call_that_fails_or_is_cancelled_gives_back_what_was_set_aside(replies: Replies) -> None:
    gate = threading.Event()

    def answer(body: dict[str, Any]) -> str | Response:
        word = body["messages"][-1]["content"]
        if word == "1":
            gate.wait(HANG)
        return Response("no", status=400) if word == "0" else "fine"

    async def ask(model: Cached) -> str:
        with pytest.raises(RolloutError):
            await model.complete(brief(0))
        first = asyncio.create_task(model.complete(brief(1)))
        await asked_of(server, 2)
        behind = asyncio.create_task(model.complete(brief(2)))  # waits for the first one's money
        await asyncio.sleep(0.02)
        assert not behind.done()
        behind.cancel()
        first.cancel()
        await asyncio.gather(first, behind, return_exceptions=True)
        return (await model.complete(brief(3))).text

    with serving(answer) as server:
        assert (
            asyncio.run(ask(Cached(endpoint(server), Account(replies, "r", 6.0), DEAR))) == "fine"
        )
        gate.set()
    assert numbers(server) == {"0": 1, "1": 1, "3": 1}


def test_a_model_without_a_price_needs_no_budget(replies: Replies) -> None:
    with serving(echo) as server:
        assert (
            asyncio.run(
                Cached(endpoint(server), Account(replies, "r", 0.0)).complete(question(1))
            ).text
            == "to 1"
        )


@pytest.fixture(scope="module")
def nothing_charged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replies]:
    opened = Replies(tmp_path_factory.mktemp("empty") / FILE)
    yield opened
    opened.close()


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["reserve", "release", "cancel"]), st.integers(1, 9)), max_size=30
    )
)
@settings(max_examples=60)
def test_what_is_set_aside_is_what_a_queue_served_in_order_holds(
    steps: list[tuple[str, int]], nothing_charged: Replies
) -> None:
    asyncio.run(_reserve(Account(nothing_charged, "r", 20.0), steps))


async def _reserve(account: Account, steps: list[tuple[str, int]]) -> None:
    """Against the plain model: a list of what is held, and a queue."""
    tasks: list[tuple[int, asyncio.Task[None]]] = []
    held: list[int] = []
    queue: list[int] = []
    for verb, amount in steps:
        if verb == "reserve":
            tasks.append((amount, asyncio.create_task(account.reserve(float(amount)))))
            queue.append(len(tasks) - 1)
        elif verb == "release" and held:
            account.release(float(tasks[held.pop(0)][0]))
        elif verb == "cancel" and queue:
            tasks[queue.pop(0)][1].cancel()
        while queue and sum(tasks[i][0] for i in (*held, queue[0])) <= 20:
            held.append(queue.pop(0))
        for _ in range(5):
            await asyncio.sleep(0)
        granted = {i for i, (_, task) in enumerate(tasks) if task.done() and not task.cancelled()}
        assert set(held) <= granted
        assert not granted & set(queue)
        assert account._held == sum(tasks[i][0] for i in held) <= 20
    for _, task in tasks:
        task.cancel()
    await asyncio.gather(*(task for _, task in tasks), return_exceptions=True)


# ------------------------------------------------------------------------- processes, and their end


def start(server: Server, folder: Path, first: int, last: int) -> subprocess.Popen[str]:
    script = Path(__file__).with_name("asking.py")
    words = [sys.executable, str(script), server.url, str(folder), str(first), str(last)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def killed_after(process: subprocess.Popen[str], have: dict[int, str], more: int) -> None:
    """Reads what the process tells into `have`, and kills it once it has told of `more` answers."""
    told = 0
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            if not line.endswith("\n"):
                break  # the kill cut it off: nobody had this answer
            number, text = line.split(" ", 1)
            have[int(number)] = text.strip()
            told += 1
            if told == more:
                process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


@pytest.mark.long
def test_a_killed_process_has_lost_no_answer_that_it_had(tmp_path: Path) -> None:
    draw, count, have = random.Random(5), 120, dict[int, str]()
    with serving(gate := Gate(echo)) as server:

        def key(number: int) -> str:
            return asked(f"m at {server.url}", question(number)).key

        for _ in range(3):
            known, more = len(kept(tmp_path / FILE)) if have else 0, draw.randrange(1, 30)
            gate.allow(more + draw.randrange(5))  # some are on their way when the signal comes
            killed_after(start(server, tmp_path, 0, count), have, known + more)
            gate.drop()
            charged = [key for _, _, key, _ in charges(tmp_path / FILE)]
            assert len(set(charged)) == len(charged)
            assert set(charged) == kept(tmp_path / FILE) >= {key(number) for number in have}
        assert len(have) < count
        before, stored = numbers(server), kept(tmp_path / FILE)
        gate.allow(count)
        output, _ = start(server, tmp_path, 0, count).communicate(timeout=HANG)
        anew = numbers(server) - before
        assert anew == Counter({str(i): 1 for i in range(count) if key(i) not in stored})
    assert sorted(int(line.split()[0]) for line in output.splitlines()) == list(range(count))
    ledger = charges(tmp_path / FILE)
    assert len(ledger) == len({key for _, _, key, _ in ledger}) == count
    assert sum(money for *_, money in ledger) == 10 * count


@pytest.mark.long
def test_two_processes_share_the_file(tmp_path: Path) -> None:
    with serving(echo) as server:
        processes = [start(server, tmp_path, first, first + 60) for first in (0, 30, 30)]
        outputs = [process.communicate(timeout=HANG)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    said = [dict(line.split(" ", 1) for line in output.splitlines()) for output in outputs]
    assert [len(one) for one in said] == [60, 60, 60]
    assert {number: text for one in said for number, text in one.items()} == {
        str(i): f"to {i}" for i in range(90)
    }
    assert len(kept(tmp_path / FILE)) == 90
    # What was sent was charged, once each, and nothing else was.
    ledger = Counter(key for _, run, key, _ in charges(tmp_path / FILE))
    sent = {
        asked(f"m at {server.url}", question(int(number))).key: count
        for number, count in numbers(server).items()
    }
    assert ledger == sent
    assert {run for run, *_ in charges(tmp_path / FILE)} == {RUN}


def test_many_may_make_the_file_at_once(tmp_path: Path) -> None:
    barrier, opened, problems = threading.Barrier(8), [], []

    def make() -> None:
        barrier.wait()
        try:
            opened.append(Replies(tmp_path / FILE))
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    futures = [
        one.keep(asked("m", question(i)), Reply(str(i)), FREE) for i, one in enumerate(opened)
    ]
    assert [future.result().text for future in futures] == [str(i) for i in range(8)]
    for one in opened:
        one.close()


# ------------------------------------------------------------------------------------------- upkeep


def fill(
    replies: Replies, ages: list[tuple[str, str, int, int]]
) -> list[tuple[str, str, str, int, int]]:
    """Keeps an answer for each (role, model, days since its last use, length).

    Returns (key, role, model, days, bytes) of each.
    """
    rows = []
    for i, (role, model, days, length) in enumerate(ages):
        what = asked(model, replace(question(i), role=role))
        replies.keep(what, Reply("y" * length), FREE).result()
        with replies.transaction() as connection:
            connection.execute(
                "UPDATE replies SET used = ? WHERE key = ?", (time.time() - days * DAY, what.key)
            )
        ((size,),) = replies.query(
            (
                "SELECT length(body) + length(reply) FROM replies JOIN requests USING (id) WHERE "
                "key = ?"
            ),
            (what.key,),
        )
        rows.append((what.key, role, model, days, size))
    return rows


SOME = st.lists(
    st.tuples(
        st.sampled_from(["judge", "patient"]),
        st.sampled_from("mn"),
        st.integers(0, 9),
        st.integers(0, 500),
    ),
    max_size=8,
)


@settings(max_examples=15)
@given(
    SOME, st.integers(0, 10), st.none() | st.integers(0, 3_000), st.sampled_from([None, "judge"])
)
def test_pruning_takes_out_what_plain_filtering_would(
    ages: list[tuple[str, str, int, int]], older: int, limit: int | None, role: str | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        replies = Replies(Path(folder) / FILE)
        rows = fill(replies, ages)
        if role and not any(row[1] == role for row in rows):
            with pytest.raises(UserError, match="no role in"):
                upkeep.prune(replies, Which(role))
        else:
            # Those of one day were filled in one after the other. A use is written down once a
            # day, so an answer is that old for certain a day later.
            oldest = sorted(
                (r for r in rows if (r[3] > older or not older) and role in (None, r[1])),
                key=lambda row: -row[3],
            )
            gone, total = [], sum(row[4] for row in rows)
            for row in oldest:
                if limit is None or total > limit:
                    gone.append(row)
                    total -= row[4]
            which, expected = (
                Which(role, older=older * DAY),
                (len(gone), sum(row[4] for row in gone)),
            )
            assert upkeep.prune(replies, which, limit, dry=True) == expected
            assert kept(replies.path) == {row[0] for row in rows}
            assert upkeep.prune(replies, which, limit) == expected
            assert replies.query("SELECT count(*) FROM requests") == [(len(rows) - len(gone),)]
            assert kept(replies.path) == {row[0] for row in rows if row not in gone}
        assert len(charges(replies.path)) == len(rows)
        replies.close()


def test_a_pruned_file_gives_its_room_back(replies: Replies) -> None:
    futures = [replies.keep(asked("m", question(i)), Reply("z" * 20_000), FREE) for i in range(200)]
    assert all(len(future.result().text) == 20_000 for future in futures)
    replies._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = replies.path.stat().st_size
    count, size = upkeep.prune(replies, Which(), 500_000)
    assert before > 4_000_000
    assert replies.path.stat().st_size < 900_000
    (shelf,) = upkeep.shelves(replies)
    assert (shelf.entries, shelf.role, shelf.model) == (200 - count, "judge", "m")
    assert 480_000 < shelf.size <= 500_000
    assert shelf.size + size > 200 * 20_000


def test_an_answer_that_is_used_grows_young_again(replies: Replies) -> None:
    (row,) = fill(replies, [("judge", "m", 40, 1)])
    assert replies.find(row[0]) is not None
    assert upkeep.prune(replies, Which(older=30 * DAY)) == (0, 0)


def test_an_entry_is_shown_by_the_beginning_of_its_key(replies: Replies) -> None:
    rows = fill(replies, [("judge", "m", 1, 3)] * 40)
    found = upkeep.entry(replies, rows[7][0][:12])
    assert (found.key, found.reply["text"], found.request["messages"]) == (
        rows[7][0],
        "yyy",
        [{"content": "7", "role": "user"}],
    )
    with pytest.raises(UserError, match="more than one answer"):
        upkeep.entry(replies, "")
    with pytest.raises(UserError, match=r"no answer in .* begins with 'xyz'"):
        upkeep.entry(replies, "xyz")


@settings(max_examples=10)
@given(st.lists(st.tuples(requests(), SOUND, st.booleans()), max_size=6))
def test_what_is_exported_can_be_taken_in_elsewhere(drawn: list[tuple[Request, str, bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        here, there, file = (
            Replies(Path(folder) / FILE),
            Replies(Path(folder) / "there" / FILE),
            Path(folder) / "set.jsonl",
        )
        for request, text, cut in drawn:
            here.keep(asked("m", request), Reply(text, 5, 6, cut), FREE).result()
        keys = kept(here.path)
        assert upkeep.export(here, file, Which()) == len(keys)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert upkeep.take_in(there, file) == (len(keys), len(keys))
        assert upkeep.take_in(there, file) == (0, len(keys))
        assert {key: there.find(key) for key in keys} == {key: here.find(key) for key in keys}
        assert kept(there.path) == keys
        assert charges(there.path) == []
        second = Path(folder) / "again.jsonl"
        upkeep.export(there, second, Which())
        assert second.read_bytes() == file.read_bytes()
        here.close()
        there.close()


def spoiled(change: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    def spoil(line: str) -> str:
        value = json.loads(line)
        change(value)
        return json.dumps(value)

    return spoil


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda line: line[:-9], "line 2: Invalid JSON"),
        (spoiled(lambda v: v["request"].pop("role")), r"field 'request\.role'"),
        (spoiled(lambda v: v["request"].update(max_tokens="9")), r"field 'request\.max_tokens'"),
        (spoiled(lambda v: v["request"].update(note="")), r"field 'request\.note'"),
        (spoiled(lambda v: v["reply"].update(prompt_tokens=-1)), r"field 'reply\.prompt_tokens'"),
        (spoiled(lambda v: v.update(created=1e18)), r"line 2, field 'created': .* less than"),
        (spoiled(lambda v: v.update(created=math.inf)), r"line 2, field 'created': .* finite"),
        (spoiled(lambda v: v.update(created=math.nan)), r"line 2, field 'created': .* finite"),
        (lambda line: line.replace('"created": ', '"created": 9e999, "x": '), r"line 2, field 'c"),
        (
            spoiled(lambda v: v["request"]["messages"][0].update(content=None)),
            r"field 'request\.messages\.0\.content'",
        ),
    ],
)
def test_a_spoiled_line_is_named_and_nothing_is_taken_in(
    replies: Replies, tmp_path: Path, spoil: Callable[[str], str], complaint: str
) -> None:
    fill(replies, [("judge", "m", 0, 3)] * 3)
    file, there = tmp_path / "set.jsonl", Replies(tmp_path / "there" / FILE)
    upkeep.export(replies, file, Which())
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], spoil(lines[1]), lines[2]]) + "\n")
    with pytest.raises(CaseError, match=complaint) as caught:
        upkeep.take_in(there, file)
    assert "line 2" in str(caught.value)
    assert kept(there.path) == set()
    there.close()


# -------------------------------------------------------------------------------- a file gone wrong


def test_a_file_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    with pytest.raises(UserError, match="set WORKUP_CACHE to a writable folder"):
        Replies(tmp_path / "a file" / FILE)
    (tmp_path / FILE).write_text("no database at all, but long enough to look like something " * 40)
    with pytest.raises(UserError, match="it is no SQLite file"):
        Replies(tmp_path / FILE)


FULL = """
import os, sys
from pathlib import Path
from workup.core.episode import Message
from workup.core.errors import UserError
from workup.roles.replies import Charge, Replies, asked
from workup.core.ports import Reply, Request
try:
    replies = Replies(Path(sys.argv[1]))
    for number in range(20):
        what = asked("m", Request("judge", "1", (Message("user", str(number)),)))
        replies.keep(what, Reply("w" * 30_000), Charge("run", 1, 1, 0.0)).result()
except UserError as error:
    print(error, flush=True)
os._exit(0)  # a mount that is in use cannot be taken away
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk")
@pytest.mark.parametrize("taken", [100_000, 250_000, 290_000, 300_000])
def test_a_full_disk_is_named_as_the_caches(taken: int, tmp_path: Path) -> None:
    """A disk of 300 kB that is full at the first answer, or before the file is made."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(tmp_path)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("no disk can be mounted here")
    try:
        (tmp_path / "other").write_bytes(b"x" * taken)
        words = [sys.executable, "-c", FULL, str(tmp_path / FILE)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"cannot use the cache {tmp_path / FILE}: the disk ")
    assert "full" in line
    assert "set WORKUP_CACHE to a folder on another disk" in line
    assert not done.stderr


def test_a_file_of_a_newer_workup_is_left_alone(tmp_path: Path) -> None:
    Replies(tmp_path / FILE).close()
    newer = sqlite3.connect(tmp_path / FILE)
    newer.execute("PRAGMA user_version = 2")
    newer.close()
    with pytest.raises(UserError, match="written by a newer workup"):
        Replies(tmp_path / FILE)


def test_an_answer_that_cannot_be_written_is_not_handed_out(replies: Replies) -> None:
    ((pages,),) = replies.query("PRAGMA page_count")
    with serving(lambda body: "w" * 100_000) as server:
        model = Cached(endpoint(server), Account(replies, "r"))
        replies._writer.execute(
            f"PRAGMA max_page_count = {pages}"
        )  # a full disk, as SQLite sees it
        with pytest.raises(
            UserError, match=rf"the cache {replies.path}: the disk is full; .*set WORKUP_CACHE"
        ):
            asyncio.run(model.complete(question(1)))
        replies._writer.execute("PRAGMA max_page_count = 100000")
        assert not kept(replies.path)
        assert asyncio.run(model.complete(question(1))).text == "w" * 100_000
    assert len(charges(replies.path)) == len(kept(replies.path)) == 1


def test_a_truncated_answer_is_found_as_truncated(replies: Replies) -> None:
    with serving(lambda body: completion("cut", finish="length")) as server:
        model = Cached(endpoint(server), Account(replies, "r"))
        assert [asyncio.run(model.complete(question(1))).truncated for _ in range(2)] == [
            True,
            True,
        ]
    assert len(server.asked) == 1
