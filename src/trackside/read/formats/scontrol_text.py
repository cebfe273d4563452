"""``scontrol show job``, ``show step`` and ``show node`` as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from trackside.catalog.slurm.columns import JOB_KEYS, JOB_LINES, JOB_REPEATED, NODE_KEYS, NODE_LINES, STEP_KEYS
from trackside.catalog.slurm.fields import job_ids, job_record, node_record, step_record
from trackside.catalog.slurm.values import known
from trackside.model import Record
from trackside.read.format import Format, Match, Result, Sink, Source, give
from trackside.read.slurm_blocks import blocks
from trackside.read.slurm_table import first_lines

Lines = Iterable[tuple[int, int, str]]
"""Number, offset and text of each."""


def _first(source: Source) -> str:
    lines = first_lines(source.text, 1)
    return lines[0] if lines else ""


def _sniff_jobs(source: Source) -> Match | None:
    found = re.match(r"JobId=\d+ .{0,400}?(?:JobName|ArrayJobId|HetJobId|PackJobId)=", _first(source))
    return Match(0.96, "scontrol show job") if found else None


def _sniff_steps(source: Source) -> Match | None:
    return Match(0.95, "scontrol show step") if re.match(r"StepId=\d+\S* UserId=", _first(source)) else None


def _sniff_nodes(source: Source) -> Match | None:
    first = _first(source)
    if not re.match(r"NodeName=\S+ (?:Arch=|CoresPerSocket=|NodeAddr=)", first):
        return None
    return Match(0.95, "scontrol show node") if " State=" in source.text else None


def jobs_in(lines: Lines, path: str) -> Iterator[Record]:
    """The jobs of these lines of an input."""
    for block in blocks(lines, "JobId", JOB_KEYS, JOB_LINES, JOB_REPEATED):
        text = f"{block.text.strip()} JobState={block.get('JobState')} ExitCode={block.get('ExitCode')}"
        get = block.values.get
        fields = job_record("scontrol", get, **job_ids("scontrol", get), source="scontrol")
        yield Record("job", block.at(path), "scheduler", fields, text)


def steps_in(lines: Lines, path: str) -> Iterator[Record]:
    """The steps of these lines of an input."""
    for block in blocks(lines, "StepId", STEP_KEYS):
        fields = step_record("scontrol", block.values.get, block.get("StepId"), source="scontrol")
        yield Record("step", block.at(path), "scheduler", fields, block.text)


def nodes_in(lines: Lines, path: str) -> Iterator[Record]:
    """The nodes of these lines of an input."""
    for block in blocks(lines, "NodeName", NODE_KEYS, NODE_LINES):
        get, reason = block.values.get, known(block.get("Reason"))
        fields = node_record("scontrol", get, get("NodeName", ""), get("State"), source="scontrol")
        text = f"NodeName={block.get('NodeName')} State={block.get('State')}" + (f" Reason={reason}" if reason else "")
        yield Record("node", block.at(path), "scheduler", fields, text)


def _reader(records_in: Callable[[Lines, str], Iterator[Record]]) -> Callable[[Source, Sink], Result]:
    """A format's ``read``."""

    def read(source: Source, sink: Sink) -> Result:
        return Result(give(records_in(source.lines(), source.path), sink))

    return read


FORMATS = (
    Format("scontrol-job", "scontrol show job", "scheduler", _sniff_jobs, _reader(jobs_in)),
    Format("scontrol-step", "scontrol show step", "scheduler", _sniff_steps, _reader(steps_in)),
    Format("scontrol-node", "scontrol show node", "scheduler", _sniff_nodes, _reader(nodes_in)),
)
