"""Before and after, among events whose clocks and files differ. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trackside.model import Event


def follows(later: Event, earlier: Event) -> bool | None:
    """Whether ``later`` came after ``earlier``: by line in one file, else by time; None if neither tells."""
    if later.at.path == earlier.at.path:
        return (later.at.line, later.at.offset) > (earlier.at.line, earlier.at.offset)
    if later.time is not None and earlier.time is not None:
        return later.time > earlier.time
    return None


def followed_by(event: Event, others: Iterable[Event]) -> Event | None:
    """The last of ``others`` that is known to have come after ``event``."""
    after = [other for other in others if follows(other, event)]
    return after[-1] if after else None


def first(events: Sequence[Event]) -> Event | None:
    """The earliest event: by time where all have one or where files differ, else by place in the file."""
    best: Event | None = None
    for event in events:
        if best is None or follows(best, event):
            best = event
    return best


def points_before(progress: Iterable[Event], event: Event | None = None) -> list[Event]:
    """The training points known to lie before ``event`` (all of them without one).

    A point in another file without times counts as before: a rank prints its progress while it runs.
    """
    if event is None:
        return list(progress)
    return [point for point in progress if follows(point, event) is not True]
