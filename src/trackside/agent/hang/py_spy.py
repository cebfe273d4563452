"""Python stacks of a process by :command:`py-spy`, which runs as a child for a few seconds at most."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trackside.agent.pseudo_files import readable
from trackside.agent.user import capabilities
from trackside.catalog.hang_lines import MAX_NATIVE_FRAMES, Thread, native_name, place_of
from trackside.catalog.python_stack import Call, job_call
from trackside.command import Command, CommandStopped
from trackside.errors import TracksideError

MOST_BYTES = 4 << 20
"""Of what it prints: native stacks of a hundred threads are as much."""
MOST_THREADS = 64
"""Of a process that are kept, the main thread first."""


class NoStack(TracksideError):
    """Why there is none, in a line."""


def program(named: str = "") -> str | None:
    """Where it is: as given, beside this Python, or on PATH."""
    if named:
        return named if os.access(named, os.X_OK) else None
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def stacks(
    path: str, pid: int, *, timeout_s: float, native: bool = False, nonblocking: bool = False
) -> tuple[Thread, ...]:
    """The stacks of a process, its main thread's first. Raises NoStack.

    It attaches by ptrace and lets go after some milliseconds, even where it is killed; ``nonblocking`` never stops the
    process, and can't give native frames.
    """
    command = [path, "dump", "--json", "--pid", str(pid)]
    command += ["--nonblocking"] if nonblocking else ["--native"] if native else []
    try:
        threads = [_thread(each, pid) for each in json.loads(_output(command, timeout_s)) if each["frames"]]
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise NoStack(f"py-spy printed what is not read: {type(error).__name__}") from error
    if not threads:
        raise NoStack("py-spy saw no Python thread")
    return tuple(sorted(threads, key=lambda each: (each.tid != pid, each.tid))[:MOST_THREADS])


@dataclass(frozen=True, slots=True)
class _Frame:
    name: str
    file: str
    short: str
    line: int
    native: bool


def _frame(told: Mapping[str, Any]) -> _Frame:
    file = str(told["filename"])
    short = str(told.get("short_filename") or file)
    return _Frame(str(told["name"]), file, short, int(told["line"]), told.get("module") is not None)


def _thread(told: Mapping[str, Any], pid: int) -> Thread:
    frames = [_frame(each) for each in told["frames"]]
    python = [frame for frame in frames if not frame.native]
    inner = next((place for place, frame in enumerate(frames) if not frame.native), len(frames))
    own = job_call([Call(frame.name, frame.file, frame.line) for frame in python])
    shown = [Call(frame.name, frame.short, frame.line) for frame in python]
    place = ""
    if own is not None:
        at = next(n for n, frame in enumerate(python) if (frame.name, frame.file) == (own.name, own.file))
        place = place_of(shown[at])
    doing = "running" if told.get("owns_gil") else "active" if told.get("active") else "idle"
    native = tuple(native_name(frame.name) for frame in frames[:inner][:MAX_NATIVE_FRAMES])
    tid = int(told.get("os_thread_id") or pid)
    name = str(told.get("thread_name") or ("MainThread" if tid == pid else "?"))  # known once ``threading`` is imported
    return Thread(tid, name, doing, place, tuple(shown), native)


def _output(arguments: Sequence[str], timeout_s: float) -> bytes:
    """What a program prints, bounded in time and size. Raises NoStack."""
    env = {"PATH": os.environ.get("PATH", ""), "RUST_BACKTRACE": "0"}
    command = Command(arguments, timeout_s=timeout_s, max_bytes=MOST_BYTES, env=env)
    try:
        output = b"".join(command.output())
    except OSError as error:
        raise NoStack(f"py-spy can't be started: {error.strerror or error}") from error
    except CommandStopped as stop:
        too_late, too_much = f"took more than {timeout_s:g} s", f"printed more than {MOST_BYTES >> 20} MiB"
        raise NoStack(f"py-spy {too_late if stop.reason == 'timeout' else too_much} and was ended") from None
    if command.status:
        raise NoStack(reason(command.errors.decode("utf-8", "replace")))
    return output


def reason(said: str) -> str:
    """Why it failed, by its own words; what would help where it may not."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    lowered = said.lower()
    if "permission denied" in lowered or "operation not permitted" in lowered:
        return f"the process may not be looked into: {may_not()}"
    if "no such process" in lowered or "failed to open process" in lowered:
        return "the process has ended or is no Python"
    first = next((line for line in lines if not line.startswith(("Error:", "Caused by", "Stack"))), "")
    head = lines[0].removeprefix("Error: ") if lines else "no word of why"
    return f"py-spy: {head}" + (f" ({first.removeprefix('0: ')})" if first and first != head else "")


def may_not(status: Path = Path("/proc/self/status"), yama: Path = Path("/proc/sys/kernel/yama/ptrace_scope")) -> str:
    """What keeps this process from looking into another."""
    scope = readable(yama).decode().strip()
    if "CAP_SYS_PTRACE" not in capabilities(status):
        limit = f" (kernel.yama.ptrace_scope is {scope})" if scope not in ("", "0") else ""
        return f"give the agent CAP_SYS_PTRACE{limit}"
    if scope == "3":
        return "kernel.yama.ptrace_scope is 3, which forbids it to everybody until the next boot"
    return "it is in another user namespace or a sandbox that forbids ptrace"
