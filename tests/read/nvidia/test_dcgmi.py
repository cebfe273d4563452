"""``dcgmi dmon``: headings again and again, blanks, times that scripts add."""

from __future__ import annotations

import pytest

from tests.read.nvidia.reading import WRITTEN, last, of_gpu, points, read, utc

MIB = float(1 << 20)
HEADING = """#Entity   GPUTL   SMACT   TENSO   DRAMA   POWER      TOTEC             TMPTR  FBUSD   SMCLK  XIDER  DVCCTR
ID                                          W          mJ                C
"""
ROW = "GPU {}     {}       {:.3f}   0.250   0.300   {}    2070000000        24     625     1980   0      4\n"
ITEMS = "".join(
    (HEADING if second % 2 == 0 else "") + ROW.format(0, 61, 0.367, 59.200) + ROW.format(1, 100, 0.557, "N/A")
    for second in range(3)
)


def test_fields_and_blanks() -> None:
    result, sink = read(ITEMS)
    assert result.format == "dcgmi-dmon"
    values = of_gpu(sink, "0")
    assert values["gpu_utilization_ratio"] == 0.61
    assert values["gpu_sm_active_ratio"] == 0.367
    assert values["gpu_tensor_active_ratio"] == 0.25
    assert values["gpu_dram_active_ratio"] == 0.3
    assert values["gpu_power_watts"] == 59.2
    assert values["gpu_energy_joules_total"] == 2.07e6
    assert values["gpu_temperature_celsius"] == 24.0
    assert values["gpu_memory_used_bytes"] == 625 * MIB
    assert values["gpu_sm_clock_hertz"] == 1.98e9
    assert values["gpu_xid_last"] == 0.0
    assert values["gpu_throttle_reasons"] == 4.0
    assert "gpu_power_watts" not in of_gpu(sink, "1")


def test_without_times_the_last_sample_gets_the_time_of_the_file() -> None:
    result, sink = read(ITEMS)
    assert [time for time, _ in points(sink)["gpu_sm_active_ratio", "gpu=1"]] == [WRITTEN - 2, WRITTEN - 1, WRITTEN]
    assert result.status == "partial"
    assert "dcgmi prints none: pipe it through ts" in result.note


@pytest.mark.parametrize("prefix", ["2026-11-21 08:00:{:02} ", "[2026-11-21T08:00:{:02}.000Z] "])
def test_times_before_each_line(prefix: str) -> None:
    lines = [prefix.format(n) + line for n, line in enumerate(ITEMS.splitlines()[:2] + ITEMS.splitlines()[2:8])]
    result, sink = read("\n".join(lines))
    assert result.format == "dcgmi-dmon"
    assert points(sink)["gpu_sm_active_ratio", "gpu=0"][0] == (utc("2026-11-21 08:00:02"), 0.367)


def test_a_date_before_each_sample() -> None:
    sample = HEADING + ROW.format(0, 61, 0.367, 59.2)
    text = "".join(f"Sat Nov 21 08:0{n}:00 2026\n{sample}" for n in range(3))
    _, sink = read(text)
    start = utc("2026-11-21 08:00:00")
    assert [time for time, _ in points(sink)["gpu_sm_active_ratio", "gpu=0"]] == [start, start + 60, start + 120]


def test_lines_of_gpu_parts_are_skipped_and_counted() -> None:
    result, sink = read(HEADING + ROW.format(0, 61, 0.3, 59.2) + ROW.format(0, 1, 0.9, 1.0).replace("GPU ", "GPU-I "))
    assert last(sink)["gpu_sm_active_ratio", "gpu=0"] == 0.3
    assert "1 line of GPU parts, switches or CPUs" in result.note


def test_a_truncated_line_is_skipped() -> None:
    text = HEADING + ROW.format(0, 1, 0.1, 1.0) * 40
    result, sink = read(text[:-30])
    assert result.status == "partial"
    assert "1 line could not be read" in result.note
    assert len(points(sink)["gpu_sm_active_ratio", "gpu=0"]) == 39


@pytest.mark.parametrize("date", ["Sat Nov 21 08:00:00 UTC 2026", "1795248000", "2026-11-21T09:00:00+01:00"])
def test_samples_after_a_single_date_are_one_per_second(date: str) -> None:
    result, sink = read(f"{date}\n{HEADING}" + (ROW.format(0, 61, 0.367, 59.2) + ROW.format(1, 5, 0.1, 60.0)) * 3)
    start = utc("2026-11-21 08:00:00")
    assert [time for time, _ in points(sink)["gpu_sm_active_ratio", "gpu=1"]] == [start, start + 1, start + 2]
    assert result.status == "read"
    assert "assumed one per second from the time before them" in result.note
    assert "without a zone" not in result.note
