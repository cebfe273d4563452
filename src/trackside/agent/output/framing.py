"""From bytes to complete lines, and from complete lines to the text that is sent.

A progress bar is one line that is redrawn repeatedly; most redraws are left out, see :class:`Redraws`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_LINE_BYTES = 64 << 10
"""Longer lines are sent in pieces of this size."""
NONFINITE = re.compile(rb"(?i)\b(?:nan|-?inf(?:inity)?)\b")
BYTES_PER_LINE = 64 << 10
"""Skipped bytes after which another redraw may be sent, as after the time between two: a backlog is read at once but
was written over time."""


class Framer:
    """Cuts data after line breaks and before redraws; keeps the unfinished rest."""

    def __init__(self) -> None:
        self.remaining = b""

    def feed(self, data: bytes) -> bytes:
        """The data that is complete now, from the remaining bytes and new ones. NUL bytes, as left by a crash, become
        redraws."""
        if b"\0" in data:
            data = data.replace(b"\0", b"\r")
        cut = data.rfind(b"\n") + 1
        cut = max(cut, data.rfind(b"\r", cut, len(data) - 1) + 1)  # a trailing \r may be half of a line break
        if not cut and len(self.remaining) + len(data) > MAX_LINE_BYTES:
            cut = len(data)
        if not cut:
            self.remaining += data
            return b""
        complete, self.remaining = self.remaining + data[:cut], data[cut:]
        if len(self.remaining) > MAX_LINE_BYTES:
            complete, self.remaining = complete + self.remaining, b""
        return complete

    def flush(self) -> bytes:
        """The unfinished rest, taken as complete."""
        complete, self.remaining = self.remaining, b""
        return complete


class LineBudget:
    """A number of lines at once, then one more per ``every_s`` seconds or per :data:`BYTES_PER_LINE` skipped."""

    def __init__(self, max_lines: int, every_s: float) -> None:
        self._max_lines, self._available, self._every_s = max_lines, float(max_lines), every_s
        self._updated_at: float | None = None
        self._skipped_bytes = 0

    def take(self, now: float, size: int) -> bool:
        """Whether a line of that size may be sent. ``now``: seconds of any clock."""
        elapsed_s = 0.0 if self._updated_at is None else max(0.0, now - self._updated_at)
        self._updated_at, self._skipped_bytes = now, self._skipped_bytes + size
        self._available = min(
            self._max_lines, self._available + elapsed_s / self._every_s + self._skipped_bytes // BYTES_PER_LINE
        )
        self._skipped_bytes %= BYTES_PER_LINE
        if self._available < 1:
            return False
        self._available -= 1
        return True


MAX_REDRAWS = 200
"""Redraws sent before they are thinned."""


class Redraws:
    """Which states of a redrawn line are sent: the last one, the one before it (the bar's, if other text then took its
    line), and one now and then of the earlier ones."""

    def __init__(self, every_s: float) -> None:
        self._budget = LineBudget(MAX_REDRAWS, every_s)
        self._nonfinite_budget = LineBudget(MAX_REDRAWS, every_s)
        self.pending = b""
        """The last state of an unfinished line, if it was not sent."""

    def states(self, line: bytes, now: float, ended: bool = True) -> Iterator[bytes]:
        """The states of a line to send, without its line break; an unfinished line continues with the next bytes."""
        parts = [part for part in (self.pending, *line.split(b"\r")) if part and not part.isspace()]
        self.pending, last_index = b"", len(parts) - 1
        for index, part in enumerate(parts):
            allowed = self._budget.take(now, len(part) + 1)
            if (
                allowed
                or (ended and index >= last_index - 1)
                or (NONFINITE.search(part) and self._nonfinite_budget.take(now, 1))
            ):
                yield part
            elif index == last_index:
                self.pending = part


def texts(data: bytes, redraws: Redraws, now: float) -> list[str]:
    """Complete lines as they are sent: valid text, at most :data:`MAX_LINE_BYTES` each, redraws thinned."""
    cut = data.rfind(b"\n") + 1
    complete, unfinished = data[:cut], data[cut:]
    if not complete:
        lines: list[bytes] = []
    elif redraws.pending or b"\r" in complete:
        lines = list(_thinned(complete[:-1].split(b"\n"), redraws, now))
    else:
        lines = complete[:-1].split(b"\n")
    if unfinished:
        lines += redraws.states(unfinished, now, ended=not unfinished.endswith(b"\r"))
    if lines and len(max(lines, key=len)) > MAX_LINE_BYTES:
        lines = [piece for line in lines for piece in pieces(line)]
    return [line.decode("utf-8", "replace") for line in lines]


def _thinned(lines: list[bytes], redraws: Redraws, now: float) -> Iterator[bytes]:
    for line in lines:
        text = line.removesuffix(b"\r")
        if redraws.pending or b"\r" in text:
            yield from redraws.states(text, now)
        else:
            yield text


def pieces(line: bytes) -> Iterator[bytes]:
    """A line in pieces of at most :data:`MAX_LINE_BYTES`, not cut within a character."""
    while len(line) > MAX_LINE_BYTES:
        cut = MAX_LINE_BYTES
        while cut > MAX_LINE_BYTES - 4 and line[cut] & 0xC0 == 0x80:
            cut -= 1
        yield line[:cut]
        line = line[cut:]
    yield line
