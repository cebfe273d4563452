"""The form in which logged steps of a series are kept: packed in memory, or in a store."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from trackside.model import Event, EventRole, Plane, Position, Scalar

MAX_TEXT_CHARS = 400
"""Characters of a point's line that are kept."""

_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """A point and its state in the series; a second print could still complete one that is open."""

    event: Event
    ordinal: int
    pinned: bool
    is_open: bool


class SeriesState(msgspec.Struct, frozen=True, rename={"count": "seen", "has_packed_loss": "with_loss"}):
    """A series without its points, as stores keep it; the names in its JSON are a file format."""

    parser: str
    count: int
    has_packed_loss: bool
    part: int
    rank: int
    stride: int


class Extent(NamedTuple):
    """The steps, and the times in POSIX seconds, between which points lie; inverted infinities if none is known."""

    lowest_step: float
    highest_step: float
    first_time: float
    last_time: float

    def is_disjoint(self, other: Extent) -> bool:
        """Whether the steps or the times of the two do not overlap."""
        steps = (self.lowest_step > other.highest_step > -math.inf) or (
            other.lowest_step > self.highest_step > -math.inf
        )
        times = (self.first_time > other.last_time > -math.inf) or (other.first_time > self.last_time > -math.inf)
        return steps or times


class StoredPoint(NamedTuple):
    """A point that is stored elsewhere: what is needed to choose among series, and a function that loads the event."""

    ordinal: int
    pinned: bool
    is_open: bool
    loss: float | None
    step: float | None
    time: float | None
    event: Callable[[], Event]


def pack_event(event: Event, fields: Mapping[str, Scalar]) -> bytes:
    """An event with these fields as msgpack, without what all points of a series share; :func:`unpack_event` reads it."""
    position = event.at
    head = (
        position.line,
        position.offset,
        position.length,
        event.text[:MAX_TEXT_CHARS],
        event.time,
        event.rank,
        event.node,
    )
    try:
        return _encode((*head, fields))
    except OverflowError:  # an integer beyond 64 bits
        return _encode(
            (*head, {name: float(value) if isinstance(value, int) else value for name, value in fields.items()})
        )


def unpack_event(path: str, parser: str, data: bytes) -> Event:
    """The event of packed bytes."""
    line, offset, length, text, time, rank, node, fields = msgspec.msgpack.decode(data)
    plane: Plane = "log"
    return Event(
        "progress",
        Position(path, line, offset, length),
        plane,
        text,
        time,
        rank,
        node,
        EventRole.OBSERVATION,
        parser,
        fields,
    )
