"""The table of ``nvidia-smi``: old and new layouts, loops, MIG, processes, sick GPUs."""

from __future__ import annotations

import pytest

from tests.read.nvidia.reading import label_sets, last, of_gpu, points, read, utc

MIB = float(1 << 20)
T0 = utc("2026-11-21 08:00:05")

OLD = """Sat Nov 21 08:00:05 2026
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 440.33.01    Driver Version: 440.33.01    CUDA Version: 10.2     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  Tesla V100-SXM2...  On   | 00000000:06:00.0 Off |                    0 |
| N/A   41C    P0   288W / 300W |  31011MiB / 32510MiB |     97%      Default |
+-------------------------------+----------------------+----------------------+
|   1  Tesla V100-SXM2...  Off  | 00000000:07:00.0 Off |                    2 |
| N/A   38C    P0    43W / 300W |     11MiB / 32510MiB |      0%   E. Process |
+-------------------------------+----------------------+----------------------+

+-----------------------------------------------------------------------------+
| Processes:                                                       GPU Memory |
|  GPU       PID   Type   Process name                             Usage      |
|=============================================================================|
|    0     31337      C   python                                     31001MiB |
+-----------------------------------------------------------------------------+
"""
NEW = """Sat Nov 21 08:00:05 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 590.48.01              Driver Version: 590.48.01      CUDA Version: 13.1     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                   On |
| N/A   52C    P0            432W /  700W |   11125MiB /  81559MiB |     N/A      Default |
|                                         |                        |              Enabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA GeForce RTX 2080 ...    Off |   00000000:0C:00.0  On |                  N/A |
| 38%   45C    P2             98W /  250W |     819MiB /   8192MiB |      8%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| MIG devices:                                                                            |
+------------------+----------------------------------+-----------+-----------------------+
| GPU  GI  CI  MIG |              Shared Memory-Usage |        Vol|        Shared         |
|      ID  ID  Dev |                Shared BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |
|                  |                                  |        ECC|                       |
|==================+==================================+===========+=======================|
|  0    2   0   0  |           11091MiB / 40448MiB    | 60      0 |  3   0    3    0    3 |
|                  |               0MiB / 24739MiB    |           |                       |
+------------------+----------------------------------+-----------+-----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|    0     2    0           21180      C   ./gpu_burn                            8000MiB |
|    1   N/A  N/A            1696      G   /usr/bin/gnome-shell                    176MiB |
+-----------------------------------------------------------------------------------------+
""".replace("2026\n", "2026       \n")


def test_the_old_layout() -> None:
    result, sink = read(OLD)
    assert (result.format, result.status) == ("nvidia-smi-table", "read")
    assert of_gpu(sink, "0") == {
        "gpu_temperature_celsius": 41.0,
        "gpu_pstate": 0.0,
        "gpu_power_watts": 288.0,
        "gpu_power_limit_watts": 300.0,
        "gpu_memory_used_bytes": 31011 * MIB,
        "gpu_memory_total_bytes": 32510 * MIB,
        "gpu_utilization_ratio": 0.97,
        "gpu_ecc_uncorrectable_total": 0.0,
        "gpu_processes": 1.0,
        "trackside_gpu_process_attached": 1.0,
    }
    assert of_gpu(sink, "1")["gpu_ecc_uncorrectable_total"] == 2.0
    assert of_gpu(sink, "1")["trackside_gpu_process_attached"] == 0.0
    assert last(sink)["gpu_process_memory_used_bytes", "gpu=0 pid=31337"] == 31001 * MIB
    assert {curve[0][0] for curve in points(sink).values()} == {T0}
    assert {dict(labels).get("pci") for labels in label_sets(sink)} == {"0000:06:00", "0000:07:00"}


def test_the_new_layout_with_instances() -> None:
    _, sink = read(NEW)
    values = last(sink)
    assert values["gpu_memory_used_bytes", "gpu=0"] == 11125 * MIB
    assert values["gpu_memory_used_bytes", "gpu=0 mig=2"] == 11091 * MIB
    assert values["gpu_memory_total_bytes", "gpu=0 mig=2"] == 40448 * MIB
    assert ("gpu_utilization_ratio", "gpu=0") not in values
    assert values["gpu_utilization_ratio", "gpu=1"] == 0.08
    assert values["trackside_gpu_process_attached", "gpu=0"] == 1.0
    assert values["trackside_gpu_process_attached", "gpu=1"] == 0.0
    models = {dict(labels).get("gpu_model") for labels in label_sets(sink)}
    assert models == {"NVIDIA H100 80GB HBM3", None}


@pytest.mark.parametrize("between", ["", "+ sleep 60\n", "Sat Nov 21 08:00:04 UTC 2026\n", "gpu017\n", "=" * 40 + "\n"])
def test_tables_in_a_loop(between: str) -> None:
    text = "".join(
        between + OLD.replace("08:00:05", f"08:{n:02}:05").replace("     97% ", f"{90 + n:7}% ") for n in range(4)
    )
    result, sink = read(text)
    assert (result.format, result.status) == ("nvidia-smi-table", "read")
    assert points(sink)["gpu_utilization_ratio", "gpu=0"] == [(T0 + 60 * n, (90 + n) / 100) for n in range(4)]


def test_a_gpu_with_errors_keeps_its_other_values() -> None:
    sick = OLD.replace("| N/A   38C    P0    43W / 300W |", "| ERR!  ERR! ERR!    N/A / ERR! |")
    _, sink = read("Unable to determine the device handle for GPU 0000:08:00.0: GPU is lost.\n" + sick)
    assert of_gpu(sink, "1") == {
        "gpu_memory_used_bytes": 11 * MIB,
        "gpu_memory_total_bytes": 32510 * MIB,
        "gpu_utilization_ratio": 0.0,
        "gpu_ecc_uncorrectable_total": 2.0,
        "gpu_processes": 0.0,
        "trackside_gpu_process_attached": 0.0,
    }


def test_an_error_message_of_nvidia_smi_is_an_event_and_noted() -> None:
    result, sink = read(OLD + "Unable to determine the device handle for GPU 0000:08:00.0: GPU is lost.\n" * 2)
    (event,) = sink.events
    assert (event.kind, event.plane, event.time) == ("gpu_lost", "metric", T0)
    assert event.fields["pci"] == "0000:08:00.0"
    assert event.at.line == OLD.count("\n") + 1
    assert "nvidia-smi says: Unable to determine the device handle for GPU 0000:08:00.0: GPU is lost." in result.note


def test_a_table_cut_off_before_the_processes_says_nothing_about_them() -> None:
    _, sink = read(OLD[: OLD.index("| Processes:")])
    assert "trackside_gpu_process_attached" not in of_gpu(sink, "0")
    assert of_gpu(sink, "1")["gpu_power_watts"] == 43.0


def test_a_table_without_a_date_gets_the_time_of_the_file() -> None:
    result, sink = read(OLD.partition("\n")[2])
    assert "assumed to be when the file was last written" in result.note
    assert {curve[0][0] for curve in points(sink).values()} == {utc("2026-11-21 08:10:00")}
    result, sink = read(OLD.partition("\n")[2] * 3)
    assert "2 more captures without a time: skipped" in result.note
    assert {len(curve) for curve in points(sink).values()} == {1}


def test_a_job_log_that_begins_with_a_table_stays_a_job_log() -> None:
    log = 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\nValueError: x\n'
    result, sink = read(OLD + log, path="slurm-7.out")
    assert result.format == "job-log"
    assert [event.kind for event in sink.events if event.kind == "exception"] == ["exception"]
