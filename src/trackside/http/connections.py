"""Connections that end in time: however slowly a server sends, nobody waits longer than was agreed, or than is wanted.

A timeout of a socket is that of one read, and a head, a chunk's length or a trailer is many: a byte now and then keeps
them going for hours. So the clock on the wall ends them.
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
def ended(within_s: float, shutdown: Callable[[], object]) -> Iterator[None]:
    """Call ``shutdown`` after so long, which ends what the block reads. Raises TimeoutError if that had to be."""
    late = threading.Event()

    def end() -> None:
        late.set()
        with suppress(OSError, ValueError, RuntimeError):  # it ended by itself this moment
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
    """Those of all connections that stand, to be shut from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: WeakSet[socket.socket] = WeakSet()
        self._over = False

    def add(self, sock: socket.socket) -> None:
        """Once they were shut, it is shut at once."""
        with self._lock:
            self._all.add(sock)
            if self._over:
                _shut(sock)

    def shut(self) -> None:
        """Who reads from one, or writes to it, is told that it ended."""
        with self._lock:
            self._over = True
            for sock in self._all:
                _shut(sock)


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):  # it ended by itself
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # TLS' own would leave who reads now with bytes in cipher


class _Connection(HTTPConnection):
    sockets: Sockets

    def connect(self) -> None:
        """And let it be shut from elsewhere."""
        super().connect()
        self.sockets.add(self.sock)

    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]
        """The answer's head, within the timeout."""
        within_s, sock = self.timeout, self.sock
        assert isinstance(within_s, float | int)
        assert sock is not None
        with ended(within_s, lambda: sock.shutdown(socket.SHUT_RD)):
            return super().getresponse()


class _SecureConnection(_Connection, HTTPSConnection):
    """The same over TLS."""


def pool(sockets: Sockets, **options: Any) -> urllib3.PoolManager:
    """Connections of this kind, whose sockets are found there; ``options`` are those of urllib3."""
    made = urllib3.PoolManager(**options)
    made.pool_classes_by_scheme = {
        scheme: type("Pool", (base,), {"ConnectionCls": type("Connection", (connection,), {"sockets": sockets})})
        for scheme, base, connection in (
            ("http", urllib3.HTTPConnectionPool, _Connection),
            ("https", urllib3.HTTPSConnectionPool, _SecureConnection),
        )
    }
    return made
