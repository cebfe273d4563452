"""When a job seems to hang: its output has fallen silent against its own rhythm and none of its ranks does any work.

Silence alone is no hang: jobs evaluate, save and compile without a word. So a job is suspected only while no rank
reads, writes, touches new memory or has helpers at work. What is left, waiting idly and waiting busily, is told from
quiet work by its stacks, which must be the same each time they are taken (:meth:`Watch.compared`). Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from trackside.agent.hang.doings import Doings

Key = tuple[int, int]
Kind = Literal["working", "busy", "asleep"]
"""working: it moves bytes, touches memory, or has helpers that do. busy: it uses CPU time and nothing else, as one does
that waits for a GPU or a network by polling. asleep: it uses none."""
Stacks = Mapping[Key, Mapping[int, object]]
"""By rank and thread, what can be compared."""


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """When silence and standing still are a hang."""

    silence_s: float = 180.0
    """Without output, at least: logging intervals of seconds to a minute are the rule, and NCCL's watchdog ends a run
    after 600 s (PyTorch, default time-out of process groups), before which the stacks must have been taken."""
    usual_gaps: float = 5.0
    """Times the usual time between outputs."""
    still_s: float = 60.0
    """In which no rank has worked, beside the silence."""
    unheard_s: float = 480.0
    """The same of a job that has no output on this node, or too little to have a rhythm: less than those 600 s."""
    startup_s: float = 1800.0
    """The same of one that has not been seen at work for ``settled_s`` yet: gloo's time-out, the longest that a
    default lets ranks wait for each other at start-up (PyTorch)."""
    settled_s: float = 600.0
    """Imports, data indices and the first compilation are done by then."""
    waits_s: float = 1800.0
    """Silence after which some ranks' standing still is enough, though another works: no default time-out (NCCL 600 s,
    gloo 1800 s) lets ranks wait for longer. 0: never."""
    asleep_cores: float = 0.1
    """CPU time a second up to which a process sleeps: watchdogs and heartbeats take a few thousandths."""
    spinning_cores: float = 3.0
    """Up to which it may be polling: its main thread, and NCCL's proxy threads."""
    bytes_per_s: float = 65536.0
    """From which a rank reads or writes: logging and heartbeats are below, loading and saving far above."""
    faults_per_s: float = 5.0
    """Page faults from which it touches new memory, as compilers do; processes that wait have none."""
    rhythm: int = 5
    """Outputs at different moments, from which there is a usual gap."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Why a job seems to hang. ``gap_s``: None where it has no rhythm."""

    silent_s: float | None
    gap_s: float | None
    still_s: float
    standing: tuple[Key, ...]
    working: tuple[Key, ...]


def kind_of(doings: Doings, limits: Thresholds, works: bool | None = None) -> Kind:
    """What a rank seems to do. ``works``: what its GPU's counters say, where they are known."""
    moves = doings.bytes_per_s is not None and doings.bytes_per_s >= limits.bytes_per_s
    if works or moves or doings.faults_per_s >= limits.faults_per_s or doings.helpers >= limits.asleep_cores:
        return "working"
    if doings.cores >= limits.asleep_cores:
        return "working" if doings.cores > limits.spinning_cores else "busy"
    return "asleep"


@dataclass(slots=True)
class Watch:
    """One job on this node, over time. Times are seconds of one clock that only goes forward."""

    limits: Thresholds
    began: float
    """When the job's processes began, as far as they tell."""
    heard: float | None = None
    """Last output."""
    worked: float = 0.0
    """When a rank was last seen at work."""
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=64))
    kinds: dict[Key, tuple[Kind, float]] = field(default_factory=dict)
    """What each rank does, and since when."""
    reported: float | None = None
    """When it was reported; None once it went on."""
    resumed_s: float | None = None
    """Set for one reading: how long it had been silent when it went on."""
    _probes: int = 0
    _last: Stacks | None = None
    _not_before: float = 0.0
    _pause: float = 0.0

    def note(self, now: float, spoke: bool, kinds: Mapping[Key, Kind], last_output: float | None = None) -> None:
        """Take a reading. ``last_output``: when the output files say that they were last written to, at the first."""
        self.resumed_s = None
        if self.heard is None and last_output is not None:
            self.heard = min(last_output, now)
        if spoke:
            if self.heard is not None and now > self.heard:
                self.gaps.append(now - self.heard)
            self._goes_on(now, self.heard)
            self.heard = now
        for key, kind in kinds.items():
            before = self.kinds.get(key)
            self.kinds[key] = (kind, before[1] if before is not None and before[0] == kind else now)
        for key in self.kinds.keys() - kinds.keys():
            del self.kinds[key]
        if spoke or any(kind == "working" for kind in kinds.values()):
            if self.reported is not None and all(kind == "working" for kind in kinds.values()):
                self._goes_on(now, self.worked)
            self.worked = now

    def _goes_on(self, now: float, since: float | None) -> None:
        if self.reported is not None:
            self.resumed_s = now - (since if since is not None else self.reported)
        self.reported, self._pause = None, 0.0
        self._forget()

    def _forget(self) -> None:
        self._probes, self._last = 0, None

    @property
    def gap_s(self) -> float | None:
        """Usual time between outputs."""
        if len(self.gaps) < self.limits.rhythm:
            return None
        return sorted(self.gaps)[len(self.gaps) // 2]

    def suspicion(self, now: float) -> Suspicion | None:
        """Whether it seems to hang by what is seen from outside; once until it went on."""
        if self.reported is not None or not self.kinds:
            return None
        limits, gap = self.limits, self.gap_s
        silent = None if self.heard is None else now - self.heard
        working = tuple(key for key, (kind, _) in self.kinds.items() if kind == "working")
        standing = tuple(key for key in self.kinds if key not in working)
        still = now - max(self.worked, self.began)
        found = Suspicion(silent, gap, still, standing, working)
        if gap is not None and silent is not None:
            if silent < max(limits.silence_s, limits.usual_gaps * gap):
                return None
            waits = 0 < limits.waits_s <= silent and standing and working
            return found if (not working and still >= limits.still_s) or waits else None
        settled = self.worked - self.began >= limits.settled_s
        least = limits.unheard_s if settled else limits.startup_s
        if working or still < least or (silent is not None and silent < least):
            return None
        return found

    def is_due(self, now: float) -> bool:
        """Whether stacks may be taken: each time that they had changed, the next is put off."""
        return now >= self._not_before

    def compared(self, now: float, stacks: Stacks, suspicion: Suspicion, times: int) -> bool:
        """Take stacks; gives whether those of all ranks that stand have been the same ``times`` times now."""
        standing = {key: stacks[key] for key in suspicion.standing if key in stacks}
        if self._last is not None and not self._same(self._last, standing):
            self._pause = min(max(60.0, self._pause * 2), 3600.0)
            self._not_before = now + self._pause
            self._forget()
            return False
        self._last, self._probes = standing, self._probes + 1
        return self._probes >= times

    def _same(self, before: Stacks, now: Stacks) -> bool:
        """A rank that sleeps is known by its main thread; one that is busy by all: another may work for that one."""
        for key, threads in now.items():
            old = before.get(key, {})
            if self.kinds.get(key, ("asleep", 0.0))[0] == "busy":
                if threads != old:
                    return False
            elif threads.get(key[0]) != old.get(key[0]):
                return False
        return before.keys() == now.keys()

    def report(self, now: float) -> None:
        """It was reported."""
        self.reported = now
        self._forget()
