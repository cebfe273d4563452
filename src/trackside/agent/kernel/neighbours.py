"""Several Slurm nodes on one machine share its kernel: a memory kill in another node's job is told by that node."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

REPORT = 500
"""Lines of one report of a kill, above the line that names the cgroup; it lists all processes of that."""
_GROUP = re.compile(r"oom-kill:.{0,2000}task_memcg=/(?:slurm_([^/]+)|(?:[^/,]+/)*([^/]+)_slurmstepd\.scope)/")
_PID = re.compile(r",pid=(\d+),")


def is_one_of_several(sys: Path, node: str) -> bool:
    """Whether Slurm's cgroups here are named after this very node. Where they are not, no name in a path is known to be
    another node's."""
    name, mount = glob.escape(node), sys / "fs/cgroup"
    patterns = (f"*/slurm_{name}", f"*/{name}_slurmstepd.scope", f"unified/*/{name}_slurmstepd.scope")
    return any(any(mount.glob(pattern)) for pattern in patterns)


def of_others(lines: Sequence[str], node: str) -> set[int]:
    """Places of the lines that report of memory kills in jobs of other nodes."""
    found: set[int] = set()
    for place, line in enumerate(lines):
        told = _GROUP.search(line) if line.startswith("oom-kill:") else None
        if told is None or (told[1] or told[2]) == node:
            continue
        found.add(place)
        found.update(_report_above(lines, place))
        pid = _PID.search(line)
        words = (f"process {pid[1]} ",) if pid is not None else ()
        found.update(_with(range(place + 1, min(len(lines), place + 10)), lines, words))
    return found


def _report_above(lines: Sequence[str], place: int) -> Iterable[int]:
    for at in range(place - 1, max(-1, place - 1 - REPORT), -1):
        if "invoked oom-killer" in lines[at]:
            return range(at, place)
    return ()


def _with(places: Iterable[int], lines: Sequence[str], words: Sequence[str]) -> Iterable[int]:
    return (at for at in places if any(word in lines[at] for word in words))
