"""One start of a job: what its ranks did, what it logged, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trackside.sim.learning import LearningCurve
from trackside.sim.timeline import RankState, StatePattern, Track


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a rank runs: node, GPU index on the node, local rank."""

    rank: int
    node: str
    gpu: int
    local_rank: int

    @property
    def key(self) -> str:
        """The GPU as ``node:index``."""
        return f"{self.node}:{self.gpu}"


@dataclass(frozen=True, slots=True)
class PrintedText:
    """One or several lines of the job's output. ``rank`` is None for the launcher and Slurm."""

    time: float
    text: str
    rank: int | None = None
    node: str | None = None
    error: bool = False
    """Whether it goes to standard error."""
    marked: bool = False
    """Whether the text itself names its rank: it then gets no rank prefix."""
    end: str = "\n"


@dataclass(frozen=True, slots=True)
class Interruption:
    """An evaluation, checkpoint or shuffle between two steps, after ``step``."""

    kind: str
    step: int
    start: float
    end: float


@dataclass(slots=True)
class JobOutcome:
    """The end of the job as Slurm records it."""

    time: float
    state: str = "COMPLETED"
    code: int = 0
    signal: int = 0
    canceled_by: str = ""
    """Who canceled it, as sacct writes it: ``by 1000``."""


@dataclass(slots=True)
class JobAttempt:
    """One start of a job on its placements. Times are POSIX seconds, UTC."""

    job: str
    placements: tuple[Placement, ...]
    submit: float
    start: float
    restarts: int = 0
    first_step: int = 0
    last_step: int = 0
    parent: str = ""
    curve: LearningCurve = field(default_factory=LearningCurve)
    loaded_checkpoint: str = ""
    """The checkpoint that the log says it loads."""
    tracks: list[Track] = field(default_factory=list)
    track_index: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    """rank -> index in ``tracks``"""
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)
    """launch, import, rendezvous, load, compile, train, end -> (start, end)."""
    step_ends: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """When each completed step ended; the first is step ``first_step + 1``."""
    interruptions: list[Interruption] = field(default_factory=list)
    entries: list[PrintedText] = field(default_factory=list)
    outcome: JobOutcome = field(default_factory=lambda: JobOutcome(0.0))

    @property
    def end(self) -> float:
        return self.outcome.time

    @property
    def steps_done(self) -> int:
        """Number of the last completed step."""
        return self.first_step + len(self.step_ends)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(placement.node for placement in self.placements))

    def track(self, rank: int) -> Track:
        """The track of a rank; other ranks may share it."""
        return self.tracks[int(self.track_index[rank])]

    def split_tracks(self, ranks: Iterable[int] | None = None) -> list[Track]:
        """Tracks that only these ranks use (None: all tracks), splitting those that other ranks share."""
        if ranks is None:
            return self.tracks
        selected = np.zeros(len(self.track_index), dtype=bool)
        selected[list(ranks)] = True
        tracks = []
        for index in np.unique(self.track_index[selected]):
            members = (self.track_index == index) & selected
            if np.count_nonzero(members) < np.count_nonzero(self.track_index == index):
                self.tracks.append(self.tracks[index].copy())
                self.track_index[members] = index = len(self.tracks) - 1
            tracks.append(self.tracks[int(index)])
        return tracks

    def add_activity(
        self, ranks: Iterable[int] | None, start: float, end: float, activity: StatePattern | RankState, **counts: Any
    ) -> None:
        """Let ranks do something from ``start`` to ``end``."""
        for track in self.split_tracks(ranks):
            track.add(start, end, activity, **counts)

    def other_ranks(self, ranks: Iterable[int]) -> list[int]:
        """All ranks except these."""
        return sorted(set(range(len(self.placements))) - set(ranks))

    def release(self, ranks: Iterable[int] | None, time: float) -> None:
        """End the ranks' processes: their memory and CUDA context are released."""
        for track in self.split_tracks(ranks):
            for knots in (track.memory, track.resident):
                if knots and knots[-1][1] > 0:
                    last = max(time, knots[-1][0])
                    knots += [(last, knots[-1][1]), (last + 0.5, 0.0)]
            track.processes = [(a, min(b, time)) for a, b in track.processes if a < time]

    def log(self, time: float, text: str, rank: int | None = None, **options: Any) -> None:
        """Add a line to the job's output."""
        node = self.placements[rank].node if rank is not None else None
        self.entries.append(PrintedText(time, text, rank, options.pop("node", node), **options))

    def truncate(self, time: float) -> None:
        """Drop everything after ``time``: something else will happen instead."""
        for track in self.tracks:
            track.truncate(time)
        self.entries = [entry for entry in self.entries if entry.time <= time]
        self.interruptions = [interruption for interruption in self.interruptions if interruption.start < time]
        self.step_ends = self.step_ends[self.step_ends <= time]
        self.phases = {name: (a, min(b, time)) for name, (a, b) in self.phases.items() if a < time}
