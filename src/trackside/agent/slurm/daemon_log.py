"""The log of one of Slurm's daemons, followed as it grows: rotated, truncated, or not there yet."""

from __future__ import annotations

import datetime as dt
import os
import re
from pathlib import Path

from trackside.agent.source import Reading

MOST_BYTES = 4 << 20
"""Of one reading; the rest comes with the next."""
BEFORE = 256 << 10
"""Bytes of the end that are read of a log that was there before."""
MOST_LINE = 16 << 10
_STAMP = re.compile(r"\[?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:?\d\d)?)\]?\s")


class DaemonLog:
    """``unit``: the daemon's name, ``slurmctld``."""

    def __init__(self, path: Path, unit: str) -> None:
        self.path, self._unit = path, unit
        self._fd, self._inode, self._at = -1, 0, 0
        self._rest = b""
        self._time_ns = 0
        self._known = False

    def collect(self, reading: Reading) -> None:
        """Add the lines that came, or a warning where the log can't be read."""
        try:
            self._follow(reading)
        except OSError as error:
            reading.warnings.append(f"{self.path} can't be read: {error.strerror}")

    def _follow(self, reading: Reading) -> None:
        left = MOST_BYTES
        if self._fd < 0:
            self._open()
        left -= self._take(reading, left)
        stat = _stat(self.path)
        if stat is not None and stat.st_ino != self._inode and left > 0 and self._at >= os.fstat(self._fd).st_size:
            self.close()  # another took its place, and of the one before all is read
            self._open()
            self._take(reading, left)

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        stat = os.fstat(self._fd)
        # What was written before the agent began is only looked at as far as it may concern what goes on.
        self._at = 0 if self._known else max(0, stat.st_size - BEFORE)
        self._rest = b""
        self._inode, begun = stat.st_ino, self._at
        if begun:
            data = os.pread(self._fd, MOST_LINE, begun)
            self._at += data.find(b"\n") + 1
        self._known = True

    def _take(self, reading: Reading, most: int) -> int:
        size = os.fstat(self._fd).st_size
        if size < self._at:
            reading.warnings.append(f"{self.path} was cut short: read from its beginning again")
            self._at, self._rest = 0, b""
        data = os.pread(self._fd, min(most, size - self._at), self._at)
        self._at += len(data)
        *whole, rest = (self._rest + data).split(b"\n")
        for line in whole:
            self._line(reading, line)
        if len(rest) > MOST_LINE:
            self._line(reading, rest[:MOST_LINE])
            rest = rest[MOST_LINE:]
        self._rest = rest
        return len(data)

    def _line(self, reading: Reading, line: bytes) -> None:
        if len(line) > MOST_LINE:
            reading.lost["bytes"] += len(line) - MOST_LINE
        text = line[:MOST_LINE].decode("utf-8", "replace").rstrip("\r")
        if text.strip():
            self._time_ns = min(_written_ns(text) or self._time_ns or reading.time_ns, reading.time_ns)
            reading.line(text, self._time_ns, unit=self._unit)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _written_ns(text: str) -> int | None:
    """When a line was written, by its own stamp: of this machine's zone where it names none."""
    found = _STAMP.match(text)
    if found is None:
        return None
    try:
        at = dt.datetime.fromisoformat(found[1])
        return int(at.replace(microsecond=0).timestamp()) * 1_000_000_000 + at.microsecond * 1000
    except (ValueError, OverflowError):
        return None
