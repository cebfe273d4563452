"""Rated power and clock of GPU models by NVML name, used as the reference if no sampled metric gives one.

Power is from the data sheet and equals the driver's default limit. The clock is the highest SM clock in
``nvidia-smi -q -d CLOCK``. Models sold with several ratings under one name are not listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rating:
    """Rated figures of one model, in base units."""

    power_watts: float
    sm_clock_hertz: float


RATINGS: Mapping[str, Rating] = {
    "v100-sxm2-16gb": Rating(300, 1.53e9),
    "v100-sxm2-32gb": Rating(300, 1.53e9),
    "v100-pcie-16gb": Rating(250, 1.38e9),
    "v100-pcie-32gb": Rating(250, 1.38e9),
    "t4": Rating(70, 1.59e9),
    "a10": Rating(150, 1.695e9),
    "a10g": Rating(300, 1.71e9),
    "a30": Rating(165, 1.44e9),
    "a40": Rating(300, 1.74e9),
    "a100-sxm4-40gb": Rating(400, 1.41e9),
    "a100-sxm4-80gb": Rating(400, 1.41e9),
    "a100-pcie-40gb": Rating(250, 1.41e9),
    "a100 80gb pcie": Rating(300, 1.41e9),
    "l4": Rating(72, 2.04e9),
    "l40": Rating(300, 2.49e9),
    "l40s": Rating(350, 2.52e9),
    "h100 pcie": Rating(350, 1.755e9),
    "h100 80gb hbm3": Rating(700, 1.98e9),
    "h200": Rating(700, 1.98e9),
    "b200": Rating(1000, 1.965e9),
}
"""NVML's name in lower case without the vendor -> rating. Sources: NVIDIA's data sheets; nvidia-smi -q."""


def rating_of(name: str | None) -> Rating | None:
    """The rating of a model by its full NVML name; None for an unknown model."""
    words = (name or "").lower().split()
    while words and words[0] in ("nvidia", "tesla"):
        words = words[1:]
    return RATINGS.get(" ".join(words))
