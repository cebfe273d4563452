"""``nvidia-smi dmon`` and ``pmon``, with dates and times, with one of them, with none."""

from __future__ import annotations

import pytest

from tests.read.nvidia.reading import WRITTEN, last, of_gpu, points, read, utc

MIB = float(1 << 20)
T0 = utc("2026-11-21 08:00:00")
FULL = """#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk  pviol  tviol     fb  sbecc  dbecc    pci  rxpci  txpci
#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %    MHz    MHz      %   bool     MB   errs   errs   errs   MB/s   MB/s
 20261121   08:00:00      0     69     41     47      0      0   2619    345      0      0    625      -      -      0      5     10
 20261121   08:00:00      1    631     63     57    100     10   2619   1980     12      1  19818      4      2      9    300    200
"""


def test_all_columns() -> None:
    result, sink = read(FULL)
    assert (result.format, result.status) == ("nvidia-smi-dmon", "read")
    assert of_gpu(sink, "1") == {
        "gpu_power_watts": 631.0,
        "gpu_temperature_celsius": 63.0,
        "gpu_memory_temperature_celsius": 57.0,
        "gpu_utilization_ratio": 1.0,
        "gpu_memory_utilization_ratio": 0.1,
        "gpu_memory_clock_hertz": 2.619e9,
        "gpu_sm_clock_hertz": 1.98e9,
        "gpu_memory_used_bytes": 19818 * MIB,
        "gpu_ecc_correctable_lifetime_total": 4.0,
        "gpu_ecc_uncorrectable_lifetime_total": 2.0,
        "gpu_pcie_replays_total": 9.0,
        "gpu_pcie_rx_bytes_per_second": 300e6,
        "gpu_pcie_tx_bytes_per_second": 200e6,
    }
    assert last(sink)["gpu_throttle_ratio", "gpu=1 reason=sw_power_cap"] == 0.12
    assert "gpu_ecc_correctable_lifetime_total" not in of_gpu(sink, "0")
    assert {curve[0][0] for curve in points(sink).values()} == {T0}


GPM = """# gpu    pwr  gtemp  mtemp     sm    mem      gract     smutil      smocc     mmaact       dram
# Idx      W      C      C      %      %      GPM:%      GPM:%      GPM:%      GPM:%      GPM:%
    0    362     56     56     97     16          -          -          -          -          -
    0    364     55     56    100     16         98         41         12         30         20
"""


def test_gpm_columns_are_activity_and_sm_is_utilization() -> None:
    _, sink = read(GPM)
    values = of_gpu(sink, "0")
    assert values["gpu_utilization_ratio"] == 1.0
    assert values["gpu_engine_active_ratio"] == 0.98
    assert values["gpu_sm_active_ratio"] == 0.41
    assert values["gpu_sm_occupancy_ratio"] == 0.12
    assert values["gpu_tensor_active_ratio"] == 0.3
    assert values["gpu_dram_active_ratio"] == 0.2


@pytest.mark.parametrize(
    "text",
    [
        "#gpu, pwr, gtemp, sm\n#Idx, W, C, %\n0, 69, 41, 50\n",
        "# gpu   pwr  temp    sm\n# Idx     W     C     %\n    0    69    41    50\n",
        "\ufeff# gpu   pwr gtemp    sm\r\n# Idx     W     C     %\r\n    0    69    41    50\r\n",
    ],
)
def test_other_spacings(text: str) -> None:
    result, sink = read(text.removeprefix("\ufeff"))
    assert result.format == "nvidia-smi-dmon"
    assert of_gpu(sink, "0") == {
        "gpu_power_watts": 69.0,
        "gpu_temperature_celsius": 41.0,
        "gpu_utilization_ratio": 0.5,
    }


def loop(seconds: list[str], gpus: int = 2) -> str:
    lines = []
    for index, time in enumerate(seconds):
        if index % 3 == 0:
            lines += ["#Time        gpu    pwr     sm", "#HH:MM:SS    Idx      W      %"]
        lines += [f" {time}      {gpu}     {60 + gpu}    {index:3}" for gpu in range(gpus)]
    return "\n".join(lines) + "\n"


def test_times_without_a_date_take_the_date_of_the_file() -> None:
    result, sink = read(loop(["08:00:00", "08:00:01", "08:00:02", "08:00:03"]))
    assert points(sink)["gpu_utilization_ratio", "gpu=1"] == [(T0 + n, n / 100) for n in range(4)]
    assert "took the date of the file" in result.note


def test_times_without_a_date_may_pass_midnight() -> None:
    _, sink = read(loop(["23:59:59", "00:00:00", "00:00:01"]), written=utc("2026-11-22 00:00:05"))
    midnight = utc("2026-11-22 00:00:00")
    assert [time for time, _ in points(sink)["gpu_power_watts", "gpu=0"]] == [midnight - 1, midnight, midnight + 1]


def test_without_times_one_sample_per_second_is_assumed_and_noted() -> None:
    rows = "".join(f"    {gpu}     6{gpu}    {second:3}\n" for second in range(5) for gpu in range(2))
    result, sink = read("# gpu    pwr     sm\n# Idx      W      %\n" + rows)
    assert points(sink)["gpu_utilization_ratio", "gpu=1"] == [(WRITTEN - 4 + n, n / 100) for n in range(5)]
    assert "assumed one sample per second, ending when the file was last written" in result.note
    assert "use -o DT" in result.note
    assert result.status == "partial"
    result, sink = read("# gpu    pwr     sm\n# Idx      W      %\n" + rows, written=None)
    assert not sink.blocks
    assert "skipped" in result.note


def test_a_truncated_line_is_skipped() -> None:
    lines = loop([f"08:00:{n:02}" for n in range(60)]).splitlines()
    lines[30] = lines[30][:20]
    lines[31] = "nvidia-smi has been sighted"
    result, sink = read("\n".join(lines))
    assert result.format == "nvidia-smi-dmon"
    assert result.status == "partial"
    assert "1 line could not be read" in result.note
    assert "1 line is not from nvidia-smi" in result.note
    assert len(points(sink)["gpu_power_watts", "gpu=0"]) + len(points(sink)["gpu_power_watts", "gpu=1"]) == 118


PMON = """#Date       Time        gpu         pid   type     sm    mem    enc    dec    command
#YYYYMMDD   HH:MM:SS    Idx           #    C/G      %      %      %      %    name
 20261121   08:00:00      0       5267     C     99     10      -      -    python train
 20261121   08:00:00      0       1696     G      -      -      -      -    Xwayland
 20261121   08:00:00      1          -     -      -      -      -      -    -
 20261121   08:00:01      0          -     -      -      -      -      -    -
 20261121   08:00:01      1          -     -      -      -      -      -    -
"""


def test_processes() -> None:
    result, sink = read(PMON)
    assert (result.format, result.status) == ("nvidia-smi-pmon", "read")
    curves = points(sink)
    assert curves["trackside_gpu_process_attached", "gpu=0"] == [(T0, 1.0), (T0 + 1, 0.0)]
    assert curves["trackside_gpu_process_attached", "gpu=1"] == [(T0, 0.0), (T0 + 1, 0.0)]
    assert curves["gpu_process_utilization_ratio", "gpu=0 pid=5267"] == [(T0, 0.99)]
    assert curves["gpu_process_memory_utilization_ratio", "gpu=0 pid=5267"] == [(T0, 0.1)]
    assert not any("pid=1696" in labels for _, labels in curves)


def test_a_list_without_any_process_is_noted_and_gives_no_samples() -> None:
    text = "# gpu        pid  type    sm   mem   enc   dec   command\n# Idx          #   C/G     %     %     %     %   name\n"
    result, sink = read(text + "    0          -     -     -     -     -     -   -\n" * 5)
    assert result.format == "nvidia-smi-pmon"
    assert not sink.blocks
    assert "a container hid them" in result.note


def test_a_comment_about_gpus_is_not_a_heading() -> None:
    for text in ("# gpu is fine\nhello\n", "# gpu pid type\n", "# GPU power settings\nstep 1 loss 2\n"):
        result, _ = read(text, path="a.txt")
        assert not (result.format or "").startswith("nvidia")


def test_memory_of_values_without_a_full_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trackside.read.gpu_readings.MAX_UNTIMED_VALUES", 100)
    monkeypatch.setattr("trackside.read.gpu_readings.BATCH_VALUES", 16)
    result, sink = read("# gpu    pwr     sm\n# Idx      W      %\n" + "    0     61    50\n" * 200)
    assert (result.status, result.rows) == ("partial", 100)
    assert "more than 100 values without a full time: 150 more samples dropped" in result.note
    assert [time for time, _ in points(sink)["gpu_power_watts", "gpu=0"]] == [WRITTEN - 49 + n for n in range(50)]


def test_the_number_of_gpus_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trackside.read.gpu_readings.MAX_GPUS", 10)
    rows = "".join(f" 20261121   08:00:00 {gpu:6}     69\n" for gpu in range(30))
    result, sink = read("#Date       Time        gpu    pwr\n#YYYYMMDD   HH:MM:SS    Idx      W\n" + rows)
    assert (result.status, len(points(sink))) == ("partial", 10)
    assert "more than 10 GPUs, instances and processes: 20 readings of further ones dropped" in result.note


def test_unknown_columns_are_named() -> None:
    text = "#Date       Time        gpu    pwr   foo\n#YYYYMMDD   HH:MM:SS    Idx      W     x\n 20261121   08:00:00      0     69     1\n"
    result, _ = read(text)
    assert result.status == "read"
    assert "1 of 2 metrics are known; unknown: dmon.foo" in result.note


def test_a_damaged_heading_that_repeats_columns_is_no_heading() -> None:
    row = " 20261121   08:00:00      0       5267     C     99     10      -      -    python train\n"
    heading = "#Date       Time        gpu        pid   type     sm    mem    enc    dec    command\n"
    assert read(heading + row)[1].blocks
    assert not read(heading.replace("mem", "sm") + row)[1].blocks
