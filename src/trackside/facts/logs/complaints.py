"""What ranks say of a collective that did not go through, or of a peer that is gone. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from trackside.evidence import Evidence
from trackside.facts.logs.ending import abnormal_end
from trackside.facts.logs.exceptions import last_words
from trackside.facts.logs.order import followed_by
from trackside.model import Event, Role

STRONG = ("mismatches", "timeouts", "heartbeats", "states")
"""Asks whose rows alone say that a collective did not go through."""
WEAK = ("peers", "nccl", "exceptions")
"""A peer that is gone, as seen from the others."""


def complaints(evidence: Evidence, points: Sequence[Event]) -> list[tuple[str, Event]]:
    """(ask, row) of what ranks say of others, after which training did not go on and was not over either."""
    over = [row for row in evidence["ends"].events if row.get("status") != "aborted"]
    crashed = abnormal_end(evidence) is not None
    kept: list[tuple[str, Event]] = []
    for name in (*STRONG, *WEAK):
        rows = [row for row in evidence[name].events if row.role in (Role.CASCADE, Role.ROOT)]
        if name == "exceptions":
            rows = [row for row in rows if row.get("about") == "collective"]
        rows = last_words(rows, points, crashed=crashed)
        kept += [(name, row) for row in rows if not over or followed_by(over[-1], [row]) is None]
    return kept


def are_startup(evidence: Evidence, signs: Sequence[tuple[str, Event]], points: Sequence[Event]) -> bool:
    """Whether no collective can have completed yet: that is a matter of the rendezvous."""
    if points or not signs:
        return False
    timed = [row for name, row in signs if name == "timeouts"]
    if timed and all(row.get("seq") in (0, 1) for row in timed):
        return True
    done = [row for row in evidence["communicators"].events if row.get("complete")]
    return not timed and not evidence["ready"] and not done and not any(name == "mismatches" for name, _ in signs)


def stopped_at(signs: Sequence[tuple[str, Event]], points: Sequence[Event]) -> float | None:
    """When it stopped, by the log: a watchdog complains its own time after the collective was entered."""
    first = min((row.time for _, row in signs if row.time is not None), default=None)
    last = max((row.time for row in points if row.time is not None), default=None)
    waited = [row.get("timeout_s") for _, row in signs]
    longest = max((float(each) for each in waited if isinstance(each, (int, float))), default=0.0)
    if first is None:
        return last
    return first - longest if last is None else max(last, first - longest)
