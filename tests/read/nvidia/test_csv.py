"""``nvidia-smi --query-gpu --format=csv`` in every form: units, loops, missing columns."""

from __future__ import annotations

import pytest

from tests.read.nvidia.reading import label_sets, last, points, read, utc

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
    result, sink = read("\n".join(LOOP) + "\n")
    assert (result.format, result.status, result.rows) == ("nvidia-smi-csv", "read", 12)
    assert result.note.endswith("; local times without a zone, read as UTC")
    assert points(sink) == EXPECTED
    assert label_sets(sink) == {
        (
            ("gpu", str(n)),
            ("gpu_model", "NVIDIA A100-SXM4-80GB"),
            ("gpu_uuid", UUIDS[n]),
            ("pci", f"0000:{n + 7:02x}:00"),
        )
        for n in range(2)
    }


def test_a_series_is_located_at_its_first_line() -> None:
    _, sink = read("\n".join(LOOP))
    positions = {
        (series.get("gpu"), series.at.line, series.at.path) for block in sink.blocks for series in block.series
    }
    assert positions == {("0", 2, "run/gpu.txt"), ("1", 3, "run/gpu.txt")}
    position = next(series.at for block in sink.blocks for series in block.series if series.get("gpu") == "1")
    assert "\n".join(LOOP)[position.offset : position.offset + position.length] == LOOP[2]


@pytest.mark.parametrize("crlf", [False, True])
def test_nounits_repeated_headings_and_blank_lines(crlf: bool) -> None:
    bare = [row(0, 0, 0, 22377, 67.97, False), row(0, 1, 100, 15995, 87.03, False)]
    later = [row(5, 0, 3, 22377, 68.5, False), row(5, 1, 100, 15995, 86.4, False)]
    text = "\n".join([HEADING, *bare, "", HEADING, *later, ""])
    result, sink = read(text, crlf=crlf)
    assert (result.format, result.status) == ("nvidia-smi-csv", "read")
    assert points(sink) == EXPECTED


def test_truncated_and_garbled_lines_are_skipped() -> None:
    text = "\n".join([LOOP[0], LOOP[1], LOOP[2][:40], "Killed by nobody, at all", *LOOP[2:], row(9, 0, 1, 1, 1.0)[:33]])
    filler = [row(s, 0, 3, 22377, 68.5) for s in range(10, 60)] * 3
    result, sink = read("\n".join([text, *filler]))
    assert result.format == "nvidia-smi-csv"
    assert result.status == "partial"
    assert "3 lines could not be read" in result.note
    assert points(sink)["gpu_utilization_ratio", "gpu=1"] == EXPECTED["gpu_utilization_ratio", "gpu=1"]


def test_a_file_may_hold_several_queries() -> None:
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
def test_every_kind_of_cell_is_read(column: str) -> None:
    cell, expected = CELLS[column]
    heading = f"timestamp, index, {column}, power.draw [W]"
    _, sink = read(f"{heading}\n2026/11/21 08:00:00.123, 0, {cell}, 10.00 W\n")
    assert last(sink) == expected | {("gpu_power_watts", "gpu=0"): 10.0}


@pytest.mark.parametrize(
    "cell",
    ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "ERR!", "", "[Requested functionality has been deprecated]",
     "[GPU is lost]", "[Insufficient Permissions]", "12 parsecs", "1e9 W"],
)  # fmt: skip
def test_a_cell_without_a_value_gives_no_sample(cell: str) -> None:
    _, sink = read(f"timestamp, index, power.draw [W], temperature.gpu\n2026/11/21 08:00:00.123, 0, {cell}, 59\n")
    assert last(sink) == {("gpu_temperature_celsius", "gpu=0"): 59.0}


def test_a_lost_gpu_is_reported_once() -> None:
    lost_row = "2026/11/21 08:00:05.123, 0, 00000000:9B:00.0, [GPU is lost], [GPU is lost]\n"
    heading = "timestamp, index, pci.bus_id, power.draw [W], temperature.gpu\n"
    result, sink = read(heading + "2026/11/21 08:00:00.123, 0, 00000000:9B:00.0, 70.00 W, 59\n" + lost_row * 9)
    (event,) = sink.events
    assert (event.kind, event.time, event.fields["pci"]) == ("gpu_lost", T0 + 5, "0000:9b:00")
    assert result.status == "read"
    assert points(sink)["gpu_power_watts", "gpu=0"] == [(T0, 70.0)]


def test_a_driver_failure_is_noted() -> None:
    failure = (
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that it is running.\n"
    )
    result, sink = read("\n".join(LOOP) + "\n" + failure * 50)
    assert result.format == "nvidia-smi-csv"
    assert "nvidia-smi says: NVIDIA-SMI has failed because it couldn't communicate" in result.note
    assert not sink.events


def test_a_unit_that_does_not_fit_the_metric_is_noted() -> None:
    result, _ = read("timestamp, index, power.draw [W], temperature.gpu\n2026/11/21 08:00:00.123, 0, 12 MHz, 59\n")
    assert "1 value in a unit that does not fit their metric" in result.note


def test_separate_throttle_reasons_are_combined_into_a_mask() -> None:
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


def test_the_best_of_equivalent_fields_is_used() -> None:
    heading = "timestamp, index, power.limit [W], enforced.power.limit [W], power.draw.instant [W], power.draw [W]"
    _, sink = read(f"{heading}\n2026/11/21 08:00:00.123, 0, 700.00 W, 500.00 W, 99.00 W, 80.00 W\n")
    assert last(sink)["gpu_power_limit_watts", "gpu=0"] == 500.0
    assert last(sink)["gpu_power_watts", "gpu=0"] == 80.0
    _, sink = read(f"{heading}\n2026/11/21 08:00:00.123, 0, 700.00 W, [N/A], 99.00 W, [N/A]\n")
    assert last(sink)["gpu_power_limit_watts", "gpu=0"] == 700.0
    assert last(sink)["gpu_power_watts", "gpu=0"] == 99.0


# -- missing columns


def test_without_an_index_the_gpu_is_known_by_its_pci_address() -> None:
    text = "timestamp, pci.bus_id, utilization.gpu [%]\n2026/11/21 08:00:00.123, 00000000:9B:00.0, 50 %\n"
    _, sink = read(text)
    assert label_sets(sink) == {(("pci", "0000:9b:00"),)}


def test_rows_without_a_gpu_are_assigned_in_order_if_their_times_allow() -> None:
    lines = ["timestamp, utilization.gpu [%]"]
    for second in range(0, 20, 5):
        lines += [f"2026/11/21 08:00:{second:02}.{100 + 4 * gpu:03}, {10 * gpu + second} %" for gpu in range(4)]
    result, sink = read("\n".join(lines))
    curves = points(sink)
    assert [curves["gpu_utilization_ratio", f"gpu={gpu}"][1][1] for gpu in range(4)] == [0.05, 0.15, 0.25, 0.35]
    assert "assigned in nvidia-smi's order" in result.note
    del lines[6]  # a lost row: the GPUs of this sample are unknown
    result, sink = read("\n".join(lines))
    assert [len(points(sink)["gpu_utilization_ratio", f"gpu={gpu}"]) for gpu in range(4)] == [3, 3, 3, 3]
    assert "3 rows of incomplete samples" in result.note


@pytest.mark.parametrize("step", [1.0, 0.1])
def test_rows_with_a_pause_between_belong_to_one_gpu(step: float) -> None:
    times = [f"2026/11/21 08:00:{int(n * step):02}.{round(n * step * 1000) % 1000:03}" for n in range(20)]
    result, sink = read("\n".join(["timestamp, utilization.gpu [%]", *(f"{time}, 50 %" for time in times)]))
    assert list(points(sink)) == [("gpu_utilization_ratio", "")]
    assert len(points(sink)["gpu_utilization_ratio", ""]) == 20
    assert result.status == "read"


def test_a_single_sample_without_times_gets_the_time_of_the_file() -> None:
    text = "index, utilization.gpu [%], memory.used [MiB]\n0, 5 %, 100 MiB\n1, 6 %, 100 MiB\n"
    result, sink = read(text)
    assert points(sink)["gpu_utilization_ratio", "gpu=1"] == [(utc("2026-11-21 08:10:00"), 0.06)]
    assert "assumed to be when the file was last written" in result.note
    result, sink = read(text, written=None)
    assert not sink.blocks
    assert result.status == "partial"


def test_a_loop_without_times_is_skipped() -> None:
    text = "index, utilization.gpu [%], memory.used [MiB]\n" + "0, 5 %, 100 MiB\n1, 6 %, 100 MiB\n" * 3
    result, sink = read(text)
    assert not sink.blocks
    assert (result.status, result.rows) == ("partial", 0)
    assert "6 rows without a time (add timestamp,index to the query): skipped" in result.note


@pytest.mark.parametrize(
    "line",
    [
        "2026/11/21 08:00:00.123, 0, 5 %, 100 MiB",
        "0, GPU-11111111-2222-3333-4444-555555555550, 5 %, 100 MiB, 70.00 W",
        "2026/11/21 08:00:00.123, 0, 5, 100",
    ],
)
def test_columns_of_rows_without_a_heading_are_not_guessed(line: str) -> None:
    result, sink = read(f"{line}\n" * 5)
    assert (result.format, result.status, result.rows) == ("nvidia-smi-csv", "unrecognised", 0)
    assert "run it without noheader" in result.note
    assert not sink.blocks


def test_an_echoed_command_replaces_the_heading() -> None:
    command = "+ nvidia-smi --query-gpu=timestamp,index,utilization.gpu --format=csv,noheader -l 5"
    result, sink = read(f"{command}\n2026/11/21 08:00:00.123, 3, 5 %\n")
    assert last(sink) == {("gpu_utilization_ratio", "gpu=3"): 0.05}
    assert result.status == "read"


# -- processes


def test_compute_processes() -> None:
    text = (
        "timestamp, gpu_uuid, gpu_bus_id, pid, process_name, used_gpu_memory [MiB]\n"
        f"2026/11/21 08:00:00.123, {UUIDS[1]}, 00000000:08:00.0, 280058, /usr/bin/python, 22374 MiB\n"
        f"2026/11/21 08:00:00.123, {UUIDS[1]}, 00000000:08:00.0, 280059, /usr/bin/python, [N/A]\n"
    )
    result, sink = read(text)
    assert result.format == "nvidia-smi-csv"
    assert last(sink) == {
        ("trackside_gpu_process_attached", ""): 1.0,
        ("gpu_process_memory_used_bytes", "pid=280058"): 22374 * MIB,
    }
    assert {dict(labels)["gpu_uuid"] for labels in label_sets(sink)} == {UUIDS[1]}


def test_lists_of_past_processes_give_no_samples() -> None:
    text = (
        "timestamp, gpu_uuid, pid, gpu_utilization [%], max_memory_usage [MiB], time [ms]\n"
        f"2026/11/21 08:00:00.123, {UUIDS[1]}, 280058, 71 %, 100 MiB, 5270 ms\n"
    )
    result, sink = read(text)
    assert not sink.blocks
    assert result.format == "nvidia-smi-csv"


# -- other files


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
def test_other_text_is_not_recognized(text: str) -> None:
    result, _ = read(text, path="a.txt")
    assert result.format != "nvidia-smi-csv"


def test_unknown_columns_are_named() -> None:
    heading = "timestamp, index, name, driver_version, utilization.gpu [%], clocks.max.video [MHz], power.foo, mig.mode.current"
    result, _ = read(f"{heading}\n2026/11/21 08:00:00.123, 0, NVIDIA L4, 580.1, 97 %, 1545 MHz, 5, Disabled\n" * 3)
    assert (result.status, result.rows) == ("read", 3)
    assert "1 of 3 metrics are known; unknown: clocks.max.video, power.foo;" in result.note
    result, sink = read("timestamp, index, power.foo [W], memory.bar\n2026/11/21 08:00:00.123, 0, 5 W, 6 MiB\n")
    assert not sink.blocks
    assert (result.format, result.status) == ("nvidia-smi-csv", "unrecognised")
    assert "none of its 2 metrics is known: power.foo, memory.bar" in result.note


def test_processes_without_a_time_get_the_time_of_the_file() -> None:
    result, sink = read(f"gpu_uuid, pid, used_gpu_memory [MiB]\n{UUIDS[0]}, 4711, 512 MiB\n", written=T0)
    assert (result.format, result.status) == ("nvidia-smi-csv", "read")
    assert last(sink)["gpu_process_memory_used_bytes", "pid=4711"] == 512 * MIB


def test_memory_of_rows_without_a_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trackside.read.formats.nvidia_smi_csv.MAX_GPUS", 10)
    rows = "".join(f"{UUIDS[0]}, {pid}, 512 MiB\n" for pid in range(50))
    result, sink = read("gpu_uuid, pid, used_gpu_memory [MiB]\n" + rows)
    assert not sink.blocks
    assert (result.status, "50 rows without a time" in result.note) == ("partial", True)
