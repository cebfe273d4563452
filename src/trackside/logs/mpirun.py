"""MPI launchers: Open MPI (mpirun, prterun), MPICH and Intel MPI (hydra), MPI_Abort."""

from __future__ import annotations

import re

from trackside.catalog.signals import Exit, read_code, signal_number
from trackside.logs import exits
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

LAUNCHER = "mpirun"

_DEATH_NOTICE = re.compile(
    r"noticed that process rank (?P<rank>\d{1,7}) with PID (?P<pid>\d{1,10}) on node (?P<node>\S{1,80}) "
    r"exited (?:on signal (?P<signal>\d{1,2})|.{0,60}?(?:status|code):? (?P<code>\d{1,3}))"
)
_CODE = re.compile(r"Exit code:\s+(-?\d{1,5})")
_HYDRA_END = re.compile(r"(?:EXIT CODE:|KILLED BY SIGNAL:) (-?\d{1,5})")
_DAEMON = re.compile(r"(?:Remote host|node):?\s+([\w.-]{1,80})")
MAX_LINES_AHEAD = 6
"""Lines below a report in which its details are looked for."""

PARSER = Parser("mpirun", "mpirun, prterun, hydra", "system")


@PARSER.pattern(
    rb"noticed that process rank [0-9]{1,7} with PID ",
    safety="A signal is a cause unless the run was already being ended.",
    matches=(
        "mpirun noticed that process rank 3 with PID 0 on node n1 exited on signal 9 (Killed).",
        "prterun noticed that process rank 1 with PID 9123 on node gpu-2 exited on signal 11 (Segmentation fault).",
    ),
    avoids=("we noticed that process rank 3 is slow",),
)
def _death_notice(line: Line) -> Event | None:
    text = " ".join(
        [line.text, *(neighbor.text.strip() for neighbor in line.following(2) if neighbor.label == line.label)]
    )
    match = _DEATH_NOTICE.search(text)
    if match is None:
        return None
    end = Exit(signal=int(match["signal"])) if match["signal"] else read_code(int(match["code"]))
    return _failure(line, end, int(match["rank"]), int(match["pid"]), match["node"], text)


@PARSER.pattern(
    rb"Process name: \[\[[0-9]{1,10},[0-9]{1,6}\],",
    r"Process name: \[\[\d{1,10},\d{1,6}\],(\d{1,7})\]",
    safety="The first process with a non-zero exit code: it confirms, it is not the cause.",
    matches=("  Process name: [[23456,1],3]",),
    avoids=("Process name: trainer",),
)
def _nonzero_exit(line: Line, match: re.Match[str]) -> Event:
    for neighbor in line.following(MAX_LINES_AHEAD):
        if code := _CODE.search(neighbor.text):
            return _failure(line, read_code(int(code[1])), int(match[1]), None, None, f"{line.text} {neighbor.text}")
    return _failure(line, Exit(), int(match[1]), None, None, line.text)


@PARSER.pattern(
    rb"PID [0-9]{1,10} RUNNING AT ",
    r"(?:RANK (\d{1,7}) )?PID (\d{1,10}) RUNNING AT (\S{1,80})",
    safety="MPICH's and Intel MPI's box about a dead rank; older releases do not name the rank.",
    matches=("=   RANK 3 PID 4711 RUNNING AT n1", "=   PID 4711 RUNNING AT n1\n=   EXIT CODE: 9"),
    avoids=("RANK 3 RUNNING AT full speed",),
)
def _hydra_report(line: Line, match: re.Match[str]) -> Event:
    end = Exit()
    for neighbor in line.following(MAX_LINES_AHEAD):
        if code := _HYDRA_END.search(neighbor.text):
            end = Exit(signal=int(code[1])) if "SIGNAL" in neighbor.text else _read_hydra_code(int(code[1]))
            break
    return _failure(line, end, int(match[1]) if match[1] else None, int(match[2]), match[3], line.text)


def _read_hydra_code(code: int) -> Exit:
    """MPICH prints a fatal signal's number as the exit code."""
    return Exit(signal=code) if code in (4, 6, 7, 8, 9, 11, 15) else read_code(code)


def _failure(line: Line, end: Exit, rank: int | None, pid: int | None, node: str | None, text: str) -> Event:
    """The launcher's report about one process."""
    pid = pid or None  # mpirun prints 0 for a process whose pid it does not know
    return line.event(
        "launcher_failure",
        exits.role_of(line, end.signal, pid, first=True),
        rank=rank,
        node=node,
        text=text.strip(),
        launcher=LAUNCHER,
        global_rank=rank,
        exit_code=end.code,
        signal=end.signal,
        signal_name=end.signal_name,
        host=node,
        pid=pid,
        first=True,
    )


@PARSER.pattern(
    rb"APPLICATION TERMINATED WITH THE EXIT STRING: ",
    r"EXIT STRING: ([A-Za-z /]{3,40}?)(?: \(signal (\d{1,2})\))?\s*$",
    safety="Names the signal that the box leaves out.",
    matches=("YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)",),
    avoids=("YOUR APPLICATION TERMINATED WITH THE EXIT STRING: none (x)",),
)
def _exit_string(line: Line, match: re.Match[str]) -> Event | None:
    number = int(match[2]) if match[2] else signal_number(match[1])
    if number is None:
        return None
    return exits.process_exit(line, Exit(signal=number), LAUNCHER)


@PARSER.pattern(
    rb"MPI_ABORT was invoked on rank [0-9]",
    r"MPI_ABORT was invoked on rank (\d{1,7})",
    safety="The application aborted itself: confirms a failure that it names elsewhere; later deaths are teardown.",
    matches=("MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD",),
    avoids=("MPI_ABORT was not invoked",),
)
def _abort(line: Line, match: re.Match[str]) -> Event:
    exits.note_ending(line, "MPI_ABORT")
    return _failure(line, Exit(), int(match[1]), None, None, line.text)


@PARSER.pattern(
    rb"RTE has lost communication with a remote daemon",
    r"(?:ORTE|PRTE|PRRTE) has lost communication with a remote daemon",
    safety="Another node's daemon is gone: a cascade that points to that node.",
    matches=("ORTE has lost communication with a remote daemon.",),
    avoids=("DARTE has lost communication with a remote daemon",),
)
def _lost_daemon(line: Line, _: re.Match[str]) -> Event:
    for neighbor in line.following(MAX_LINES_AHEAD):
        if match := _DAEMON.search(neighbor.text):
            return line.event("peer_lost", EventRole.CASCADE, node=match[1], address=match[1], backend="mpi")
    return line.event("peer_lost", EventRole.CASCADE, backend="mpi")
