"""A server on loopback that sends exactly the bytes that a test gives it."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def params(self) -> dict[str, str]:
        """Parameters of the URL and of a form in the body."""
        return dict(parse_qsl(urlsplit(self.target).query) + parse_qsl(self.body.decode("latin-1")))


Reply = Callable[[Request], bytes]


@dataclass
class ScriptedServer:
    """A server that uses ``replies`` in turn and repeats the last one; an empty reply closes the connection."""

    replies: list[Reply | bytes]
    requests: list[Request] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def reply(self, request: Request) -> bytes:
        self.requests.append(request)
        chosen = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return chosen if isinstance(chosen, bytes) else chosen(request)


def answer(body: bytes | object, status: str = "200 OK", length: int | None = None, **headers: str) -> bytes:
    """A complete HTTP response; ``length``: a wrong Content-Length to send."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(payload) if length is None else length}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload


@contextmanager
def scripted(*replies: Reply | bytes, tls: ssl.SSLContext | None = None) -> Iterator[ScriptedServer]:
    server = ScriptedServer(list(replies))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.port = listener.getsockname()[1]
        listener.settimeout(0.05)
        stop = threading.Event()
        thread = threading.Thread(target=_listen, args=(server, listener, tls, stop))
        thread.start()
        try:
            yield server
        finally:
            stop.set()
            thread.join()


def _listen(server: ScriptedServer, listener: socket.socket, tls: ssl.SSLContext | None, stop: threading.Event) -> None:
    threads = []
    while not stop.is_set():
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        threads.append(threading.Thread(target=_serve, args=(server, connection, tls, stop)))
        threads[-1].start()
    for thread in threads:
        thread.join()


def _serve(
    server: ScriptedServer, connection: socket.socket, tls: ssl.SSLContext | None, stop: threading.Event
) -> None:
    with connection:
        try:
            connection.settimeout(10)  # a handshake or a long answer takes its time on a busy machine
            link = tls.wrap_socket(connection, server_side=True) if tls else connection
            while (request := _request(link, stop)) is not None:
                reply = server.reply(request)
                if reply:
                    link.sendall(reply)
                if (
                    not reply
                    or b"Content-Length: " not in reply
                    or len(reply.split(b"\r\n\r\n", 1)[1]) < _length(reply)
                ):
                    break
            if tls:
                link.close()
        except OSError:  # the client closed the connection or rejected the certificate
            pass


def _length(reply: bytes) -> int:
    return int(reply.split(b"Content-Length: ", 1)[1].split(b"\r\n", 1)[0])


def _request(link: socket.socket, stop: threading.Event) -> Request | None:
    data = b""
    while b"\r\n\r\n" not in data or len(data.split(b"\r\n\r\n", 1)[1]) < _body_length(data):
        link.settimeout(0.1)
        try:
            chunk = link.recv(1 << 16)
        except TimeoutError:
            if stop.is_set():
                return None
            continue
        finally:
            link.settimeout(10)
        if not chunk:
            return None
        data += chunk
    head, body = data.split(b"\r\n\r\n", 1)
    request_line, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = request_line.split(" ")
    return Request(
        method,
        target,
        {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)},
        body,
    )


def _body_length(data: bytes) -> int:
    for line in data.split(b"\r\n\r\n", 1)[0].lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0
