"""How much an endpoint may send: in proportion to the tokens that it was asked for.

What goes beyond is not read. The HTTP library itself bounds the headers, at 100 kB.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextvars import ContextVar

from httpx2 import AsyncByteStream, Response

FRAME = 2**20
"""Bytes around an answer: its JSON, and thoughts that a server does not count as tokens."""

TOKEN = 256
"""Bytes of a token. The longest of known vocabularies have 128, and JSON may write one as six."""

REASON = 2**16
"""Bytes of an answer that is an error."""

allowed: ContextVar[int] = ContextVar("allowed", default=FRAME)
"""Bytes of the answer to the request that is being sent."""


class Unread(Exception):
    """An answer that goes beyond what may be sent, or hides how long it is."""


def most(tokens: int) -> int:
    """Bytes that an answer of at most `tokens` tokens may have."""
    return FRAME + TOKEN * tokens


async def bound(response: Response) -> None:
    """A hook of the HTTP client: its answers end where they go beyond `allowed`.

    Raises Unread, here for a compressed body (a few of whose bytes can become any number), and
    where the body is read for one that is too long. An error's body is cut off there instead.
    """
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise Unread("it compresses its answers although it was asked not to")
    failed = response.status_code >= 300
    assert isinstance(response.stream, AsyncByteStream)
    response.stream = _Bounded(response.stream, REASON if failed else allowed.get(), failed)


class _Bounded(AsyncByteStream):
    def __init__(self, stream: AsyncByteStream, most: int, cut: bool) -> None:
        self._stream, self._most, self._cut = stream, most, cut

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._most
        async for chunk in self._stream:
            left -= len(chunk)
            if left < 0 and not self._cut:
                raise Unread(f"its answer is longer than {self._most:,} bytes")
            yield chunk
            if left < 0:
                return

    async def aclose(self) -> None:
        await self._stream.aclose()
