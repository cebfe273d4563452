"""How a model learns: loss, gradient norm and learning rate at any step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LearningCurve:
    """A power law from ``start`` to ``floor``, a cosine learning rate with warm-up, and the ways in which learning
    can fail."""

    start: float = 10.9
    """Loss of the first step."""
    floor: float = 2.6
    """Loss that training approaches."""
    tau: float = 12.0
    """Steps after which learning is under way."""
    power: float = 0.62
    """Exponent of the power law: how fast the loss approaches ``floor``."""
    noise: float = 0.012
    """Standard deviation of the loss from step to step, as a share of it."""
    rate: float = 3e-4
    """Highest learning rate: at the end of the warm-up."""
    warmup: int = 40
    """Steps of the warm-up."""
    total: int = 600
    """Steps until the learning rate has fallen to a tenth of ``rate``; the failures scale with it, too."""
    gradient: float = 0.8
    """Norm of the gradient once learning is under way."""
    failure: str = ""
    """Empty: it learns. nan, explode, plateau, flat, spike: see :mod:`trackside.sim.faults.loss_divergence`."""
    onset: int = 0
    """Step at which the failure begins; ``flat`` fails from the first step."""
    level: float = 11.9
    """The loss of a plateau."""
    seed: int = 0

    def values_at(self, steps: NDArray[np.int64]) -> tuple[Array, Array, Array]:
        """(loss, gradient norm, learning rate) at steps counted from 1; NaN if training failed that way."""
        step = np.maximum(steps, 1).astype(float)
        noise, norm_noise = _noise(steps, self.seed), _noise(steps, self.seed + 7919)
        loss = self.floor + (self.start - self.floor) * (1 + (step - 1) / self.tau) ** -self.power
        loss = loss * (1 + self.noise * noise * np.minimum(1, step / self.tau))
        norm = self.gradient * (1 + 5 * np.exp(-step / (2 * self.tau))) * np.exp(0.18 * norm_noise)
        warm = np.minimum(1, steps / max(self.warmup, 1))
        past = np.clip((steps - self.warmup) / max(self.total - self.warmup, 1), 0, 1)
        rate = self.rate * warm * (0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * past)))
        return self._with_failure(steps, loss, norm, rate, noise)

    def loss_of(self, step: int) -> float:
        """The loss at one step."""
        return float(self.values_at(np.array([step]))[0][0])

    def _with_failure(
        self, steps: NDArray[np.int64], loss: Array, norm: Array, rate: Array, noise: Array
    ) -> tuple[Array, Array, Array]:
        steps_since = steps - self.onset
        is_after = steps_since >= 0
        grown = np.clip(steps_since / max(0.03 * self.total, 4), 0, 1)
        if self.failure == "nan":
            loss, norm = np.where(is_after, np.nan, loss), np.where(is_after, np.nan, norm)
        elif self.failure == "explode":
            rising = np.exp(np.clip(steps_since, 0, None) / max(0.06 * self.total, 3))
            loss = np.where(is_after, np.minimum(loss * rising, 1e4) * (1 + 0.05 * noise), loss)
            norm = np.where(is_after, np.minimum(norm * rising**1.5, 1e6), norm)
        elif self.failure == "plateau":
            flat = loss + (self.level * (1 + 0.002 * noise) - loss) * grown
            loss = np.where(is_after, flat, loss)
            norm = np.where(
                is_after, norm * (1 + 25 * grown * (1 - grown)) * (1 - grown) + 1e-4 * (1 + 0.3 * noise), norm
            )
        elif self.failure == "flat":
            loss = self.start * (1 + 0.003 * noise)
            norm, rate = 1e-5 * (1 + 0.2 * noise), 0.0 * rate
        elif self.failure == "spike":
            bump = np.where(is_after, np.exp(-np.clip(steps_since, 0, None) / max(0.015 * self.total, 3)), 0.0)
            loss, norm = loss * (1 + 1.6 * bump), norm * (1 + 12 * bump)
        return loss, norm, rate


def _noise(steps: NDArray[np.int64], seed: int) -> Array:
    """Standard normal noise that depends only on the step and the seed."""
    x = steps.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64((seed * 0x632BE59BD9B4E019) % (1 << 64))
    uniform = []
    for _ in range(2):
        x = (x ^ (x >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        uniform.append(((x >> np.uint64(11)).astype(float) + 0.5) / float(1 << 53))
    normal: Array = np.sqrt(-2 * np.log(uniform[0])) * np.cos(2 * np.pi * uniform[1])
    return normal
