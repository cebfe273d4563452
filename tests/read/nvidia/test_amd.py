"""AMD's tools: ``rocm-smi --json`` in its wordings, ``amd-smi metric --json`` in its shapes."""

from __future__ import annotations

import json

import pytest

from tests.read.nvidia.reading import WRITTEN, label_sets, of_gpu, points, read, utc

MIB = float(1 << 20)
CARD = {
    "Unique ID": "0x79ccd55167a2124a",
    "Temperature (Sensor edge) (C)": "53.0",
    "Temperature (Sensor junction) (C)": "55.0",
    "Temperature (Sensor memory) (C)": "51.0",
    "sclk clock speed:": "(1502Mhz)",
    "mclk clock speed:": "(1200Mhz)",
    "Max Graphics Package Power (W)": "290.0",
    "Average Graphics Package Power (W)": "36.5",
    "GPU use (%)": "98",
    "Memory GpuActivity": "N/A",
    "PCIe Replay Count": "2",
    "PCI Bus": "0000:83:00.0",
    "VRAM Total Memory (B)": "34342961152",
    "VRAM Total Used Memory (B)": "6750208",
    "Card series": "Instinct MI100",
}
EXPECTED = {
    "gpu_utilization_ratio": 0.98,
    "gpu_temperature_celsius": 53.0,
    "gpu_memory_temperature_celsius": 51.0,
    "gpu_power_watts": 36.5,
    "gpu_power_limit_watts": 290.0,
    "gpu_sm_clock_hertz": 1.502e9,
    "gpu_memory_clock_hertz": 1.2e9,
    "gpu_memory_total_bytes": 34342961152.0,
    "gpu_memory_used_bytes": 6750208.0,
    "gpu_pcie_replays_total": 2.0,
}


@pytest.mark.parametrize("indent", [None, 4])
def test_rocm_smi(indent: int | None) -> None:
    document = {"card0": CARD, "card10": CARD | {"GPU use (%)": "N/A"}, "system": {"Driver version": "6.3.6"}}
    result, sink = read(json.dumps(document, indent=indent))
    assert (result.format, result.status) == ("rocm-smi-json", "read")
    assert "assumed to be when the file was last written" in result.note
    assert of_gpu(sink, "0") == EXPECTED
    assert "gpu_utilization_ratio" not in of_gpu(sink, "10")
    assert points(sink)["gpu_power_watts", "gpu=0"] == [(WRITTEN, 36.5)]
    assert ("pci", "0000:83:00") in {pair for labels in label_sets(sink) for pair in labels}


def test_rocm_smi_with_other_field_names() -> None:
    old = {"Temperature (Sensor junction) (c)": "103.0", "Temperature (Sensor mem) (c)": "79.0"}
    _, sink = read(json.dumps({"card0": old | {"Current Socket Graphics Package Power (W)": "7.222"}}))
    assert of_gpu(sink, "0") == {
        "gpu_temperature_celsius": 103.0,
        "gpu_memory_temperature_celsius": 79.0,
        "gpu_power_watts": 7.222,
    }


def test_rocm_smi_cut_off() -> None:
    result, sink = read(json.dumps({"card0": CARD}, indent=1)[:300])
    assert result.format == "rocm-smi-json"
    assert result.status == "unreadable"
    assert not sink.blocks


def amd(index: int, **more: object) -> dict[str, object]:
    def figure(value: float, unit: str) -> dict[str, object]:
        return {"value": value, "unit": unit}

    return {
        "gpu": index,
        "usage": {"gfx_activity": figure(97, "%"), "umc_activity": "N/A"},
        "power": {"socket_power": figure(239, "W"), "throttle_status": "UNTHROTTLED"},
        "clock": {"gfx_0": {"clk": figure(2100, "MHz"), "max_clk": figure(2400, "MHz")}, "mem_0": "N/A"},
        "temperature": {"edge": "N/A", "hotspot": figure(36, "C"), "mem": figure(40, "C")},
        "mem_usage": {"total_vram": figure(196288, "MB"), "used_vram": figure(283, "MB")},
        "ecc": {"total_correctable_count": 3, "total_uncorrectable_count": 1},
        "energy": {"total_energy_consumption": figure(1234.5, "J")},
        "pcie": {"replay_count": 0},
        **more,
    }


@pytest.mark.parametrize("wrapped", [False, True])
def test_amd_smi(wrapped: bool) -> None:
    listed = [amd(0), amd(1)]
    result, sink = read(json.dumps({"gpu_data": listed} if wrapped else listed, indent=2))
    assert (result.format, result.status) == ("amd-smi-json", "read")
    assert of_gpu(sink, "1") == {
        "gpu_utilization_ratio": 0.97,
        "gpu_power_watts": 239.0,
        "gpu_sm_clock_hertz": 2.1e9,
        "gpu_sm_clock_max_hertz": 2.4e9,
        "gpu_temperature_celsius": 36.0,
        "gpu_memory_temperature_celsius": 40.0,
        "gpu_memory_total_bytes": 196288 * MIB,
        "gpu_memory_used_bytes": 283 * MIB,
        "gpu_ecc_correctable_total": 3.0,
        "gpu_ecc_uncorrectable_total": 1.0,
        "gpu_energy_joules_total": 1234.5,
        "gpu_pcie_replays_total": 0.0,
    }
    assert points(sink)["gpu_power_watts", "gpu=0"] == [(WRITTEN, 239.0)]


def test_amd_smi_in_watch_mode() -> None:
    start = utc("2026-11-21 08:00:00")
    text = "\n".join(json.dumps([amd(0, timestamp=int(start) + n)]) for n in range(3))
    result, sink = read(text)
    assert result.status == "read"
    assert [time for time, _ in points(sink)["gpu_power_watts", "gpu=0"]] == [start, start + 1, start + 2]


def test_amd_smi_in_watch_mode_without_times_gives_one_sample() -> None:
    result, sink = read("\n".join(json.dumps([amd(0)]) for _ in range(3)))
    assert len(points(sink)["gpu_power_watts", "gpu=0"]) == 1
    assert "2 entries without a time: skipped" in result.note


def test_amd_smi_cut_off() -> None:
    result, sink = read(json.dumps([amd(0)]) + "\n" + json.dumps([amd(0)])[:200])
    assert result.status == "partial"
    assert "truncated or malformed from line 2 on" in result.note
    assert of_gpu(sink, "0")["gpu_power_watts"] == 239.0
