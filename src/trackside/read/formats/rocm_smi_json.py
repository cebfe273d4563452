"""``rocm-smi --json``: one object with a member per card; keys are descriptions, values are text.

Keys changed between ROCm versions (``Average`` or ``Current Socket Graphics Package Power``, ``(c)`` or ``(C)``); all
are supported. The tool prints no time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial

from trackside.catalog.labels import pci_address
from trackside.read.format import Format, InputSource, Match, Result, Sink
from trackside.read.gpu_readings import GpuIdentity, Readings, SeriesValues, TextLine

_CARD = re.compile(r"card(\d{1,4})")
_FIGURE = re.compile(r"\(?([-+]?\d{1,20}(?:\.\d{1,20})?)\s?(Mhz|MHz)?\)?")
_METRICS: Mapping[str, tuple[str, ...]] = {
    "gpu_utilization_ratio": ("gpu use (%)",),
    "gpu_memory_utilization_ratio": ("gpu memory use (%)", "gpu memory read/write activity (%)"),
    "gpu_temperature_celsius": (
        "temperature (sensor edge) (c)", "temperature (sensor junction) (c)", "temperature (sensor hotspot) (c)",
    ),
    "gpu_memory_temperature_celsius": ("temperature (sensor memory) (c)", "temperature (sensor mem) (c)"),
    "gpu_power_watts": (
        "average graphics package power (w)", "current socket graphics package power (w)",
        "current graphics package power (w)",
    ),
    "gpu_power_limit_watts": ("max graphics package power (w)",),
    "gpu_memory_total_bytes": ("vram total memory (b)",),
    "gpu_memory_used_bytes": ("vram total used memory (b)",),
    "gpu_sm_clock_hertz": ("sclk clock speed:",),
    "gpu_memory_clock_hertz": ("mclk clock speed:",),
    "gpu_pcie_replays_total": ("pcie replay count",),
}  # fmt: skip
"""metric -> its keys in lower case; the first that a card has is used"""
_KEYS = frozenset(key for keys in _METRICS.values() for key in keys)
_UNITS = {"(%)": "%", "(c)": "C", "(w)": "W", "(b)": "B", "speed:": "MHz"}
"""suffix of a key -> its unit"""


def _sniff(source: InputSource) -> Match | None:
    head = source.head.lstrip()
    if not head.startswith(b"{") or b'"card' not in head[:4096]:
        return None
    key_count = sum(f'"{key}"' in source.text[:16384].lower() for key in _KEYS)
    return Match(0.9, "output of rocm-smi") if key_count else None


def _read(source: InputSource, sink: Sink) -> Result:
    try:
        document = json.loads(source.whole())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"not a complete JSON document: {error}") from None
    readings = Readings(source, sink)
    cards = document.items() if isinstance(document, dict) else ()
    if source.modified is None:
        return Result(0, "partial", "no time: rocm-smi prints none, and the file has no mtime; skipped")
    readings.note("no time: assumed to be when the file was last written", lost=False)
    for name, card in cards:
        if (match := _CARD.fullmatch(name)) is not None and isinstance(card, dict):
            readings.add(source.modified, _pairs(readings, match[1], {k.lower(): v for k, v in card.items()}))
    return readings.result("no GPUs")


def _pairs(readings: Readings, index: str, card: Mapping[str, object]) -> SeriesValues:
    model = next((text for key in ("card series", "device name", "card model") if (text := card.get(key))), "")
    gpu = GpuIdentity(
        index, _text(card.get("unique id")).removeprefix("N/A"), pci_address(_text(card.get("pci bus"))), _text(model)
    )
    return readings.first_pairs(TextLine(1, 0, ""), gpu, _METRICS, partial(_figure, card))


def _figure(card: Mapping[str, object], key: str) -> tuple[float, str] | None:
    match = _FIGURE.fullmatch(_text(card.get(key)))
    return None if match is None else (float(match[1]), _UNITS.get(key.rpartition(" ")[2], ""))


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


FORMAT = Format("rocm-smi-json", "AMD GPU state (rocm-smi --json)", "metric", _sniff, _read)
