"""The log scan over a growing file: events of its lines, and how far around each line its parser read.

It keeps a window of the file. A line is parsed once the following lines had time to arrive, because many lines only
mean something together with them (a traceback, a bar above a loss). See :mod:`trackside.logs.scan` for complete files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from trackside.logs.buffers import HEAD_BYTES
from trackside.logs.line import FileContext, Line
from trackside.logs.scan import ScanStats, hit_segments, learn_context, parse_line, pattern_set
from trackside.model import Event

MIN_BYTES_BEHIND = 32 << 10
"""Bytes kept before the next line to parse."""
MAX_FIRST, MAX_LAST = 100, 200
"""Of the lines in one call that the same set of patterns hits, only the first and the last are parsed."""


class _TrackedLine(Line):
    """A line that records how far its parser reads."""

    __slots__ = ("high", "low", "root")

    def __init__(self, buffer: bytes, start: int, end: int, number: int, offset: int, context: FileContext) -> None:
        super().__init__(buffer, start, end, number, offset, context)
        self.root, self.low, self.high = self, start, end

    def _neighbor(self, start: int, end: int, number: int) -> Line:
        if self.buffer[end - 1 : end] == b"\r" and end > start:
            end -= 1
        line = _TrackedLine(self.buffer, start, end, number, self.offset + start - self.start, self.context)
        line.parser, line.root = self.parser, self.root
        self.root.low, self.root.high = min(self.root.low, start), max(self.root.high, end)
        return line


class Head:
    """The first bytes of a file, examined again each time their number has doubled."""

    def __init__(self, context: FileContext) -> None:
        self._context, self._bytes, self._examined_bytes, self._is_complete = context, b"", 0, False

    def add(self, data: bytes, offset: int) -> None:
        """Add data that starts at ``offset``."""
        if self._is_complete or offset > len(self._bytes):
            return
        self._bytes += data[len(self._bytes) - offset : HEAD_BYTES - offset]
        if len(self._bytes) >= 2 * self._examined_bytes:
            self._examined_bytes = len(self._bytes)
            learn_context(self._bytes, self._context, ScanStats())
        if len(self._bytes) >= HEAD_BYTES:
            self._bytes, self._is_complete = b"", True


@dataclass(slots=True)
class SegmentEvents:
    """Events of one segment of a line. ``start``, ``stop``: its offsets in the file. ``low``, ``high``: offsets of all
    that its parser read."""

    events: tuple[Event, ...]
    start: int
    stop: int
    low: int
    high: int


@dataclass(slots=True)
class Scanner:
    """Scans one file. ``base``: offset of the window's first byte. ``read``: offset up to which the file is parsed."""

    context: FileContext
    base: int = 0
    read: int = 0
    window: bytes = b""
    lines: int = 0
    """Number of lines parsed."""
    _scanned: ScanStats = field(default_factory=ScanStats)

    @property
    def end(self) -> int:
        """Offset of the end of the window."""
        return self.base + len(self.window)

    def feed(self, data: bytes) -> None:
        """Add complete lines."""
        self.window += data

    def parse(self, end_offset: int) -> Iterator[SegmentEvents]:
        """Parse up to an offset, which must be after a line break or a redraw."""
        start_position, end_position = self.read - self.base, end_offset - self.base
        if end_position <= start_position:
            return
        compiled = pattern_set(self.context.plane)
        hits = [
            (stop + start_position, index)
            for stop, index in compiled.matcher.hits(self.window[start_position:end_position])
        ]
        number, counted_to = self.lines + 1, start_position
        for start, stop, owners in self._select(list(hit_segments(self.window, hits, start_position, end_position))):
            number += self.window.count(b"\n", counted_to, start)
            counted_to = start
            line = _TrackedLine(self.window, start, stop, number, self.base + start, self.context)
            events = tuple(parse_line(line, owners, compiled, self._scanned))
            if events:
                yield SegmentEvents(events, *(self.base + position for position in (start, stop, line.low, line.high)))
        self.lines += self.window.count(b"\n", start_position, end_position)
        self.read = end_offset

    def _select(self, segments_hit: list[tuple[int, int, tuple[int, ...]]]) -> list[tuple[int, int, tuple[int, ...]]]:
        """The segments to parse: of many that the same patterns hit, the first and the last."""
        if len(segments_hit) <= MAX_FIRST + MAX_LAST:
            return segments_hit
        indices: dict[tuple[int, ...], list[int]] = {}
        for index, (_, _, owners) in enumerate(segments_hit):
            indices.setdefault(owners, []).append(index)
        return sorted(
            segments_hit[index] for group in indices.values() for index in {*group[:MAX_FIRST], *group[-MAX_LAST:]}
        )

    def forget(self, offset: int) -> None:
        """Drop the window before an offset, but keep :data:`MIN_BYTES_BEHIND` before the next line to parse."""
        cut = min(offset, self.read - MIN_BYTES_BEHIND) - self.base
        if cut > MIN_BYTES_BEHIND:
            self.window = self.window[cut:]
            self.base += cut


def last_events(data: bytes, context: FileContext, max_lines: int = 16) -> list[Event]:
    """The events of the last meaningful lines in complete lines; used for gauges."""
    compiled = pattern_set(context.plane)
    hits = compiled.matcher.hits(data)
    if not hits:
        return []
    stats = ScanStats()
    last_segments = list(hit_segments(data, hits[-8 * max_lines :], 0, len(data)))[-max_lines:]
    events: list[Event] = []
    for start, stop, owners in last_segments:
        events += parse_line(Line(data, start, stop, 0, start, context), owners, compiled, stats)
    return events
