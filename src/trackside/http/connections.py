"""Connections with a limit on total time: a slow server cannot keep a caller waiting longer than the timeout.

A socket timeout covers a single read, and a header, a chunk length or a trailer takes many reads, so a server that
sends a byte now and then could hold the caller for hours. A wall-clock timer shuts the socket instead.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakSet

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection


@contextmanager
def time_limit(within_s: float, shutdown: Callable[[], object]) -> Iterator[None]:
    """Call ``shutdown`` after ``within_s`` seconds, which ends the reads in the block. Raises TimeoutError if it was
    called."""
    late = threading.Event()

    def end() -> None:
        late.set()
        with suppress(OSError, ValueError, RuntimeError):  # the connection closed by itself
            shutdown()

    timer = threading.Timer(max(within_s, 0.0), end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception:
        if late.is_set():
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()
    if late.is_set():
        raise TimeoutError


class Sockets:
    """All open sockets, which can be shut down from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._is_shut = False

    def add(self, sock: socket.socket) -> None:
        """Add a socket; it is shut at once if :meth:`shut` was called before."""
        with self._lock:
            self._sockets.add(sock)
            if self._is_shut:
                _shut(sock)

    def shut(self) -> None:
        """Shut all sockets; pending reads and writes end."""
        with self._lock:
            self._is_shut = True
            for sock in self._sockets:
                _shut(sock)


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):  # already closed
        socket.socket.shutdown(
            sock, socket.SHUT_RDWR
        )  # SSLSocket.shutdown would leave a concurrent reader with undecrypted bytes


class _Connection(HTTPConnection):
    sockets: Sockets

    def connect(self) -> None:
        """Connect, and register the socket so that other threads can shut it."""
        super().connect()
        self.sockets.add(self.sock)

    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]
        """The response's headers, within the timeout."""
        within_s, sock = self.timeout, self.sock
        assert isinstance(within_s, float | int)
        assert sock is not None
        with time_limit(within_s, lambda: sock.shutdown(socket.SHUT_RD)):
            return super().getresponse()


class _SecureConnection(_Connection, HTTPSConnection):
    """A connection over TLS."""


def pool(sockets: Sockets, **options: Any) -> urllib3.PoolManager:
    """A pool manager whose connections register their sockets in ``sockets``; ``options`` are urllib3's."""
    manager = urllib3.PoolManager(**options)
    manager.pool_classes_by_scheme = {
        scheme: type("Pool", (base,), {"ConnectionCls": type("Connection", (connection,), {"sockets": sockets})})
        for scheme, base, connection in (
            ("http", urllib3.HTTPConnectionPool, _Connection),
            ("https", urllib3.HTTPSConnectionPool, _SecureConnection),
        )
    }
    return manager
