"""Money: GPU-hours times what one costs."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Price:
    """What a GPU-hour costs; 0: not known."""

    price_per_gpu_hour: float = 0.0
    currency: str = "USD"

    def __post_init__(self) -> None:
        if not math.isfinite(self.price_per_gpu_hour) or self.price_per_gpu_hour < 0:
            raise ValueError(f"price_per_gpu_hour is an amount of money, not {self.price_per_gpu_hour:g}")
        if not self.currency.isprintable() or not 0 < len(self.currency.strip()) <= 12:
            raise ValueError("currency is a short name, such as EUR")

    def of(self, hours: float) -> float | None:
        """Money; None where no price is known."""
        return round(hours * self.price_per_gpu_hour, 2) if self.price_per_gpu_hour else None

    def formula(self, hours: float) -> str:
        """The sum in figures; empty where no price is known."""
        money = self.of(hours)
        if money is None:
            return ""
        return (
            f"{hours:,.10g} GPU-hours x {self.price_per_gpu_hour:,.10g} {self.currency} = {money:,.2f} {self.currency}"
        )


NO_PRICE = Price()
