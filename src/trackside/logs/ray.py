"""Ray: kills by the memory monitor, dead workers and nodes."""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

_ADDRESS = re.compile(r"(?:IP: |address: |ip=)([\w.:-]{3,80})")
_USAGE = re.compile(r"was ([\d.]{1,12})GB / ([\d.]{1,12})GB")


def _node_name(line: Line) -> str | None:
    """The node that a line names, or None."""
    match = _ADDRESS.search(line.full)
    return match[1].rstrip(".,") if match else None


PARSER = Parser("ray", "Ray", "system")


@PARSER.pattern(
    rb"killed due to memory pressure \(OOM\)",
    r"(\d{1,7}) Workers \(tasks / actors\) killed due to memory pressure \(OOM\)",
    safety="A count of zero is a report of other crashes.",
    matches=(
        (
            "(raylet, ip=10.0.0.7) 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 "
            "Workers crashed due to other reasons at node (ID: 00, IP: 10.0.0.7) over the last time "
            "period."
        ),
        (
            "(raylet) [2026-01-09 07:23:59,445 E 395 395] (raylet) node_manager.cc:3049: 10 Workers "
            "(tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other "
            "reasons at node (ID: e5, IP: 10.0.62.231)"
        ),
    ),
    avoids=("0 Workers (tasks / actors) killed due to memory pressure (OOM), 2 Workers crashed due to other reasons",),
)
def _oom_summary(line: Line, match: re.Match[str]) -> Event | None:
    if int(match[1]) == 0:
        return None
    return line.event("oom_kill", EventRole.ROOT, node=_node_name(line), scope="ray", count=int(match[1]))


@PARSER.pattern(
    rb"(was killed due to the node running low on memory|Ray killed this worker)",
    safety="Ray's OutOfMemoryError is about host memory, never the GPU's.",
    matches=(
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        (
            "Memory on the node (IP: 10.0.0.7, ID: ab) where the task was running was 243.1GB / 251.5GB "
            "(0.96), which exceeds the memory usage threshold of 0.95. Ray killed this worker (ID: cd) "
            "because it was the most recently scheduled task"
        ),
    ),
    avoids=("the node is running low on memory",),
)
def _oom_kill(line: Line) -> Event:
    usage = _USAGE.search(line.text)
    used, limit = (int(float(usage[1]) * 2**30), int(float(usage[2]) * 2**30)) if usage else (None, None)
    return line.event("oom_kill", EventRole.ROOT, node=_node_name(line), scope="ray", rss_bytes=used, limit_bytes=limit)


@PARSER.pattern(
    rb"(Worker exit type: [A-Z]|worker died or was killed while executing)",
    safety="A worker that died without a message of its own; Ray's list of potential causes is not evidence.",
    matches=(
        "A worker died or was killed while executing a task by an unexpected system error.",
        (
            "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR "
            "Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file."
        ),
        "Worker exit type: NODE_OUT_OF_MEMORY",
    ),
    avoids=("Worker exit type: INTENDED_USER_EXIT",),
)
def _worker_death(line: Line) -> Event | None:
    if "NODE_OUT_OF_MEMORY" in line.text:
        return line.event("oom_kill", EventRole.ROOT, node=_node_name(line), scope="ray")
    if "INTENDED" in line.text:
        return None
    # "potential root causes ... SIGKILL by OOM killer" is a list of guesses: it is not evidence of a signal
    return line.event("process_exit", EventRole.ROOT, node=_node_name(line), source="ray")


@PARSER.pattern(
    rb"(marked dead because|the node it's running on died|The node was terminated|its node has died)",
    r"has been marked dead because|marked dead because the detector|the node it's running on died|"
    r"The node was terminated|its node has died",
    safety="Ray's own detector: heartbeats were missed.",
    matches=(
        (
            "The node with node id: ab and address: 10.0.0.7 and node name: 10.0.0.7 has been marked "
            "dead because the detector has missed too many heartbeats from it."
        ),
        "The actor died because its node has died. Node Id: ab",
    ),
    avoids=("the tree node was marked dead",),
)
def _dead_node(line: Line, _: re.Match[str]) -> Event:
    return line.event("node_state", EventRole.ROOT, node=_node_name(line), state="down", reason="marked dead by Ray")
