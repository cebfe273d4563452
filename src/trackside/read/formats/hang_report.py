"""The agent's hang reports: lines with states, stacks and flight recorder dumps of processes that seem to hang."""

from __future__ import annotations

import base64
import binascii
import io
import zlib
from dataclasses import dataclass, field, replace

from trackside.catalog.hang_lines import MARK, LineSubject, Piece, ProcessState, Resumption, ThreadStack, read_line
from trackside.catalog.streams import is_printed, node_in
from trackside.logs.prefixes import COLLECTOR, peel
from trackside.logs.stamp import find_time
from trackside.model import Event, Position, Scalar
from trackside.read.format import HEAD_BYTES, CollectingSink, Format, InputSource, Match, Result, Sink
from trackside.read.formats import flight_recorder
from trackside.read.plain_pickle import MAX_BYTES
from trackside.read.stacks import stack_fields

MAX_PIECES, MAX_DUMPS = 1024, 64
"""Maximum number of dump pieces and dumps of one file."""


def _sniff(source: InputSource) -> Match | None:
    lines = [peel(line, (COLLECTOR,)).text for line in source.head.split(b"\n") if line.strip()]
    own_lines = sum(1 for line in lines if line.startswith(MARK.encode()))
    if is_printed(source.path):
        return None  # a job could print such lines for any job
    if lines and own_lines >= 0.9 * len(lines) and read_line(lines[0].decode("utf-8", "replace")) is not None:
        return Match(0.95, "the agent's hang report")
    return None


@dataclass(slots=True)
class _Dump:
    """The pieces of one flight recorder dump, by number."""

    subject: LineSubject
    at: Position
    count: int
    parts: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Parser:
    """Parses one file. ``pending``: events that a later line may mark as resumed."""

    source: InputSource
    sink: Sink
    pending: list[Event] = field(default_factory=list)
    dumps: dict[tuple[LineSubject, str], _Dump] = field(default_factory=dict)
    pieces: int = 0
    rows: int = 0
    notes: list[str] = field(default_factory=list)

    def add_line(self, position: Position, text: str, time: float | None) -> None:
        parsed = read_line(text)
        if parsed is None:
            return
        subject, item = parsed
        if isinstance(item, (ProcessState, ThreadStack)):
            self.pending.append(self._event(subject, item, position, text, time))
        elif isinstance(item, Resumption):
            self.emit_pending(item.after_s)
        elif isinstance(item, Piece) and self.pieces < MAX_PIECES:
            if (subject, item.id) not in self.dumps and len(self.dumps) >= MAX_DUMPS:
                return
            dump = self.dumps.setdefault((subject, item.id), _Dump(subject, position, item.count))
            self.pieces += item.number not in dump.parts
            dump.parts[item.number] = item.data

    def _event(
        self, subject: LineSubject, item: ProcessState | ThreadStack, position: Position, text: str, time: float | None
    ) -> Event:
        fields: dict[str, Scalar | None] = {"pid": subject.pid, "job": subject.job}
        if isinstance(item, ProcessState):
            kind = "process_state"
            fields |= {"state": item.state, "comm": item.comm, "cores": item.cores}
            fields |= {"waits_in": item.wait or None, "syscall": item.syscall or None}
        else:
            kind = "stack"
            fields |= {"tid": item.tid, "thread": item.name}
            fields |= stack_fields(item.calls, item.native, item.place or None)
        known_fields = {name: value for name, value in fields.items() if value is not None}
        node = node_in(self.source.path)
        return Event(
            kind, position, "trace", text[:4096], time, subject.rank, node, parser="hang-report", fields=known_fields
        )

    def emit_pending(self, resumed_s: int | None = None) -> None:
        """Emit the pending events, with the time after which output resumed, if it did."""
        for event in self.pending:
            if resumed_s is not None:
                event = replace(event, fields={**event.fields, "resumed_s": resumed_s})
            self.sink.event(event)
        self.rows += len(self.pending)
        self.pending.clear()

    def read_dumps(self) -> None:
        """Read the complete dumps; note the incomplete and broken ones."""
        for dump in self.dumps.values():
            name = (
                f"the flight recorder of rank {dump.subject.rank}"
                if dump.subject.rank is not None
                else "a flight recorder"
            )
            if len(dump.parts) < dump.count:
                self.notes.append(
                    f"{name} is skipped: {dump.count - len(dump.parts)} of its {dump.count} pieces are missing"
                )
                continue
            try:
                self.rows += self._read_dump(dump)
            except ValueError as error:
                self.notes.append(f"{name} cannot be read: {error}")

    def _read_dump(self, dump: _Dump) -> int:
        """Read one dump with its own format. Raises ValueError."""
        try:
            compressed = base64.b64decode("".join(dump.parts[number] for number in sorted(dump.parts)), validate=True)
            unpacker = zlib.decompressobj()
            data = unpacker.decompress(compressed, MAX_BYTES)
        except (binascii.Error, zlib.error) as error:
            raise ValueError(f"its pieces are damaged ({error})") from error
        if unpacker.unconsumed_tail or not unpacker.eof:
            raise ValueError("it is truncated or far too large")
        inner = InputSource(
            f"rank{dump.subject.rank}" if dump.subject.rank is not None else "dump", data[:HEAD_BYTES], io.BytesIO(data)
        )
        if flight_recorder.FORMAT.sniff(inner) is None:
            raise ValueError("it is not a flight recorder dump")
        collectedd = CollectingSink()
        result = flight_recorder.FORMAT.read(inner, collectedd)
        for record in collectedd.records:  # at the first piece; ordinals distinguish the records of one dump
            position = replace(dump.at, offset=dump.at.offset + record.at.line - 1)
            self.sink.record(replace(record, at=position, fields={**record.fields, "job": dump.subject.job}))
        return result.rows


def _read(source: InputSource, sink: Sink) -> Result:
    reading = _Parser(source, sink)
    for number, offset, raw in source.lines(limit=1 << 17):
        data = raw.encode("utf-8", "replace")
        head = COLLECTOR.regex.match(data)
        text = raw if head is None else data[head.end() :].decode("utf-8", "replace")
        if text.startswith(MARK):
            time = find_time(raw[: head.end()]) if head is not None else None
            reading.add_line(Position(source.path, number, offset, len(data)), text, time)
    reading.emit_pending()
    reading.read_dumps()
    return Result(reading.rows, "partial" if reading.notes else "read", "; ".join(reading.notes[:5]))


FORMAT = Format(
    "hang-report", "hang reports of the agent: process states, stacks, flight recorders", "trace", _sniff, _read
)
