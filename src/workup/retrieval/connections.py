"""Servers whose connections a request that never comes whole cannot keep open.

uvicorn has no limit on how long a request may take to arrive. Here a connection that waits for one
is closed after a while, and when there are too many of them the oldest makes room.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping
from socket import AF_INET, AF_INET6, IPPROTO_TCP, TCP_NODELAY, create_server, socket
from typing import TYPE_CHECKING, ClassVar, Literal

import h11
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from workup.core.errors import UserError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

Phase = Literal["head", "body", "answer"]
LATE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Bounded(H11Protocol):
    """A connection with a limit on how long a request may take to arrive.

    `seconds` are those that each phase may last. At most `most` connections are `waiting` for a
    request or its rest, those that wait longest first; those that are being answered do not count.
    """

    seconds: ClassVar[Mapping[Phase, float]]
    most: ClassVar[int]
    waiting: ClassVar[dict[Bounded, None]]

    phase: Phase = "answer"
    timer: asyncio.TimerHandle | None = None
    unread: int = 0
    """Bytes of answers that the client had not taken at the last look."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # asyncio does not set it on sockets made elsewhere; answers would come 40 ms late.
        transport.get_extra_info("socket").setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _now(self) -> Phase:
        if self.cycle is None or self.cycle.response_complete:
            return "head"
        return "body" if self.conn.their_state is h11.SEND_BODY else "answer"

    def _watch(self) -> None:
        """Starts the clock of a new phase; bytes within a phase do not set it back."""
        if (phase := self._now()) == self.phase or self.transport.is_closing():
            return
        self._forget()
        self.phase = phase
        if phase == "answer":
            return
        self.waiting[self] = None
        self.unread = self.transport.get_write_buffer_size()
        self.timer = self.loop.call_later(self.seconds[phase], self.look)
        if len(self.waiting) > self.most:
            next(iter(self.waiting)).end()

    def _forget(self) -> None:
        self.waiting.pop(self, None)
        if self.timer is not None:
            self.timer.cancel()

    def look(self) -> None:
        """Ends what has lasted too long, unless the client has read more of an answer since."""
        left = self.transport.get_write_buffer_size()
        if left < self.unread:
            self.unread = left
            self.timer = self.loop.call_later(self.seconds[self.phase], self.look)
        else:
            self.end()

    def end(self) -> None:
        """Closes the connection; whoever sent a part of a request is told why."""
        self._forget()
        if self.transport.get_write_buffer_size():  # a client that reads nothing: no waiting
            self.transport.abort()
            return
        if self.cycle is None or not self.cycle.response_complete:
            self.transport.write(LATE)
        self.transport.close()


def server(app: ASGIApp, head: float, body: float, most: int) -> Server:
    """`app` as a uvicorn server, on sockets that `run` gets.

    `head` and `body` are the seconds that these parts of a request may take to arrive. At most
    `most` connections may be waiting for a request or its rest.
    """
    limits = {"seconds": {"head": head, "body": body}, "most": most, "waiting": {}}
    return Server(
        Config(
            app,
            http=type("Limited", (Bounded,), limits),
            ws="none",
            log_level="error",
            access_log=False,
            server_header=False,
        )
    )


def listening(host: str, port: int) -> socket:
    """A socket at the address; port 0 takes a free one. Raises UserError where none can be had."""
    if not host:  # the system takes it for every address
        raise UserError("--host is empty; type an address, as in --host 127.0.0.1")
    family = AF_INET6 if ":" in host else AF_INET
    try:
        return create_server((host, port), family=family, backlog=1024)
    except (OSError, TypeError) as error:  # TypeError for what is no name of a host
        reason = str(getattr(error, "strerror", error)).partition(" (while")[0]
        taken = getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES)
        other = "--port (0 takes a free one)" if taken else "--host, an address of this machine"
        raise UserError(
            f"cannot listen on {host}:{port}: {reason}; choose another {other}"
        ) from error
