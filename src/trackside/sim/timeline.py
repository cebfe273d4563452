"""What a rank does over time, and how much of each it has done by any moment.

A timeline is a list of spells. A spell repeats a pattern (seconds in each state, in the order of the states) with its
period, so that the share of any window, however it lies against the steps, comes out exactly as it would on a machine.
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


class State(enum.IntEnum):
    """What a process does on its GPU; within a step they come in this order."""

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
    """In a collective, for a rank that is late; it will end."""
    COLLECTIVE = 9
    """Data moves between ranks."""
    SAVE = 10
    SPIN = 11
    """In a collective that will never end."""


STATES = len(State)
Pattern = Mapping[State, float]
"""Seconds in each state, a period's worth."""


@dataclass(frozen=True, slots=True)
class Spell:
    """``pattern`` over and over from ``start`` to ``end``; counts are per period, in flight is a level."""

    start: float
    end: float
    pattern: Pattern
    launches: float = 0.0
    collectives: float = 0.0
    steps: float = 0.0
    blocking: float = 0.0
    """Share of kernel time that the launching call waits for (launch-blocking)."""
    in_flight: float = 0.0
    """Collectives begun and not done."""
    held_up: float = 0.0
    """Share of the waiting in collectives in which the host is blocked as well."""

    @property
    def period(self) -> float:
        return sum(self.pattern.values())


@dataclass(slots=True)
class Track:
    """The spells of ranks that do the same, their memory and their processes. Spells must be added in order of time."""

    spells: list[Spell] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)
    """(time, MiB in use): straight lines between the knots."""
    processes: list[tuple[float, float]] = field(default_factory=list)
    """From when to when a CUDA context was held."""
    resident: list[tuple[float, float]] = field(default_factory=list)
    """(time, GiB) host memory of the rank: straight lines between the knots."""

    def copy(self) -> Track:
        """One that can go its own way."""
        return Track(list(self.spells), list(self.memory), list(self.processes), list(self.resident))

    def add(self, start: float, end: float, pattern: Pattern | State, **more: Any) -> None:
        """A spell, unless it has no length."""
        if end > start:
            if isinstance(pattern, State):
                pattern = {pattern: end - start}
            self.spells.append(Spell(start, end, pattern, **more))

    def cut(self, at: float) -> None:
        """Forget what would have come after ``at``; memory and processes stay as they are until they are released."""
        self.spells = [s if s.end <= at else replace(s, end=at) for s in self.spells if s.start < at]
        self.memory = _knots_until(self.memory, at)
        self.resident = _knots_until(self.resident, at)
        self.processes = [(a, b if b <= at else math.inf) for a, b in self.processes if a < at]

    def frozen(self) -> Integral:
        """The integrals, ready to be asked."""
        return Integral(self.spells)

    def memory_at(self, times: Array) -> Array:
        """MiB in use, 0 before the first knot."""
        return _lines(self.memory, times)

    def resident_at(self, times: Array) -> Array:
        """GiB of host memory, 0 before the first knot."""
        return _lines(self.resident, times)


def _knots_until(knots: Sequence[tuple[float, float]], at: float) -> list[tuple[float, float]]:
    kept = [knot for knot in knots if knot[0] < at]
    if kept:
        kept.append((at, float(_lines(knots, np.array([at]))[0])))
    return kept


def _lines(knots: Sequence[tuple[float, float]], times: Array) -> Array:
    if not knots:
        return np.zeros(len(times))
    at = np.array([knot[0] for knot in knots])
    found: Array = np.interp(times, at, np.array([knot[1] for knot in knots]), left=0.0)
    return found


COUNTS = 6
"""Columns after the states: launches, collectives, steps, blocked seconds, collectives in flight, seconds held up."""


class Integral:
    """Seconds spent in each state, and counts, from the beginning to any time. Asked for arrays of times."""

    def __init__(self, spells: Sequence[Spell]) -> None:
        n = len(spells)
        if not n:
            spells, n = [Spell(0.0, 1e-9, {State.OFF: 1e-9})], 1
        self._start = np.array([s.start for s in spells])
        self._end = np.array([s.end for s in spells])
        lengths = np.zeros((n, STATES))
        counts = np.zeros((n, 3))
        level = np.zeros((n, 3))
        for row, spell in enumerate(spells):
            for state, length in spell.pattern.items():
                lengths[row, state] = length
            counts[row] = spell.launches, spell.collectives, spell.steps
            level[row] = spell.blocking, spell.in_flight, spell.held_up
        self._lengths = lengths
        self._offsets = np.cumsum(lengths, axis=1) - lengths
        self._period = np.maximum(lengths.sum(axis=1), 1e-9)
        self._counts = counts
        self._level = level
        self._base = np.zeros((n + 1, STATES + COUNTS))
        self._base[1:] = np.cumsum(self._within(np.arange(n), self._end - self._start), axis=0)

    def _within(self, rows: NDArray[np.intp], elapsed: Array) -> Array:
        """What ``elapsed`` seconds of each spell hold; shape (len(rows), STATES + COUNTS)."""
        period = self._period[rows]
        times, rest = np.divmod(elapsed, period)
        part = np.clip(rest[:, None] - self._offsets[rows], 0.0, self._lengths[rows])
        out = np.empty((len(rows), STATES + COUNTS))
        out[:, :STATES] = times[:, None] * self._lengths[rows] + part
        done = times + rest / period
        out[:, STATES : STATES + 3] = done[:, None] * self._counts[rows]
        level = self._level[rows]
        out[:, STATES + 3] = level[:, 0] * out[:, State.COMPUTE]
        out[:, STATES + 4] = 0.0
        out[:, STATES + 5] = level[:, 2] * (out[:, State.COLLECTIVE] + out[:, State.WAIT])
        return out

    def at(self, times: Array) -> Array:
        """Shape (len(times), STATES + COUNTS); counts of launches and collectives aren't rounded."""
        rows = np.clip(np.searchsorted(self._start, times, "right") - 1, 0, None)
        elapsed = np.clip(times - self._start[rows], 0.0, self._end[rows] - self._start[rows])
        found = self._base[rows] + self._within(rows, elapsed)
        inside = (times >= self._start[rows]) & (times < self._end[rows])
        found[:, STATES + 4] = np.where(inside, self._level[rows, 1], 0.0)
        return found
