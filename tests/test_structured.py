"""Answers of a fixed shape, from a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preparing import configured
from pydantic import BaseModel, ConfigDict, Field
from serving import Server, completion, serving
from werkzeug import Response

from workup.core.episode import Message
from workup.core.errors import RolloutError
from workup.core.ports import Request
from workup.models.structured import ATTEMPTS, BEGUN, LONGEST, SHOWN, ask, parse, schema_of
from workup.roles.config import Config
from workup.roles.endpoint import Endpoint, EndpointSettings
from workup.roles.run_models import RunModels


class Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    same: bool
    why: str = ""


Check = Callable[[Verdict], "str | None"]


def asked(
    answers: list[str | Response], check: Check = lambda verdict: None
) -> tuple[Any, list[dict[str, Any]]]:
    """What `ask` made of these answers (the verdict or its error), and the requests it sent."""
    left = iter(answers)
    with serving(lambda body: next(left)) as server:
        model = Endpoint(EndpointSettings(base_url=server.url, model="m", retries=0))
        request = Request(
            "judge", "1", (Message("system", "Judge."), Message("user", "Flu or 流感?"))
        )
        try:
            outcome: Any = asyncio.run(ask(model, request, Verdict, check))
        except RolloutError as error:
            outcome = error
        return outcome, server.asked


@pytest.mark.parametrize(
    "answer",
    [
        '{"same": true, "why": "同义"}',
        'Here it is:\n```json\n{"same": true, "why": "同义"}\n```',
        '<think>{"same": false} was my first idea</think>{"same": true, "why": "同义"}',
        'no opening tag, {braces} too</think>\n{"same": true, "why": "同义"}',
    ],
)
def test_prose_fences_and_thoughts_around_the_object_are_forgiven(answer: str) -> None:
    outcome, bodies = asked([answer])
    assert outcome == Verdict(same=True, why="同义")
    assert len(bodies) == 1


@pytest.mark.parametrize(
    "answer",
    [
        '<think>I might write {"same": true, "why": "x"}, but then',
        '<think>I could write {"same": true, "why": "x"}. No.</think>\n{"same": false, "wh',
        ' <think>a draft: {"same": true, "why": "x"}</think> They differ.',
    ],
)
def test_a_draft_within_a_thought_is_no_answer(answer: str) -> None:
    assert parse(answer, Verdict)[0] is None


def test_the_end_of_a_thought_inside_the_answer_is_part_of_it() -> None:
    said = Verdict(same=False, why='they wrote </think>{"same": true}')
    assert parse(said.model_dump_json(), Verdict) == (said, "")


def test_a_wrong_answer_is_shown_with_the_reason_and_the_schema() -> None:
    outcome, bodies = asked(["Yes.", '{"same": "perhaps"}', '{"same": true}'])
    assert outcome == Verdict(same=True)
    assert [len(body["messages"]) for body in bodies] == [2, 4, 4]
    assert bodies[0]["messages"] == bodies[2]["messages"][:2]
    assert bodies[2]["messages"][2] == {"role": "assistant", "content": '{"same": "perhaps"}'}
    first, second = (body["messages"][3]["content"] for body in bodies[1:])
    assert "it holds no JSON object" in first
    assert "field same: " in second
    assert schema_of(Verdict) in first
    assert schema_of(Verdict) in second
    assert all(
        body["response_format"]["json_schema"]["schema"] == json.loads(schema_of(Verdict))
        for body in bodies
    )


def test_what_the_check_finds_is_asked_again() -> None:
    answers: list[str | Response] = ['{"same": true}', '{"same": true, "why": "synonyms"}']
    outcome, bodies = asked(answers, lambda verdict: None if verdict.why else "say why")
    assert outcome == Verdict(same=True, why="synonyms")
    assert "not usable: say why." in bodies[1]["messages"][3]["content"]


def test_it_gives_up_with_the_last_reason() -> None:
    outcome, bodies = asked(['{"same": 3}'] * ATTEMPTS)
    assert isinstance(outcome, RolloutError)
    assert str(outcome).startswith("judge: no usable answer from m at http")
    assert "field same: " in str(outcome)
    assert len(bodies) == ATTEMPTS


def test_a_model_that_was_repaired_is_asked_anew_and_a_replay_fails_as_before(
    tmp_path: Path,
) -> None:
    request = Request("judge", "1", (Message("user", "Flu or 流感?"),))

    def judged(server: Server, replay: bool = False) -> Verdict | str:
        config = Config.find(configured(tmp_path, server))
        models = RunModels(config, "it", cache=tmp_path / "cache", replay=replay)
        try:
            return asyncio.run(ask(models.open("endpoint:it"), request, Verdict))
        except RolloutError as error:
            return str(error)
        finally:
            models.close()

    answer = "no JSON"
    with serving(lambda body: answer) as server:
        failed = judged(server)
        assert "no usable answer" in str(failed)
        sent = len(server.asked)
        assert judged(server, replay=True) == failed
        assert len(server.asked) == sent > 1
        answer = '{"same": true}'
        assert judged(server) == Verdict(same=True)
        assert len(server.asked) == sent + 1
        assert judged(server, replay=True) == Verdict(same=True)


def test_those_who_wait_for_an_unusable_answer_ask_for_no_other(tmp_path: Path) -> None:
    request = Request("judge", "1", (Message("user", "Flu or 流感?"),))
    with serving(lambda body: "no JSON") as server:
        models = RunModels(Config.find(configured(tmp_path, server)), "it", cache=tmp_path / "kept")
        model = models.open("endpoint:it")

        async def judged() -> list[object]:
            waiting = (ask(model, request, Verdict) for _ in range(5))
            return await asyncio.gather(*waiting, return_exceptions=True)

        assert all(isinstance(one, RolloutError) for one in asyncio.run(judged()))
        models.close()
        assert len(server.asked) == 2  # the third attempt is the second once more


def test_an_answer_cut_off_is_asked_for_again_and_only_its_beginning_is_shown() -> None:
    cut = completion('{"same": true, "why": "' + "x" * 2 * SHOWN, finish="length")
    outcome, bodies = asked([cut, '{"same": false}'])
    assert outcome == Verdict(same=False)
    assert len(bodies[1]["messages"][2]["content"]) == BEGUN
    assert "cut off before its end; be shorter" in bodies[1]["messages"][3]["content"]
    whole = json.dumps({"same": 3, "why": "x" * 2 * SHOWN})
    _, bodies = asked([whole, '{"same": false}'])
    assert bodies[1]["messages"][2]["content"] == whole[:SHOWN]


@given(st.text(alphabet='{}[]":,trusame falsewhy</think>\\'))
def test_any_text_is_an_answer_or_a_reason(text: str) -> None:
    answer, problem = parse(text, Verdict)
    assert (answer is None) == bool(problem)
    assert "\n" not in problem


@pytest.mark.parametrize(
    "text",
    [
        "{" * 10_000_000,
        '{"a":' * 2_000_000,
        "</think>{" * 1_000_000,
        '{"same": true' + " " * LONGEST + "}",
    ],
)
def test_long_nonsense_is_refused_soon(text: str) -> None:
    assert parse(text, Verdict)[0] is None


@given(st.booleans(), st.text())
def test_every_verdict_reads_back(same: bool, why: str) -> None:
    verdict = Verdict(same=same, why=why)
    assert parse(f"So: {verdict.model_dump_json()} That is all.", Verdict) == (verdict, "")


class _Inner(BaseModel):
    """Words about the class."""

    number: int = Field(description="a whole number")


class _Outer(BaseModel):
    """Words about the class."""

    inner: list[_Inner]


def test_a_schema_says_nothing_of_its_classes() -> None:
    """A small model copies such words into its answer; a field's own description stays."""
    assert "Words" not in schema_of(_Outer)
    assert "a whole number" in schema_of(_Outer)
