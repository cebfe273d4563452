"""Line the curves' times up with the run's window, where the two were written in different zones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trackside.runs.clock import REACH_S, STEP_S, Span

Stretch = tuple[float, float]
NEAR_S = 120.0
"""A job's curves begin and end this near to it: prolog and epilog, and a scrape or two."""


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
