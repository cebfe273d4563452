"""What the protocols share: how a push is refused, how its lines are gathered, how it is answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from trackside.catalog.streams import ROLES, plain
from trackside.errors import TracksideError
from trackside.stores.receiver.pending import LineStream

MAX_LINES = 1 << 22
"""Of one push: more than may wait to be written, with a time each; an empty line has two bytes and becomes 50."""

_PLACES = frozenset(
    {name for role in ("job", "node", "rank") for name in ROLES[role]}
    | {"filename", "log_file_path", "log_file_name", "syslog_identifier", "identifier", "appname", "systemd_unit"}
)
"""Attributes of a single line that say whose line it is."""


class BadRequest(TracksideError, ValueError):
    """What was pushed cannot be taken: what is wrong, where, and what to do, in words for the sender (HTTP 400)."""

    status = 400
    retry_after_s: float | None = None


class TooLarge(BadRequest):
    """A body, or a part of one, beyond a limit (HTTP 413)."""

    status = 413


class Unsupported(BadRequest):
    """A content type or encoding that is not spoken here (HTTP 415)."""

    status = 415


class LineStreams:
    """The lines of one push: one stream for each set of labels, in the order in which they come."""

    def __init__(self) -> None:
        self._streams: dict[tuple[tuple[str, str], ...], LineStream] = {}

    def of(self, labels: dict[str, str]) -> LineStream:
        """The stream with these labels."""
        key = tuple(sorted(labels.items()))
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = LineStream(labels)
        return stream

    def check_count(self) -> None:
        """Raise TooLarge for too many lines."""
        count = sum(len(stream.lines) for stream in self._streams.values())
        if count > MAX_LINES:
            raise TooLarge(f"{count:,} lines in one push, at most {MAX_LINES:,} are taken: send less at once")

    def with_lines(self) -> list[LineStream]:
        """All streams that have lines."""
        return [stream for stream in self._streams.values() if stream.lines]


@lru_cache(maxsize=1 << 12)
def is_place(name: str) -> bool:
    """Whether an attribute tells streams apart; the number of a trace, or of a line, does not."""
    return plain(name) in _PLACES


@dataclass(frozen=True, slots=True)
class Answer:
    """What the protocol wants said to the sender once all of a push is kept."""

    status: int = 204
    body: bytes = b""
    content_type: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
