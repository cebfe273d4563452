"""One receiver over HTTP: a connection that is kept, a time within which it must answer, and its own words."""

from __future__ import annotations

import base64
import http.client
import re
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from time import time
from urllib.parse import unquote, urlsplit

from trackside.settings.secrets import shown_url

MOST_ANSWER = 64 << 10
"""Bytes of an answer that are read: it only says how it went."""
MOST_SAID = 300
"""Characters of the server's own words."""
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverOptions:
    """Where a receiver is and how it is reached; secrets come resolved. Raises ValueError for what can't be meant."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    bearer: str = field(default="", repr=False)
    ca: str = ""
    cert: str = ""
    key: str = ""
    verify: bool = True
    timeout_s: float = 30.0
    """One request, from the connection to the answer's end."""
    wait_s: float = 2.0
    """How long something waits for company, at most."""
    batch_bytes: int = 1 << 20
    """Of one request, before it is compressed; one reading is never split below its own pieces."""

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            _ = parts.port
        except ValueError:
            raise ValueError(f"the url {shown_url(self.url)!r} can't be read: is its port a number?") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the url {shown_url(self.url)!r} must begin with http:// or https:// and name a host")
        if parts.username is not None:
            object.__setattr__(self, "user", self.user or unquote(parts.username))
            object.__setattr__(self, "password", self.password or unquote(parts.password or ""))
            object.__setattr__(self, "url", parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl())
        if self.bearer and self.user:
            raise ValueError("give a bearer token or a user and password, not both")
        for name, value in {**self.headers, "bearer": self.bearer}.items():
            if not _HEADER.match(name) or re.search(r"[\r\n\0]", value) or not value.isascii():
                raise ValueError(f"{name}: can't be sent as a header; was it read from a file with more than a line?")
        if self.timeout_s <= 0 or self.wait_s < 0 or self.batch_bytes < 1 << 10:
            raise ValueError("timeout_s must be above 0, wait_s 0 or more, batch_bytes 1024 or more")

    def at(self, path: str) -> str:
        """The URL to post to: a URL without a path gets the protocol's usual one."""
        parts = urlsplit(self.url)
        return parts._replace(path=path).geturl() if parts.path in ("", "/") else self.url


class Unreachable(Exception):
    """Nobody answered. ``str`` is one line: where, and what happened."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a receiver answered. ``words``: its own, a printable line. ``after_s``: when it wants to be asked again."""

    status: int
    words: str
    after_s: float


class Sender:
    """Posts to one URL, for one thread."""

    def __init__(self, options: ReceiverOptions, path: str) -> None:
        """Raises ValueError for certificates that can't be used."""
        self.url = options.at(path)
        self.shown = shown_url(self.url)
        parts = urlsplit(self.url)
        self._options, self._host, self._port = options, parts.hostname or "", parts.port
        self._target = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
        self._tls = _tls(options) if parts.scheme == "https" else None
        self._headers = {"User-Agent": "trackside-agent", "Accept-Encoding": "identity", **_identity(options)}
        self._connection: http.client.HTTPConnection | None = None

    def post(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send a body. Raises Unreachable."""
        kept = self._connection is not None
        try:
            return self._posted(body, headers)
        except TimeoutError:
            self.close()
            raise Unreachable(f"{self.shown} did not answer within {self._options.timeout_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if not kept:
                raise Unreachable(f"{self.shown}: {_reason(error)}") from None
        return self.post(body, headers)  # the server had ended the connection that was kept: once more, over a new one

    def _posted(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        connection = self._connection or self._opened()
        with _ended(self._options.timeout_s, connection):
            connection.request("POST", self._target, body, {**self._headers, **headers})
            response = connection.getresponse()
            said = response.read(MOST_ANSWER)
            whole = response.isclosed() or not response.read(1)
        if not whole or response.will_close:
            self.close()
        return Answer(response.status, _plain(said), _after(response.headers.get("Retry-After", "")))

    def _opened(self) -> http.client.HTTPConnection:
        timeout_s = self._options.timeout_s
        if self._tls is not None:
            made: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout_s, context=self._tls
            )
        else:
            made = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        made.connect()
        made.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = made
        return made

    def close(self) -> None:
        """End the connection; the next post opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@contextmanager
def _ended(within_s: float, connection: http.client.HTTPConnection) -> Iterator[None]:
    """Shut the connection after so long, which ends what the block does. Raises TimeoutError if that had to be.

    A socket's timeout is that of one read: a byte now and then keeps a head going for hours.
    """
    late = threading.Event()

    def end() -> None:
        late.set()
        with suppress(OSError, AttributeError):
            socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

    timer = threading.Timer(within_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if late.is_set():
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()


def _identity(options: ReceiverOptions) -> dict[str, str]:
    """The headers that say who sends."""
    if options.bearer:
        return {"Authorization": f"Bearer {options.bearer}", **options.headers}
    if options.user:
        pair = base64.b64encode(f"{options.user}:{options.password}".encode()).decode()
        return {"Authorization": f"Basic {pair}", **options.headers}
    return dict(options.headers)


def _tls(options: ReceiverOptions) -> ssl.SSLContext:
    """Raises ValueError for files that can't be used."""
    try:
        context = ssl.create_default_context(cafile=options.ca or None)
        if options.cert:
            context.load_cert_chain(options.cert, options.key or None)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (options.ca, options.cert, options.key)))
        raise ValueError(f"the certificates ({files}) can't be used: {_plain(str(error).encode())}") from None
    if not options.verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _reason(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: is it up, and does it listen there?"
    if isinstance(error, socket.gaierror):
        return f"its name is not known here ({error.strerror})"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}): give its issuer's as ca"
    return _plain(str(error).encode()) or type(error).__name__


def _after(text: str) -> float:
    """Seconds, from a number or a date; 0 for neither."""
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", text):
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time())
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _plain(said: bytes) -> str:
    """One printable line of bounded length."""
    text = re.sub(r"<[^<>]{0,200}>", " ", said[: 8 * MOST_SAID].decode("utf-8", "replace"))
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return line if len(line) <= MOST_SAID else line[: MOST_SAID - 3] + "..."
