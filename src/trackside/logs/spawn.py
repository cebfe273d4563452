"""Launchers that report a dead worker by an exception of their own: torch.multiprocessing.spawn (also Lightning's
spawn strategies), torch.distributed.launch and accelerate."""

from __future__ import annotations

import re

from trackside.catalog.signals import Exit, read_code, signal_number
from trackside.logs import exits
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event

_SPAWNED = re.compile(r"[Pp]rocess (\d{1,6}) terminated with (?:signal (SIG\w{2,8})|exit code (-?\d{1,5}))")
_RAISED = re.compile(r"-- Process (\d{1,6}) terminated with the following error:")
_DIED = re.compile(r"died with <Signals\.(SIG\w{2,8}): (\d{1,2})>")
_STATUS = re.compile(r"returned non-zero exit status (\d{1,3})")
_TRAINS = re.compile(r"python|\.py\b|torchrun|deepspeed|accelerate")
_LOCAL = re.compile(r"--local[-_]rank[= ',]{1,4}(\d{1,4})")
MAX_TRACEBACK_LINES = 30
"""Lines above the last one of a traceback that are searched."""

PARSER = Parser("spawn", "torch.multiprocessing.spawn, torch.distributed.launch, accelerate launch", "system")


@PARSER.pattern(
    rb"rocess [0-9]{1,6} terminated with (signal SIG|exit code |the following error:)",
    safety="A signal is a cause unless the run was already being ended; an exit code or a raised exception only "
    "confirms.",
    matches=(
        "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL",
        "Exception: process 0 terminated with exit code 1",
        "-- Process 2 terminated with the following error:",
    ),
    avoids=("process 1 terminated with success", "the process terminated with signal loss"),
)
def _spawn_failure(line: Line) -> Event | None:
    if match := _RAISED.search(line.text):
        return _failure(line, "spawn", Exit(code=1), int(match[1]))
    match = _SPAWNED.search(line.text)
    if match is None:
        return None
    end = Exit(signal=signal_number(match[2])) if match[2] else read_code(int(match[3]))
    return _failure(line, "spawn", end, int(match[1]))


@PARSER.pattern(
    rb"CalledProcessError: Command '",
    r"Command '\[?(?P<command>.{0,2000})",
    safety="Only commands that start Python or a launcher: a failing git, nvcc or tar is another exception.",
    matches=(
        (
            "subprocess.CalledProcessError: Command '['/opt/conda/bin/python', '-u', 'train.py', "
            "'--local_rank=7']' died with <Signals.SIGSEGV: 11>."
        ),
        "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.",
    ),
    avoids=(
        "subprocess.CalledProcessError: Command '['git', 'rev-parse', 'HEAD']' returned non-zero exit status 128.",
        "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.",
        "subprocess.CalledProcessError: Command '['which', 'nvcc']' died with <Signals.SIGSEGV: 11>.",
    ),
)
def _called_process_failure(line: Line, command: re.Match[str]) -> Event | None:
    if not _TRAINS.search(command["command"]):
        return None
    if match := _DIED.search(line.text):
        end = Exit(signal=int(match[2]))
    elif match := _STATUS.search(line.text):
        end = read_code(int(match[1]))
    else:
        return None
    local = _LOCAL.search(command["command"])
    if "torchrun" in command["command"] or "torch.distributed.run" in command["command"]:
        return _failure(line, "torchrun", end, None, first=None)  # a wrapper's report on the whole launcher
    return _failure(line, _launcher_above(line), end, int(local[1]) if local else None)


def _launcher_above(line: Line) -> str:
    """The launcher whose traceback is above the line."""
    for neighbor in line.preceding(MAX_TRACEBACK_LINES):
        if "accelerate/commands" in neighbor.text:
            return "accelerate"
        if "torch/distributed/launch" in neighbor.text:
            break
        if neighbor.text.startswith("Traceback "):
            break
    return "torch.distributed.launch"


def _failure(line: Line, launcher: str, end: Exit, local_rank: int | None, first: bool | None = True) -> Event:
    """The launcher's report about one worker."""
    return line.event(
        "launcher_failure",
        exits.role_of(line, end.signal, first=True),
        launcher=launcher,
        local_rank=local_rank,
        exit_code=end.code,
        signal=end.signal,
        signal_name=end.signal_name,
        first=first,
    )
