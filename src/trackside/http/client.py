"""Client for one HTTP server: retries, limits, and a plain reason for every failed request.

Every failure is raised as :class:`SourceUnavailable`, so that the caller can report "unable to check" with the reason.
Secrets are already resolved, and never appear in a message, a name or a ``repr``.
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

from trackside.http.connections import Sockets, pool, time_limit
from trackside.http.options import HttpOptions, identity_headers, tls
from trackside.http.unavailable import SourceUnavailable, TemporaryFailure, plain, refusal
from trackside.settings.secrets import url_without_secrets

MIN_PAUSE_S = 0.25
"""Pause before the first retry; it doubles with each further retry."""
MAX_PAUSE_S = 15.0
"""Longest pause between retries, unless the server asks for more."""
PIECE_BYTES = 1 << 18
"""Bytes read from the connection at once."""

Pairs = Mapping[str, str] | Sequence[tuple[str, str]]
"""Query or form parameters; a sequence if a name occurs more than once."""


@dataclass(slots=True)
class HttpTraffic:
    """Requests sent so far and body bytes received (before decompression)."""

    requests: int = 0
    bytes_received: int = 0


@dataclass(frozen=True, slots=True)
class Response:
    """A complete response with a status below 300."""

    body: bytes
    url: str
    status: int = 200


class HttpClient:
    """Client for one server; methods may be called from any thread. The deadline runs from the first request.

    Raises ValueError for certificates that cannot be loaded.
    """

    def __init__(
        self,
        options: HttpOptions,
        *,
        sleep: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options
        self.name = url_without_secrets(options.url)
        """The server's URL without credentials."""
        self._closed, self._sockets = threading.Event(), Sockets()
        self._sleep, self._clock = sleep or self._closed.wait, clock
        self._traffic, self._lock = HttpTraffic(), threading.Lock()
        self._slots = threading.BoundedSemaphore(options.concurrency)
        self._start_time: float | None = None
        self._down: tuple[float, SourceUnavailable] | None = None
        self._headers = {**identity_headers(options), **options.headers}
        context = tls(options) if options.url.startswith("https:") else None
        if not options.verify:
            urllib3.disable_warnings(InsecureRequestWarning)  # the user switched verification off
        self._pool = pool(self._sockets, num_pools=1, maxsize=options.concurrency, retries=False, ssl_context=context)

    @property
    def traffic(self) -> HttpTraffic:
        """A copy of the traffic counters."""
        with self._lock:
            return replace(self._traffic)

    def close(self) -> None:
        """Send no more requests. Requests under way in other threads raise SourceUnavailable, except those still
        connecting."""
        self._closed.set()
        self._sockets.shut()
        self._pool.clear()

    def remaining_s(self) -> float:
        """Seconds until the deadline, which starts with the first call."""
        now = self._clock()
        with self._lock:
            if self._start_time is None:
                self._start_time = now
            return min(self._start_time + self.options.deadline_s - now, threading.TIMEOUT_MAX)

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
        """Send one request and return the complete response, of at most ``max_answer_bytes``. ``form`` is sent as the
        body. Raises SourceUnavailable."""
        url, question_mark, url_query = self.options.url.partition("?")
        all_headers = {**self._headers, **(headers or {})}
        if form is not None:
            body, all_headers["Content-Type"] = urlencode(form).encode(), "application/x-www-form-urlencoded"
        request = _Request(
            method, url + path, f"?{urlencode(params)}" if params else question_mark + url_query, body, all_headers
        )
        if not self._slots.acquire(timeout=max(self.remaining_s(), 0.0)):
            raise self._deadline_error()
        try:
            return self._with_retries(request)
        finally:
            self._slots.release()

    # -- one request and its retries

    def _with_retries(self, request: _Request) -> Response:
        """The response; temporary failures are retried."""
        self._count(requests=1)
        for pause in self._pauses():
            try:
                return self._fetch(request)
            except TemporaryFailure as failure:
                wait = max(pause, failure.retry_after_s)
                if pause < 0 or wait >= self.remaining_s():
                    raise self._final_error(failure) from None
                self._sleep(wait)
        raise AssertionError  # the last pause re-raises

    def _pauses(self) -> Iterator[float]:
        """Seconds before each retry, randomized so that many clients don't retry together; then -1."""
        for attempt in range(self.options.retries):
            yield min(MAX_PAUSE_S, MIN_PAUSE_S * 2**attempt) * random.uniform(0.5, 1.0)
        yield -1.0

    def _final_error(self, failure: TemporaryFailure) -> SourceUnavailable:
        if failure.retry_after_s and self.options.retries:
            return SourceUnavailable(
                failure.kind,
                f"{failure}; the server asks to wait {failure.retry_after_s:g} s, longer than the retries or the"
                " deadline allow",
            )
        if failure.kind == "unreachable" and self.options.down_s:
            self._down = self._clock() + self.options.down_s, failure
        return failure

    def _deadline_error(self) -> SourceUnavailable:
        return SourceUnavailable(
            "timeout",
            f"{self.name}: the deadline of {self.options.deadline_s:g} s for one verdict has passed; raise deadline_s"
            " or request less",
        )

    def _closed_error(self) -> SourceUnavailable:
        return SourceUnavailable("unreachable", f"{self.name}: the request was abandoned because the client was closed")

    def _fetch(self, request: _Request) -> Response:
        until = self._clock() + min(self.options.timeout_s, self.remaining_s())
        response = self._open(request)
        max_bytes, pieces, size = self.options.max_answer_bytes, [], 0
        try:
            with time_limit(until - self._clock(), response.shutdown):
                for piece in self._pieces(request, response, until):
                    size += len(piece)
                    if size > max_bytes:
                        raise SourceUnavailable(
                            "too_large",
                            f"{request.url} sent more than {max_bytes:,} bytes; request less at once, or raise"
                            " max_answer_bytes",
                        )
                    pieces.append(piece)
        except BaseException as error:
            response.close()
            if isinstance(error, TimeoutError):
                raise (self._deadline_error() if self.remaining_s() <= 0 else self._error_of(request, error)) from None
            raise
        response.release_conn()
        return Response(b"".join(pieces), request.url, response.status)

    def _open(self, request: _Request) -> urllib3.BaseHTTPResponse:
        """The response with its headers read. Raises SourceUnavailable for a status of 300 or more."""
        self._check()
        timeout = min(self.options.timeout_s, self.remaining_s())
        until = self._clock() + timeout
        try:
            response = self._pool.request(
                request.method, request.url + request.query, body=request.body, headers=request.headers, redirect=False,
                preload_content=False, timeout=urllib3.Timeout(connect=timeout, read=timeout),
            )  # fmt: skip
        except (HTTPError, OSError) as error:
            # urllib3's frames hold the error and the body as long as the traceback lives
            traceback.clear_frames(error.__traceback__)
            raise self._error_of(request, error) from None
        if response.status < 300:
            return response
        try:
            with time_limit(until - self._clock(), response.shutdown):
                body_start = response.read(1 << 14, decode_content=True)
        except (HTTPError, OSError):
            body_start = b""
        response.close()
        headers = {name.lower(): value for name, value in response.headers.items()}
        raise refusal(request.url, response.status, headers, body_start)

    def _check(self) -> None:
        if self._closed.is_set():
            raise self._closed_error()
        if self.remaining_s() <= 0:
            raise self._deadline_error()
        if self._down is not None and self._clock() < self._down[0]:
            raise SourceUnavailable(self._down[1].kind, str(self._down[1]))

    def _pieces(self, request: _Request, response: urllib3.BaseHTTPResponse, until: float) -> Iterator[bytes]:
        """Decompressed pieces of the body, each of bounded size because a few bytes can expand to gigabytes. ``until``:
        time limit, at or before the deadline. Raises SourceUnavailable."""
        packed = response.headers.get("Content-Encoding", "").lower() in ("gzip", "x-gzip", "deflate")
        unpack = zlib.decompressobj(wbits=47) if packed else None
        while True:
            if self.remaining_s() <= 0:
                raise self._deadline_error()
            if self._clock() > until:
                raise self._error_of(request, ReadTimeoutError(self._pool, None, ""))  # type: ignore[arg-type]
            try:
                raw = response.read1(PIECE_BYTES, decode_content=False)
            except (HTTPError, OSError) as error:
                raise self._error_of(request, error) from None
            if self._closed.is_set():
                raise self._closed_error()
            self._count(bytes_received=len(raw))
            for piece in [raw] if unpack is None else self._decompress(request, unpack, raw):
                if piece:
                    yield piece
            if not raw and unpack is not None and not unpack.eof:
                raise TemporaryFailure("broken", f"{request.url}: the connection broke in the middle of the response")
            if not raw:
                return

    @staticmethod
    def _decompress(request: _Request, unpack: zlib._Decompress, raw: bytes) -> Iterator[bytes]:
        """Decompress ``raw`` in pieces of bounded size; empty ``raw`` flushes what is left."""
        try:
            if not raw:
                yield unpack.flush()
            while raw:
                yield unpack.decompress(raw, PIECE_BYTES)
                raw = unpack.unconsumed_tail
        except zlib.error:
            raise TemporaryFailure(
                "broken", f"{request.url} sent compressed data that cannot be decompressed"
            ) from None

    def _error_of(self, request: _Request, error: Exception) -> SourceUnavailable:
        """The SourceUnavailable for a request that failed or was cut short."""
        timeout = self.options.timeout_s
        if self._closed.is_set():
            return self._closed_error()
        inner = error.args[0] if isinstance(error, SSLError) and error.args else error.__cause__
        if isinstance(inner, ssl.SSLError) and not isinstance(inner, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return SourceUnavailable(
                "unreachable",
                f"{self.name}: certificate not trusted: {plain(str(error))}; set ca to its authority, or cert and key"
                " for this client",
            )
        if isinstance(error, NameResolutionError):
            return TemporaryFailure("unreachable", f"{self.name}: the host name does not resolve (is the URL right?)")
        if isinstance(error, ConnectTimeoutError) and not isinstance(error, NewConnectionError):
            return TemporaryFailure(
                "unreachable",
                f"{self.name} cannot be reached within {timeout:g} s (is the address right, and is a"
                " firewall in between?)",
            )
        if isinstance(error, NewConnectionError):
            return TemporaryFailure("unreachable", f"{self.name} cannot be reached ({_cause(error)}; is it running?)")
        if isinstance(error, (ReadTimeoutError, TimeoutError)):
            return SourceUnavailable(
                "timeout",
                f"{request.url} did not answer within {timeout:g} s; raise timeout_s or {self.options.slow_remedy}",
            )
        if isinstance(error, LocationParseError):
            return SourceUnavailable("refused", f"{self.name} is not a valid URL")
        inner = error.args[-1] if error.args else None
        if isinstance(inner, http.client.BadStatusLine) and not isinstance(inner, http.client.RemoteDisconnected):
            return TemporaryFailure("broken", f"{request.url} did not answer with HTTP: {plain(str(inner))}")
        return TemporaryFailure("broken", f"{request.url}: the connection broke in the middle of the response")

    def _count(self, requests: int = 0, bytes_received: int = 0) -> None:
        with self._lock:
            self._traffic.requests += requests
            self._traffic.bytes_received += bytes_received


@dataclass(frozen=True, slots=True)
class _Request:
    """One request. ``query`` may hold secrets, so messages leave it out."""

    method: str
    url: str
    query: str = field(repr=False)
    body: bytes | None = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)


def _cause(error: Exception) -> str:
    inner = error.__cause__ or error.__context__
    return plain((inner.strerror or str(inner)) if isinstance(inner, OSError) else str(error)).lower()
