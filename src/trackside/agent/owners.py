"""Owners of processes and GPUs: container, pod, job, step, task, rank, by cgroup and environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Owner:
    """What a process belongs to; None if unknown. ``task``: Slurm's task number in the whole step. ``rank``: the rank
    that the training uses."""

    job: str | None = None
    step: str | None = None
    task: int | None = None
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    user: str | None = None
    container: str | None = None
    pod: str | None = None


@dataclass(frozen=True, slots=True)
class JobProcess:
    """One process of a job on this node. ``started``: start time in kernel ticks since boot, unique together with
    ``pid``."""

    pid: int
    started: int
    parent: int
    comm: str
    owner: Owner
    visible_gpus: tuple[str, ...] | None = None
    """Indices or UUIDs in ``CUDA_VISIBLE_DEVICES``; None if it is not set."""
    environ: Mapping[str, str] | None = None
    """The variables that sources use: Slurm's, torchrun's, NCCL's and the flight recorder's; None if the environment
    may not be read."""


class Owners:
    """Owners of processes and GPUs; this base class knows none. Methods may be called from any thread and do not
    block."""

    unread = 0
    """Number of job processes whose environment could not be read at the last renewal."""

    def renew(self) -> None:
        """Read new processes. Raises OSError if processes cannot be listed."""

    def processes(self) -> Sequence[JobProcess]:
        """All processes of jobs and containers on this node, including child processes."""
        return ()

    def of_pid(self, pid: int) -> Owner | None:
        """The owner of a process; one that is too new to be in the map is read at once."""
        return None

    def of_gpu(self, gpu: str) -> Owner | None:
        """The owner of a GPU, by its index or UUID; without rank if several ranks use it. None: no known owner."""
        return None

    def set_gpu_pids(self, gpu: str, pids: Sequence[int]) -> None:
        """Note which processes have a context on a GPU (index or UUID), as reported by its driver."""
