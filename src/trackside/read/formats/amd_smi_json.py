"""``amd-smi metric --json``: a list of GPUs, top-level or under ``gpu_data``; figures are objects with value and unit.

With ``--watch`` each GPU carries a ``timestamp``; without it the tool prints no time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from trackside.catalog.labels import pci_address
from trackside.read.format import Format, InputSource, Match, Result, Sink
from trackside.read.gpu_readings import GpuIdentity, Readings, TextLine

_METRICS: Mapping[str, tuple[str, ...]] = {
    "gpu_utilization_ratio": ("usage/gfx_activity",),
    "gpu_memory_utilization_ratio": ("usage/umc_activity",),
    "gpu_temperature_celsius": ("temperature/edge", "temperature/hotspot"),
    "gpu_memory_temperature_celsius": ("temperature/mem",),
    "gpu_power_watts": ("power/socket_power", "power/current_socket_power", "power/average_socket_power"),
    "gpu_memory_total_bytes": ("mem_usage/total_vram",),
    "gpu_memory_used_bytes": ("mem_usage/used_vram",),
    "gpu_memory_free_bytes": ("mem_usage/free_vram",),
    "gpu_sm_clock_hertz": ("clock/gfx_0/clk",),
    "gpu_sm_clock_max_hertz": ("clock/gfx_0/max_clk",),
    "gpu_memory_clock_hertz": ("clock/mem_0/clk",),
    "gpu_energy_joules_total": ("energy/total_energy_consumption",),
    "gpu_pcie_replays_total": ("pcie/replay_count",),
    "gpu_ecc_correctable_total": ("ecc/total_correctable_count",),
    "gpu_ecc_uncorrectable_total": ("ecc/total_uncorrectable_count",),
}
"""metric -> its paths in a GPU's object; the first that has a figure is used"""
_SEPARATOR = re.compile(r"[\s,]*")
_MARKS = (b'"gfx_activity"', b'"socket_power"', b'"used_vram"', b'"total_vram"')


def _sniff(source: InputSource) -> Match | None:
    head = source.head.lstrip()
    if head[:1] not in (b"[", b"{") or b'"gpu"' not in head[:4096]:
        return None
    return Match(0.9, "output of amd-smi metric") if any(mark in head for mark in _MARKS) else None


def _read(source: InputSource, sink: Sink) -> Result:
    readings = Readings(source, sink)
    untimed: set[GpuIdentity] = set()
    for line, entry in _gpus(readings, source.whole().decode("utf-8", "replace")):
        index = entry.get("gpu")
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < 10_000:
            readings.lost_lines += 1
            continue
        gpu = GpuIdentity(str(index), pci=pci_address(str(_value_at(entry, "bus/bdf") or "")))
        time = _time(readings, entry.get("timestamp"))
        if time is None and source.modified is not None and gpu not in untimed:
            untimed.add(gpu)
            time = source.modified
        if time is None:
            readings.note("{} entries without a time: skipped")
        else:
            readings.add(time, readings.first_pairs(line, gpu, _METRICS, partial(_figure, entry)))
    if untimed:
        readings.note("no time: assumed to be when the file was last written", lost=False)
    return readings.result("no GPU in it")


def _gpus(readings: Readings, text: str) -> Iterator[tuple[TextLine, dict[str, Any]]]:
    """Yield every GPU of every concatenated document; stops at the first truncated one."""
    decoder = json.JSONDecoder()
    position, number = 0, 1
    while (start := _SEPARATOR.match(text, position).end()) < len(text):  # type: ignore[union-attr]
        number += text.count("\n", position, start)
        try:
            document, position = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            readings.note("truncated or malformed from line {} on", number)
            return
        entries = document.get("gpu_data") if isinstance(document, dict) else document
        for entry in entries if isinstance(entries, list) else [document]:
            if isinstance(entry, dict):
                yield TextLine(number, start, ""), entry
        number += text.count("\n", start, position)


def _time(readings: Readings, stamp: object) -> float | None:
    if isinstance(stamp, str):
        return readings.time(stamp)
    is_time = isinstance(stamp, int | float) and not isinstance(stamp, bool) and 0 < stamp < 1e15
    return readings.time(f"{stamp:f}") if is_time else None


def _value_at(entry: dict[str, Any], path: str) -> object:
    value: object = entry
    for name in path.split("/"):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _figure(entry: dict[str, Any], path: str) -> tuple[float, str] | None:
    """A value and its unit; None for N/A and anything but a number."""
    figure = _value_at(entry, path)
    value, unit = (figure.get("value"), figure.get("unit")) if isinstance(figure, dict) else (figure, "")
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e18 < value < 1e18:
        return None
    return float(value), unit if isinstance(unit, str) else ""


FORMAT = Format("amd-smi-json", "AMD GPU state (amd-smi metric --json)", "metric", _sniff, _read)
