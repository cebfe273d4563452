"""The node's own clock, and how far it is off as its NTP client says (adjtimex)."""

from __future__ import annotations

import ctypes
import functools

from trackside.agent.source import Collector, Reading, Source

_ERROR = 5
"""TIME_ERROR: the clock is not disciplined by anything, so its offset says nothing."""
_NANO = 0x2000
"""STA_NANO in ``status``: the offset is in nanoseconds, else in microseconds."""


class Timex(ctypes.Structure):
    """``struct timex`` as far as it is read here; the rest is room that the kernel writes to."""

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
    """How far the clock is off, in seconds; None where nothing disciplines it, or it may not be asked."""
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


SOURCE = Source(
    id="clock",
    title="the node's clock and its offset from NTP",
    open=_Clock,
    metrics=("host_clock_offset_seconds", "host_time_seconds"),
)
