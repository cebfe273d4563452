"""What a push holds once its bytes are understood: samples of series, or lines of streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

MAX_LINES = 1 << 22
"""Of one push: more than may wait to be written, with a time each; an empty line has two bytes and becomes 50."""


class BadRequest(ValueError):
    """What was pushed cannot be taken: what is wrong, where, and what to do, in words for the sender (HTTP 400)."""

    status = 400


class TooLarge(BadRequest):
    """A body, or a part of one, beyond a limit (HTTP 413)."""

    status = 413


class Unsupported(BadRequest):
    """A content type or encoding that is not spoken here (HTTP 415)."""

    status = 415


@dataclass(slots=True, eq=False)
class MetricBlock:
    """Samples of one push, in no promised order.

    Two equal keys name the same series for ever; one series may come under several keys, and a key may stand twice.
    ``labels_of`` of the protocol's module says what a key means.
    """

    keys: list[bytes]
    index: NDArray[np.int32]
    """(N,) the place in ``keys`` of each sample's series."""
    times_ms: NDArray[np.int64]
    """(N,) since 1970."""
    values: NDArray[np.float64]
    """(N,)"""
    left_out: int = 0
    """Points that cannot be kept, such as native histograms; ``why`` says so in words."""
    stale: int = 0
    """Markers that a series has ended: understood, and no measurement."""
    exemplars: int = 0
    """Left out as well."""
    why: str = ""

    @property
    def received(self) -> int:
        """Samples understood, markers among them."""
        return len(self.values) + self.stale


@dataclass(slots=True, eq=False)
class LineStream:
    """Lines of one stream, in the order sent."""

    labels: dict[str, str]
    times_ns: list[int] = field(default_factory=list)
    """Since 1970, one a line; 0 where the sender gave no time."""
    lines: list[str] = field(default_factory=list)


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


@dataclass(frozen=True, slots=True)
class Answer:
    """What the protocol wants said to the sender once all of a push is kept."""

    status: int = 204
    body: bytes = b""
    content_type: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
