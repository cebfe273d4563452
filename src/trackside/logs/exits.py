"""The role of a process's end as evidence, given the log before it; shared by launchers, Slurm and shells.

A signal that the launcher or the scheduler sent is teardown; a SIGABRT by NCCL's watchdog is a cascade; an unexpected
fatal signal is a root cause.
"""

from __future__ import annotations

import re
from typing import Any

from trackside.catalog.signals import DESCRIPTIONS, Exit
from trackside.logs.line import Line
from trackside.model import Event, EventRole

_NOTES = "exits"
SIGNAL_TEXTS = "|".join(sorted((re.escape(text) for text in DESCRIPTIONS), key=len, reverse=True))
"""A regex for the texts that are printed for signals; match it case-insensitively."""
MAX_PIDS = 4_096
"""Process ids remembered per file."""


def note_ending(line: Line, reason: str) -> None:
    """Note that something outside ends the run from here on: a time limit, a cancellation, a preemption, a step's end.

    The first reason stays.
    """
    line.notes(_NOTES).setdefault("reason", reason)


def ending_reason(line: Line) -> str | None:
    """Why something outside was already ending the run; None if nothing was."""
    reason: str | None = line.notes(_NOTES).get("reason")
    return reason


def note_launcher_kill(line: Line, pid: int) -> None:
    """Note that the launcher itself signals this process: its death is teardown."""
    pids: set[int] = line.notes(_NOTES).setdefault("pids", set())
    if len(pids) < MAX_PIDS:
        pids.add(pid)


def note_watchdog_abort(line: Line) -> None:
    """Note that a watchdog is about to abort processes of this log: a later SIGABRT is a cascade."""
    line.notes(_NOTES)["abort"] = True


def role_of(line: Line, signal: int | None, pid: int | None = None, *, first: bool = False) -> EventRole:
    """The role of a process's death by this signal (None: by a plain exit code).

    ``first``: whether a launcher calls it the first failure that it saw.
    """
    notes = line.notes(_NOTES)
    if pid is not None and pid in notes.get("pids", ()):
        return EventRole.TEARDOWN
    if signal is None:
        return EventRole.CONFIRMATION
    if "reason" in notes:
        return EventRole.TEARDOWN
    if signal == 6 and notes.get("abort"):
        return EventRole.CASCADE
    if signal in (1, 2, 15):
        return EventRole.ROOT if first else EventRole.TEARDOWN
    if signal in (10, 12, 13, 14):
        return EventRole.CONFIRMATION
    return EventRole.ROOT


def process_exit(
    line: Line, end: Exit, source: str, pid: int | None = None, *, first: bool = False, **fields: Any
) -> Event:
    """The event of a process's end that ``source`` reports."""
    role = role_of(line, end.signal, pid, first=first)
    return line.event(
        "process_exit",
        role,
        source=source,
        exit_code=end.code,
        signal=end.signal,
        signal_name=end.signal_name,
        pid=pid,
        **fields,
    )
