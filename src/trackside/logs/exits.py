"""What the end of a process testifies to, given what its log told before: shared by launchers, Slurm and shells.

A signal that the launcher or the scheduler sent is teardown; SIGABRT of NCCL's watchdog is a cascade; a
fatal signal out of the blue is a cause.
"""

from __future__ import annotations

import re
from typing import Any

from trackside.catalog.signals import DESCRIPTIONS, Exit
from trackside.logs.line import Line
from trackside.model import Event, Role

_NOTES = "exits"
DEATHS = "|".join(sorted((re.escape(text) for text in DESCRIPTIONS), key=len, reverse=True))
"""Alternation of what is printed for a signal; match it caselessly."""
MEMORY = 4_096
"""Process ids remembered a file."""


def ending(line: Line, why: str) -> None:
    """The run is being ended from outside from here on: time limit, cancel, preemption, step terminated."""
    line.notes(_NOTES).setdefault("why", why)


def ended_by(line: Line) -> str | None:
    """Why the run was already ending, or None."""
    why: str | None = line.notes(_NOTES).get("why")
    return why


def launcher_kills(line: Line, pid: int) -> None:
    """The launcher signals this process itself."""
    pids: set[int] = line.notes(_NOTES).setdefault("pids", set())
    if len(pids) < MEMORY:
        pids.add(pid)


def watchdog_aborts(line: Line) -> None:
    """A watchdog is about to abort processes of this log with SIGABRT."""
    line.notes(_NOTES)["abort"] = True


def role_of(line: Line, signal: int | None, pid: int | None = None, *, first: bool = False) -> Role:
    """What the death of a process by this signal (None: a plain exit code) can testify to.

    ``first``: a launcher calls it the first failure that it saw.
    """
    notes = line.notes(_NOTES)
    if pid is not None and pid in notes.get("pids", ()):
        return Role.TEARDOWN
    if signal is None:
        return Role.CONFIRMATION
    if "why" in notes:
        return Role.TEARDOWN
    if signal == 6 and notes.get("abort"):
        return Role.CASCADE
    if signal in (1, 2, 15):
        return Role.ROOT if first else Role.TEARDOWN
    if signal in (10, 12, 13, 14):
        return Role.CONFIRMATION
    return Role.ROOT


def process_exit(
    line: Line, end: Exit, source: str, pid: int | None = None, *, first: bool = False, **told: Any
) -> Event:
    """The event of a process that ended so, as ``source`` tells it."""
    role = role_of(line, end.signal, pid, first=first)
    return line.event(
        "process_exit",
        role,
        source=source,
        exit_code=end.code,
        signal=end.signal,
        signal_name=end.signal_name,
        pid=pid,
        **told,
    )
