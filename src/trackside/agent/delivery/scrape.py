"""HTTP server for ``/metrics`` and health checks. The number of concurrent requests and the time of each are
limited."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from trackside.agent.delivery.exposition import CONTENT_TYPE

LOG = logging.getLogger("trackside.agent")
MAX_REQUESTS = 8
REQUEST_S = 10.0
"""Time limit of one request, including reading its response."""
POLL_S = 1.0
"""How often the server checks whether it should stop."""
PLAIN = "text/plain; charset=utf-8"


class Handler(BaseHTTPRequestHandler):
    """Handles one request."""

    server: MetricsServer
    server_version, sys_version = "trackside-agent", ""
    timeout = REQUEST_S

    def do_GET(self) -> None:
        """Serve metrics, health or readiness."""
        match self.path.partition("?")[0]:
            case "/metrics":
                self._answer(200, CONTENT_TYPE, self.server.text())
            case "/-/healthy":
                self._answer(200, PLAIN, "running\n")
            case "/-/ready":
                reason = self.server.not_ready()
                self._answer(503 if reason else 200, PLAIN, f"{reason or 'collecting'}\n")
            case _:
                self._answer(404, PLAIN, "not found: available are /metrics, /-/healthy and /-/ready\n")

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
        """Log nothing: a line per scrape would be noise."""


class MetricsServer(ThreadingHTTPServer):
    """Serves ``/metrics`` and health checks, in threads. ``text``: returns the metrics. ``not_ready``: returns why the
    agent is not ready, empty if it is."""

    daemon_threads = True
    request_queue_size = 16

    def __init__(self, address: tuple[str, int], text: Callable[[], str], not_ready: Callable[[], str]) -> None:
        """Raises OSError if the address cannot be listened on."""
        self.text, self.not_ready = text, not_ready
        self._slots = threading.BoundedSemaphore(MAX_REQUESTS)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, Handler)
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": POLL_S}, daemon=True)

    def server_bind(self) -> None:
        """Bind without resolving the host name, as HTTPServer would: that can block for long."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def start(self) -> None:
        """Start serving."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving."""
        if self._thread.is_alive():
            self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle the request in a new thread, or drop it if too many are being handled."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the node is out of threads
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle one request within REQUEST_S: the socket timeout covers only a single read, and a slow client could
        hold a thread for long."""
        timer = threading.Timer(REQUEST_S, self._cut, (request,))
        timer.daemon = True
        try:
            timer.start()
            super().process_request_thread(request, client_address)
        finally:
            timer.cancel()
            self._slots.release()

    @staticmethod
    def _cut(request: socket.socket) -> None:
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that went away; log anything else, which is a defect of this agent."""
        if not isinstance(sys.exception(), OSError):
            LOG.exception("a request of %s failed", client_address)
