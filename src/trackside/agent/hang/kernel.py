"""What the kernel says of a process's threads: state, where they sleep, and in which system call."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from trackside.agent.hang.ranks import Rank
from trackside.catalog.hang_lines import State

MOST_THREADS = 512
"""Of one process that are looked at: libraries start a few dozen."""
_IDLE = ("", "0")


@dataclass(frozen=True, slots=True)
class Told:
    """``stack``: functions of the kernel that the thread of ``state`` is in, innermost first; only root may read it."""

    state: State
    stack: tuple[str, ...] = ()


def seen(proc: Path, rank: Rank, cores: float | None = None) -> Told | None:
    """The state of a rank's process: that of its main thread, but of one that sleeps uninterruptibly if any does. None
    where it has ended."""
    folder = proc / str(rank.main.pid)
    try:
        threads = sorted((name for name in os.listdir(folder / "task") if name.isdigit()), key=int)[:MOST_THREADS]
    except OSError:
        return None
    states = {name: state for name in threads if (state := _state(folder / "task" / name)) is not None}
    if not states:
        return None
    main = str(rank.main.pid)
    chosen = next((name for name, state in states.items() if state == "D"), main if main in states else threads[0])
    at = folder / "task" / chosen
    wait = _text(at / "wchan")
    syscall = _text(at / "syscall").split(" ")[0]
    stack = tuple(
        line.partition("] ")[2].partition("+")[0] for line in _text(at / "stack").splitlines()[:16] if "] " in line
    )
    told = State(
        comm=rank.main.comm or "?",
        state=states.get(chosen, "S"),
        wait=wait if wait not in _IDLE else (stack[0] if stack else ""),
        syscall=syscall if syscall.lstrip("-").isdigit() else "",
        cores=cores,
        each=Counter(states.values()),
    )
    return Told(told, stack)


def _state(folder: Path) -> str | None:
    found = _text(folder / "stat", 1024).rpartition(")")[2].split()
    return found[0] if found else None


def _text(path: Path, most: int = 4096) -> str:
    """What may be read of a small file; empty where it may not."""
    try:
        with open(path, "rb") as file:
            return file.read(most).decode("utf-8", "replace").strip()
    except OSError:
        return ""
