"""GPU work of processes as other sources report it, if they are on: NCCL tracing and GPU counters."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from trackside.agent.source import Sample

ACTIVITY = "gpu_sm_active_ratio"
COMPLETED = "trackside_nccl_collectives_completed_total"


@dataclass(slots=True)
class GpuProgress:
    """GPU activity and collective progress as of the last :meth:`update`. ``newest``: returns each source's newest
    samples."""

    newest: Callable[[], Mapping[str, Sequence[Sample]]]
    clock: Callable[[], float] = time.monotonic
    _activity: dict[str, float] = field(default_factory=dict)
    _completed: dict[int, tuple[float, float]] = field(default_factory=dict)
    """pid -> (collectives completed, monotonic time of the last change)."""

    def update(self) -> None:
        """Read the newest samples of the other sources."""
        self._activity = {}
        completed: dict[int, float] = {}
        for sample in chain.from_iterable(self.newest().values()):
            if sample.metric == ACTIVITY:
                labels = dict(sample.labels)
                self._activity |= {labels[name]: sample.value for name in ("gpu", "gpu_uuid") if name in labels}
            elif sample.metric == COMPLETED:
                pid = int(dict(sample.labels)["pid"])
                completed[pid] = completed.get(pid, 0.0) + sample.value
        now = self.clock()
        previous = self._completed
        self._completed = {
            pid: (count, previous[pid][1] if pid in previous and previous[pid][0] == count else now)
            for pid, count in completed.items()
        }

    def is_active(self, gpus: Sequence[str] | None, min_activity: float) -> bool | None:
        """Whether any of these GPUs (index or UUID) is active; None if nothing is known of them."""
        activities = [self._activity[gpu] for gpu in gpus or () if gpu in self._activity]
        return any(activity >= min_activity for activity in activities) if activities else None

    def since_collective_s(self, pid: int) -> float | None:
        """Seconds since a process last completed a collective; None if it is not traced."""
        completed = self._completed.get(pid)
        return None if completed is None else self.clock() - completed[1]
