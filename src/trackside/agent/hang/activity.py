"""Activity of a rank's processes as the kernel reports it: CPU time, bytes, page faults, output, and thread states."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trackside.agent.hang.ranks import Rank
from trackside.agent.pseudo_files import key_values, read_or_empty
from trackside.catalog.hang_lines import ProcessState

TICKS = os.sysconf("SC_CLK_TCK")
MAX_PROCESSES = 64
"""Maximum helper processes read per rank: a data loader has up to a few dozen workers."""
MAX_THREADS = 512
"""Maximum threads read per process: libraries start a few dozen."""
_WAKE_BYTES = 8
"""Size of a write to an eventfd, which threads use to wake each other; over pipes it is one byte."""


@dataclass(frozen=True, slots=True)
class RankCounters:
    """Counters of one rank, since its processes started."""

    cpu_s: float = 0.0
    """CPU time of the rank's main process."""
    helpers_s: float = 0.0
    """CPU time of the processes that it started."""
    bytes: int | None = None
    """Bytes read and written by system calls, and read from disk for mapped files; None if they may not be read."""
    faults: int = 0
    written: tuple[int, int] | None = None
    """(bytes, calls) of ``write`` by the main process."""
    outputs: tuple[tuple[int, int, int], ...] | None = None
    """(inode, size, modification time in ns) of the files that are its standard output and error; None if unknown,
    empty if they are not files."""
    piped: bool = False
    """Whether either is a pipe, as under srun, where written output cannot be observed."""


@dataclass(frozen=True, slots=True)
class ProcessActivity:
    """What a rank did since the previous reading."""

    cpu_cores: float
    helper_cores: float
    bytes_per_s: float | None
    faults_per_s: float
    has_output: bool
    """Whether it wrote output."""


def read_counters(proc: Path, rank: Rank) -> RankCounters | None:
    """The counters of a rank; None if its process has ended."""
    main = _stat(proc, rank.main.pid)
    if main is None:
        return None
    cpu, faults = main
    helpers = 0.0
    bytes_, written = _io(proc, rank.main.pid)
    outputs, piped = _outputs(proc, rank.main.pid)
    for process in rank.helpers[:MAX_PROCESSES]:
        cpu_and_faults = _stat(proc, process.pid)
        if cpu_and_faults is None:
            continue
        helpers += cpu_and_faults[0]
        faults += cpu_and_faults[1]
        more_bytes, _ = _io(proc, process.pid)
        bytes_ = None if bytes_ is None or more_bytes is None else bytes_ + more_bytes
    return RankCounters(cpu, helpers, bytes_, faults, written, outputs, piped)


def activity_between(previous: RankCounters, current: RankCounters, seconds: float) -> ProcessActivity:
    """The difference of two readings. A helper that ended takes its CPU time with it; that counts as work."""
    elapsed_s = max(seconds, 1e-3)
    bytes_per_s = None
    if current.bytes is not None and previous.bytes is not None:
        bytes_per_s = abs(current.bytes - previous.bytes) / elapsed_s
    return ProcessActivity(
        max(0.0, current.cpu_s - previous.cpu_s) / elapsed_s,
        abs(current.helpers_s - previous.helpers_s) / elapsed_s,
        bytes_per_s,
        abs(current.faults - previous.faults) / elapsed_s,
        _has_output(previous, current),
    )


def state_of(proc: Path, rank: Rank, cores: float | None = None) -> ProcessState | None:
    """The state of a rank's process: of a thread in uninterruptible sleep if there is one, else of the main thread.
    None if it has ended."""
    folder = proc / str(rank.main.pid)
    try:
        threads = sorted((name for name in os.listdir(folder / "task") if name.isdigit()), key=int)[:MAX_THREADS]
    except OSError:
        return None
    states = {name: state for name in threads if (state := _state(folder / "task" / name)) is not None}
    if not states:
        return None
    main = str(rank.main.pid)
    chosen = next((name for name, state in states.items() if state == "D"), main if main in states else threads[0])
    thread_folder = folder / "task" / chosen
    wait = _text(thread_folder / "wchan")
    syscall = _text(thread_folder / "syscall").split(" ")[0]
    if wait in ("", "0"):  # fall back to the innermost kernel function of the stack; only root may read these files
        stack = _text(thread_folder / "stack").splitlines()
        wait = next((line.partition("] ")[2].partition("+")[0] for line in stack if "] " in line), "")
    return ProcessState(
        comm=rank.main.comm or "?",
        state=states.get(chosen, "S"),
        wait=wait,
        syscall=syscall if syscall.lstrip("-").isdigit() else "",
        cores=cores,
        threads=Counter(states.values()),
    )


def _state(folder: Path) -> str | None:
    fields = _text(folder / "stat").rpartition(")")[2].split()
    return fields[0] if fields else None


def _text(path: Path) -> str:
    return read_or_empty(path).decode("utf-8", "replace").strip()


def last_output_ns(all_counters: Iterable[RankCounters]) -> int | None:
    """POSIX time (ns) of the newest write to an output file; None if no rank has one."""
    return max((time for counters in all_counters for _, _, time in counters.outputs or ()), default=None)


def _has_output(previous: RankCounters, current: RankCounters) -> bool:
    if current.outputs is not None and previous.outputs is not None and current.outputs != previous.outputs:
        return True
    if not current.piped or current.written is None or previous.written is None:
        return False
    # A pipe only shows that something was written somewhere; wake-up writes are excluded by their sizes.
    size, calls = current.written[0] - previous.written[0], current.written[1] - previous.written[1]
    return size > 0 and size not in (calls, _WAKE_BYTES * calls)


def _stat(proc: Path, pid: int) -> tuple[float, int] | None:
    """CPU seconds and page faults."""
    fields = read_or_empty(proc / str(pid) / "stat").rpartition(b")")[2].split()
    if len(fields) < 13 or fields[0] == b"Z":
        return None
    return (int(fields[11]) + int(fields[12])) / TICKS, int(fields[7]) + int(fields[9])


def _io(proc: Path, pid: int) -> tuple[int | None, tuple[int, int] | None]:
    """Bytes moved; (bytes, calls) of ``write``."""
    text = read_or_empty(proc / str(pid) / "io")
    if not text:
        return None, None
    values = key_values(text, (b"rchar", b"wchar", b"read_bytes", b"syscw"))
    moved = sum(values.get(name, 0) for name in (b"rchar", b"wchar", b"read_bytes"))
    return moved, (values.get(b"wchar", 0), values.get(b"syscw", 0))


def _outputs(proc: Path, pid: int) -> tuple[tuple[tuple[int, int, int], ...] | None, bool]:
    files: dict[int, tuple[int, int, int]] = {}
    piped = False
    for descriptor in ("1", "2"):
        try:
            status = os.stat(proc / str(pid) / "fd" / descriptor)
        except FileNotFoundError:
            continue
        except OSError:
            return None, False
        piped = piped or not (stat.S_ISREG(status.st_mode) or stat.S_ISCHR(status.st_mode))
        if stat.S_ISREG(status.st_mode):
            files[status.st_ino] = status.st_ino, status.st_size, status.st_mtime_ns
    return tuple(files[inode] for inode in sorted(files)), piped
