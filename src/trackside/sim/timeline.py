"""What a rank does over time, and how much of each activity it has done by any time.

A timeline is a list of spans. A span repeats a pattern (seconds in each state, in the order of the states) with its
period, so that the shares of any window, however it lies relative to the steps, are exactly those of a real machine.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class RankState(enum.IntEnum):
    """What a process does on its GPU; within a step the states come in this order."""

    OFF = 0
    """No process."""
    IDLE = 1
    """A process that does nothing on the GPU: importing, blocked, stuck on the host."""
    LOAD = 2
    COMPILE = 3
    DATA = 4
    """Waiting for the next batch."""
    GAP = 5
    """Nothing queued between kernels."""
    COMPUTE = 6
    EVAL = 7
    WAIT = 8
    """In a collective, waiting for a late rank; it will end."""
    COLLECTIVE = 9
    """Data moves between ranks."""
    SAVE = 10
    SPIN = 11
    """In a collective that will never end."""


STATE_COUNT = len(RankState)
StatePattern = Mapping[RankState, float]
"""Seconds in each state within one period."""


@dataclass(frozen=True, slots=True)
class ActivitySpan:
    """``pattern`` repeated from ``start`` to ``end``; counts are per period, ``in_flight`` is a level."""

    start: float
    end: float
    pattern: StatePattern
    launches: float = 0.0
    collectives: float = 0.0
    steps: float = 0.0
    blocking: float = 0.0
    """Share of kernel time for which the launching call waits (launch-blocking)."""
    in_flight: float = 0.0
    """Collectives started and not finished."""
    host_blocked: float = 0.0
    """Share of the waiting in collectives in which the host is blocked too."""

    @property
    def period(self) -> float:
        return sum(self.pattern.values())


@dataclass(slots=True)
class Track:
    """The spans of ranks that do the same, their memory and their processes. Spans must be added in order of time."""

    spans: list[ActivitySpan] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)
    """(time, MiB in use): linear between the knots."""
    processes: list[tuple[float, float]] = field(default_factory=list)
    """(start, end) of each CUDA context."""
    resident: list[tuple[float, float]] = field(default_factory=list)
    """(time, GiB) host memory of the rank: linear between the knots."""

    def copy(self) -> Track:
        """An independent copy."""
        return Track(list(self.spans), list(self.memory), list(self.processes), list(self.resident))

    def add(self, start: float, end: float, pattern: StatePattern | RankState, **counts: Any) -> None:
        """Add a span, unless it has no length."""
        if end > start:
            if isinstance(pattern, RankState):
                pattern = {pattern: end - start}
            self.spans.append(ActivitySpan(start, end, pattern, **counts))

    def truncate(self, time: float) -> None:
        """Drop everything after ``time``; memory and processes stay as they are until they are released."""
        self.spans = [span if span.end <= time else replace(span, end=time) for span in self.spans if span.start < time]
        self.memory = _knots_until(self.memory, time)
        self.resident = _knots_until(self.resident, time)
        self.processes = [(a, b if b <= time else math.inf) for a, b in self.processes if a < time]

    def integral(self) -> StateIntegral:
        """The integrals of the spans added so far."""
        return StateIntegral(self.spans)

    def memory_at(self, times: Array) -> Array:
        """MiB in use, 0 before the first knot."""
        return _interpolate(self.memory, times)

    def resident_at(self, times: Array) -> Array:
        """GiB of host memory, 0 before the first knot."""
        return _interpolate(self.resident, times)


def _knots_until(knots: Sequence[tuple[float, float]], time: float) -> list[tuple[float, float]]:
    knots_before = [knot for knot in knots if knot[0] < time]
    if knots_before:
        knots_before.append((time, float(_interpolate(knots, np.array([time]))[0])))
    return knots_before


def _interpolate(knots: Sequence[tuple[float, float]], times: Array) -> Array:
    if not knots:
        return np.zeros(len(times))
    knot_times = np.array([knot[0] for knot in knots])
    values: Array = np.interp(times, knot_times, np.array([knot[1] for knot in knots]), left=0.0)
    return values


COUNT_COLUMNS = 6
"""Number of columns after the states: launches, collectives, steps, blocked seconds, collectives in flight, seconds
in which the host is blocked."""


class StateIntegral:
    """Seconds spent in each state, and counts, from the beginning to any time; evaluated for arrays of times."""

    def __init__(self, spans: Sequence[ActivitySpan]) -> None:
        n = len(spans)
        if not n:
            spans, n = [ActivitySpan(0.0, 1e-9, {RankState.OFF: 1e-9})], 1
        self._start = np.array([s.start for s in spans])
        self._end = np.array([s.end for s in spans])
        lengths = np.zeros((n, STATE_COUNT))
        counts = np.zeros((n, 3))
        level = np.zeros((n, 3))
        for row, span in enumerate(spans):
            for state, length in span.pattern.items():
                lengths[row, state] = length
            counts[row] = span.launches, span.collectives, span.steps
            level[row] = span.blocking, span.in_flight, span.host_blocked
        self._lengths = lengths
        self._offsets = np.cumsum(lengths, axis=1) - lengths
        self._period = np.maximum(lengths.sum(axis=1), 1e-9)
        self._counts = counts
        self._level = level
        self._base = np.zeros((n + 1, STATE_COUNT + COUNT_COLUMNS))
        self._base[1:] = np.cumsum(self._within(np.arange(n), self._end - self._start), axis=0)

    def _within(self, rows: NDArray[np.intp], elapsed: Array) -> Array:
        """What ``elapsed`` seconds of each span contain; shape (len(rows), STATE_COUNT + COUNT_COLUMNS)."""
        period = self._period[rows]
        whole_periods, remainder = np.divmod(elapsed, period)
        part = np.clip(remainder[:, None] - self._offsets[rows], 0.0, self._lengths[rows])
        totals = np.empty((len(rows), STATE_COUNT + COUNT_COLUMNS))
        totals[:, :STATE_COUNT] = whole_periods[:, None] * self._lengths[rows] + part
        periods = whole_periods + remainder / period
        totals[:, STATE_COUNT : STATE_COUNT + 3] = periods[:, None] * self._counts[rows]
        level = self._level[rows]
        totals[:, STATE_COUNT + 3] = level[:, 0] * totals[:, RankState.COMPUTE]
        totals[:, STATE_COUNT + 4] = 0.0
        totals[:, STATE_COUNT + 5] = level[:, 2] * (totals[:, RankState.COLLECTIVE] + totals[:, RankState.WAIT])
        return totals

    def at(self, times: Array) -> Array:
        """Shape (len(times), STATE_COUNT + COUNT_COLUMNS); counts of launches and collectives are not rounded."""
        rows = np.clip(np.searchsorted(self._start, times, "right") - 1, 0, None)
        elapsed = np.clip(times - self._start[rows], 0.0, self._end[rows] - self._start[rows])
        totals = self._base[rows] + self._within(rows, elapsed)
        is_running = (times >= self._start[rows]) & (times < self._end[rows])
        totals[:, STATE_COUNT + 4] = np.where(is_running, self._level[rows, 1], 0.0)
        return totals
