"""One pass over a log's bytes: whole buffers through the matcher, hit lines to their parsers.

Memory is bounded by the buffer and by :data:`KEPT_PER_KIND`, whatever the log's size; time is linear in it.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import BinaryIO

from trackside.logs.line import MAX_LINE, Line, Scratch, as_written, has_srun_labels
from trackside.logs.matcher import Hit, Matcher, matcher
from trackside.logs.pattern import Parser, Pattern, parsers
from trackside.logs.stamp import find_time, find_year
from trackside.model import Event, Plane, Position, Scalar

CHUNK = 8 << 20
BEHIND = 64 << 10
"""Bytes kept before a line, for :meth:`Line.preceding`."""
AHEAD = 256 << 10
"""Bytes that must be there after a line, for :meth:`Line.following`."""
KEPT_PER_KIND = 2_000
"""Events of one kind kept from one file: the first half and, as they pass, the last half."""
PROGRESS = "progress"

Sink = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Rules:
    """The patterns in force for a plane, and who parses each."""

    patterns: tuple[Pattern, ...]
    owners: tuple[Parser, ...]
    matcher: Matcher


@cache
def rules(plane: Plane, engine: str | None = None) -> Rules:
    """Compile the patterns of all parsers of a plane, once."""
    pairs = [(pattern, parser) for parser in parsers() if plane in parser.planes for pattern in parser.patterns]
    patterns = tuple(pattern for pattern, _ in pairs)
    return Rules(patterns, tuple(parser for _, parser in pairs), matcher(patterns, engine))


@dataclass(slots=True)
class Scanned:
    """What a scan can say of the file itself."""

    lines: int = 0
    bytes: int = 0
    events: int = 0
    dropped: int = 0
    """Events beyond :data:`KEPT_PER_KIND`."""
    nuls: int = 0
    """NUL bytes in the text."""
    defects: dict[str, int] = field(default_factory=dict)
    """Lines that a parser failed on, by parser: they cost nothing but themselves."""
    first_time: float | None = None
    last_time: float | None = None


def scan(stream: BinaryIO, sink: Sink, scratch: Scratch, *, engine: str | None = None) -> Scanned:
    """Read a log to its end and hand its events to ``sink``."""
    compiled = rules(scratch.plane, engine)
    keep = _Kept(sink)
    done = Scanned()
    tail = b""
    for buffer, begin, end, base in _buffers(stream, done):
        if done.bytes == 0:
            learn(buffer[: 64 << 10], scratch, done)
        number, counted = done.lines + 1, begin
        for start, stop, owners in segments(buffer, compiled.matcher.hits(buffer), begin, end):
            number += buffer.count(b"\n", counted, start)
            counted = start
            line = Line(buffer, start, stop, number, base + start, scratch)
            for event in parsed(line, owners, compiled, done):
                keep.add(event)
        done.lines += buffer.count(b"\n", begin, end)
        done.bytes = base + end
        tail = buffer[max(0, end - BEHIND) : end]
    keep.flush()
    done.events, done.dropped = keep.seen, keep.dropped
    if done.bytes:
        sink(_activity(tail, scratch, done))
    return done


def _buffers(stream: BinaryIO, done: Scanned) -> Iterator[tuple[bytes, int, int, int]]:
    """(buffer, first byte to judge, end of what to judge, file offset of the buffer's start).

    Each byte is judged once, with BEHIND bytes before and AHEAD bytes after it in the buffer. NUL bytes
    (the holes that a crashed node leaves) end a segment as a redraw does: offsets and line numbers stay.
    """
    carry, begin, base = b"", 0, 0
    while True:
        chunk = stream.read(CHUNK)
        if b"\0" in chunk:
            done.nuls += chunk.count(b"\0")
            chunk = chunk.replace(b"\0", b"\r")
        buffer = carry + chunk if carry else chunk
        if not chunk:
            if begin < len(buffer):
                yield buffer, begin, len(buffer), base
            return
        end = len(buffer) - AHEAD
        if end <= begin:
            carry = buffer
            continue
        end = buffer.rfind(b"\n", begin, end) + 1 or end
        yield buffer, begin, end, base
        cut = max(0, end - BEHIND)
        carry, begin, base = buffer[cut:], end - cut, base + cut


def segments(buffer: bytes, hits: list[Hit], begin: int, end: int) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """(start, stop, pattern indices) of each segment that was hit and starts in [begin, end)."""
    index, count = 0, len(hits)
    while index < count:
        position = hits[index][0]
        if position <= begin:
            index += 1
            continue
        inside = position - 1
        floor = max(begin, inside - MAX_LINE)
        start = max(buffer.rfind(b"\n", floor, inside) + 1, floor)
        start = max(start, buffer.rfind(b"\r", start, inside) + 1)
        if start >= end:
            return
        ceiling = min(len(buffer), inside + MAX_LINE)
        stop = buffer.find(b"\n", inside, ceiling)
        stop = ceiling if stop < 0 else stop
        redraw = buffer.find(b"\r", inside, stop)
        stop = stop if redraw < 0 else redraw
        owners = []
        while index < count and hits[index][0] <= max(stop, position):
            if hits[index][1] not in owners:
                owners.append(hits[index][1])
            index += 1
        yield start, stop, tuple(sorted(owners))


def parsed(line: Line, owners: tuple[int, ...], compiled: Rules, done: Scanned) -> Iterator[Event]:
    """Events of one line. Within one parser the first pattern that reads the line wins; a generic
    parser sees only lines of which nobody has read progress."""
    claimed: set[str] = set()
    progressed = False
    for index in owners:
        parser = compiled.owners[index]
        if parser.id in claimed or (parser.generic and progressed):
            continue
        try:
            line.parser = parser.id
            result = compiled.patterns[index].parse(line)
            found = (result,) if isinstance(result, Event) else tuple(result or ())
        except Exception:  # noqa: BLE001 - a parser's defect must not cost the other lines
            done.defects[parser.id] = done.defects.get(parser.id, 0) + 1
            continue
        for event in found:
            claimed.add(parser.id)
            progressed = progressed or event.kind == PROGRESS
            yield event


class _Kept:
    """Passes events on as they come, but of each kind only the first and the last KEPT_PER_KIND / 2.

    Progress is never cut here: the trajectory thins itself.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink, self.seen, self.dropped = sink, 0, 0
        self._counts: Counter[str] = Counter()
        self._late: dict[str, list[Event]] = {}

    def add(self, event: Event) -> None:
        self.seen += 1
        self._counts[event.kind] += 1
        if event.kind == PROGRESS or self._counts[event.kind] <= KEPT_PER_KIND // 2:
            self._sink(event)
            return
        late = self._late.setdefault(event.kind, [])
        late.append(event)
        if len(late) >= KEPT_PER_KIND:
            self.dropped += KEPT_PER_KIND // 2
            del late[: KEPT_PER_KIND // 2]

    def flush(self) -> None:
        for late in self._late.values():
            self.dropped += max(0, len(late) - KEPT_PER_KIND // 2)
            for event in late[-KEPT_PER_KIND // 2 :]:
                self._sink(event)


def learn(head: bytes, scratch: Scratch, done: Scanned) -> None:
    """What the first bytes say of the whole file: labels, year, first time."""
    scratch.srun_labels = scratch.srun_labels or has_srun_labels(head)
    text = head.decode("utf-8", "replace")
    scratch.year = scratch.year or find_year(text)
    done.first_time = next(_times(text.splitlines(), scratch), None)


def _times(lines: Iterable[str], scratch: Scratch) -> Iterator[float]:
    for line in lines:
        time = find_time(line, scratch.year)
        if time is not None:
            yield time


def _activity(tail: bytes, scratch: Scratch, done: Scanned) -> Event:
    segments = [part for part in re.split(rb"[\r\n]", tail) if part.strip()]
    last = as_written(segments[-1], scratch.headed).strip() if segments else ""
    done.last_time = next(_times((s.decode("utf-8", "replace") for s in reversed(segments)), scratch), done.first_time)
    number = done.lines + (0 if tail.endswith(b"\n") else 1)
    fields: dict[str, Scalar] = {
        "first_time": done.first_time,
        "last_time": done.last_time,
        "lines": number,
        "bytes": done.bytes,
        "last_line": last[:500],
        "last_line_number": number,
        "truncated": not tail.endswith((b"\n", b"\r")),
    }
    return Event(
        "log_activity",
        Position(scratch.path, number),
        scratch.plane,
        text=last[:500],
        time=done.last_time,
        rank=scratch.rank,
        node=scratch.node,
        parser="scan",
        fields={name: value for name, value in fields.items() if value is not None},
    )


def scan_text(text: str | bytes, path: str = "log", **scratch: object) -> list[Event]:
    """The events of a log held in memory; for tests and notebooks."""
    found: list[Event] = []
    data = text.encode() if isinstance(text, str) else text
    scan(io.BytesIO(data), found.append, Scratch(path, **scratch))  # type: ignore[arg-type]
    return found
