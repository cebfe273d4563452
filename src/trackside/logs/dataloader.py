"""Deaths of data-loading workers, as the main process reports them (the worker itself cannot)."""

from __future__ import annotations

import re

from trackside.catalog.signals import signal_name, signal_number
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

_KILLED = re.compile(r"DataLoader worker \(pid (\d{1,8})\) is killed by signal: ([^.:\n]{1,40})")
_EXITED = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? ?([\d, ]{1,200})\) exited unexpectedly(?: with exit code (\d+))?"
)
_UNEXPECTED = re.compile(
    r"ERROR: Unexpected (bus error|segmentation fault|floating-point exception) encountered in worker"
)
_SIGNALS = {
    "killed": (9, "SIGKILL", "killed"),
    "bus error": (7, "SIGBUS", "bus_error"),
    "segmentation fault": (11, "SIGSEGV", "segfault"),
    "aborted": (6, "SIGABRT", "exited"),
    "floating-point exception": (8, "SIGFPE", "exited"),
    "floating point exception": (8, "SIGFPE", "exited"),
    "terminated": (15, "SIGTERM", "killed"),
    "interrupt": (2, "SIGINT", "killed"),
    "hangup": (1, "SIGHUP", "killed"),
}


def _read_signal(text: str) -> tuple[int | None, str | None, str]:
    """(number, name, reason) of a signal's description in any language."""
    if text in _SIGNALS or (number := signal_number(text)) is None:
        return _SIGNALS.get(text, (None, None, "killed"))
    names = {known[0]: known for known in _SIGNALS.values()}
    return names.get(number, (number, signal_name(number), "exited"))


PARSER = Parser("dataloader", "PyTorch data-loader workers", "system")


@PARSER.pattern(
    rb"DataLoader worker \(pid|encountered in worker",
    safety="Only a worker's death: an exception that a worker raised and handed over is not a death, and neither is "
    "the warning about too many workers.",
    matches=(
        "RuntimeError: DataLoader worker (pid 5487) is killed by signal: Killed. ",
        "RuntimeError: DataLoader worker (pid 5487) is killed by signal: Getötet. ",
        "RuntimeError: DataLoader worker (pid(s) 12, 13) exited unexpectedly",
        (
            "RuntimeError: DataLoader worker (pid 31) is killed by signal: Bus error. It is possible that "
            "dataloader's workers are out of shared memory. Please try to raise your shared memory limit."
        ),
        (
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared "
            "memory (shm)."
        ),
        (
            "RuntimeError: DataLoader worker (pid 77) exited unexpectedly with exit code 1. Details "
            "are lost due "
            "to multiprocessing."
        ),
    ),
    avoids=(
        "RuntimeError: Caught KeyError in DataLoader worker process 0.",
        "UserWarning: This DataLoader will create 16 worker processes in total. Our suggested max number is 8",
    ),
)
def _worker_death(line: Line) -> Event | None:
    if match := _KILLED.search(line.text):
        number, name, reason = _read_signal(match[2].strip().lower())
        role = EventRole.TEARDOWN if number in (1, 2, 15) else EventRole.ROOT
        return line.event("dataloader_death", role, pid=int(match[1]), signal=number, signal_name=name, reason=reason)
    if match := _EXITED.search(line.text):
        return line.event("dataloader_death", EventRole.ROOT, pid=match[1].strip().replace(" ", ""), reason="exited")
    if match := _UNEXPECTED.search(line.text):
        number, name, reason = _SIGNALS[match[1]]
        return line.event("dataloader_death", EventRole.ROOT, signal=number, signal_name=name, reason=reason)
    return None


@PARSER.pattern(
    rb"One of the subprocesses has abruptly died during map operation",
    safety="The datasets library's own sentence when a process of map(num_proc=N) vanishes.",
    matches=(
        (
            "RuntimeError: One of the subprocesses has abruptly died during map operation.To debug the error, "
            "disable multiprocessing."
        ),
    ),
    avoids=("Running map operation in 8 subprocesses",),
)
def _map_death(line: Line) -> Event:
    return line.event("dataloader_death", EventRole.ROOT, reason="exited")
