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

from httpx2 import AsyncClient, ConnectError, HTTPError, Limits, Timeout

from workup.core.addresses import plain_address
from workup.core.disk import there
from workup.core.errors import RolloutError, UserError, WorkupError, reason
from workup.core.ports import LivePolicy
from workup.models.remote import COLDEST, Drawn, KnownModel, OwnLoop, RemotePolicy
from workup.models.remote_model import RemoteModel
from workup.models.samplers import How

PATIENCE = 600.0  # seconds for one answer
LARGEST = 2**24  # bytes of one
CERTAIN = 1e-2  # nats: a token as probable as this says nothing about temperatures
START = (
    "python -m vllm.entrypoints.openai.api_server --model FOLDER --enable-scale-out "
    "--logprobs-mode processed_logprobs"
)


class ServerPolicy(RemotePolicy):
    """A policy on the model that a server serves, checked at the start.

    An answer has `patience` seconds, from the request to its last byte. Raises UserError for a
    server that cannot be reached, serves another model, has no endpoint for token ids, or returns
    log-probabilities from before the temperature.
    """

    fault = RolloutError

    def __init__(self, known: KnownModel, how: How, address: str, names: Sequence[str]) -> None:
        super().__init__(known, how)
        self.address, self._loop = address, OwnLoop("server")
        self.who, self.patience = f"the server at {address}", PATIENCE
        self.name, limits = "", Limits(max_connections=how.concurrency)
        self._client = AsyncClient(timeout=Timeout(None, connect=10.0), limits=limits)
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
            raise WorkupError(f"{self.who} has new weights ({version}, before {self.version})")
        return tokens, logprobs

    async def _meet(self, names: Sequence[str]) -> str:
        """Checks what is served; the result is the version of its weights."""
        try:
            listed = await self._json("GET", "/v1/models", None)
        except RolloutError as error:
            raise UserError(f"{error}; start one there: {START}") from error
        cards = _cards(listed)
        if cards is None:
            raise UserError(
                f"{self.who} does not list its models as vLLM does: {_short(listed)}; start one "
                f"there: {START}"
            )
        fits = [card for card in cards if card["id"] in names or card.get("root") in names]
        if not fits:
            found = ", ".join(_short(card["id"]) for card in cards) or "no model"
            raise UserError(
                f"{self.who} serves {found}, not {names[0]}; start it with "
                f"--served-model-name {names[0]}, if that is what it is"
            )
        self.name, longest = fits[0]["id"], fits[0].get("max_model_len")
        if longest is not None:
            if type(longest) is not int or longest < 1:
                raise UserError(
                    f"{self.who} says that its longest transcript is {_short(longest)} tokens "
                    "(max_model_len), which is no length"
                )
            self.context = min(self.context, longest)
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
        for tokens, logprobs, _ in (likely, cold):
            self.check(tokens, logprobs, room=1)
        (before,), (after,) = likely[1], cold[1]
        if likely[0] == cold[0] and before < -CERTAIN and math.isclose(before, after, rel_tol=1e-3):
            raise UserError(
                f"{self.who} returns log-probabilities from before the temperature; start it "
                "with --logprobs-mode processed_logprobs"
            )
        return cold[2]

    async def _ask(
        self, prompt: Sequence[int], parameters: Mapping[str, Any]
    ) -> tuple[list[Any], list[Any], str]:
        """Ids, their log-probabilities, and the version of the weights, as the server says them.

        Raises RolloutError where it says something else.
        """
        body = {"model": self.name, "token_ids": list(prompt), "sampling_params": dict(parameters)}
        answer = await self._json("POST", "/inference/v1/generate", body)
        try:
            (choice,) = answer["choices"]
            tokens = list(choice["token_ids"])
            rows = choice["logprobs"]["content"]
            logprobs = [row["logprob"] for row in rows]
            aligned = [str(token) for token in tokens] == [str(row["token_id"]) for row in rows]
            versions = {_short(span["version"]) for span in choice["weight_versions"]}
        except (TypeError, KeyError, ValueError) as error:
            raise RolloutError(
                f"{self.who} returned no token ids with log-probabilities and weight versions as "
                f"vLLM 0.32 does ({type(error).__name__}: {_short(error)})"
            ) from error
        if not aligned or len(versions) != 1:
            raise RolloutError(
                f"{self.who} returned log-probabilities that do not fit its tokens, or tokens by "
                "several versions of the weights"
            )
        return tokens, logprobs, versions.pop()

    async def _json(self, method: str, path: str, body: Any) -> Any:
        """The JSON that the server answers. Raises RolloutError if none comes back in time."""
        try:
            async with asyncio.timeout(self.patience):
                status, read = await self._read(method, path, body)
        except TimeoutError as error:
            raise RolloutError(f"{self.who} gave no whole answer in {self.patience:g} s") from error
        except ConnectError as error:
            raise RolloutError(f"no server can be reached at {self.address}: {error}") from error
        except HTTPError as error:
            why = reason(error)
            raise RolloutError(f"{self.who} broke off: {why}") from error
        if status == 404 and body is not None:
            raise UserError(f"{self.who} has no {path}: start it with --enable-scale-out")
        if not 200 <= status < 300:
            said = " ".join(read[:300].decode("utf-8", "replace").split())
            raise RolloutError(f"{self.who}: status {status}: {said}")
        try:
            return json.loads(read)
        except (ValueError, RecursionError) as error:
            raise RolloutError(f"{self.who} sent no JSON: {error}") from error

    async def _read(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        """The status of an answer and its bytes. Raises RolloutError for too many of them."""
        read = bytearray()
        async with self._client.stream(method, self.address + path, json=body) as answer:
            async for piece in answer.aiter_bytes():
                read += piece
                if len(read) > LARGEST:
                    raise RolloutError(f"{self.who} sent over 16 MB")
        return answer.status_code, bytes(read)


def _cards(listed: Any) -> list[dict[str, Any]] | None:
    """The models of an answer of `/v1/models`, each with a name; None for any other answer."""
    found = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(found, list) or not all(
        isinstance(card, dict) and isinstance(card.get("id"), str) for card in found
    ):
        return None
    return found


def _short(said: Any) -> str:
    """What a server said, in part, on one line."""
    return " ".join(str(said).split())[:80]


def open(place: str, how: How) -> RemoteModel[ServerPolicy]:
    """The model of a folder or a hub id, as a server serves it."""
    address = _address(how.address)
    known = KnownModel.of(place)
    names = [place, str((there(place) or Path(place)).resolve()), known.folder]
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
    try:
        return plain_address(given)
    except ValueError as error:
        where = given.split("@")[-1]
        raise UserError(f"sampler_address={where} is no http://HOST:PORT: {error}") from error
