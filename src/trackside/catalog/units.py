"""Units as printed by tools, and the factors to the catalog's units."""

from __future__ import annotations

from collections.abc import Mapping

_KI, _MI, _GI, _TI = (float(1 << bits) for bits in (10, 20, 30, 40))

# In GPU tools "KB" and "MB" of memory are powers of two: elsewhere they print the same number as "MiB".
_BYTES = {
    "B": 1.0, "bytes": 1.0, "Bytes": 1.0, "kB": _KI, "KB": _KI, "KiB": _KI, "MB": _MI, "MiB": _MI,
    "GB": _GI, "GiB": _GI, "TB": _TI, "TiB": _TI,
}  # fmt: skip

UNITS: Mapping[str, Mapping[str, float]] = {
    "ratio": {"%": 0.01, "percent": 0.01, "Percent": 0.01, "ratio": 1.0, "1": 1.0},
    "bytes": _BYTES,
    "B/s": {
        "B/s": 1.0, "bytes/s": 1.0, "kB/s": 1e3, "KB/s": 1e3, "KiB/s": _KI, "MB/s": 1e6, "MiB/s": _MI,
        "GB/s": 1e9, "GiB/s": _GI, "kb/s": 125.0, "Mb/s": 125e3, "Mbps": 125e3, "Gb/s": 125e6, "Gbps": 125e6,
    },
    "C": {"C": 1.0, "c": 1.0, "°C": 1.0, "Cel": 1.0, "celsius": 1.0, "Celsius": 1.0},
    "W": {"W": 1.0, "w": 1.0, "Watts": 1.0, "watts": 1.0, "mW": 1e-3, "uW": 1e-6, "µW": 1e-6, "kW": 1e3},
    "J": {"J": 1.0, "joules": 1.0, "mJ": 1e-3, "uJ": 1e-6, "µJ": 1e-6, "kJ": 1e3, "Wh": 3600.0, "kWh": 3.6e6},
    "Hz": {"Hz": 1.0, "kHz": 1e3, "KHz": 1e3, "MHz": 1e6, "Mhz": 1e6, "GHz": 1e9},
    "bool": {"": 1.0, "bool": 1.0},
    "errors": {"": 1.0, "errs": 1.0, "errors": 1.0},
    "replays": {"": 1.0, "errs": 1.0, "replays": 1.0},
    "s": {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0},
}  # fmt: skip
"""unit of the catalog -> unit as printed -> factor; other units have no variants"""


def factor(printed: str, unit: str) -> float:
    """The factor from a printed unit, optionally in brackets, to the catalog's. Raises ValueError for an unknown unit."""
    text = printed.strip().strip("[]()").strip()
    factors = UNITS.get(unit, {"": 1.0, unit: 1.0})
    if text not in factors:
        raise ValueError(
            f"{text!r} is not a unit for {unit or 'a bare number'}; known: {', '.join(filter(None, factors))}"
        )
    return factors[text]
