"""Options of one receiver: how it is reached and how much is sent per request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self
from urllib.parse import urlsplit

from trackside.http.options import HttpOptions
from trackside.settings.bounds import check_at_least

NOT_CONFIGURABLE = frozenset({"deadline_s", "retries", "concurrency", "max_answer_bytes", "gzip"})
"""HTTP options that are not settings of a receiver. The spool retries for as long as needed (``deadline_s``,
``retries``) and sends in order (``concurrency``); answers are short (``max_answer_bytes``, ``gzip``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverOptions(HttpOptions):
    """Where a receiver is and how it is reached; its URL may have parameters.

    Raises ValueError for invalid values.
    """

    exact: ClassVar[bool] = True
    user_agent: ClassVar[str] = "trackside-agent"
    slow_remedy: ClassVar[str] = "lower batch_bytes"
    down_s: ClassVar[float] = 0.0
    """The spool itself waits between attempts."""

    deadline_s: float = float("inf")
    retries: int = 0
    concurrency: int = 1
    max_answer_bytes: int = 64 << 10
    """Limit of a response, which only reports success or failure."""
    gzip: bool | None = False
    wait_s: float = 2.0
    """Maximum time that data waits for more data to be sent in the same request."""
    batch_bytes: int = 1 << 20
    """Limit of a request before compression; a single record is never split."""

    def __post_init__(self) -> None:
        HttpOptions.__post_init__(self)
        check_at_least(0, self, "wait_s")
        check_at_least(1 << 10, self, "batch_bytes")

    def with_path(self, path: str) -> Self:
        """These options with a protocol's default path, if the URL has no path."""
        parts = urlsplit(self.url)
        return replace(self, url=parts._replace(path=path).geturl()) if parts.path in ("", "/") else self
