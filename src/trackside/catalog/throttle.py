"""Reasons why a GPU's clocks are reduced: their bits and their severity.

Bits: NVML's clocks event reasons (NVML API reference, group nvmlClocksEventReasons; called throttle reasons before
driver 535), which DCGM_FI_DEV_CLOCKS_EVENT_REASONS and ``clocks_event_reasons.active`` of nvidia-smi pass on
unchanged. Severity: the same documents. According to NVML, hardware slowdown halves the clocks or worse, and appears
briefly when the performance state changes; the software power cap keeps a loaded GPU within its limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Severity = Literal["hard", "thermal", "benign"]
"""hard: the hardware cuts the clocks. thermal: the driver lowers them because of heat. benign: normal operation."""


@dataclass(frozen=True, slots=True)
class ThrottleReason:
    """One reason. ``bit``: in ``gpu_throttle_reasons``; 0 for a reason that only counters and ratios report."""

    title: str
    severity: Severity
    bit: int = 0


REASONS: Mapping[str, ThrottleReason] = {
    "gpu_idle": ThrottleReason("idle", "benign", 0x1),
    "applications_clocks_setting": ThrottleReason("clocks are set for applications", "benign", 0x2),
    "sw_power_cap": ThrottleReason("software power cap", "benign", 0x4),
    "hw_slowdown": ThrottleReason("hardware slowdown (heat, power brake or power surge)", "hard", 0x8),
    "sync_boost": ThrottleReason("clocks follow another GPU in the sync boost group", "benign", 0x10),
    "sw_thermal_slowdown": ThrottleReason("software thermal slowdown (GPU or memory)", "thermal", 0x20),
    "hw_thermal_slowdown": ThrottleReason("hardware thermal slowdown", "hard", 0x40),
    "hw_power_brake_slowdown": ThrottleReason("hardware power brake slowdown (external signal)", "hard", 0x80),
    "display_clock_setting": ThrottleReason("clocks are set for a display", "benign", 0x100),
    # NVML's performance policies, counted by nvmlDeviceGetViolationStatus; DCGM's *_VIOLATION fields.
    "thermal": ThrottleReason("any thermal slowdown", "thermal"),
    "board_limit": ThrottleReason("board limit (voltage or current)", "benign"),
    "low_utilization": ThrottleReason("too little work to raise clocks", "benign"),
    "reliability": ThrottleReason("voltage limit for reliability", "benign"),
    "below_application_clocks": ThrottleReason("below the clocks set for applications, for any reason", "benign"),
    "below_base_clocks": ThrottleReason("below the base clocks, for any reason", "benign"),
    # AMD's violation counters (amd-smi, device metrics exporter; MI300 and newer).
    "processor_hot": ThrottleReason("PROCHOT: the board signals overheating", "hard"),
    "package_power": ThrottleReason("package power limit", "benign"),
    "socket_thermal": ThrottleReason("socket temperature", "thermal"),
    "vr_thermal": ThrottleReason("voltage regulator temperature", "thermal"),
    "hbm_thermal": ThrottleReason("memory temperature", "thermal"),
    "host_limit_power": ThrottleReason("host clock limit because of power", "benign"),
    "host_limit_thermal": ThrottleReason("host clock limit because of heat", "thermal"),
    "host_limit": ThrottleReason("host clock limit, for any reason", "benign"),
}
"""name -> reason"""


def reasons_in(flags: int) -> tuple[str, ...]:
    """The reasons whose bits are set; undocumented bits are ignored."""
    return tuple(name for name, reason in REASONS.items() if reason.bit & flags)


def mask(*severities: Severity) -> int:
    """The bits of all reasons of these severities."""
    return sum(reason.bit for reason in REASONS.values() if reason.severity in severities)
