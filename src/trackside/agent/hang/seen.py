"""What other sources know of a process's GPU work, if they are on: the trace, and the GPUs' own counters."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from trackside.agent.source import Sample

ACTIVITY = "gpu_sm_active_ratio"
COMPLETED = "trackside_nccl_collectives_completed_total"


@dataclass(slots=True)
class Seen:
    """As of the last :meth:`look`. ``newest`` gives each source's newest samples."""

    newest: Callable[[], Mapping[str, Sequence[Sample]]]
    clock: Callable[[], float] = time.monotonic
    _work: dict[str, float] = field(default_factory=dict)
    _completed: dict[int, tuple[float, float]] = field(default_factory=dict)
    """pid -> collectives it has completed, and since when so many."""

    def look(self) -> None:
        """See what the others gave last."""
        self._work = {}
        completed: dict[int, float] = {}
        for sample in chain.from_iterable(self.newest().values()):
            if sample.metric == ACTIVITY:
                labels = dict(sample.labels)
                self._work |= {labels[name]: sample.value for name in ("gpu", "gpu_uuid") if name in labels}
            elif sample.metric == COMPLETED:
                pid = int(dict(sample.labels)["pid"])
                completed[pid] = completed.get(pid, 0.0) + sample.value
        now = self.clock()
        before = self._completed
        self._completed = {
            pid: (count, before[pid][1] if pid in before and before[pid][0] == count else now)
            for pid, count in completed.items()
        }

    def works(self, gpus: Sequence[str] | None, least: float) -> bool | None:
        """Whether any of these GPUs is at work, by index or UUID; None where that isn't known of any."""
        told = [self._work[gpu] for gpu in gpus or () if gpu in self._work]
        return any(each >= least for each in told) if told else None

    def frozen_s(self, pid: int) -> float | None:
        """For how long a process has completed no collective; None where it isn't traced."""
        told = self._completed.get(pid)
        return None if told is None else self.clock() - told[1]
