"""Connections within limits: so many at once, and heads (and trailers) that are neither endless nor slow.

Bodies have limits of their own (:mod:`trackside.serve.limits`). All that comes before a token was looked at is bounded
here.
"""

from __future__ import annotations

import asyncio
import resource

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST = 4096
"""Connections at once, where the process may open twice as many files; the store needs some too."""
HEAD_BYTES = 64 << 10
"""Of a request, beside its body."""
FRAMING = 9
"""A body's byte may come with so many that say where chunks of it begin, and itself."""
HEAD_S = 20.0
"""How long a head may take, and a connection on which nothing comes."""
LINGER_S = 5.0
"""How long the rest of a body is let pass by once its request was answered: many senders read no answer before."""


def most_connections() -> int:
    """How many there may be at once: the files that are left belong to the store."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else min(MOST, soft // 2)


def more_files() -> None:
    """Let this process open as many files as all connections and the store may take, where it is allowed to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MOST if hard == resource.RLIM_INFINITY else min(2 * MOST, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Connection(HttpToolsProtocol):
    """One connection of a client."""

    _timer: asyncio.TimerHandle | None = None
    _outside = 0
    """Bytes of the present request that are not its body."""
    _is_body = False
    """Whether the head is done with and the end is not."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """One more, or one too many."""
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            self._refuse(b"503 Service Unavailable", b"as many connections as may be are open: come again")
        else:
            self._end_after(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_after(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._outside += len(data)
        super().data_received(data)
        if self._outside > HEAD_BYTES and not self.transport.is_closing():
            self._refuse(b"431 Request Header Fields Too Large", b"the request's head is too long")
        elif self._timer is None and not self._is_body and not self._is_answering:
            self._end_after(HEAD_S)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._outside = 0

    def on_headers_complete(self) -> None:
        self._is_body = True
        self._end_after(None)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._outside = max(0, self._outside - FRAMING * len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_body = False
        self._end_after(None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """A request is answered, perhaps before its body's end."""
        super().on_response_complete()
        if self._is_body and not self.transport.is_closing():
            self._end_after(LINGER_S)

    def _end_after(self, seconds: float | None) -> None:
        """Close the connection then, unless something else is said before; None: never."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)

    def _refuse(self, status: bytes, why: bytes) -> None:
        """Answer what can't be taken, if nothing is being answered, and close."""
        if not self._is_answering:
            self.transport.write(
                b"HTTP/1.1 %b\r\nconnection: close\r\ncontent-type: text/plain\r\nretry-after: 5\r\n"
                b"content-length: %d\r\n\r\n%b\n" % (status, len(why) + 1, why)
            )
            self.transport.close()
        else:
            self.transport.abort()
