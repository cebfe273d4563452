"""Why a GPU's clocks are held down: the reasons, their bits, and how grave each is.

Bits: NVML's clocks event reasons (NVML API reference, group nvmlClocksEventReasons; called throttle reasons before
driver 535), which DCGM_FI_DEV_CLOCKS_EVENT_REASONS and ``clocks_event_reasons.active`` of nvidia-smi hand on as they
are. Grave or not: the same texts. NVML says that hardware slowdown halves the clocks or worse, and that it is seen for
a moment when the performance state changes; the software power cap is how a loaded GPU keeps to its limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Severity = Literal["hard", "thermal", "benign"]
"""hard: clocks are cut by the hardware. thermal: the driver lowers them for heat. benign: part of normal work."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason. ``bit``: in ``gpu_throttle_reasons``; 0 for one that only counters and shares tell of."""

    title: str
    severity: Severity
    bit: int = 0


REASONS: Mapping[str, Reason] = {
    "gpu_idle": Reason("the GPU is idle", "benign", 0x1),
    "applications_clocks_setting": Reason("clocks are set for applications", "benign", 0x2),
    "sw_power_cap": Reason("software keeps power within its limit", "benign", 0x4),
    "hw_slowdown": Reason("hardware slowdown: heat, power brake or a surge of power", "hard", 0x8),
    "sync_boost": Reason("clocks follow another GPU of a sync boost group", "benign", 0x10),
    "sw_thermal_slowdown": Reason("software slowdown for heat of GPU or memory", "thermal", 0x20),
    "hw_thermal_slowdown": Reason("hardware slowdown for heat", "hard", 0x40),
    "hw_power_brake_slowdown": Reason(
        "hardware slowdown: power brake, asserted by the system's power supply", "hard", 0x80
    ),
    "display_clock_setting": Reason("clocks are set for a display", "benign", 0x100),
    # NVML's performance policies, as nvmlDeviceGetViolationStatus counts them; DCGM's *_VIOLATION fields.
    "thermal": Reason("any slowdown for heat", "thermal"),
    "board_limit": Reason("a limit of the board: voltage or current", "benign"),
    "low_utilization": Reason("too little work to raise clocks", "benign"),
    "reliability": Reason("voltage limit for reliability", "benign"),
    "below_application_clocks": Reason("below the clocks set for applications, for any reason", "benign"),
    "below_base_clocks": Reason("below the base clocks, for any reason", "benign"),
    # AMD's violation counters (amd-smi, device metrics exporter; MI300 and newer).
    "processor_hot": Reason("PROCHOT: heat signalled by the board", "hard"),
    "package_power": Reason("power of the package within its limit", "benign"),
    "socket_thermal": Reason("heat of the socket", "thermal"),
    "vr_thermal": Reason("heat of the voltage regulators", "thermal"),
    "hbm_thermal": Reason("heat of the memory", "thermal"),
    "host_limit_power": Reason("below the host's clock limit for power", "benign"),
    "host_limit_thermal": Reason("below the host's clock limit for heat", "thermal"),
    "host_limit": Reason("below the host's clock limit, for any reason", "benign"),
}
"""our name -> what it is"""


def reasons_in(flags: int) -> tuple[str, ...]:
    """The reasons whose bits are set; bits that nobody documents are left out."""
    return tuple(name for name, reason in REASONS.items() if reason.bit & flags)


def mask(*severities: Severity) -> int:
    """All bits of these severities."""
    return sum(reason.bit for reason in REASONS.values() if reason.severity in severities)
