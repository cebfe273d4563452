"""What the processes of a rank do, as the kernel tells it from outside: CPU time, bytes, page faults, output; and the
state of its threads."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trackside.agent.hang.ranks import Rank
from trackside.agent.pseudo_files import keyed, readable
from trackside.catalog.hang_lines import State

TICKS = os.sysconf("SC_CLK_TCK")
MOST_PROCESSES = 64
"""Of one rank that are asked: a loader has up to a few dozen workers."""
MOST_THREADS = 512
"""Of one process that are looked at: libraries start a few dozen."""
_WAKE_BYTES = 8
"""What each write to an event descriptor holds, by which threads wake each other; through pipes it is one byte."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Counters of one rank, all since its processes began."""

    cpu_s: float = 0.0
    """Of the rank's own process."""
    helpers_s: float = 0.0
    """Of the processes that it started."""
    bytes: int | None = None
    """Read and written by system calls, and by the disk for mapped files; None where they may not be known."""
    faults: int = 0
    written: tuple[int, int] | None = None
    """Bytes and calls of ``write``, of its own process."""
    outputs: tuple[tuple[int, int, int], ...] | None = None
    """Inode, size and modification time (ns) of the files that are its standard output and error; None where these
    may not be known, empty where they are no files."""
    piped: bool = False
    """Either of them is a pipe, as under srun: what is written into it, nobody can see."""


@dataclass(frozen=True, slots=True)
class Doings:
    """What a rank did since the reading before."""

    cores: float
    helpers: float
    bytes_per_s: float | None
    faults_per_s: float
    spoke: bool
    """It wrote to its output."""


def counts(proc: Path, rank: Rank) -> Counts | None:
    """The counters of a rank; None where its process has ended."""
    main = _stat(proc, rank.main.pid)
    if main is None:
        return None
    cpu, faults = main
    helpers = 0.0
    bytes_, written = _io(proc, rank.main.pid)
    outputs, piped = _outputs(proc, rank.main.pid)
    for each in rank.others[:MOST_PROCESSES]:
        own = _stat(proc, each.pid)
        if own is None:
            continue
        helpers += own[0]
        faults += own[1]
        more, _ = _io(proc, each.pid)
        bytes_ = None if bytes_ is None or more is None else bytes_ + more
    return Counts(cpu, helpers, bytes_, faults, written, outputs, piped)


def since(before: Counts, now: Counts, seconds: float) -> Doings:
    """The difference. A helper that has ended takes its time with it: that counts as work."""
    length = max(seconds, 1e-3)
    bytes_ = None if now.bytes is None or before.bytes is None else abs(now.bytes - before.bytes) / length
    return Doings(
        max(0.0, now.cpu_s - before.cpu_s) / length,
        abs(now.helpers_s - before.helpers_s) / length,
        bytes_,
        abs(now.faults - before.faults) / length,
        _spoke(before, now),
    )


def state_of(proc: Path, rank: Rank, cores: float | None = None) -> State | None:
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
    if wait in ("", "0"):  # the innermost function of the kernel that it is in; only root may read these
        stack = _text(at / "stack").splitlines()
        wait = next((line.partition("] ")[2].partition("+")[0] for line in stack if "] " in line), "")
    return State(
        comm=rank.main.comm or "?",
        state=states.get(chosen, "S"),
        wait=wait,
        syscall=syscall if syscall.lstrip("-").isdigit() else "",
        cores=cores,
        threads=Counter(states.values()),
    )


def _state(folder: Path) -> str | None:
    found = _text(folder / "stat").rpartition(")")[2].split()
    return found[0] if found else None


def _text(path: Path) -> str:
    return readable(path).decode("utf-8", "replace").strip()


def last_output_ns(all_: Iterable[Counts]) -> int | None:
    """When the newest of the output files was written to; None where no rank has one."""
    return max((time for each in all_ for _, _, time in each.outputs or ()), default=None)


def _spoke(before: Counts, now: Counts) -> bool:
    if now.outputs is not None and before.outputs is not None and now.outputs != before.outputs:
        return True
    if not now.piped or now.written is None or before.written is None:
        return False
    # All that is told of a pipe is that something was written somewhere, and that it was no mere waking.
    size, calls = now.written[0] - before.written[0], now.written[1] - before.written[1]
    return size > 0 and size not in (calls, _WAKE_BYTES * calls)


def _stat(proc: Path, pid: int) -> tuple[float, int] | None:
    """CPU seconds and page faults."""
    fields = readable(proc / str(pid) / "stat").rpartition(b")")[2].split()
    if len(fields) < 13 or fields[0] == b"Z":
        return None
    return (int(fields[11]) + int(fields[12])) / TICKS, int(fields[7]) + int(fields[9])


def _io(proc: Path, pid: int) -> tuple[int | None, tuple[int, int] | None]:
    """Bytes moved; bytes and calls of ``write``."""
    text = readable(proc / str(pid) / "io")
    if not text:
        return None, None
    told = keyed(text, (b"rchar", b"wchar", b"read_bytes", b"syscw"))
    moved = sum(told.get(name, 0) for name in (b"rchar", b"wchar", b"read_bytes"))
    return moved, (told.get(b"wchar", 0), told.get(b"syscw", 0))


def _outputs(proc: Path, pid: int) -> tuple[tuple[tuple[int, int, int], ...] | None, bool]:
    found: dict[int, tuple[int, int, int]] = {}
    piped = False
    for descriptor in ("1", "2"):
        try:
            told = os.stat(proc / str(pid) / "fd" / descriptor)
        except FileNotFoundError:
            continue
        except OSError:
            return None, False
        piped = piped or not (stat.S_ISREG(told.st_mode) or stat.S_ISCHR(told.st_mode))
        if stat.S_ISREG(told.st_mode):
            found[told.st_ino] = told.st_ino, told.st_size, told.st_mtime_ns
    return tuple(found[inode] for inode in sorted(found)), piped
