"""Prometheus remote write, 1.0 and 2.0.

A series' key are its labels as they were sent. Where a chain of samples ends a message, what stands before it is looked
up: if it is a key that was found good once, it is a row of whole labels, and so what follows are samples indeed. Only
new series, and odd ones, are walked through field by field.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from trackside.serve.protocols import symbols
from trackside.serve.protocols.decoded import Answer, MetricBlock, TooLarge, Unsupported
from trackside.serve.protocols.samples import Lookalikes
from trackside.serve.protocols.series_key import Known, labels_of
from trackside.serve.protocols.wire import BYTES, FIXED64, MOST, VARINT, Offsets, fields, signed, split

__all__ = ["answer", "decode", "labels_of", "version_of"]

STALE = 0x7FF0000000000002
"""The bits of the value that says: this series has ended."""
_MESSAGES = {"": 1, "prometheus.WriteRequest": 1, "io.prometheus.write.v2.Request": 2}
_HISTOGRAMS, _EXEMPLARS = {1: 4, 2: 3}, {1: 3, 2: 4}
"""Version -> number of the field within a series."""
_DOUBLE = struct.Struct("<d")
_known = Known()


def version_of(content_type: str) -> int:
    """1 or 2, by the Content-Type of a push; raises Unsupported for what is no remote write."""
    media, *parameters = (part.strip() for part in content_type.split(";"))
    named = dict(part.partition("=")[::2] for part in parameters)
    message = named.get("proto", "").strip('"')
    if media.lower() != "application/x-protobuf" or message not in _MESSAGES:
        raise Unsupported(
            f"Content-Type {content_type[:200]!r}: remote write is application/x-protobuf, with proto=one of "
            f"{', '.join(name for name in _MESSAGES if name)}"
        )
    return _MESSAGES[message]


def answer(block: MetricBlock, version: int, lost: int = 0, why: str = "") -> Answer:
    """What the sender is told once the block is kept, but for ``lost`` samples, and ``why`` these are not.

    Version 2 wants to know how many were written. Samples of names that nobody here asks for count as such: they are
    let go on purpose, and a sender whose request had no others would take "0 written" for a receiver that doesn't
    understand it, and count them as failed.
    """
    unkept = [block.why] if block.why and version > 1 else []
    told = [f"the rest is kept: {why}"] if why else ["all samples were kept"] if unkept else []
    said = "; ".join([*unkept, *told])
    text = "text/plain; charset=utf-8"
    if version == 1:
        return Answer(400, f"{said}\n".encode(), text) if said else Answer()
    headers = {
        "X-Prometheus-Remote-Write-Samples-Written": str(block.received - lost),
        "X-Prometheus-Remote-Write-Histograms-Written": "0",
        "X-Prometheus-Remote-Write-Exemplars-Written": "0",
    }
    # 2xx only where all was kept
    return Answer(400, said.encode(), text, headers) if said else Answer(headers=headers)


def decode(body: bytes, version: int = 1) -> MetricBlock:
    """The samples of a decompressed request. Raises BadRequest."""
    return _first(body) if version == 1 else _second(body)


def _first(body: bytes) -> MetricBlock:
    looks = Lookalikes.of(body)
    starts, ends = looks.messages() or split(body, 0, len(body), 1)[0]
    begins = looks.leading_to(starts, ends)
    get = _known.keys.get
    found = [get(body[start:end]) for start, end in zip(starts.tolist(), begins.tolist(), strict=True)]
    new = [place for place, key in enumerate(found) if key is None] if None in found else []
    for place in new:
        begins[place] = _after_labels(body, int(starts[place]), int(ends[place]))
    rest = _Rest(body, 1)
    first, counts, stops = looks.chains(begins, ends)
    more = {int(place): rest.walk(int(place), stops[place], ends[place]) for place in np.flatnonzero(stops < ends)}
    for place in new:
        raw = body[starts[place] : begins[place]]
        raw += b"".join(body[tag:stop] for tag, kind, _, stop in more.get(place, ()) if kind == BYTES)
        found[place] = get(raw) or _known.judged(raw, raw, place)
    return rest.block([key for key in found if key is not None], looks, first, counts)


def _second(body: bytes) -> MetricBlock:
    looks = Lookalikes.of(body)
    table, starts, ends = symbols.read(body)
    begins = symbols.after_refs(body, starts, ends)
    rest = _Rest(body, 2)
    first, counts, stops = looks.chains(begins, ends)
    stops = symbols.after_metadata(body, stops, ends)
    more = {int(place): rest.walk(int(place), stops[place], ends[place]) for place in np.flatnonzero(stops < ends)}
    return rest.block(table.keys(starts, begins, ends, more), looks, first, counts)


def _after_labels(body: bytes, at: int, end: int) -> int:
    """Where the labels end that a series begins with."""
    begin = at
    while at + 1 < end and body[at] == 0x0A:
        length = body[at + 1]
        at = next(fields(body, at, end))[3] if length >= 0x80 else at + 2 + length
    return at if at <= end else begin  # a label reaches too far: it is told of where fields are read


Label = tuple[int, int, int, int]
"""Of a field 1 of a series: where its tag stands, its kind, its value or where that begins, where it ends."""


@dataclass(slots=True)
class _Rest:
    """What is not in a chain: samples of any other form, and all else that a series holds."""

    body: bytes
    version: int
    series: array[int] = field(default_factory=lambda: array("i"))
    times: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    histograms: int = 0
    exemplars: int = 0

    def walk(self, place: int, at: int, end: int) -> list[Label]:
        """Take all of a series between two places; gives its fields 1."""
        return list(self._walked(place, int(at), int(end)))

    def _walked(self, place: int, at: int, end: int) -> Iterator[Label]:
        for number, kind, value, stop in fields(self.body, at, end):
            if number == 1:
                yield at, kind, value, stop
            elif kind == BYTES and number == 2:
                self._sample(place, value, stop)
            elif kind == BYTES and number == _HISTOGRAMS[self.version]:
                self.histograms += 1
            elif kind == BYTES and number == _EXEMPLARS[self.version]:
                self.exemplars += 1
            at = stop

    def _sample(self, place: int, at: int, end: int) -> None:
        time, value = 0, 0.0
        for number, kind, content, _ in fields(self.body, at, end):
            if number == 1 and kind == FIXED64:
                value = _DOUBLE.unpack_from(self.body, content)[0]
            elif number == 2 and kind == VARINT:
                time = signed(content)
        if len(self.series) >= MOST:
            raise TooLarge(f"more than {MOST:,} samples of a form that nearly none have: send less at once")
        self.series.append(place)
        self.times.append(time)
        self.values.append(value)

    def block(self, keys: list[bytes], looks: Lookalikes, first: Offsets, counts: Offsets) -> MetricBlock:
        """All samples: those of the chains, and these."""
        index = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        times, values = looks.read(first, counts)
        if self.series:
            index = np.concatenate([index, np.frombuffer(self.series, dtype=np.int32)])
            times = np.concatenate([times, np.frombuffer(self.times, dtype=np.int64)])
            values = np.concatenate([values, np.frombuffer(self.values, dtype=np.float64)])
        stale = values.view(np.uint64) == STALE
        ended = int(stale.sum())
        if ended:
            index, times, values = index[~stale], times[~stale], values[~stale]
        return MetricBlock(keys, index, times, values, self.histograms, ended, self.exemplars, self._why())

    def _why(self) -> str:
        told = []
        if self.histograms:
            told.append(f"{self.histograms:,} native histograms were left out: have classic ones scraped")
        if self.exemplars:
            told.append(f"{self.exemplars:,} exemplars were left out: don't send them (send_exemplars: false)")
        return "; ".join(told)
