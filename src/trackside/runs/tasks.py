"""Global ranks of srun's tasks, which its labels (``srun -l``) and its own words name.

A task is a rank where each GPU has a task of its own, and no launcher starts ranks beneath it. How many tasks there
were is in the scheduler's records, if at all; but a step's tasks are as many on every node, and divide its GPUs evenly,
so that more than half as many as there are GPUs are one for each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from trackside.model import Event

LAUNCHERS = frozenset({"launcher_failure", "launcher_restart"})
"""Kinds that only launchers of ranks bring about."""
LAUNCHING = frozenset({"torchrun", "deepspeed", "mpirun"})
"""What names such a launcher: the source of a process's exit, the command of a host."""


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


MOST = 100_000
"""Tasks of one line."""
