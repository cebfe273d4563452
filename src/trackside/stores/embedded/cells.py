"""Rollups of some series at one step, computed once: tables that hold the values of all their windows.

Where samples are so old that only per-minute aggregates are left, ``avg``, ``sum``, ``count``, ``min``, ``max`` and
``last`` are exact for windows of whole minutes; in shorter windows a minute counts at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trackside.stores.embedded.order import Indices, SortedSamples, StoredSamples, Values, sort_samples
from trackside.stores.memory_backend import rolled_up
from trackside.stores.metric_backend import EngineRollup, RollupRequest

MIN_USED_RATIO = 0.75
"""If less than this share of the time that was read is needed, the other samples are cut off before they are
reduced."""


@dataclass(frozen=True, slots=True, eq=False)
class SampleRead:
    """Samples, and the per-minute aggregates of older ones; ``length_ms`` is the length of the time that was read."""

    samples: StoredSamples
    minutes: dict[str, NDArray[Any]] | None
    length_ms: int

    def pieces(self) -> Iterator[SortedSamples]:
        """The samples in order, some groups at a time; all at once if per-minute aggregates must be merged in."""
        if self.minutes is None:
            yield from self.samples.pieces()
        else:
            empty = np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0)
            pieces = [SortedSamples(*empty), *self.samples.pieces()]
            columns = ([getattr(piece, name) for piece in pieces] for name in ("groups", "times", "values"))
            yield SortedSamples(*map(np.concatenate, columns))


@dataclass(frozen=True, slots=True, eq=False)
class _CellLayout:
    """Samples, where those of each cell begin, and which cells these are; ``weights``: how many samples each row stands
    for."""

    values: Values
    weights: Values | None
    starts: Indices
    inside: NDArray[np.bool_]
    rows: Indices
    windows: Indices


class RollupTables:
    """Tables with one row per group and one column per window ``(t - step, t]`` from ``start_ms`` to ``end_ms``."""

    def __init__(self, rows: int, start_ms: int, end_ms: int, step_ms: int, rollups: frozenset[EngineRollup]) -> None:
        self.rows, self.start_ms, self.end_ms, self.step_ms, self.rollups = rows, start_ms, end_ms, step_ms, rollups
        self._counts = np.zeros((0, 0), dtype=np.int32)
        self._tables: dict[EngineRollup, Values] = {}

    def allocate(self) -> RollupTables:
        """Allocate the tables; before that they are only a plan."""
        self._counts = np.zeros((self.rows, self.width), dtype=np.int32)
        self._tables = {rollup: np.full((self.rows, self.width), np.nan) for rollup in sorted(self.rollups - {"count"})}
        return self

    @classmethod
    def of(cls, request: RollupRequest) -> RollupTables:
        """Tables for one request."""
        rollups = frozenset([request.rollup])
        return cls(len(request.groups), request.start_ms, request.end_ms, request.step_ms, rollups)

    def widen(self, request: RollupRequest) -> RollupTables:
        """Tables for this and another request about the same groups at the same step."""
        start_ms, end_ms = min(self.start_ms, request.start_ms), max(self.end_ms, request.end_ms)
        return RollupTables(self.rows, start_ms, end_ms, self.step_ms, self.rollups | {request.rollup})

    def covers(self, request: RollupRequest) -> bool:
        """Whether the tables hold this request's answer."""
        return request.rollup in self.rollups and self.start_ms <= request.start_ms and request.end_ms <= self.end_ms

    @property
    def width(self) -> int:
        return (self.end_ms - self.start_ms) // self.step_ms

    @property
    def bytes(self) -> int:
        """Memory that the tables take: the counts and each rollup."""
        return self.rows * self.width * (4 + 8 * len(self.rollups - {"count"}))

    def answer(self, request: RollupRequest) -> tuple[Values, int]:
        """The windows of a request, NaN where nothing was sampled, and how many samples were used."""
        first = (request.start_ms - self.start_ms) // self.step_ms
        columns = slice(first, first + request.width)
        counts = self._counts[:, columns]
        if request.rollup == "count":
            return np.where(counts > 0, counts, np.nan), int(counts.sum())
        return self._tables[request.rollup][:, columns].copy(), int(counts.sum())

    def fill(self, read: SampleRead, begin: int, stop: int) -> None:
        """Compute the rows from ``begin`` to ``stop``; the groups of the samples are counted from ``begin``."""
        counts = self._counts[begin:stop]
        for piece in read.pieces():
            layout = self._layout(read, piece, "count")
            counts[layout.rows, layout.windows] = _cell_counts(layout)[layout.inside]
            for rollup, table in self._tables.items():
                if read.minutes is not None:
                    layout = self._layout(read, piece, rollup)
                table[begin:stop][layout.rows, layout.windows] = _cell_values(layout, rollup)[layout.inside]

    def _layout(self, read: SampleRead, samples: SortedSamples, rollup: EngineRollup) -> _CellLayout:
        weights = None
        if read.minutes is not None:
            samples, weights = _with_minutes(samples, read.minutes, rollup)
        groups, times, values = samples.groups, samples.times, samples.values
        if self.end_ms - self.start_ms < MIN_USED_RATIO * read.length_ms:
            is_inside = (times > self.start_ms) & (times <= self.end_ms)
            groups, times, values = groups[is_inside], times[is_inside], values[is_inside]
            weights = None if weights is None else weights[is_inside]
        windows = (times - (self.start_ms + 1)) // self.step_ms
        change = (groups[1:] != groups[:-1]) | (windows[1:] != windows[:-1])
        starts = np.concatenate([np.zeros(min(1, len(times)), dtype=np.intp), np.flatnonzero(change) + 1])
        column = windows[starts]
        inside = (column >= 0) & (column < self.width)
        return _CellLayout(values, weights, starts, inside, groups[starts][inside].astype(np.intp), column[inside])


def _cell_counts(layout: _CellLayout) -> NDArray[np.int64]:
    """How many samples each cell stands for."""
    if not len(layout.starts):
        return np.empty(0, dtype=np.int64)
    if layout.weights is None:
        return np.diff(layout.starts, append=len(layout.values))
    return np.add.reduceat(layout.weights, layout.starts).astype(np.int64)


def _cell_values(layout: _CellLayout, rollup: EngineRollup) -> Values:
    """Like :func:`rolled_up`, also for rows that stand for several samples."""
    if not len(layout.starts):
        return np.empty(0)
    if layout.weights is None or rollup != "avg":
        return rolled_up(layout.values, layout.starts, rollup)
    averages: Values = rolled_up(layout.values, layout.starts, "sum") / rolled_up(layout.weights, layout.starts, "sum")
    return averages


def _with_minutes(
    samples: SortedSamples, minutes: dict[str, NDArray[Any]], rollup: EngineRollup
) -> tuple[SortedSamples, Values]:
    """Samples and per-minute aggregates merged in order, and how many samples each row stands for."""
    value = minutes["sum" if rollup in ("avg", "count") else rollup]
    times = minutes["last_ms"] if rollup == "last" else minutes["time_ms"]
    merged = sort_samples(
        np.concatenate([samples.groups, minutes["row"]]),
        np.concatenate([samples.times, times]),
        np.concatenate([samples.values, value]),
    )
    weights = np.concatenate([np.ones(len(samples.times)), minutes["count"].astype(np.float64)])
    return merged, weights if merged.order is None else weights[merged.order]
