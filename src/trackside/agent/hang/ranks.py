"""Which processes of a job are its ranks, and which only serve them: launchers above, data loader workers below. No
I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trackside.agent.owners import JobProcess

_WRAPPERS = ("bash", "sh", "dash", "zsh", "srun", "slurmstepd", "slurm_script", "mpirun", "orted", "prterun", "numactl")
_PYTHON = ("python", "pt_main_thread", "ray::", "uv", "jupyter", "ipython")
MAX_ANCESTORS = 64
"""Ancestors checked per process: a job could have a chain of thousands."""


@dataclass(frozen=True, slots=True)
class Rank:
    """A rank of a job on this node: the training process (``main``) and those that it started (``helpers``).

    ``number``: None if the job has no ranks or the environment may not be read.
    """

    job: str
    number: int | None
    main: JobProcess
    helpers: tuple[JobProcess, ...] = ()

    @property
    def key(self) -> tuple[int, int]:
        """Unique key of the rank: pid and start time of its process."""
        return self.main.pid, self.main.started


def ranks_by_job(processes: Iterable[JobProcess]) -> dict[str, tuple[Rank, ...]]:
    """The ranks of each job, sorted by number."""
    by_job: dict[str, list[JobProcess]] = {}
    for process in processes:
        if process.owner.job:
            by_job.setdefault(process.owner.job, []).append(process)
    return {job: _ranks(job, members) for job, members in by_job.items()}


def number_of(process: JobProcess) -> int | None:
    """The training's rank, else the Slurm task number."""
    owner = process.owner
    return owner.rank if owner.rank is not None else owner.task


def _ranks(job: str, members: Sequence[JobProcess]) -> tuple[Rank, ...]:
    by_number: dict[int | None, list[JobProcess]] = {}
    for process in members:
        by_number.setdefault(number_of(process), []).append(process)
    if len(by_number) > 1:  # processes without a number started those that have one
        by_number.pop(None, None)
    launchers = _launchers(members)
    ranks = [
        rank
        for number, group in by_number.items()
        if (rank := _rank(job, number, [process for process in group if process.pid not in launchers])) is not None
    ]
    return tuple(sorted(ranks, key=lambda rank: (rank.number is None, rank.number or 0, rank.main.pid)))


def _launchers(members: Sequence[JobProcess]) -> set[int]:
    """Pids of launchers: a descendant has another rank, or has RANK in its environment and the launcher does not."""
    by_pid = {process.pid: process for process in members}
    pids: set[int] = set()
    for process in members:
        number, has_rank = number_of(process), _has_rank(process)
        for ancestor in _ancestors(process, by_pid):
            if number_of(ancestor) != number or (has_rank and not _has_rank(ancestor)):
                pids.add(ancestor.pid)
    return pids


def _ancestors(process: JobProcess, by_pid: Mapping[int, JobProcess]) -> Iterator[JobProcess]:
    """Its parent, the parent's parent, and so on."""
    ancestor = by_pid.get(process.parent)
    for _ in range(MAX_ANCESTORS):
        if ancestor is None or ancestor is process:
            return
        yield ancestor
        ancestor = by_pid.get(ancestor.parent)


def _has_rank(process: JobProcess) -> bool:
    return process.environ is not None and "RANK" in process.environ


def _rank(job: str, number: int | None, group: Sequence[JobProcess]) -> Rank | None:
    """The topmost Python process of a group, else the topmost that is not a plain wrapper, with all processes below
    it."""
    if not group:
        return None
    by_pid = {process.pid: process for process in group}

    def depth(process: JobProcess) -> int:
        return sum(1 for _ in _ancestors(process, by_pid))

    python = [process for process in group if process.comm.startswith(_PYTHON)]
    programs = [process for process in group if process.comm not in _WRAPPERS]
    if not (python or programs):
        return None
    main = min(python or programs, key=lambda process: (depth(process), process.started, process.pid))
    helpers = tuple(process for process in group if any(ancestor is main for ancestor in _ancestors(process, by_pid)))
    return Rank(job, number, main, helpers)
