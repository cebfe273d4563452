"""Fewer points, so that peaks survive. Pure, on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trackside.facts.gpu.activity import Matrix, nan_median

MOST = 600
"""Points of a line: more than a screen's columns show nothing more."""


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """Many curves as one and the room that they take: (T,) each, NaN where nothing was sampled."""

    middle: Matrix
    low: Matrix
    high: Matrix


def across(values: Matrix) -> Level:
    """The curves of a matrix (series, windows): median, least and most of each window."""
    return Level(nan_median(values, axis=0), np.fmin.reduce(values, axis=0), np.fmax.reduce(values, axis=0))


def times_of(times: Matrix, most: int = MOST) -> Matrix:
    """Ends of the buckets that windows with these ends are put into."""
    every = _every(len(times), most)
    return times[np.minimum(np.arange(every - 1, len(times) + every - 1, every), len(times) - 1)]


def level(found: Level, most: int = MOST) -> Level:
    """A level in fewer windows: of the middle, in each bucket, the value that is farthest from the whole's; of the
    room, all of it."""
    low, high = np.fmin.reduce(_buckets(found.low, most), axis=1), np.fmax.reduce(_buckets(found.high, most), axis=1)
    return Level(line(found.middle, most), low, high)


def line(values: Matrix, most: int = MOST) -> Matrix:
    """One curve in fewer windows: in each bucket the value that is farthest from the middle of the whole."""
    parts = _buckets(values, most)
    known = parts[~np.isnan(parts)]
    away = np.abs(parts - (np.median(known) if len(known) else 0.0))
    place = np.where(np.isnan(away), -1.0, away).argmax(axis=1)
    found: Matrix = parts[np.arange(len(parts)), place]
    return found


def cells(values: Matrix, most: int, how: Literal["avg", "min", "max"]) -> Matrix:
    """A matrix (rows, windows) in at most so many columns, each of as many windows; the last may be of fewer."""
    every = _every(values.shape[1], most)
    if every == 1:
        return values
    parts = _padded(values, every).reshape(len(values), -1, every)
    if how != "avg":
        reduced: Matrix = (np.fmax if how == "max" else np.fmin).reduce(parts, axis=2)
        return reduced
    counts = (~np.isnan(parts)).sum(axis=2)
    return np.where(counts > 0, np.nansum(parts, axis=2) / np.maximum(counts, 1), np.nan)


def alone(values: Matrix) -> Matrix:
    """(T,) 1 where a point of a curve has none on either side, so that no line goes through it."""
    known = np.concatenate([[False], ~np.isnan(values), [False]])
    single: Matrix = (known[1:-1] & ~known[:-2] & ~known[2:]).astype(np.float64)
    return single


def settled(values: Matrix) -> float:
    """Where a curve is towards its end: the median of its last tenth; 0 where nothing was sampled."""
    known = values[~np.isnan(values)]
    return float(np.median(known[-max(1, len(known) // 10) :])) if len(known) else 0.0


def points(x: Sequence[float] | Matrix, y: Sequence[float] | Matrix, most: int = MOST) -> list[int]:
    """The places of the points of a line to be kept: of each of ``most / 2`` stretches of x the lowest and the highest,
    and the ends. Points that are not finite are the caller's."""
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if len(xs) <= most:
        return list(range(len(xs)))
    span = float(xs[-1] - xs[0]) or 1.0
    bucket = np.minimum(((xs - xs[0]) / span * (most // 2 - 1)).astype(np.int64), most // 2 - 2)
    order = np.lexsort((ys, bucket))
    edges = np.flatnonzero(np.diff(bucket[order])) + 1
    first, last = np.concatenate([[0], edges]), np.concatenate([edges - 1, [len(order) - 1]])
    kept = {0, len(xs) - 1, *order[first].tolist(), *order[last].tolist()}
    return sorted(kept)


def _every(count: int, most: int) -> int:
    return max(1, -(-count // most))


def _padded(values: Matrix, every: int) -> Matrix:
    missing = -values.shape[-1] % every
    return np.concatenate([values, np.full((*values.shape[:-1], missing), np.nan)], axis=-1)


def _buckets(values: Matrix, most: int) -> Matrix:
    """(buckets, windows of each)."""
    every = _every(len(values), most)
    return _padded(values, every).reshape(-1, every)
