"""``/metrics`` over HTTP, and whether the agent lives. Few may ask at once, and none may take long over it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from trackside.agent.out.exposition import CONTENT_TYPE

MOST_AT_ONCE = 8
REQUEST_S = 10.0
"""How long somebody may take to ask, and to read what is answered."""
POLL_S = 1.0
"""How soon it notices that it is to end."""
PLAIN = "text/plain; charset=utf-8"


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Scrape
    server_version, sys_version = "trackside-agent", ""
    timeout = REQUEST_S

    def do_GET(self) -> None:
        """Metrics, or whether it is well."""
        match self.path.partition("?")[0]:
            case "/metrics":
                self._answer(200, CONTENT_TYPE, self.server.text())
            case "/-/healthy":
                self._answer(200, PLAIN, "it runs\n")
            case "/-/ready":
                why = self.server.not_ready()
                self._answer(503 if why else 200, PLAIN, f"{why or 'it collects'}\n")
            case _:
                self._answer(404, PLAIN, "there is /metrics, /-/healthy and /-/ready\n")

    do_HEAD = do_GET

    def _answer(self, status: int, content_type: str, text: str) -> None:
        body = text.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody wants a line for each scrape."""


class Scrape(ThreadingHTTPServer):
    """Serves what ``text`` gives, in threads. ``not_ready``: why not, empty where it is."""

    daemon_threads = True
    request_queue_size = 16

    def __init__(self, address: tuple[str, int], text: Callable[[], str], not_ready: Callable[[], str]) -> None:
        """Raises OSError where it can't listen there."""
        self.text, self.not_ready = text, not_ready
        self._room = threading.BoundedSemaphore(MOST_AT_ONCE)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, Handler)
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": POLL_S}, daemon=True)

    def server_bind(self) -> None:
        """Without asking for the machine's name, as HTTPServer would: that may take long."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def start(self) -> None:
        """Serve from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Serve no more."""
        if self._thread.is_alive():
            self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread, or not at all where there are too many."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be had on a node that is out of them
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """One request, within its time: a byte now and then would keep the socket's own from passing."""
        timer = threading.Timer(REQUEST_S, self._cut, (request,))
        timer.daemon = True
        try:
            timer.start()
            super().process_request_thread(request, client_address)
        finally:
            timer.cancel()
            self._room.release()

    @staticmethod
    def _cut(request: socket.socket) -> None:
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who asked went away."""
