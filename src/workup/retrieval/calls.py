"""HTTP calls to a library on another machine, with JSON; they wait for a server that restarts."""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import stamina

from workup.core.addresses import plain_address
from workup.core.errors import RolloutError, UserError, reason
from workup.roles.keys import learn, without_keys

if TYPE_CHECKING:
    from httpx2 import Client, Response

T = TypeVar("T")
LOCAL = {"localhost", "127.0.0.1", "::1"}
PASSING = {408, 425, 429, 500, 502, 503, 504}
"""Statuses after which the same call may succeed."""

LARGEST = 256 * 2**20
"""Bytes of an answer; one that is longer is refused."""

REASON = 2**16
"""Bytes of a refusal that are read."""

DEADLINE = 300.0
"""Seconds that a call waits for the server, at most."""

logging.getLogger("stamina").addHandler(logging.NullHandler())


class PassingError(Exception):
    """A failure that may pass."""


@dataclass(frozen=True)
class Caller:
    """Calls to one address.

    A call waits for the server up to `deadline` seconds, `timeout` seconds per attempt. `key_env`
    names an environment variable with user:password, sent only when it is set. With `patient`, it
    waits for a server that cannot be reached, as for one that is being restarted; without, that is
    a UserError at once.
    """

    url: str
    deadline: float = DEADLINE
    timeout: float = 60.0
    key_env: str = ""
    patient: bool = True

    def __post_init__(self) -> None:
        place = re.sub("//.*@", "//…@", self.url)
        try:
            plain_address(self.url)
        except ValueError as error:
            raise UserError(f"'{place}': {error}") from error

    def call(
        self,
        path: str,
        body: bytes | None = None,
        *,
        method: str = "POST",
        kind: str = "application/json",
    ) -> Any:
        """The answer to a request.

        Raises RolloutError after the deadline, and at once for what retrying cannot mend.

        Where the caller is not patient, raises UserError at once for a server that cannot be
        reached, and for an answer that is no JSON.
        """
        return self.retried(lambda: self._once(path, body, method, kind))

    def retried(self, once: Callable[[], T]) -> T:
        """What `once` returns; it is called again while it raises PassingError.

        Raises RolloutError after the deadline.
        """
        waits = stamina.retry_context(
            on=PassingError,
            attempts=None,
            timeout=self.deadline,
            wait_initial=0.2,
            wait_max=10.0,
            wait_jitter=0.5,
        )
        try:
            for attempt in waits:
                with attempt:
                    return once()
        except PassingError as error:
            raise RolloutError(
                f"the library at {self.url} gave no answer within {self.deadline:g} s: {error}"
            ) from error
        raise AssertionError("stamina ends with an answer or an error")

    def _once(self, path: str, body: bytes | None, method: str, kind: str) -> Any:
        from httpx2 import ConnectError, HTTPError

        headers = {"Content-Type": kind, **self._key()}
        place = self.url.rstrip("/") + path
        try:
            with self._client.stream(method, place, content=body, headers=headers) as answer:
                read = self._read(answer)
        except HTTPError as error:
            if isinstance(error, ConnectError) and not self.patient:
                raise UserError(
                    f"no library can be reached at {self.url}: {error}; correct the address, or "
                    "start a server there with `workup serve retrieval FOLDER --port PORT`"
                ) from error
            raise PassingError(reason(error)) from error
        said = without_keys(read[:500].decode("utf-8", "replace"))
        if answer.status_code in PASSING:
            raise PassingError(f"status {answer.status_code}: {said}")
        if not answer.is_success:
            status = f"status {answer.status_code}"
            raise RolloutError(f"the library at {self.url} refused {path}: {status}: {said}")
        try:
            return json.loads(without_keys(read.decode("utf-8", "replace")))
        except (ValueError, RecursionError) as error:
            if not self.patient:
                raise UserError(
                    f"what answers at {place} is no library: it sends no JSON, but "
                    f"{' '.join(said[:60].split())!r}; correct the address"
                ) from error
            raise PassingError(str(error)) from error

    def _read(self, answer: Response) -> bytes:
        """The answer as it was sent; RolloutError for one that is too long or compressed."""
        if answer.headers.get("content-encoding", "identity").lower() != "identity":
            raise RolloutError(
                f"the library at {self.url} compresses its answers although asked not to"
            )
        read, since = bytearray(), time.monotonic()
        for chunk in answer.iter_raw():
            read += chunk
            # The client's own limit is for each piece: one byte a second would never end.
            if time.monotonic() - since > self.timeout:
                raise PassingError(f"its answer is not over after {self.timeout:g} s")
            if len(read) > (LARGEST if answer.is_success else REASON):
                break
        if len(read) > LARGEST:
            raise RolloutError(f"the library at {self.url} sends more than {LARGEST // 2**20} MiB")
        return bytes(read)

    @cached_property
    def _client(self) -> Client:
        """Keeps connections between calls.

        A proxy is for the world outside, never for this machine.
        """
        from httpx2 import Client

        outside = urlsplit(self.url).hostname not in LOCAL
        plain = {"Accept-Encoding": "identity"}
        return Client(timeout=self.timeout, trust_env=outside, headers=plain)

    def _key(self) -> dict[str, str]:
        key = os.environ.get(self.key_env) if self.key_env else None
        if not key:
            return {}
        learn(key)
        learn(key.partition(":")[2])
        return {"Authorization": f"Basic {base64.b64encode(key.encode()).decode()}"}
