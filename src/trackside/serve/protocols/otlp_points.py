"""Points of OTLP metrics on their way to samples, and the keys of their series.

Points of numbers are read where they stand, all at once: from their times and values on, what remains of a point are
its attributes, and these bytes lead to its key. Other points are given to the official messages, one by one.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from numpy.typing import NDArray
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2 as messages
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from trackside.serve.protocols import otlp
from trackside.serve.protocols.decoded import BadRequest, MetricBlock, TooLarge
from trackside.serve.protocols.series_key import MOST_BYTES, key_of, length
from trackside.serve.protocols.wire import BYTES, VARINT, Offsets, bytes_of, fields, words_of

NO_VALUE = 1
"""The flag of a point that says: the series has ended."""
_STALE, _ODD = b"\0", b"\1"
"""Stand for keys: of points that have the flag, and of those that must be gone through."""
_MOST_PIECE = 1 << 20
"""Bytes of a point or a resource; the official messages take many times as much."""
_MOST_BUCKETS = 1_000
_CONTEXTS = 1 << 14
"""Metrics of resources that are remembered."""
_REMEMBERED = 256 << 20


@dataclass(slots=True)
class Context:
    """One metric of a resource: what all its points share."""

    name: str
    labels: dict[str, str]
    """Of resource and scope."""
    keys: dict[bytes, bytes] = field(default_factory=dict)
    """The bytes of a point after its value -> its key."""

    def key(self, labels: dict[str, str], suffix: str = "") -> bytes:
        """The key of a point with further labels."""
        whole = {**self.labels, **labels, "__name__": self.name + suffix}
        key = key_of((name.encode(), value.encode("utf-8", "replace")) for name, value in sorted(whole.items()))
        if len(key) > MOST_BYTES:
            raise BadRequest(
                f"metric {self.name[:80]!r}: labels of {len(key):,} bytes, at most {MOST_BYTES:,} are taken"
            )
        return key


class _Contexts:
    """Contexts by the bytes of resource and scope and the metric's name."""

    def __init__(self) -> None:
        self._of: dict[tuple[bytes, bytes, bytes], Context] = {}
        self._room = _REMEMBERED

    def of(self, resource: bytes, scope: bytes, name: bytes, where: str) -> Context:
        """The context; made where it is new."""
        found = self._of.get((resource, scope, name))
        if found is None:
            if len(self._of) >= _CONTEXTS:
                self._of.clear()
            found = self._of[resource, scope, name] = _context(resource, scope, name, where)
            self.took(len(resource) + len(scope) + sum(map(len, found.labels.values())))
        return found

    def took(self, size: int) -> None:
        """So many bytes more are remembered; beyond the bound all is forgotten."""
        self._room -= size + 200
        if self._room < 0:
            self._of.clear()
            self._room = _REMEMBERED


contexts = _Contexts()
_M = TypeVar("_M", bound=Message)


def message(kind: type[_M], data: bytes, where: str) -> _M:
    """A message of the official library. Raises BadRequest."""
    if len(data) > _MOST_PIECE:
        raise TooLarge(f"{where}: {len(data):,} bytes, at most {_MOST_PIECE:,} are taken")
    try:
        found: _M = kind.FromString(data)
    except DecodeError as error:
        raise BadRequest(f"{where} can't be read as {kind.DESCRIPTOR.name}: {error}") from None
    return found


def _context(resource: bytes, scope: bytes, name: bytes, where: str) -> Context:
    text = message(messages.Metric, b"\x0a" + length(len(name)) + name, where).name
    labels = otlp.of_resource(otlp.labels(message(Resource, resource, where).attributes))
    return Context(*named(text, labels, message(InstrumentationScope, scope, where).name, where))


def named(name: str, resource: dict[str, str], scope: str, where: str) -> tuple[str, dict[str, str]]:
    """A metric's name and the labels that it has of its resource and scope. Raises BadRequest."""
    if not name:
        raise BadRequest(f"{where} has no name")
    return name, {**resource, "otel_scope_name": scope} if scope else resource


@dataclass(slots=True)
class Points:
    """The points of a request: numbers where they stand in the body, all others one by one."""

    body: bytes
    starts: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    owners: list[tuple[Context, int]] = field(default_factory=list)
    """Whose these numbers are: so many each, in order."""
    keys: list[bytes] = field(default_factory=list)
    times: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    stale: int = 0
    deltas: int = 0
    empty: int = 0
    exponential: int = 0

    def add(self, key: bytes, time_ns: int, value: float) -> None:
        """One sample."""
        self.keys.append(key)
        self.times.append(_ms(time_ns))
        self.values.append(value)

    def histogram(
        self, context: Context, labels: dict[str, str], time_ns: int, count: int, total: float | None,
        bounds: Sequence[float], counts: Sequence[int],
    ) -> None:  # fmt: skip
        """A histogram with bounds of its own, or without any."""
        if counts and len(counts) != len(bounds) + 1:
            raise BadRequest(
                f"metric {context.name[:80]!r}: a histogram with {len(bounds):,} bounds has {len(counts):,} buckets, "
                "not one more"
            )
        if len(counts) > _MOST_BUCKETS:
            raise BadRequest(
                f"metric {context.name[:80]!r}: {len(counts):,} buckets, at most {_MOST_BUCKETS:,} are taken"
            )
        below = 0
        for bound, within in zip((*bounds, float("inf")), counts, strict=bool(counts)):
            below += within
            self.add(context.key({**labels, "le": number(bound)}, "_bucket"), time_ns, below)
        self.totals(context, labels, time_ns, count, total)

    def totals(self, context: Context, labels: dict[str, str], time_ns: int, count: int, total: float | None) -> None:
        """Sum and count of a histogram or summary."""
        self.add(context.key(labels, "_count"), time_ns, count)
        if total is not None:
            self.add(context.key(labels, "_sum"), time_ns, total)

    def block(self) -> MetricBlock:
        """All samples."""
        starts, ends = (np.frombuffer(each, dtype=np.int64) for each in (self.starts, self.ends))
        begins, times, values = _numbers(self.body, starts, ends)
        found = self._keys(starts, begins, ends)
        kept = [place for place, key in enumerate(found) if key is not _STALE and key is not _ODD]
        rows = slice(None) if len(kept) == len(found) else kept
        keys = [found[place] for place in kept] + self.keys
        return MetricBlock(
            keys,
            np.arange(len(keys), dtype=np.int32),
            np.concatenate([times[rows], np.frombuffer(self.times, dtype=np.int64)]),
            np.concatenate([values[rows], np.frombuffer(self.values, dtype=np.float64)]),
            self.deltas + self.empty,
            self.stale,
            why=self._why(),
        )

    def _keys(self, starts: Offsets, begins: Offsets, ends: Offsets) -> list[bytes]:
        body, first = self.body, 0
        keys: list[bytes] = []
        for context, count in self.owners:
            get, rows = context.keys.get, slice(first, first + count)
            spans = zip(begins[rows].tolist(), ends[rows].tolist(), strict=True)
            found = [get(body[begin:end]) if begin >= 0 else _ODD for begin, end in spans]
            for place, key in enumerate(found, first):
                if key is None:
                    key = found[place - first] = self._learnt(context, int(begins[place]), int(ends[place]))
                if key is _ODD:
                    self._odd(context, body[starts[place] : ends[place]])
                elif key is _STALE:
                    self.stale += 1
            keys += [key for key in found if key is not None]
            first += count
        return keys

    def _learnt(self, context: Context, begin: int, end: int) -> bytes:
        """The key of a point by what stands after its value; ``_ODD`` where that holds more than attributes."""
        flags, attributes = 0, []
        for each, kind, value, stop in fields(self.body, begin, end):
            if each == 7 and kind == BYTES:
                attributes.append(message(KeyValue, self.body[value:stop], f"an attribute at byte {value:,}"))
            elif each == 8 and kind == VARINT:
                flags = value
            elif each < 7:
                return _ODD
        key = _STALE if flags & NO_VALUE else context.key(otlp.labels(attributes))
        context.keys[self.body[begin:end]] = key
        contexts.took(end - begin + len(key))
        return key

    def _odd(self, context: Context, data: bytes) -> None:
        point = message(messages.NumberDataPoint, data, f"a point of metric {context.name[:80]!r}")
        kind = point.WhichOneof("value")
        if point.flags & NO_VALUE:
            self.stale += 1
        elif kind is None:
            self.empty += 1
        else:
            self.add(context.key(otlp.labels(point.attributes)), point.time_unix_nano, getattr(point, kind))

    def _why(self) -> str:
        told = []
        if self.deltas:
            told.append(f"{self.deltas:,} points of delta temporality were left out: have the sender count up from its "
                        "start (OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=cumulative)")  # fmt: skip
        if self.empty:
            told.append(f"{self.empty:,} points hold no value")
        if self.exponential:
            told.append(f"of {self.exponential:,} points of exponential histograms only sum and count were kept")
        return "; ".join(told)


def _ms(time_ns: int) -> int:
    return time_ns // 1_000_000


def number(value: float) -> str:
    """A bound or quantile as a label."""
    return "+Inf" if value == float("inf") else repr(value).removesuffix(".0")


def _numbers(body: bytes, starts: Offsets, ends: Offsets) -> tuple[Offsets, Offsets, NDArray[np.float64]]:
    """Where the attributes of points begin that hold times and a value before them (-1 for others), times, values."""
    if len(body) < 18 or not len(starts):
        none = np.full(len(starts), -1)
        return none, none, np.zeros(len(starts))
    octets, words = bytes_of(body), words_of(body)
    last, final = len(octets) - 1, len(words) - 1
    timed = starts + np.where(octets[np.minimum(starts, last)] == 0x11, 9, 0)  # a start time stands before the time
    valued = timed + 9
    kind = octets[np.minimum(valued, last)]
    plain = (valued + 9 <= ends) & (octets[np.minimum(timed, last)] == 0x19) & ((kind == 0x21) | (kind == 0x31))
    raw = words[np.minimum(valued + 1, final)]
    values = np.where(kind == 0x31, raw.view(np.int64).astype(np.float64), raw.view(np.float64))
    times = (words[np.minimum(timed + 1, final)] // np.uint64(1_000_000)).astype(np.int64)
    return np.where(plain, valued + 9, -1), times, values
