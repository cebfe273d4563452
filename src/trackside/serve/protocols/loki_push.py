"""Loki's push, as protobuf and as JSON.

Structured metadata of a line is left aside, but for what tells whose line it is: that makes a stream of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from trackside.serve.protocols.decoded import Answer, BadRequest, LineStream, TooLarge, Unsupported
from trackside.serve.protocols.places import is_place
from trackside.serve.protocols.wire import BYTES, VARINT, Offsets, bytes_of, fields, signed, split, words_of

PROTOBUF, JSON = "application/x-protobuf", "application/json"
_MOST_STREAMS = 1 << 14
_MOST_LABELS = 64 << 10
_SECOND = 1_000_000_000
_SECONDS_MASK, _SECONDS = 0x00008080808080FF, 0x0000008080808008
"""Of a 64-bit word: the tag of the seconds, and the ends of a varint of five bytes, as are times of 1978 to 3058."""
_PAIR = re.compile(r'\s*([^\W\d][\w.:-]*)\s*=\s*("(?:[^"\\]|\\.)*"|`[^`]*`)\s*(,|\Z)', re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|(.))", re.DOTALL)
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
Places = tuple[tuple[str, str], ...]


def decode(body: bytes, content_type: str) -> list[LineStream]:
    """The lines of a decompressed request. Raises BadRequest."""
    media = content_type.partition(";")[0].strip().lower()
    if media == JSON:
        return _read_json(body)
    if media in (PROTOBUF, ""):  # protobuf is what Loki takes a push for that doesn't say
        return _read(body)
    raise Unsupported(f"Content-Type {content_type[:200]!r}: a push is {PROTOBUF} (snappy) or {JSON}")


def answer() -> Answer:
    """What the sender is told once all lines are kept."""
    return Answer(204)


class _Split:
    """One stream as it was sent, which is several where lines of it say that they are of other places."""

    def __init__(self, labels: dict[str, str]) -> None:
        self._labels = labels
        self._found: dict[Places, LineStream] = {}

    def add(self, places: Places, times_ns: Sequence[int], lines: Sequence[str]) -> None:
        """Lines of one place."""
        stream = self._found.get(places)
        if stream is None:
            stream = self._found[places] = LineStream({**self._labels, **dict(places)})
        stream.times_ns += times_ns
        stream.lines += lines

    def all(self) -> list[LineStream]:
        """All of them."""
        return list(self._found.values())


# -- labels


@lru_cache(maxsize=1 << 12)
def _selector(text: str) -> tuple[tuple[str, str], ...]:
    inside = text.strip()
    if len(text) > _MOST_LABELS or not (inside.startswith("{") and inside.endswith("}")):
        raise BadRequest(f'labels are not written as {{name="value", ...}}: {text[:200]!r}')
    inside, at, found = inside[1:-1].strip(), 0, {}
    while at < len(inside):
        pair = _PAIR.match(inside, at)
        if pair is None or pair[1] in found:
            raise BadRequest(f"labels can't be read from character {at + 1} on, or one stands twice: {text[:200]!r}")
        found[pair[1]] = pair[2][1:-1] if pair[2][0] == "`" else _ESCAPE.sub(_unescaped, pair[2][1:-1])
        at = pair.end()
    return tuple(found.items())


def _unescaped(found: re.Match[str]) -> str:
    digits = found[1] or found[2] or found[3]
    if digits or found[4]:
        code = int(digits, 16) if digits else int(found[4], 8)
        return chr(code) if code < 0xD800 or 0xDFFF < code < 0x110000 else "\N{REPLACEMENT CHARACTER}"
    return _ESCAPES.get(found[5], found[5])


# -- protobuf


def _read(body: bytes) -> list[LineStream]:
    ((starts, ends),) = split(body, 0, len(body), 1)
    if len(starts) > _MOST_STREAMS:
        raise TooLarge(f"{len(starts):,} streams in one push, at most {_MOST_STREAMS:,} are taken")
    streams: list[tuple[dict[str, str], Offsets, Offsets]] = []
    for place, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        (begins, stops), entries = split(body, start, end, 1, 2)
        text = body[begins[-1] : stops[-1]].decode("utf-8", "replace") if len(begins) else "{}"
        try:
            labels = dict(_selector(text))
        except BadRequest as error:
            raise BadRequest(f"stream {place:,}: {error}") from None
        if len(entries[0]):
            streams.append((labels, *entries))
    if not streams:
        return []
    times, lines, places = _lines(body, *(np.concatenate([each[part] for each in streams]) for part in (1, 2)))
    found, first = [], 0
    for labels, of_stream, _ in streams:
        last = first + len(of_stream)
        split_up = _Split(labels)
        if any(places[first:last]):
            for each in range(first, last):
                split_up.add(places[each], times[each : each + 1], lines[each : each + 1])
        else:
            split_up.add((), times[first:last], lines[first:last])
        found += split_up.all()
        first = last
    return found


def _lines(body: bytes, starts: Offsets, ends: Offsets) -> tuple[list[int], list[str], list[Places]]:
    """Times, lines and places of all entries: those of the usual form all at once."""
    times, begins, stops, plain = _located(body, starts, ends)
    spans = zip(begins.tolist(), stops.tolist(), strict=True)
    lines = [str(body[begin:stop], "utf-8", "replace") for begin, stop in spans]
    known: dict[bytes, Places] = {}
    places: list[Places] = [()] * len(lines)
    for at in np.flatnonzero(~plain | (stops < ends)).tolist():
        rest = body[stops[at] : ends[at]]
        if plain[at] and rest not in known:
            about = _metadata(rest)
            if about is not None:
                known[rest] = about
        if plain[at] and rest in known:
            places[at] = known[rest]
        else:
            times[at], lines[at], places[at] = _entry(body, int(starts[at]), int(ends[at]))
    return times.tolist(), lines, places


def _located(body: bytes, starts: Offsets, ends: Offsets) -> tuple[Offsets, Offsets, Offsets, NDArray[np.bool_]]:
    """Times, and where lines begin and end, of entries that begin with a time and a line; and which ones do."""
    if len(body) < 16:
        return starts.copy(), ends, ends, np.zeros(len(starts), dtype=bool)
    octets, words = bytes_of(body), words_of(body)
    last, final = len(octets) - 1, len(words) - 1
    size = octets[np.minimum(starts + 1, last)].astype(np.int64)
    line = starts + 2 + size
    plain = (octets[np.minimum(starts, last)] == 0x0A) & (size >= 6) & (size <= 12) & (line <= final) & (line < ends)
    line = np.minimum(line, final)
    seconds, nanos = words[np.minimum(starts + 2, final)], words[np.minimum(starts + 8, final)]
    plain &= seconds & _SECONDS_MASK == _SECONDS
    plain &= (size == 6) | ((size > 7) & (nanos & 0xFF == 0x10))
    times = sum(_septet(seconds, place) << 7 * place for place in range(5)) * _SECOND
    rest = np.zeros(len(starts), dtype=np.int64)
    for place in range(5):
        within = place < size - 7
        plain &= ~within | ((nanos >> np.uint64(8 * place + 8) & 0x80 != 0) == (place < size - 8))
        rest += np.where(within, _septet(nanos, place), 0) << 7 * place
    head = words[line]
    wide = head & 0x8000 != 0
    wider = wide & (head & 0x800000 != 0)
    plain &= (head & 0xFF == 0x12) & ~(wider & (head & 0x80000000 != 0)) & (rest < _SECOND)
    length = _septet(head, 0) + (_septet(head, 1) << 7) * wide + (_septet(head, 2) << 14) * wider
    begins = line + 2 + wide + wider
    plain &= begins + length <= ends
    return times + rest, np.where(plain, begins, ends), np.where(plain, begins + length, ends), plain


def _septet(words: NDArray[np.uint64], place: int) -> Offsets:
    """Seven bits of a varint that begins at byte 1 of words."""
    return (words >> np.uint64(8 * place + 8) & np.uint64(0x7F)).astype(np.int64)


def _metadata(rest: bytes) -> Places | None:
    """What fields after the line say of its place; None where they hold a time or a line again."""
    places: list[tuple[str, str]] = []
    for number, kind, begin, stop in fields(rest, 0, len(rest)):
        if number < 3:
            return None
        if number == 3 and kind == BYTES:
            places += _place(rest, begin, stop)
    return tuple(places)


def _place(body: bytes, at: int, end: int) -> Places:
    texts = {1: "", 2: ""}
    for number, kind, begin, stop in fields(body, at, end):
        if kind == BYTES and number in texts:
            texts[number] = body[begin:stop].decode("utf-8", "replace")
    return ((texts[1], texts[2]),) if texts[2] and is_place(texts[1]) else ()


def _entry(body: bytes, at: int, end: int) -> tuple[int, str, Places]:
    """An entry of any form."""
    seconds = nanos = 0
    line = b""
    places: list[tuple[str, str]] = []
    for number, kind, value, stop in fields(body, at, end):
        if kind != BYTES:
            continue
        if number == 1:
            for part, form, content, _ in fields(body, value, stop):
                if form == VARINT and part == 1:
                    seconds = signed(content)
                elif form == VARINT and part == 2:
                    nanos = signed(content)
        elif number == 2:
            line = body[value:stop]
        elif number == 3:
            places += _place(body, value, stop)
    return _time(seconds * _SECOND + nanos), line.decode("utf-8", "replace"), tuple(places)


def _time(time_ns: int) -> int:
    if -(1 << 63) <= time_ns < 1 << 63:
        return time_ns
    raise BadRequest(f"an entry's time lies {time_ns // _SECOND:,} s from 1970: is it in nanoseconds?")


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
            f"no push in JSON: {str(error)[:300]}; it is "
            '{"streams": [{"stream": {"label": "value"}, "values": [["NANOSECONDS", "line"]]}]}'
        ) from None
    except RecursionError:
        raise BadRequest("no push in JSON: lists and objects are too deep in one another") from None
    found: list[LineStream] = []
    for place, each in enumerate(push.streams):
        split_up = _Split(each.stream)
        for at, value in enumerate(each.values):
            match value:
                case [str(time), str(line)]:
                    split_up.add((), (_nanoseconds(time, place, at),), (line,))
                case [str(time), str(line), dict(about)]:
                    places = tuple(pair for pair in about.items() if pair[1] and is_place(pair[0]))
                    split_up.add(places, (_nanoseconds(time, place, at),), (line,))
                case _:
                    raise BadRequest(f'stream {place:,}, value {at:,}: it must be ["NANOSECONDS", "line"]')
        found += split_up.all()
    return found


def _nanoseconds(text: str, place: int, at: int) -> int:
    if not re.fullmatch(r"-?[0-9]{1,20}", text):
        raise BadRequest(f"stream {place:,}, value {at:,}: its time {text[:40]!r} is no number of nanoseconds")
    return _time(int(text))
