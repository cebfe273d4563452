"""SuperBench's ``monitor.jsonl``: one JSON object a sample, its keys ``name:GPU``.

Its network rates and CPU use are counted and left out: their values are in no unit that its documentation tells.
"""

from __future__ import annotations

import re

import msgspec

from trackside.catalog.dialect import Translated
from trackside.logs.numbers import figure
from trackside.logs.stamp import find_time
from trackside.model import Position
from trackside.read.format import Format, Match, Result, Sink, Source
from trackside.read.measurements import MOST_NAMES, UNKNOWN, Measurements

_NAMES = {
    "gpu_usage": ("gpu_utilization_ratio", 0.01),
    "gpu_temperature": ("gpu_temperature_celsius", 1.0),
    "gpu_power": ("gpu_power_watts", 1.0),
    "gpu_power_limit": ("gpu_power_limit_watts", 1.0),
    "gpu_mem_used": ("gpu_memory_used_bytes", 1.0),  # its comments say MB, NVML and its values say bytes
    "gpu_mem_total": ("gpu_memory_total_bytes", 1.0),
    "gpu_corrected_ecc": ("gpu_ecc_correctable_total", 1.0),  # the volatile counters
    "gpu_uncorrected_ecc": ("gpu_ecc_uncorrectable_total", 1.0),
    "gpu_remap_correctable_error": ("gpu_rows_remapped_correctable_total", 1.0),
    "gpu_remap_uncorrectable_error": ("gpu_rows_remapped_uncorrectable_total", 1.0),
}
_KEY = re.compile(r"(gpu_\w{1,60}):(\d{1,4})")
_BEGINNING = re.compile(r'\s*\{"time": "[^"\n]{1,40}", [^\n]{0,400}?"gpu_\w{1,60}:\d{1,4}": ')


def _sniff(source: Source) -> Match | None:
    return Match(0.95, "SuperBench's monitor") if _BEGINNING.match(source.text[:2000]) else None


def _read(source: Source, sink: Sink) -> Result:
    found = Measurements(source.path, sink)
    numbers: dict[str, int] = {}
    broken = first = 0
    for line, offset, text in source.lines():
        if not text.strip():
            continue
        row = _row(text)
        time = None if row is None else find_time(str(row.get("time")))
        if row is None or time is None:
            broken, first = broken + 1, first or line
            continue
        at = Position(source.path, line, offset, len(text.encode()))
        for key, value in row.items():
            if (number := figure(value)) is not None:
                if key not in numbers and len(numbers) < MOST_NAMES:
                    numbers[key] = _entered(found, key, at)
                found.value(numbers.get(key, UNKNOWN), time, number)
    note = f"{broken:,} lines are broken or cut off (first: line {first:,})" if broken else ""
    return found.result(["its times name no zone: read as UTC", note], lost=bool(broken))


def _entered(found: Measurements, key: str, at: Position) -> int:
    """The number of the series that a key names."""
    known = _KEY.fullmatch(key)
    if known is None or known[1] not in _NAMES:
        return found.unasked(key if known is None else known[1])
    metric, scale = _NAMES[known[1]]
    return found.enter(known[1], Translated(metric, (("gpu", known[2]),), scale), at)


def _row(text: str) -> dict[str, object] | None:
    try:
        row = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    return row if isinstance(row, dict) else None


FORMAT = Format("superbench-monitor", "GPU samples (SuperBench's monitor.jsonl)", "metric", _sniff, _read)
