"""Pauses of training in mid-run: gaps between logged steps that are longer than their steps take, within one
run part.

The longest is compared with the run's usual interval and the next longest: recurring pauses are normal. An evaluation
or a save printed meanwhile may explain a pause. Points without times show no pause.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median

from trackside.evidence import Evidence, Frame, Missing, Value, derived
from trackside.facts.fact import fact
from trackside.facts.logs.silence import Silence
from trackside.facts.training.learning import numeric_field
from trackside.model import Event, Run
from trackside.query import Query, events

PAUSES: Mapping[str, Query] = {
    "storage": events("storage_fault"),
    "tasks": events("hung_task"),
    "restarts": events("launcher_restart"),
    "loads": events("checkpoint_loaded"),
}
"""The queries behind :class:`TrainingPauses`."""
PLANNED_ACTIVITIES = ("evaluations", "saves")
"""What a loop does between its steps, and prints when it is done."""
RUN_PART_STARTS = ("inits", "starts")
"""Signs of life that begin another run part: the time between two is not a pause."""


@dataclass(frozen=True)
class Limits:
    """Tolerance for events in a pause."""

    max_clock_difference_s: float = 120.0
    """Maximum difference between the kernel's clock and the log's."""


@dataclass(frozen=True, slots=True)
class StepGap:
    """The time between two stamped logged steps of one run part."""

    before: Event
    after: Event
    excess_s: float
    """Seconds beyond what the steps between them take."""

    @property
    def since(self) -> float:
        """POSIX seconds."""
        return self.before.time or 0.0

    @property
    def until(self) -> float:
        """POSIX seconds."""
        return self.after.time or 0.0


@dataclass(frozen=True, eq=False)
class TrainingPauses:
    """The gaps between logged steps, and other events in them."""

    storage: Frame
    """Lines about file systems that failed or did not respond."""
    tasks: Frame
    """The kernel's reports of hung tasks."""
    restarts: Frame
    loads: Frame
    silence: Silence
    run: Run
    limits: Limits

    @property
    def missing_steps(self) -> Missing | None:
        """Why there are no logged steps; None if the log was read."""
        return self.silence.trajectory if isinstance(self.silence.trajectory, Missing) else None

    @cached_property
    def has_times(self) -> bool:
        """Whether any logged step carries a time."""
        return any(row.time is not None for row in self.silence.points)

    @property
    def longest(self) -> StepGap | None:
        """The gap with the most time beyond its steps."""
        return self._gaps[0] if self._gaps else None

    @property
    def next_excess_s(self) -> float:
        """The excess of the next longest gap; 0 if there is none."""
        return self._gaps[1].excess_s if len(self._gaps) > 1 else 0.0

    @cached_property
    def usual_s(self) -> float | None:
        """The median seconds between two points; None if there are fewer than two gaps."""
        return median(gap.until - gap.since for gap in self._gaps) if len(self._gaps) > 1 else None

    def seconds(self, gap: StepGap) -> Value:
        """Length of a gap."""
        sources = (self.silence.signs["progress"].value(row, "time", "time") for row in (gap.before, gap.after))
        return derived(gap.until - gap.since, *sources, unit="s")

    def steps(self, gap: StepGap) -> Value | None:
        """How many steps lie in a gap; None if it is one, or not known."""
        count = _steps(gap.before, gap.after)
        if count <= 1 or not count.is_integer():
            return None
        frame = self.silence.signs["progress"]
        return derived(int(count), *(frame.value(row, "step") for row in (gap.before, gap.after)))

    def is_planned(self, gap: StepGap) -> bool:
        """Whether a planned activity was printed in it, so that it may explain the whole gap."""
        rows = (row for name in PLANNED_ACTIVITIES for row in self.silence.signs[name].events)
        return any(gap.since <= (row.time or 0.0) <= gap.until for row in rows)

    def events_during(self, frame: Frame, since: float, until: float) -> tuple[Event, ...]:
        """The rows of ``storage`` or ``tasks`` on the run's nodes in (since, until), POSIX seconds."""
        return tuple(
            row
            for row in frame.events
            if row.time is not None
            and since - self.limits.max_clock_difference_s <= row.time <= until
            and (row.node is None or not self.run.nodes or row.node in self.run.nodes)
            and row.get("reason") in (None, "unreachable")  # a full disk or a refusal lets nobody wait
        )

    @cached_property
    def _gaps(self) -> tuple[StepGap, ...]:
        """The gaps within a run part, the longest beyond its steps first."""
        start = self.run.start
        rows = self.silence.points
        points = [row for row in rows if row.time is not None and (start is None or row.time >= start)]
        beginnings = self._beginnings
        pairs = [
            (before, after)
            for before, after in pairwise(points)
            if (after.time or 0.0) > (before.time or 0.0) and _in_one_run_part(beginnings, before, after)
        ]
        lengths = [((after.time or 0.0) - (before.time or 0.0), _steps(before, after)) for before, after in pairs]
        paces = [length / steps for length, steps in lengths]
        if not paces:
            return ()
        pace = median(paces)
        gaps = (StepGap(*pair, length - pace * steps) for pair, (length, steps) in zip(pairs, lengths, strict=True))
        return tuple(sorted(gaps, key=lambda gap: gap.excess_s, reverse=True))

    @cached_property
    def _beginnings(self) -> list[float]:
        """When the run parts began, in order."""
        attempts = [attempt.start for attempt in self.run.attempts if attempt.start is not None]
        frames = (self.restarts, self.loads, *(self.silence.signs[name] for name in RUN_PART_STARTS))
        return sorted([*attempts, *(row.time or 0.0 for frame in frames for row in frame.events)])


@fact(PAUSES, limits=Limits())
def training_pauses(evidence: Evidence, silence: Silence, run: Run, limits: Limits) -> TrainingPauses:
    """Needs no particular input; without gaps if no logged step carries a time."""
    storage, tasks, restarts, loads = (evidence[name] for name in PAUSES)
    return TrainingPauses(storage, tasks, restarts, loads, silence, run, limits)


def _steps(before: Event, after: Event) -> float:
    """Steps from one point to the next, else the number of printed points: a long series is thinned."""
    for name in ("step", "ordinal"):
        first, last = numeric_field(before, name), numeric_field(after, name)
        if first is not None and last is not None and last > first:
            return last - first
    return 1.0


def _in_one_run_part(beginnings: Sequence[float], before: Event, after: Event) -> bool:
    """Whether no new run part began between two points; ``beginnings``: when they began, in order."""
    if before.get("run_part") != after.get("run_part"):
        return False
    return bisect_right(beginnings, before.time or 0.0) == bisect_right(beginnings, after.time or 0.0)
