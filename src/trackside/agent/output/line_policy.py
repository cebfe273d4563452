"""Which lines of a file are sent: all, only meaningful ones, or only typed events."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from trackside.agent.output.framing import BYTES_PER_LINE, Redraws, split_long, texts
from trackside.agent.output.options import JobOutputOptions, TextPolicy
from trackside.agent.output.scanning import Head, Scanner, SegmentEvents, last_events
from trackside.agent.output.training_metrics import training_metrics
from trackside.agent.rate_limit import RateLimit
from trackside.logs.event_line import format_event, format_pulse
from trackside.logs.line import FileContext
from trackside.model import Event

SETTLE_S = 2.0
"""A line is parsed this long after it was read, so that lines that belong to it have arrived."""
MAX_WAITING_BYTES = 256 << 10
"""With this many bytes after a line there is no need to wait."""
QUIET_S = 10.0
"""A file without new lines for this long is silent: its last lines are sent."""
PULSE_S = 10.0
"""Interval at which a line of a growing file is sent even if it is meaningless, because silence is evidence as well."""
MAX_PROGRESS_LINES = 1000
"""Progress lines sent before they are thinned."""
MAX_EVENT_LINES = 500
"""Lines of each other kind sent before they are thinned."""
MAX_CONTEXT_BYTES = 1 << 20
"""Bytes of a file that are sent before lines are sent without context."""
CONTEXT_BYTES_PER_S = 4 << 10
"""Bytes per second by which :data:`MAX_CONTEXT_BYTES` refills."""
CONTEXT_SIDE_BYTES = 8 << 10
"""Maximum bytes of context on either side of a line."""
BYTES_BEFORE = 32 << 10
"""Maximum bytes before a line that are sent because its parser read them."""
BYTES_AFTER = 32 << 10
"""Maximum bytes after a line that are sent because its parser read them."""

TimedLine = tuple[int, str]
"""POSIX time in nanoseconds, and text."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """How far an earlier agent process read a file. ``read_to``, ``sent_to``: offsets of its policy. ``preceding``:
    the bytes before ``read_to``. ``head``: the first bytes of the file."""

    read_to: int
    sent_to: int
    preceding: bytes
    head: bytes


class Policy(ABC):
    """Decides which lines of one file are sent: it gets all complete lines, and returns those to send."""

    def __init__(self, context: FileContext, options: JobOutputOptions, resume: ResumePoint | None = None) -> None:
        self._options, self._head = options, Head(context)
        self._lines_to_send: list[TimedLine] = []
        self._measurements: dict[str, float] = {}
        if resume is not None:
            self._head.add(resume.head, 0)

    @property
    @abstractmethod
    def read_to(self) -> int:
        """Offset up to which the file was read."""

    @property
    def sent_to(self) -> int:
        """Offset before which all lines are sent or will never be."""
        return self.read_to

    @property
    def end(self) -> int:
        """Offset of the end of the data taken so far."""
        return self.read_to

    @abstractmethod
    def add(self, data: bytes, offset: int, time_ns: int, now: float) -> None:
        """Add complete lines of the file that start at ``offset``. ``time_ns``: when they were read; ``now``: monotonic
        seconds."""
        self._head.add(data, offset)

    def take_lines(self, now: float, quiet_s: float, ended: bool) -> list[TimedLine]:
        """The lines to send, in order. ``quiet_s``: seconds since the file last grew. ``ended``: whether it will not
        grow again."""
        lines, self._lines_to_send = self._lines_to_send, []
        return lines

    def take_measurements(self) -> dict[str, float]:
        """Progress since the last call, by metric."""
        measurements, self._measurements = self._measurements, {}
        return measurements


class AllLines(Policy):
    """Sends every line; redraws of progress bars are thinned."""

    def __init__(self, context: FileContext, options: JobOutputOptions, resume: ResumePoint | None = None) -> None:
        super().__init__(context, options, resume)
        self._read_to, self._context = 0 if resume is None else resume.read_to, context
        self._redraws = Redraws(options.redraw_s)

    @property
    def read_to(self) -> int:
        return self._read_to

    def add(self, data: bytes, offset: int, time_ns: int, now: float) -> None:
        super().add(data, offset, time_ns, now)
        self._lines_to_send += [(time_ns, text) for text in texts(data, self._redraws, now)]
        self._measurements |= training_metrics(last_events(data, self._context))
        self._read_to = offset + len(data)


class _ParsingPolicy(Policy):
    """Common part of ``errors`` and ``none``: lines are parsed a moment after they arrive."""

    def __init__(self, context: FileContext, options: JobOutputOptions, resume: ResumePoint | None = None) -> None:
        super().__init__(context, options, resume)
        read_to, preceding = (0, b"") if resume is None else (resume.read_to, resume.preceding.replace(b"\0", b"\r"))
        self._scanner = Scanner(context, read_to - len(preceding), read_to, preceding)
        self._arrivals: list[tuple[int, int, float]] = []
        """(offset, POSIX time in ns, monotonic time) of data read together."""
        self._progress_limit = RateLimit(1 / options.progress_s, MAX_PROGRESS_LINES)
        self._nonfinite_limit = RateLimit(1 / options.progress_s, MAX_PROGRESS_LINES)
        self._event_limits: dict[str, RateLimit] = {}
        self._last_sent = -math.inf

    @property
    def read_to(self) -> int:
        return self._scanner.read

    @property
    def end(self) -> int:
        return self._scanner.end

    def add(self, data: bytes, offset: int, time_ns: int, now: float) -> None:
        super().add(data, offset, time_ns, now)
        self._arrivals.append((offset, time_ns, now))
        self._scanner.feed(data)

    def take_lines(self, now: float, quiet_s: float, ended: bool) -> list[TimedLine]:
        end = self._settled_offset(now, quiet_s, ended)
        if end > self._scanner.read:
            start = self._scanner.read
            segments: list[tuple[SegmentEvents, bool]] = []
            for segment in self._scanner.parse(end):
                self._measurements |= training_metrics(segment.events)
                segments.append((segment, any(self._is_sent(event, now) for event in segment.events)))
            self._select_lines(segments, start, end, now, ended or quiet_s >= SETTLE_S)
        if ended or quiet_s >= QUIET_S:
            self._on_silence(now)
        self._forget_parsed()
        return super().take_lines(now, quiet_s, ended)

    def _settled_offset(self, now: float, quiet_s: float, ended: bool) -> int:
        scanner = self._scanner
        if ended or quiet_s >= SETTLE_S:
            return scanner.end
        settled = scanner.end
        for offset, _, arrival_s in reversed(self._arrivals):
            if now - arrival_s >= SETTLE_S:
                break
            settled = offset
        if scanner.end - scanner.read > MAX_WAITING_BYTES:
            cut = scanner.window.rfind(b"\n", scanner.read - scanner.base, len(scanner.window) - MAX_WAITING_BYTES) + 1
            settled = max(settled, scanner.base + cut)
        return settled

    def _is_sent(self, event: Event, now: float) -> bool:
        refill = event.at.length / BYTES_PER_LINE
        if event.kind != "progress":
            limit = self._event_limits.get(event.kind)
            if limit is None:
                limit = self._event_limits[event.kind] = RateLimit(1 / self._options.progress_s, MAX_EVENT_LINES)
            return limit.take(1, now, refill) > 0
        is_nonfinite = any(isinstance(value, float) and not math.isfinite(value) for value in event.fields.values())
        return self._progress_limit.take(1, now, refill) > 0 or (
            is_nonfinite and self._nonfinite_limit.take(1, now) > 0
        )

    def _time(self, offset: int) -> int:
        index = bisect_right(self._arrivals, offset, key=lambda arrival: arrival[0]) - 1
        return self._arrivals[max(index, 0)][1] if self._arrivals else 0

    def _forget_parsed(self) -> None:
        self._scanner.forget(self._scanner.read)
        while len(self._arrivals) > 1 and self._arrivals[1][0] <= self._scanner.base:
            del self._arrivals[0]

    @abstractmethod
    def _select_lines(
        self, segments: list[tuple[SegmentEvents, bool]], start: int, end: int, now: float, is_silent: bool
    ) -> None:
        """Decide which lines between two offsets are sent."""

    @abstractmethod
    def _on_silence(self, now: float) -> None:
        """Called when no more lines have come for a while."""


class ErrorLines(_ParsingPolicy):
    """Sends meaningful lines with the lines that their parser read and some context; the first and last lines of the
    file; the first thousand progress lines, then at most one per ``progress_s`` seconds; and up to a thousand progress
    lines with non-finite values."""

    def __init__(self, context: FileContext, options: JobOutputOptions, resume: ResumePoint | None = None) -> None:
        super().__init__(context, options, resume)
        self._sent_to, self._head_lines = 0, options.head_lines
        if resume is not None:  # lines read by an earlier agent process may still have to be sent
            self._sent_to = max(self._scanner.base, min(resume.sent_to, resume.read_to))
            self._head_lines -= min(self._head_lines, resume.head[: resume.read_to].count(b"\n"))
        self._context_bytes, self._refilled_at = float(MAX_CONTEXT_BYTES), 0.0
        """Bytes of context that may still be sent, and the time of the last refill."""
        self._context_end = 0
        """Offset up to which lines are context of lines sent before."""
        self._context_lines = 0
        """Number of further lines that are context of lines sent before."""

    @property
    def sent_to(self) -> int:
        return self._sent_to

    def _select_lines(
        self, segments: list[tuple[SegmentEvents, bool]], start: int, end: int, now: float, is_silent: bool
    ) -> None:
        spans = [self._context_span(start, end)]
        count = self._options.context_lines
        for segment, is_sent in segments:
            if not is_sent:
                continue
            if all(event.kind == "progress" for event in segment.events):
                stop = self._end_of(min(max(segment.stop, segment.high), segment.stop + CONTEXT_SIDE_BYTES))
                spans.append((max(segment.low, segment.start - CONTEXT_SIDE_BYTES), min(stop, end)))
                self._context_end = max(self._context_end, stop if stop > end else 0)
                continue
            low, high, context_lines = segment.start, segment.stop, 0
            if self._has_context_bytes(now):
                low, high, context_lines = (
                    max(segment.low, low - BYTES_BEFORE),
                    min(segment.high, high + BYTES_AFTER),
                    count,
                )
            last = self._after(high, context_lines)
            spans.append((self._before(low, context_lines), min(last, end)))
            if last > end:
                self._context_end = max(self._context_end, last)
            elif last == self._scanner.end:  # more context lines are still to come
                self._context_lines = max(self._context_lines, context_lines)
        for first, last in sorted(spans):
            self._send(first, last, now)
        if now - self._last_sent >= PULSE_S and not is_silent:
            self._send_sample(end, now)

    def _send_sample(self, end: int, now: float) -> None:
        """Send one of many meaningless lines: before the last ``tail_lines``, so that these can still be sent later,
        unless that line is old."""
        offset = self._before(end - 1, self._options.tail_lines)
        if offset < self._sent_to or self._time(offset) < self._time(end - 1) - PULSE_S * 1e9:
            offset = self._before(end - 1, 0)
        self._send(offset, self._after(offset + 1, 0), now)

    def _has_context_bytes(self, now: float) -> bool:
        self._context_bytes = min(
            MAX_CONTEXT_BYTES, self._context_bytes + CONTEXT_BYTES_PER_S * max(0.0, now - self._refilled_at)
        )
        self._refilled_at = now
        return self._context_bytes > 0

    def _context_span(self, start: int, end: int) -> tuple[int, int]:
        """The lines to send because they are context of earlier lines, or the first lines of the file."""
        last = max(start, min(self._context_end, end))
        lines = max(self._head_lines, self._context_lines)
        if lines:
            window, base = self._scanner.window, self._scanner.base
            position, count = start - base, 0
            while count < lines and (newline := window.find(b"\n", position, end - base)) >= 0:
                position, count = newline + 1, count + 1
            self._head_lines, self._context_lines = (
                max(0, self._head_lines - count),
                max(0, self._context_lines - count),
            )
            last = max(last, base + position if count == lines else end)
        return start, last

    def _on_silence(self, now: float) -> None:
        end = self._scanner.read
        if end > self._sent_to and self._options.tail_lines:
            self._send(self._before(end - 1, self._options.tail_lines - 1, BYTES_BEFORE), end, now)

    def _end_of(self, offset: int) -> int:
        """The offset after the line break if the segment is the last of its line, else the offset."""
        window, position = self._scanner.window, offset - self._scanner.base
        end = position + (window[position : position + 1] == b"\r")
        return self._scanner.base + (end + 1 if window[end : end + 1] == b"\n" else position)

    def _before(self, offset: int, lines: int, span: int = CONTEXT_SIDE_BYTES) -> int:
        """The start of the line that holds an offset, or of the line ``lines`` further up."""
        window, base = self._scanner.window, self._scanner.base
        position = offset - base
        floor = max(0, position - span)
        for _ in range(lines + 1):
            line_start = window.rfind(b"\n", floor, position) + 1 or floor
            if line_start == floor:
                return base + floor
            position = line_start - 1
        return base + line_start

    def _after(self, offset: int, lines: int) -> int:
        """The end of the line that holds an offset, or of the line ``lines`` further down, as far as the file is
        read."""
        window, base = self._scanner.window, self._scanner.base
        position = max(0, offset - base - 1)
        ceiling = min(len(window), position + CONTEXT_SIDE_BYTES)
        for _ in range(lines + 1):
            newline = window.find(b"\n", position, ceiling)
            if newline < 0:
                return base + ceiling
            position = newline + 1
        return base + position

    def _send(self, start: int, end: int, now: float) -> None:
        """Send the lines of a part of the file, without those sent before."""
        start = max(start, self._sent_to, self._scanner.base)
        if end <= start:
            return
        self._sent_to, self._last_sent = end, now
        self._context_bytes -= end - start
        offset = start
        for line in self._scanner.window[start - self._scanner.base : end - self._scanner.base].split(b"\n"):
            time_ns = self._time(offset)
            if offset < end:
                for part in _visible_parts(line):
                    self._lines_to_send += [(time_ns, chunk.decode("utf-8", "replace")) for chunk in split_long(part)]
            offset += len(line) + 1


def _visible_parts(line: bytes) -> list[bytes]:
    text = line.removesuffix(b"\r")
    return [part for part in text.split(b"\r") if part and not part.isspace()] if b"\r" in text else [text]


class EventLines(_ParsingPolicy):
    """Sends no lines of the file, only typed events, one line each; see :mod:`trackside.logs.event_line`."""

    def __init__(self, context: FileContext, options: JobOutputOptions, resume: ResumePoint | None = None) -> None:
        super().__init__(context, options, resume)
        self._latest: dict[str, tuple[int, Event]] = {}
        """Kind -> the last event, if it was not sent."""
        self._pulse_offset = -1
        """Offset at the last pulse."""

    def _select_lines(
        self, segments: list[tuple[SegmentEvents, bool]], start: int, end: int, now: float, is_silent: bool
    ) -> None:
        for segment, is_sent in segments:
            time_ns = self._time(segment.start)
            for event in segment.events:
                if is_sent:
                    self._lines_to_send.append((time_ns, format_event(event)))
                    self._latest.pop(event.kind, None)
                else:
                    self._latest[event.kind] = time_ns, event
        if now - self._last_sent >= PULSE_S:
            self._send_pulse(end, now)

    def _on_silence(self, now: float) -> None:
        for time_ns, event in sorted(self._latest.values(), key=lambda entry: entry[0]):
            self._lines_to_send.append((time_ns, format_event(event)))
        self._latest.clear()
        self._send_pulse(self._scanner.read, now)

    def _send_pulse(self, end: int, now: float) -> None:
        if end > self._pulse_offset and end:
            self._pulse_offset, self._last_sent = end, now
            self._lines_to_send.append((self._time(end - 1), format_pulse(self._scanner.lines, end)))


POLICIES: Mapping[TextPolicy, type[Policy]] = {"all": AllLines, "errors": ErrorLines, "none": EventLines}
"""Policy by the value of option ``text``."""
