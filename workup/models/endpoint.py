"""Any OpenAI-compatible endpoint as a model in a supporting role: concurrent, limited, patient, counted."""

from __future__ import annotations

import json
import os
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import anyio
from pydantic import BaseModel, ConfigDict, Field

from workup.errors import RolloutError, UserError
from workup.ports import Reply, Request

if TYPE_CHECKING:
    from openai import AsyncOpenAI


class Price(BaseModel):
    """Money per million tokens, in any one currency."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: float = Field(0.0, ge=0)
    output: float = Field(0.0, ge=0)


class EndpointSettings(BaseModel):
    """One entry under `endpoints:` in workup.yaml. A key is named by its environment variable, never written down."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_url: str = Field(description="as the OpenAI SDK takes it, for example https://api.example.com/v1")
    model: str = Field(description="the model's name at the endpoint")
    api_key_env: str | None = Field(None, description="the environment variable that holds the key; none for local servers")
    concurrency: int = Field(16, ge=1, description="requests in flight")
    requests_per_minute: float | None = Field(None, gt=0, description="an upper limit on new requests")
    timeout: float = Field(60.0, gt=0, description="seconds for one attempt")
    deadline: float = Field(600.0, gt=0, description="seconds for a request with all its retries")
    retries: int = Field(5, ge=0, description="further attempts after a failure that may pass")
    structured: Literal["json_schema", "json_object", "none"] = Field(
        "json_schema", description="how the endpoint is told to answer in JSON; 'none' says it in the prompt alone"
    )
    trusted: bool = Field(False, description="may receive the text of restricted cases")
    price: Price = Price()


class Endpoint:
    """A `Model` behind HTTP."""

    def __init__(self, settings: EndpointSettings) -> None:
        self.settings = settings
        self._room = anyio.CapacityLimiter(settings.concurrency)

    @property
    def name(self) -> str:
        return f"{self.settings.model} at {self.settings.base_url}"

    @cached_property
    def _client(self) -> AsyncOpenAI:
        from openai import AsyncOpenAI  # half a second

        return AsyncOpenAI(base_url=self.settings.base_url, api_key=self._key(), max_retries=0, timeout=self.settings.timeout)

    def _key(self) -> str:
        variable = self.settings.api_key_env
        if variable is None:
            return "none"
        if not (key := os.environ.get(variable)):
            raise UserError(f"the environment variable {variable} is not set; {self.settings.base_url} takes its key from there")
        return key

    async def complete(self, request: Request) -> Reply:
        """Raises RolloutError when no attempt succeeded."""
        from openai import OpenAIError

        try:
            async with self._room:
                answer = await self._client.chat.completions.create(**self._body(request))
        except OpenAIError as error:
            raise RolloutError(f"{self.name}: {type(error).__name__}") from error
        choice, usage = answer.choices[0], answer.usage
        read, written = (usage.prompt_tokens, usage.completion_tokens) if usage else (0, 0)
        return Reply(choice.message.content or "", read, written, choice.finish_reason == "length")

    def _body(self, request: Request) -> dict[str, Any]:
        messages = [{"role": message.role, "content": message.content} for message in request.messages]
        body: dict[str, Any] = {
            "model": self.settings.model,
            "messages": messages,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
        }
        if request.schema and self.settings.structured == "json_schema":
            schema = {"name": request.role, "schema": json.loads(request.schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body
