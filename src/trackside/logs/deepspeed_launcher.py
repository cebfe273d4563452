"""DeepSpeed's launcher: world size, teardown, and the return code of the worker that failed."""

from __future__ import annotations

import re

from trackside.catalog.signals import read_code
from trackside.logs import exits
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

LAUNCHER = "deepspeed"
MAX_LINES_BELOW = 20
"""Lines below the last exit that are looked at: empty at the end of a log."""

PARSER = Parser("deepspeed-launcher", "DeepSpeed launcher", "system")


@PARSER.pattern(
    rb"exits with return code = -?[0-9]",
    r"exits with return code = (-?\d{1,5})",
    safety="The return code of the worker that failed first. The command is the one that was started last, so its "
    "local rank says nothing.",
    matches=(
        (
            "[2026-11-21 08:45:25,792] [ERROR] [launch.py:259:sigkill_handler] ['python3', '-u', "
            "'train.py', '--local_rank=1'] exits with return code = -9"
        ),
        "[ERROR] [launch.py:321:sigkill_handler] ['python', 'train.py', '--local_rank=0'] exits with return code = 1",
    ),
    avoids=("the tool exits with return code = ok",),
)
def _exit_event(line: Line, match: re.Match[str]) -> Event:
    end = read_code(int(match[1]))
    return line.event(
        "launcher_failure",
        exits.role_of(line, end.signal, first=True),
        launcher=LAUNCHER,
        exit_code=end.code,
        signal=end.signal,
        signal_name=end.signal_name,
        first=True,
    )


@PARSER.pattern(
    rb"Killing subprocess [0-9]",
    r"Killing subprocess (\d{1,10})\s*$",
    safety="Always teardown: printed for every worker once one has failed or the launcher got a signal.",
    matches=(
        "[2026-11-21 08:45:23,935] [INFO] [launch.py:253:sigkill_handler] Killing subprocess 9776",
        "Killing subprocess 123",
    ),
    avoids=("Killing subprocess 3 of the reaction network",),
)
def _kill_notice(line: Line, match: re.Match[str]) -> Event:
    exits.note_launcher_kill(line, int(match[1]))
    return line.event("signal_received", EventRole.TEARDOWN, pid=int(match[1]), by=LAUNCHER)


@PARSER.pattern(
    rb"Main process received SIG",
    safety="Teardown: somebody stopped the launcher.",
    matches=("Main process received SIGTERM, exiting", "Main process received SIGINT, exiting"),
    avoids=("Main process received signature",),
)
def _main_signal(line: Line) -> Event | None:
    if "Main process received SIG" not in line.text:
        return None
    exits.note_ending(line, "signal")
    if "SIGINT" in line.text:
        return line.event("user_interrupt", EventRole.ROOT, by=LAUNCHER)
    return line.event("signal_received", EventRole.TEARDOWN, signal=15, signal_name="SIGTERM", by=LAUNCHER)


@PARSER.pattern(
    rb" exits successfully",
    r"Process (\d{1,10}) exits successfully",
    safety="One worker's success says nothing about the others: the job has ended when all of them have exited.",
    matches=("[INFO] [launch.py:347:main] Process 9776 exits successfully.",),
    avoids=("the program exits successfully",),
)
def _success(line: Line, match: re.Match[str]) -> list[Event]:
    notes = line.notes(PARSER.id)
    pids: set[int] = notes.setdefault("pids", set())
    if len(pids) < exits.MAX_PIDS:
        pids.add(int(match[1]))
    events = [line.event("process_exit", EventRole.OBSERVATION, source=LAUNCHER, exit_code=0, pid=int(match[1]))]
    if _have_all_exited(pids, notes.get("world_size"), line):
        events.append(line.event("training_end", status="success", all_exited=True))
        pids.clear()
    return events


def _have_all_exited(pids: set[int], world_size: int | None, line: Line) -> bool:
    """Whether these are all processes of the job: as many as the launcher has named; if it has named no number, all of
    a sequence of process ids, at the end of the log."""
    if world_size is not None:
        return len(pids) == world_size
    in_sequence = len(pids) > 1 and max(pids) - min(pids) + 1 == len(pids)
    return in_sequence and not any(other.text.strip() for other in line.following(MAX_LINES_BELOW))


@PARSER.pattern(
    rb": ssh exited with exit code [0-9]",
    r"pdsh@[^:\s]{1,80}: ([^:\s]{1,80}): ssh exited with exit code (\d{1,3})",
    safety="pdsh reports a whole node's launcher: a CONFIRMATION, not a root cause, unless the code is a signal's.",
    matches=(
        "pdsh@head: n2: ssh exited with exit code 137",
        "pdsh@login1: gpu003: ssh exited with exit code 1",
    ),
    avoids=("scp: ssh exited with exit code 255",),
)
def _node_exit(line: Line, match: re.Match[str]) -> Event:
    return exits.process_exit(line, read_code(int(match[2])), "pdsh", node=match[1])


@PARSER.pattern(
    rb"nnodes=[0-9]{1,6}, num_local_procs=",
    r"nnodes=(\d{1,6}), num_local_procs=(\d{1,4})",
    safety="Launcher lines only; options of other programs look different.",
    matches=("[INFO] [launch.py:158:main] nnodes=1, num_local_procs=2, node_rank=0",),
    avoids=("--nnodes=2", "nnodes=2, num_local_procs=all"),
)
def _world_size(line: Line, match: re.Match[str]) -> Event:
    nodes, local = int(match[1]), int(match[2])
    line.notes(PARSER.id).update(world_size=nodes * local, pids=set())
    return line.event("host", EventRole.OBSERVATION, nnodes=nodes, local_world_size=local, world_size=nodes * local)


@PARSER.pattern(
    rb"(TorchBackend in DeepSpeed|torch distributed|torch\.distributed) with backend",
    r"(?:TorchBackend in DeepSpeed|torch distributed|torch\.distributed) with backend:? \w{1,12}",
    safety="Set-up begins; the line does not say that it finished.",
    matches=(
        "[INFO] [comm.py:637:init_distributed] Initializing TorchBackend in DeepSpeed with backend nccl",
        "[INFO] [distributed.py:37:init_distributed] Initializing torch distributed with backend: nccl",
    ),
    avoids=("torch distributed with backends of your choice",),
)
def _process_group_setup(line: Line, _: re.Match[str]) -> Event:
    return line.event("distributed_init", EventRole.OBSERVATION)
