"""Output of real machines, from the shared data next to this checkout; figures checked by hand against the files."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest

from tests.read.nvidia.reading import DESCRIPTIVE, label_sets, last, of_gpu, points, read, utc
from tools.cases import REAL
from trackside.model import Input
from trackside.read.format import CollectingSink

pytestmark = pytest.mark.corpus
MIB = float(1 << 20)
HANG = REAL / "m4-collective-hang" / "frozen-rank"
CAPTURES = REAL / "nvidia-smi-captures"


def load(path: Path) -> tuple[Input, CollectingSink]:
    return read(path.read_bytes(), path=path.name)


# -- a hung run of 64 GPUs: one rank stalled, the others spin


def test_full_state_of_the_hung_node() -> None:
    result, sink = load(HANG / "nvidia-smi-q-all.txt")
    assert (result.format, result.status) == ("nvidia-smi-q", "read")
    gpus = [of_gpu(sink, str(gpu)) for gpu in range(8)]
    assert [gpu["gpu_utilization_ratio"] for gpu in gpus] == [0.0] + [1.0] * 7
    assert [gpu["gpu_power_watts"] for gpu in gpus] == [67.97, 87.03, 85.15, 85.0, 86.67, 84.99, 85.15, 87.26]
    assert {gpu["gpu_power_limit_watts"] for gpu in gpus} == {400.0}
    assert gpus[0]["gpu_memory_used_bytes"] == 22377 * MIB
    assert {gpu["trackside_gpu_process_attached"] for gpu in gpus} == {1.0}
    assert {gpu["gpu_throttle_reasons"] for gpu in gpus} == {0.0}
    assert gpus[2]["gpu_processes"] == 3.0
    assert last(sink)["gpu_process_memory_used_bytes", "gpu=0 pid=280058"] == 22374 * MIB
    assert last(sink)["gpu_visible_gpus", ""] == 8.0
    assert {curve[0][0] for curve in points(sink).values()} == {utc("2023-03-04 04:55:00")}


def test_the_table_agrees_with_the_full_state() -> None:
    result, sink = load(HANG / "nvidia-smi-table.txt")
    assert (result.format, result.status) == ("nvidia-smi-table", "read")
    gpus = [of_gpu(sink, str(gpu)) for gpu in range(8)]
    assert [gpu["gpu_utilization_ratio"] for gpu in gpus] == [0.0] + [1.0] * 7
    assert [gpu["gpu_power_watts"] for gpu in gpus] == [68.0, 87.0, 84.0, 85.0, 86.0, 84.0, 85.0, 87.0]
    assert [gpu["gpu_temperature_celsius"] for gpu in gpus] == [28.0, 30.0, 28.0, 31.0, 29.0, 31.0, 30.0, 32.0]
    assert [gpu["gpu_memory_used_bytes"] / MIB for gpu in gpus[:3]] == [22377, 15995, 16122]
    full = label_sets(load(HANG / "nvidia-smi-q-all.txt")[1])
    assert {(dict(labels)["gpu"], dict(labels)["pci"]) for labels in label_sets(sink)} == {
        (dict(labels)["gpu"], dict(labels)["pci"]) for labels in full if "gpu" in dict(labels)
    }


@pytest.mark.parametrize(("name", "pci", "busy"), [("gpu0", "0000:07:00", 0.0), ("gpu1", "0000:0b:00", 1.0)])
def test_a_single_gpu_of_eight_is_known_by_its_pci_address(name: str, pci: str, busy: float) -> None:
    _, sink = load(HANG / f"nvidia-smi-q-{name}.txt")
    assert last(sink)["gpu_utilization_ratio", ""] == busy
    assert {dict(labels).get("pci") for labels in label_sets(sink)} - {None} == {pci}
    assert "gpu" not in {label for labels in label_sets(sink) for label, _ in labels}


# -- captures of an exporter's authors, and the metrics of their exporter

MODELS = {
    "linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01": (41.0, 69.85, 0.0, 59.0, 631.95, 1.0),
    "linux-x86_64__nvidia-h100-mig__590.48.01": (42.0, 71.15, None, 53.0, 433.78, None),
    "linux-x86_64__nvidia-l40s__595.80": (None, 144.97, 1.0, None, 110.23, 0.09),
    "linux-x86_64__nvidia-geforce-rtx-2080-super__595.71.05": (None, 39.32, 0.0, None, 111.5, 0.08),
}


def query(capture: str, phase: str) -> str:
    """The section of one phase that holds ``--query-gpu``'s output."""
    match = re.search(rf"^# {phase} :: query-gpu \(csv.*?\n#{{80}}\n(.*?)\n\n", capture, re.MULTILINE | re.DOTALL)
    assert match is not None
    return match[1]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("phase", ["idle", "load"])
def test_query_agrees_with_the_exporter(model: str, phase: str) -> None:
    capture = (CAPTURES / "captures" / f"{model}.txt").read_text()
    result, sink = read(query(capture, phase))
    assert (result.format, result.status) == ("nvidia-smi-csv", "read")
    values = last(sink)
    _, exporter_sink = read((CAPTURES / "metrics" / f"{model}__{phase}.metrics").read_bytes(), path="a.prom")
    exported_values = {(metric, strip(labels)): value for (metric, labels), value in last(exporter_sink).items()}
    shared_count = 0
    for (metric, labels), value in values.items():
        if metric.startswith(("gpu_power", "gpu_throttle_reasons")):
            continue  # the exporter has a metric for each of the tool's readings
        exported_value = exported_values.get((metric, strip(labels)))
        if exported_value is not None:
            shared_count += 1
            assert value == pytest.approx(exported_value, rel=1e-6), (metric, labels)
    assert shared_count >= 15
    temperature, power, utilization = MODELS[model][:3] if phase == "idle" else MODELS[model][3:]
    for metric, expected in (
        ("gpu_temperature_celsius", temperature),
        ("gpu_power_watts", power),
        ("gpu_utilization_ratio", utilization),
    ):
        if expected is not None:
            assert values[metric, "gpu=0"] == expected


def strip(labels: str) -> str:
    return " ".join(pair for pair in labels.split() if pair.split("=")[0] not in ("gpu", *DESCRIPTIVE))


def test_a_whole_capture() -> None:
    result, sink = load(CAPTURES / "captures" / "linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01.txt")
    assert (result.format, result.status) == ("nvidia-smi-capture", "read")
    curves = points(sink)
    idle, busy = utc("2026-07-14 08:12:38"), utc("2026-07-14 08:12:53")
    power = curves["gpu_power_watts", "gpu=0"]
    assert power[:3] == [(idle, 69.0), (idle, 69.85), (idle + 0.696, 69.0)]  # table, -q, dmon
    assert power[3] == (idle + 0.696, 69.85)  # --query-gpu
    assert [watts for time, watts in power if busy <= time < busy + 0.4] == [629.0, 629.45, 631.95]
    assert [watts for time, watts in power if time >= busy + 0.5] == [631.0, 634.0, 633.0, 634.0, 636.0]
    assert [flags for _, flags in curves["gpu_throttle_reasons", "gpu=0"]] == [1.0, 1.0, 0.0, 0.0]
    assert curves["gpu_process_utilization_ratio", "gpu=0 pid=11345"][0] == (busy + 0.5, 0.99)
    assert last(sink)["gpu_process_memory_used_bytes", "gpu=0 pid=11345"] == 15690 * MIB
    attached = curves["trackside_gpu_process_attached", "gpu=0"]
    assert attached[0] == (idle, 0.0)
    assert attached[-1][1] == 1.0


def test_instances_of_a_whole_capture() -> None:
    _, sink = load(CAPTURES / "captures" / "linux-x86_64__nvidia-h100-mig__590.48.01.txt")
    values = last(sink)
    used = {labels: value / MIB for (metric, labels), value in values.items() if metric == "gpu_memory_used_bytes"}
    assert used == {
        "gpu=0": 11125.0,
        "gpu=0 mig=2": 11091.0,
        "gpu=0 mig=3": 17.0,
        "gpu=0 mig=9": 9.0,
        "gpu=0 mig=10": 9.0,
    }
    assert not [key for key in values if key[0] == "gpu_utilization_ratio"]


# -- XML of three schemas


def test_xml_of_an_a100_with_instances() -> None:
    result, sink = load(REAL / "nvidia-smi-xml" / "a100-sxm4-v12.xml")
    assert (result.format, result.status) == ("nvidia-smi-xml", "read")
    values = last(sink)
    assert values["gpu_power_watts", ""] == 67.03  # one of four GPUs: its index is unknown
    assert values["gpu_power_limit_watts", ""] == 500.0
    assert values["gpu_temperature_celsius", ""] == 27.0
    assert values["gpu_sm_clock_hertz", ""] == 1.275e9
    assert values["gpu_throttle_reasons", ""] == 0.0
    assert values["gpu_memory_used_bytes", ""] == 50 * MIB
    assert values["gpu_memory_used_bytes", "mig=4"] == 12 * MIB
    assert {dict(labels).get("gpu_uuid") for labels in label_sets(sink)} - {None} == {
        "GPU-513536b6-7d19-9063-b049-1e69664bb298"
    }


def test_xml_of_a_t4() -> None:
    _, sink = load(REAL / "nvidia-smi-xml" / "tesla-t4.xml")
    values = of_gpu(sink, "0")
    assert values["gpu_power_watts"] == 26.78
    assert values["gpu_memory_used_bytes"] == 1032 * MIB
    assert values["gpu_processes"] == 2.0
    assert values["trackside_gpu_process_attached"] == 1.0
    assert values["gpu_pcie_link_width"] == 8.0
    assert values["gpu_pcie_link_width_max"] == 16.0
    assert last(sink)["gpu_process_memory_used_bytes", "gpu=0 pid=5762"] == 1005 * MIB
    assert {curve[0][0] for curve in points(sink).values()} == {utc("2023-04-24 16:22:39")}


def test_xml_of_the_newest_schema() -> None:
    _, sink = load(REAL / "nvidia-smi-xml" / "rtx-4000-sff-ada-v13.xml")
    values = of_gpu(sink, "0")
    assert values["gpu_throttle_reasons"] == 1.0
    assert values["gpu_pstate"] == 8.0
    assert values["gpu_power_watts"] == 8.81
    assert values["gpu_recovery_action"] == 0.0
    assert values["gpu_temperature_margin_celsius"] == 49.0
    assert last(sink)["gpu_throttle_seconds_total", "gpu=0 reason=sw_power_cap"] == 4251.825415
    assert "gpu_ecc_correctable_total" not in values


@pytest.mark.parametrize("name", ["a10g.xml", "rtx-3080-v13.xml"])
def test_other_xml_documents_are_read_completely(name: str) -> None:
    result, sink = load(REAL / "nvidia-smi-xml" / name)
    assert (result.format, result.status) == ("nvidia-smi-xml", "read")
    assert {"gpu_power_watts", "gpu_temperature_celsius", "gpu_memory_used_bytes", "gpu_throttle_reasons"} <= set(
        of_gpu(sink, "0")
    )


# -- mini-batch times of workers


def test_one_worker_slows_down_for_a_while() -> None:
    result, sink = load(REAL / "pai-minibatch-straggler" / "job_1_norm.csv")
    assert (result.format, result.status, result.rows) == ("rank-times", "read", 3000)
    assert result.note.endswith("; normalized times: only ratios between ranks are meaningful")
    last_step = max(event.fields["step"] for event in sink.events)
    bin_13 = [event for event in sink.events if 12 <= event.fields["step"] / last_step * 20 < 13]
    slow_mean = statistics.mean(event.fields["relative_time"] for event in bin_13 if event.rank == 6)
    other_median = statistics.median(event.fields["relative_time"] for event in bin_13 if event.rank != 6)
    assert slow_mean / other_median == pytest.approx(1.49, abs=0.02)


def test_two_workers_are_slow_throughout() -> None:
    result, sink = load(REAL / "pai-minibatch-straggler" / "job_3_norm.csv")
    assert (result.format, result.status, result.rows) == ("rank-times", "read", 2489)
    times = {rank: [e.fields["relative_time"] for e in sink.events if e.rank == rank] for rank in range(10)}
    assert [statistics.median(times[rank]) for rank in (0, 1)] == [770, 772]
    assert len(times[0]) == 248


def test_a_table_of_several_jobs_is_not_read() -> None:
    result, _ = load(REAL / "pai-minibatch-straggler" / "coefficient_variation.csv")
    assert (result.format, result.status) == ("rank-times", "unrecognised")
