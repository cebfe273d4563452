"""Lines of ``trackside agent --controller``: events of a job or node, each followed by Slurm's own record of it.

    job 7 ended FAILED, exit code 1<TAB>JobId=7 JobName=train<TAB>...      scontrol show job, a tab between its lines
    step 7.0 accounted for as FAILED<TAB>JobID=7.0<TAB>State=FAILED<TAB>...  sacct, a tab between its columns
    node n3 is DOWN: bad fan [root@1795312000]<TAB>NodeName=n3 ...         scontrol show node

A log store or the receiver puts the time before each line. A record that has changed is sent again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from trackside.catalog.streams import streaming_node
from trackside.logs.line import FileContext, Line, strip_syslog_prefix
from trackside.logs.slurm_history import PARSER, state_change
from trackside.model import Record
from trackside.read.format import Format, InputSource, Match, Result, Sink
from trackside.read.formats import sacct_text, scontrol_text
from trackside.read.slurm_table import SlurmRow, first_lines

_LINE = re.compile(
    r"(?:job|step|node) [\w.+\[\],:%-]{1,600} [a-z][^\t]{0,3000}\t(?P<record>(?P<key>JobId|JobID|NodeName)=.*)",
    re.DOTALL,
)
_HISTORY_LINE = re.compile(r"(?:^|: |[FP] )(?:job|step|node) \S{1,600} [a-z][^\t\n]{0,3000}\t(?:JobId|JobID|NodeName)=")
MIN_SHARE = 0.8


def _sniff(source: InputSource) -> Match | None:
    lines = first_lines(source.text, 40)
    if source.head[-1:] not in (b"\n", b"") and len(lines) > 1:
        lines = lines[:-1]  # the last line of the head is incomplete
    matching = sum(1 for line in lines if _HISTORY_LINE.search(line))
    if not matching or matching < MIN_SHARE * len(lines):
        return None
    return Match(0.97, "Slurm jobs and nodes over time")


def _read(source: InputSource, sink: Sink) -> Result:
    is_streamed = streaming_node(source.path) is not None
    context = FileContext(source.path, "scheduler", has_syslog_prefix=is_streamed)
    count = foreign_lines = 0
    for number, offset, text in source.lines():
        if not text.strip():
            continue
        raw = text.encode()
        line = Line(raw, 0, len(raw), number, offset, context)
        line.parser = PARSER.id
        if (event := state_change(line)) is not None:
            sink.event(event)
        match = _LINE.match(strip_syslog_prefix(raw) if is_streamed else context.decode_line(raw))
        if match is None:
            foreign_lines += 1
            continue
        record_offset = offset + len(raw) - len(match["record"].encode())
        for record in _records(match["key"], match["record"], number, record_offset, source.path):
            needs_time = record.get("as_of") is None and line.time is not None
            sink.record(replace(record, fields={**record.fields, "as_of": line.time}) if needs_time else record)
            count += 1
    note = f"{foreign_lines:,} lines are not from the agent" if foreign_lines else ""
    return Result(count, "partial" if foreign_lines else "read", note)


def _records(key: str, record: str, number: int, offset: int, path: str) -> Iterator[Record]:
    parts = record.split("\t")
    if key == "JobID":
        pairs = (part.partition("=") for part in parts)
        yield sacct_text.record_of(
            path, SlurmRow(number, offset, record, {name.lower(): value for name, _, value in pairs})
        )
        return
    block = [(number, offset, part if index == 0 else f"   {part}") for index, part in enumerate(parts)]
    yield from (scontrol_text.jobs_in if key == "JobId" else scontrol_text.nodes_in)(block, path)


FORMAT = Format("slurm-history", "Slurm jobs and nodes over time, from the agent", "scheduler", _sniff, _read)
