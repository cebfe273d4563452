"""One HTTP server, asked or sent to: retries, limits and plain reasons for what it could not answer.

Every failure ends as :class:`SourceUnavailable`, so that the caller can say "unable to check" and why. Secrets come
resolved, and are never part of a message, a name or a ``repr``.
"""

from __future__ import annotations

import http.client
import random
import ssl
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import urlencode

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    InsecureRequestWarning,
    LocationParseError,
    NameResolutionError,
    NewConnectionError,
    ReadTimeoutError,
    SSLError,
)

from trackside.http.connections import Sockets, ended, pool
from trackside.http.options import HttpOptions, identity, tls
from trackside.http.unavailable import Passing, SourceUnavailable, plain, refusal
from trackside.settings.secrets import shown_url

MIN_PAUSE_S = 0.25
"""Before the first retry; twice as long before each further one."""
MAX_PAUSE_S = 15.0
"""Between retries, unless the server asks for more."""
PIECE_BYTES = 1 << 18
"""Bytes taken from the connection at once."""

Pairs = Mapping[str, str] | Sequence[tuple[str, str]]
"""Parameters; as a sequence where a name comes more than once."""


@dataclass(slots=True)
class Traffic:
    """What was asked of a server so far. Bytes are those of bodies, as they came."""

    requests: int = 0
    bytes_received: int = 0


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer with a status below 300."""

    body: bytes
    url: str
    status: int = 200


class HttpClient:
    """A server, asked from any thread. The deadline runs from the first request.

    Raises ValueError for certificates that can't be used.
    """

    def __init__(
        self,
        options: HttpOptions,
        *,
        sleep: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options
        self.name = shown_url(options.url)
        """Without credentials."""
        self._closed, self._sockets = threading.Event(), Sockets()
        self._sleep, self._clock = sleep or self._closed.wait, clock
        self._traffic, self._lock = Traffic(), threading.Lock()
        self._places = threading.BoundedSemaphore(options.concurrency)
        self._begun: float | None = None
        self._down: tuple[float, SourceUnavailable] | None = None
        self._headers = {**identity(options), **options.headers}
        context = tls(options) if options.url.startswith("https:") else None
        if not options.verify:
            urllib3.disable_warnings(InsecureRequestWarning)  # it was asked for
        self._pool = pool(self._sockets, num_pools=1, maxsize=options.concurrency, retries=False, ssl_context=context)

    @property
    def traffic(self) -> Traffic:
        """A copy of the figures so far."""
        with self._lock:
            return replace(self._traffic)

    def close(self) -> None:
        """Stop asking. Requests of other threads end with SourceUnavailable, except those still connecting."""
        self._closed.set()
        self._sockets.shut()
        self._pool.clear()

    def left(self) -> float:
        """Seconds until the deadline."""
        now = self._clock()
        with self._lock:
            if self._begun is None:
                self._begun = now
            return min(self._begun + self.options.deadline_s - now, threading.TIMEOUT_MAX)

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Pairs | None = None,
        form: Pairs | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """The whole answer, of ``most_bytes`` at most. ``form`` is sent as a body. Raises SourceUnavailable."""
        url, mark, own = self.options.url.partition("?")
        sent = {**self._headers, **(headers or {})}
        if form is not None:
            body, sent["Content-Type"] = urlencode(form).encode(), "application/x-www-form-urlencoded"
        request = _Request(method, url + path, f"?{urlencode(params)}" if params else mark + own, body, sent)
        if not self._places.acquire(timeout=max(self.left(), 0.0)):
            raise self._too_late()
        try:
            return self._tried(request)
        finally:
            self._places.release()

    # -- one request, and again

    def _tried(self, request: _Request) -> Response:
        """Its answer, tried again while what fails may pass."""
        self._count(requests=1)
        for pause in self._pauses():
            try:
                return self._whole(request)
            except Passing as failure:
                wait = max(pause, failure.after)
                if pause < 0 or wait >= self.left():
                    raise self._given_up(failure) from None
                self._sleep(wait)
        raise AssertionError  # the last pause raises

    def _pauses(self) -> Iterator[float]:
        """Seconds before each retry, drawn anew each time so that many askers don't come back together; then -1."""
        for attempt in range(self.options.retries):
            yield min(MAX_PAUSE_S, MIN_PAUSE_S * 2**attempt) * random.uniform(0.5, 1.0)
        yield -1.0

    def _given_up(self, failure: Passing) -> SourceUnavailable:
        if failure.after and self.options.retries:
            return SourceUnavailable(failure.kind, f"{failure}; it asks to wait {failure.after:g} s, which is past the "
                              "retries or the deadline")  # fmt: skip
        if failure.kind == "unreachable" and self.options.down_s:
            self._down = self._clock() + self.options.down_s, failure
        return failure

    def _too_late(self) -> SourceUnavailable:
        return SourceUnavailable(
            "timeout",
            f"{self.name}: the {self.options.deadline_s:g} s for all that one verdict asks of it are over; raise"
            " deadline_s or ask for less",
        )

    def _ended(self) -> SourceUnavailable:
        return SourceUnavailable("unreachable", f"{self.name} was not waited for any longer: its endpoint was closed")

    def _whole(self, request: _Request) -> Response:
        until = self._clock() + min(self.options.timeout_s, self.left())
        response = self._open(request)
        most, pieces, size = self.options.most_bytes, [], 0
        try:
            with ended(until - self._clock(), response.shutdown):
                for piece in self._pieces(request, response, until):
                    size += len(piece)
                    if size > most:
                        raise SourceUnavailable(
                            "too_large",
                            f"{request.url} sent more than {most:,} bytes; ask for less at once, or raise most_bytes",
                        )
                    pieces.append(piece)
        except BaseException as error:
            response.close()
            if isinstance(error, TimeoutError):
                raise (self._too_late() if self.left() <= 0 else self._failed(request, error)) from None
            raise
        response.release_conn()
        return Response(b"".join(pieces), request.url, response.status)

    def _open(self, request: _Request) -> urllib3.BaseHTTPResponse:
        """The answer's head, of a status below 300."""
        self._check()
        timeout = min(self.options.timeout_s, self.left())
        until = self._clock() + timeout
        try:
            response = self._pool.request(
                request.method, request.url + request.query, body=request.body, headers=request.headers, redirect=False,
                preload_content=False, timeout=urllib3.Timeout(connect=timeout, read=timeout),
            )  # fmt: skip
        except (HTTPError, OSError) as error:
            traceback.clear_frames(
                error.__traceback__
            )  # urllib3's hold the error and the body, for as long as they may
            raise self._failed(request, error) from None
        if response.status < 300:
            return response
        try:
            with ended(until - self._clock(), response.shutdown):
                beginning = response.read(1 << 14, decode_content=True)
        except (HTTPError, OSError):
            beginning = b""
        response.close()
        headers = {name.lower(): value for name, value in response.headers.items()}
        raise refusal(request.url, response.status, headers, beginning)

    def _check(self) -> None:
        if self._closed.is_set():
            raise self._ended()
        if self.left() <= 0:
            raise self._too_late()
        if self._down is not None and self._clock() < self._down[0]:
            raise SourceUnavailable(self._down[1].kind, str(self._down[1]))

    def _pieces(self, request: _Request, response: urllib3.BaseHTTPResponse, until: float) -> Iterator[bytes]:
        """The body until that time, which is before the deadline, decompressed a bounded piece at a time: a few bytes
        can stand for gigabytes."""
        packed = response.headers.get("Content-Encoding", "").lower() in ("gzip", "x-gzip", "deflate")
        unpack = zlib.decompressobj(wbits=47) if packed else None
        while True:
            if self.left() <= 0:
                raise self._too_late()
            if self._clock() > until:
                raise self._failed(request, ReadTimeoutError(self._pool, None, ""))  # type: ignore[arg-type]
            try:
                raw = response.read1(PIECE_BYTES, decode_content=False)
            except (HTTPError, OSError) as error:
                raise self._failed(request, error) from None
            if self._closed.is_set():
                raise self._ended()
            self._count(bytes_received=len(raw))
            for piece in [raw] if unpack is None else self._unpacked(request, unpack, raw):
                if piece:
                    yield piece
            if not raw and unpack is not None and not unpack.eof:
                raise Passing("broken", f"{request.url} broke off in mid-answer")
            if not raw:
                return

    @staticmethod
    def _unpacked(request: _Request, unpack: zlib._Decompress, raw: bytes) -> Iterator[bytes]:
        """What some compressed bytes stand for, a bounded piece at a time; without any, what is still to come."""
        try:
            if not raw:
                yield unpack.flush()
            while raw:
                yield unpack.decompress(raw, PIECE_BYTES)
                raw = unpack.unconsumed_tail
        except zlib.error:
            raise Passing("broken", f"{request.url} sent compressed bytes that can't be read") from None

    def _failed(self, request: _Request, error: Exception) -> SourceUnavailable:
        """Why nothing, or only a part, came."""
        timeout = self.options.timeout_s
        if self._closed.is_set():
            return self._ended()
        inner = error.args[0] if isinstance(error, SSLError) and error.args else error.__cause__
        if isinstance(inner, ssl.SSLError) and not isinstance(inner, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return SourceUnavailable(
                "unreachable",
                f"{self.name}: no trust: {plain(str(error))}; name its authority with ca, or the client's own cert and"
                " key",
            )
        if isinstance(error, NameResolutionError):
            return Passing("unreachable", f"{self.name}: its name is not known here; is the URL right?")
        if isinstance(error, ConnectTimeoutError) and not isinstance(error, NewConnectionError):
            return Passing("unreachable", f"{self.name} can't be reached within {timeout:g} s; is the address right, "
                            "and is a firewall in between?")  # fmt: skip
        if isinstance(error, NewConnectionError):
            return Passing("unreachable", f"{self.name} can't be reached: {_cause(error)}; is it running?")
        if isinstance(error, (ReadTimeoutError, TimeoutError)):
            return SourceUnavailable(
                "timeout",
                f"{request.url} did not answer within {timeout:g} s; raise timeout_s or {self.options.lighter}",
            )
        if isinstance(error, LocationParseError):
            return SourceUnavailable("refused", f"{self.name} is no URL that can be asked")
        inner = error.args[-1] if error.args else None
        if isinstance(inner, http.client.BadStatusLine) and not isinstance(inner, http.client.RemoteDisconnected):
            return Passing("broken", f"{request.url} sent what is no HTTP: {plain(str(inner))}")
        return Passing("broken", f"{request.url} broke off in mid-answer")

    def _count(self, requests: int = 0, bytes_received: int = 0) -> None:
        with self._lock:
            self._traffic.requests += requests
            self._traffic.bytes_received += bytes_received


@dataclass(frozen=True, slots=True)
class _Request:
    """One request; its ``query`` may hold secrets, and stays out of messages."""

    method: str
    url: str
    query: str = field(repr=False)
    body: bytes | None = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)


def _cause(error: Exception) -> str:
    inner = error.__cause__ or error.__context__
    return plain((inner.strerror or str(inner)) if isinstance(inner, OSError) else str(error)).lower()
