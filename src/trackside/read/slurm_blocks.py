"""``Key=Value`` blocks as scontrol prints them: one a job, step or node, over several lines or on one (``-o``).

Values are not escaped and may hold blanks and ``=``; only a known key begins a new value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from trackside.read import slurm
from trackside.read.slurm_row import Row

MAX_BLOCK = 2_000
"""Lines of one block that are read."""

_KEY = re.compile(r"(?:^|(?<=\s))([A-Z][A-Za-z]{0,40}(?:[:/][A-Za-z:/]{1,20})?)=")


def blocks(
    lines: Iterable[tuple[int, int, str]],
    begin: str,
    keys: frozenset[str],
    to_line_end: frozenset[str] = frozenset(),
    repeated: frozenset[str] = frozenset(),
) -> Iterator[Row]:
    """The blocks that begin with ``begin=`` at a line's start.

    ``keys`` are those that end the value before them; the values of ``to_line_end`` keys run to the end
    of their line where the block has several. A key that comes again counts once, but for the ``repeated`` ones:
    all their values are kept, a line each.
    """
    block: list[tuple[int, int, str]] = []
    for each in lines:
        if each[2].startswith(f"{begin}="):
            if block:
                yield _block(block, keys, to_line_end, repeated)
            block = [each]
        elif block and len(block) < MAX_BLOCK:
            block.append(each)
    if block:
        yield _block(block, keys, to_line_end, repeated)


def job_of(block: Row) -> dict[str, slurm.Field]:
    """The fields of a job that scontrol and jobcomp write under one name."""
    get = block.get
    nodes = slurm.nodes_of(get("NodeList"))
    n_nodes = slurm.number_of((get("NumNodes", "NodeCnt") or "").partition("-")[0])
    state, by = slurm.state_of(get("JobState"))
    code, derived = slurm.exit_of(get("ExitCode")), slurm.exit_of(get("DerivedExitCode"))
    return {
        "raw_id": get("JobId"),
        "array_id": get("ArrayJobId"),
        "user": (get("UserId") or "").partition("(")[0],
        "uid": slurm.number_of((get("UserId") or "").partition("(")[2].rstrip(")")),
        "cluster": get("Cluster"),
        "partition": get("Partition"),
        "state": state,
        "cancelled_by": by,
        "exit_code": code[0] if code else None,
        "signal": code[1] if code else None,
        "derived_exit_code": derived[0] if derived else None,
        "submit": slurm.time_of(get("SubmitTime")),
        "eligible": slurm.time_of(get("EligibleTime")),
        "start": slurm.time_of(get("StartTime")),
        "end": slurm.time_of(get("EndTime")),
        "nodes": nodes,
        "n_nodes": n_nodes or len(nodes) or None,
        "failed_node": slurm.known(get("FailedNode")),
        "work_dir": slurm.known(get("WorkDir")),
    }


def job_id_of(block: Row) -> str | None:
    """A job's id as users write it: ``60_3`` for an array task, ``60_[4-9]`` for those that wait, ``73+0``."""
    array, task = block.get("ArrayJobId"), block.get("ArrayTaskId")
    het, part = block.get("HetJobId", "PackJobId"), block.get("HetJobOffset", "PackJobOffset")
    if array and task:
        number = task.partition("%")[0]
        return f"{array}_{number}" if number.isdecimal() else f"{array}_[{task}]"
    return f"{het}+{part}" if het and part else block.get("JobId")


def _block(
    lines: list[tuple[int, int, str]], keys: frozenset[str], to_line_end: frozenset[str], repeated: frozenset[str]
) -> Row:
    values: dict[str, str] = {}
    last = ""
    several = sum(1 for *_, text in lines if text.strip()) > 1
    for *_, text in lines:
        found = [match for match in _KEY.finditer(text) if match[1] in keys]
        if not found and text.strip() and last and not text.startswith("   "):
            values[last] += "\n" + text.strip()  # a line break inside a name
            continue
        for index, match in enumerate(found):
            whole = several and match[1] in to_line_end
            stop = len(text) if whole or index + 1 == len(found) else found[index + 1].start()
            last = match[1]
            value = text[match.end() : stop].strip()
            if last not in values:
                values[last] = value
            elif last in repeated:
                values[last] += "\n" + value
            if whole:
                break
    return Row(*lines[0], values)
