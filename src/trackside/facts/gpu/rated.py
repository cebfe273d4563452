"""What GPUs are rated for, as arrays beside their curves: measured where it was sampled, else by their model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trackside.catalog.gpu_models import Rating, rating_of
from trackside.evidence import Grid
from trackside.facts.gpus import aligned, name_of

Matrix = NDArray[np.float64]


def rated_clock(most: Grid | None, clock: Grid | None, gpus: Sequence[str], times: Matrix) -> Matrix:
    """(GPUs, windows) The highest SM clock of each, Hz; NaN where neither a curve nor the model's name tells."""
    return _or(aligned(most, gpus, times), [None if each is None else each.sm_clock_hertz for each in _of(clock, gpus)])


def rated_power(limit: Grid | None, power: Grid | None, gpus: Sequence[str], times: Matrix) -> Matrix:
    """(GPUs, windows) The power limit of each, W; NaN where neither a curve nor the model's name tells."""
    return _or(aligned(limit, gpus, times), [None if each is None else each.power_watts for each in _of(power, gpus)])


def _of(grid: Grid | None, gpus: Sequence[str]) -> list[Rating | None]:
    models = {name_of(each): each.get("gpu_model") for each in grid.series} if grid is not None else {}
    return [rating_of(models.get(gpu)) for gpu in gpus]


def _or(measured: Matrix, rated: Sequence[float | None]) -> Matrix:
    column = np.array([np.nan if each is None else each for each in rated], dtype=np.float64)[:, None]
    return np.where(np.isnan(measured), column, measured)
