"""What a web page that is open in a browser may do here: nothing, unless it is one of this server's own.

A browser sends what a page asks it to, to any address that it reaches, also to one that only its machine reaches. A
page of another origin is recognized by the headers that browsers add (``Origin``, ``Sec-Fetch-Site``). A page whose
name its owner has pointed at this server's address (DNS rebinding) is of the same origin to the browser; it is
recognized by the name in ``Host``.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import time
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trackside.serve.limits import RequestRefused
from trackside.serve.problems import HttpProblem

LOG = logging.getLogger("trackside.receiver")
LOG_INTERVAL_S = 60.0
"""Refusals are logged at most once in this time."""
ANSWER_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}
"""Added to every answer that does not set them: it is data, and no part of another site's page."""


class PageCheck:
    """Refuses requests of pages of other origins, and adds :data:`ANSWER_HEADERS`.

    ``hosts``: names of this server, besides its addresses and ``localhost``; ``checks_host``: whether a request
    for another name is refused, which is needless if every request has a token.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] = (), *, checks_host: bool = True) -> None:
        self._app, self._checks_host = app, checks_host
        self._hosts = {_normalized(host) for host in (*hosts, socket.gethostname())}
        self._last_logged = -LOG_INTERVAL_S

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in ANSWER_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            self._check(Headers(scope=scope), scope["method"])
        except RequestRefused as error:
            self._log(scope, error)
            await HttpProblem(error.status, str(error)).response()(scope, receive, send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)

    def _check(self, headers: Headers, method: str) -> None:
        """Raise RequestRefused for a request of a page of another origin."""
        host = headers.get("host", "")
        if self._checks_host and host and not self._is_own(host_name(host)):
            raise RequestRefused(
                421, f"{host_name(host)[:200]!r} is no name of this server: to use it, add it to serve.hosts"
            )
        origin = headers.get("origin")
        if origin is not None:
            if not self._is_own_origin(origin, host):
                raise RequestRefused(403, f"web pages of another origin ({origin[:200]}) may send no requests here")
            return
        is_link = headers.get("sec-fetch-mode") == "navigate" and method == "GET"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not is_link:
            raise RequestRefused(403, "web pages of another origin may send no requests here")

    def _is_own(self, name: str) -> bool:
        """Whether this server goes by the name: one that nobody else can point at it."""
        if name in self._hosts or name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _is_own_origin(self, origin: str, host: str) -> bool:
        """Whether a page's origin is this server: at the host that the request is for, or, behind a proxy, one of its
        configured names."""
        _, separator, place = origin.partition("://")
        return bool(separator) and (place.lower() == host.lower() or host_name(place) in self._hosts)

    def _log(self, scope: Scope, error: RequestRefused) -> None:
        now = time.monotonic()
        if now - self._last_logged >= LOG_INTERVAL_S:
            self._last_logged = now
            client = scope.get("client") or ("unknown sender",)
            text = f"{scope['path'][:200]} from {client[0]} refused with {error.status}: {error}"
            LOG.warning("%s", "".join(char if char.isprintable() else "?" for char in text))


def host_name(host: str) -> str:
    """The name or address in a ``Host`` header or origin, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    name, colon, port = host.rpartition(":")
    return _normalized(name if colon and (port.isdecimal() or not port) else host)


def _normalized(name: str) -> str:
    return name.strip().lower().removesuffix(".")
