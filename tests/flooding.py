"""A real server that sends a hundred megabytes, or as much of them as is read."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

FLOOD = 100_000_000


class Flooder:
    """Answers each request with `head`, then `block` again and again.

    It ends when `FLOOD` bytes are sent or nobody reads on.
    """

    def __init__(self, listening: socket.socket, head: bytes, block: bytes) -> None:
        self.head, self.block = head, block
        self.sent: list[int] = []
        self._listening = listening

    def run(self) -> None:
        with suppress(OSError):  # the listening socket is closed
            while True:
                connection, _ = self._listening.accept()
                with connection:
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        asked = b""
        while b"\r\n\r\n" not in asked or not asked.endswith(b"}"):
            asked += connection.recv(2**16)
        self.sent.append(0)
        with suppress(OSError):
            connection.sendall(self.head)
            while self.sent[-1] < FLOOD:
                self.sent[-1] += connection.send(self.block)


@contextmanager
def flooding(head: bytes, block: bytes) -> Iterator[tuple[str, Flooder]]:
    """The server's address, and a counter of the bytes sent, those in socket buffers included."""
    listening = socket.create_server(("127.0.0.1", 0))
    flooder = Flooder(listening, head, block)
    thread = threading.Thread(target=flooder.run, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1", flooder
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(20)
