"""What GPUs are rated for: their power limit as it was sampled, else by their model's name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trackside.catalog.gpu_models import Rating, rating_of
from trackside.evidence import Evidence, Grid, Value, derived
from trackside.facts.fact import fact
from trackside.facts.gpu.activity import GpuActivity, Matrix
from trackside.facts.gpus import aligned, name_of
from trackside.query import metric

IDLE_POWER = 0.3
"""Of the power limit that an idle card draws at most: 16 of 72 W (L4), 116 of 700 W (H100 with a context); and one that
spins, 85 of 400 W."""


@dataclass(frozen=True, eq=False)
class PowerLimits:
    """The power limits of the run's GPUs."""

    sampled: Grid | None
    activity: GpuActivity

    @cached_property
    def by_gpu(self) -> Matrix:
        """(G,) The highest limit of each GPU, W; NaN if neither a curve nor the model's name tells."""
        power = self.activity.grid("power")
        limits: Matrix = np.fmax.reduce(
            rated_power(self.sampled, power, self.activity.gpus, self.activity.times), axis=1
        )
        return limits

    def between(self, start: float, end: float) -> Value | None:
        """The limit of all GPUs in (start, end]: as it was sampled (median), else by their one model."""
        sampled = self.sampled.during(start, end).value("median") if self.sampled is not None else None
        if sampled is not None and sampled.value is not None:
            return sampled
        power = self.activity.grid("power")
        ratings = {rating_of(series.get("gpu_model")) for series in power.series} if power is not None else set()
        rating = ratings.pop() if len(ratings) == 1 else None
        return None if rating is None or power is None else derived(rating.power_watts, power.value("count"), unit="W")


@fact({"power_limit": metric("gpu_power_limit_watts").over("run", "max")})
def power_limits(evidence: Evidence, activity: GpuActivity) -> PowerLimits:
    """Of the GPUs that were sampled."""
    return PowerLimits(evidence.grid("power_limit"), activity)


def rated_clock(most: Grid | None, clock: Grid | None, gpus: Sequence[str], times: Matrix) -> Matrix:
    """(GPUs, windows) The highest SM clock of each, Hz; NaN where neither a curve nor the model's name tells."""
    return _or(aligned(most, gpus, times), [None if each is None else each.sm_clock_hertz for each in _of(clock, gpus)])


def rated_power(limit: Grid | None, power: Grid | None, gpus: Sequence[str], times: Matrix) -> Matrix:
    """(GPUs, windows) The power limit of each, W; NaN where neither a curve nor the model's name tells."""
    return _or(aligned(limit, gpus, times), [None if each is None else each.power_watts for each in _of(power, gpus)])


def _of(grid: Grid | None, gpus: Sequence[str]) -> list[Rating | None]:
    models = {name_of(series): series.get("gpu_model") for series in grid.series} if grid is not None else {}
    return [rating_of(models.get(gpu)) for gpu in gpus]


def _or(measured: Matrix, rated: Sequence[float | None]) -> Matrix:
    column = np.array([np.nan if value is None else value for value in rated], dtype=np.float64)[:, None]
    return np.where(np.isnan(measured), column, measured)
