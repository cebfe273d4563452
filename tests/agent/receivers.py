"""Fake receivers for the agent's senders."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import cramjam

from trackside.agent.delivery.receiver import ReceiverOptions
from trackside.serve.protocols import loki_push, remote_write
from trackside.serve.protocols.series_key import labels_of


@dataclass
class Request:
    path: str
    headers: Mapping[str, str]
    body: bytes

    def samples(self) -> list[tuple[str, dict[str, str], int, float]]:
        """(metric, labels, ms, value) of a remote write, decoded by the receiver's code."""
        block = remote_write.decode(bytes(cramjam.snappy.decompress_raw(self.body)), 1)
        series_labels = [labels_of(key) for key in block.keys]
        rows = zip(block.index.tolist(), block.times_ms.tolist(), block.values.tolist(), strict=True)
        return [(*series_labels[index], time_ms, value) for index, time_ms, value in rows]

    def lines(self) -> list[tuple[dict[str, str], int, str]]:
        """(labels, ns, text) of a Loki push, decoded by the receiver's code."""
        streams = loki_push.decode(gzip.decompress(self.body), "application/json")
        return [
            (stream.labels, time_ns, text)
            for stream in streams
            for time_ns, text in zip(stream.times_ns, stream.lines, strict=True)
        ]


Reply = tuple[int, str, Mapping[str, str]]


@dataclass
class FakeReceiver:
    """A receiver on loopback. ``reply`` gives the response to a request; ``accepted`` are the requests with status 2xx."""

    reply: Callable[[Request], Reply] = lambda request: (204, "", {})
    requests: list[Request] = field(default_factory=list)
    accepted: list[Request] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def options(self, **overrides: Any) -> ReceiverOptions:
        return ReceiverOptions(url=self.url, **{"wait_s": 0.0, "timeout_s": 5.0, **overrides})


@contextmanager
def fake_receiver(reply: Callable[[Request], Reply] | None = None, port: int = 0) -> Iterator[FakeReceiver]:
    """An HTTP receiver with persistent connections, as long as the block runs."""
    receiver = FakeReceiver() if reply is None else FakeReceiver(reply)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            request = Request(self.path, dict(self.headers), body)
            receiver.requests.append(request)
            status, text, headers = receiver.reply(request)
            if 200 <= status < 300:
                receiver.accepted.append(request)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments: object) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *arguments: object) -> None: ...

    server = Server(("127.0.0.1", port), Handler)
    receiver.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
