"""Downsampling of arrays that preserves peaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trackside.facts.gpu.activity import Matrix, nan_median

MAX_POINTS = 600
"""Maximum points of a line; more than the columns of a screen are not visible."""


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """The median, minimum and maximum of many series: (T,) each, NaN where nothing was sampled."""

    median: Matrix
    low: Matrix
    high: Matrix


def band_of(values: Matrix) -> Band:
    """Median, minimum and maximum of each window of a matrix (series, windows)."""
    return Band(nan_median(values, axis=0), np.fmin.reduce(values, axis=0), np.fmax.reduce(values, axis=0))


def times_of(times: Matrix, max_points: int = MAX_POINTS) -> Matrix:
    """The end times of the buckets into which windows with these end times are merged."""
    bucket_size = _bucket_size(len(times), max_points)
    return times[np.minimum(np.arange(bucket_size - 1, len(times) + bucket_size - 1, bucket_size), len(times) - 1)]


def downsample_band(band: Band, max_points: int = MAX_POINTS) -> Band:
    """A band of at most ``max_points`` buckets: of the medians in a bucket, the one farthest from the median of all is
    kept; minimum and maximum are those of the bucket."""
    low, high = (
        np.fmin.reduce(_buckets(band.low, max_points), axis=1),
        np.fmax.reduce(_buckets(band.high, max_points), axis=1),
    )
    return Band(downsample_line(band.median, max_points), low, high)


def downsample_line(values: Matrix, max_points: int = MAX_POINTS) -> Matrix:
    """A series of at most ``max_points`` values: of each bucket, the value farthest from the median of all is kept."""
    parts = _buckets(values, max_points)
    sampled = parts[~np.isnan(parts)]
    distances = np.abs(parts - (np.median(sampled) if len(sampled) else 0.0))
    index = np.where(np.isnan(distances), -1.0, distances).argmax(axis=1)
    extremes: Matrix = parts[np.arange(len(parts)), index]
    return extremes


def downsample_cells(values: Matrix, max_points: int, aggregate: Literal["avg", "min", "max"]) -> Matrix:
    """A matrix (rows, windows) with at most ``max_points`` columns, each the aggregate of equally many windows; the
    last column may have fewer."""
    bucket_size = _bucket_size(values.shape[1], max_points)
    if bucket_size == 1:
        return values
    parts = _pad(values, bucket_size).reshape(len(values), -1, bucket_size)
    if aggregate != "avg":
        reduced: Matrix = (np.fmax if aggregate == "max" else np.fmin).reduce(parts, axis=2)
        return reduced
    counts = (~np.isnan(parts)).sum(axis=2)
    return np.where(counts > 0, np.nansum(parts, axis=2) / np.maximum(counts, 1), np.nan)


def isolated_flags(values: Matrix) -> Matrix:
    """(T,) 1 for a point without neighbors, through which no line is drawn."""
    sampled = np.concatenate([[False], ~np.isnan(values), [False]])
    flags: Matrix = (sampled[1:-1] & ~sampled[:-2] & ~sampled[2:]).astype(np.float64)
    return flags


def end_value(values: Matrix) -> float:
    """The median of the last tenth of a series; 0 if nothing was sampled."""
    sampled = values[~np.isnan(values)]
    return float(np.median(sampled[-max(1, len(sampled) // 10) :])) if len(sampled) else 0.0


def points(x: Sequence[float] | Matrix, y: Sequence[float] | Matrix, max_points: int = MAX_POINTS) -> list[int]:
    """The indices of the points of a line to draw: the lowest and highest of each of ``max_points / 2`` intervals of x,
    and both ends. The points must be finite."""
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if len(xs) <= max_points:
        return list(range(len(xs)))
    span = float(xs[-1] - xs[0]) or 1.0
    bucket = np.minimum(((xs - xs[0]) / span * (max_points // 2 - 1)).astype(np.int64), max_points // 2 - 2)
    order = np.lexsort((ys, bucket))
    edges = np.flatnonzero(np.diff(bucket[order])) + 1
    first, last = np.concatenate([[0], edges]), np.concatenate([edges - 1, [len(order) - 1]])
    indices = {0, len(xs) - 1, *order[first].tolist(), *order[last].tolist()}
    return sorted(indices)


def _bucket_size(count: int, max_points: int) -> int:
    return max(1, -(-count // max_points))


def _pad(values: Matrix, bucket_size: int) -> Matrix:
    missing = -values.shape[-1] % bucket_size
    return np.concatenate([values, np.full((*values.shape[:-1], missing), np.nan)], axis=-1)


def _buckets(values: Matrix, max_points: int) -> Matrix:
    """(buckets, windows of each)."""
    bucket_size = _bucket_size(len(values), max_points)
    return _pad(values, bucket_size).reshape(-1, bucket_size)
