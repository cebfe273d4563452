"""torchrun and torchelastic: failure summaries, worker exits, teardown signals, restarts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trackside.catalog.signals import Exit, read_code, signal_name, signal_number
from trackside.logs import exits
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.logs.stamp import find_time
from trackside.model import Event, EventRole

LAUNCHER = "torchrun"

_RANK = re.compile(r"^\s*rank\s*:\s*(\d{1,6}) \(local_rank: (\d{1,4})\)")
LOOPBACK = re.compile(r"localhost\b|127\.0\.0\.|ip6-")
"""A name that every machine gives itself: no node of the job."""
_FIELD = re.compile(r"^\s*(time|host|exitcode|error_file|traceback|msg)\s*:\s?(.*)$")
_EXIT = re.compile(r"(-?\d{1,5})(?: \(pid: (\d{1,10})\))?")
_ITEM = re.compile(r"^\s*\[(\d{1,6})\]:\s*$")
_RESTART = re.compile(r"(\d{1,6})/(\d{1,6}) attempts left;\s+will restart worker group")
MAX_ITEM_LINES = 12
"""Lines around the rank line that an item of the summary can span, including other writers' lines between them."""


def _item_lines(line: Line) -> Iterator[Line]:
    """The lines of the same writer that belong to this line's item of a summary."""
    above = []
    for neighbor in line.preceding(MAX_ITEM_LINES):
        if neighbor.label != line.label:
            continue
        above.append(neighbor)
        if _ITEM.match(neighbor.text):
            break
    yield from reversed(above)
    for neighbor in line.following(MAX_ITEM_LINES):
        if neighbor.label == line.label:
            if _ITEM.match(neighbor.text) or neighbor.text.startswith(("---", "===", "***")):
                return
            yield neighbor


def _is_first_failure(line: Line) -> bool:
    """Whether a rank of a summary is its root cause: the launcher saw it fail first."""
    for neighbor in line.preceding(MAX_ITEM_LINES):
        if neighbor.label == line.label and "Root Cause" in neighbor.text:
            return True
        if neighbor.label == line.label and ("Failures:" in neighbor.text or _RANK.match(neighbor.text)):
            return False
    return False


PARSER = Parser("torchrun", "torchrun / torchelastic", "system")


@PARSER.pattern(
    rb"rank[ ]{0,8}: [0-9]{1,6} \(local_rank: ",
    _RANK,
    safety="Role by signal: a signal that the launcher sent is teardown; a plain exit code that is not the first "
    "failure is a cascade. Must not match a rank that logs its own local rank.",
    matches=(
        "  rank      : 3 (local_rank: 1)",
        "  rank: 0 (local_rank: 0)",
        "[rank3]:   rank      : 12 (local_rank: 4)",
    ),
    avoids=("rank 3 (local_rank 1) starts", "global rank: 3 of 8", "my rank : 3 (local_rank: x)"),
)
def _failed_rank(line: Line, match: re.Match[str]) -> Event:
    fields = {m[1]: m[2].strip() for neighbor in _item_lines(line) if (m := _FIELD.match(neighbor.text))}
    code = _EXIT.match(fields.get("exitcode", ""))
    end = read_code(int(code[1])) if code else Exit()
    pid = int(code[2]) if code and code[2] else None
    first = _is_first_failure(line)
    text = [line.text.strip(), *(f"{name}: {value}" for name, value in fields.items() if name != "error_file")]
    role = exits.role_of(line, end.signal, pid, first=first)
    if end.signal is None and not first:
        role = EventRole.CASCADE
    return line.event(
        "launcher_failure",
        role,
        rank=int(match[1]),
        node=None if LOOPBACK.match(fields.get("host", "")) else fields.get("host"),
        time=find_time(fields.get("time", "")),
        text="; ".join(text),
        launcher=LAUNCHER,
        global_rank=int(match[1]),
        local_rank=int(match[2]),
        exit_code=end.code,
        signal=end.signal,
        signal_name=end.signal_name,
        host=fields.get("host"),
        pid=pid,
        first=first,
        error_file=None if fields.get("error_file") in (None, "<N/A>") else fields["error_file"],
    )


@PARSER.pattern(
    rb"failed \(exitcode: -?[0-9]{1,5}\) local_rank: ",
    r"failed \(exitcode: (-?\d{1,5})\) local_rank: (\d{1,4}) \(pid: (\d{1,10})\) of (?:binary|fn): (\S+)",
    safety="The agent's own report on the first dead worker that it found; a plain exit code only confirms.",
    matches=(
        (
            "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 1 "
            "(pid: 8614) of binary: /usr/bin/python"
        ),
        (
            "E1121 08:35:25.883000 10083 torch/distributed/elastic/multiprocessing/api.py:1002] failed "
            "(exitcode: 1) local_rank: 0 (pid: 104) of binary: python3"
        ),
    ),
    avoids=("test failed (exitcode: 1)", "command failed (exitcode: x) local_rank: 0"),
)
def _worker_exit(line: Line, match: re.Match[str]) -> Event:
    return exits.process_exit(line, read_code(int(match[1])), LAUNCHER, int(match[3]), first=True, task=match[2])


@PARSER.pattern(
    rb"(Sending process [0-9]{1,10} closing signal |Closing process [0-9]{1,10} via signal )SIG",
    r"(?:Sending process (\d{1,10}) closing signal|Closing process (\d{1,10}) via signal) (\w{3,12})",
    safety="Always teardown: the agent ends the remaining workers; a later death of that pid is not a cause.",
    matches=(
        "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 123 closing signal SIGTERM",
        (
            "W1121 08:35:00.6 8161 torch/distributed/elastic/multiprocessing/api.py:900] Closing process "
            "8613 via signal SIGTERM"
        ),
    ),
    avoids=("Sending process closing signal", "sending closing remarks to process 12"),
)
def _closing_signal(line: Line, match: re.Match[str]) -> Event:
    pid, number = int(match[1] or match[2]), signal_number(match[3])
    exits.note_launcher_kill(line, pid)
    return _signal_event(line, number, pid)


@PARSER.pattern(
    rb"Unable to shutdown process [0-9]{1,10} via ",
    r"Unable to shutdown process (\d{1,10}) via \S{1,20}, forcefully exiting via (\S{1,20})",
    safety="Always teardown: the agent gave up waiting.",
    matches=("Unable to shutdown process 30645 via 15, forcefully exiting via 9",),
    avoids=("Unable to shutdown process pool via atexit",),
)
def _forced_kill(line: Line, match: re.Match[str]) -> Event:
    exits.note_launcher_kill(line, int(match[1]))
    return _signal_event(line, signal_number(match[2]), int(match[1]))


@PARSER.pattern(
    rb"( got signal: |death signal|Got termination signal: )",
    r"Process (?P<pid>\d{1,10}) got signal: (?P<one>[\w.]{1,20})"
    r"|Received (?P<two>[\w.]{1,20}) death signal|Got termination signal: (?P<three>[\w.]{1,20})",
    safety="Teardown: the agent itself was stopped; SIGINT is the user.",
    matches=(
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4021 got signal: 15",
        "Received 15 death signal, shutting down workers",
        "Received Signals.SIGTERM death signal, shutting down workers",
        "Received SIGINT death signal",
    ),
    avoids=("the sensor got signal: strong", "a death signal in the data"),
)
def _agent_signal(line: Line, match: re.Match[str]) -> Event | None:
    number = signal_number(match["one"] or match["two"] or match["three"])
    if number is None:
        return None
    exits.note_ending(line, "signal")
    if number == 2:
        return line.event("user_interrupt", EventRole.ROOT, by=LAUNCHER)
    return _signal_event(line, number, int(match["pid"]) if match["pid"] else None)


def _signal_event(line: Line, number: int | None, pid: int | None) -> Event:
    """A signal that the launcher sent or got."""
    name = None if number is None else signal_name(number)
    return line.event("signal_received", EventRole.TEARDOWN, signal=number, signal_name=name, pid=pid, by=LAUNCHER)


@PARSER.pattern(
    rb"will restart worker group",
    safety="A restart by the agent, not advice to restart.",
    matches=(
        "[default] Worker group FAILED. 3/3 attempts left; will restart worker group",
        "[default] Detected 1 new nodes from group_rank=0; will restart worker group",
    ),
    avoids=("we restart the worker group by hand",),
)
def _restart(line: Line) -> Event | None:
    if match := _RESTART.search(line.text):
        attempt = int(match[2]) - int(match[1]) + 1
        return line.event("launcher_restart", EventRole.CONFIRMATION, attempt=attempt, launcher=LAUNCHER)
    if "will restart worker group" in line.text:
        return line.event("launcher_restart", EventRole.CONFIRMATION, launcher=LAUNCHER)
    return None


@PARSER.pattern(
    rb"Setting OMP_NUM_THREADS environment variable for each process",
    safety="Printed once by the launcher when it starts several workers on a node.",
    matches=("Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid overload",),
    avoids=("OMP_NUM_THREADS=1",),
)
def _launcher_start(line: Line) -> Event | None:
    return (
        line.event("host", EventRole.OBSERVATION, command=LAUNCHER)
        if "OMP_NUM_THREADS environment" in line.text
        else None
    )
