"""Ratings of GPUs: the power limit as sampled, else by the model's name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from trackside.catalog.gpu_models import rating_of
from trackside.evidence import Evidence, Grid, Value, derived
from trackside.facts.fact import fact
from trackside.facts.gpu.activity import GpuActivity, Matrix
from trackside.facts.gpus import align, gpu_name, value_or_none
from trackside.query import metric

IDLE_POWER = 0.3
"""Maximum share of the power limit that an idle GPU draws: 16 of 72 W (L4), 116 of 700 W (H100 with a context); also a
spinning GPU, 85 of 400 W."""


@dataclass(frozen=True, eq=False)
class PowerLimits:
    """The power limits of the run's GPUs."""

    sampled: Grid | None
    activity: GpuActivity

    @cached_property
    def by_gpu(self) -> Matrix:
        """(G,) The highest limit of each GPU, W; NaN if neither a series nor the model's name shows it."""
        power = self.activity.grid("power")
        limits = rated_values(self.sampled, power, "power_watts", self.activity.gpus, self.activity.times)
        highest: Matrix = np.fmax.reduce(limits, axis=1)
        return highest

    def between(self, start: float, end: float) -> Value | None:
        """The common limit of all GPUs in (start, end]: the sampled median, else that of their one model."""
        limit = None if self.sampled is None else value_or_none(self.sampled.during(start, end), "median")
        if limit is not None:
            return limit
        power = self.activity.grid("power")
        ratings = {rating_of(series.get("gpu_model")) for series in power.series} if power is not None else set()
        rating = ratings.pop() if len(ratings) == 1 else None
        return None if rating is None or power is None else derived(rating.power_watts, power.value("count"), unit="W")


@fact({"power_limit": metric("gpu_power_limit_watts").over("run", "max")})
def power_limits(evidence: Evidence, activity: GpuActivity) -> PowerLimits:
    """Needs GPU activity; NaN for a GPU whose limit is unknown."""
    return PowerLimits(evidence.grid("power_limit"), activity)


def rated_values(
    sampled_limits: Grid | None, model_grid: Grid | None, field: Literal["sm_clock_hertz", "power_watts"],
    gpus: Sequence[str], times: Matrix,
) -> Matrix:  # fmt: skip
    """(GPUs, windows) The highest SM clock of each GPU, Hz, or its power limit, W: as sampled, else by the model that
    ``model_grid`` names; NaN if both are unknown."""
    models = (
        {gpu_name(series): series.get("gpu_model") for series in model_grid.series} if model_grid is not None else {}
    )
    ratings = (rating_of(models.get(gpu)) for gpu in gpus)
    column = np.array([np.nan if rating is None else getattr(rating, field) for rating in ratings])[:, None]
    measured = align(sampled_limits, gpus, times)
    return np.where(np.isnan(measured), column, measured)
