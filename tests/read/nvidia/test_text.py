"""``nvidia-smi -q`` as text: old and new layouts, one GPU of several, several captures, MIG, and damage."""

from __future__ import annotations

import pytest

from tests.read.nvidia.reading import label_sets, last, of_gpu, points, read, utc

MIB = float(1 << 20)
T0 = utc("2026-11-21 08:00:05")
UUID = "GPU-11111111-2222-3333-4444-55555555555"

NEW = """
GPU 00000000:{pci}:00.0
    Product Name                                       : NVIDIA H100 80GB HBM3
    MIG Mode
        Current                                        : Disabled
    GPU UUID                                           : {uuid}
    Minor Number                                       : 3
    GPU Recovery Action                                : Reset
    PCI
        Bus                                            : 0x{pci}
        Bus Id                                         : 00000000:{pci}:00.0
        GPU Link Info
            PCIe Generation
                Max                                    : 5
                Current                                : 4
            Link Width
                Max                                    : 16x
                Current                                : 8x
        Replays Since Reset                            : 9
        Tx Throughput                                  : 352 KB/s
    Fan Speed                                          : N/A
    Performance State                                  : P0
    Clocks Event Reasons
        Idle                                           : Not Active
        SW Power Cap                                   : Active
        HW Slowdown                                    : Active
            HW Thermal Slowdown                        : Active
            HW Power Brake Slowdown                    : Not Active
        SW Thermal Slowdown                            : Not Active
    Clocks Event Reasons Counters
        HW Thermal Slowdown                            : 2500000 us
    FB Memory Usage
        Total                                          : 81559 MiB
        Used                                           : {used} MiB
        Free                                           : 61000 MiB
    Utilization
        GPU                                            : {busy} %
        Memory                                         : 11 %
    ECC Errors
        Volatile
            SRAM Correctable                           : 1
            SRAM Uncorrectable Parity                  : 2
            SRAM Uncorrectable SEC-DED                 : 3
            DRAM Correctable                           : 4
            DRAM Uncorrectable                         : 5
        Aggregate
            SRAM Uncorrectable Parity                  : N/A
            SRAM Uncorrectable SEC-DED                 : N/A
            DRAM Uncorrectable                         : 6
            SRAM Threshold Exceeded                    : Yes
    Retired Pages
        Single Bit ECC                                 : N/A
        Double Bit ECC                                 : N/A
    Remapped Rows
        Correctable Error                              : 1
        Uncorrectable Error                            : 2
        Pending                                        : Yes
        Remapping Failure Occurred                     : No
        Bank Remap Availability Histogram
            Max                                        : 2559 bank(s)
            None                                       : 1 bank(s)
    Temperature
        GPU Current Temp                               : 87 C
        GPU T.Limit Temp                               : 2 C
        Memory Current Temp                            : 90 C
    GPU Power Readings
        Average Power Draw                             : 632.10 W
        Instantaneous Power Draw                       : 640.00 W
        Current Power Limit                            : 700.00 W
        Requested Power Limit                          : 650.00 W
        Max Power Limit                                : 700.00 W
    GPU Memory Power Readings
        Average Power Draw                             : 43.19 W
    Module Power Readings
        Current Power Limit                            : N/A
    Clocks
        Graphics                                       : 1200 MHz
        SM                                             : 1190 MHz
        Memory                                         : 2619 MHz
    Max Clocks
        SM                                             : 1980 MHz
    Processes
        GPU instance ID                                : N/A
        Compute instance ID                            : N/A
        Process ID                                     : 280058
            Type                                       : C
            Name                                       : /opt/env/bin/python : odd
            Used GPU Memory                            : 22374 MiB
""".replace("Memory Power Readings", "Memory Power Readings ")

OLD = """GPU 0000:05:00.0
    Product Name                    : Tesla K80
    GPU UUID                        : GPU-99999999-2222-3333-4444-555555555550
    Performance State               : P0
    Clocks Throttle Reasons
        Idle                        : Not Active
        Unknown                     : Not Active
        HW Slowdown                 : Active
    FB Memory Usage
        Total                       : 11519 MiB
        Used                        : 2 MiB
    Utilization
        Gpu                         : 99 %
    ECC Errors
        Volatile
            Single Bit
                Device Memory       : 4
                Total               : 4
            Double Bit
                Device Memory       : 0
                Total               : 1
        Aggregate
            Single Bit
                Total               : 40
    Retired Pages
        Single Bit ECC              : 5
        Double Bit ECC              : 6
        Pending                     : No
    Temperature
        GPU Current Temp            : 45 C
    Power Readings
        Power Draw                  : 141.25 W
        Power Limit                 : 149.00 W
        Default Power Limit         : 149.00 W
        Enforced Power Limit        : 140.00 W
    Processes                       : None
"""


def capture(*gpus: str, attached: int | None = None, at: str = "Sat Nov 21 08:00:05 2026") -> str:
    count = len(gpus) if attached is None else attached
    head = f"\n==============NVSMI LOG==============\n\nTimestamp                                 : {at}\n"
    return (
        head + f"Driver Version  : 590.48.01\nCUDA Version    : 13.1\n\nAttached GPUs   : {count}\n" + "\n".join(gpus)
    )


def new(number: int, busy: int = 100, used: int = 19818) -> str:
    return NEW.format(pci=f"{0x1B + 16 * number:02X}", uuid=f"{UUID}{number}", busy=busy, used=used).lstrip("\n")


def test_all_values_of_a_new_capture() -> None:
    result, sink = read(capture(new(0)))
    assert (result.format, result.status) == ("nvidia-smi-q", "read")
    assert result.note.endswith("; local times without a zone, read as UTC")
    assert of_gpu(sink, "0") == {
        "gpu_recovery_action": 1.0,
        "gpu_pcie_link_generation": 4.0,
        "gpu_pcie_link_generation_max": 5.0,
        "gpu_pcie_link_width": 8.0,
        "gpu_pcie_link_width_max": 16.0,
        "gpu_pcie_replays_total": 9.0,
        "gpu_pcie_tx_bytes_per_second": 352e3,
        "gpu_pstate": 0.0,
        "gpu_throttle_reasons": float(0x4 + 0x8 + 0x40),
        "gpu_memory_total_bytes": 81559 * MIB,
        "gpu_memory_used_bytes": 19818 * MIB,
        "gpu_memory_free_bytes": 61000 * MIB,
        "gpu_utilization_ratio": 1.0,
        "gpu_memory_utilization_ratio": 0.11,
        "gpu_ecc_correctable_total": 5.0,
        "gpu_ecc_uncorrectable_total": 10.0,
        "gpu_ecc_uncorrectable_lifetime_total": 6.0,
        "gpu_sram_threshold_exceeded": 1.0,
        "gpu_rows_remapped_correctable_total": 1.0,
        "gpu_rows_remapped_uncorrectable_total": 2.0,
        "gpu_row_remap_pending": 1.0,
        "gpu_row_remap_failed": 0.0,
        "gpu_temperature_celsius": 87.0,
        "gpu_temperature_margin_celsius": 2.0,
        "gpu_memory_temperature_celsius": 90.0,
        "gpu_power_watts": 632.1,
        "gpu_power_limit_watts": 700.0,
        "gpu_sm_clock_hertz": 1.19e9,
        "gpu_memory_clock_hertz": 2.619e9,
        "gpu_sm_clock_max_hertz": 1.98e9,
        "gpu_processes": 1.0,
        "trackside_gpu_process_attached": 1.0,
    }
    values = last(sink)
    assert values["gpu_throttle_seconds_total", "gpu=0 reason=hw_thermal_slowdown"] == 2.5
    assert values["gpu_row_remap_banks", "gpu=0 level=none"] == 1.0
    assert values["gpu_process_memory_used_bytes", "gpu=0 pid=280058"] == 22374 * MIB
    assert values["gpu_power_limit_range_watts", "gpu=0 kind=max"] == 700.0
    assert values["gpu_visible_gpus", ""] == 1.0
    assert {curve[0][0] for curve in points(sink).values()} == {T0}
    labels = next(labels for labels in label_sets(sink) if dict(labels).get("gpu") == "0")
    assert set(labels) >= {("gpu_uuid", f"{UUID}0"), ("pci", "0000:1b:00"), ("gpu_model", "NVIDIA H100 80GB HBM3")}


def test_values_of_an_old_capture() -> None:
    result, sink = read(capture(OLD))
    assert result.format == "nvidia-smi-q"
    values = of_gpu(sink, "0")
    assert values["gpu_utilization_ratio"] == 0.99
    assert values["gpu_ecc_correctable_total"] == 4.0
    assert values["gpu_ecc_uncorrectable_total"] == 1.0
    assert values["gpu_ecc_correctable_lifetime_total"] == 40.0
    assert values["gpu_power_watts"] == 141.25
    assert values["gpu_power_limit_watts"] == 140.0
    assert values["gpu_throttle_reasons"] == 8.0
    assert values["trackside_gpu_process_attached"] == 0.0
    assert last(sink)["gpu_pages_retired_total", "cause=double_bit gpu=0"] == 6.0


def test_gpus_are_numbered_by_order_only_if_all_are_listed() -> None:
    _, sink = read(capture(new(0, busy=0), new(1)))
    assert of_gpu(sink, "0")["gpu_utilization_ratio"] == 0.0
    assert of_gpu(sink, "1")["gpu_utilization_ratio"] == 1.0
    _, sink = read(capture(new(1), attached=8))
    assert last(sink)["gpu_utilization_ratio", ""] == 1.0
    assert {dict(labels).get("pci") for labels in label_sets(sink)} >= {"0000:2b:00"}
    assert "gpu" not in {name for labels in label_sets(sink) for name, _ in labels}


def test_a_gpu_keeps_its_index_in_later_captures() -> None:
    text = capture(new(0, busy=0), new(1)) + capture(new(1, busy=50), attached=2, at="Sat Nov 21 08:01:05 2026")
    _, sink = read(text)
    assert points(sink)["gpu_utilization_ratio", "gpu=1"] == [(T0, 1.0), (T0 + 60, 0.5)]
    assert len(points(sink)["gpu_utilization_ratio", "gpu=0"]) == 1


def test_captures_in_a_row_keep_their_times() -> None:
    text = "".join(capture(new(0, busy=n), at=f"Sat Nov 21 08:{n:02}:05 2026") for n in range(5))
    _, sink = read(text)
    assert points(sink)["gpu_utilization_ratio", "gpu=0"] == [(T0 + 60 * n, n / 100) for n in range(5)]


def test_a_capture_with_only_some_sections() -> None:
    part = "GPU 00000000:1B:00.0\n    Utilization\n        GPU                       : 7 %\n"
    result, sink = read(capture(part))
    assert result.format == "nvidia-smi-q"
    assert of_gpu(sink, "0") == {"gpu_utilization_ratio": 0.07}


def test_an_empty_process_list_counts_only_if_memory_is_free() -> None:
    """Within a container nvidia-smi lists none."""
    hidden = OLD.replace("Used                        : 2 MiB", "Used                        : 9000 MiB")
    _, sink = read(capture(hidden))
    assert "trackside_gpu_process_attached" not in of_gpu(sink, "0")
    assert "gpu_processes" not in of_gpu(sink, "0")


def test_a_graphics_process_holds_no_compute_context() -> None:
    _, sink = read(capture(new(0).replace("Type                                       : C", "Type : G")))
    assert of_gpu(sink, "0")["trackside_gpu_process_attached"] == 0.0
    assert of_gpu(sink, "0")["gpu_processes"] == 1.0


MIG = """GPU 00000000:1B:00.0
    MIG Mode
        Current                                        : Enabled
    MIG Device
        Index                                          : 0
        GPU Instance ID                                : 2
        Compute Instance ID                            : 0
        ECC Errors
            Volatile
                SRAM Uncorrectable                     : 3
        Shared FB Memory Usage
            Total                                      : 40448 MiB
            Used                                       : 26 MiB
    MIG Device
        Index                                          : 1
        GPU Instance ID                                : 9
        FB Memory Usage
            Used                                       : 17 MiB
    GPU UUID                                           : GPU-11111111-2222-3333-4444-555555555550
    FB Memory Usage
        Used                                           : 59 MiB
    Utilization
        GPU                                            : N/A
"""


def test_mig_instances_have_curves_of_their_own() -> None:
    _, sink = read(capture(MIG))
    assert last(sink) == {
        ("gpu_visible_gpus", ""): 1.0,
        ("gpu_memory_used_bytes", "gpu=0"): 59 * MIB,
        ("gpu_memory_used_bytes", "gpu=0 mig=2"): 26 * MIB,
        ("gpu_memory_total_bytes", "gpu=0 mig=2"): 40448 * MIB,
        ("gpu_memory_used_bytes", "gpu=0 mig=9"): 17 * MIB,
        ("gpu_ecc_uncorrectable_total", "gpu=0 mig=2"): 3.0,
    }


def test_cut_off_in_the_middle() -> None:
    complete = capture(new(0, busy=0), new(1))
    result, sink = read(complete[: complete.rindex("    Temperature")])
    assert result.format == "nvidia-smi-q"
    assert of_gpu(sink, "0")["gpu_temperature_celsius"] == 87.0
    assert "gpu_temperature_celsius" not in of_gpu(sink, "1")
    assert of_gpu(sink, "1")["gpu_utilization_ratio"] == 1.0


def test_foreign_lines_are_skipped() -> None:
    lines = capture(*[new(n) for n in range(4)]).splitlines()
    lines.insert(60, "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED ***")
    result, sink = read("\n".join(lines))
    assert (result.format, result.status) == ("nvidia-smi-q", "partial")
    assert "1 line is not from nvidia-smi" in result.note
    assert of_gpu(sink, "3")["gpu_temperature_celsius"] == 87.0


def test_a_job_log_that_begins_with_a_capture_stays_a_job_log() -> None:
    log = "".join(f"step {n} loss {2.5 - n / 100:.2f}\n" for n in range(60))
    result, _ = read(capture(new(0)) + "\n" + log, path="slurm-7.out")
    assert result.format == "job-log"


def test_localized_times_fall_back_to_the_time_of_the_file() -> None:
    result, sink = read(capture(new(0), at="Sa 21. Nov 08:00:05 CET 2026"))
    assert "assumed to be when the file was last written" in result.note
    assert {curve[0][0] for curve in points(sink).values()} == {utc("2026-11-21 08:10:00")}


@pytest.mark.parametrize("count", ["9" * 400, "9" * 1500, "-1", "eight", "N/A", ""])
def test_an_invalid_count_of_gpus_is_ignored(count: str) -> None:
    text = capture(new(0), new(1)).replace("Attached GPUs   : 2", f"Attached GPUs   : {count}")
    result, sink = read(text)
    assert (result.format, result.status) == ("nvidia-smi-q", "read")
    assert "defect" not in result.note
    assert not [key for key in last(sink) if key[0] == "gpu_visible_gpus"]
    assert len([key for key in last(sink) if key[0] == "gpu_power_watts"]) == 1
