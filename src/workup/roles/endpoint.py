"""Any OpenAI-compatible endpoint as a model in a supporting role.

Requests are concurrent, limited in rate, repeated after passing errors, and counted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import random
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import anyio
from aiolimiter import AsyncLimiter
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from workup.core.addresses import plain_address
from workup.core.errors import RolloutError, UserError
from workup.core.ports import Reply, Request
from workup.core.shapes import FrozenModel
from workup.models.structured import in_words
from workup.roles.keys import learn, without_keys

if TYPE_CHECKING:
    from workup.roles.clients import Clients
    from workup.roles.faults import Party

OURS = {
    "model",
    "messages",
    "stream",
    "n",
    "response_format",
}  # of the request's body: decided here, not by `parameters`
LONGEST_BACKOFF = 30.0  # seconds
LIMITS = "max_tokens", "max_completion_tokens"  # what the limit on an answer's length is called
UNLIMITED = 2**15  # tokens that are read and reserved where `parameters` removes the limit
TOKEN, AROUND = 128, 4096  # characters of the longest token, and of what may stand around an answer
MOST = 10**9  # tokens of one call: a larger number is not taken for a count
# A retry is no warning. With this handler, stamina's message reaches a configured logger, and never
# the terminal.
logging.getLogger("stamina").addHandler(logging.NullHandler())


ENDPOINT = "endpoint:"  # what stands before an endpoint's name wherever a model is named


class Price(FrozenModel):
    """Money per million tokens, in any one currency."""

    input: float = Field(0.0, ge=0, description="money per million tokens of prompts")
    output: float = Field(0.0, ge=0, description="money per million tokens of answers")


class EndpointSettings(BaseModel):
    """One entry under `endpoints:` in workup.yaml.

    A key is given by the name of its environment variable; it is never written down.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False
    )

    base_url: str = Field(
        description="as the OpenAI SDK takes it, for example https://api.example.com/v1"
    )
    model: str = Field(min_length=1, description="the model's name at the endpoint")
    api_key_env: str | None = Field(
        None, description="the environment variable that holds the key; none for local servers"
    )
    concurrency: int = Field(16, ge=1, le=1000, description="requests in flight")
    requests_per_minute: float | None = Field(
        None, gt=0, description="an upper limit on requests, evenly spaced"
    )
    timeout: float = Field(60.0, gt=0, description="seconds for one attempt")
    deadline: float = Field(
        600.0,
        gt=0,
        description="seconds for a request with all its retries, from when it is first sent",
    )
    retries: int = Field(5, ge=0, description="further attempts after a failure that may pass")
    backoff: float = Field(
        1.0,
        ge=0,
        description="seconds before the first retry, doubled before each further one, up to 30",
    )
    structured: Literal["json_schema", "json_object", "none"] = Field(
        "json_schema",
        description=(
            "how the endpoint is told to answer in JSON; 'none' says it in the prompt alone"
        ),
    )
    max_tokens_name: Literal["max_tokens", "max_completion_tokens"] = Field(
        "max_tokens", description="what the endpoint calls the limit on an answer's length"
    )
    seed: bool = Field(
        False, description="send a seed with requests that are sampled, for endpoints that know one"
    )
    parameters: dict[str, Any] = Field(
        default_factory=dict,
        description="put into the body of every request as they are; null removes one of ours",
    )
    trusted: bool = Field(False, description="may receive the text of restricted cases")
    price: Price = Price()

    @field_validator("base_url")
    @classmethod
    def _plain_url(cls, url: str) -> str:
        return plain_address(url)

    @field_validator("api_key_env")
    @classmethod
    def _variable(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch(r"[A-Z_][A-Z0-9_]{0,63}", name):
            raise ValueError(
                "the NAME of an environment variable, in capitals, never the key itself"
            )
        return name

    @field_validator("parameters")
    @classmethod
    def _not_ours(cls, parameters: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(OURS & parameters.keys()):
            raise ValueError(f"{', '.join(taken)} cannot be set here")
        for name in LIMITS:
            if (limit := parameters.get(name)) is not None and (
                type(limit) is not int or limit < 1
            ):
                raise ValueError(f"{name} is a whole number from 1, or null")
        return parameters

    def tokens(self, asked: int) -> int:
        """The tokens that an answer may have, where a request asks for at most `asked`."""
        sent = {self.max_tokens_name: asked, **self.parameters}
        limits = [limit for name in LIMITS if (limit := sent.get(name)) is not None]
        return max(limits, default=UNLIMITED)


class _ChatMessage(BaseModel):
    content: str | None = None
    refusal: str | None = None


class _Choice(BaseModel):
    message: _ChatMessage
    finish_reason: str | None = None


class Usage(BaseModel):
    """The tokens that an answer took."""

    model_config = ConfigDict(strict=True)

    prompt_tokens: int = Field(0, ge=0, le=MOST)
    completion_tokens: int = Field(0, ge=0, le=MOST)


class _ChatCompletion(BaseModel):
    """The fields of a chat completion that are used, validated because the SDK accepts any JSON."""

    choices: list[_Choice] = Field(min_length=1)
    usage: Any = None

    def used(self) -> Usage | str:
        """The tokens that the call took; else a phrase that says what the endpoint did instead."""
        if self.usage is None:
            return "does not say how many tokens it used"
        try:
            return Usage.model_validate(self.usage)
        except ValidationError:
            return "says a number of tokens that cannot be"


class Payer(Protocol):
    """Who pays for a request, attempt by attempt."""

    async def reserve(self) -> None:
        """Waits until the next attempt can be paid; BudgetError if the budget does not allow it."""
        ...

    async def lost(self, usage: Usage) -> None:
        """Charges an answer that ends as an error; without tokens, the most that it can cost."""
        ...


@dataclass(frozen=True)
class _LoopClients:
    """What belongs to one event loop: connections and queues."""

    clients: Clients
    party: Party
    room: anyio.CapacityLimiter
    rate: AsyncLimiter | None


class Endpoint:
    """A `Model` behind HTTP.

    Any number of requests may run at once, and from several event loops in turn; the limits hold
    per loop. `notes` is what the reader of its results should know, such as a format that the
    endpoint turned out not to support.
    """

    def __init__(self, settings: EndpointSettings) -> None:
        self.settings = settings
        self.notes: list[str] = []
        self._structured = settings.structured
        if settings.api_key_env:
            learn(os.environ.get(settings.api_key_env, "").strip())
        self._lines: dict[
            asyncio.AbstractEventLoop, tuple[_LoopClients, AsyncGenerator[_LoopClients, None]]
        ] = {}
        self._paused_until = -math.inf  # by the loop's clock: until then the endpoint wants no call

    @property
    def name(self) -> str:
        """Model, address, and the settings that change what is sent, where they are not usual."""
        own = self.settings
        told = [json.dumps(own.parameters, sort_keys=True)] if own.parameters else []
        told += ["a seed"] if own.seed else []
        told += [f"structured {own.structured}"] if own.structured != "json_schema" else []
        return f"{own.model} at {own.base_url}" + (f" with {', '.join(told)}" if told else "")

    async def complete(self, request: Request, payer: Payer | None = None) -> Reply:
        """The endpoint's answer, after as many attempts as the settings allow.

        `payer` is asked before each attempt, and told of each answer that has to be paid and is
        not returned. Raises RolloutError when none succeeded, when the deadline passed, or when the
        endpoint refuses this request. Raises UserError if the settings are wrong: the key, the
        model's name, the address.
        """
        import stamina

        from workup.roles.faults import Passing

        line, limits, failures = await self._line(), self.settings, ["no answer"]

        def patience(error: Exception) -> bool | float:
            if not isinstance(error, Passing):
                return False
            failures.append(str(error))
            return self._wait(error.wait, clock)

        with anyio.CancelScope() as clock:
            try:
                async for attempt in stamina.retry_context(
                    patience,
                    limits.retries + 1,
                    None,
                    limits.backoff,
                    LONGEST_BACKOFF,
                    limits.backoff,
                ):
                    with attempt:
                        return await self._attempt(line, clock, request, payer)
            except Passing as error:
                failures.append(
                    f"{error} (it asks to wait {error.wait:g} s)" if error.wait else str(error)
                )
        spent = (
            f"its deadline of {limits.deadline:g} s passed" if clock.cancelled_caught else "gave up"
        )
        raise RolloutError(f"{self.name}: {spent}: {failures[-1]}")

    def _wait(self, asked: float | None, clock: anyio.CancelScope) -> bool | float:
        """Whether to try again.

        True means after our own backoff, a number after so many seconds, False not at all, because
        that would be after the deadline. `asked` is the number of seconds that the endpoint asked
        for.
        """
        if asked is None:
            return True
        self._paused_until = max(self._paused_until, anyio.current_time() + asked)
        # Spread, so that the waiting requests do not all come back at the same moment.
        wait = asked + random.uniform(0, self.settings.backoff)
        return wait if wait < clock.deadline - anyio.current_time() else False

    @asynccontextmanager
    async def _turn(
        self, line: _LoopClients, clock: anyio.CancelScope, payer: Payer | None
    ) -> AsyncIterator[None]:
        """Waits for the money, and for a place among the requests in flight.

        The clock of the request starts when it has one: a long queue is no failure.
        """
        left = min(clock.deadline - anyio.current_time(), self.settings.deadline)
        clock.deadline = math.inf
        if payer is not None:  # without a place: who has the money may be waiting for one
            await payer.reserve()
        async with line.room:
            while (pause := self._paused_until - anyio.current_time()) > 0:
                if pause > left:
                    raise RolloutError(
                        f"{self.name}: asks for {pause:.0f} s of silence, longer than the "
                        "deadline allows"
                    )
                await anyio.sleep(pause)
            if line.rate is not None:
                await line.rate.acquire()
            clock.deadline = anyio.current_time() + left
            yield

    async def _attempt(
        self, line: _LoopClients, clock: anyio.CancelScope, request: Request, payer: Payer | None
    ) -> Reply:
        from workup.roles.faults import Passing, Unformatted

        async with self._turn(line, clock, payer):
            asked, outcome = self._structured, await self._send(line, request, payer)
        if isinstance(outcome, Unformatted) and request.schema and asked != "none":
            if self._structured != "none":  # only the first request that learns it notes it
                self._structured = "none"
                self.notes.append(f"{outcome}; the schema goes into the prompt from now on")
            async with self._turn(line, clock, payer):
                outcome = await self._send(line, request, payer)
        if isinstance(outcome, Exception):
            raise outcome
        try:
            return self._reply(outcome, request)
        except (Passing, RolloutError):
            if payer is not None:
                used = outcome.used()
                await payer.lost(Usage() if isinstance(used, str) else used)
            raise

    async def _send(
        self, line: _LoopClients, request: Request, payer: Payer | None
    ) -> _ChatCompletion | Exception:
        """One HTTP request; returns the reply or the error.

        The error is not raised here: it would carry the SDK's error, and with it the key.
        """
        from httpx2 import Response
        from openai import APIStatusError, OpenAIError

        from workup.roles import wire
        from workup.roles.faults import explain

        body, raw = self._body(request), None
        wire.allowed.set(wire.most(self.settings.tokens(request.max_tokens)))
        try:
            with anyio.fail_after(self.settings.timeout):
                async with line.clients.one() as client:
                    raw = await client.post("/chat/completions", cast_to=Response, body=body)
            return _ChatCompletion.model_validate_json(raw.content)
        except (OpenAIError, TimeoutError, ValueError, wire.Unread) as error:
            if isinstance(error, APIStatusError):
                raw = error.response
            if payer is not None and raw is not None and (paid := _paid(raw.content)):
                await payer.lost(paid)
            return explain(error, line.party)

    def _reply(self, answer: _ChatCompletion, request: Request) -> Reply:
        """The reply in an answer.

        Raises Passing for an answer without text; RolloutError if more attempts would end the same
        way.
        """
        from workup.roles.faults import Passing

        choice, usage = answer.choices[0], answer.used()
        if isinstance(usage, str):
            note = f"it {usage}: no tokens are counted, and the most that they can cost is"
            if note not in self.notes:
                self.notes.append(note)
        text = without_keys(choice.message.content or "")
        truncated = choice.finish_reason == "length"
        tokens = self.settings.tokens(request.max_tokens)
        if truncated and not text.strip():
            raise RolloutError(
                f"{self.name}: all {tokens} tokens were spent before the answer began"
            )
        if len(text) > AROUND + TOKEN * tokens:
            raise RolloutError(
                f"{self.name}: {len(text):,} characters are no answer of {tokens:,} tokens; it "
                "ignores the limit"
            )
        if not text.strip():
            refused = without_keys(choice.message.refusal or "")
            said = refused or ("content filter" if choice.finish_reason == "content_filter" else "")
            raise Passing(f"it refused: {said[:200]}" if said else "an empty answer")
        if isinstance(usage, str):
            return Reply(text, truncated=truncated)
        return Reply(text, usage.prompt_tokens, usage.completion_tokens, truncated)

    def _body(self, request: Request) -> dict[str, Any]:
        limits = self.settings
        body: dict[str, Any] = {
            "model": limits.model,
            "messages": [
                {"role": message.role, "content": _sound(message.content)}
                for message in request.messages
            ],
            limits.max_tokens_name: request.max_tokens,
            "temperature": request.temperature,
        }
        if limits.seed and request.temperature > 0:
            body["seed"] = request.sample
        if request.schema:
            self._shape(body, request)
        return {
            name: value
            for name, value in {**body, **limits.parameters}.items()
            if value is not None
        }

    def _shape(self, body: dict[str, Any], request: Request) -> None:
        """The request for a schema: in the field for it, or in the last message."""
        if self._structured == "json_schema":
            name = re.sub(r"[^A-Za-z0-9_-]", "_", request.role)[:64] or "answer"
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": name, "schema": json.loads(request.schema)},
            }
            return
        if self._structured == "json_object":
            body["response_format"] = {"type": "json_object"}
        body["messages"][-1]["content"] += in_words(request.schema)

    async def _line(self) -> _LoopClients:
        loop = asyncio.get_running_loop()
        self._lines = {other: line for other, line in self._lines.items() if not other.is_closed()}
        if loop not in self._lines:
            opened = self._open()
            self._lines[loop] = await anext(opened), opened
        return self._lines[loop][0]

    async def _open(self) -> AsyncGenerator[_LoopClients, None]:
        """The connections and queues of the running event loop.

        They close with the loop.
        """
        from workup.roles.clients import Clients  # half a second
        from workup.roles.faults import Party

        limits, key = self.settings, self.key()
        party = Party(
            self.name, limits.base_url, limits.model, limits.api_key_env, limits.timeout, key
        )
        rate = (
            AsyncLimiter(1, 60 / limits.requests_per_minute) if limits.requests_per_minute else None
        )
        clients = Clients(limits.base_url, key or "none")
        try:
            yield _LoopClients(clients, party, anyio.CapacityLimiter(limits.concurrency), rate)
        finally:
            await clients.close()

    def key(self) -> str:
        """The key, or "" if none is configured.

        Raises UserError if its environment variable is not set or holds what cannot be a key.
        """
        variable = self.settings.api_key_env
        if variable is None:
            return ""
        if not (key := os.environ.get(variable, "").strip()):
            raise UserError(
                f"the environment variable {variable} is not set; {self.settings.base_url} takes "
                "its key from there"
            )
        if not key.isascii() or not key.isprintable() or " " in key:
            raise UserError(
                f"the environment variable {variable} holds no key: it has spaces, control or "
                "non-ASCII characters"
            )
        learn(key)
        return key


def _paid(content: bytes) -> Usage | None:
    """The tokens that are reported in an answer that is no chat completion; None if none are."""
    try:
        usage = Usage.model_validate(json.loads(content)["usage"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return usage if usage != Usage() else None


def _sound(text: str) -> str:
    """`text` without lone surrogates, which JSON files can hold and UTF-8 cannot."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
