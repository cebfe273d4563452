"""Options of an HTTP server: URL, credentials, limits. Secrets are already resolved, and are left out of ``repr``."""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from trackside.http.unavailable import plain
from trackside.settings.bounds import check_at_least, check_positive
from trackside.settings.secrets import url_without_secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """Where a server is and how requests are sent to it.

    ``url``: http or https, with a path if the API stands below one; a user and password in it are moved to ``user`` and
    ``password``. ``ca``, ``cert``, ``key``: paths of PEM files. ``timeout_s``: limit of one request. ``deadline_s``:
    limit of all requests of one verdict. ``concurrency``: requests under way at once. ``max_answer_bytes``: limit of
    one response, decompressed. ``gzip``: whether responses may be compressed; None: unless the server is on this
    machine, where compression only costs time.

    Raises ValueError for invalid values.
    """

    exact: ClassVar[bool] = False
    """Whether the URL is used exactly as given, parameters included; otherwise request paths are appended to it."""
    user_agent: ClassVar[str] = "trackside"
    slow_remedy: ClassVar[str] = "ask for less"
    """Advice in the error for a server that is too slow."""
    down_s: ClassVar[float] = 5.0
    """After all retries failed to reach the server, other requests fail at once for this many seconds."""

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
    deadline_s: float = 120.0
    retries: int = 3
    concurrency: int = 4
    max_answer_bytes: int = 256 << 20
    gzip: bool | None = None

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            port = f":{parts.port}" if parts.port is not None else ""
        except ValueError:  # its message may contain part of a password
            raise ValueError(f"the URL {url_without_secrets(self.url)!r} is invalid: is its port a number, and are "
                             "/ ? # of a user or password written as %2F %3F %23?") from None  # fmt: skip
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the URL {url_without_secrets(self.url)!r} must begin with http:// or https:// and "
                             "name a host, such as http://HOST:PORT")  # fmt: skip
        if not self.exact and (parts.query or parts.fragment):
            raise ValueError(f"the URL {url_without_secrets(self.url)!r} must end with its path, without parameters")
        if parts.username is not None:
            object.__setattr__(self, "user", self.user or unquote(parts.username))
            object.__setattr__(self, "password", self.password or unquote(parts.password or ""))
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        path_and_query = (
            parts._replace(scheme="", netloc="", fragment="").geturl() if self.exact else parts.path.rstrip("/")
        )
        object.__setattr__(self, "url", f"{parts.scheme}://{host}{port}{path_and_query}")
        shown = url_without_secrets(self.url)
        if self.bearer and (self.user or self.password):
            raise ValueError(f"{shown}: give a bearer token or a user and password, not both")
        if self.password and not self.user:
            raise ValueError(f"{shown}: give the user of the password")
        if self.key and not self.cert:
            raise ValueError(f"{shown}: give the certificate (cert) of the key")
        for name, value in self.headers.items():
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
                raise ValueError(f"{shown}: {name!r} is not a valid header name")
            _check(shown, f"the value of the header {name}", value, "latin-1")
        _check(shown, "the bearer token for the header Authorization", self.bearer, "latin-1")
        for field_name, value in (("the user", self.user), ("the password", self.password)):
            _check(shown, f"{field_name} for the header Authorization", value, "utf-8")
        check_positive(self, "timeout_s", "deadline_s", "concurrency")
        check_at_least(0, self, "retries")
        check_at_least(1, self, "max_answer_bytes")


def _check(url: str, field_name: str, value: str, encoding: str) -> None:
    """Raise ValueError if ``value`` cannot be sent in a header; the message does not show it."""
    try:
        value.encode(encoding)
    except UnicodeEncodeError:
        raise ValueError(f"{url}: {field_name} holds characters that are not {encoding.upper()}") from None
    if re.search(r"[\r\n\0]", value):
        raise ValueError(f"{url}: {field_name} contains a line break or a null byte; was it read from a file?")


def identity_headers(options: HttpOptions) -> dict[str, str]:
    """The headers that every request carries: user agent, encoding, authorization."""
    host = urlsplit(options.url).hostname or ""
    is_local = host == "localhost" or host == "::1" or host.startswith("127.")
    gzip = not is_local if options.gzip is None else options.gzip
    headers = {"User-Agent": options.user_agent, "Accept-Encoding": "gzip" if gzip else "identity"}
    if options.bearer:
        headers["Authorization"] = f"Bearer {options.bearer}"
    elif options.user:
        pair = base64.b64encode(f"{options.user}:{options.password}".encode()).decode()
        headers["Authorization"] = f"Basic {pair}"
    return headers


def tls(options: HttpOptions) -> ssl.SSLContext:
    """The TLS context. Raises ValueError for certificate files that cannot be loaded."""
    try:
        context = ssl.create_default_context(cafile=options.ca or None)
        if options.cert:
            context.load_cert_chain(options.cert, options.key or None)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (options.ca, options.cert, options.key)))
        raise ValueError(
            f"{url_without_secrets(options.url)}: the certificates ({files}) cannot be loaded: {plain(str(error))}"
        ) from None
    if not options.verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
