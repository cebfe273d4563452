"""Lines of ``trackside agent --controller``: what happened to a job or a node, each with Slurm's own record of it.

    job 7 ended FAILED, exit code 1<TAB>JobId=7 JobName=train<TAB>...      scontrol show job, a tab between its lines
    step 7.0 accounted for as FAILED<TAB>JobID=7.0<TAB>State=FAILED<TAB>...  sacct, a tab between its columns
    node n3 is DOWN: bad fan [root@1795312000]<TAB>NodeName=n3 ...         scontrol show node

A store of logs, or the receiver, puts the time before each. What was true at one time and no more is told again later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from trackside.catalog.streams import streaming_node
from trackside.logs.line import FileContext, Line, as_written
from trackside.logs.slurm_history import PARSER, state_change
from trackside.model import Record
from trackside.read.format import Format, Match, Result, Sink, Source
from trackside.read.formats import sacct_text, scontrol_text
from trackside.read.slurm_table import Row, first_lines

_LINE = re.compile(
    r"(?:job|step|node) [\w.+\[\],:%-]{1,600} [a-z][^\t]{0,3000}\t(?P<record>(?P<key>JobId|JobID|NodeName)=.*)",
    re.DOTALL,
)
_TOLD = re.compile(r"(?:^|: |[FP] )(?:job|step|node) \S{1,600} [a-z][^\t\n]{0,3000}\t(?:JobId|JobID|NodeName)=")
MAJORITY = 0.8


def _sniff(source: Source) -> Match | None:
    lines = first_lines(source.text, 40)
    if source.head[-1:] not in (b"\n", b"") and len(lines) > 1:
        lines = lines[:-1]  # the head ends in its middle
    told = sum(1 for line in lines if _TOLD.search(line))
    if not told or told < MAJORITY * len(lines):
        return None
    return Match(0.97, "Slurm's jobs and nodes over time")


def _read(source: Source, sink: Sink) -> Result:
    headed = streaming_node(source.path) is not None
    context = FileContext(source.path, "scheduler", headed=headed)
    count = lost = 0
    for number, offset, text in source.lines():
        if not text.strip():
            continue
        raw = text.encode()
        line = Line(raw, 0, len(raw), number, offset, context)
        line.parser = PARSER.id
        if (event := state_change(line)) is not None:
            sink.event(event)
        found = _LINE.match(as_written(raw, headed))
        if found is None:
            lost += 1
            continue
        at = offset + len(raw) - len(found["record"].encode())
        for record in _records(found["key"], found["record"], number, at, source.path):
            known = record.get("as_of") is None and line.time is not None
            sink.record(replace(record, fields={**record.fields, "as_of": line.time}) if known else record)
            count += 1
    note = f"{lost:,} lines are none of the agent's" if lost else ""
    return Result(count, "partial" if lost else "read", note)


def _records(key: str, record: str, number: int, offset: int, path: str) -> Iterator[Record]:
    parts = record.split("\t")
    if key == "JobID":
        pairs = (part.partition("=") for part in parts)
        yield sacct_text.record_of(path, Row(number, offset, record, {name.lower(): value for name, _, value in pairs}))
        return
    block = [(number, offset, part if index == 0 else f"   {part}") for index, part in enumerate(parts)]
    yield from (scontrol_text.jobs_in if key == "JobId" else scontrol_text.nodes_in)(block, path)


FORMAT = Format("slurm-history", "Slurm's jobs and nodes over time, from the agent", "scheduler", _sniff, _read)
