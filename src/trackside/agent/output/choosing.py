"""Which lines of a file leave the node: all, those that say something, or none but what they mean."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from trackside.agent.output.framing import Allowance, Redraws, pieces, texts
from trackside.agent.output.measures import measures
from trackside.agent.output.options import JobOutputOptions, Text
from trackside.agent.output.scanning import Head, Meaning, Scanner, last_meanings
from trackside.logs.event_line import format_event, format_pulse
from trackside.logs.line import FileContext
from trackside.model import Event

SETTLE_S = 2.0
"""So long after it came a line is read: what belongs to it is there by then."""
AHEAD = 256 << 10
"""Bytes after a line that make waiting needless."""
QUIET_S = 10.0
"""So long after its last line a file counts as silent: its last lines are sent."""
PULSE_S = 10.0
"""At least so often a line is sent of a file that grows, whatever it says: silence is evidence, too."""
POINTS = 1000
"""Lines of progress that are sent before they are thinned."""
EVENTS = 500
"""Lines of any other kind."""
ROOM = 1 << 20
"""Bytes of a file that are sent, until lines go without those around them;"""
ROOM_PER_S = 4 << 10
"""so many more are every second."""
SPAN = 8 << 10
"""Bytes of context on either side, most of them."""
BEFORE = 32 << 10
"""Bytes before a line that its parser may be followed to,"""
AFTER = 32 << 10
"""and after it."""

Sent = tuple[int, str]
"""Time in POSIX nanoseconds, and text."""


@dataclass(frozen=True, slots=True)
class Before:
    """How far a file was read by an agent before: ``done`` and ``sent`` as its policy had them, the bytes ``near``
    before that, and the file's first as ``head``."""

    done: int
    sent: int
    near: bytes
    head: bytes


class Policy(ABC):
    """Takes what is complete of one file, and gives what is sent of it."""

    def __init__(self, context: FileContext, options: JobOutputOptions, before: Before | None = None) -> None:
        self._options, self._head = options, Head(context)
        self._sent: list[Sent] = []
        self._figures: dict[str, float] = {}
        if before is not None:
            self._head.add(before.head, 0)

    @property
    @abstractmethod
    def done(self) -> int:
        """Up to where the file was read,"""

    @property
    def sent(self) -> int:
        """and before where all of it is sent, or never will be."""
        return self.done

    @property
    def end(self) -> int:
        """Where what it was given ends."""
        return self.done

    @abstractmethod
    def take(self, data: bytes, offset: int, time_ns: int, now: float) -> None:
        """Complete lines of the file from ``offset`` on, read at that time; ``now`` is of a steady clock."""
        self._head.add(data, offset)

    def give(self, now: float, quiet_s: float, ended: bool) -> list[Sent]:
        """What is to be sent, in order. ``quiet_s``: since the file last grew; ``ended``: it won't any more."""
        sent, self._sent = self._sent, []
        return sent

    def measured(self) -> dict[str, float]:
        """Progress since this was last asked, by metric."""
        found, self._figures = self._figures, {}
        return found


class All(Policy):
    """Every line. The states of a bar are thinned."""

    def __init__(self, context: FileContext, options: JobOutputOptions, before: Before | None = None) -> None:
        super().__init__(context, options, before)
        self._done, self._context = 0 if before is None else before.done, context
        self._redraws = Redraws(options.redraw_s)

    @property
    def done(self) -> int:
        return self._done

    def take(self, data: bytes, offset: int, time_ns: int, now: float) -> None:
        super().take(data, offset, time_ns, now)
        self._sent += [(time_ns, text) for text in texts(data, self._redraws, now)]
        self._figures |= measures(last_meanings(data, self._context))
        self._done = offset + len(data)


class _Reading(Policy):
    """What ``errors`` and ``none`` share: lines are read for what they mean, a moment after they came."""

    def __init__(self, context: FileContext, options: JobOutputOptions, before: Before | None = None) -> None:
        super().__init__(context, options, before)
        done, near = (0, b"") if before is None else (before.done, before.near.replace(b"\0", b"\r"))
        self._scanner = Scanner(context, done - len(near), done, near)
        self._came: list[tuple[int, int, float]] = []
        """(place in the file, time, steady time) of what came together."""
        self._points = Allowance(POINTS, options.progress_s)
        self._odd = Allowance(POINTS, options.progress_s)
        self._events: dict[str, Allowance] = {}
        self._pulsed = -math.inf

    @property
    def done(self) -> int:
        return self._scanner.read

    @property
    def end(self) -> int:
        return self._scanner.end

    def take(self, data: bytes, offset: int, time_ns: int, now: float) -> None:
        super().take(data, offset, time_ns, now)
        self._came.append((offset, time_ns, now))
        self._scanner.feed(data)

    def give(self, now: float, quiet_s: float, ended: bool) -> list[Sent]:
        upto = self._settled(now, quiet_s, ended)
        if upto > self._scanner.read:
            begin = self._scanner.read
            found: list[tuple[Meaning, bool]] = []
            for meaning in self._scanner.judge(upto):
                self._figures |= measures(meaning.events)
                found.append((meaning, any(self._is_wanted(event, now) for event in meaning.events)))
            self._read(found, begin, upto, now, ended or quiet_s >= SETTLE_S)
        if ended or quiet_s >= QUIET_S:
            self._silent(now)
        self._forget()
        return super().give(now, quiet_s, ended)

    def _settled(self, now: float, quiet_s: float, ended: bool) -> int:
        scanner = self._scanner
        if ended or quiet_s >= SETTLE_S:
            return scanner.end
        upto = scanner.end
        for offset, _, came in reversed(self._came):
            if now - came >= SETTLE_S:
                break
            upto = offset
        if scanner.end - scanner.read > AHEAD:
            cut = scanner.window.rfind(b"\n", scanner.read - scanner.base, len(scanner.window) - AHEAD) + 1
            upto = max(upto, scanner.base + cut)
        return upto

    def _is_wanted(self, event: Event, now: float) -> bool:
        if event.kind != "progress":
            allowance = self._events.get(event.kind)
            if allowance is None:
                allowance = self._events[event.kind] = Allowance(EVENTS, self._options.progress_s)
            return allowance.take(now, event.at.length)
        odd = any(isinstance(value, float) and not math.isfinite(value) for value in event.fields.values())
        return self._points.take(now, event.at.length) or (odd and self._odd.take(now, 1))

    def _time(self, place: int) -> int:
        index = bisect_right(self._came, place, key=lambda each: each[0]) - 1
        return self._came[max(index, 0)][1] if self._came else 0

    def _forget(self) -> None:
        self._scanner.forget(self._scanner.read)
        while len(self._came) > 1 and self._came[1][0] <= self._scanner.base:
            del self._came[0]

    @abstractmethod
    def _read(self, found: list[tuple[Meaning, bool]], begin: int, end: int, now: float, is_silent: bool) -> None:
        """What becomes of the lines between two places."""

    @abstractmethod
    def _silent(self, now: float) -> None:
        """Nothing more has come for a while."""


class Errors(_Reading):
    """Lines that say something, with what their parser looked at and the lines around; the first and the last ones; of
    progress the first thousand lines and then one now and then, and all that are not finite."""

    def __init__(self, context: FileContext, options: JobOutputOptions, before: Before | None = None) -> None:
        super().__init__(context, options, before)
        self._upto, self._first = 0, options.head_lines
        if before is not None:  # lines that were read before may still be sent, where they were not
            self._upto = max(self._scanner.base, min(before.sent, before.done))
            self._first -= min(self._first, before.head[: before.done].count(b"\n"))
        self._room, self._roomed = float(ROOM), 0.0
        """Bytes that may still be sent around lines, and when that was reckoned."""
        self._wanted = 0
        """Place up to which lines belong to what was sent before,"""
        self._more = 0
        """and how many lines more."""

    @property
    def sent(self) -> int:
        return self._upto

    def _read(self, found: list[tuple[Meaning, bool]], begin: int, end: int, now: float, is_silent: bool) -> None:
        spans = [self._carried(begin, end)]
        count = self._options.context_lines
        for meaning, wanted in found:
            if not wanted:
                continue
            if all(event.kind == "progress" for event in meaning.events):
                stop = self._end_of(min(max(meaning.stop, meaning.high), meaning.stop + SPAN))
                spans.append((max(meaning.low, meaning.start - SPAN), min(stop, end)))
                self._wanted = max(self._wanted, stop if stop > end else 0)
                continue
            low, high, around = meaning.start, meaning.stop, 0
            if self._has_room(now):
                low, high, around = max(meaning.low, low - BEFORE), min(meaning.high, high + AFTER), count
            last = self._after(high, around)
            spans.append((self._before(low, around), min(last, end)))
            if last > end:
                self._wanted = max(self._wanted, last)
            elif last == self._scanner.end:  # the lines around it are still to come
                self._more = max(self._more, around)
        for first, last in sorted(spans):
            self._send(first, last, now)
        if now - self._pulsed >= PULSE_S and not is_silent:
            self._send_one(end, now)

    def _send_one(self, end: int, now: float) -> None:
        """A line of many that say nothing: one so far up that the last ones can still be sent, unless that is old."""
        place = self._before(end - 1, self._options.tail_lines)
        if place < self._upto or self._time(place) < self._time(end - 1) - PULSE_S * 1e9:
            place = self._before(end - 1, 0)
        self._send(place, self._after(place + 1, 0), now)

    def _has_room(self, now: float) -> bool:
        self._room = min(ROOM, self._room + ROOM_PER_S * max(0.0, now - self._roomed))
        self._roomed = now
        return self._room > 0

    def _carried(self, begin: int, end: int) -> tuple[int, int]:
        """What of these lines is sent for those before them, or because they are the file's first."""
        last = max(begin, min(self._wanted, end))
        lines = max(self._first, self._more)
        if lines:
            window, base = self._scanner.window, self._scanner.base
            place, taken = begin - base, 0
            while taken < lines and (found := window.find(b"\n", place, end - base)) >= 0:
                place, taken = found + 1, taken + 1
            self._first, self._more = max(0, self._first - taken), max(0, self._more - taken)
            last = max(last, base + place if taken == lines else end)
        return begin, last

    def _silent(self, now: float) -> None:
        end = self._scanner.read
        if end > self._upto and self._options.tail_lines:
            self._send(self._before(end - 1, self._options.tail_lines - 1, BEFORE), end, now)

    def _end_of(self, place: int) -> int:
        """Behind the line's end that a segment has, if it is its line's last."""
        window, at = self._scanner.window, place - self._scanner.base
        end = at + (window[at : at + 1] == b"\r")
        return self._scanner.base + (end + 1 if window[end : end + 1] == b"\n" else at)

    def _before(self, place: int, lines: int, span: int = SPAN) -> int:
        """The begin of the line that holds a place, and so many lines further up."""
        window, base = self._scanner.window, self._scanner.base
        at = place - base
        floor = max(0, at - span)
        for _ in range(lines + 1):
            begin = window.rfind(b"\n", floor, at) + 1 or floor
            if begin == floor:
                return base + floor
            at = begin - 1
        return base + begin

    def _after(self, place: int, lines: int) -> int:
        """The end of the line that holds a place, and so many lines further down, as far as they are there."""
        window, base = self._scanner.window, self._scanner.base
        at = max(0, place - base - 1)
        ceiling = min(len(window), at + SPAN)
        for _ in range(lines + 1):
            found = window.find(b"\n", at, ceiling)
            if found < 0:
                return base + ceiling
            at = found + 1
        return base + at

    def _send(self, first: int, last: int, now: float) -> None:
        """The lines of a part of the file, without those that were sent already."""
        first = max(first, self._upto, self._scanner.base)
        if last <= first:
            return
        self._upto, self._pulsed = last, now
        self._room -= last - first
        at = first
        for line in self._scanner.window[first - self._scanner.base : last - self._scanner.base].split(b"\n"):
            time_ns = self._time(at)
            if at < last:
                for part in _shown(line):
                    self._sent += [(time_ns, piece.decode("utf-8", "replace")) for piece in pieces(part)]
            at += len(line) + 1


def _shown(line: bytes) -> list[bytes]:
    whole = line.removesuffix(b"\r")
    return [part for part in whole.split(b"\r") if part and not part.isspace()] if b"\r" in whole else [whole]


class Meanings(_Reading):
    """No line, only typed events, each as a line of its own; see :mod:`trackside.logs.event_line`."""

    def __init__(self, context: FileContext, options: JobOutputOptions, before: Before | None = None) -> None:
        super().__init__(context, options, before)
        self._latest: dict[str, tuple[int, Event]] = {}
        """Of each kind, the last event where it was not sent."""
        self._told = -1
        """Bytes at the last pulse."""

    def _read(self, found: list[tuple[Meaning, bool]], begin: int, end: int, now: float, is_silent: bool) -> None:
        for meaning, wanted in found:
            time_ns = self._time(meaning.start)
            for event in meaning.events:
                if wanted:
                    self._sent.append((time_ns, format_event(event)))
                    self._latest.pop(event.kind, None)
                else:
                    self._latest[event.kind] = time_ns, event
        if now - self._pulsed >= PULSE_S:
            self._pulse(end, now)

    def _silent(self, now: float) -> None:
        for time_ns, event in sorted(self._latest.values(), key=lambda each: each[0]):
            self._sent.append((time_ns, format_event(event)))
        self._latest.clear()
        self._pulse(self._scanner.read, now)

    def _pulse(self, end: int, now: float) -> None:
        if end > self._told and end:
            self._told, self._pulsed = end, now
            self._sent.append((self._time(end - 1), format_pulse(self._scanner.lines, end)))


POLICIES: Mapping[Text, type[Policy]] = {"all": All, "errors": Errors, "none": Meanings}
"""By the option ``text``."""
