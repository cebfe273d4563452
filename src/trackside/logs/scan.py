"""One pass over a log's bytes: whole buffers through the matcher, matching lines to their parsers.

Memory is bounded by the buffer and by :data:`~trackside.catalog.events.MAX_PER_KIND`, whatever the log's size; time is linear in the size.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import zip_longest
from typing import BinaryIO

from trackside.catalog.events import ERRORS, MAX_PER_KIND, OUTCOMES, last_line_of
from trackside.logs.buffers import HEAD_BYTES, overlapping_buffers, read_text
from trackside.logs.counted_lines import counted_lines
from trackside.logs.line import MAX_LINE_BYTES, FileContext, Line, strip_syslog_prefix
from trackside.logs.matcher import Hit, Matcher, matcher
from trackside.logs.own_verdicts import without_verdicts
from trackside.logs.pattern import Parser, Pattern, parsers
from trackside.logs.program_starts import Opening, opening_of
from trackside.logs.stamp import find_time, find_year, has_zone
from trackside.logs.traceback import is_below_traceback
from trackside.model import Event, Plane, Position, Scalar

TAIL_BYTES = 64 << 10
"""Bytes at the end in which the last lines and times are looked for."""
MAX_LAST_LINES = 5
"""Lines at the end that are quoted together: closing brackets and continuations say nothing alone."""
MAX_ALIKE_LINES = 1_000_000
"""Lines that match the same patterns of which each is read; a training that prints every step comes to a tenth."""
SAMPLE = 50
"""Of further ones, one in so many is read."""
MAX_COUNTED_PATTERNS = 8
"""Combinations of patterns that are counted by themselves."""
PROGRESS = "progress"
_WORD = re.compile(r"[^\W\d_]{2}")
_SCHEDULER_LINE = re.compile(r"slurmstepd|^\s*(?:\d+: )?srun: ")
"""Lines that are not the job's own."""
_TIME_OF_DAY = re.compile(
    r"(?!.{0,400}\d%\|)[\[(<]{0,2}(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6},? ){0,2}"
    r"[IWEF]?(?:[\d/.-]{1,10}[ T_,-]{1,2})?[012]?\d:[0-5]\d:[0-5]\d(?![\d:])"
)
"""A line that begins with a time of day; a bar's times are durations."""

EventSink = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class PatternSet:
    """The patterns of a plane, and the parser of each."""

    patterns: tuple[Pattern, ...]
    parsers: tuple[Parser, ...]
    matcher: Matcher


@cache
def pattern_set(plane: Plane, engine: str | None = None) -> PatternSet:
    """The patterns of all parsers of a plane, compiled once. ``engine``: see :func:`trackside.logs.matcher.matcher`."""
    pairs = [(pattern, parser) for parser in parsers() if plane in parser.planes for pattern in parser.patterns]
    patterns = tuple(pattern for pattern, _ in pairs)
    return PatternSet(patterns, tuple(parser for _, parser in pairs), matcher(patterns, engine))


@dataclass(slots=True)
class ScanStats:
    """What a scan shows about the file itself; times in POSIX seconds."""

    lines: int = 0
    bytes: int = 0
    events: int = 0
    dropped: int = 0
    """Events beyond :data:`~trackside.catalog.events.MAX_PER_KIND`."""
    nuls: int = 0
    """NUL bytes in the text."""
    passed_over: int = 0
    """Lines that a pattern matches and that were not read, since so many like them were: see :class:`_Sampling`."""
    defects: dict[str, int] = field(default_factory=dict)
    """Lines on which a parser raised, by parser: only those lines are lost."""
    first_time: float | None = None
    last_time: float | None = None
    zoned: bool = False
    """Whether a timestamp at its beginning or end gives its time zone."""


def scan(stream: BinaryIO, sink: EventSink, context: FileContext, *, engine: str | None = None) -> ScanStats:
    """Read a log to its end and pass its events to ``sink``."""
    compiled = pattern_set(context.plane, engine)
    limit, sampling = _EventLimit(sink), _Sampling()
    opening: Opening | None = None
    stats = ScanStats()
    tail = b""

    def count_nuls(count: int) -> None:
        stats.nuls += count

    for buffer, begin, end, base in overlapping_buffers(read_text(stream, count_nuls, printed=context.plane == "log")):
        buffer = without_verdicts(buffer)
        if stats.bytes == 0:
            learn_context(buffer[:HEAD_BYTES], context, stats)
        number, counted = stats.lines + 1, begin
        for start, stop, indexes in hit_segments(buffer, compiled.matcher.hits(buffer), begin, end):
            number += buffer.count(b"\n", counted, start)
            counted = start
            if number <= context.quoted_until or not sampling.takes(indexes, is_last=end == len(buffer)):
                continue
            line = Line(buffer, start, stop, number, base + start, context)
            for event in parse_line(line, indexes, compiled, stats):
                limit.add(event)
        if stats.bytes == 0 and context.plane == "log":
            opening = opening_of(buffer[:HEAD_BYTES], limit.first_sign)
        if opening is not None:
            for event in opening.repetitions(buffer, begin, end, base, stats.lines + 1, context.path):
                limit.add(event)
        stats.lines += buffer.count(b"\n", begin, end)
        stats.bytes = base + end
        tail = (tail + buffer[max(begin, end - TAIL_BYTES) : end])[-TAIL_BYTES:]
    limit.flush()
    stats.events, stats.dropped, stats.passed_over = limit.count, limit.dropped, sampling.passed_over
    if stats.bytes:
        if (
            context.plane == "log"
            and (loop := counted_lines(tail, stats.bytes - len(tail), stats.lines, context)) is not None
        ):
            sink(loop)
        sink(_activity_event(tail, context, stats, limit.last_error_line))
        stats.lines += not tail.endswith(b"\n")  # the last line may lack its newline
    return stats


def hit_segments(buffer: bytes, hits: list[Hit], begin: int, end: int) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """(start, stop, pattern indices) of each segment that matched and starts in [begin, end)."""
    index, count = 0, len(hits)
    while index < count:
        position = hits[index][0]
        if position <= begin:
            index += 1
            continue
        hit_position = position - 1
        floor = max(begin, hit_position - MAX_LINE_BYTES)
        start = max(buffer.rfind(b"\n", floor, hit_position) + 1, floor)
        start = max(start, buffer.rfind(b"\r", start, hit_position) + 1)
        if start >= end:
            return
        ceiling = min(len(buffer), hit_position + MAX_LINE_BYTES)
        stop = buffer.find(b"\n", hit_position, ceiling)
        stop = ceiling if stop < 0 else stop
        redraw = buffer.find(b"\r", hit_position, stop)
        stop = stop if redraw < 0 else redraw
        indexes = []
        while index < count and hits[index][0] <= max(stop, position):
            if hits[index][1] not in indexes:
                indexes.append(hits[index][1])
            index += 1
        yield start, stop, tuple(sorted(indexes))


def parse_line(line: Line, indexes: tuple[int, ...], compiled: PatternSet, stats: ScanStats) -> Iterator[Event]:
    """Events of one line; ``indexes``: those of the patterns that matched it. Within one parser the first pattern that
    reads the line wins; a generic parser sees only lines in which no parser read progress."""
    reader_ids: set[str] = set()
    has_progress = has_specific_progress = False
    for index in indexes:
        parser = compiled.parsers[index]
        is_read = has_specific_progress if parser.overlaps else has_progress
        if parser.id in reader_ids or (parser.generic and is_read) or (parser.residual and reader_ids):
            continue
        try:
            line.parser = parser.id
            result = compiled.patterns[index].parse(line)
            events = (result,) if isinstance(result, Event) else tuple(result or ())
        except Exception:  # noqa: BLE001 - a parser's defect must not lose the other lines
            stats.defects[parser.id] = stats.defects.get(parser.id, 0) + 1
            continue
        for event in events:
            reader_ids.add(parser.id)
            if event.kind == PROGRESS and not parser.overlaps:
                has_progress, has_specific_progress = True, has_specific_progress or not parser.generic
                if parser.redraws and is_below_traceback(line):
                    event = replace(event, fields={**event.fields, "at_exit": True})
            yield event


class _Sampling:
    """Which of very many lines that match the same patterns are read: the first million, then one in fifty, and all in
    the last buffer, at least AHEAD_BYTES. It bounds the time that a log of gigabytes takes."""

    def __init__(self) -> None:
        self.passed_over = 0
        self._counts: Counter[tuple[int, ...]] = Counter()

    def takes(self, indexes: tuple[int, ...], *, is_last: bool) -> bool:
        """Whether the next line that matches these patterns is read."""
        key = indexes if indexes in self._counts or len(self._counts) < MAX_COUNTED_PATTERNS else ()
        self._counts[key] = count = self._counts[key] + 1
        if count <= MAX_ALIKE_LINES or count % SAMPLE == 0 or is_last:
            return True
        self.passed_over += 1
        return False


class _EventLimit:
    """Passes events on as they come, but of each kind only the first and the last MAX_PER_KIND / 2.

    Progress is never cut here: the trajectory thins itself.
    """

    def __init__(self, sink: EventSink) -> None:
        self._sink, self.count, self.dropped = sink, 0, 0
        self.first_sign: int | None = None
        """Offset of the first event that shows a program at work, or how it ended."""
        self.last_error_line: int | None = None
        """Line of the last event that says that something failed or was stopped."""
        self._counts: Counter[str] = Counter()
        self._last_events: dict[str, list[Event]] = {}

    def add(self, event: Event) -> None:
        """Pass on an event, or keep it as one of the last of its kind."""
        self.count += 1
        self._counts[event.kind] += 1
        if event.kind in ERRORS:
            self.last_error_line = max(last_line_of(event), self.last_error_line or 0)
        if self.first_sign is None and (event.kind in OUTCOMES or event.kind == PROGRESS):
            self.first_sign = event.at.offset
        if event.kind == PROGRESS or self._counts[event.kind] <= MAX_PER_KIND // 2:
            self._sink(event)
            return
        last_events = self._last_events.setdefault(event.kind, [])
        last_events.append(event)
        if len(last_events) >= MAX_PER_KIND:
            self.dropped += MAX_PER_KIND // 2
            del last_events[: MAX_PER_KIND // 2]

    def flush(self) -> None:
        """Pass on the last events of each kind."""
        for last_events in self._last_events.values():
            self.dropped += max(0, len(last_events) - MAX_PER_KIND // 2)
            for event in last_events[-MAX_PER_KIND // 2 :]:
                self._sink(event)


def learn_context(head: bytes, context: FileContext, stats: ScanStats) -> None:
    """Set what the first bytes say about the whole file: prefixes, srun labels, year, first time."""
    context.learn(head)
    text = head.decode("utf-8", "replace")
    context.year = context.year or find_year(text)
    lines = text.splitlines()
    stats.first_time = next(_find_times(lines, context), None)
    stats.zoned = any(map(has_zone, lines))


def _find_times(lines: Iterable[str], context: FileContext) -> Iterator[float]:
    """The times of the lines that have one, POSIX seconds."""
    for line in lines:
        time = find_time(line, context.year)
        if time is not None:
            yield time


def _activity_event(tail: bytes, context: FileContext, stats: ScanStats, last_error_line: int | None) -> Event:
    """The event that says how much the file holds, from when to when, and how it ends; ``tail``: its last bytes."""
    segments = [segment for segment in re.split(rb"[\r\n]", tail) if segment.strip()]
    last = ""
    lines = [
        strip_syslog_prefix(segment) if context.has_syslog_prefix else context.decode_line(segment)
        for segment in segments[: -MAX_LAST_LINES - 1 : -1]
    ]
    for line, before in zip_longest(lines[:MAX_LAST_LINES], lines[1:]):  # a bracket alone says nothing
        last = f"{line.strip()} {last}".rstrip()
        if _WORD.search(last) and not (before is not None and _continues(line, before)):
            break
    texts = [segment.decode("utf-8", "replace") for segment in segments]
    stats.last_time = next(_find_times(reversed(texts), context), stats.first_time)
    number = stats.lines + (0 if tail.endswith(b"\n") else 1)
    own_texts = [
        text for text, raw in zip(texts, segments, strict=True) if not _SCHEDULER_LINE.search(context.decode_line(raw))
    ]
    times = ((count, time) for count, text in enumerate(reversed(own_texts)) if (time := find_time(text, context.year)))
    since_stamp, last_own_time = next(times, (len(own_texts), None))
    unstamped = own_texts[len(own_texts) - since_stamp :]
    stats.zoned = stats.zoned or any(map(has_zone, own_texts))
    fields: dict[str, Scalar] = {
        "first_time": stats.first_time,
        "last_time": stats.last_time,
        "zoned": stats.zoned or None,
        "lines": number,
        "bytes": stats.bytes,
        "last_line": last[:500],
        "last_line_number": number,
        "lines_after_errors": None if last_error_line is None else max(0, number - last_error_line),
        "last_own_time": last_own_time,
        "unread_times": sum(_TIME_OF_DAY.match(text) is not None for text in unstamped) or None,
        "unstamped_lines": since_stamp,
        "truncated": not tail.endswith((b"\n", b"\r")),
    }
    return Event(
        "log_activity",
        Position(context.path, number),
        context.plane,
        text=last[:500],
        time=stats.last_time,
        rank=context.rank,
        node=context.node,
        parser="scan",
        fields={name: value for name, value in fields.items() if value is not None},
    )


def _continues(line: str, before: str) -> bool:
    """Whether a line is indented below the one before it; a redrawn bar or a row of numbers is no continuation."""
    text = line.lstrip()
    return len(line) - len(text) > len(before) - len(before.lstrip()) and not text[:1].isdigit()


def scan_text(text: str | bytes, path: str = "log", **context: object) -> list[Event]:
    """The events of a log in memory; for tests and notebooks."""
    events: list[Event] = []
    data = text.encode() if isinstance(text, str) else text
    scan(io.BytesIO(data), events.append, FileContext(path, **context))  # type: ignore[arg-type]
    return events
