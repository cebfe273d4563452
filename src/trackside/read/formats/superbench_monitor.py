"""SuperBench's ``monitor.jsonl``: one JSON object per sample, with keys ``name:GPU``.

Network rates and CPU usage are counted but not read, because its documentation does not give their units.
"""

from __future__ import annotations

import re

import msgspec

from trackside.catalog.dialect import Translation
from trackside.logs.numbers import figure
from trackside.logs.stamp import find_time
from trackside.model import Position
from trackside.read.format import Format, InputSource, Match, Result, Sink
from trackside.read.measurements import MAX_NAMES, UNKNOWN, Measurements

_NAMES = {
    "gpu_usage": ("gpu_utilization_ratio", 0.01),
    "gpu_temperature": ("gpu_temperature_celsius", 1.0),
    "gpu_power": ("gpu_power_watts", 1.0),
    "gpu_power_limit": ("gpu_power_limit_watts", 1.0),
    "gpu_mem_used": ("gpu_memory_used_bytes", 1.0),  # its comments say MB, but NVML and the values are in bytes
    "gpu_mem_total": ("gpu_memory_total_bytes", 1.0),
    "gpu_corrected_ecc": ("gpu_ecc_correctable_total", 1.0),  # the volatile counters
    "gpu_uncorrected_ecc": ("gpu_ecc_uncorrectable_total", 1.0),
    "gpu_remap_correctable_error": ("gpu_rows_remapped_correctable_total", 1.0),
    "gpu_remap_uncorrectable_error": ("gpu_rows_remapped_uncorrectable_total", 1.0),
}
_KEY = re.compile(r"(gpu_\w{1,60}):(\d{1,4})")
_BEGINNING = re.compile(r'\s*\{"time": "[^"\n]{1,40}", [^\n]{0,400}?"gpu_\w{1,60}:\d{1,4}": ')


def _sniff(source: InputSource) -> Match | None:
    return Match(0.95, "SuperBench monitor samples") if _BEGINNING.match(source.text[:2000]) else None


def _read(source: InputSource, sink: Sink) -> Result:
    measurements = Measurements(source.path, sink)
    numbers: dict[str, int] = {}
    broken_lines = first_broken = 0
    for line, offset, text in source.lines():
        if not text.strip():
            continue
        row = _row(text)
        time = None if row is None else find_time(str(row.get("time")))
        if row is None or time is None:
            broken_lines, first_broken = broken_lines + 1, first_broken or line
            continue
        position = Position(source.path, line, offset, len(text.encode()))
        for key, value in row.items():
            if (number := figure(value)) is not None:
                if key not in numbers and len(numbers) < MAX_NAMES:
                    numbers[key] = _series_number(measurements, key, position)
                measurements.value(numbers.get(key, UNKNOWN), time, number)
    note = f"{broken_lines:,} lines are malformed or truncated (first: line {first_broken:,})" if broken_lines else ""
    return measurements.result(["times without a zone, read as UTC", note], lost=bool(broken_lines))


def _series_number(measurements: Measurements, key: str, position: Position) -> int:
    """The series number for a key."""
    match = _KEY.fullmatch(key)
    if match is None or match[1] not in _NAMES:
        return measurements.add_unknown(key if match is None else match[1])
    metric, scale = _NAMES[match[1]]
    return measurements.add_translated(match[1], Translation(metric, (("gpu", match[2]),), scale), position)


def _row(text: str) -> dict[str, object] | None:
    try:
        row = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    return row if isinstance(row, dict) else None


FORMAT = Format("superbench-monitor", "GPU samples (SuperBench's monitor.jsonl)", "metric", _sniff, _read)
