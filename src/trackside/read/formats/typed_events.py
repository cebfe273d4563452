"""What an agent read of a job's output on its node, where the output itself stays there: one event a line."""

from __future__ import annotations

import re
from dataclasses import replace

from trackside.catalog.streams import node_in
from trackside.logs.event_line import MARK, Pulse, parse_event
from trackside.logs.line import COLLECTED
from trackside.logs.stamp import find_time
from trackside.model import Event, Position
from trackside.read.format import Format, Match, Result, Sink, Source
from trackside.read.formats.job_log import rank_of

_BEGINS = re.compile(COLLECTED.pattern.replace(b"^", b"(?:", 1) + b")?" + re.escape(MARK.encode()) + rb"\{")


def _sniff(source: Source) -> Match | None:
    return Match(0.95, "events read on the node") if _BEGINS.match(source.head) else None


def _read(source: Source, sink: Sink) -> Result:
    rank, node = rank_of(source.path), node_in(source.path)
    first: float | None = None
    last: float | None = None
    number = unread = 0
    size = Pulse(0, 0)
    for number, offset, line in source.lines():
        before, mark, rest = line.partition(MARK)
        time = find_time(before)
        first, last = (time if first is None else first), (last if time is None else time)
        told = (
            parse_event(rest, Position(source.path, number, offset, len(line.encode())), before=before)
            if mark
            else None
        )
        if isinstance(told, Event):
            sink.event(replace(told, rank=rank if told.rank is None else told.rank, node=told.node or node))
        elif isinstance(told, Pulse):
            size = told
        else:
            unread += 1
    fields = {
        "first_time": first,
        "last_time": last,
        "lines": size.lines or number,
        "bytes": size.bytes or None,
        "truncated": False,
    }
    sink.event(
        Event(
            "log_activity",
            Position(source.path, number),
            "log",
            time=last,
            rank=rank,
            node=node,
            parser="scan",
            fields={name: value for name, value in fields.items() if value is not None},
        )
    )
    return Result(number, note=f"{unread:,} lines are no events that are known" if unread else "")


FORMAT = Format("typed-events", "events that an agent read of job output", "log", _sniff, _read)
