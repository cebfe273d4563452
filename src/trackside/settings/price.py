"""The price of GPU-hours."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a GPU-hour; 0: unknown."""

    price_per_gpu_hour: float = 0.0
    currency: str = "USD"

    def __post_init__(self) -> None:
        if not math.isfinite(self.price_per_gpu_hour) or self.price_per_gpu_hour < 0:
            raise ValueError(f"price_per_gpu_hour must be an amount of money, not {self.price_per_gpu_hour:g}")
        if not self.currency.isprintable() or not 0 < len(self.currency.strip()) <= 12:
            raise ValueError("currency must be a short name, such as EUR")

    def of(self, hours: float) -> float | None:
        """The price of these hours; None if no price is set."""
        return round(hours * self.price_per_gpu_hour, 2) if self.price_per_gpu_hour else None

    def formula(self, hours: float) -> str:
        """The calculation as text; empty if no price is set."""
        money = self.of(hours)
        if money is None:
            return ""
        return (
            f"{hours:,.10g} GPU-hours x {self.price_per_gpu_hour:,.10g} {self.currency} = {money:,.2f} {self.currency}"
        )


NO_PRICE = Price()
