"""Limits on connections: their number, and the size and duration of request heads (and trailers).

Bodies have their own limits (:mod:`trackside.serve.limits`). Everything before a token is checked is bounded here.
"""

from __future__ import annotations

import asyncio
import resource

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_CONNECTIONS = 4096
"""Maximum number of simultaneous connections, if the process may open twice as many files: the store needs some
too."""
MAX_SHARE = 0.5
"""Share of the connections that one address may have."""
MAX_HEAD_BYTES = 64 << 10
"""Maximum bytes of a request without its body."""
MAX_RECEIVED_PER_BODY_BYTE = 9
"""Maximum bytes received per body byte, including the chunk headers."""
HEAD_S = 20.0
"""Time limit for a request head, and for a connection without data."""
LINGER_S = 5.0
"""How long the rest of a body is read and discarded after its answer: many senders send all before they read."""


def max_connections() -> int:
    """Maximum number of connections; the other files belong to the store."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, soft // 2)


def raise_file_limit() -> None:
    """Raise this process's limit of open files to what all connections and the store may need, if permitted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = 2 * MAX_CONNECTIONS if hard == resource.RLIM_INFINITY else min(2 * MAX_CONNECTIONS, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


class Connection(HttpToolsProtocol):
    """One connection of a client."""

    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    """Bytes of the current request that are not its body."""
    _is_body = False
    """Whether the head is complete and the body is not."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, or refuse it if there are too many."""
        super().connection_made(transport)
        limit = max_connections()
        if len(self.connections) > limit:
            self._refuse(b"503 Service Unavailable", b"too many connections; try again later")
        elif len(self.connections) > limit * MAX_SHARE and self._from_same_address() > limit * MAX_SHARE:
            self._refuse(b"503 Service Unavailable", b"too many connections from this address; try again later")
        else:
            self._end_after(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_after(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(b"431 Request Header Fields Too Large", b"the request head is too long")
        elif self._timer is None and not self._is_body and not self._is_answering:
            self._end_after(HEAD_S)

    def _from_same_address(self) -> int:
        """Open connections from this one's address, itself included."""
        address = self.client and self.client[0]
        clients = (getattr(connection, "client", None) for connection in self.connections)
        return sum((client and client[0]) == address for client in clients)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._is_body = True
        self._end_after(None)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = max(0, self._head_bytes - MAX_RECEIVED_PER_BODY_BYTE * len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_body = False
        self._end_after(None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Called when a request is answered, possibly before the end of its body."""
        super().on_response_complete()
        if self._is_body and not self.transport.is_closing():
            self._end_after(LINGER_S)

    def _end_after(self, seconds: float | None) -> None:
        """Close the connection after ``seconds`` unless this is called again; None: cancel."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)

    def _refuse(self, status: bytes, reason: bytes) -> None:
        """Answer with an error unless an answer is in progress, and close."""
        if not self._is_answering:
            self.transport.write(
                b"HTTP/1.1 %b\r\nconnection: close\r\ncontent-type: text/plain\r\n"
                b"x-content-type-options: nosniff\r\nretry-after: 5\r\n"
                b"content-length: %d\r\n\r\n%b\n" % (status, len(reason) + 1, reason)
            )
            self.transport.close()
        else:
            self.transport.abort()
