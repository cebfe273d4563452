"""Simulates the nodes' GPUs: once a second, the scripts of the stand-in NVML are rewritten by what the jobs do.

Each training process touches a file after each step (lab/train/device.py). A GPU is busy if its process did a step in
the last RECENT_STEP_S seconds, waiting with allocated memory if the process did none, and idle without a process. Slurm's
environment variables show which GPU a process uses. Nothing here depends on the injected faults.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.nvml import Script
from lab.stage import process_environ

INTERVAL_S = 1.0
RECENT_STEP_S = 3.0
MEMORY = "21GiB"
BUSY: Mapping[str, str | int] = {
    "utilization": "94~4",
    "memory_utilization": "38~3",
    "sm_active": "81~3",
    "sm_occupancy": "44~2",
    "tensor_active": "47~3",
    "dram_active": "36~2",
    "graphics_active": "95~2",
    "power": "560~15",
    "temperature": "61~1",
    "clock_sm": 1755,
    "clock_graphics": 1755,
    "throttle": 0,
}
WAITING: Mapping[str, str | int] = {
    **dict.fromkeys(BUSY, 0),
    "power": "118~3",
    "temperature": "43~1",
    "clock_sm": 1980,
    "clock_graphics": 1980,
    "throttle": 1,
}
IDLE: Mapping[str, str | int] = {
    **WAITING,
    "power": "71~2",
    "temperature": "31~1",
    "clock_sm": 345,
    "clock_graphics": 345,
}


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds a GPU."""

    pid: int
    node: str
    gpu: int


class Gpus:
    """The GPUs of all nodes, simulated until stopped. `board`: the folder of the files that processes touch."""

    def __init__(self, board: Path, scripts: Path, nodes: Sequence[str]) -> None:
        self.board = board
        self.scripts = {node: Script(scripts / node, gpus=8, seed=node, start=f"{time.time():.3f}") for node in nodes}
        self._processes: dict[int, GpuProcess] = {}
        self._busy: dict[int, bool] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpus", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            has_stepped: dict[int, bool] = {}
            for file in self.board.iterdir():
                pid = int(file.name)
                if pid not in self._processes and (process := _gpu_process(pid)) is not None:
                    self._processes[pid] = process
                if pid in self._processes and Path(f"/proc/{pid}").exists():
                    has_stepped[pid] = time.time() - file.stat().st_mtime < RECENT_STEP_S
                else:
                    file.unlink()
            self._update_scripts(has_stepped)

    def _update_scripts(self, has_stepped: Mapping[int, bool]) -> None:
        """Rewrite the scripts of changed GPUs. `has_stepped`: living process -> whether it did a step recently."""
        for pid, process in list(self._processes.items()):
            script, is_busy = self.scripts[process.node], has_stepped.get(pid)
            if is_busy is None:
                script.now(process.gpu, process=pid, **IDLE)
                del self._processes[pid]
                self._busy.pop(pid, None)
            elif self._busy.get(pid) != is_busy:
                new = {} if pid in self._busy else {"process": f"{pid}:{MEMORY}"}
                script.now(process.gpu, **new, **(BUSY if is_busy else WAITING))
                self._busy[pid] = is_busy


def _gpu_process(pid: int) -> GpuProcess | None:
    """A process with the GPU that Slurm gave it: of the step's or else the job's GPUs, the one of its local rank."""
    environment = dict(variable.split("=", 1) for variable in process_environ(pid) if "=" in variable)
    gpus = (environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS") or "").split(",")
    local_rank = int(environment.get("LOCAL_RANK") or environment.get("SLURM_LOCALID") or 0)
    node = environment.get("SLURMD_NODENAME", "")
    return GpuProcess(pid, node, int(gpus[local_rank % len(gpus)])) if node and gpus[0].isdecimal() else None
