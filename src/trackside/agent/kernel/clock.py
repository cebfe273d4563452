"""From the kernel's clock, which counts since boot, to the time of day.

The clock that the kernel prints is not the monotonic one that programs can ask: NTP does not correct it, so that after
weeks the two are seconds to minutes apart. Records that were not there at the last look, and are now, tell how far.
"""

from __future__ import annotations

import time
from collections.abc import Callable

STEP_NS = 20_000_000
"""The day's time against the monotonic clock moves by less unless somebody set it; times then stay the same from one
look, and one start of the agent, to the next."""
TOLERANCE_NS = 100_000_000
"""A record may be as far outside of when it must have been written before the clock is corrected for it."""
MOST_DRIFT_NS = 3600 * 1_000_000_000
"""More is no drift but a damaged record."""


class KernelClock:
    """``base_ns``: POSIX time at boot, ``drift_ns``: how far the kernel's clock is behind; None: not known yet."""

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
