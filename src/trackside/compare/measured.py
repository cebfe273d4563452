"""What two runs' metrics tell beside each other, by the time since each began. On arrays."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from trackside.compare.divergence import LEAST, parting, rule
from trackside.compare.side import MEASURED, Row, Side, either
from trackside.evidence import Grid, Value, derived

TOPIC = "metrics"
COARSEST_S = 30.0
"""Windows are at least so long: finer ones hold one scrape or none."""
CURVES = ("gpu_sm_active_ratio", "gpu_sm_clock_hertz", "gpu_utilization_ratio", "gpu_power_watts")
"""Of which it is asked from when on they differ."""
EDGE = 2
"""Windows before the end of the shorter run that may hold its end."""
Matrix = NDArray[np.float64]


def rows(a: Side, b: Side) -> Iterator[Row]:
    """The median of each metric, and that of the GPU (or rank) that is furthest off; then from when on they differ."""
    for name, (label, odd, share) in MEASURED.items():
        one, other = a.grid(name), b.grid(name)
        if one is None and other is None:
            continue
        yield either(TOPIC, f"{label}, median", _median(one), _median(other), share)
        if odd and one is not None and other is not None and len(one) > 1 and len(other) > 1:
            yield either(TOPIC, f"{label}, {odd} of all", _odd(one, odd), _odd(other, odd), share)
        if name in CURVES:
            yield from _when(a, b, name, (label, odd, share))


def _median(grid: Grid | None) -> Value | None:
    if grid is None:
        return None
    value = grid.value("median")
    return None if value.value is None else value


def _odd(grid: Grid, which: str) -> Value | None:
    """The lowest or highest median of one series, with whose it is."""
    with np.errstate(invalid="ignore"):
        levels = np.array([np.nanmedian(row) if np.any(~np.isnan(row)) else np.nan for row in grid.values])
    if np.all(np.isnan(levels)):
        return None
    return grid.one(int(np.nanargmin(levels) if which == "lowest" else np.nanargmax(levels))).value("median")


def _when(a: Side, b: Side, metric: str, how: tuple[str, str, float]) -> Iterator[Row]:
    """From when on, counted from each run's start, the two differ."""
    one, other, (label, odd, share) = a.grid(metric), b.grid(metric), how
    if one is None or other is None or a.run.start is None or b.run.start is None:
        return
    step = max(one.step, other.step, COARSEST_S)
    curves = [_curve(grid, side.run.start or 0.0, step, odd) for grid, side in ((one, a), (other, b))]
    length = max(0, min(map(len, curves)) - EDGE)
    first, second = (curve[:length] for curve in curves)
    seen = np.flatnonzero(~np.isnan(first) & ~np.isnan(second))
    if len(seen) < LEAST:
        return
    share = max(share, 0.05)
    place = parting(first[seen].tolist(), second[seen].tolist(), share)
    if place is None:
        return
    since = float(seen[place]) * step
    mine, others = (_at(grid, (side.run.start or 0.0) + since, step, odd) for grid, side in ((one, a), (other, b)))
    if mine is None or others is None:
        return
    name = f"{label}, {odd} of all" if odd else label
    here_on = f"{name}{',' if odd else ''} from here on"
    how_told = rule(share, f"windows of {step:g} s")
    yield Row(TOPIC, here_on, mine, others, True, how_told, seconds=since, name=name, of=metric)


def _curve(grid: Grid, start: float, step: float, odd: str) -> Matrix:
    """(T,) the middle (or lowest, or highest) of all series in each window since the start; NaN where none is seen."""
    inside = grid.times > start
    places = np.floor((grid.times[inside] - start - 1e-6) / step).astype(int)
    found = np.full(int(places.max(initial=-1)) + 1, np.nan)
    values = grid.values[:, inside]
    for place in np.unique(places):
        part = values[:, places == place]
        levels = [np.mean(row[~np.isnan(row)]) for row in part if np.any(~np.isnan(row))]
        if levels:
            found[place] = {"lowest": np.min, "highest": np.max}.get(odd, np.median)(levels)
    return found


def _at(grid: Grid, since: float, step: float, odd: str) -> Value | None:
    """What holds in the three windows from a moment on."""
    part = grid.during(since, since + 3 * step)
    value = (_odd(part, odd) if odd else _median(part)) if len(part.times) else None
    return None if value is None or value.value is None else derived(value.value, value, unit=value.unit)
