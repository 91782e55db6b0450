"""HTTP calls to a library elsewhere: JSON out, JSON in, patient with a server that is away for a while."""

from __future__ import annotations

import base64
import http.client
import json
import logging
import os
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import stamina

from workup.errors import RolloutError, UserError

LOCAL = {"localhost", "127.0.0.1", "::1"}
PASSING = {408, 425, 429, 500, 502, 503, 504}
"""Statuses after which the same call may succeed."""

LARGEST = 256 * 2**20
"""Bytes of an answer that are read."""

logging.getLogger("stamina").addHandler(logging.NullHandler())


class _Passing(Exception):
    """A failure that may pass."""


@dataclass(frozen=True)
class Caller:
    """Calls to one address; a call waits for the server up to `deadline` seconds, `timeout` at a time.

    `key_env` names an environment variable with user:password, sent only when it is set.
    """

    url: str
    deadline: float = 300.0
    timeout: float = 60.0
    key_env: str = ""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"'{re.sub('//.*@', '//…@', self.url)}' is no http:// or https:// address")
        if parts.username or parts.password:
            raise UserError(f"the address of {parts.hostname} holds a user or password; only environment variables may")

    def call(self, path: str, body: bytes | None = None, *, method: str = "POST", kind: str = "application/json") -> Any:
        """The answer to a request. Raises RolloutError after the deadline, and at once for what retrying cannot mend."""
        waits = stamina.retry_context(
            on=_Passing, attempts=None, timeout=self.deadline, wait_initial=0.2, wait_max=10.0, wait_jitter=0.5
        )
        try:
            for attempt in waits:
                with attempt:
                    return self._once(path, body, method, kind)
        except _Passing as error:
            raise RolloutError(f"the library at {self.url} gave no answer within {self.deadline:g} s: {error}") from error
        raise AssertionError("stamina ends with an answer or an error")

    def _once(self, path: str, body: bytes | None, method: str, kind: str) -> Any:
        request = urllib.request.Request(self.url.rstrip("/") + path, body, {"Content-Type": kind, **self._key()}, method=method)
        try:
            with self._opener().open(request, timeout=self.timeout) as answer:
                return json.loads(answer.read(LARGEST))
        except urllib.error.HTTPError as error:
            said = error.read(500).decode("utf-8", "replace")
            if error.code in PASSING:
                raise _Passing(f"status {error.code}: {said}") from error
            raise RolloutError(f"the library at {self.url} refused {path}: status {error.code}: {said}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _Passing(str(error) or type(error).__name__) from error

    def _key(self) -> dict[str, str]:
        key = os.environ.get(self.key_env) if self.key_env else None
        return {"Authorization": f"Basic {base64.b64encode(key.encode()).decode()}"} if key else {}

    def _opener(self) -> urllib.request.OpenerDirector:
        """A proxy is for the world outside, never for this machine."""
        proxies: dict[str, str] | None = {} if urlsplit(self.url).hostname in LOCAL else None
        return urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
