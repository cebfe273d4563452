"""``amd-smi metric --json``: a list of GPUs, bare or under ``gpu_data``; figures as objects with value and unit.

With ``--watch`` each GPU carries a ``timestamp``; without it the tool prints no time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from trackside.catalog.labels import pci_address
from trackside.read.format import Format, Match, Result, Sink, Source
from trackside.read.gpu_readings import Gpu, Line, Readings

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
"""our metric -> where it stands in a GPU's object; the first that has a figure holds"""
_BETWEEN = re.compile(r"[\s,]*")
_MARKS = (b'"gfx_activity"', b'"socket_power"', b'"used_vram"', b'"total_vram"')


def _sniff(source: Source) -> Match | None:
    head = source.head.lstrip()
    if head[:1] not in (b"[", b"{") or b'"gpu"' not in head[:4096]:
        return None
    return Match(0.9, "what amd-smi metric prints") if any(mark in head for mark in _MARKS) else None


def _read(source: Source, sink: Sink) -> Result:
    readings = Readings(source, sink)
    untimed: set[Gpu] = set()
    for line, entry in _gpus(readings, source.whole().decode("utf-8", "replace")):
        index = entry.get("gpu")
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < 10_000:
            readings.lost += 1
            continue
        gpu = Gpu(str(index), pci=pci_address(str(_at(entry, "bus/bdf") or "")))
        time = _time(readings, entry.get("timestamp"))
        if time is None and source.modified is not None and gpu not in untimed:
            untimed.add(gpu)
            time = source.modified
        if time is None:
            readings.note("{} entries give no time: not placed")
        else:
            readings.add(time, readings.first_pairs(line, gpu, _METRICS, partial(_figure, entry)))
    if untimed:
        readings.note("it gives no time: taken as of when the file was last written", lost=False)
    return readings.result("no GPU in it")


def _gpus(readings: Readings, text: str) -> Iterator[tuple[Line, dict[str, Any]]]:
    """Every GPU of every document, one behind the other; what is cut off ends it."""
    decoder = json.JSONDecoder()
    position, number = 0, 1
    while (start := _BETWEEN.match(text, position).end()) < len(text):  # type: ignore[union-attr]
        number += text.count("\n", position, start)
        try:
            document, position = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            readings.note("cut off or garbled from line {} on", number)
            return
        listed = document.get("gpu_data") if isinstance(document, dict) else document
        for entry in listed if isinstance(listed, list) else [document]:
            if isinstance(entry, dict):
                yield Line(number, start, ""), entry
        number += text.count("\n", start, position)


def _time(readings: Readings, stamp: object) -> float | None:
    if isinstance(stamp, str):
        return readings.time(stamp)
    known = isinstance(stamp, int | float) and not isinstance(stamp, bool) and 0 < stamp < 1e15
    return readings.time(f"{stamp:f}") if known else None


def _at(entry: dict[str, Any], place: str) -> object:
    found: object = entry
    for name in place.split("/"):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _figure(entry: dict[str, Any], place: str) -> tuple[float, str] | None:
    """A value and its unit; None for N/A and what is no number."""
    found = _at(entry, place)
    value, unit = (found.get("value"), found.get("unit")) if isinstance(found, dict) else (found, "")
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e18 < value < 1e18:
        return None
    return float(value), unit if isinstance(unit, str) else ""


FORMAT = Format("amd-smi-json", "AMD GPU state (amd-smi metric --json)", "metric", _sniff, _read)
