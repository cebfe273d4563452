"""Decides when a job seems to hang: no output for unusually long, and no work by any rank or, after ``waits_s`` of
silence, by some of them.

Silence alone is not a hang: jobs evaluate, save and compile without output, but then a rank reads, writes, touches new
memory, uses its GPU or has active helper processes. Waiting, idle or busy, is distinguished from quiet work by the
stacks, which must be the same each time they are taken (:meth:`Watch.add_stacks`). No I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from trackside.agent.hang.activity import ProcessActivity

Key = tuple[int, int]
Kind = Literal["working", "busy", "asleep"]
"""working: reads or writes, touches new memory, uses its GPU or more than ``spinning_cores``, or has active helpers.
busy: uses only CPU time, as when polling a GPU or network. asleep: uses next to no CPU time."""
Stacks = Mapping[Key, Mapping[int, object]]
"""Comparable stacks by rank and thread."""


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Thresholds of silence and inactivity for a hang."""

    silence_s: float = 180.0
    """Minimum time without output: logging intervals are usually seconds to a minute, and NCCL's watchdog ends a run
    after 600 s (PyTorch, default timeout of process groups), before which the stacks must be taken."""
    usual_gaps: float = 5.0
    """Minimum silence as a multiple of the usual time between outputs."""
    inactive_s: float = 60.0
    """Minimum time in which no rank worked, in addition to the silence; unless ``waits_s`` applies."""
    unheard_s: float = 480.0
    """Minimum silence and inactivity of a job without output on this node, or with too little to have a usual gap: less
    than the 600 s of NCCL's watchdog."""
    startup_s: float = 1800.0
    """Minimum silence and inactivity of a job that has not yet worked for ``settled_s``: gloo's timeout, the longest
    default for which ranks wait for each other at startup (PyTorch)."""
    settled_s: float = 600.0
    """Time after which imports, data indexing and the first compilation are done."""
    waits_s: float = 1800.0
    """Silence after which it suffices that some ranks are inactive although others work: no default timeout (NCCL 600
    s, gloo 1800 s) lets ranks wait longer. 0: never."""
    asleep_cores: float = 0.1
    """CPU cores up to which a process counts as asleep: watchdogs and heartbeats use a few thousandths."""
    spinning_cores: float = 3.0
    """CPU cores up to which a process may be polling: its main thread and NCCL's proxy threads."""
    bytes_per_s: float = 65536.0
    """Rate from which a rank reads or writes: logging and heartbeats are below, loading and saving far above."""
    faults_per_s: float = 5.0
    """Rate of page faults from which a rank touches new memory, as compilers do; waiting processes have none."""
    rhythm: int = 5
    """Minimum number of outputs at different times to have a usual gap."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Why a job seems to hang: the state of its output and ranks at that time."""

    silent_s: float | None
    """Seconds since the last output; None if there was none on this node."""
    gap_s: float | None
    """Usual time between outputs; None if unknown."""
    since_work_s: float
    """Seconds since any rank last worked."""
    inactive: tuple[Key, ...]
    """The ranks that do not work; their stacks decide."""
    working: tuple[Key, ...]


def activity_kind(activity: ProcessActivity, limits: Thresholds, gpu_active: bool | None = None) -> Kind:
    """What a rank seems to do. ``gpu_active``: None if unknown."""
    moves = activity.bytes_per_s is not None and activity.bytes_per_s >= limits.bytes_per_s
    if (
        gpu_active
        or moves
        or activity.faults_per_s >= limits.faults_per_s
        or activity.helper_cores >= limits.asleep_cores
    ):
        return "working"
    if activity.cpu_cores >= limits.asleep_cores:
        return "working" if activity.cpu_cores > limits.spinning_cores else "busy"
    return "asleep"


@dataclass(slots=True)
class Watch:
    """State of one job on this node over time. Times are monotonic seconds."""

    limits: Thresholds
    began_s: float
    """Start of the job's processes, as far as known."""
    last_output_s: float | None = None
    """Time of the last output."""
    last_work_s: float = 0.0
    """When a rank last worked."""
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=64))
    kinds: dict[Key, tuple[Kind, float]] = field(default_factory=dict)
    """What each rank does, and since when."""
    reported_s: float | None = None
    """When the hang was reported; None once the job went on."""
    resumed_s: float | None = None
    """Set for one reading: seconds of silence before the job went on."""
    _probes: int = 0
    _last_stacks: Stacks | None = None
    _not_before: float = 0.0
    _pause_s: float = 0.0

    def add_reading(
        self, now: float, has_output: bool, kinds: Mapping[Key, Kind], last_output: float | None = None
    ) -> None:
        """Add a reading. ``last_output``: time of the last write to the output files, used in the first reading."""
        self.resumed_s = None
        if self.last_output_s is None and last_output is not None:
            self.last_output_s = min(last_output, now)
        if has_output:
            if self.last_output_s is not None and now > self.last_output_s:
                self.gaps.append(now - self.last_output_s)
            self._resume(now, self.last_output_s)
            self.last_output_s = now
        for key, kind in kinds.items():
            previous = self.kinds.get(key)
            self.kinds[key] = (kind, previous[1] if previous is not None and previous[0] == kind else now)
        for key in self.kinds.keys() - kinds.keys():
            del self.kinds[key]
        if has_output or any(kind == "working" for kind in kinds.values()):
            if self.reported_s is not None and all(kind == "working" for kind in kinds.values()):
                self._resume(now, self.last_work_s)
            self.last_work_s = now

    def _resume(self, now: float, since: float | None) -> None:
        if self.reported_s is not None:
            self.resumed_s = now - (since if since is not None else self.reported_s)
        self.reported_s, self._pause_s = None, 0.0
        self._clear_probes()

    def _clear_probes(self) -> None:
        self._probes, self._last_stacks = 0, None

    @property
    def gap_s(self) -> float | None:
        """Usual (median) time between outputs."""
        if len(self.gaps) < self.limits.rhythm:
            return None
        return sorted(self.gaps)[len(self.gaps) // 2]

    def suspicion(self, now: float) -> Suspicion | None:
        """Why the job seems to hang; None if it does not, or if that was reported and it has not gone on since."""
        if self.reported_s is not None or not self.kinds:
            return None
        limits, gap = self.limits, self.gap_s
        silent = None if self.last_output_s is None else now - self.last_output_s
        working = tuple(key for key, (kind, _) in self.kinds.items() if kind == "working")
        inactive = tuple(key for key in self.kinds if key not in working)
        since_work = now - max(self.last_work_s, self.began_s)
        suspicion = Suspicion(silent, gap, since_work, inactive, working)
        if gap is not None and silent is not None:
            if silent < max(limits.silence_s, limits.usual_gaps * gap):
                return None
            is_too_long = 0 < limits.waits_s <= silent and inactive and working
            return suspicion if (not working and since_work >= limits.inactive_s) or is_too_long else None
        settled = self.last_work_s - self.began_s >= limits.settled_s
        min_s = limits.unheard_s if settled else limits.startup_s
        if working or since_work < min_s or (silent is not None and silent < min_s):
            return None
        return suspicion

    def is_due(self, now: float) -> bool:
        """Whether stacks may be taken: after stacks that had changed, the next are delayed."""
        return now >= self._not_before

    def add_stacks(self, now: float, stacks: Stacks, suspicion: Suspicion, times: int) -> bool:
        """Add stacks; True if those of all inactive ranks were the same ``times`` times in a row."""
        inactive = {key: stacks[key] for key in suspicion.inactive if key in stacks}
        if self._last_stacks is not None and not self._is_same(self._last_stacks, inactive):
            self._pause_s = min(max(60.0, self._pause_s * 2), 3600.0)
            self._not_before = now + self._pause_s
            self._clear_probes()
            return False
        self._last_stacks, self._probes = inactive, self._probes + 1
        return self._probes >= times

    def _is_same(self, previous: Stacks, current: Stacks) -> bool:
        """Whether stacks are the same. An idle rank is compared by its main thread; a busy one by all threads, because
        another may do the work."""
        for key, threads in current.items():
            old = previous.get(key, {})
            if self.kinds.get(key, ("asleep", 0.0))[0] == "busy":
                if threads != old:
                    return False
            elif threads.get(key[0]) != old.get(key[0]):
                return False
        return previous.keys() == current.keys()

    def report(self, now: float) -> None:
        """Note that the hang was reported."""
        self.reported_s = now
        self._clear_probes()
