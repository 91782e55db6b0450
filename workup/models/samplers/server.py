"""A vLLM server that is already running, reached over HTTP.

Ids go to its token-in endpoint (`POST /inference/v1/generate`, vLLM 0.32) and come back as they
were sampled. Its weights stay as they are: it evaluates, and does not train.
"""

from __future__ import annotations

import asyncio
import json
import math
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from httpx2 import AsyncClient, ConnectError, HTTPError, Limits, Timeout

from workup.errors import RolloutError, UserError, WorkupError
from workup.models.remote import COLDEST, Drawn, Known, OwnLoop, RemotePolicy
from workup.models.remote_model import RemoteModel
from workup.models.samplers import How
from workup.ports import LivePolicy

PATIENCE = 600.0  # seconds for one answer
LARGEST = 2**24  # bytes of one
CERTAIN = 1e-2  # nats: a token as probable as this says nothing about temperatures
START = (
    "python -m vllm.entrypoints.openai.api_server --model FOLDER --enable-scale-out "
    "--logprobs-mode processed_logprobs"
)


class ServerPolicy(RemotePolicy):
    """A policy on the model that a server serves, checked at the start.

    Raises UserError for a server that cannot be reached, serves another model, has no endpoint for
    token ids, or returns log-probabilities from before the temperature.
    """

    def __init__(self, known: Known, how: How, address: str, names: Sequence[str]) -> None:
        super().__init__(known, how)
        self.address, self._loop = address, OwnLoop("server")
        self.name, limits = "", Limits(max_connections=how.concurrency)
        self._client = AsyncClient(timeout=Timeout(PATIENCE, connect=10.0), limits=limits)
        self.close = weakref.finalize(self, self._loop.close)
        try:
            self.version = self._loop.submit(self._meet(names)).result()
        except BaseException:
            self.close()
            raise

    async def draw(self, prompt: Sequence[int], parameters: Mapping[str, Any]) -> Drawn:
        asked = self._loop.submit(self._ask(prompt, parameters))
        tokens, logprobs, version = await asyncio.wrap_future(asked)
        if version != self.version:
            raise WorkupError(
                f"the server at {self.address} has new weights ({version}, before {self.version})"
            )
        if len(tokens) > parameters["max_tokens"]:
            raise RolloutError(f"the server at {self.address} returned more tokens than allowed")
        return tokens, logprobs

    async def _meet(self, names: Sequence[str]) -> str:
        """Checks what is served; the result is the version of its weights."""
        try:
            listed = await self._json("GET", "/v1/models", None)
        except RolloutError as error:
            raise UserError(f"{error}; start one there: {START}") from error
        served = listed.get("data") if isinstance(listed, dict) else None
        cards = [card for card in served or () if isinstance(card, dict)]
        fits = [card for card in cards if {card.get("id"), card.get("root")} & set(names)]
        if not fits:
            found = ", ".join(str(card.get("id"))[:80] for card in cards) or "no model"
            raise UserError(
                f"the server at {self.address} serves {found}, not {names[0]}; start it with "
                f"--served-model-name {names[0]}, if that is what it is"
            )
        longest = fits[0].get("max_model_len")
        self.context = min(self.context, longest if isinstance(longest, int) else self.context)
        self.name = str(fits[0]["id"])
        return await self._honest()

    async def _honest(self) -> str:
        """Checks that log-probabilities count the temperature; returns the weights' version.

        The most probable token is drawn greedily, and at a temperature near 0, which has to raise
        its probability. Raises UserError if it does not.
        """
        prompt = [token for token in range(3, 11) if token not in self.eos]
        how = {"max_tokens": 1, "seed": 0, "logprobs": 0, "ignore_eos": True}
        likely, cold = [
            await self._ask(prompt, {**how, "temperature": each}) for each in (0.0, COLDEST)
        ]
        (before,), (after,) = likely[1], cold[1]
        if likely[0] == cold[0] and before < -CERTAIN and math.isclose(before, after, rel_tol=1e-3):
            raise UserError(
                f"the server at {self.address} returns log-probabilities from before the "
                "temperature; start it with --logprobs-mode processed_logprobs"
            )
        return cold[2]

    async def _ask(
        self, prompt: Sequence[int], parameters: Mapping[str, Any]
    ) -> tuple[list[int], list[float], str]:
        """Ids, their log-probabilities, and the version of the weights. Raises RolloutError."""
        body = {"model": self.name, "token_ids": list(prompt), "sampling_params": dict(parameters)}
        answer = await self._json("POST", "/inference/v1/generate", body)
        try:
            (choice,) = answer["choices"]
            tokens = [int(token) for token in choice["token_ids"]]
            rows = choice["logprobs"]["content"]
            logprobs = [float(row["logprob"]) for row in rows]
            aligned = tokens == [int(row["token_id"]) for row in rows]
            versions = {str(span["version"]) for span in choice["weight_versions"]}
        except (TypeError, KeyError, ValueError, OverflowError) as error:
            raise RolloutError(
                f"the server at {self.address} returned no token ids with log-probabilities and "
                f"weight versions as vLLM 0.32 does ({type(error).__name__}: {error})"
            ) from error
        if not aligned or not all(map(math.isfinite, logprobs)) or len(versions) != 1:
            raise RolloutError(
                f"the server at {self.address} returned log-probabilities that do not fit its "
                "tokens, or tokens by several versions of the weights"
            )
        return tokens, logprobs, versions.pop()

    async def _json(self, method: str, path: str, body: Any) -> Any:
        """The JSON that the server answers. Raises RolloutError if none comes back."""
        read = bytearray()
        try:
            async with self._client.stream(method, self.address + path, json=body) as answer:
                async for piece in answer.aiter_bytes():
                    read += piece
                    if len(read) > LARGEST:
                        raise RolloutError(f"the server at {self.address} sent over 16 MB")
        except ConnectError as error:
            raise RolloutError(f"no server can be reached at {self.address}: {error}") from error
        except HTTPError as error:
            why = str(error) or type(error).__name__
            raise RolloutError(f"the server at {self.address} broke off: {why}") from error
        if answer.status_code == 404 and body is not None:
            raise UserError(
                f"the server at {self.address} has no {path}: start it with --enable-scale-out"
            )
        if not answer.is_success:
            said = " ".join(read[:300].decode("utf-8", "replace").split())
            raise RolloutError(f"the server at {self.address}: status {answer.status_code}: {said}")
        try:
            return json.loads(read)
        except (ValueError, RecursionError) as error:
            raise RolloutError(f"the server at {self.address} sent no JSON: {error}") from error


def open(place: str, how: How) -> RemoteModel[ServerPolicy]:
    """The model of a folder or a hub id, as a server serves it."""
    address = _address(how.address)
    known = Known.of(place)
    names = [place, str(Path(place).expanduser().resolve()), known.folder]
    return RemoteModel(place, how, ServerPolicy(known, how, address, names), known.config)


def follow(model: Any, tokenizer: Any, how: How) -> LivePolicy:
    """Raises UserError: nothing here brings new weights to a server."""
    raise UserError(
        "sampler=server serves weights that stay as they are; train with sampler=local or "
        "sampler=vllm"
    )


def _address(given: str | None) -> str:
    if given is None:
        raise UserError(f"sampler=server needs sampler_address=http://HOST:PORT, of: {START}")
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise UserError(f"sampler_address={given.split('@')[-1]} is no http://HOST:PORT")
    return given.rstrip("/")
