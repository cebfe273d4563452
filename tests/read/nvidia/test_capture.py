"""Output of several commands in one file; the output of one names the GPUs of another."""

from __future__ import annotations

from tests.read.nvidia import test_csv, test_dmon, test_table, test_text, test_xml
from tests.read.nvidia.reading import label_sets, points, read, utc

T0 = utc("2026-11-21 08:00:05")
RULE = "#" * 80
LIST = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-2222-3333-4444-555555555550)\n"


def section(name: str, command: str, text: str) -> str:
    return f"{RULE}\n# {name}\n# $ {command}\n{RULE}\n{text}\n\n"


HELP = """List of valid properties to query for the switch "--query-gpu":

"timestamp"
The timestamp of when the query was made in format "YYYY/MM/DD HH:MM:SS.msec".

"utilization.gpu"
Percent of time over the past sample period, during which one or more kernels was executing.
memory.used
"""


def test_sections_under_headings() -> None:
    text = (
        section("help", "nvidia-smi --help-query-gpu", HELP)
        + section("list", "nvidia-smi -L", LIST)
        + section("table", "nvidia-smi", test_table.OLD)
        + section("q", "nvidia-smi -q", test_text.capture(test_text.new(0)))
        + section("csv", "nvidia-smi --query-gpu=a --format=csv", "\n".join(test_csv.LOOP))
        + section("xml", "nvidia-smi -q -x", test_xml.document(test_xml.gpu(0)))
        + section("dmon", "nvidia-smi dmon -c 2", test_dmon.GPM)
    )
    result, sink = read(text)
    assert (result.format, result.status) == ("nvidia-smi-capture", "read")
    curves = points(sink)
    assert [value for _, value in curves["gpu_utilization_ratio", "gpu=0"]] == [0.0, 0.97, 0.97, 0.99, 1.0, 0.03, 1.0]
    # dmon prints no time: its samples follow the previous output, one per second
    assert curves["gpu_sm_active_ratio", "gpu=0"] == [(T0 + 1, 0.41)]


def test_several_outputs_without_headings() -> None:
    text = test_table.OLD + test_text.capture(test_text.new(0)) + LIST + "\n".join(test_csv.LOOP) + "\n"
    result, sink = read(text)
    assert result.format == "nvidia-smi-capture"
    assert "output of 3 nvidia-smi commands" in result.note
    assert len(points(sink)["gpu_utilization_ratio", "gpu=0"]) == 4


def test_a_gpu_list_numbers_the_gpus_of_later_output() -> None:
    lone = test_text.capture(test_text.new(0), attached=8)
    result, sink = read(
        "+ nvidia-smi -L\n" + LIST + "+ nvidia-smi -q -i 0\n" + lone + "+ nvidia-smi\n" + test_table.OLD
    )
    assert result.format == "nvidia-smi-capture"
    assert {dict(labels).get("gpu") for labels in label_sets(sink) if "gpu_uuid" in dict(labels)} == {"0"}


def test_columns_of_a_query_without_heading_come_from_its_command() -> None:
    text = (
        "$ nvidia-smi --query-gpu=timestamp,index,utilization.gpu --format=csv,noheader,nounits\n"
        "2026/11/21 08:00:00.123, 4, 50\n"
        "$ nvidia-smi\n" + test_table.OLD
    )
    _, sink = read(text)
    assert points(sink)["gpu_utilization_ratio", "gpu=4"] == [(utc("2026-11-21 08:00:00.123"), 0.5)]


def test_a_job_log_with_commands_in_it_stays_a_job_log() -> None:
    text = (
        "+ nvidia-smi\n" + test_table.OLD + "+ nvidia-smi -L\n" + LIST + "+ srun python train.py\nstep 1 loss 2.5\n" * 9
    )
    result, _ = read(text, path="slurm-7.out")
    assert result.format == "job-log"
