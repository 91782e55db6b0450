"""What an endpoint's failures mean: which may pass, and which the user can mend.

No text holds the key. The SDK's own errors stay here: they carry the request, and with it the key.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from openai import APIConnectionError, APIStatusError, APITimeoutError
from pydantic import ValidationError

from workup.core.errors import RolloutError, UserError
from workup.core.shapes import first_problem
from workup.core.text import unsteering
from workup.roles.keys import without_keys
from workup.roles.wire import Unread

PASSING = {408, 409, 425, 429}  # and every 5xx
_FORMAT = re.compile(
    r"response_format|json_schema|json_object|structured.output|guided|grammar", re.IGNORECASE
)
_SHOWN = 200  # characters of what an endpoint says about itself


class Passing(Exception):
    """A failure that may pass.

    `wait` is the number of seconds that the endpoint asked for, or None.
    """

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


class Unformatted(RolloutError):
    """The endpoint refuses `response_format`, or the schema in it."""


@dataclass(frozen=True, slots=True)
class Party:
    """The endpoint, as far as errors need it; `key` is here only to keep it out of their texts."""

    name: str
    base_url: str
    model: str
    api_key_env: str | None
    timeout: float
    key: str

    def __repr__(self) -> str:
        return f"Party({self.name!r})"


def explain(error: Exception, party: Party) -> Exception:
    """The error to raise in place of `error`: Passing, Unformatted, RolloutError or UserError."""
    if isinstance(error, APIStatusError):
        return _of_status(error, party)
    if isinstance(error, (TimeoutError, APITimeoutError)):
        return Passing(f"no answer within {party.timeout:g} s")
    if isinstance(error, ValidationError):
        where, problem = first_problem(error)
        return Passing(
            "an answer that is no chat completion "
            f"({f'{where}: ' if where else ''}{problem[:80].lower()})"
        )
    for one in (error, error.__cause__):  # some versions of the SDK wrap what our hook raises
        if isinstance(one, Unread):
            return RolloutError(f"{party.name}: {one}")
    if isinstance(error, APIConnectionError):
        # The name only: some of these texts quote the header with the key.
        return Passing(f"the connection failed ({type(error.__cause__ or error).__name__})")
    return RolloutError(f"{party.name}: {type(error).__name__}")


def _of_status(error: APIStatusError, party: Party) -> Exception:
    status, said = error.status_code, _reason(error, party.key)
    if status in (401, 403):
        key = (
            f"the key in {party.api_key_env}"
            if party.api_key_env
            else "us without a key (api_key_env names its variable)"
        )
        return UserError(f"{party.name} refuses {key}: {said}")
    if status == 402 or error.code == "insufficient_quota":
        return UserError(f"{party.name}: the account has no credit left: {said}")
    if status == 404 or 300 <= status < 400:
        to = error.response.headers.get("location")
        hint = f"it sends us to {_clean(to, party.key)}" if to else "base_url usually ends in /v1"
        return UserError(
            f"{party.base_url} knows no model '{party.model}', or its path is another ({hint}): "
            f"{said}"
        )
    if status in PASSING or status >= 500:
        return Passing(said, retry_after(error.response.headers))
    kind = Unformatted if status in (400, 422) and _FORMAT.search(said) else RolloutError
    return kind(f"{party.name} refuses the request: {said}")


def _reason(error: APIStatusError, key: str) -> str:
    """The status and the endpoint's own words, in one line."""
    body = error.body
    said = (
        body.get("message") or body.get("detail") or body if isinstance(body, dict) else body or ""
    )
    return f"{error.status_code} {_clean(str(said), key)}".strip()


def _clean(text: str, key: str) -> str:
    text = without_keys(text.replace(key, "…") if key else text)
    text = " ".join(unsteering(text[: 10 * _SHOWN]).split())
    return text[:_SHOWN]


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds to wait (≥ 0), from Retry-After or retry-after-ms; None if neither is there.

    Retry-After is a number of seconds or an HTTP date. A date is compared with the endpoint's own
    Date if it sends one, so that clocks need not agree.
    """
    for header, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers[header]) / unit
        except (KeyError, ValueError):
            continue
        return max(0.0, seconds) if math.isfinite(seconds) else None
    until = _timestamp(headers.get("retry-after"))
    if until is None:
        return None
    return max(0.0, until - (_timestamp(headers.get("date")) or time.time()))


def _timestamp(date: str | None) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp() if date else None
    except (ValueError, OverflowError):
        return None
