"""Step times of every rank of a job, as CSV with one row per rank and step; used to find stragglers.

Columns are recognized by name: one for the rank (or worker), one for the step (or the time of the sample), and times. A
normalized time has no unit and supports only ratios.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trackside.logs.numbers import figure, whole_number
from trackside.model import Event, Position
from trackside.read.format import Format, InputSource, Match, Result, Sink, csv_cells

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
_JOB_ROWS = re.compile(r",0(?:,\d{1,6}){3,}")
MAX_ROWS = 500_000
"""Maximum number of rows of one file."""


@dataclass(frozen=True, slots=True)
class _Columns:
    """Column indices of rank and step, and (index, field, factor to seconds) of each time column."""

    count: int
    rank: int
    step: int
    times: tuple[tuple[int, str, float], ...]


def _columns(line: str) -> _Columns | None:
    names = [name.strip().strip('"').lower() for name in line.split(",")]
    rank = next((names.index(name) for name in _RANKS if name in names), None)
    step = next((names.index(name) for name in _STEPS if name in names), None)
    times = []
    for index, name in enumerate(names):
        if (match := _TIME.fullmatch(name)) is not None:
            field = "relative_time" if match["norm"] else _FIELDS.get(match["what"], "step_time_s")
            times.append((index, field, _SECONDS.get(match["unit"] or "", 1.0)))
    if rank is None or step is None or not times:
        return None
    return _Columns(len(names), rank, step, tuple(times))


def _sniff(source: InputSource) -> Match | None:
    first = source.text.split("\n", 1)[0].strip()
    if _columns(first) is not None:
        return Match(0.9, "columns for rank, step and times")
    if _JOB_ROWS.fullmatch(first) and re.search(r"\njob_?\d+,\d?\.\d", source.text):
        return Match(0.5, "one row per job, one column per step")
    return None


def _read(source: InputSource, sink: Sink) -> Result:
    columns: _Columns | None = None
    rows = bad_rows = excess_rows = 0
    is_relative = False
    for number, offset, text in source.lines(limit=1 << 16):
        if number == 1:
            columns = _columns(text)
            if columns is None:
                return Result(0, "unrecognised", "step times of several jobs, not of a single run")
        elif columns is not None and text.strip():
            event = _event(Position(source.path, number, offset, len(text)), columns, text)
            if event is None:
                bad_rows += 1
            elif rows >= MAX_ROWS:
                excess_rows += 1
            else:
                is_relative = is_relative or "relative_time" in event.fields
                sink.event(event)
                rows += 1
    notes = [
        "normalized times: only ratios between ranks are meaningful" if is_relative else "",
        f"{bad_rows:,} rows could not be read" if bad_rows else "",
        f"only the first {MAX_ROWS:,} rows were read" if excess_rows else "",
    ]
    return Result(rows, "partial" if bad_rows or excess_rows else "read", "; ".join(note for note in notes if note))


def _event(position: Position, columns: _Columns, text: str) -> Event | None:
    cells = csv_cells(text) if '"' in text else text.split(",")
    if len(cells) != columns.count:
        return None
    rank, step = whole_number(cells[columns.rank].strip()), whole_number(cells[columns.step].strip())
    fields: dict[str, float] = {}
    for index, field, factor in columns.times:
        value = figure(cells[index].strip())
        if value is not None and 0 <= value < 1e12:
            fields[field] = value * factor
    if rank is None or rank < 0 or step is None or not fields:
        return None
    return Event(
        "rank_progress",
        position,
        "log",
        text=text[:200],
        rank=rank,
        parser="rank-times",
        fields={"step": step, **fields},
    )


FORMAT = Format("rank-times", "step times of every rank (CSV)", "log", _sniff, _read)
