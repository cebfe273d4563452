"""Training work of the last attempt: logged steps, checkpoints, the last sign of work, seconds per step."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from trackside.evidence import Evidence, Frame, Value, derived
from trackside.facts.cost.allocation import Allocation
from trackside.facts.fact import fact
from trackside.facts.logs.ending import Ending
from trackside.facts.training.learning import logged_steps, numeric_field, step_seconds
from trackside.model import Event, Position, Run
from trackside.query import Query, events

SLACK_S = 60.0
"""A timestamp may lie this far outside its attempt because clocks differ. Beyond it, it belongs to another attempt or
is wrong."""
WORK: Mapping[str, Query] = {
    "progress": events("progress"),
    "saves": events("checkpoint_saved"),
    "evaluations": events("evaluation"),
    "parents": events("parent_progress"),
    "loads": events("checkpoint_loaded"),
    "starts": events("training_start"),
}
"""The queries behind :class:`TrainingWork`."""


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """The last checkpoint: its time, or the step after which it was written; None where the log does not say."""

    time: Value | None
    step: Value | None


@dataclass(frozen=True, eq=False)
class TrainingWork:
    """What the log shows of the last attempt's training, in log order."""

    allocation: Allocation
    points: tuple[Event, ...]
    """Logged steps of the last attempt."""
    logged: bool
    """Whether a log was given."""
    ends: Frame
    progress: Frame
    saves: Frame
    evaluations: Frame
    parents: Frame
    """Logged steps of the run that this one resumed from."""
    loads: Frame
    starts: Frame

    @property
    def has_training(self) -> bool:
        """Whether the log shows at least one step."""
        return bool(self.points or self.saves or self.ends)

    @cached_property
    def finished(self) -> Event | None:
        """The job's closing line that reports success."""
        successful = [row for row in self.ends.events if row.get("status") != "aborted" and self._inside(row)]
        return successful[-1] if successful else None

    @cached_property
    def last_sign(self) -> Value | None:
        """The latest time of a logged step, checkpoint, evaluation or closing line."""
        last: Value | None = None
        for frame in (self.progress, self.saves, self.evaluations, self.ends):
            rows = [row for row in frame.events if row.time is not None and self._inside(row)]
            if rows and (last is None or (rows[-1].time or 0.0) > last.number):
                last = frame.value(max(rows, key=_time_or_zero), "time", "time")
        return last

    @cached_property
    def pace(self) -> Value | None:
        """Seconds per step."""
        return step_seconds(self.points, self.progress)

    def step(self, row: Event) -> Value:
        """The step of a point."""
        return self.progress.value(row, "step")

    @cached_property
    def last_step(self) -> Value | None:
        """The step of the last logged step that prints one."""
        counted = [row for row in self.points if numeric_field(row, "step") is not None]
        return self.step(counted[-1]) if counted else None

    def saved(self, before: float) -> SavedCheckpoint | None:
        """The last checkpoint written by ``before`` (POSIX seconds); None if the log shows none."""
        rows = [row for row in self.saves.events if self._inside(row) and (row.time is None or row.time <= before)]
        if not rows:
            return None
        row = rows[-1]
        if row.time is not None:
            return SavedCheckpoint(self.saves.value(row, "time", "time"), None)
        last_point = self.before(row.at)
        if last_point is not None and last_point.time is not None:
            time = derived(last_point.time, self.progress.value(last_point, "time"), unit="time")
            return SavedCheckpoint(time, None)
        if numeric_field(row, "step") is not None and self.points:
            return SavedCheckpoint(None, self.saves.value(row, "step"))
        return SavedCheckpoint(
            None, None if last_point is None or numeric_field(last_point, "step") is None else self.step(last_point)
        )

    def before(self, position: Position) -> Event | None:
        """The last logged step at or before a position in its file."""
        points = sorted(self.points, key=_location)
        index = bisect_left(points, (position.path, position.line + 1), key=_location)
        return points[index - 1] if index and points[index - 1].at.path == position.path else None

    def _inside(self, row: Event) -> bool:
        return _is_within(row, self.allocation)


@fact(WORK)
def training_work(evidence: Evidence, allocation: Allocation, ending: Ending, run: Run) -> TrainingWork:
    """Needs the allocation; empty without a job log."""
    points = logged_steps(evidence["progress"])
    if len(run.attempts) > 1:
        points = _last_attempts(points, allocation)
    own_points = tuple(row for row in points if _is_within(row, allocation))
    frames = (evidence[name] for name in WORK)
    return TrainingWork(allocation, own_points, evidence.has("progress"), ending.ends, *frames)


def by_run_part(points: Sequence[Event]) -> list[list[Event]]:
    """The points of each run part; numbered where steps go back."""
    parts: dict[float, list[Event]] = {}
    for row in points:
        parts.setdefault(numeric_field(row, "run_part") or 0.0, []).append(row)
    return [parts[part] for part in sorted(parts)]


def _last_attempts(points: Sequence[Event], allocation: Allocation) -> list[Event]:
    """Points of the last attempt: by time, else those after steps last went back."""
    if any(row.time is not None for row in points):
        return [row for row in points if (row.time or 0.0) >= allocation.start.number - SLACK_S]
    parts = by_run_part(points)
    return parts[-1] if parts else []


def _is_within(row: Event, allocation: Allocation) -> bool:
    return row.time is None or allocation.start.number - SLACK_S <= row.time <= allocation.end.number + SLACK_S


def _location(row: Event) -> tuple[str, int]:
    return row.at.path, row.at.line


def _time_or_zero(row: Event) -> float:
    return row.time or 0.0
