"""Arithmetic on windows that a backend rolled up, the same for all backends: growth, changes, aggregation of series."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from trackside.evidence import Grid
from trackside.model import Series
from trackside.query import Aggregate


def fill_gaps(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values with every gap filled by the last value before it."""
    last_index = np.where(np.isnan(values), 0, np.arange(values.shape[1])[None, :])
    np.maximum.accumulate(last_index, axis=1, out=last_index)
    result: NDArray[np.float64] = np.take_along_axis(values, last_index, axis=1)
    return result


def increase(last: NDArray[np.float64]) -> NDArray[np.float64]:
    """Growth of counters from window to window; a fall counts as a restart at 0. NaN where nothing was sampled, or no
    earlier value is known."""
    filled_values = fill_gaps(last)
    before = np.concatenate([np.full((len(last), 1), np.nan), filled_values[:, :-1]], axis=1)
    growth = np.where(last < before, last, last - before)
    return np.where(np.isnan(last), np.nan, growth)


def onset(last: NDArray[np.float64]) -> NDArray[np.float64]:
    """The value where it differs from the last known one, NaN elsewhere. The first value is left out, because it may be
    old."""
    filled_values = fill_gaps(last)
    before = np.concatenate([np.full((len(last), 1), np.nan), filled_values[:, :-1]], axis=1)
    return np.where(~np.isnan(last) & ~np.isnan(before) & (last != before), last, np.nan)


def combine_groups(grid: Grid) -> Grid:
    """The grid with all series that share the values of the group's labels combined into one."""
    names = grid.query.group
    rows: dict[tuple[str, ...], list[int]] = {}
    for index, key in enumerate(grid.labels(*names)):
        rows.setdefault(key, []).append(index)
    series = tuple(
        Series(grid.query.kind, tuple(sorted((n, v) for n, v in zip(names, key, strict=True) if v)),
               grid.series[indices[0]].at)
        for key, indices in rows.items()
    )  # fmt: skip
    values = np.stack([aggregate(grid.values[indices], grid.query.group_how or "avg") for indices in rows.values()])
    return Grid(grid.query, grid.store, series, grid.times, values, grid.samples, grid.step)


_AGGREGATES: Mapping[Aggregate, Callable[..., NDArray[np.float64]]] = {
    "avg": np.nanmean,
    "min": np.nanmin,
    "max": np.nanmax,
    "sum": np.nansum,
    "median": np.nanmedian,
}


def aggregate(values: NDArray[np.float64], how: Aggregate) -> NDArray[np.float64]:
    """All series combined into one, window by window, over those that have a value; NaN where none has."""
    is_sampled = ~np.isnan(values)
    any_sampled = is_sampled.any(axis=0)
    result = np.full(values.shape[1], np.nan)
    if any_sampled.any():
        result[any_sampled] = _AGGREGATES[how](values[:, any_sampled], axis=0)
    return result
