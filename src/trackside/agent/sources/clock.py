"""The node's clock, and its offset as estimated by the NTP client (adjtimex)."""

from __future__ import annotations

import ctypes
import functools

from trackside.agent.source import AgentSource, Collector, Reading

_ERROR = 5
"""TIME_ERROR: the clock is not synchronized, so its offset is meaningless."""
_NANO = 0x2000
"""STA_NANO in ``status``: the offset is in nanoseconds, else in microseconds."""


class Timex(ctypes.Structure):
    """The part of ``struct timex`` that is read here; the rest is space for the kernel to write."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def offset_s() -> float | None:
    """Offset of the clock in seconds; None if it is not synchronized or may not be read."""
    timex = Timex()
    state = _libc().adjtimex(ctypes.byref(timex))
    if state < 0 or state == _ERROR:
        return None
    return float(timex.offset) / (1e9 if timex.status & _NANO else 1e6)


class _Clock(Collector):
    def collect(self, reading: Reading) -> None:
        reading.sample("host_time_seconds", reading.time_ns / 1e9)
        offset = offset_s()
        if offset is not None:
            reading.sample("host_clock_offset_seconds", offset)


SOURCE = AgentSource(
    id="clock",
    title="the node's clock and its offset from NTP",
    open=_Clock,
    metrics=("host_clock_offset_seconds", "host_time_seconds"),
)
