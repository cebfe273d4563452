"""``make gpu-check`` with scripted GPUs: the program itself, without its trainings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.gpu.watch import GpuRecorder
from tools import gpu_check
from trackside.agent.source import AgentSourceUnavailable, Reading

pytestmark = pytest.mark.slow  # real processes, and seconds of waiting for them

PROGRAM = Path(gpu_check.__file__)


class ScriptedCollector:
    """Gives one value per reading, then becomes unavailable."""

    def __init__(self, *values: float) -> None:
        self._values = list(values)

    def collect(self, reading: Reading) -> None:
        if not self._values:
            raise AgentSourceUnavailable("it went away")
        reading.sample("gpu_energy_joules_total", self._values.pop(0), gpu=0)

    def close(self) -> None:
        pass


def test_it_passes_on_scripted_gpus(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), "--stand-in", "--cases", "", "--interval", "0.2", "--work", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "gpu: all values are within the catalog's bounds, and no counter fell" in result.stdout
    assert "gpu_sm_active_ratio" in result.stdout
    assert result.stdout.endswith("GPUs were scripted: the readings of real GPUs were not tested\n")


def test_without_a_gpu_it_reports_why_and_exits_with_2(tmp_path: Path) -> None:
    """The process finds no NVML library, even on a machine with a GPU."""
    program = f"import sys, runpy, pynvml; pynvml.nvmlInit = lambda: (_ for _ in ()).throw(pynvml.NVMLError_LibraryNotFound()); sys.argv = ['gpu_check', '--work', {str(tmp_path)!r}]; runpy.run_path({str(PROGRAM)!r}, run_name='__main__')"
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=environment
    )
    assert result.returncode == 2, "nothing was checked"
    assert "not run    gpu: NVML" in result.stdout
    assert "install NVIDIA's driver" in result.stdout


def test_values_that_violate_the_catalog_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    report = gpu_check.CheckReport()
    watch = GpuRecorder({"gpu": ScriptedCollector(5, 7, 3, 1e30)}, 0.01)
    for _ in range(4):
        watch._read("gpu", watch._collectors["gpu"])
    gpu_check.check_against_catalog(report, watch, gpu_check.source_of("gpu"))
    assert report.failures == 1
    assert "WRONG      gpu_energy_joules_total: a counter that fell" in capsys.readouterr().out


def test_a_recorded_scenario_contains_the_readings_and_the_machine(tmp_path: Path) -> None:
    watch = GpuRecorder({"gpu": ScriptedCollector(5, 7)}, 0.01)
    for _ in range(3):
        watch._read("gpu", watch._collectors["gpu"])
    assert watch.warnings == {"gpu: it went away": 1}
    (tmp_path / "train.log").write_text("iter 1/2\n")
    case = gpu_check.CASES[0]
    facts = {"gpus": "1 x NVIDIA H100", "driver": "580"}
    folder = gpu_check.record(case, tmp_path / "out", tmp_path, watch, facts)
    assert json.loads((folder / "expected.json").read_text())["family"] == "G1"
    assert json.loads((folder / "machine.json").read_text()) == facts
    first = (folder / "inputs/gpu.prom.gz").read_bytes()
    watch.write(folder / "inputs/gpu.prom.gz", "gpu-01")
    assert (folder / "inputs/gpu.prom.gz").read_bytes() == first
