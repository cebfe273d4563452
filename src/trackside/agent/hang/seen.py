"""What other sources know of a process's GPU work, if they are on: the trace, and the GPUs' own counters.

They tell it here, and the watch over hangs asks; nobody waits for anybody.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

FRESH_S = 60.0
"""After so long, what was told says nothing of now."""


class Seen:
    """Any thread may tell and ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._work: dict[str, tuple[float, float]] = {}
        self._completed: dict[int, tuple[float, int, float]] = {}

    def gpu_work(self, gpu: str, sm_active: float) -> None:
        """A GPU's SM activity, 0 to 1, by its index or UUID."""
        with self._lock:
            self._work[gpu] = self._clock(), sm_active

    def collectives(self, pid: int, completed: int) -> None:
        """How many collectives a process has completed since it began."""
        now = self._clock()
        with self._lock:
            before = self._completed.get(pid)
            since = before[2] if before is not None and before[1] == completed else now
            self._completed[pid] = now, completed, since
            if len(self._completed) > 4096:
                self._completed = {key: told for key, told in self._completed.items() if now - told[0] < FRESH_S}

    def works(self, gpus: Sequence[str] | None, least: float) -> bool | None:
        """Whether any of these GPUs is at work; None where that isn't known of any."""
        now = self._clock()
        with self._lock:
            told = [
                self._work[gpu][1] for gpu in gpus or () if gpu in self._work and now - self._work[gpu][0] < FRESH_S
            ]
        return any(each >= least for each in told) if told else None

    def frozen_s(self, pid: int) -> float | None:
        """For how long a process has completed no collective; None where it isn't traced."""
        now = self._clock()
        with self._lock:
            told = self._completed.get(pid)
        return None if told is None or now - told[0] >= FRESH_S else now - told[2]


SEEN = Seen()
"""The one of this agent."""
