"""``nvidia-smi --query-gpu --format=csv`` in every dress: units, loops, and what to do where columns are missing."""

from __future__ import annotations

import pytest

from tests.read.nvidia.reading import described, last, points, read, utc

MIB = float(1 << 20)
T0 = utc("2026-11-21 08:00:00.123")
HEADING = "timestamp, index, uuid, pci.bus_id, name, utilization.gpu [%], memory.used [MiB], power.draw [W]"
UUIDS = [f"GPU-11111111-2222-3333-4444-55555555555{n}" for n in range(2)]


def row(second: int, gpu: int, busy: int, used: int, watts: float, units: bool = True) -> str:
    percent, mib, watt = (" %", " MiB", " W") if units else ("", "", "")
    return (
        f"2026/11/21 08:00:{second:02}.123, {gpu}, {UUIDS[gpu]}, 00000000:{gpu + 7:02X}:00.0, NVIDIA A100-SXM4-80GB, "
        f"{busy}{percent}, {used}{mib}, {watts:.2f}{watt}"
    )


LOOP = [
    HEADING,
    row(0, 0, 0, 22377, 67.97),
    row(0, 1, 100, 15995, 87.03),
    row(5, 0, 3, 22377, 68.5),
    row(5, 1, 100, 15995, 86.4),
]
EXPECTED = {
    ("gpu_utilization_ratio", "gpu=0"): [(T0, 0.0), (T0 + 5, 0.03)],
    ("gpu_utilization_ratio", "gpu=1"): [(T0, 1.0), (T0 + 5, 1.0)],
    ("gpu_memory_used_bytes", "gpu=0"): [(T0, 22377 * MIB), (T0 + 5, 22377 * MIB)],
    ("gpu_memory_used_bytes", "gpu=1"): [(T0, 15995 * MIB), (T0 + 5, 15995 * MIB)],
    ("gpu_power_watts", "gpu=0"): [(T0, 67.97), (T0 + 5, 68.5)],
    ("gpu_power_watts", "gpu=1"): [(T0, 87.03), (T0 + 5, 86.4)],
}


def test_a_loop_with_units() -> None:
    found, sink = read("\n".join(LOOP) + "\n")
    assert (found.format, found.status, found.rows) == ("nvidia-smi-csv", "read", 12)
    assert found.note.endswith("; local times without a zone, read as UTC")
    assert points(sink) == EXPECTED
    assert described(sink) == {
        (
            ("gpu", str(n)),
            ("gpu_model", "NVIDIA A100-SXM4-80GB"),
            ("gpu_uuid", UUIDS[n]),
            ("pci", f"0000:{n + 7:02x}:00"),
        )
        for n in range(2)
    }


def test_each_series_stands_where_it_was_first_seen() -> None:
    _, sink = read("\n".join(LOOP))
    places = {(series.get("gpu"), series.at.line, series.at.path) for block in sink.blocks for series in block.series}
    assert places == {("0", 2, "run/gpu.txt"), ("1", 3, "run/gpu.txt")}
    at = next(series.at for block in sink.blocks for series in block.series if series.get("gpu") == "1")
    assert "\n".join(LOOP)[at.offset : at.offset + at.length] == LOOP[2]


@pytest.mark.parametrize("crlf", [False, True])
def test_nounits_headings_again_and_blank_lines(crlf: bool) -> None:
    bare = [row(0, 0, 0, 22377, 67.97, False), row(0, 1, 100, 15995, 87.03, False)]
    later = [row(5, 0, 3, 22377, 68.5, False), row(5, 1, 100, 15995, 86.4, False)]
    text = "\n".join([HEADING, *bare, "", HEADING, *later, ""])
    found, sink = read(text, crlf=crlf)
    assert (found.format, found.status) == ("nvidia-smi-csv", "read")
    assert points(sink) == EXPECTED


def test_a_torn_and_a_garbled_line_cost_only_themselves() -> None:
    text = "\n".join([LOOP[0], LOOP[1], LOOP[2][:40], "Killed by nobody, at all", *LOOP[2:], row(9, 0, 1, 1, 1.0)[:33]])
    filler = [row(s, 0, 3, 22377, 68.5) for s in range(10, 60)] * 3
    found, sink = read("\n".join([text, *filler]))
    assert found.format == "nvidia-smi-csv"
    assert found.status == "partial"
    assert "3 lines could not be read" in found.note
    assert points(sink)["gpu_utilization_ratio", "gpu=1"] == EXPECTED["gpu_utilization_ratio", "gpu=1"]


def test_another_query_may_follow_in_the_same_file() -> None:
    text = "\n".join([*LOOP[:3], "index, timestamp, temperature.gpu", "1, 2026/11/21 08:01:00.000, 45", *LOOP])
    _, sink = read(text)
    assert points(sink)["gpu_temperature_celsius", "gpu=1"] == [(utc("2026-11-21 08:01:00"), 45.0)]


CELLS = {
    "pstate": ("P2", {("gpu_pstate", "gpu=0"): 2.0}),
    "clocks_event_reasons.active": ("0x0000000000000044", {("gpu_throttle_reasons", "gpu=0"): 68.0}),
    "clocks_throttle_reasons.active": ("0x0000000000000001", {("gpu_throttle_reasons", "gpu=0"): 1.0}),
    "clocks.current.sm [MHz]": ("1980 MHz", {("gpu_sm_clock_hertz", "gpu=0"): 1.98e9}),
    "clocks.max.sm [MHz]": ("1980 MHz", {("gpu_sm_clock_max_hertz", "gpu=0"): 1.98e9}),
    "memory.total [MiB]": ("81559 MiB", {("gpu_memory_total_bytes", "gpu=0"): 81559 * MIB}),
    "temperature.gpu": ("59", {("gpu_temperature_celsius", "gpu=0"): 59.0}),
    "temperature.memory": ("48", {("gpu_memory_temperature_celsius", "gpu=0"): 48.0}),
    "ecc.errors.uncorrected.volatile.total": ("2", {("gpu_ecc_uncorrectable_total", "gpu=0"): 2.0}),
    "ecc.errors.corrected.aggregate.total": ("7", {("gpu_ecc_correctable_lifetime_total", "gpu=0"): 7.0}),
    "remapped_rows.uncorrectable": ("1", {("gpu_rows_remapped_uncorrectable_total", "gpu=0"): 1.0}),
    "remapped_rows.pending": ("Yes", {("gpu_row_remap_pending", "gpu=0"): 1.0}),
    "remapped_rows.failure": ("No", {("gpu_row_remap_failed", "gpu=0"): 0.0}),
    "retired_pages.double_bit.count": ("3", {("gpu_pages_retired_total", "cause=double_bit gpu=0"): 3.0}),
    "gpu_recovery_action": ("Drain P2P", {("gpu_recovery_action", "gpu=0"): 3.0}),
    "fabric.state": ("Completed", {("gpu_fabric_state", "gpu=0"): 3.0}),
    "count": ("8", {("gpu_visible_gpus", ""): 8.0}),
    "clocks_event_reasons_counters.sw_power_cap [us]": (
        "4251825415 us",
        {("gpu_throttle_seconds_total", "gpu=0 reason=sw_power_cap"): 4251.825415},
    ),
}


@pytest.mark.parametrize("column", CELLS)
def test_every_kind_of_cell(column: str) -> None:
    cell, expected = CELLS[column]
    heading = f"timestamp, index, {column}, power.draw [W]"
    _, sink = read(f"{heading}\n2026/11/21 08:00:00.123, 0, {cell}, 10.00 W\n")
    assert last(sink) == expected | {("gpu_power_watts", "gpu=0"): 10.0}


@pytest.mark.parametrize(
    "cell",
    ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "ERR!", "", "[Requested functionality has been deprecated]",
     "[GPU is lost]", "[Insufficient Permissions]", "12 parsecs", "1e9 W"],
)  # fmt: skip
def test_a_cell_that_says_nothing_gives_nothing(cell: str) -> None:
    _, sink = read(f"timestamp, index, power.draw [W], temperature.gpu\n2026/11/21 08:00:00.123, 0, {cell}, 59\n")
    assert last(sink) == {("gpu_temperature_celsius", "gpu=0"): 59.0}


def test_a_lost_gpu_is_told_once() -> None:
    lost = "2026/11/21 08:00:05.123, 0, 00000000:9B:00.0, [GPU is lost], [GPU is lost]\n"
    heading = "timestamp, index, pci.bus_id, power.draw [W], temperature.gpu\n"
    found, sink = read(heading + "2026/11/21 08:00:00.123, 0, 00000000:9B:00.0, 70.00 W, 59\n" + lost * 9)
    (event,) = sink.events
    assert (event.kind, event.time, event.fields["pci"]) == ("gpu_lost", T0 + 5, "0000:9b:00")
    assert found.status == "read"
    assert points(sink)["gpu_power_watts", "gpu=0"] == [(T0, 70.0)]


def test_a_driver_that_goes_away_is_said() -> None:
    gone = (
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that it is running.\n"
    )
    found, sink = read("\n".join(LOOP) + "\n" + gone * 50)
    assert found.format == "nvidia-smi-csv"
    assert "nvidia-smi says: NVIDIA-SMI has failed because it couldn't communicate" in found.note
    assert not sink.events


def test_a_unit_that_is_none_of_the_metrics_is_said() -> None:
    found, _ = read("timestamp, index, power.draw [W], temperature.gpu\n2026/11/21 08:00:00.123, 0, 12 MHz, 59\n")
    assert "1 value in a unit that does not fit their metric" in found.note


def test_reasons_printed_one_by_one_make_the_mask() -> None:
    heading = "timestamp, index, clocks_throttle_reasons.hw_slowdown, clocks_throttle_reasons.sw_power_cap, pstate"
    _, sink = read(f"{heading}\n2026/11/21 08:00:00.123, 0, Active, Active, P0\n")
    assert last(sink)["gpu_throttle_reasons", "gpu=0"] == 0xC
    _, sink = read(f"{heading}\n2026/11/21 08:00:00.123, 0, [N/A], [N/A], P0\n")
    assert ("gpu_throttle_reasons", "gpu=0") not in last(sink)


def test_parts_of_a_total_are_counted_once() -> None:
    parts = "sram", "sram.parity", "sram.secded", "dram"
    heading = ", ".join(f"ecc.errors.uncorrected.volatile.{part}" for part in parts)
    _, sink = read(f"timestamp, index, {heading}\n2026/11/21 08:00:00.123, 0, 3, 1, 2, 4\n")
    assert last(sink)["gpu_ecc_uncorrectable_total", "gpu=0"] == 7.0
    _, sink = read(f"timestamp, index, {heading}\n2026/11/21 08:00:00.123, 0, [N/A], [N/A], [N/A], [N/A]\n")
    assert ("gpu_ecc_uncorrectable_total", "gpu=0") not in last(sink)


def test_of_readings_that_say_the_same_the_best_holds() -> None:
    heading = "timestamp, index, power.limit [W], enforced.power.limit [W], power.draw.instant [W], power.draw [W]"
    _, sink = read(f"{heading}\n2026/11/21 08:00:00.123, 0, 700.00 W, 500.00 W, 99.00 W, 80.00 W\n")
    assert last(sink)["gpu_power_limit_watts", "gpu=0"] == 500.0
    assert last(sink)["gpu_power_watts", "gpu=0"] == 80.0
    _, sink = read(f"{heading}\n2026/11/21 08:00:00.123, 0, 700.00 W, [N/A], 99.00 W, [N/A]\n")
    assert last(sink)["gpu_power_limit_watts", "gpu=0"] == 700.0
    assert last(sink)["gpu_power_watts", "gpu=0"] == 99.0


# -- what is missing


def test_without_an_index_the_address_names_the_gpu() -> None:
    text = "timestamp, pci.bus_id, utilization.gpu [%]\n2026/11/21 08:00:00.123, 00000000:9B:00.0, 50 %\n"
    _, sink = read(text)
    assert described(sink) == {(("pci", "0000:9b:00"),)}


def test_rows_without_any_gpu_are_taken_in_order_where_their_times_tell() -> None:
    lines = ["timestamp, utilization.gpu [%]"]
    for second in range(0, 20, 5):
        lines += [f"2026/11/21 08:00:{second:02}.{100 + 4 * gpu:03}, {10 * gpu + second} %" for gpu in range(4)]
    found, sink = read("\n".join(lines))
    curves = points(sink)
    assert [curves["gpu_utilization_ratio", f"gpu={gpu}"][1][1] for gpu in range(4)] == [0.05, 0.15, 0.25, 0.35]
    assert "assigned in nvidia-smi's order" in found.note
    del lines[6]  # a lost row: of that sample nothing can be told any more
    found, sink = read("\n".join(lines))
    assert [len(points(sink)["gpu_utilization_ratio", f"gpu={gpu}"]) for gpu in range(4)] == [3, 3, 3, 3]
    assert "3 rows of incomplete samples" in found.note


@pytest.mark.parametrize("step", [1.0, 0.1])
def test_rows_a_pause_apart_are_of_one_gpu(step: float) -> None:
    times = [f"2026/11/21 08:00:{int(n * step):02}.{round(n * step * 1000) % 1000:03}" for n in range(20)]
    found, sink = read("\n".join(["timestamp, utilization.gpu [%]", *(f"{time}, 50 %" for time in times)]))
    assert list(points(sink)) == [("gpu_utilization_ratio", "")]
    assert len(points(sink)["gpu_utilization_ratio", ""]) == 20
    assert found.status == "read"


def test_without_times_one_sample_is_as_old_as_the_file() -> None:
    text = "index, utilization.gpu [%], memory.used [MiB]\n0, 5 %, 100 MiB\n1, 6 %, 100 MiB\n"
    found, sink = read(text)
    assert points(sink)["gpu_utilization_ratio", "gpu=1"] == [(utc("2026-11-21 08:10:00"), 0.06)]
    assert "assumed to be when the file was last written" in found.note
    found, sink = read(text, written=None)
    assert not sink.blocks
    assert found.status == "partial"


def test_a_loop_without_times_is_not_placed() -> None:
    text = "index, utilization.gpu [%], memory.used [MiB]\n" + "0, 5 %, 100 MiB\n1, 6 %, 100 MiB\n" * 3
    found, sink = read(text)
    assert not sink.blocks
    assert (found.status, found.rows) == ("partial", 0)
    assert "6 rows without a time (add timestamp,index to the query): skipped" in found.note


@pytest.mark.parametrize(
    "line",
    [
        "2026/11/21 08:00:00.123, 0, 5 %, 100 MiB",
        "0, GPU-11111111-2222-3333-4444-555555555550, 5 %, 100 MiB, 70.00 W",
        "2026/11/21 08:00:00.123, 0, 5, 100",
    ],
)
def test_rows_without_a_heading_are_not_guessed(line: str) -> None:
    found, sink = read(f"{line}\n" * 5)
    assert (found.format, found.status, found.rows) == ("nvidia-smi-csv", "unrecognised", 0)
    assert "run it without noheader" in found.note
    assert not sink.blocks


def test_an_echoed_command_stands_for_the_heading() -> None:
    command = "+ nvidia-smi --query-gpu=timestamp,index,utilization.gpu --format=csv,noheader -l 5"
    found, sink = read(f"{command}\n2026/11/21 08:00:00.123, 3, 5 %\n")
    assert last(sink) == {("gpu_utilization_ratio", "gpu=3"): 0.05}
    assert found.status == "read"


# -- processes


def test_compute_processes() -> None:
    text = (
        "timestamp, gpu_uuid, gpu_bus_id, pid, process_name, used_gpu_memory [MiB]\n"
        f"2026/11/21 08:00:00.123, {UUIDS[1]}, 00000000:08:00.0, 280058, /usr/bin/python, 22374 MiB\n"
        f"2026/11/21 08:00:00.123, {UUIDS[1]}, 00000000:08:00.0, 280059, /usr/bin/python, [N/A]\n"
    )
    found, sink = read(text)
    assert found.format == "nvidia-smi-csv"
    assert last(sink) == {
        ("trackside_gpu_process_attached", ""): 1.0,
        ("gpu_process_memory_used_bytes", "pid=280058"): 22374 * MIB,
    }
    assert {dict(labels)["gpu_uuid"] for labels in described(sink)} == {UUIDS[1]}


def test_lists_of_the_past_say_nothing_of_now() -> None:
    text = (
        "timestamp, gpu_uuid, pid, gpu_utilization [%], max_memory_usage [MiB], time [ms]\n"
        f"2026/11/21 08:00:00.123, {UUIDS[1]}, 280058, 71 %, 100 MiB, 5270 ms\n"
    )
    found, sink = read(text)
    assert not sink.blocks
    assert found.format == "nvidia-smi-csv"


# -- what it must not take


@pytest.mark.parametrize(
    "text",
    [
        "epoch,step,train_loss\n0,9,2.5\n",
        "rank,step,step_time\n0,1,0.5\n",
        "name, value\nloss, 2.5\n",
        "index, worker, temperature\n0, 1, 2\n",
        "INFO memory.used is 5, and clocks.sm too\nINFO step 2\n",
        "Loading, please wait\nTraceback (most recent call last):\n  File \"a.py\", line 3, in <module>\nKeyError: 'utilization.gpu'\n",
    ],
)
def test_other_texts_are_left_alone(text: str) -> None:
    found, _ = read(text, path="a.txt")
    assert found.format != "nvidia-smi-csv"


def test_columns_that_nothing_asks_for_are_named() -> None:
    heading = "timestamp, index, name, driver_version, utilization.gpu [%], clocks.max.video [MHz], power.foo, mig.mode.current"
    found, _ = read(f"{heading}\n2026/11/21 08:00:00.123, 0, NVIDIA L4, 580.1, 97 %, 1545 MHz, 5, Disabled\n" * 3)
    assert (found.status, found.rows) == ("read", 3)
    assert "1 of 3 metrics are known; unknown: clocks.max.video, power.foo;" in found.note
    found, sink = read("timestamp, index, power.foo [W], memory.bar\n2026/11/21 08:00:00.123, 0, 5 W, 6 MiB\n")
    assert not sink.blocks
    assert (found.format, found.status) == ("nvidia-smi-csv", "unrecognised")
    assert "none of its 2 metrics is known: power.foo, memory.bar" in found.note


def test_processes_without_a_time_are_as_old_as_the_file() -> None:
    found, sink = read(f"gpu_uuid, pid, used_gpu_memory [MiB]\n{UUIDS[0]}, 4711, 512 MiB\n", written=T0)
    assert (found.format, found.status) == ("nvidia-smi-csv", "read")
    assert last(sink)["gpu_process_memory_used_bytes", "pid=4711"] == 512 * MIB


def test_rows_without_a_time_are_not_held_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trackside.read.formats.nvidia_smi_csv.MAX_GPUS", 10)
    rows = "".join(f"{UUIDS[0]}, {pid}, 512 MiB\n" for pid in range(50))
    found, sink = read("gpu_uuid, pid, used_gpu_memory [MiB]\n" + rows)
    assert not sink.blocks
    assert (found.status, "50 rows without a time" in found.note) == ("partial", True)
