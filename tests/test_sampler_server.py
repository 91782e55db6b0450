"""`sampler=server` against servers on loopback.

One samples with a real model behind vLLM's endpoint, faults included. The other is vLLM's own,
where it is installed.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import uvicorn
from serving import free_port
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from test_local_policy import encounter, letters, plain
from test_samplers_contract import llama, one, together
from waiting import HANG, until

from workup.core.errors import RolloutError, UserError, WorkupError
from workup.core.ports import Sampling
from workup.models import samplers
from workup.models.local import LocalPolicy
from workup.models.remote import KnownModel, RemotePolicy
from workup.models.samplers import How

torch.set_num_threads(1)
Change = Callable[[dict[str, Any]], Any]


class Tokens:
    """A server with vLLM's token-in endpoint, which samples with a model of transformers.

    `change` alters an answer before it goes out; `raw` leaves the temperature out of the
    log-probabilities, as vLLM does by default.
    """

    def __init__(self, folder: Path) -> None:
        self.model, self.folder, self.url = llama(), str(folder), f"http://127.0.0.1:{free_port()}"
        self.change: Change = lambda answer: answer
        self.raw = False
        self.served, self.asked = self.folder, list[dict[str, Any]]()
        self.listed: Any = None  # in place of what it serves
        self._policy = LocalPolicy(self.model, letters())
        routes = [
            Route("/v1/models", self._models),
            Route("/inference/v1/generate", self._generate, methods=["POST"]),
        ]
        port = int(self.url.rpartition(":")[2])
        config = uvicorn.Config(
            Starlette(routes=routes), port=port, log_level="error", lifespan="off"
        )
        self.server = uvicorn.Server(config)
        threading.Thread(target=self.server.run, daemon=True).start()
        until(lambda: self.server.started)

    async def _models(self, _: Request) -> Response:
        served = {"data": [{"id": self.served, "root": "elsewhere"}]}
        return JSONResponse(served if self.listed is None else self.listed)

    async def _generate(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append(body)
        how, ids = body["sampling_params"], body["token_ids"]
        stop, seed = tuple(how.get("stop", ())), how["seed"]
        sampling = Sampling(stop, how["max_tokens"], how["temperature"], seed)
        said = await self._policy.sample(ids, sampling)
        logprobs = said.logprobs
        if self.raw:
            told = [[ids, list(said.tokens), []]]
            logprobs = tuple(plain(self.model, told, 1.0))
        content = [
            {"token_id": token, "logprob": logprob}
            for token, logprob in zip(said.tokens, logprobs, strict=True)
        ]
        choice = {
            "token_ids": list(said.tokens),
            "logprobs": {"content": content},
            "weight_versions": [{"version": "default", "start": 0, "end": len(content)}],
        }
        answer = self.change({"choices": [choice]})
        return answer if isinstance(answer, Response) else JSONResponse(answer)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("weights") / "tiny"
    llama().save_pretrained(place)
    letters().save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Tokens]:
    made = Tokens(folder)
    yield made
    made.server.should_exit = True


@pytest.fixture
def server(running: Tokens, folder: Path) -> Tokens:
    running.change, running.raw, running.served = lambda answer: answer, False, str(folder)
    running.listed = None
    return running


def opened(server: Any, place: str | None = None) -> Any:
    how = How(concurrency=16, address=server.url)
    return samplers.load("server").open(place or server.folder, how).policy


def test_it_plays_what_the_local_policy_plays(server: Tokens) -> None:
    policy, local = opened(server), LocalPolicy(server.model, letters())
    ours = together(*(encounter(policy, key, temperature=0) for key in range(6)))
    theirs = together(*(encounter(local, key, temperature=0) for key in range(6)))
    assert [[turn[:2] for turn in told] for told in ours] == [
        [turn[:2] for turn in told] for told in theirs
    ]
    policy.close()


def test_draws_are_reproducible_and_their_log_probabilities_right(server: Tokens) -> None:
    policy = opened(server)
    ours = together(*(encounter(policy, key, temperature=0.7) for key in range(6)))
    alone = [together(encounter(policy, key, temperature=0.7))[0] for key in range(6)]
    assert [[turn[:2] for turn in told] for told in ours] == [
        [turn[:2] for turn in told] for told in alone
    ]
    for told in ours:
        said = [logprob for _, _, row in told for logprob in row]
        np.testing.assert_allclose(said, plain(server.model, told, 0.7), atol=1e-4)
    # One key, another seed at every position: four turns of six episodes, played twice.
    seeds = [body["sampling_params"]["seed"] for body in server.asked[-48:]]
    assert len(set(seeds)) == 24
    policy.close()


def choice(answer: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = answer["choices"][0]
    return found


def without(name: str) -> Change:
    return lambda answer: choice(answer).pop(name) and answer


def renamed(version: str) -> Change:
    return lambda a: {"choices": [{**choice(a), "weight_versions": [{"version": version}]}]}


def token(said: Any) -> Change:
    """The last id is another, in both of its places."""

    def change(answer: dict[str, Any]) -> dict[str, Any]:
        told = choice(answer)
        told["token_ids"][-1] = told["logprobs"]["content"][-1]["token_id"] = said
        return answer

    return change


def logprob(said: Any) -> Change:
    def change(answer: dict[str, Any]) -> Any:
        choice(answer)["logprobs"]["content"][-1]["logprob"] = said
        return Response(json.dumps(answer), media_type="application/json")

    return change


def times(count: int) -> Change:
    """Everything that was drawn comes so many times."""

    def change(answer: dict[str, Any]) -> dict[str, Any]:
        told = choice(answer)
        told["token_ids"] *= count
        told["logprobs"]["content"] *= count
        return answer

    return change


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (without("token_ids"), RolloutError, "returned no token ids"),
        (without("logprobs"), RolloutError, "returned no token ids"),
        (without("weight_versions"), RolloutError, "weight versions"),
        (lambda a: choice(a)["token_ids"].pop() and a, RolloutError, "do not fit its tokens"),
        (lambda a: {"choices": []}, RolloutError, "returned no token ids"),
        (lambda a: Response("{", media_type="application/json"), RolloutError, "sent no JSON"),
        (lambda a: JSONResponse({"error": "full"}, 503), RolloutError, "status 503"),
        (lambda a: JSONResponse({}, 404), UserError, "--enable-scale-out"),
        (lambda a: Response(b" " * 17_000_000), RolloutError, "over 16 MB"),
        (renamed("2"), WorkupError, r"new weights \(2, before default\)"),
        (renamed("2\n3"), WorkupError, r"new weights \(2 3, before default\)"),
        (token(80), RolloutError, "returned 80 for a token id.* from 0 to 79"),
        (token(-1), RolloutError, "returned -1 for a token id"),
        (token(5.7), RolloutError, r"returned 5\.7 for a token id"),
        (token(5.0), RolloutError, r"returned 5\.0 for a token id"),
        (token(True), RolloutError, "returned True for a token id"),
        (token("5"), RolloutError, "returned '5' for a token id"),
        (token(None), RolloutError, "returned None for a token id"),
        (token(10**400), RolloutError, r"returned 1000\d* for a token id"),
        (logprob(3.0), RolloutError, "a log-probability of 3; none is above 0"),
        (logprob(True), RolloutError, "not numbers"),
        (logprob(-(10**400)), RolloutError, "not numbers"),
        (logprob("-1"), RolloutError, "not numbers"),
        (logprob(None), RolloutError, "not numbers"),
        (logprob(float("-inf")), RolloutError, "not numbers"),
        (logprob(float("nan")), RolloutError, "not numbers"),
        (times(2), RolloutError, "more tokens than allowed"),
        (times(0), RolloutError, "0 tokens with 0 log-prob"),
        (lambda a: {"choices": 5}, RolloutError, "returned no token ids"),
        (lambda a: [[]], RolloutError, "returned no token ids"),
    ],
)
def test_an_answer_that_is_off_is_one_line(
    server: Tokens, change: Change, error: type[Exception], said: str
) -> None:
    policy = opened(server)
    server.change = change
    with pytest.raises(error, match=said) as caught:
        one(policy, (5, 6, 7), max_tokens=5)
    assert "\n" not in str(caught.value)
    policy.close()


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ({"data": 5}, "does not list its models"),
        ({"data": [5]}, "does not list its models"),
        ({"data": {"id": "x"}}, "does not list its models"),
        ({"data": [{"root": "FOLDER"}]}, "does not list its models"),
        ({"data": [{"id": 5, "root": "FOLDER"}]}, "does not list its models"),
        ({}, "does not list its models"),
        (5, "does not list its models as vLLM does: 5;"),
        ({"data": []}, "serves no model"),
        ({"data": [{"id": "two\nlines"}]}, "serves two lines, not"),
        ({"data": [{"id": "FOLDER", "max_model_len": -5}]}, "is -5 tokens"),
        ({"data": [{"id": "FOLDER", "max_model_len": 0}]}, "is 0 tokens"),
        ({"data": [{"id": "FOLDER", "max_model_len": True}]}, "is True tokens"),
        ({"data": [{"id": "FOLDER", "max_model_len": "64"}]}, "is 64 tokens"),
    ],
)
def test_a_list_of_models_that_is_off_is_one_line(server: Tokens, listed: Any, said: str) -> None:
    server.listed = json.loads(json.dumps(listed).replace("FOLDER", server.folder))
    with pytest.raises(UserError, match=said) as caught:
        opened(server)
    assert "\n" not in str(caught.value)


def test_the_server_s_longest_transcript_counts(server: Tokens) -> None:
    server.listed = {"data": [{"id": server.folder, "max_model_len": 64}]}
    policy = opened(server)
    assert policy.context == 64
    policy.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (times(2), "more tokens than allowed"),
        (times(0), "0 tokens"),
        (token(80), "returned 80 for a token id"),
        (logprob(3.0), "none is above 0"),
    ],
)
def test_the_first_answers_are_checked_too(server: Tokens, change: Change, said: str) -> None:
    server.change = change
    with pytest.raises(RolloutError, match=said) as caught:
        opened(server)
    assert "\n" not in str(caught.value)


def test_an_answer_that_never_ends_is_given_up(server: Tokens) -> None:
    """Each byte comes in time; the whole does not."""

    async def drip() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.02)

    policy = opened(server)
    server.change = lambda _: StreamingResponse(drip(), media_type="application/json")
    policy.patience = 0.2
    with pytest.raises(RolloutError, match=r"gave no whole answer in 0\.2 s"):
        one(policy, (5, 6, 7), max_tokens=5)
    server.change, policy.patience = lambda answer: answer, HANG
    assert one(policy, (5, 6, 7), max_tokens=5).tokens, "the connection was given up alone"
    policy.close()


class Said(RemotePolicy):
    """Another process that answers what it is told to."""

    drawn: tuple[Any, Any]

    async def draw(self, prompt: Sequence[int], parameters: Mapping[str, Any]) -> Any:
        return self.drawn


@pytest.mark.parametrize(
    ("drawn", "said"),
    [
        (([5, 80], [-1.0, -1.0]), "returned 80 for a token id"),
        (([5, -1], [-1.0, -1.0]), "returned -1 for a token id"),
        (([5, True], [-1.0, -1.0]), "returned True for a token id"),
        (([5], [0.1]), "log-probability of 0.1"),
        (([5], [float("nan")]), "not numbers"),
        (([5], []), "1 tokens with 0 log-prob"),
        (([], []), "0 tokens"),
        (([5] * 4, [-1.0] * 4), "more tokens than allowed"),
    ],
)
def test_every_sampler_in_another_process_is_checked_alike(
    folder: Path, drawn: Any, said: str
) -> None:
    policy = Said(KnownModel.of(str(folder)), How())
    policy.drawn = drawn
    with pytest.raises(WorkupError, match=said) as caught:
        one(policy, (5, 6), max_tokens=3)
    assert str(caught.value).startswith("vLLM returned")
    policy.drawn = [5, 79], [-1.0, 1e-6]  # a sum of roundings
    assert one(policy, (5, 6), max_tokens=3).logprobs == (-1.0, 1e-6)


def test_what_is_not_the_model_is_refused_at_the_start(server: Tokens, tmp_path: Path) -> None:
    server.served = "somebody/else"
    with pytest.raises(UserError, match=r"serves somebody/else, not .*--served-model-name"):
        opened(server)
    server.served, server.raw = server.folder, True
    with pytest.raises(UserError, match="--logprobs-mode processed_logprobs"):
        opened(server)
    server.raw = False
    with pytest.raises(UserError, match="no server can be reached"):
        samplers.load("server").open(server.folder, How(address="http://127.0.0.1:1"))
    with pytest.raises(UserError, match="needs sampler_address=http://"):
        samplers.load("server").open(server.folder, How())
    for address in ("ftp://x", "http://x:99999", "http://x:y", "http://[::1", "http://x/y?z"):
        with pytest.raises(UserError, match=f"sampler_address={re.escape(address)} is no http"):
            samplers.load("server").open(server.folder, How(address=address))
    with pytest.raises(UserError, match="train with sampler=local"):
        samplers.load("server").follow(llama(), letters(), How())


def test_a_server_that_ends_amid_a_request_is_one_line(folder: Path) -> None:
    server = Tokens(folder)
    policy = opened(server)

    def leave(_: Any) -> Any:
        server.server.force_exit = server.server.should_exit = True
        return Response(b"{", headers={"Content-Length": "100"})

    server.change = leave
    with pytest.raises(RolloutError, match=r"broke off|status 500") as caught:
        one(policy, (5, 6, 7), max_tokens=5)
    assert "\n" not in str(caught.value)
    until(lambda: not server.server.started or not reachable(server.url))
    with pytest.raises(RolloutError, match=r"no server can be reached|broke off"):
        one(policy, (5, 6, 7), max_tokens=5)
    policy.close()


def reachable(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/v1/models", timeout=HANG).read()
    except OSError:
        return False
    return True


class Vllm:
    """vLLM's own server on the weights of `folder`."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.url = str(folder), f"http://127.0.0.1:{free_port()}"
        port = self.url.rpartition(":")[2]
        arguments = [
            *(
                "-m",
                "vllm.entrypoints.openai.api_server",
                "--model",
                self.folder,
                "--host",
                "127.0.0.1",
                "--port",
                port,
                "--dtype",
                "float32",
            ),
            *("--enforce-eager", "--max-num-seqs", "16", "--block-size", "32"),
            *("--enable-scale-out", "--generation-config", "vllm", *options),
        ]
        quiet = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
        bound = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR"}
        environment = {**os.environ, **quiet, **bound}
        self.process = subprocess.Popen([sys.executable, *arguments], env=environment)

    def wait(self) -> None:
        until(lambda: reachable(self.url) or self.process.poll() is not None)
        assert self.process.poll() is None


def test_vllms_own_server(folder: Path) -> None:
    pytest.importorskip("vllm")
    server = Vllm(folder, "--logprobs-mode", "processed_logprobs")
    try:
        server.wait()
        policy, model = opened(server), llama()
        local = LocalPolicy(model, letters())
        ours = together(*(encounter(policy, key, temperature=0) for key in range(6)))
        theirs = together(*(encounter(local, key, temperature=0) for key in range(6)))
        assert [[turn[:2] for turn in told] for told in ours] == [
            [turn[:2] for turn in told] for told in theirs
        ]
        warm = together(*(encounter(policy, key, temperature=0.7) for key in range(6)))
        for told in warm:
            said = [logprob for _, _, row in told for logprob in row]
            np.testing.assert_allclose(said, plain(model, told, 0.7), atol=1e-4)
        alone = together(encounter(policy, 3, temperature=0.7))[0]
        assert [turn[:2] for turn in alone] == [turn[:2] for turn in warm[3]]

        async def cut_short() -> None:
            waiting = asyncio.create_task(policy.sample((5, 6), Sampling(max_tokens=250)))
            await asyncio.sleep(0)
            server.process.kill()
            await waiting

        with pytest.raises(RolloutError, match=r"broke off|can be reached"):
            asyncio.run(cut_short())
        policy.close()
    finally:
        server.process.kill()
        server.process.wait()


def test_vllms_own_server_as_it_starts_by_default_is_refused(folder: Path) -> None:
    pytest.importorskip("vllm")
    server = Vllm(folder)
    try:
        server.wait()
        with pytest.raises(UserError, match="--logprobs-mode processed_logprobs"):
            opened(server)
    finally:
        server.process.kill()
        server.process.wait()
