"""One receiver: how it is reached and how much it is sent at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self
from urllib.parse import urlsplit

from trackside.http.options import HttpOptions

FIXED = frozenset({"deadline_s", "retries", "concurrency", "most_bytes", "gzip"})
"""Options that are no settings of a receiver: the spool tries again, for as long as it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverOptions(HttpOptions):
    """Where a receiver is and how it is reached; its URL may have parameters.

    Raises ValueError for what can't be meant.
    """

    exact: ClassVar[bool] = True
    user_agent: ClassVar[str] = "trackside-agent"
    lighter: ClassVar[str] = "lower batch_bytes"
    down_s: ClassVar[float] = 0.0

    deadline_s: float = float("inf")
    retries: int = 0
    concurrency: int = 1
    most_bytes: int = 64 << 10
    """Of an answer: it only says how it went."""
    gzip: bool | None = False
    wait_s: float = 2.0
    """How long something waits for company, at most."""
    batch_bytes: int = 1 << 20
    """Of one request, before it is compressed; one reading is never split below its own pieces."""

    def __post_init__(self) -> None:
        HttpOptions.__post_init__(self)
        if self.wait_s < 0 or self.batch_bytes < 1 << 10:
            raise ValueError("wait_s must be 0 or more, batch_bytes 1024 or more")

    def at(self, path: str) -> Self:
        """The same for what is posted there: a URL without a path gets the protocol's usual one."""
        parts = urlsplit(self.url)
        return replace(self, url=parts._replace(path=path).geturl()) if parts.path in ("", "/") else self
