"""Events that an agent parsed from a job's output on its node, one per line; the output itself stays on the node."""

from __future__ import annotations

import re
from dataclasses import replace

from trackside.catalog.streams import node_in
from trackside.logs.event_line import MARK, Pulse, parse_event
from trackside.logs.prefixes import COLLECTOR
from trackside.logs.stamp import find_time, has_zone
from trackside.model import Event, Position
from trackside.read.format import Format, InputSource, Match, Result, Sink
from trackside.read.formats.job_log import rank_of

_BEGINNING = re.compile(b"(?:" + COLLECTOR.regex.pattern + b")?" + re.escape(MARK.encode()) + rb"\{")


def _sniff(source: InputSource) -> Match | None:
    return Match(0.95, "events parsed on the node") if _BEGINNING.match(source.head) else None


def _read(source: InputSource, sink: Sink) -> Result:
    rank, node = rank_of(source.path), node_in(source.path)
    first: float | None = None
    last: float | None = None
    number = unknown_lines = 0
    zoned = False
    pulse = Pulse(0, 0)
    for number, offset, line in source.lines():
        before, mark, event_text = line.partition(MARK)
        time = find_time(before)
        zoned = zoned or has_zone(before)
        first, last = (time if first is None else first), (last if time is None else time)
        item = (
            parse_event(event_text, Position(source.path, number, offset, len(line.encode())), before=before)
            if mark
            else None
        )
        if isinstance(item, Event):
            sink.event(replace(item, rank=rank if item.rank is None else item.rank, node=item.node or node))
        elif isinstance(item, Pulse):
            pulse = item
        else:
            unknown_lines += 1
    fields = {
        "first_time": first,
        "last_time": last,
        "zoned": zoned or None,
        "lines": pulse.lines or number,
        "bytes": pulse.bytes or None,
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
    return Result(number, note=f"{unknown_lines:,} lines without a known event" if unknown_lines else "")


FORMAT = Format("typed-events", "events that an agent parsed from job output", "log", _sniff, _read)
