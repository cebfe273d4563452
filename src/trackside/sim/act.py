"""One start of a job: what its ranks did, what it logged, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trackside.sim.learning import Curve
from trackside.sim.timeline import Pattern, State, Track


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank runs."""

    rank: int
    node: str
    gpu: int
    local: int

    @property
    def key(self) -> str:
        """As ``node:index``."""
        return f"{self.node}:{self.gpu}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A line (or several) of the job's output. ``rank`` None: the launcher or Slurm."""

    time: float
    text: str
    rank: int | None = None
    node: str | None = None
    error: bool = False
    """On standard error."""
    marked: bool = False
    """The text says itself whose it is: it gets no rank prefix."""
    end: str = "\n"


@dataclass(frozen=True, slots=True)
class Mark:
    """An interruption between steps: eval, checkpoint or shuffle, after ``step``."""

    kind: str
    step: int
    start: float
    end: float


@dataclass(slots=True)
class Ending:
    """How Slurm saw it end."""

    time: float
    state: str = "COMPLETED"
    code: int = 0
    signal: int = 0
    by: str = ""
    """Who cancelled it, as sacct writes it: ``by 1000``."""


@dataclass(slots=True)
class Act:
    """A start of a job on its places. Times are POSIX seconds, UTC."""

    job: str
    places: tuple[Place, ...]
    submit: float
    start: float
    restarts: int = 0
    first_step: int = 0
    last_step: int = 0
    parent: str = ""
    curve: Curve = field(default_factory=Curve)
    loads: str = ""
    """Checkpoint that the log says it loads."""
    tracks: list[Track] = field(default_factory=list)
    of: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    """rank -> index in ``tracks``"""
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)
    """launch, import, rendezvous, load, compile, train, end -> when."""
    step_ends: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """When each completed step ended; the first is ``first_step + 1``."""
    marks: list[Mark] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    ending: Ending = field(default_factory=lambda: Ending(0.0))

    @property
    def end(self) -> float:
        return self.ending.time

    @property
    def steps_done(self) -> int:
        """Number of the last completed step."""
        return self.first_step + len(self.step_ends)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(place.node for place in self.places))

    def track(self, rank: int) -> Track:
        """The track that a rank is on; others may be on it too."""
        return self.tracks[int(self.of[rank])]

    def part(self, ranks: Iterable[int] | None = None) -> list[Track]:
        """Tracks that only these ranks are on (all ranks: None), splitting those that others are on as well."""
        if ranks is None:
            return self.tracks
        wanted = np.zeros(len(self.of), dtype=bool)
        wanted[list(ranks)] = True
        found = []
        for index in np.unique(self.of[wanted]):
            mine = (self.of == index) & wanted
            if np.count_nonzero(mine) < np.count_nonzero(self.of == index):
                self.tracks.append(self.tracks[index].copy())
                self.of[mine] = index = len(self.tracks) - 1
            found.append(self.tracks[int(index)])
        return found

    def spend(self, ranks: Iterable[int] | None, start: float, end: float, what: Pattern | State, **more: Any) -> None:
        """Let ranks do something from ``start`` to ``end``."""
        for track in self.part(ranks):
            track.add(start, end, what, **more)

    def others(self, ranks: Iterable[int]) -> list[int]:
        """All other ranks."""
        return sorted(set(range(len(self.places))) - set(ranks))

    def release(self, ranks: Iterable[int] | None, at: float) -> None:
        """Processes end: memory and context go."""
        for track in self.part(ranks):
            for knots in (track.memory, track.resident):
                if knots and knots[-1][1] > 0:
                    last = max(at, knots[-1][0])
                    knots += [(last, knots[-1][1]), (last + 0.5, 0.0)]
            track.processes = [(a, min(b, at)) for a, b in track.processes if a < at]

    def say(self, time: float, text: str, rank: int | None = None, **more: Any) -> None:
        """A line of the job's output."""
        node = self.places[rank].node if rank is not None else None
        self.entries.append(Entry(time, text, rank, more.pop("node", node), **more))

    def cut(self, at: float) -> None:
        """Forget everything after ``at``: something else is going to happen."""
        for track in self.tracks:
            track.cut(at)
        self.entries = [entry for entry in self.entries if entry.time <= at]
        self.marks = [mark for mark in self.marks if mark.start < at]
        self.step_ends = self.step_ends[self.step_ends <= at]
        self.phases = {name: (a, min(b, at)) for name, (a, b) in self.phases.items() if a < at}
