"""Python stacks of a process by :command:`py-spy`, run as a child process with a time limit."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trackside.agent.pseudo_files import read_or_empty
from trackside.agent.user import capabilities
from trackside.catalog.hang_lines import MAX_NATIVE_FRAMES, ThreadStack, native_name, place_of
from trackside.catalog.python_stack import Call, job_call
from trackside.command import Command, CommandStopped
from trackside.errors import TracksideError

MAX_OUTPUT_BYTES = 4 << 20
"""Limit of py-spy's output, enough for native stacks of a hundred threads."""
MAX_THREADS = 64
"""Threads kept per process, main thread first."""


class StackUnavailable(TracksideError):
    """Why a stack could not be read, in one line."""


def program(path: str = "") -> str | None:
    """The path of py-spy: as configured, next to this Python, or on PATH; None if not found."""
    if path:
        return path if os.access(path, os.X_OK) else None
    local_path = Path(sys.executable).parent / "py-spy"
    return str(local_path) if os.access(local_path, os.X_OK) else shutil.which("py-spy")


def stacks(
    path: str, pid: int, *, timeout_s: float, native: bool = False, nonblocking: bool = False
) -> tuple[ThreadStack, ...]:
    """The stacks of a process, the main thread's first. Raises StackUnavailable.

    py-spy attaches by ptrace and detaches after some milliseconds, even if it is killed. ``nonblocking`` never stops
    the process, but gives no native frames.
    """
    command = [path, "dump", "--json", "--pid", str(pid)]
    command += ["--nonblocking"] if nonblocking else ["--native"] if native else []
    try:
        threads = [_thread(thread, pid) for thread in json.loads(_output(command, timeout_s)) if thread["frames"]]
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise StackUnavailable(f"unexpected output of py-spy: {type(error).__name__}") from error
    if not threads:
        raise StackUnavailable("py-spy found no Python thread")
    return tuple(sorted(threads, key=lambda thread: (thread.tid != pid, thread.tid))[:MAX_THREADS])


@dataclass(frozen=True, slots=True)
class _Frame:
    name: str
    file: str
    short: str
    line: int
    native: bool


def _frame(data: Mapping[str, Any]) -> _Frame:
    file = str(data["filename"])
    short = str(data.get("short_filename") or file)
    return _Frame(str(data["name"]), file, short, int(data["line"]), data.get("module") is not None)


def _thread(data: Mapping[str, Any], pid: int) -> ThreadStack:
    frames = [_frame(frame) for frame in data["frames"]]
    python = [frame for frame in frames if not frame.native]
    first_python = next((index for index, frame in enumerate(frames) if not frame.native), len(frames))
    job_frame = job_call([Call(frame.name, frame.file, frame.line) for frame in python])
    calls = [Call(frame.name, frame.short, frame.line) for frame in python]
    location = ""
    if job_frame is not None:
        index = next(
            n for n, frame in enumerate(python) if (frame.name, frame.file) == (job_frame.name, job_frame.file)
        )
        location = place_of(calls[index])
    activity = "running" if data.get("owns_gil") else "active" if data.get("active") else "idle"
    native = tuple(native_name(frame.name) for frame in frames[:first_python][:MAX_NATIVE_FRAMES])
    tid = int(data.get("os_thread_id") or pid)
    name = str(data.get("thread_name") or ("MainThread" if tid == pid else "?"))  # set once ``threading`` is imported
    return ThreadStack(tid, name, activity, location, tuple(calls), native)


def _output(arguments: Sequence[str], timeout_s: float) -> bytes:
    """The output of a program, limited in time and size. Raises StackUnavailable."""
    env = {"PATH": os.environ.get("PATH", ""), "RUST_BACKTRACE": "0"}
    command = Command(arguments, timeout_s=timeout_s, max_bytes=MAX_OUTPUT_BYTES, env=env)
    try:
        output = b"".join(command.output())
    except OSError as error:
        raise StackUnavailable(f"py-spy cannot be started: {error.strerror or error}") from error
    except CommandStopped as stop:
        too_late, too_much = f"took more than {timeout_s:g} s", f"printed more than {MAX_OUTPUT_BYTES >> 20} MiB"
        raise StackUnavailable(f"py-spy {too_late if stop.reason == 'timeout' else too_much} and was stopped") from None
    if command.status:
        raise StackUnavailable(reason(command.errors.decode("utf-8", "replace")))
    return output


def reason(errors: str) -> str:
    """Why py-spy failed, in its own words; and what would help if permission is missing."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    lowered = errors.lower()
    if "permission denied" in lowered or "operation not permitted" in lowered:
        return f"no permission to inspect the process: {ptrace_obstacle()}"
    if "no such process" in lowered or "failed to open process" in lowered:
        return "the process has ended or is not Python"
    first = next((line for line in lines if not line.startswith(("Error:", "Caused by", "Stack"))), "")
    head = lines[0].removeprefix("Error: ") if lines else "failed without a message"
    return f"py-spy: {head}" + (f" ({first.removeprefix('0: ')})" if first and first != head else "")


def ptrace_obstacle(
    status: Path = Path("/proc/self/status"), yama: Path = Path("/proc/sys/kernel/yama/ptrace_scope")
) -> str:
    """What prevents this process from tracing another, and the remedy."""
    scope = read_or_empty(yama).decode().strip()
    if "CAP_SYS_PTRACE" not in capabilities(status):
        limit = f" (kernel.yama.ptrace_scope is {scope})" if scope not in ("", "0") else ""
        return f"give the agent CAP_SYS_PTRACE{limit}"
    if scope == "3":
        return "kernel.yama.ptrace_scope is 3, which forbids ptrace for everyone until the next boot"
    return "the process is in another user namespace, or a sandbox forbids ptrace"
