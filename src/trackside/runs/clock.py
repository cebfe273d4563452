"""Line the naive times of a log, or those of curves, up with the scheduler's start and end: another zone wrote them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from trackside.model import Event

STEP_S = 900.0
"""Zones lie a multiple of 15 minutes apart."""
REACH_S = 14 * 3600.0
"""Farthest zone from UTC."""
SLACK_S = 120.0
"""Seconds by which a log may begin before its job's start or end after its end."""
WORTH_S = 600.0
"""A log that is out of the job's span by less is left as it is: that's no zone but a skewed clock."""

NEAR_S = 120.0
"""A job's curves begin and end this near to it: prolog and epilog, and a scrape or two."""

Span = tuple[float, float | None]
"""Start and end of the job; the end may not be known."""
Stretch = tuple[float, float]


def offset_of(times: Sequence[float], span: Span | None) -> float:
    """Seconds to add to the times so that all lie in the job's span; 0 if they do, or if nothing helps.

    Of several offsets that fit, the one that puts the first time nearest to the job's start.
    """
    if span is None or not times or _out(times, span) <= WORTH_S:
        return 0.0
    count = int(REACH_S // STEP_S)
    offsets = [step * STEP_S for step in range(-count, count + 1)]
    fitting = [offset for offset in offsets if _out([time + offset for time in times], span) == 0.0]
    first = min(times)
    return min(fitting, key=lambda offset: (abs(first + offset - span[0]), abs(offset)), default=0.0)


def shifted(event: Event, offset: float, span: Span | None) -> Event:
    """The event with its time moved; one that fits as it is and would not when moved keeps its time.

    (A container that writes UTC and a slurmstepd that writes local time share one file.)
    """
    if not offset or event.time is None:
        return event
    if span is not None and _out([event.time], span) == 0.0 and _out([event.time + offset], span) > 0.0:
        return event
    moved = {
        name: value + offset
        for name in ("first_time", "last_time")
        if isinstance(value := event.fields.get(name), (int, float))
    }
    return replace(event, time=event.time + offset, fields={**event.fields, **moved})


def _out(times: Iterable[float], span: Span) -> float:
    """Seconds by which the worst of the times lies outside the span and its slack."""
    start, end = span
    worst = 0.0
    for time in times:
        late = time - end - SLACK_S if end is not None else 0.0
        worst = max(worst, start - SLACK_S - time, late)
    return worst


def shift_of(told: Span, stretches: Iterable[Stretch], least: int = 1, near: float = NEAR_S) -> float:
    """Seconds to add to the curves' times so that at least so many of these stretches fill the window; 0 if none does.

    A stretch is when one GPU was the job's, or was sampled at all, as its curves tell. Zones lie a multiple of a
    quarter of an hour apart. Where the window has no end yet, its start alone must fit.
    """
    stretches = list(stretches)
    if -_fit(told, stretches, 0.0, near)[0] == len(stretches):
        return 0.0
    count = int(REACH_S // STEP_S)
    best = min((*_fit(told, stretches, step * STEP_S, near), abs(step), step) for step in range(-count, count + 1))
    return best[3] * STEP_S if -best[0] >= max(least, 1) else 0.0


def _fit(told: Span, stretches: Sequence[Stretch], shift: float, near: float) -> tuple[int, float]:
    """(how many stretches fit, negative; by how much they miss)."""
    start, end = told
    gaps = []
    for first, last in stretches:
        gap = max(abs(first + shift - start), 0.0 if end is None else abs(last + shift - end))
        if gap <= near:
            gaps.append(gap)
    return -len(gaps), sum(gaps)
