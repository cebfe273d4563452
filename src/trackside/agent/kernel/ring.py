"""Records of ``/dev/kmsg``: ``priority,sequence,microseconds,flag[,more];text``, one per read, non-blocking.

A record's text may have several lines (``\\x0a``), and old kernels split a line into several records (flag ``c``, then
``+``). Lines that start with a space describe devices and are left out. Records that were overwritten before they were
read show as gaps in the sequence numbers; the kernel reports them once with EPIPE.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

RECORD_BYTES = 16 << 10
"""Twice the kernel's maximum record size."""
MAX_LINE_CHARS = 64 << 10
"""Limit of a line that came in several records."""
MIN_CLOCK_SET_NS = 20_000_000
"""Smaller changes of wall-clock time against the monotonic clock are ignored, so that times stay the same between
readings and restarts of the agent; larger ones mean that the clock was set."""
TOLERANCE_NS = 100_000_000
"""How far a record's time may be outside the possible interval before the clock is corrected."""
MAX_DRIFT_NS = 3600 * 1_000_000_000
"""A larger drift means a damaged record."""
_RECORD = re.compile(
    rb"(?P<priority>[0-9]{1,4}),(?P<sequence>[0-9]{1,19}),(?P<time>[0-9]{1,19}),(?P<flag>[^,;]?)[^;]*;"
)
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")


@dataclass(slots=True)
class KernelRecord:
    """One kernel message. ``time_us``: since boot, on the clock that the kernel prints."""

    sequence: int
    time_us: int
    text: str
    flag: str = "-"

    @property
    def lines(self) -> list[str]:
        """Its lines, without blank ones."""
        return [line.rstrip() for line in self.text.split("\n") if line.strip()]


def parse_records(data: bytes) -> Iterator[KernelRecord]:
    """The records in the data: a read returns one, a saved file has several. Other lines are skipped."""
    for line in data.split(b"\n"):
        match = None if line.startswith(b" ") else _RECORD.match(line)
        if match is not None:
            raw = _ESCAPED.sub(lambda escape: bytes.fromhex(escape[1].decode()), line[match.end() :])
            text = raw.decode("utf-8", "replace").replace("\0", "")
            yield KernelRecord(
                int(match["sequence"]), int(match["time"]), text, match["flag"].decode("ascii", "replace")
            )


class Ring:
    """The ring buffer, read on from the last position. ``after``: sequence number of the last known record."""

    def __init__(self, path: Path, after: int = -1, read: Callable[[int, int], bytes] = os.read) -> None:
        """Raises OSError. ``read``: replaced in tests."""
        self._read, self.last_sequence = read, after
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.lost = 0
        """Records overwritten before they were read, since it was last set to 0."""

    def records(self, max_records: int) -> Iterator[KernelRecord]:
        """Up to ``max_records`` records available now, with split lines joined where possible. Raises OSError."""
        pending: KernelRecord | None = None
        for record in self._raw(max_records):
            if pending is not None and record.flag == "+" and len(pending.text) < MAX_LINE_CHARS:
                pending.text += record.text
                continue
            if pending is not None:
                yield pending
            pending = record
        if pending is not None:
            yield pending

    def _raw(self, max_records: int) -> Iterator[KernelRecord]:
        while max_records > 0:
            try:
                data = self._read(self._fd, RECORD_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.EINTR):
                    max_records -= 1
                    continue  # the next read returns the oldest remaining record
                raise
            if not data:
                return
            for record in parse_records(data):
                max_records -= 1
                if record.sequence <= self.last_sequence:
                    continue
                if self.last_sequence >= 0:
                    self.lost += record.sequence - self.last_sequence - 1
                self.last_sequence = record.sequence
                yield record

    def close(self) -> None:
        """Close the device."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class KernelClock:
    """Converts the kernel's clock, which counts since boot, to wall-clock time.

    The clock in kernel messages is not the monotonic clock that programs read: NTP does not correct it, so that after
    weeks the two differ by seconds to minutes. Records that appeared since the last reading show by how much.

    ``base_ns``: POSIX time at boot. ``drift_ns``: how far the kernel's clock is behind. None: unknown.
    """

    def __init__(
        self,
        base_ns: int | None = None,
        drift_ns: int = 0,
        now_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.now_ns, self._monotonic_ns = now_ns, monotonic_ns
        self.base_ns, self.drift_ns = 0 if base_ns is None else base_ns, drift_ns
        self._read_to_ns: int | None = None
        """Monotonic time of the last :meth:`begin_read` after which all records were read."""
        self._begin_ns = 0
        self.begin_read()

    def begin_read(self) -> None:
        """Start reading records; detects that wall-clock time was set."""
        self._begin_ns = self._monotonic_ns()
        base_ns = self.now_ns() - self._begin_ns
        if abs(base_ns - self.base_ns) > MIN_CLOCK_SET_NS:
            self.base_ns = base_ns

    def end_read(self) -> None:
        """Note that all records that existed at :meth:`begin_read` were read: any further record is later."""
        self._read_to_ns = self._begin_ns

    def correct(self, first_us: int, last_us: int) -> None:
        """Correct the clock by the records read now: they were written after the last complete reading and before this
        one."""
        first_ns, last_ns = (time_us * 1000 + self.drift_ns for time_us in (first_us, last_us))
        error_ns = 0
        if last_ns > self._begin_ns + TOLERANCE_NS:
            error_ns = self._begin_ns - last_ns
        elif self._read_to_ns is not None and first_ns < self._read_to_ns - TOLERANCE_NS:
            error_ns = self._read_to_ns - first_ns
        if abs(error_ns) < MAX_DRIFT_NS:
            self.drift_ns += error_ns

    def time_ns(self, time_us: int) -> int:
        """When a record was written, POSIX nanoseconds: not before the last complete reading and not after this one, so
        that lines keep their order when the clock is corrected."""
        monotonic_ns = min(time_us * 1000 + self.drift_ns, self._begin_ns)
        return self.base_ns + (monotonic_ns if self._read_to_ns is None else max(monotonic_ns, self._read_to_ns))
