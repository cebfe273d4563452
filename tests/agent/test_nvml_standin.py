"""The stand-in library agrees with the bindings that the agent uses; otherwise its tests would prove nothing."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from pathlib import Path

import pynvml
import pytest

from lab import nvml
from tests.agent.nvml import LIBRARY, scripted_gpus

pytestmark = pytest.mark.slow

STRUCTURES = (
    "c_nvmlMemory_t",
    "c_nvmlMemory_v2_t",
    "c_nvmlUtilization_t",
    "nvmlPciInfo_t",
    "c_nvmlProcessInfo_v3_t",
    "c_nvmlViolationTime_t",
    "c_nvmlFieldValue_t",
    "c_nvmlEventData_t",
    "c_nvmlRowRemapperHistogramValues",
    "c_nvmlTemperature_v1_t",
    "c_nvmlMarginTemperature_v1_t",
    "c_nvmlEccSramErrorStatus_v1_t",
    "c_nvmlGpuFabricInfo_v2_t",
    "c_nvmlGpuFabricInfo_v3_t",
    "c_nvmlGpmMetric_t",
    "c_nvmlGpmSupport_t",
)


@pytest.mark.parametrize("name", STRUCTURES)
def test_structure_layouts_match_the_bindings(name: str) -> None:
    library = ctypes.CDLL(str(nvml.build(LIBRARY)))
    library.standin_sizeof.restype = ctypes.c_size_t
    assert library.standin_sizeof(name.encode()) == ctypes.sizeof(getattr(pynvml, name))


def test_structure_versions_are_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scripted_gpus(monkeypatch, tmp_path, gpus=1)
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(pynvml.NVMLError_ArgumentVersionMismatch):
        pynvml.nvmlDeviceGetMemoryInfo(handle, version=0x1000028)
    request = pynvml.c_nvmlGpmMetricsGet_t(version=2)
    with pytest.raises(pynvml.NVMLError_ArgumentVersionMismatch):
        pynvml.nvmlGpmMetricsGet(request)
    pynvml.nvmlShutdown()


def test_a_script_is_followed_over_time_and_read_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = scripted_gpus(monkeypatch, tmp_path, gpus=3, seed="n7", driver="570.1")
    script.at(0, "*", utilization=20, memory_used="1GiB+1GiB/s")
    script.at(4.0, "0,2", utilization=80)
    pynvml.nvmlInit()
    try:
        assert pynvml.nvmlDeviceGetCount() == 3
        assert pynvml.nvmlSystemGetDriverVersion() == "570.1"
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(3)]
        assert len({pynvml.nvmlDeviceGetUUID(handle) for handle in handles}) == 3
        first = pynvml.nvmlDeviceGetMemoryInfo(handles[0]).used
        assert [pynvml.nvmlDeviceGetUtilizationRates(handle).gpu for handle in handles] == [20, 20, 20]
        time.sleep(4.1)
        assert [pynvml.nvmlDeviceGetUtilizationRates(handle).gpu for handle in handles] == [80, 20, 80]
        assert (1 << 30) < pynvml.nvmlDeviceGetMemoryInfo(handles[0]).used - first < (30 << 30)
        script.now(1, utilization=55, process=["12:2GiB", "13:1GiB"])
        time.sleep(0.1)
        assert pynvml.nvmlDeviceGetUtilizationRates(handles[1]).gpu == 55
        assert {process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handles[1])} == {12, 13}
    finally:
        pynvml.nvmlShutdown()


def test_an_xid_is_delivered_once_and_only_to_registered_event_sets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = scripted_gpus(monkeypatch, tmp_path, gpus=2)
    script.now(0, xid=13)
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(2)]
    events = pynvml.nvmlEventSetCreate()
    for handle in handles:
        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
    script.now(1, xid=79)
    assert pynvml.nvmlEventSetWait_v2(events, 10_000).eventData == 79
    script.now(0, utilization=5)
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(events, 100)
    pynvml.nvmlEventSetFree(events)
    pynvml.nvmlShutdown()


def test_another_process_finds_the_library_in_its_path(tmp_path: Path) -> None:
    library = nvml.build(LIBRARY)
    script = nvml.Script(tmp_path / "script", gpus=5)
    program = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"
    environment = nvml.environment(library, script.path)
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )
    assert result.stdout.strip() == "5", result.stderr
