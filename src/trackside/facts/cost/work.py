"""Where did a run's work stand: its last training point, its last checkpoint, the seconds of its steps. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trackside.evidence import Evidence, Value, derived
from trackside.facts.cost.held import SAME_S, Held
from trackside.facts.training.learning import number, step_seconds, training_points
from trackside.finding import Finding
from trackside.model import Event, Position, Run
from trackside.query import Query, events

SLACK_S = 60.0
"""By so much a time stamp may lie outside the attempt: clocks differ. Beyond it, it is another attempt's or wrong."""
WORK: Mapping[str, Query] = {
    "progress": events("progress"),
    "saves": events("checkpoint_saved"),
    "loads": events("checkpoint_loaded"),
    "evaluations": events("evaluation"),
    "ends": events("training_end"),
    "parents": events("parent_progress"),
    "starts": events("training_start"),
}
"""What tells."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The last checkpoint: when it was written, or after which step; None where that isn't told."""

    row: Event
    time: Value | None
    step: Value | None


@dataclass(frozen=True, slots=True)
class Work:
    """What the last attempt's log tells of its training, in the order of the log."""

    evidence: Evidence
    held: Held
    points: tuple[Event, ...]
    told: bool
    """Whether there was a log that could tell."""

    @property
    def begun(self) -> bool:
        """Whether it did a step, as far as its log tells."""
        return bool(self.points or self.evidence["saves"] or self.evidence["ends"])

    @property
    def finished(self) -> Event | None:
        """The log's word that training was over and had gone well."""
        good = [row for row in self.evidence["ends"].events if row.get("status") != "aborted" and self._inside(row)]
        return good[-1] if good else None

    @property
    def last_sign(self) -> Value | None:
        """When the last training point, checkpoint or evaluation was stamped."""
        best: Value | None = None
        for name in ("progress", "saves", "evaluations", "ends"):
            frame = self.evidence[name]
            rows = [row for row in frame.events if row.time is not None and self._inside(row)]
            if rows and (best is None or (rows[-1].time or 0.0) > best.number):
                best = frame.value(max(rows, key=_time), "time", "time")
        return best

    @property
    def pace(self) -> Value | None:
        """Seconds a step."""
        return step_seconds(self.points, self.evidence["progress"])

    def step(self, row: Event) -> Value:
        """A point's step."""
        return self.evidence["progress"].value(row, "step")

    @property
    def last_step(self) -> Value | None:
        """Of the last training point that tells one."""
        counted = [row for row in self.points if number(row, "step") is not None]
        return self.step(counted[-1]) if counted else None

    def saved(self, before: float) -> Saved | None:
        """The last checkpoint that was written by a moment (POSIX seconds); None where no line tells of one."""
        frame = self.evidence["saves"]
        rows = [row for row in frame.events if self._inside(row) and (row.time is None or row.time <= before)]
        if not rows:
            return None
        row = rows[-1]
        if row.time is not None:
            return Saved(row, frame.value(row, "time", "time"), None)
        near = self.before(row.at)
        if near is not None and near.time is not None:
            return Saved(row, derived(near.time, self.evidence["progress"].value(near, "time"), unit="time"), None)
        if number(row, "step") is not None and self.points:
            return Saved(row, None, frame.value(row, "step"))
        return Saved(row, None, None if near is None or number(near, "step") is None else self.step(near))

    def before(self, at: Position) -> Event | None:
        """The last training point that stands before a place in its file, or at it."""
        places = [(row.at.path, row.at.line) for row in self.points]
        if places != sorted(places):
            ordered = sorted(zip(places, self.points, strict=True), key=lambda pair: pair[0])
            places, points = [place for place, _ in ordered], [row for _, row in ordered]
        else:
            points = list(self.points)
        index = bisect_left(places, (at.path, at.line + 1))
        return points[index - 1] if index and points[index - 1].at.path == at.path else None

    def _inside(self, row: Event) -> bool:
        return _within(row, self.held)


def work(evidence: Evidence, run: Run, held: Held) -> Work:
    """The last attempt's."""
    points = training_points(evidence["progress"])
    if len(run.attempts) > 1:
        points = _last_attempts(points, held)
    return Work(evidence, held, tuple(row for row in points if _within(row, held)), evidence.has("progress"))


def lives(points: Sequence[Event]) -> list[list[Event]]:
    """The points of each life of the run: it begins anew where its steps go back."""
    found: dict[float, list[Event]] = {}
    for row in points:
        found.setdefault(number(row, "run_part") or 0.0, []).append(row)
    return [found[part] for part in sorted(found)]


def moment(finding: Finding, held: Held) -> Value | None:
    """When a fault began, with what shows it; None where that isn't told, or was before the attempt."""
    since = finding.since
    cites = [cite for claim in finding.shows for cite in claim.cites]
    if since is None or not cites or not held.start.number - SAME_S <= since <= held.end.number + SLACK_S:
        return None
    exact = [cite for cite in cites if cite.window is not None and cite.window[0] <= since <= cite.window[1]]
    within = min(max(since, held.start.number), held.end.number)
    return Value(within, tuple(dict.fromkeys(exact or cites[:2]))[:3], "time")


def _last_attempts(points: Sequence[Event], held: Held) -> list[Event]:
    """Those of the last attempt: by their times, else those since steps last went back."""
    if any(row.time is not None for row in points):
        return [row for row in points if (row.time or 0.0) >= held.start.number - SLACK_S]
    parts = lives(points)
    return parts[-1] if parts else []


def _within(row: Event, held: Held) -> bool:
    return row.time is None or held.start.number - SLACK_S <= row.time <= held.end.number + SLACK_S


def _time(row: Event) -> float:
    return row.time or 0.0
