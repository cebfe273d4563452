"""Changes of counters and sticky gauges while they were sampled: risen, unchanged, or only restarted. Pure functions.

All functions take a grid of ``last`` values: (series, windows), NaN where nothing was sampled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trackside.evidence import Grid, Value, derived
from trackside.model import Series


@dataclass(frozen=True, slots=True)
class Change:
    """One series that took a new value. For a counter, ``by`` is its total growth."""

    series: Series
    before: Value
    after: Value
    by: Value
    since: float
    """Until then it had its old value; POSIX seconds."""
    until: float
    """By then it had its new value."""


def rises(grid: Grid | None) -> list[Change]:
    """The counters that rose, the earliest first.

    An initial value is old. An exporter restart is not a rise: the counter falls, or disappears for a while, and
    returns to a level that it had before.
    """
    if grid is None:
        return []
    changes = [change for row, windows in _changes(grid, rising=True) if (change := _rise(grid, row, windows))]
    return sorted(changes, key=lambda change: change.since)


def onsets(grid: Grid | None) -> list[Change]:
    """The changes of sticky gauges to a new value other than zero, the earliest first.

    A gauge that first appears well after the others of its node, and not at zero, counts as changed.
    """
    if grid is None:
        return []
    changes = [
        _change(grid, row, window)
        for row, windows in _changes(grid, rising=False)
        for window in windows
        if grid.values[row, window] != 0 and grid.values[row, window] not in grid.values[row, :window]
    ]
    return sorted([*changes, *_late_series(grid)], key=lambda change: change.since)


def unchanged_above_zero(grid: Grid | None) -> list[tuple[Series, Value]]:
    """The series that began and ended above zero and did not rise: (series, level)."""
    if grid is None:
        return []
    rose = {change.series for change in rises(grid)}
    up = np.flatnonzero(_is_above_zero(grid.values))
    rows = [int(row) for row in up if grid.series[row] not in rose]
    return [(grid.series[row], grid.one(row).value("last", unit="")) for row in rows]


def _is_above_zero(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether the first and the last value of each series are above zero."""
    sampled = ~np.isnan(values)
    first, last = sampled.argmax(axis=1), values.shape[1] - 1 - sampled[:, ::-1].argmax(axis=1)
    rows = np.arange(len(values))
    with np.errstate(invalid="ignore"):
        up: NDArray[np.bool_] = (values[rows, first] > 0) & (values[rows, last] > 0)
    return up


def _changes(grid: Grid, rising: bool) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Each series with a change, and the windows where its value differs from (is larger than) the last known one."""
    before = last_before(grid.values)
    with np.errstate(invalid="ignore"):
        is_change = (grid.values > before) if rising else (grid.values != before)
    cells = is_change & ~np.isnan(grid.values) & ~np.isnan(before)
    for row in np.flatnonzero(cells.any(axis=1)):
        yield int(row), np.flatnonzero(cells[row])


def last_before(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The last value known before each window; NaN if there is none."""
    index = np.where(np.isnan(values), 0, np.arange(values.shape[1])[None, :])
    known = np.take_along_axis(values, np.maximum.accumulate(index, axis=1), axis=1)
    return np.concatenate([np.full((len(values), 1), np.nan), known[:, :-1]], axis=1)


def _rise(grid: Grid, row: int, windows: NDArray[np.intp]) -> Change | None:
    """The total genuine growth of one counter, dated by its first rise."""
    values = grid.values[row]
    growth, first = 0.0, -1
    for window in windows:
        earlier = values[:window][~np.isnan(values[:window])]
        value, before, highest = values[window], earlier[-1], earlier.max()
        if value in earlier:
            continue
        growth += value - (highest if value > highest else before)
        first = int(window) if first < 0 else first
    if first < 0:
        return None
    change = _change(grid, row, first)
    last = grid.one(row).value("last", unit="")
    return Change(change.series, change.before, last, derived(float(growth), change.before, last), change.since,
                  change.until)  # fmt: skip


def _change(grid: Grid, row: int, window: int) -> Change:
    """The change from the last value known before a window to the value in it."""
    series = grid.one(row)
    prior = int(np.flatnonzero(~np.isnan(grid.values[row, :window]))[-1])
    before = series.during(float(grid.times[prior]) - grid.step, float(grid.times[prior])).value("last", unit="")
    after = series.during(float(grid.times[window]) - grid.step, float(grid.times[window])).value("last", unit="")
    by = derived(after.number - before.number, before, after)
    return Change(grid.series[row], before, after, by, float(grid.times[prior]), float(grid.times[window]))


LATE_WINDOWS = 3
"""Number of windows for which a node's other series of the metric must be sampled before a new series counts as new."""


def _late_series(grid: Grid) -> Iterator[Change]:
    """Series that appear with a value other than zero after their node's other series had been sampled for a while."""
    sampled = ~np.isnan(grid.values)
    first = np.where(sampled.any(axis=1), sampled.argmax(axis=1), grid.values.shape[1])
    nodes = [series.get("node") for series in grid.series]
    for row, start in enumerate(first.tolist()):
        if not LATE_WINDOWS <= start < sampled.shape[1] or grid.values[row, start] == 0:
            continue
        node_mates = sampled[
            [other for other, node in enumerate(nodes) if node == nodes[row]], start - LATE_WINDOWS : start
        ]
        if node_mates.any(axis=0).all():
            series, since, until = grid.one(row), float(grid.times[start - 1]), float(grid.times[start])
            no_sample = series.during(float(grid.times[0]) - grid.step, since).value("count", unit="")
            after = series.during(since, until).value("last", unit="")
            yield Change(grid.series[row], no_sample, after, after, since, until)
