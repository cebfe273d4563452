"""A TCP proxy on loopback before a real server: the network's faults, which can be changed while it runs."""

from __future__ import annotations

import itertools
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

HOST = "127.0.0.1"
PIECE = 1 << 16
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER's: closing drops the connection with RST."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with the way to a server.

    ``refuse``: nothing listens. ``hang``: requests are taken and never answered. ``rate``: bytes a second of a
    connection's answers. ``cut``: after so many bytes of an answer's body the connection ends, with a FIN or, with
    ``reset``, an RST; ``times``: so often and then no more, None for always. ``drop``: every so many-th connection is
    closed unheard. ``flip``: of every so many-th byte of a body the highest bit is turned over. ``endless``: after its
    head an answer goes on with zeros, and never ends.
    """

    refuse: bool = False
    hang: bool = False
    rate: int = 0
    cut: int | None = None
    reset: bool = False
    times: int | None = None
    drop: int = 0
    flip: int = 0
    endless: bool = False


NONE = Fault()


class Proxy:
    """Goes between clients and the server at ``port`` of this machine."""

    def __init__(self, port: int) -> None:
        self._upstream = HOST, port
        self._lock = threading.Lock()
        self._links: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._count = itertools.count(1)
        self.fault, self._cuts = NONE, 0
        self._next: tuple[int, Fault] | None = None
        self._asked = itertools.count(1)
        self.hits = 0
        """How often the present fault was felt."""
        self.sent = 0
        """Bytes sent to clients since the fault began."""
        self._over = threading.Event()
        self._listener = self._listening(0)
        self.port = int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        """Its address over HTTP."""
        return f"http://{HOST}:{self.port}"

    def become(self, fault: Fault) -> None:
        """From now on this is wrong; connections that stand are ended."""
        with self._lock:
            was, self.fault, self._cuts, self.hits, self.sent = self.fault, fault, 0, 0, 0
        if fault.refuse and not was.refuse:
            _end(self._listener)
        elif was.refuse and not fault.refuse:
            self._listener = self._listening(self.port)
        self._drop_all()

    def change(self, after: int, fault: Fault) -> None:
        """That is wrong after so many requests more."""
        self._asked, self._next = itertools.count(1), (after, fault)

    def close(self) -> None:
        """End all."""
        self._over.set()
        _end(self._listener)
        self._drop_all()
        for thread in self._threads:
            thread.join(5)

    # -- connections

    def _listening(self, port: int) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(64)
        self._start(self._accept, listener)
        return listener

    def _start(self, target: object, *given: object) -> None:
        thread = threading.Thread(target=target, args=given, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            fault, number = self.fault, next(self._count)
            if fault.drop and number % fault.drop == 0:
                self._felt()
                _end(client)
                continue
            try:
                server = socket.create_connection(self._upstream, 5)
            except OSError:
                _end(client)
                continue
            server.settimeout(None)
            with self._lock:
                self._links |= {client, server}
            link = _Link(client, server)
            self._start(self._ask, link)
            self._start(self._answer, link)

    def _drop_all(self) -> None:
        with self._lock:
            links, self._links = self._links, set()
        for link in links:
            _end(link)

    def _ask(self, link: _Link) -> None:
        with suppress(OSError):
            while piece := link.client.recv(PIECE):
                if self._next is not None and next(self._asked) > self._next[0]:
                    (_, fault), self._next = self._next, None
                    self.become(fault)
                if self.fault.hang:
                    self._felt()
                    continue
                link.begin()
                link.server.sendall(piece)
        link.end()

    def _answer(self, link: _Link) -> None:
        with suppress(OSError):
            while piece := link.server.recv(PIECE):
                if not self._pass(link, piece):
                    break
        link.end()

    def _pass(self, link: _Link, piece: bytes) -> bool:
        """Send a piece of an answer on, spoilt; whether the connection stays."""
        fault = self.fault
        head, body = link.split(piece)
        if fault.endless and head:
            self._felt()
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
            self._send(link, head, fault.rate)
            while not self._over.is_set() and self.fault is fault:
                self._send(link, bytes(PIECE), fault.rate)
            return False
        if fault.flip:
            body = self._flipped(link, body, fault.flip)
        cut = fault.cut is not None and link.body + len(body) > fault.cut and self._may_cut(fault)
        if cut and fault.cut is not None:
            body = body[: max(0, fault.cut - link.body)]
        link.body += len(body)
        self._send(link, head + body, fault.rate)
        link.reset = cut and fault.reset
        return not cut

    def _may_cut(self, fault: Fault) -> bool:
        with self._lock:
            if fault.times is not None and self._cuts >= fault.times:
                return False
            self._cuts += 1
            self.hits += 1
            return True

    def _felt(self) -> None:
        with self._lock:
            self.hits += 1

    def _flipped(self, link: _Link, body: bytes, every: int) -> bytes:
        spoilt = bytearray(body)
        for place in range(-link.body % every, len(spoilt), every):
            if link.body + place:
                spoilt[place] ^= 0x80
                self._felt()
        return bytes(spoilt)

    def _send(self, link: _Link, data: bytes, rate: int) -> None:
        self.sent += len(data)
        if not rate:
            link.client.sendall(data)
            return
        self._felt()
        size = max(1, rate // 20)
        for place in range(0, len(data), size):
            link.client.sendall(data[place : place + size])
            time.sleep(size / rate)


class _Link:
    """A client's connection and ours to the server; ``body``: bytes of the present answer's body that went by."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.reset = False
        self.begin()

    def begin(self) -> None:
        """Another request: its answer has a head again."""
        self.body = 0
        self._head: bytes | None = b""

    def split(self, piece: bytes) -> tuple[bytes, bytes]:
        """What of a piece belongs to the head, and what to the body."""
        if self._head is None:
            return b"", piece
        before = len(self._head)
        self._head += piece
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            return piece, b""
        self._head = None
        return piece[: end + 4 - before], piece[end + 4 - before :]

    def end(self) -> None:
        """Close both."""
        if self.reset:
            with suppress(OSError):
                self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                self.client.shutdown(socket.SHUT_RD)  # wakes who waits for it, or closing would do nothing
            self.client.close()
        else:
            _end(self.client)
        _end(self.server)


def _end(link: socket.socket) -> None:
    with suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
    link.close()


@contextmanager
def proxied(port: int) -> Iterator[Proxy]:
    """A proxy before a server, until the block ends."""
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
