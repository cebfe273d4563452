"""Did training stand still in mid-run and then go on: gaps between training points that its own rhythm, and the saves
and evaluations that it printed, don't account for; else rests of its GPUs. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from trackside.evidence import Evidence, Value, derived
from trackside.facts.logs.silence import LIFE
from trackside.facts.training.learning import number, training_points
from trackside.model import Event, Run
from trackside.query import Query, events

STALLS: Mapping[str, Query] = {
    **LIFE,
    "storage": events("storage_fault"),
    "tasks": events("hung_task"),
    "restarts": events("launcher_restart"),
    "loads": events("checkpoint_loaded"),
}
"""What tells of a stall beside the GPUs' activity; a family spreads it into its asks."""
PLANNED = ("evaluations", "saves")
"""What a loop does between its steps, and prints when it is done."""
ANEW = ("restarts", "loads", "inits", "starts")
"""What begins another life of the run: the time between two lives is no stall."""


@dataclass(frozen=True)
class Limits:
    """When a pause is a stall, and when a file server's silence goes with it."""

    least_s: float = 600.0
    """NCCL's default time-out for a collective; evaluations and saves of healthy runs stay under it."""
    caused_s: float = 120.0
    """The same where a file server was silent meanwhile: the kernel calls a task hung after so long."""
    intervals: float = 10.0
    """Times the usual time between two points."""
    again: float = 2.0
    """Times the next longest pause: what comes again and again is a habit (evaluations, saves, epochs)."""
    clocks_s: float = 120.0
    """By so much the kernel's clock and the log's may differ."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Training stood still between two moments, POSIX seconds."""

    since: float
    until: float
    seconds: Value
    storage: tuple[Event, ...] = ()
    """What was said meanwhile of a file system that did not answer."""
    blocked: tuple[Event, ...] = ()
    """Tasks that the kernel saw hang meanwhile."""


def logged(evidence: Evidence, run: Run, limits: Limits) -> Stall | None:
    """The longest pause between two stamped training points of one life; None where no such pause is a stall."""
    gaps = _gaps(evidence, run)
    if len(gaps) < 2:
        return None
    usual = median(after.time - before.time for before, after, _ in gaps)  # type: ignore[operator]
    ordered = sorted(gaps, key=lambda gap: gap[2], reverse=True)
    before, after, excess = ordered[0]
    stall = _stall(evidence, run, before, after, limits)
    if excess < limits.intervals * usual or excess < limits.again * ordered[1][2]:
        return None
    if stall.storage:
        return stall if excess >= limits.caused_s else None
    return stall if excess >= limits.least_s and not _planned(evidence, stall) else None


def longest(evidence: Evidence, run: Run) -> Value | None:
    """Seconds of the longest time between two training points of one life; None where their times aren't told."""
    gaps = _gaps(evidence, run)
    if not gaps:
        return None
    before, after, _ = max(gaps, key=lambda gap: gap[2])
    return _seconds(evidence, before, after)


def _gaps(evidence: Evidence, run: Run) -> list[tuple[Event, Event, float]]:
    """(point, next point, seconds beyond what their steps take) within each life of the run."""
    points = [row for row in training_points(evidence["progress"]) if row.time is not None]
    points = [row for row in points if run.start is None or (row.time or 0.0) >= run.start]
    begun = [attempt.start for attempt in run.attempts if attempt.start is not None]
    begun = sorted([*begun, *(row.time or 0.0 for name in ANEW for row in evidence[name].events)])
    pairs = [(a, b) for a, b in pairwise(points) if (b.time or 0.0) > (a.time or 0.0) and _one_life(begun, a, b)]
    paces = [each / count for a, b in pairs if (each := (b.time or 0.0) - (a.time or 0.0)) and (count := _count(a, b))]
    if not paces:
        return []
    pace = median(paces)
    return [(a, b, (b.time or 0.0) - (a.time or 0.0) - pace * _count(a, b)) for a, b in pairs]


def _count(before: Event, after: Event) -> float:
    """Steps from one point to the next, else points that were printed: a long series is thinned."""
    for name in ("step", "ordinal"):
        first, last = number(before, name), number(after, name)
        if first is not None and last is not None and last > first:
            return last - first
    return 1.0


def _one_life(begun: Sequence[float], before: Event, after: Event) -> bool:
    """Whether nothing began anew between two points; ``begun``: when something did, in order."""
    if before.get("run_part") != after.get("run_part"):
        return False
    return bisect_right(begun, before.time or 0.0) == bisect_right(begun, after.time or 0.0)


def _stall(evidence: Evidence, run: Run, before: Event, after: Event, limits: Limits) -> Stall:
    since, until = before.time or 0.0, after.time or 0.0
    seconds = _seconds(evidence, before, after)
    return Stall(since, until, seconds, *(meanwhile(evidence, run, name, since, until, limits)
                                          for name in ("storage", "tasks")))  # fmt: skip


def meanwhile(evidence: Evidence, run: Run, name: str, since: float, until: float, limits: Limits) -> tuple[Event, ...]:
    """The events of an ask on the run's nodes that fall into a stall."""
    return tuple(
        row
        for row in evidence[name].events
        if row.time is not None
        and since - limits.clocks_s <= row.time <= until
        and (row.node is None or not run.nodes or row.node in run.nodes)
        and row.get("reason") in (None, "unreachable")  # a full disk or a refusal lets nobody wait
    )


def _planned(evidence: Evidence, stall: Stall) -> bool:
    """Whether something that the loop plans was printed in it, so that it may have taken all that time."""
    rows = (row for name in PLANNED for row in evidence[name].events)
    return any(stall.since <= (row.time or 0.0) <= stall.until for row in rows)


def _seconds(evidence: Evidence, before: Event, after: Event) -> Value:
    frame = evidence["progress"]
    sources = [frame.value(row, "time", "time") for row in (before, after)]
    return derived((after.time or 0.0) - (before.time or 0.0), *sources, unit="s")


def unstamped(points: Sequence[Event]) -> bool:
    """Whether the log's points tell no times, so that only the GPUs can show a pause."""
    return not any(row.time is not None for row in points)
