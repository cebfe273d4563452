"""What the protocols share: errors for refused pushes, the collection of lines, and responses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from trackside.catalog.streams import ROLES, plain
from trackside.errors import TracksideError
from trackside.stores.receiver.pending import LineStream

MAX_LINES = 1 << 22
"""Lines in one push: more than the queue holds. An empty line has two bytes and takes 50 with its time."""

_PLACES = frozenset(
    {name for role in ("job", "node", "rank") for name in ROLES[role]}
    | {"filename", "log_file_path", "log_file_name", "syslog_identifier", "identifier", "appname", "systemd_unit"}
)
"""Attributes of a single line that identify its stream: job, node, rank or file."""


class BadRequest(TracksideError, ValueError):
    """The push is invalid (HTTP 400). The message tells the sender what is wrong, where, and how to correct it."""

    status = 400
    retry_after_s: float | None = None


class PushTooLarge(BadRequest):
    """The body, or a part of it, exceeds a limit (HTTP 413)."""

    status = 413


class UnsupportedMedia(BadRequest):
    """The content type or encoding is not supported (HTTP 415)."""

    status = 415


class LineStreams:
    """The lines of one push: one stream for each set of labels, in order of appearance."""

    def __init__(self) -> None:
        self._streams: dict[tuple[tuple[str, str], ...], LineStream] = {}

    def of_labels(self, labels: dict[str, str]) -> LineStream:
        """The stream with these labels."""
        key = tuple(sorted(labels.items()))
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = LineStream(labels)
        return stream

    def check_count(self) -> None:
        """Raise PushTooLarge for too many lines."""
        count = sum(len(stream.lines) for stream in self._streams.values())
        if count > MAX_LINES:
            raise PushTooLarge(
                f"{count:,} lines in one push, but at most {MAX_LINES:,} are accepted: send smaller batches"
            )

    def with_content(self) -> list[LineStream]:
        """All streams that have lines."""
        return [stream for stream in self._streams.values() if stream.lines]


@lru_cache(maxsize=1 << 12)
def identifies_stream(name: str) -> bool:
    """Whether an attribute identifies a stream; a trace id or a line number does not."""
    return plain(name) in _PLACES


@dataclass(frozen=True, slots=True)
class PushAnswer:
    """The response to a push that was stored."""

    status: int = 204
    body: bytes = b""
    content_type: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
