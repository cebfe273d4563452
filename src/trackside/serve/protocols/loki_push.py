"""Loki's push, as protobuf and as JSON.

Structured metadata of a line is ignored, except for what identifies its stream, such as a node or a rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec

from trackside.serve.protocols.decoded import (
    BadRequest,
    LineStreams,
    PushAnswer,
    PushTooLarge,
    UnsupportedMedia,
    identifies_stream,
)
from trackside.serve.protocols.messages import MessageShape, parse_messages
from trackside.serve.protocols.schema import PushRequest
from trackside.stores.receiver.pending import LineStream

PROTOBUF, JSON = "application/x-protobuf", "application/json"
_MAX_STREAMS = 1 << 14
_MAX_LABELS_BYTES = 64 << 10
_MAX_ENTRY_BYTES = 4 << 20
"""Bytes of one line with its metadata; later a line is cut to serve.limits.line_bytes."""
_SECOND = 1_000_000_000
_SHAPE: MessageShape = {1: {2: {}}}
_PAIR = re.compile(r'\s*([^\W\d][\w.:-]*)\s*=\s*("(?:[^"\\]|\\.)*"|`[^`]*`)\s*(,|\Z)', re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|(.))", re.DOTALL)
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
Places = tuple[tuple[str, str], ...]


def decode(body: bytes, content_type: str) -> list[LineStream]:
    """The lines of a decompressed request. Raises BadRequest."""
    media = content_type.partition(";")[0].strip().lower()
    if media == JSON:
        return _read_json(body)
    if media == PROTOBUF:  # not without a Content-Type, as Loki does: any web page may send such a body
        return _read(body)
    raise UnsupportedMedia(f"Content-Type {content_type[:200]!r}: a push is {PROTOBUF} (snappy) or {JSON}")


def answer(reason: str = "") -> PushAnswer:
    """The response once the lines are stored. ``reason``: why some were rejected; the sender must not retry those."""
    return (
        PushAnswer(400, f"the rest was stored: {reason}\n".encode(), "text/plain; charset=utf-8")
        if reason
        else PushAnswer()
    )


# -- labels


@lru_cache(maxsize=1 << 12)
def _parse_labels(text: str) -> tuple[tuple[str, str], ...]:
    inside = text.strip()
    if len(text) > _MAX_LABELS_BYTES or not (inside.startswith("{") and inside.endswith("}")):
        raise BadRequest(f'labels are not written as {{name="value", ...}}: {text[:200]!r}')
    inside, offset, labels = inside[1:-1].strip(), 0, dict[str, str]()
    while offset < len(inside):
        pair = _PAIR.match(inside, offset)
        if pair is None or pair[1] in labels:
            raise BadRequest(
                f"labels cannot be read from character {offset + 1} on, or one is repeated: {text[:200]!r}"
            )
        labels[pair[1]] = pair[2][1:-1] if pair[2][0] == "`" else _ESCAPE.sub(_unescape, pair[2][1:-1])
        offset = pair.end()
    return tuple(labels.items())


def _unescape(match: re.Match[str]) -> str:
    digits = match[1] or match[2] or match[3]
    if digits or match[4]:
        code = int(digits, 16) if digits else int(match[4], 8)
        return chr(code) if code < 0xD800 or 0xDFFF < code < 0x110000 else "\N{REPLACEMENT CHARACTER}"
    return _ESCAPES.get(match[5], match[5])


# -- protobuf


def _read(body: bytes) -> list[LineStream]:
    streams, count = LineStreams(), 0
    for push in parse_messages(PushRequest, body, _SHAPE, _MAX_ENTRY_BYTES):
        for index, stream_message in enumerate(push.streams, count):
            try:
                labels = dict(_parse_labels(_text(stream_message.labels) or "{}"))
            except BadRequest as error:
                raise BadRequest(f"stream {index:,}: {error}") from None
            _add_entries(streams, labels, stream_message.entries)
        count += len(push.streams)
        if count > _MAX_STREAMS:
            raise PushTooLarge(f"{count:,} streams in one push, but at most {_MAX_STREAMS:,} are accepted")
        streams.check_count()
    return streams.with_content()


def _add_entries(streams: LineStreams, labels: dict[str, str], entries: Iterable[Any]) -> None:
    by_places: dict[Places, LineStream] = {(): streams.of_labels(labels)}
    for entry in entries:
        timestamp, metadata = entry.timestamp, entry.metadata
        places = _places(metadata) if metadata else ()
        stream = by_places.get(places)
        if stream is None:
            stream = by_places[places] = streams.of_labels(labels | dict(places))
        stream.times_ns.append(_check_time(timestamp.seconds * _SECOND + timestamp.nanos))
        stream.lines.append(entry.line.decode("utf-8", "replace"))


def _places(metadata: Iterable[Any]) -> Places:
    pairs = [(_text(pair.name), _text(pair.value)) for pair in metadata]
    return tuple([(name, value) for name, value in pairs if value and identifies_stream(name)])


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _check_time(time_ns: int) -> int:
    if -(1 << 63) <= time_ns < 1 << 63:
        return time_ns
    raise BadRequest(f"an entry's time is {time_ns // _SECOND:,} s from 1970: is it in nanoseconds?")


# -- JSON


class _Stream(msgspec.Struct, gc=False):
    stream: dict[str, str] = {}
    values: list[list[str | dict[str, str]]] = []


class _Push(msgspec.Struct, gc=False):
    streams: list[_Stream]


def _read_json(body: bytes) -> list[LineStream]:
    try:
        push = msgspec.json.decode(body, type=_Push)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(
            f"not a push in JSON: {str(error)[:300]}; expected "
            '{"streams": [{"stream": {"label": "value"}, "values": [["NANOSECONDS", "line"]]}]}'
        ) from None
    except RecursionError:
        raise BadRequest("not a push in JSON: lists and objects are nested too deep") from None
    streams = LineStreams()
    for index, stream_message in enumerate(push.streams):
        by_places: dict[Places, LineStream] = {(): streams.of_labels(stream_message.stream)}
        for position, value in enumerate(stream_message.values):
            match value:
                case [str(time), str(line)]:
                    places: Places = ()
                case [str(time), str(line), dict(metadata)]:
                    places = tuple(pair for pair in metadata.items() if pair[1] and identifies_stream(pair[0]))
                case _:
                    raise BadRequest(f'stream {index:,}, value {position:,}: it must be ["NANOSECONDS", "line"]')
            stream = by_places.get(places)
            if stream is None:
                stream = by_places[places] = streams.of_labels(stream_message.stream | dict(places))
            stream.times_ns.append(_nanoseconds(time, index, position))
            stream.lines.append(line)
    return streams.with_content()


def _nanoseconds(text: str, index: int, position: int) -> int:
    if not re.fullmatch(r"-?[0-9]{1,20}", text):
        raise BadRequest(f"stream {index:,}, value {position:,}: its time {text[:40]!r} is not a number of nanoseconds")
    return _check_time(int(text))
