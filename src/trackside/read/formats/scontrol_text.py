"""``scontrol show job``, ``show step`` and ``show node`` as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from trackside.catalog.slurm.columns import JOB_KEYS, JOB_LINES, JOB_REPEATED, NODE_KEYS, NODE_LINES, STEP_KEYS
from trackside.catalog.slurm.fields import job_ids, job_record, node_record, step_record
from trackside.catalog.slurm.values import known_text
from trackside.model import Record
from trackside.read.format import Format, InputSource, Match, Result, Sink, give
from trackside.read.slurm_entries import entries
from trackside.read.slurm_table import first_lines

NumberedLines = Iterable[tuple[int, int, str]]
"""(number, offset, text) of each line."""


_PART = re.compile(r"\s{0,8}[A-Z][A-Za-z/:]{1,40}=\S*")
_KEYS = re.compile(r"(?:^|\s)([A-Z][A-Za-z/:]{1,40})=")


def jobs_in(lines: NumberedLines, path: str, *, begin_is_cut: bool = False) -> Iterator[Record]:
    """Yield the jobs in these lines of an input. ``begin_is_cut``: the first job may lack its first lines."""
    for entry in entries(lines, "JobId", JOB_KEYS, JOB_LINES, JOB_REPEATED, begin_is_cut=begin_is_cut):
        text = f"{entry.text.strip()} JobState={entry.get('JobState')} ExitCode={entry.get('ExitCode')}"
        get = entry.values.get
        fields = job_record("scontrol", get, **({"id": ""} | job_ids("scontrol", get)), source="scontrol")
        yield Record("job", entry.at(path), "scheduler", fields, text)


def _sniff_part(source: InputSource) -> Match | None:
    """A part of ``scontrol show job``: nothing but its lines, and its state among them."""
    lines = [line for line in source.text.splitlines()[:400] if line.strip()]
    if not any("JobState=" in line for line in lines) or not all(_PART.match(line) for line in lines):
        return None
    keys = {match[1] for line in lines for match in _KEYS.finditer(line)}
    return Match(0.85, "scontrol show job, in part") if len(keys & JOB_KEYS) >= 2 else None


def _read_part(source: InputSource, sink: Sink) -> Result:
    return Result(give(jobs_in(source.lines(), source.path, begin_is_cut=True), sink))


def steps_in(lines: NumberedLines, path: str) -> Iterator[Record]:
    """Yield the steps in these lines of an input."""
    for entry in entries(lines, "StepId", STEP_KEYS):
        fields = step_record("scontrol", entry.values.get, entry.get("StepId"), source="scontrol")
        yield Record("step", entry.at(path), "scheduler", fields, entry.text)


def nodes_in(lines: NumberedLines, path: str) -> Iterator[Record]:
    """Yield the nodes in these lines of an input."""
    for entry in entries(lines, "NodeName", NODE_KEYS, NODE_LINES):
        get, reason = entry.values.get, known_text(entry.get("Reason"))
        fields = node_record("scontrol", get, get("NodeName", ""), get("State"), source="scontrol")
        text = f"NodeName={entry.get('NodeName')} State={entry.get('State')}" + (f" Reason={reason}" if reason else "")
        yield Record("node", entry.at(path), "scheduler", fields, text)


def _format(
    id_: str,
    command: str,
    score: float,
    first_line_pattern: str,
    records_in: Callable[[NumberedLines, str], Iterator[Record]],
    required_text: str = "",
) -> Format:
    """The format of a command's output, recognized by the start of its first line and by text that it contains."""

    def sniff(source: InputSource) -> Match | None:
        first = "".join(first_lines(source.text, 1))
        return Match(score, command) if re.match(first_line_pattern, first) and required_text in source.text else None

    def read(source: InputSource, sink: Sink) -> Result:
        return Result(give(records_in(source.lines(), source.path), sink))

    return Format(id_, command, "scheduler", sniff, read)


FORMATS = (
    Format("scontrol-job-part", "scontrol show job, in part", "scheduler", _sniff_part, _read_part),
    _format(
        "scontrol-job",
        "scontrol show job",
        0.96,
        r"JobId=\d+ .{0,400}?(?:JobName|ArrayJobId|HetJobId|PackJobId)=",
        jobs_in,
    ),
    _format("scontrol-step", "scontrol show step", 0.95, r"StepId=\d+\S* UserId=", steps_in),
    _format(
        "scontrol-node",
        "scontrol show node",
        0.95,
        r"NodeName=\S+ (?:Arch=|CoresPerSocket=|NodeAddr=)",
        nodes_in,
        " State=",
    ),
)
