"""When a GPU's memory was taken: by the run, by others, or by nobody."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trackside.runs.places import Placed, Unit
from trackside.stores.curves import AROUND_S, Curves, step_of

Use = Literal["mine", "other", "idle"]
METRIC = "gpu_memory_used_bytes"
CONTEXT_BYTES = 256 << 20
"""A process takes at least this much: a CUDA context alone is 300 to 600 MB, by GPU and driver."""
IDLE_BYTES = 1 << 30
"""An idle GPU holds no more: the driver keeps up to 600 MB for itself, a display some more."""
CLOSE_S = 120.0
"""A GPU is given and taken back within this of the job's start and end: prolog, and Slurm's KillWait and epilog."""
Cells = NDArray[np.float64]
"""(units, windows), NaN where nothing was sampled."""


def uses(
    curves: Curves, found: Iterable[Placed], units: Sequence[Unit], start: float, end: float, interval: float
) -> Mapping[Unit, Use]:
    """Who used each of the units between two moments of the curves' own clock; those not measured are left out.

    The run's are taken while it was there, and free at some moment about its start and about its end.
    """
    ids = _memory(found, set(units))
    if not ids:
        return {}
    groups, step = list(ids.values()), step_of(end - start + 2 * AROUND_S, interval, fine=True)
    low, times = _rolled(curves, groups, start - AROUND_S, end + AROUND_S, step, "min")
    high, _ = _rolled(curves, groups, start - AROUND_S, end + AROUND_S, step, "max")
    level = _least(low)
    inside = (times - step >= start) & (times <= end)
    if not inside.any():
        inside = (times > start) & (times - step < end)
    with np.errstate(invalid="ignore"):
        taken = [bool((high[row, inside] > level[row]).any()) for row in range(len(groups))]
    came = _free(curves, groups, (start - CLOSE_S, min(start + AROUND_S, end)), (start - CLOSE_S, start), level, step)
    went = _free(curves, groups, (max(end - CLOSE_S, start), end + AROUND_S), (end, end + AROUND_S), level, step)
    told: list[Use] = [
        "idle" if not taken[row] else "mine" if came[row] and went[row] else "other" for row in range(len(groups))
    ]
    return {unit: told[row] for row, unit in enumerate(ids) if not np.isnan(high[row]).all()}


def spans(
    curves: Curves, found: Iterable[Placed], units: Sequence[Unit], first: float, last: float, interval: float
) -> Mapping[Unit, Sequence[tuple[float, float]]]:
    """The stretches for which each unit was taken, between two moments of the curves' own clock."""
    ids = _memory(found, set(units))
    if not ids:
        return {}
    step = step_of(last - first, interval, fine=True)
    high, times = _rolled(curves, list(ids.values()), first, last, step, "max")
    level = _least(high)[:, None]
    with np.errstate(invalid="ignore"):
        taken = high > level
    return {unit: _stretches(taken[row], np.isnan(high[row]), times, step) for row, unit in enumerate(ids)}


def _stretches(
    taken: NDArray[np.bool_], unknown: NDArray[np.bool_], times: Cells, step: float
) -> list[tuple[float, float]]:
    """Runs of windows that are taken; one that wasn't sampled between two taken ones counts as taken."""
    found: list[tuple[float, float]] = []
    going = False
    for place in np.flatnonzero(~unknown).tolist():
        if taken[place]:
            if going:
                found[-1] = found[-1][0], float(times[place])
            else:
                found.append((float(times[place]) - step, float(times[place])))
        going = bool(taken[place])
    return found


def _memory(found: Iterable[Placed], units: set[Unit]) -> dict[Unit, list[int]]:
    ids: dict[Unit, list[int]] = {}
    for each in found:
        if each.series.metric == METRIC and each.unit in units:
            ids.setdefault(each.unit, []).append(each.held.id)
    return ids


def _rolled(
    curves: Curves, groups: Sequence[Sequence[int]], start: float, end: float, step: float, how: Literal["min", "max"]
) -> tuple[Cells, Cells]:
    """Cells, and the ends of their windows."""
    step_ms = round(step * 1000)
    first = math.floor(start * 1000 / step_ms) * step_ms
    last = max(math.ceil(end * 1000 / step_ms) * step_ms, first + step_ms)
    values, _ = curves.rollup(groups, first, last, step_ms, how)
    return values, np.arange(first + step_ms, last + 1, step_ms, dtype=np.float64) / 1000


def _least(cells: Cells) -> Cells:
    """(units,) bytes above which each counts as taken."""
    lowest: Cells = np.where(np.isnan(cells), math.inf, cells).min(axis=1)
    return np.minimum(lowest, IDLE_BYTES) + CONTEXT_BYTES


def _free(
    curves: Curves,
    groups: Sequence[Sequence[int]],
    within: tuple[float, float],
    outside: tuple[float, float],
    level: Cells,
    step: float,
) -> NDArray[np.bool_]:
    """(units,) Whether each was free at some moment; True as well where nothing was sampled outside the run."""
    fine = min(step, 15.0)
    low, times = _rolled(curves, groups, *within, fine, "min")
    beyond = (times > outside[0]) & (times <= outside[1])
    with np.errstate(invalid="ignore"):
        return np.asarray(np.isnan(low[:, beyond]).all(axis=1) | (low <= level[:, None]).any(axis=1))
