"""A TCP proxy on loopback before a real server: network faults that can change while it runs."""

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
"""Value of SO_LINGER with which closing drops the connection with RST."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the network path to a server.

    ``refuse``: nothing listens. ``hang``: requests are accepted and never answered. ``rate``: bytes per second of each
    connection's answers. ``cut``: the connection ends after this many bytes of an answer's body, with a FIN or, with
    ``reset``, an RST; ``times``: number of cuts, None for no limit. ``drop``: every n-th connection is closed before
    a request is read. ``flip``: the highest bit of every n-th byte of a body is flipped. ``endless``: zeros without
    end follow the head of an answer.
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
    """A proxy between clients and the server at ``port`` of this machine."""

    def __init__(self, port: int) -> None:
        self._upstream = HOST, port
        self._lock = threading.Lock()
        self._links: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._count = itertools.count(1)
        self.fault, self._cuts = NONE, 0
        self._next: tuple[int, Fault] | None = None
        self._requests = itertools.count(1)
        self.hits = 0
        """How often the current fault took effect."""
        self.sent = 0
        """Bytes sent to clients since the fault began."""
        self._closed = threading.Event()
        self._listener = self._listening(0)
        self.port = int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        """Its address over HTTP."""
        return f"http://{HOST}:{self.port}"

    def set_fault(self, fault: Fault) -> None:
        """Switch to this fault and close open connections."""
        with self._lock:
            previous, self.fault, self._cuts, self.hits, self.sent = self.fault, fault, 0, 0, 0
        if fault.refuse and not previous.refuse:
            _end(self._listener)
        elif previous.refuse and not fault.refuse:
            self._listener = self._listening(self.port)
        self._drop_all()

    def set_fault_after(self, requests: int, fault: Fault) -> None:
        """Switch to this fault after this many more requests."""
        self._requests, self._next = itertools.count(1), (requests, fault)

    def close(self) -> None:
        """Close all connections and end all threads."""
        self._closed.set()
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

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
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
                self._count_hit()
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
                if self._next is not None and next(self._requests) > self._next[0]:
                    (_, fault), self._next = self._next, None
                    self.set_fault(fault)
                if self.fault.hang:
                    self._count_hit()
                    continue
                link.expect_head()
                link.server.sendall(piece)
        link.end()

    def _answer(self, link: _Link) -> None:
        with suppress(OSError):
            while piece := link.server.recv(PIECE):
                if not self._pass(link, piece):
                    break
        link.end()

    def _pass(self, link: _Link, piece: bytes) -> bool:
        """Forward a piece of an answer with the fault applied; whether the connection stays open."""
        fault = self.fault
        head, body = link.split(piece)
        if fault.endless and head:
            self._count_hit()
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
            self._send(link, head, fault.rate)
            while not self._closed.is_set() and self.fault is fault:
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

    def _count_hit(self) -> None:
        with self._lock:
            self.hits += 1

    def _flipped(self, link: _Link, body: bytes, every: int) -> bytes:
        flipped = bytearray(body)
        for index in range(-link.body % every, len(flipped), every):
            if link.body + index:
                flipped[index] ^= 0x80
                self._count_hit()
        return bytes(flipped)

    def _send(self, link: _Link, data: bytes, rate: int) -> None:
        self.sent += len(data)
        if not rate:
            link.client.sendall(data)
            return
        self._count_hit()
        size = max(1, rate // 20)
        for index in range(0, len(data), size):
            link.client.sendall(data[index : index + size])
            time.sleep(size / rate)


class _Link:
    """A client's connection and the one to the server; ``body``: forwarded bytes of the current answer's body."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.reset = False
        self.expect_head()

    def expect_head(self) -> None:
        """Expect the head of another answer."""
        self.body = 0
        self._head: bytes | None = b""

    def split(self, piece: bytes) -> tuple[bytes, bytes]:
        """The parts of a piece that belong to the head and to the body."""
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
                self.client.shutdown(
                    socket.SHUT_RD
                )  # wakes the thread that waits for it; otherwise closing does nothing
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
    """A proxy in front of a server while the block runs."""
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
