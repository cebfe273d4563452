"""Which processes of a job are its ranks, and which only serve them: launchers above, loader workers below. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trackside.agent.owners import Process

_WRAPPERS = ("bash", "sh", "dash", "zsh", "srun", "slurmstepd", "slurm_script", "mpirun", "orted", "prterun", "numactl")
_PYTHON = ("python", "pt_main_thread", "ray::", "uv", "jupyter", "ipython")
MOST_ABOVE = 64
"""Processes above one that are looked at: a job could have thousands, each the child of the one before."""


@dataclass(frozen=True, slots=True)
class Rank:
    """A rank of a job on this node: the process that trains, and those that it started. ``number``: None where the
    job has none or the process may not be asked."""

    job: str
    number: int | None
    main: Process
    others: tuple[Process, ...] = ()

    @property
    def key(self) -> tuple[int, int]:
        """Names it for good."""
        return self.main.pid, self.main.started


def jobs_of(processes: Iterable[Process]) -> dict[str, tuple[Rank, ...]]:
    """The ranks of each job, in order."""
    by_job: dict[str, list[Process]] = {}
    for process in processes:
        if process.owner.job:
            by_job.setdefault(process.owner.job, []).append(process)
    return {job: _ranks(job, members) for job, members in by_job.items()}


def number_of(process: Process) -> int | None:
    """The training's rank, else the task's."""
    owner = process.owner
    return owner.rank if owner.rank is not None else owner.task


def _ranks(job: str, members: Sequence[Process]) -> tuple[Rank, ...]:
    by_number: dict[int | None, list[Process]] = {}
    for process in members:
        by_number.setdefault(number_of(process), []).append(process)
    if len(by_number) > 1:  # what has no number started those that have
        by_number.pop(None, None)
    launchers = _launchers(members)
    found = [
        rank
        for number, group in by_number.items()
        if (rank := _rank(job, number, [each for each in group if each.pid not in launchers])) is not None
    ]
    return tuple(sorted(found, key=lambda rank: (rank.number is None, rank.number or 0, rank.main.pid)))


def _launchers(members: Sequence[Process]) -> set[int]:
    """Processes that have another rank below them, or one whose own environment says that it is a rank and theirs
    does not."""
    by_pid = {process.pid: process for process in members}
    found: set[int] = set()
    for process in members:
        own, said = number_of(process), _says_rank(process)
        for above in _above(process, by_pid):
            if number_of(above) != own or (said and not _says_rank(above)):
                found.add(above.pid)
    return found


def _above(process: Process, by_pid: Mapping[int, Process]) -> Iterator[Process]:
    """What started it, what started that, and so on."""
    at = by_pid.get(process.parent)
    for _ in range(MOST_ABOVE):
        if at is None or at is process:
            return
        yield at
        at = by_pid.get(at.parent)


def _says_rank(process: Process) -> bool:
    return process.environ is not None and "RANK" in process.environ


def _rank(job: str, number: int | None, group: Sequence[Process]) -> Rank | None:
    """The topmost Python process of a group, else the topmost that is no mere wrapper, with what is below it."""
    if not group:
        return None
    by_pid = {process.pid: process for process in group}

    def depth(process: Process) -> int:
        return sum(1 for _ in _above(process, by_pid))

    python = [each for each in group if each.comm.startswith(_PYTHON)]
    plain = [each for each in group if each.comm not in _WRAPPERS]
    if not (python or plain):
        return None
    main = min(python or plain, key=lambda each: (depth(each), each.started, each.pid))
    below = tuple(each for each in group if any(above is main for above in _above(each, by_pid)))
    return Rank(job, number, main, below)
