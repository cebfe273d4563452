"""Global ranks of the processes behind a log: of torchrun's ``<run>/attempt_N/<local rank>/`` folders, of srun's tasks.

Each node has such a folder of its own with local ranks from 0: ``attempt_0/1`` of two nodes are two ranks. Which
they are is told by ``[rank3]:`` labels inside, or by what remains when the other nodes are known.

Tasks are named by srun's labels (``srun -l``) and its own words.
A task is a rank where each GPU has a task of its own, and no launcher starts ranks beneath it. How many tasks there
were is in the scheduler's records, if at all; but a step's tasks are as many on every node, and divide its GPUs evenly,
so that more than half as many as there are GPUs are one for each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from trackside.model import Event

_FOLDER = re.compile(r"^(.*?)(?:^|[/!])attempt_(\d{1,6})[/!](\d{1,6})[/!]std(?:out|err)\.log")

LAUNCHERS = frozenset({"launcher_failure", "launcher_restart"})
"""Kinds that only launchers of ranks bring about."""
LAUNCHING = frozenset({"torchrun", "deepspeed", "mpirun"})
"""What names such a launcher: the source of a process's exit, the command of a host."""
MOST = 100_000
"""Tasks of one line."""
Folder = tuple[str, int]
"""(run folder, attempt)"""


def place_of(path: str) -> tuple[Folder, int] | None:
    """(run folder and attempt, local rank) of a path."""
    found = _FOLDER.match(path)
    return None if found is None else ((found[1], int(found[2])), int(found[3]))


class Ranks:
    """What to add to the local ranks of each folder; None where that can't be told."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._locals: dict[Folder, set[int]] = {}
        told: dict[Folder, set[int]] = {}
        for event in events:
            place = place_of(event.at.path)
            if place is None:
                continue
            folder, local = place
            self._locals.setdefault(folder, set()).add(local)
            if event.rank is not None and (event.rank > local or (event.rank == local and labelled(event))):
                told.setdefault(folder, set()).add(event.rank - local)
        self._offsets = {folder: self._offset(folder, told) for folder in self._locals}

    def _offset(self, folder: Folder, told: dict[Folder, set[int]]) -> int | None:
        if len(told.get(folder, ())) == 1:
            return next(iter(told[folder]))
        beside = [other for other in self._locals if other[1] == folder[1]]
        if len(beside) == 1:
            return 0
        size = len(self._locals[folder])
        if any(len(self._locals[other]) != size for other in beside):
            return None
        known = {next(iter(told[other])) for other in beside if len(told.get(other, ())) == 1}
        left = {node * size for node in range(len(beside))} - known
        return next(iter(left)) if len(left) == 1 else None

    @property
    def count(self) -> int:
        """Ranks that have a folder, over the nodes of one attempt."""
        sizes: dict[int, int] = {}
        for (_, attempt), ranks in self._locals.items():
            sizes[attempt] = sizes.get(attempt, 0) + len(ranks)
        return max(sizes.values(), default=0)

    def globally(self, event: Event) -> Event:
        """The event with its global rank; without one where two nodes could be mixed up."""
        place = place_of(event.at.path)
        if place is None or event.rank != place[1] or labelled(event):
            return event
        offset = self._offsets.get(place[0], 0)
        return event if offset == 0 else replace(event, rank=None if offset is None else place[1] + offset)


def labelled(event: Event) -> bool:
    """Whether the line itself names the rank: ``[rank3]:``."""
    return re.match(rf"\s*\S{{0,80}}?\[rank\s?{event.rank}\]", event.text[:160]) is not None


class Tasks:
    """Whether a job's tasks are its ranks. ``world``: its ranks, or its GPUs where these aren't told; ``counted``: its
    tasks, where the scheduler's records tell."""

    def __init__(self, events: Iterable[Event], world: int | None, counted: int | None) -> None:
        most, launched = -1, False
        for event in events:
            launched = (
                launched or event.kind in LAUNCHERS or bool(LAUNCHING & {event.get("source"), event.get("command")})
            )
            most = max([most, *_numbers(event)])
        counted = counted if counted is None or counted > most else None  # srun can start more than were asked for
        tasks = counted if counted is not None else world
        self.are_ranks = not launched and world is not None and tasks == world and most < world
        if counted is None and world is not None:
            self.are_ranks &= 2 * (most + 1) > world

    def ranked(self, event: Event) -> Event:
        """The event with its task's rank, where it has none and is of one task."""
        if not self.are_ranks or event.rank is not None:
            return event
        told = _numbers(event)
        return replace(event, rank=told[0]) if len(told) == 1 else event


def _numbers(event: Event) -> list[int]:
    """The tasks of an event: ``0,2-5`` as srun writes them; none of other launchers' own numbers."""
    text = event.get("task")
    if text is None or (event.kind == "process_exit" and event.get("source") != "srun"):
        return []
    found: list[int] = []
    for part in str(text).split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or "0").isdecimal() or len(part) > 15:
            return []
        found += range(int(first), min(int(last or first), int(first) + MOST) + 1)
    return found
