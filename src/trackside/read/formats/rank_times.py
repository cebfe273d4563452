"""Step times of every rank of a job, as a CSV with one row a rank and step: what stragglers are told by.

Columns are known by their names: one for the rank (or worker), one for the step (or the time at which all were
sampled), and times. A time that was normalised has no unit any more; it is kept as what it is, good for ratios only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trackside.logs.numbers import figure, whole_number
from trackside.model import Event, Position
from trackside.read.format import Format, Match, Result, Sink, Source, csv_cells

_RANKS = ("rank", "global_rank", "rank_id", "worker", "worker_id", "worker_index", "worker_rank")
_STEPS = ("step", "global_step", "iteration", "iter", "batch", "batch_idx", "time")
_TIME = re.compile(
    r"(?P<what>compute|forward_backward|data|comm|communication|(?:mini_?)?batch|step|iter|iteration)_time"
    r"(?P<norm>_norm(?:ali[sz]ed)?)?(?:_(?P<unit>s|sec|seconds|ms|us|ns))?"
)
_FIELDS = {
    "compute": "compute_time_s",
    "forward_backward": "compute_time_s",
    "data": "data_time_s",
    "comm": "comm_time_s",
    "communication": "comm_time_s",
}
_SECONDS = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_SPREAD = re.compile(r",0(?:,\d{1,6}){3,}")
MOST_ROWS = 500_000
"""Rows kept of one file."""


@dataclass(frozen=True, slots=True)
class _Columns:
    """Where rank and step stand, and (place, field, factor) of each time."""

    count: int
    rank: int
    step: int
    times: tuple[tuple[int, str, float], ...]


def _columns(line: str) -> _Columns | None:
    names = [name.strip().strip('"').lower() for name in line.split(",")]
    rank = next((names.index(name) for name in _RANKS if name in names), None)
    step = next((names.index(name) for name in _STEPS if name in names), None)
    times = []
    for place, name in enumerate(names):
        if (found := _TIME.fullmatch(name)) is not None:
            field = "relative_time" if found["norm"] else _FIELDS.get(found["what"], "step_time_s")
            times.append((place, field, _SECONDS.get(found["unit"] or "", 1.0)))
    if rank is None or step is None or not times:
        return None
    return _Columns(len(names), rank, step, tuple(times))


def _sniff(source: Source) -> Match | None:
    first = source.text.split("\n", 1)[0].strip()
    if _columns(first) is not None:
        return Match(0.9, "columns for rank, step and times")
    if _SPREAD.fullmatch(first) and re.search(r"\njob_?\d+,\d?\.\d", source.text):
        return Match(0.5, "one row a job, one column a step")
    return None


def _read(source: Source, sink: Sink) -> Result:
    columns: _Columns | None = None
    rows = bad = over = 0
    relative = False
    for number, offset, text in source.lines(limit=1 << 16):
        if number == 1:
            columns = _columns(text)
            if columns is None:
                return Result(0, "unrecognised", "a spread of step times over jobs: it tells of no single run")
        elif columns is not None and text.strip():
            event = _event(Position(source.path, number, offset, len(text)), columns, text)
            if event is None:
                bad += 1
            elif rows >= MOST_ROWS:
                over += 1
            else:
                relative = relative or "relative_time" in event.fields
                sink.event(event)
                rows += 1
    notes = [
        "its times are normalised: only ratios between ranks mean something" if relative else "",
        f"{bad:,} rows could not be read" if bad else "",
        f"only the first {MOST_ROWS:,} rows were kept" if over else "",
    ]
    return Result(rows, "partial" if bad or over else "read", "; ".join(note for note in notes if note))


def _event(at: Position, columns: _Columns, text: str) -> Event | None:
    cells = csv_cells(text) if '"' in text else text.split(",")
    if len(cells) != columns.count:
        return None
    rank, step = whole_number(cells[columns.rank].strip()), whole_number(cells[columns.step].strip())
    fields: dict[str, float] = {}
    for place, field, factor in columns.times:
        value = figure(cells[place].strip())
        if value is not None and 0 <= value < 1e12:
            fields[field] = value * factor
    if rank is None or rank < 0 or step is None or not fields:
        return None
    return Event(
        "rank_progress", at, "log", text=text[:200], rank=rank, parser="rank-times", fields={"step": step, **fields}
    )


FORMAT = Format("rank-times", "step times of every rank (CSV)", "log", _sniff, _read)
