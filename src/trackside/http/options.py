"""Where a server is, how to ask it, and who asks: secrets come resolved, and are in no ``repr``."""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from trackside.http.unavailable import plain
from trackside.settings.secrets import shown_url


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """Where a server is and how to ask it.

    ``url``: http or https, with a path if the API stands below one; a user and password in it are taken out.
    ``ca``, ``cert``, ``key``: paths of PEM files. ``timeout_s``: one request. ``deadline_s``: all that one verdict
    asks. ``concurrency``: requests under way at once. ``most_bytes``: one answer, decompressed. ``gzip``: whether
    answers may come compressed; None: unless the server is on this machine, where it only costs time.

    Raises ValueError for what can't be meant.
    """

    exact: ClassVar[bool] = False
    """Whether the URL is asked as it stands, parameters included; otherwise it is what paths are put behind."""
    user_agent: ClassVar[str] = "trackside"
    lighter: ClassVar[str] = "ask for less"
    """What helps against a server that is too slow."""
    down_s: ClassVar[float] = 5.0
    """For so long after all retries failed to reach the server nobody else tries: all get the same failure at once."""

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
    most_bytes: int = 256 << 20
    gzip: bool | None = None

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            port = f":{parts.port}" if parts.port is not None else ""
        except ValueError:  # whose words may hold a part of a password
            raise ValueError(f"the URL {shown_url(self.url)!r} can't be read: is its port a number, and are / ? # of a "
                             "user or password written as %2F %3F %23?") from None  # fmt: skip
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the URL {shown_url(self.url)!r} must begin with http:// or https:// and name a host, as "
                             "http://metrics:9090 does")  # fmt: skip
        if not self.exact and (parts.query or parts.fragment):
            raise ValueError(
                f"the URL {shown_url(self.url)!r} must end with its path; parameters are set apart from it"
            )
        if parts.username is not None:
            object.__setattr__(self, "user", self.user or unquote(parts.username))
            object.__setattr__(self, "password", self.password or unquote(parts.password or ""))
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        rest = parts._replace(scheme="", netloc="", fragment="").geturl() if self.exact else parts.path.rstrip("/")
        object.__setattr__(self, "url", f"{parts.scheme}://{host}{port}{rest}")
        shown = shown_url(self.url)
        if self.bearer and self.user:
            raise ValueError(f"{shown}: give a bearer token or a user and password, not both")
        for name, value in self.headers.items():
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
                raise ValueError(f"{shown}: {name!r} can't be the name of a header")
            _check(shown, f"the value of the header {name}", value, "latin-1")
        _check(shown, "the bearer token for the header Authorization", self.bearer, "latin-1")
        for what, value in (("the user", self.user), ("the password", self.password)):
            _check(shown, f"{what} for the header Authorization", value, "utf-8")
        if self.timeout_s <= 0 or self.deadline_s <= 0 or self.concurrency < 1 or self.retries < 0:
            raise ValueError(f"{shown}: timeouts and concurrency must be above 0, retries 0 or more")


def _check(url: str, what: str, value: str, encoding: str) -> None:
    """Raises ValueError for what can't be sent, without showing it."""
    try:
        value.encode(encoding)
    except UnicodeEncodeError:
        raise ValueError(f"{url}: {what} holds characters that are not {encoding.upper()}") from None
    if re.search(r"[\r\n\0]", value):
        raise ValueError(f"{url}: {what} holds the end of a line; was it read from a file?")


def identity(options: HttpOptions) -> dict[str, str]:
    """The headers that every request carries."""
    host = urlsplit(options.url).hostname or ""
    here = host == "localhost" or host == "::1" or host.startswith("127.")
    gzip = not here if options.gzip is None else options.gzip
    headers = {"User-Agent": options.user_agent, "Accept-Encoding": "gzip" if gzip else "identity"}
    if options.bearer:
        headers["Authorization"] = f"Bearer {options.bearer}"
    elif options.user:
        pair = base64.b64encode(f"{options.user}:{options.password}".encode()).decode()
        headers["Authorization"] = f"Basic {pair}"
    return headers


def tls(options: HttpOptions) -> ssl.SSLContext:
    """Raises ValueError for files that can't be used."""
    try:
        context = ssl.create_default_context(cafile=options.ca or None)
        if options.cert:
            context.load_cert_chain(options.cert, options.key or None)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (options.ca, options.cert, options.key)))
        raise ValueError(
            f"{shown_url(options.url)}: the certificates ({files}) can't be used: {plain(str(error))}"
        ) from None
    if not options.verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
