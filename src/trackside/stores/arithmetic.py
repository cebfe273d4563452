"""Arithmetic on windows that an engine rolled up, the same for all engines: growth, changes, several curves as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from trackside.evidence import Grid
from trackside.model import Series
from trackside.query import Aggregate


def filled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Every gap filled with the last value before it."""
    place = np.where(np.isnan(values), 0, np.arange(values.shape[1])[None, :])
    np.maximum.accumulate(place, axis=1, out=place)
    filled_in: NDArray[np.float64] = np.take_along_axis(values, place, axis=1)
    return filled_in


def increase(last: NDArray[np.float64]) -> NDArray[np.float64]:
    """Growth of counters from window to window; a fall is a restart at 0. NaN where nothing was sampled or known."""
    known = filled(last)
    before = np.concatenate([np.full((len(last), 1), np.nan), known[:, :-1]], axis=1)
    growth = np.where(last < before, last, last - before)
    return np.where(np.isnan(last), np.nan, growth)


def onset(last: NDArray[np.float64]) -> NDArray[np.float64]:
    """The value where it differs from the last one known, NaN elsewhere: what is there at first may be old."""
    known = filled(last)
    before = np.concatenate([np.full((len(last), 1), np.nan), known[:, :-1]], axis=1)
    return np.where(~np.isnan(last) & ~np.isnan(before) & (last != before), last, np.nan)


def grouped(grid: Grid) -> Grid:
    """The series with the same values of the group's labels as one."""
    names = grid.query.group
    rows: dict[tuple[str, ...], list[int]] = {}
    for place, key in enumerate(grid.labels(*names)):
        rows.setdefault(key, []).append(place)
    series = tuple(
        Series(grid.query.kind, tuple(sorted((n, v) for n, v in zip(names, key, strict=True) if v)),
               grid.series[places[0]].at)
        for key, places in rows.items()
    )  # fmt: skip
    values = np.stack([aggregate(grid.values[places], grid.query.group_how or "avg") for places in rows.values()])
    return Grid(grid.query, grid.store, series, grid.times, values, grid.samples, grid.step)


_AGGREGATES: Mapping[Aggregate, Callable[..., NDArray[np.float64]]] = {
    "avg": np.nanmean,
    "min": np.nanmin,
    "max": np.nanmax,
    "sum": np.nansum,
    "median": np.nanmedian,
}


def aggregate(values: NDArray[np.float64], how: Aggregate) -> NDArray[np.float64]:
    """All series as one, window by window, over those that hold a value; NaN where none does."""
    held = ~np.isnan(values)
    some = held.any(axis=0)
    whole = np.full(values.shape[1], np.nan)
    if some.any():
        whole[some] = _AGGREGATES[how](values[:, some], axis=0)
    return whole
