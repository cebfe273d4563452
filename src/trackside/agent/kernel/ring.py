"""Records of ``/dev/kmsg``: ``priority,sequence,microseconds,flag[,more];text``, one a read, never waiting.

A record's text may be several lines (``\\x0a``), and old kernels give a line in several records (flag ``c``, then
``+``). Lines that begin with a blank tell of devices and are left out. What the ring lost before it was read is missing
from the sequence numbers; the kernel says so once with EPIPE.
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
"""Twice what the kernel writes at most."""
MOST_TEXT = 64 << 10
"""Of a line that came in pieces."""
STEP_NS = 20_000_000
"""The day's time against the monotonic clock moves by less unless somebody set it; times then stay the same from one
look, and one start of the agent, to the next."""
TOLERANCE_NS = 100_000_000
"""A record may be as far outside of when it must have been written before the clock is corrected for it."""
MOST_DRIFT_NS = 3600 * 1_000_000_000
"""More is no drift but a damaged record."""
_RECORD = re.compile(
    rb"(?P<priority>[0-9]{1,4}),(?P<sequence>[0-9]{1,19}),(?P<time>[0-9]{1,19}),(?P<flag>[^,;]?)[^;]*;"
)
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")


@dataclass(slots=True)
class Record:
    """``time_us``: since boot, on the clock that the kernel prints."""

    sequence: int
    time_us: int
    text: str
    flag: str = "-"

    @property
    def lines(self) -> list[str]:
        """Its lines, without those that are blank."""
        return [line.rstrip() for line in self.text.split("\n") if line.strip()]


def parse_records(data: bytes) -> Iterator[Record]:
    """The records of what was read: the kernel gives one, a file of them several. What is none is passed over."""
    for line in data.split(b"\n"):
        found = None if line.startswith(b" ") else _RECORD.match(line)
        if found is not None:
            raw = _ESCAPED.sub(lambda each: bytes.fromhex(each[1].decode()), line[found.end() :])
            text = raw.decode("utf-8", "replace").replace("\0", "")
            yield Record(int(found["sequence"]), int(found["time"]), text, found["flag"].decode("ascii", "replace"))


class Ring:
    """The ring, read on from where it was. ``after``: the sequence number of the last record that is known already."""

    def __init__(self, path: Path, after: int = -1, read: Callable[[int, int], bytes] = os.read) -> None:
        """Raises OSError. ``read``: how a record is read, for tests."""
        self._read, self.last = read, after
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.lost = 0
        """Records that were overwritten before they were read, since it was last set to 0."""

    def records(self, most: int) -> Iterator[Record]:
        """Records that are there now, whole lines as far as can be told; ``most`` of them. Raises OSError."""
        pending: Record | None = None
        for record in self._raw(most):
            if pending is not None and record.flag == "+" and len(pending.text) < MOST_TEXT:
                pending.text += record.text
                continue
            if pending is not None:
                yield pending
            pending = record
        if pending is not None:
            yield pending

    def _raw(self, most: int) -> Iterator[Record]:
        while most > 0:
            try:
                data = self._read(self._fd, RECORD_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.EINTR):
                    most -= 1
                    continue  # the next read gives the oldest record that is left
                raise
            if not data:
                return
            for record in parse_records(data):
                most -= 1
                if record.sequence <= self.last:
                    continue
                if self.last >= 0:
                    self.lost += record.sequence - self.last - 1
                self.last = record.sequence
                yield record

    def close(self) -> None:
        """Let go of it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class KernelClock:
    """From the kernel's clock, which counts since boot, to the time of day.

    The clock that the kernel prints is not the monotonic one that programs can ask: NTP does not correct it, so that
    after weeks the two are seconds to minutes apart. Records that were not there at the last look, and are now, tell
    how far.

    ``base_ns``: POSIX time at boot, ``drift_ns``: how far the kernel's clock is behind; None: not known yet.
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
        self._since: int | None = None
        """Monotonic time of the last look that found all read."""
        self._until = 0
        self.look()

    def look(self) -> None:
        """Begin to read records; notices when the time of day was set."""
        self._until = self._monotonic_ns()
        base_ns = self.now_ns() - self._until
        if abs(base_ns - self.base_ns) > STEP_NS:
            self.base_ns = base_ns

    def emptied(self) -> None:
        """All records were read that there were when :meth:`look` was called: others are later."""
        self._since = self._until

    def fit(self, first_us: int, last_us: int) -> None:
        """Correct the clock by the records that were read now: they were written since the last look, and not after
        this one."""
        first, last = (time_us * 1000 + self.drift_ns for time_us in (first_us, last_us))
        off = 0
        if last > self._until + TOLERANCE_NS:
            off = self._until - last
        elif self._since is not None and first < self._since - TOLERANCE_NS:
            off = self._since - first
        if abs(off) < MOST_DRIFT_NS:
            self.drift_ns += off

    def time_ns(self, time_us: int) -> int:
        """When a record was written, POSIX nanoseconds: since the last look that found all read, not after this one.
        So lines keep their order whatever is learnt of the clock."""
        at = min(time_us * 1000 + self.drift_ns, self._until)
        return self.base_ns + (at if self._since is None else max(at, self._since))
