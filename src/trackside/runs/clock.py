"""Finds the seconds that align log times without a zone, and metric times, with the scheduler's start and end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from trackside.model import Event, TimeRange

STEP_S = 900.0
"""Time zones differ by multiples of this many seconds."""
MAX_OFFSET_S = 14 * 3600.0
"""The largest offset of a zone from UTC, seconds."""
SLACK_S = 120.0
"""Seconds before its job's start at which a log may begin, and after its end at which it may end."""
MAX_SKEW_S = 600.0
"""A log that lies outside its job's span by fewer seconds is not shifted: that is clock skew, not another zone."""

MAX_SERIES_GAP_S = 120.0
"""Seconds within which a job's series begin and end with the job: prolog, epilog, and a scrape or two."""

JobTimes = tuple[float, float | None]
"""Start and end of the job in POSIX seconds; the end is None if it is unknown."""


def offset_of(times: Sequence[float], span: JobTimes | None) -> float:
    """Seconds to add to the times so that all lie in the job's span; 0 if they do already, or if no offset does that.

    If several offsets fit, the one that puts the first time nearest to the job's start.
    """
    if span is None or not times or _distance_s(times, span) <= MAX_SKEW_S:
        return 0.0
    count = int(MAX_OFFSET_S // STEP_S)
    offsets = [step * STEP_S for step in range(-count, count + 1)]
    fitting = [offset for offset in offsets if _distance_s([time + offset for time in times], span) == 0.0]
    first = min(times)
    return min(fitting, key=lambda offset: (abs(first + offset - span[0]), abs(offset)), default=0.0)


def shift_event(event: Event, offset: float, span: JobTimes | None) -> Event:
    """The event with ``offset`` seconds added to its times; unchanged if it fits as it is and would not when shifted.

    (A container that writes UTC and a slurmstepd that writes local time can share one file.)
    """
    if not offset or event.time is None:
        return event
    if span is not None and _distance_s([event.time], span) == 0.0 and _distance_s([event.time + offset], span) > 0.0:
        return event
    shifted_fields = {
        name: value + offset
        for name in ("first_time", "last_time")
        if isinstance(value := event.fields.get(name), (int, float))
    }
    return replace(event, time=event.time + offset, fields={**event.fields, **shifted_fields})


def _distance_s(times: Iterable[float], span: JobTimes) -> float:
    """The largest number of seconds by which a time lies outside the span and its slack."""
    start, end = span
    worst = 0.0
    for time in times:
        late = time - end - SLACK_S if end is not None else 0.0
        worst = max(worst, start - SLACK_S - time, late)
    return worst


def shift_of(
    span: JobTimes, intervals: Iterable[TimeRange], min_count: int = 1, near: float = MAX_SERIES_GAP_S
) -> float:
    """Seconds to add to the series' times so that at least ``min_count`` GPU intervals fill the span; 0 if no shift
    does that.

    A GPU interval is the time for which one GPU belonged to the job, or was sampled at all, according to its series. If
    the span has no end yet, only its start must fit.
    """
    intervals = list(intervals)
    if -_fit_key(span, intervals, 0.0, near)[0] == len(intervals):
        return 0.0
    count = int(MAX_OFFSET_S // STEP_S)
    best = min((*_fit_key(span, intervals, step * STEP_S, near), abs(step), step) for step in range(-count, count + 1))
    return best[3] * STEP_S if -best[0] >= max(min_count, 1) else 0.0


def _fit_key(span: JobTimes, intervals: Sequence[TimeRange], shift: float, near: float) -> tuple[int, float]:
    """Sort key of a shift (seconds): minus the number of GPU intervals that fit, the sum of their gaps in seconds."""
    start, end = span
    gaps = []
    for first, last in intervals:
        gap = max(abs(first + shift - start), 0.0 if end is None else abs(last + shift - end))
        if gap <= near:
            gaps.append(gap)
    return -len(gaps), sum(gaps)
