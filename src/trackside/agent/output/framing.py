"""Bytes as they come into whole lines, and whole lines into what is sent of them.

A progress bar is one line that is drawn again and again; most of its redraws are left out, see :class:`Redraws`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

LONGEST = 64 << 10
"""Bytes of a line; a longer one is sent in pieces of this."""
UNFINITE = re.compile(rb"(?i)\b(?:nan|-?inf(?:inity)?)\b")
BY_BYTES = 64 << 10
"""So many bytes passed over count as much as the time between two redraws: what is read late is not of one moment."""


class Framer:
    """Cuts bytes behind line ends and before redraws; holds what is begun."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        """What is complete now, of the bytes held and these. NUL bytes, the holes of a crash, become redraws."""
        if b"\0" in data:
            data = data.replace(b"\0", b"\r")
        cut = data.rfind(b"\n") + 1
        cut = max(cut, data.rfind(b"\r", cut, len(data) - 1) + 1)  # one at the very end may be half of a line's end
        if not cut and len(self.rest) + len(data) > LONGEST:
            cut = len(data)
        if not cut:
            self.rest += data
            return b""
        whole, self.rest = self.rest + data[:cut], data[cut:]
        if len(self.rest) > LONGEST:
            whole, self.rest = whole + self.rest, b""
        return whole

    def flush(self) -> bytes:
        """What is begun, taken for complete."""
        whole, self.rest = self.rest, b""
        return whole


class Allowance:
    """So many at once, and one more each ``every_s`` or each :data:`BY_BYTES` passed over."""

    def __init__(self, most: int, every_s: float) -> None:
        self._most, self._left, self._every_s = most, float(most), every_s
        self._at: float | None = None
        self._passed = 0

    def take(self, now: float, size: int) -> bool:
        """Whether one of that size may be had. ``now``: seconds of any clock."""
        since = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at, self._passed = now, self._passed + size
        self._left = min(self._most, self._left + since / self._every_s + self._passed // BY_BYTES)
        self._passed %= BY_BYTES
        if self._left < 1:
            return False
        self._left -= 1
        return True


BURST = 200
"""Redraws that are sent before they are thinned."""


class Redraws:
    """Which states of a line drawn over and over are sent: the last one, that before it (a bar's, where another text
    then took its line), and one now and then of those before."""

    def __init__(self, every_s: float) -> None:
        self._allowance = Allowance(BURST, every_s)
        self._odd = Allowance(BURST, every_s)
        self.held = b""
        """The last state of a line that is not at its end, where it was left out so far."""

    def kept(self, line: bytes, now: float, ended: bool = True) -> Iterator[bytes]:
        """Of a physical line without its end; one that has not ended goes on with the next bytes."""
        drawn = [part for part in (self.held, *line.split(b"\r")) if part and not part.isspace()]
        self.held, most = b"", len(drawn) - 1
        for place, part in enumerate(drawn):
            allowed = self._allowance.take(now, len(part) + 1)
            if allowed or (ended and place >= most - 1) or (UNFINITE.search(part) and self._odd.take(now, 1)):
                yield part
            elif place == most:
                self.held = part


def texts(data: bytes, redraws: Redraws, now: float) -> list[str]:
    """Complete lines as they are sent: valid text, at most :data:`LONGEST` bytes each, bars thinned."""
    cut = data.rfind(b"\n") + 1
    whole, begun = data[:cut], data[cut:]
    if not whole:
        lines: list[bytes] = []
    elif redraws.held or b"\r" in whole:
        lines = list(_drawn(whole[:-1].split(b"\n"), redraws, now))
    else:
        lines = whole[:-1].split(b"\n")
    if begun:
        lines += redraws.kept(begun, now, ended=not begun.endswith(b"\r"))
    if lines and len(max(lines, key=len)) > LONGEST:
        lines = [piece for line in lines for piece in pieces(line)]
    return [line.decode("utf-8", "replace") for line in lines]


def _drawn(lines: list[bytes], redraws: Redraws, now: float) -> Iterator[bytes]:
    for line in lines:
        whole = line.removesuffix(b"\r")
        if redraws.held or b"\r" in whole:
            yield from redraws.kept(whole, now)
        else:
            yield whole


def pieces(line: bytes) -> Iterator[bytes]:
    """A line in pieces of at most :data:`LONGEST` bytes, none of which ends within a character."""
    while len(line) > LONGEST:
        cut = LONGEST
        while cut > LONGEST - 4 and line[cut] & 0xC0 == 0x80:
            cut -= 1
        yield line[:cut]
        line = line[cut:]
    yield line
