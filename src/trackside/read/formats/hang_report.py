"""What the agent took of processes that seemed to hang: their states, stacks and flight recorders, out of its lines."""

from __future__ import annotations

import base64
import binascii
import io
import zlib
from dataclasses import dataclass, field, replace

from trackside.catalog.hang_lines import MARK, Piece, Resumed, State, Thread, Who, read_line
from trackside.catalog.streams import is_printed, node_in
from trackside.logs.line import COLLECTED
from trackside.logs.stamp import find_time
from trackside.model import Event, Position, Scalar
from trackside.read.format import HEAD, Collected, Format, Match, Result, Sink, Source
from trackside.read.formats import flight_recorder
from trackside.read.plain_pickle import MAX_BYTES
from trackside.read.stacks import stack_fields

MOST_PIECES, MOST_DUMPS = 1024, 64
"""Of one file that are put together."""


def _sniff(source: Source) -> Match | None:
    lines = [COLLECTED.sub(b"", line, count=1) for line in source.head.split(b"\n") if line.strip()]
    ours = sum(1 for line in lines if line.startswith(MARK.encode()))
    if is_printed(source.path):
        return None  # a job may print the like of any job
    if lines and ours >= 0.9 * len(lines) and read_line(lines[0].decode("utf-8", "replace")) is not None:
        return Match(0.95, "the agent's lines on processes that seem to hang")
    return None


@dataclass(slots=True)
class _Dump:
    """Pieces of one dump of a flight recorder, by their numbers."""

    who: Who
    at: Position
    count: int
    parts: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Reading:
    """What was read so far. ``held``: events that a later line may take back."""

    source: Source
    sink: Sink
    held: list[Event] = field(default_factory=list)
    dumps: dict[tuple[Who, str], _Dump] = field(default_factory=dict)
    pieces: int = 0
    rows: int = 0
    notes: list[str] = field(default_factory=list)

    def line(self, at: Position, text: str, time: float | None) -> None:
        found = read_line(text)
        if found is None:
            return
        who, told = found
        if isinstance(told, (State, Thread)):
            self.held.append(self._event(who, told, at, text, time))
        elif isinstance(told, Resumed):
            self.give(told.after_s)
        elif isinstance(told, Piece) and self.pieces < MOST_PIECES:
            if (who, told.id) not in self.dumps and len(self.dumps) >= MOST_DUMPS:
                return
            dump = self.dumps.setdefault((who, told.id), _Dump(who, at, told.count))
            self.pieces += told.number not in dump.parts
            dump.parts[told.number] = told.data

    def _event(self, who: Who, told: State | Thread, at: Position, text: str, time: float | None) -> Event:
        fields: dict[str, Scalar | None] = {"pid": who.pid, "job": who.job}
        if isinstance(told, State):
            kind = "process_state"
            fields |= {"state": told.state, "comm": told.comm, "cores": told.cores}
            fields |= {"waits_in": told.wait or None, "syscall": told.syscall or None}
        else:
            kind = "stack"
            fields |= {"tid": told.tid, "thread": told.name}
            fields |= stack_fields(told.calls, told.native, told.place or None)
        known = {name: value for name, value in fields.items() if value is not None}
        node = node_in(self.source.path)
        return Event(kind, at, "trace", text[:4096], time, who.rank, node, parser="hang-report", fields=known)

    def give(self, resumed_s: int | None = None) -> None:
        """Hand on what is held: with when it went on, if it did."""
        for event in self.held:
            if resumed_s is not None:
                event = replace(event, fields={**event.fields, "resumed_s": resumed_s})
            self.sink.event(event)
        self.rows += len(self.held)
        self.held.clear()

    def recorders(self) -> None:
        """Read the dumps that are whole."""
        for dump in self.dumps.values():
            of = f"the flight recorder of rank {dump.who.rank}" if dump.who.rank is not None else "a flight recorder"
            if len(dump.parts) < dump.count:
                self.notes.append(
                    f"{of} is left out: {dump.count - len(dump.parts)} of its {dump.count} pieces are missing"
                )
                continue
            try:
                self.rows += self._recorder(dump)
            except ValueError as error:
                self.notes.append(f"{of} can't be read: {error}")

    def _recorder(self, dump: _Dump) -> int:
        """Read one as its own format does. Raises ValueError."""
        try:
            packed = base64.b64decode("".join(dump.parts[number] for number in sorted(dump.parts)), validate=True)
            unpacker = zlib.decompressobj()
            data = unpacker.decompress(packed, MAX_BYTES)
        except (binascii.Error, zlib.error) as error:
            raise ValueError(f"its pieces are damaged ({error})") from error
        if unpacker.unconsumed_tail or not unpacker.eof:
            raise ValueError("it is cut off or far too large")
        inner = Source(f"rank{dump.who.rank}" if dump.who.rank is not None else "dump", data[:HEAD], io.BytesIO(data))
        if flight_recorder.FORMAT.sniff(inner) is None:
            raise ValueError("it is no dump of a flight recorder")
        found = Collected()
        result = flight_recorder.FORMAT.read(inner, found)
        for record in found.records:  # where the first piece stands; their ordinals keep those of one dump apart
            at = replace(dump.at, offset=dump.at.offset + record.at.line - 1)
            self.sink.record(replace(record, at=at, fields={**record.fields, "job": dump.who.job}))
        return result.rows


def _read(source: Source, sink: Sink) -> Result:
    reading = _Reading(source, sink)
    for number, offset, raw in source.lines(limit=1 << 17):
        data = raw.encode("utf-8", "replace")
        head = COLLECTED.match(data)
        text = raw if head is None else data[head.end() :].decode("utf-8", "replace")
        if text.startswith(MARK):
            time = find_time(raw[: head.end()]) if head is not None else None
            reading.line(Position(source.path, number, offset, len(data)), text, time)
    reading.give()
    reading.recorders()
    return Result(reading.rows, "partial" if reading.notes else "read", "; ".join(reading.notes[:5]))


FORMAT = Format("hang-report", "states and stacks of processes that seem to hang", "trace", _sniff, _read)
