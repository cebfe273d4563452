"""What the nodes' GPUs would be doing: scripts of the stand-in NVML, rewritten once a second by what the jobs do.

There is no GPU, so this is play, and simple on purpose. Each training process touches a file after each of its steps
(lab/train/device.py). A GPU on which a living process did a step lately is busy; one whose process lives and did none
lately holds its memory and rests; one without a process is idle. Which GPU is a process', Slurm told it. Nothing here
knows of faults.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.nvml import Script
from lab.stage import process_environ

EVERY_S = 1.0
LATELY_S = 3.0
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
RESTING: Mapping[str, str | int] = {
    **dict.fromkeys(BUSY, 0),
    "power": "118~3",
    "temperature": "43~1",
    "clock_sm": 1980,
    "clock_graphics": 1980,
    "throttle": 1,
}
IDLE: Mapping[str, str | int] = {
    **RESTING,
    "power": "71~2",
    "temperature": "31~1",
    "clock_sm": 345,
    "clock_graphics": 345,
}


@dataclass(frozen=True)
class User:
    """A process that holds a GPU."""

    pid: int
    node: str
    gpu: int


class Gpus:
    """The GPUs of all nodes, played until it is stopped. `board`: the folder of the processes' files."""

    def __init__(self, board: Path, scripts: Path, nodes: Sequence[str]) -> None:
        self.board = board
        self.scripts = {node: Script(scripts / node, gpus=8, seed=node, start=f"{time.time():.3f}") for node in nodes}
        self._users: dict[int, User] = {}
        self._busy: dict[int, bool] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpus", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            there: dict[int, bool] = {}
            for file in self.board.iterdir():
                pid = int(file.name)
                if pid not in self._users and (user := _user(pid)) is not None:
                    self._users[pid] = user
                if pid in self._users and Path(f"/proc/{pid}").exists():
                    there[pid] = time.time() - file.stat().st_mtime < LATELY_S
                else:
                    file.unlink()
            self._play(there)

    def _play(self, there: Mapping[int, bool]) -> None:
        """Write what has changed. `there`: living processes, and whether each did a step lately."""
        for pid, user in list(self._users.items()):
            script, busy = self.scripts[user.node], there.get(pid)
            if busy is None:
                script.now(user.gpu, process=pid, **IDLE)
                del self._users[pid]
                self._busy.pop(pid, None)
            elif self._busy.get(pid) != busy:
                new = {} if pid in self._busy else {"process": f"{pid}:{MEMORY}"}
                script.now(user.gpu, **new, **(BUSY if busy else RESTING))
                self._busy[pid] = busy


def _user(pid: int) -> User | None:
    """Which GPU Slurm gave to a process: of its step's, or else its job's, the one of its place on the node."""
    environment = dict(variable.split("=", 1) for variable in process_environ(pid) if "=" in variable)
    gpus = (environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS") or "").split(",")
    place = int(environment.get("LOCAL_RANK") or environment.get("SLURM_LOCALID") or 0)
    node = environment.get("SLURMD_NODENAME", "")
    return User(pid, node, int(gpus[place % len(gpus)])) if node and gpus[0].isdecimal() else None
