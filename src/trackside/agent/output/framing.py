"""From bytes to complete lines, and from complete lines to the text that is sent.

A progress bar is one line that is redrawn repeatedly; most redraws are left out, see :class:`Redraws`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from trackside.agent.rate_limit import RateLimit

MAX_LINE_BYTES = 64 << 10
"""Longer lines are sent in pieces of this size."""
NONFINITE = re.compile(rb"(?i)\b(?:nan|-?inf(?:inity)?)\b")
BYTES_PER_LINE = 64 << 10
"""Bytes after which another thinned line may be sent, as after the time between two: a backlog is read at once but was
written over time."""


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


MAX_REDRAWS = 200
"""Redraws sent before they are thinned."""


class Redraws:
    """Selects the states of a redrawn line to send: the last one, the one before it (the progress bar's, if other text
    then took its line), and of the earlier ones at most one per ``every_s`` seconds after the first
    :data:`MAX_REDRAWS`."""

    def __init__(self, every_s: float) -> None:
        self._limit = RateLimit(1 / every_s, MAX_REDRAWS)
        self._nonfinite_limit = RateLimit(1 / every_s, MAX_REDRAWS)
        self.pending = b""
        """The last state of an unfinished line, if it was not sent."""

    def states(self, line: bytes, now: float, ended: bool = True) -> Iterator[bytes]:
        """The states of a line to send, without its line break; an unfinished line continues with the next bytes."""
        parts = [part for part in (self.pending, *line.split(b"\r")) if part and not part.isspace()]
        self.pending, last_index = b"", len(parts) - 1
        for index, part in enumerate(parts):
            allowed = self._limit.take(1, now, (len(part) + 1) / BYTES_PER_LINE)
            if (
                allowed
                or (ended and index >= last_index - 1)
                or (NONFINITE.search(part) and self._nonfinite_limit.take(1, now))
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
        lines = list(_thin(complete[:-1].split(b"\n"), redraws, now))
    else:
        lines = complete[:-1].split(b"\n")
    if unfinished:
        lines += redraws.states(unfinished, now, ended=not unfinished.endswith(b"\r"))
    if lines and len(max(lines, key=len)) > MAX_LINE_BYTES:
        lines = [chunk for line in lines for chunk in split_long(line)]
    return [line.decode("utf-8", "replace") for line in lines]


def _thin(lines: list[bytes], redraws: Redraws, now: float) -> Iterator[bytes]:
    for line in lines:
        text = line.removesuffix(b"\r")
        if redraws.pending or b"\r" in text:
            yield from redraws.states(text, now)
        else:
            yield text


def split_long(line: bytes) -> Iterator[bytes]:
    """A line in pieces of at most :data:`MAX_LINE_BYTES`, not cut within a character."""
    while len(line) > MAX_LINE_BYTES:
        cut = MAX_LINE_BYTES
        while cut > MAX_LINE_BYTES - 4 and line[cut] & 0xC0 == 0x80:
            cut -= 1
        yield line[:cut]
        line = line[cut:]
    yield line
