"""What stands in for SM activity where it was not sampled: whether the pipes of busy GPUs compute or move anything, and
whether they draw the power of it. Pure, on arrays.

Exporters give the tensor pipes and device memory by default, but not SM activity. A kernel that only spins in a
collective uses neither, and little power; work in FP32, which uses no tensor pipe either, draws more.
"""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Evidence, Value
from trackside.facts.gpu.duty import Duty
from trackside.finding import Claim, claim


@dataclass(frozen=True)
class Limits:
    """What is next to nothing."""

    quiet: float = 0.1
    """Mean activity of the tensor pipes, and of device memory: training that is bound by neither shows a few tenths of
    one of them."""
    little_power: float = 0.4
    """Power over its limit, up to which GPUs that always have a kernel resident hardly work: spinning ones drew 85 of
    400 W (public nvidia-smi output of a hang on A100s)."""


LIMITS = Limits()


@dataclass(frozen=True)
class Pipes:
    """What tensor pipes and memory of the GPUs did over the time of work."""

    shows: tuple[Claim, ...]
    quiet: bool
    """Both were sampled, and next to nothing."""
    busy: bool
    """One of them was not."""


def pipes(evidence: Evidence, duty: Duty) -> Pipes:
    """Nothing, and neither quiet nor busy, where neither was sampled."""
    shows, levels = [], []
    for name in ("tensor", "dram"):
        grid = evidence.grid(name)
        level = grid.during(duty.start, duty.end).value("avg") if grid is not None else None
        if level is not None and level.value is not None:
            shows.append(claim(f"pipes_{name}", level=level))
            levels.append(level.number)
    busy = any(level > LIMITS.quiet for level in levels)
    return Pipes(tuple(shows), len(levels) == 2 and not busy, busy)


def draws_little(drawn: Value | None, most: Value | None) -> bool:
    """Whether power is far below its limit."""
    return drawn is not None and most is not None and drawn.number <= LIMITS.little_power * most.number
