"""What is asked and told of clocks that were held down; the array work is in
:mod:`trackside.facts.hardware.clocks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trackside.evidence import Value
from trackside.facts.gpu.activity import ACTIVITY
from trackside.query import Query, metric

Span = tuple[float, float]
"""From and to, POSIX seconds."""
Against = Literal["own", "peers", "most"]
"""What a clock is compared with: the GPU's own at other times, the other GPUs', the highest that it can reach."""

CLOCKS: Mapping[str, Query] = {
    **ACTIVITY,
    "reasons": metric("gpu_throttle_reasons").over("run", "last"),
    "held": metric("gpu_throttle_seconds_total").over("run", "increase"),
    "clocks": metric("gpu_sm_clock_hertz").over("run", "avg"),
    "most": metric("gpu_sm_clock_max_hertz").over("run", "max"),
    "temperature": metric("gpu_temperature_celsius").over("run", "max"),
    "power_limit": metric("gpu_power_limit_watts").over("run", "max"),
    "memory": metric("gpu_memory_used_bytes").over("run", "avg"),
}
"""What tells of clocks. The last reasons of a window, not their maximum: single samples must not fill it."""


@dataclass(frozen=True)
class Limits:
    """When held clocks are throttling, and when throttling matters."""

    windows: int = 3
    """Windows of two samples each: NVML sets hardware slowdown for a moment at every change of performance state."""
    least_s: float = 120.0
    """Sustained: GPUs hot enough to throttle swing about their limit within tens of seconds."""
    counted_share: float = 0.1
    """Of a window, by counters of throttled time; under it is swinging about a limit."""
    drop: float = 0.1
    """Of the SM clock. Clocks of a loaded GPU vary by a few hundredths with temperature and power."""
    drop_from_most: float = 0.3
    """The same where only the highest clock of the GPU is known: power limits alone cost up to a quarter of it."""
    hot_c: float = 80.0
    """Without reasons: slowdown begins at 83 to 90 C on data-centre GPUs, and monitors alert from 80 C on."""
    at_limit: float = 0.97
    """Share of its power limit at which a GPU's clocks are the limit's doing, not the heat's."""
    far_from_limit: float = 0.8
    """Share of its power limit under which the limit is not what holds clocks far below the highest."""
    readings: int = 6
    """Readings of each GPU, below which clocks that were well say little: a run of a minute or two."""
    busy: float = 0.2
    """Engine activity or utilisation above which low clocks are not those of an idle GPU."""
    slower: float = 1.05
    """How many times longer a step must take for the work to have slowed."""
    worth: float = 0.05
    """Share of the GPU's working time, below which it is worth a warning only."""
    quiet_s: float = 600.0
    """Without any GPU work before the end: then something else than slowness ended the run."""


@dataclass(frozen=True, slots=True)
class Held:
    """One GPU whose clocks were held down for a while."""

    gpu: str
    start: float
    end: float
    """The stretch, POSIX seconds."""
    before: Span | None
    """A stretch of work with free clocks, for comparison."""
    seconds: Value
    share: float
    """Of its working time."""
    why: Value | None
    """The reasons, in words; None where only heat tells."""
    names: tuple[str, ...]
    clock: Value | None
    usual: Value | None
    against: Against
    """own, peers or most: what ``usual`` is."""
    drop: float | None
    """Share by which the clock was lower; None where no clock was measured."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """What the clocks of a run's GPUs did."""

    held: tuple[Held, ...]
    """The longest first."""
    told_by: str
    """reasons, counters or heat: what told of it."""
    count: int
    """GPUs that were watched."""
    readings: float
    """Readings of each."""
    brief: str | None
    """A GPU on which a grave reason was set, but not for long."""
    hot: bool
    """Whether a GPU so held reached the heat at which slowdown begins."""
    still_at_work: bool
    """Whether GPUs worked until the run's end, as far as that is told."""
