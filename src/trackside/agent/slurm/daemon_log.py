"""The log of a Slurm daemon, followed as it grows, also if it is rotated, truncated or does not exist yet."""

from __future__ import annotations

import datetime as dt
import os
import re
from pathlib import Path

from trackside.agent.source import Reading

MAX_BYTES = 4 << 20
"""Limit per reading; the rest is read next time."""
BACKLOG_BYTES = 256 << 10
"""Bytes at the end of an existing log that are read first."""
MAX_LINE_BYTES = 16 << 10
_STAMP = re.compile(r"\[?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:?\d\d)?)\]?\s")


class DaemonLog:
    """Follows one log. ``unit``: the daemon's name, such as ``slurmctld``."""

    def __init__(self, path: Path, unit: str) -> None:
        self.path, self._unit = path, unit
        self._fd, self._inode, self._offset = -1, 0, 0
        self._remaining = b""
        self._time_ns = 0
        self._was_opened = False

    def collect(self, reading: Reading) -> None:
        """Add the new lines, or a warning if the log cannot be read."""
        try:
            self._follow(reading)
        except OSError as error:
            reading.warnings.append(f"{self.path} cannot be read now ({error.strerror}); every reading tries again")

    def _follow(self, reading: Reading) -> None:
        bytes_left = MAX_BYTES
        if self._fd < 0:
            self._open()
        bytes_left -= self._read_lines(reading, bytes_left)
        stat = _stat(self.path)
        if (
            stat is not None
            and stat.st_ino != self._inode
            and bytes_left > 0
            and self._offset >= os.fstat(self._fd).st_size
        ):
            self.close()  # the log was replaced, and the old file is read to its end
            self._open()
            self._read_lines(reading, bytes_left)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        stat = os.fstat(self._fd)
        # Of what was written before the agent started, only the last part is read.
        self._offset = 0 if self._was_opened else max(0, stat.st_size - BACKLOG_BYTES)
        self._remaining = b""
        self._inode, start = stat.st_ino, self._offset
        if start:
            data = os.pread(self._fd, MAX_LINE_BYTES, start)
            self._offset += data.find(b"\n") + 1
        self._was_opened = True

    def _read_lines(self, reading: Reading, max_bytes: int) -> int:
        size = os.fstat(self._fd).st_size
        if size < self._offset:
            reading.warnings.append(f"{self.path} was truncated: reading it from the beginning")
            self._offset, self._remaining = 0, b""
        data = os.pread(self._fd, min(max_bytes, size - self._offset), self._offset)
        self._offset += len(data)
        *lines, remaining = (self._remaining + data).split(b"\n")
        for line in lines:
            self._line(reading, line)
        if len(remaining) > MAX_LINE_BYTES:
            self._line(reading, remaining[:MAX_LINE_BYTES])
            remaining = remaining[MAX_LINE_BYTES:]
        self._remaining = remaining
        return len(data)

    def _line(self, reading: Reading, line: bytes) -> None:
        if len(line) > MAX_LINE_BYTES:
            reading.lost["bytes"] += len(line) - MAX_LINE_BYTES
        text = line[:MAX_LINE_BYTES].decode("utf-8", "replace").rstrip("\r")
        if text.strip():
            self._time_ns = min(_timestamp_ns(text) or self._time_ns or reading.time_ns, reading.time_ns)
            reading.line(text, self._time_ns, unit=self._unit)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _timestamp_ns(text: str) -> int | None:
    """POSIX time (ns) in a line's timestamp, in this machine's time zone if it has none; None without a timestamp."""
    match = _STAMP.match(text)
    if match is None:
        return None
    try:
        time = dt.datetime.fromisoformat(match[1])
        return int(time.replace(microsecond=0).timestamp()) * 1_000_000_000 + time.microsecond * 1000
    except (ValueError, OverflowError):
        return None
