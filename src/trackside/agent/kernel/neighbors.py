"""Several Slurm nodes on one machine share its kernel: each node reports only the out-of-memory kills of its own
jobs."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

MAX_REPORT_LINES = 500
"""Lines of an out-of-memory report above the line that names the cgroup; it lists all processes of the cgroup."""
_GROUP = re.compile(r"oom-kill:.{0,2000}task_memcg=/(?:slurm_([^/]+)|(?:[^/,]+/)*([^/]+)_slurmstepd\.scope)/")
_PID = re.compile(r",pid=(\d+),")


def shares_machine(sys: Path, node: str) -> bool:
    """Whether several Slurm nodes may share this machine: its cgroups then contain this node's name. Without it, cgroup
    paths do not identify a node."""
    name, mount = glob.escape(node), sys / "fs/cgroup"
    patterns = (f"*/slurm_{name}", f"*/{name}_slurmstepd.scope", f"unified/*/{name}_slurmstepd.scope")
    return any(any(mount.glob(pattern)) for pattern in patterns)


def lines_of_other_nodes(lines: Sequence[str], node: str) -> set[int]:
    """Indices of the lines about out-of-memory kills in jobs of other nodes."""
    indices: set[int] = set()
    for index, line in enumerate(lines):
        match = _GROUP.search(line) if line.startswith("oom-kill:") else None
        if match is None or (match[1] or match[2]) == node:
            continue
        indices.add(index)
        indices.update(_report_above(lines, index))
        pid = _PID.search(line)
        markers = (f"process {pid[1]} ",) if pid is not None else ()
        indices.update(_indices_containing(range(index + 1, min(len(lines), index + 10)), lines, markers))
    return indices


def _report_above(lines: Sequence[str], index: int) -> Iterable[int]:
    for other_index in range(index - 1, max(-1, index - 1 - MAX_REPORT_LINES), -1):
        if "invoked oom-killer" in lines[other_index]:
            return range(other_index, index)
    return ()


def _indices_containing(indices: Iterable[int], lines: Sequence[str], markers: Sequence[str]) -> Iterable[int]:
    return (other_index for other_index in indices if any(word in lines[other_index] for word in markers))
