"""Whose is a process, and whose a GPU: cgroup and environment -> container, pod, job, step, task, rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Owner:
    """What a process belongs to; None where it is not known. ``task`` is Slurm's number over the whole step,
    ``rank`` the one that the training uses."""

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
class Process:
    """One process of a job on this node. ``started``: kernel ticks since boot, which with ``pid`` names it for good."""

    pid: int
    started: int
    parent: int
    comm: str
    owner: Owner
    visible_gpus: tuple[str, ...] | None = None
    """What ``CUDA_VISIBLE_DEVICES`` holds: indices or UUIDs; None where it is not set."""
    environ: Mapping[str, str] | None = None
    """Those variables that sources ask for: Slurm's, torchrun's, NCCL's and flight recorder's; None where the
    environment may not be read."""


class Owners:
    """Whose processes and GPUs are: nobody's, where jobs are not looked for. Any thread may ask; no answer blocks."""

    unread = 0
    """Processes of jobs whose environment may not be read, when it was renewed last."""

    def renew(self) -> None:
        """Look at what is new. Raises OSError where processes can't be listed."""

    def processes(self) -> Sequence[Process]:
        """All processes of jobs and containers on this node, the children too."""
        return ()

    def of_pid(self, pid: int) -> Owner | None:
        """Whose a process is; looked up at once where it is too young to be known."""
        return None

    def of_gpu(self, gpu: str) -> Owner | None:
        """Whose a GPU is, by its index or UUID; without a rank where several hold it. None: nobody's that is known."""
        return None

    def hold(self, gpu: str, pids: Sequence[int]) -> None:
        """What the GPU's driver says: these processes have a context on it (index or UUID)."""
