"""Order of events whose clocks and files differ. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trackside.model import Event

MIN_LINES_WITHOUT_ERROR = 80
"""Lines after the last error of a log from which the log is a run that went on. In the public logs at hand at most 58
lines follow the last error of a run that crashed; of runs that went on, mostly 83 and more."""


def follows(later: Event, earlier: Event) -> bool | None:
    """Whether ``later`` came after ``earlier``: by line in one file, else by time; None if both are unknown."""
    if later.at.path == earlier.at.path:
        return (later.at.line, later.at.offset) > (earlier.at.line, earlier.at.offset)
    if later.time is not None and earlier.time is not None:
        return later.time > earlier.time
    return None


def last_after(event: Event, others: Iterable[Event]) -> Event | None:
    """The last of ``others`` that is known to have come after ``event``; a bar that a process draws when it exits does
    not count."""
    events = others if isinstance(others, Sequence) else tuple(others)
    return next((later for later in reversed(events) if follows(later, event) and not later.get("at_exit")), None)


def latest(events: Iterable[Event]) -> list[Event]:
    """The few events that decide whether anything came after another: the last of each file by position and by time."""
    by_line: dict[str, Event] = {}
    by_time: dict[str, Event] = {}
    for event in events:
        if event.get("at_exit"):
            continue
        path = event.at.path
        if path not in by_line or follows(event, by_line[path]):
            by_line[path] = event
        newest = by_time.get(path)
        if event.time is not None and (newest is None or newest.time is None or event.time > newest.time):
            by_time[path] = event
    return [*by_time.values(), *by_line.values()]


def first(events: Sequence[Event]) -> Event | None:
    """The earliest event: by time if all have one or if files differ, else by position in the file."""
    best: Event | None = None
    for event in events:
        if best is None or follows(best, event):
            best = event
    return best


def logs_that_went_on(logs: Iterable[Event]) -> frozenset[str]:
    """Paths of the logs that go on for long after their last error of any kind: none of them ended the run. ``logs``:
    the activity of the logs."""
    lines = ((log.at.path, log.get("lines_after_errors")) for log in logs)
    return frozenset(path for path, count in lines if isinstance(count, int) and count >= MIN_LINES_WITHOUT_ERROR)


def points_before(progress: Iterable[Event], event: Event | None = None) -> list[Event]:
    """The logged steps before ``event`` (all of them if None).

    A point in another file without times counts as before: a rank prints its progress while it runs.
    """
    if event is None:
        return list(progress)
    return [point for point in progress if follows(point, event) is not True]
