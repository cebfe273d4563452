"""The process list of a node: ``ps aux``, ``ps -ef`` with states, or any ``ps`` columns with PID and STAT."""

from __future__ import annotations

from trackside.model import Event, Position, Scalar
from trackside.read.format import Format, InputSource, Match, Result, Sink

STATES = frozenset("RSDZTtIXxKWP")
"""First letters of STAT, see ps(1)."""


def _columns(line: str) -> tuple[int, int, int] | None:
    """Column indices of (PID, STAT, COMMAND) in a header; None if one is missing. COMMAND extends to the end of the
    line."""
    names = line.split()
    state = next((name for name in ("STAT", "S") if name in names), None)
    command = next((name for name in ("COMMAND", "CMD", "ARGS") if name in names), None)
    if "PID" not in names or state is None or command is None:
        return None
    return names.index("PID"), names.index(state), names.index(command)


def _sniff(source: InputSource) -> Match | None:
    first = next((line for line in source.text.splitlines() if line.strip()), "")
    return Match(0.9, "a ps header with PID and STAT") if _columns(first) is not None else None


def _read(source: InputSource, sink: Sink) -> Result:
    columns: tuple[int, int, int] | None = None
    rows = 0
    for number, offset, text in source.lines(limit=64 << 10):
        columns = columns or _columns(text)
        if columns is None:
            continue
        pid, state, command = columns
        values = text.split(None, command)
        if len(values) <= command or not values[pid].isdigit() or values[state][0] not in STATES:
            continue
        fields: dict[str, Scalar] = {
            "pid": int(values[pid][:9]),
            "state": values[state][0],
            "comm": values[command].strip()[:200],
        }
        position = Position(source.path, number, offset, len(text))
        sink.event(Event("process_state", position, "trace", text=text.strip()[:500], parser="ps", fields=fields))
        rows += 1
    return Result(rows)


FORMAT = Format("process-list", "process list of a node (ps)", "trace", _sniff, _read)
