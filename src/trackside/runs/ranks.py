"""Global ranks of the processes behind a log: torchrun's ``<run>/attempt_N/<local rank>/`` folders, srun's tasks.

Each node has its own folder with local ranks from 0: ``attempt_0/1`` of two nodes are two ranks. The global ranks
follow from ``[rank3]:`` labels inside, or from the remaining numbers if the other nodes are known.

Tasks are named by srun's labels (``srun -l``) and its own lines.
A task is a rank if each GPU has its own task and no launcher starts ranks below it. How many tasks there were is in the
scheduler's records, if anywhere; but every node has the same number of a step's tasks, and they divide its GPUs evenly,
so more than half as many tasks as GPUs means one task per GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from trackside.model import Event

_FOLDER = re.compile(r"^(.*?)(?:^|[/!])attempt_(\d{1,6})[/!](\d{1,6})[/!]std(?:out|err)\.log")

LAUNCHER_KINDS = frozenset({"launcher_failure", "launcher_restart"})
"""Kinds of events that only launchers of ranks cause."""
LAUNCHER_NAMES = frozenset({"torchrun", "deepspeed", "mpirun"})
"""Names of launchers of ranks: the source of a process exit, the command of a host event."""
MAX_TASKS = 100_000
"""Tasks of one range that are read."""
Folder = tuple[str, int]
"""(run folder, attempt)"""


def local_rank_of(path: str) -> tuple[Folder, int] | None:
    """(run folder and attempt, local rank) of a path; None if it has none."""
    match = _FOLDER.match(path)
    return None if match is None else ((match[1], int(match[2])), int(match[3]))


class Ranks:
    """The global ranks of the events of a run: what to add to the local ranks of each folder."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._local_ranks: dict[Folder, set[int]] = {}
        offsets: dict[Folder, set[int]] = {}
        for event in events:
            location = local_rank_of(event.at.path)
            if location is None:
                continue
            folder, local = location
            self._local_ranks.setdefault(folder, set()).add(local)
            if event.rank is not None and (event.rank > local or (event.rank == local and names_its_rank(event))):
                offsets.setdefault(folder, set()).add(event.rank - local)
        self._offsets = {folder: self._find_offset(folder, offsets) for folder in self._local_ranks}

    def _find_offset(self, folder: Folder, offsets: dict[Folder, set[int]]) -> int | None:
        """What to add to a folder's local ranks; None if unknown. ``offsets``: those that lines show."""
        if len(offsets.get(folder, ())) == 1:
            return next(iter(offsets[folder]))
        folders = [other for other in self._local_ranks if other[1] == folder[1]]
        if len(folders) == 1:
            return 0
        size = len(self._local_ranks[folder])
        if any(len(self._local_ranks[other]) != size for other in folders):
            return None
        known_offsets = {next(iter(offsets[other])) for other in folders if len(offsets.get(other, ())) == 1}
        free_offsets = {node * size for node in range(len(folders))} - known_offsets
        return next(iter(free_offsets)) if len(free_offsets) == 1 else None

    @property
    def count(self) -> int:
        """Number of ranks with a folder, over all nodes of the attempt that has the most."""
        sizes: dict[int, int] = {}
        for (_, attempt), ranks in self._local_ranks.items():
            sizes[attempt] = sizes.get(attempt, 0) + len(ranks)
        return max(sizes.values(), default=0)

    def to_global_rank(self, event: Event) -> Event:
        """The event with its global rank; without a rank if two nodes could be confused."""
        location = local_rank_of(event.at.path)
        if location is None or event.rank != location[1] or names_its_rank(event):
            return event
        offset = self._offsets.get(location[0], 0)
        return event if offset == 0 else replace(event, rank=None if offset is None else location[1] + offset)


def names_its_rank(event: Event) -> bool:
    """Whether the line itself names the rank: ``[rank3]:``."""
    return re.match(rf"\s*\S{{0,80}}?\[rank\s?{event.rank}\]", event.text[:160]) is not None


class Tasks:
    """Whether a job's tasks are its ranks. ``world_size``: its number of ranks, or of GPUs if that is unknown;
    ``n_tasks``: its number of tasks, if the scheduler's records have it."""

    def __init__(self, events: Iterable[Event], world_size: int | None, n_tasks: int | None) -> None:
        highest, has_launcher = -1, False
        for event in events:
            has_launcher = (
                has_launcher
                or event.kind in LAUNCHER_KINDS
                or bool(LAUNCHER_NAMES & {event.get("source"), event.get("command")})
            )
            highest = max([highest, *_task_numbers(event)])
        n_tasks = n_tasks if n_tasks is None or n_tasks > highest else None  # srun can start more tasks than requested
        expected = n_tasks if n_tasks is not None else world_size
        self.are_ranks = not has_launcher and world_size is not None and expected == world_size and highest < world_size
        if n_tasks is None and world_size is not None:
            self.are_ranks &= 2 * (highest + 1) > world_size

    def to_task_rank(self, event: Event) -> Event:
        """The event with its task's rank, if it has none and belongs to one task."""
        if not self.are_ranks or event.rank is not None:
            return event
        tasks = _task_numbers(event)
        return replace(event, rank=tasks[0]) if len(tasks) == 1 else event


def _task_numbers(event: Event) -> list[int]:
    """The tasks of an event: ``0,2-5`` as srun writes them; empty for numbers of other launchers."""
    text = event.get("task")
    if text is None or (event.kind == "process_exit" and event.get("source") != "srun"):
        return []
    tasks: list[int] = []
    for part in str(text).split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or "0").isdecimal() or len(part) > 15:
            return []
        tasks += range(int(first), min(int(last or first), int(first) + MAX_TASKS) + 1)
    return tasks
