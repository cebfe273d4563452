"""The runs before the last one in a file: each gets a verdict of its own, from its lines alone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from trackside.errors import NoSuchRun, SeveralRuns
from trackside.finding import EarlierRun
from trackside.model import Event, FileRun, Position, Run
from trackside.runs.resolve import resolve
from trackside.session.inputs import LoadedInputs
from trackside.stores.memory import MemoryStore
from trackside.verdict import engine

MAX_JUDGED_RUNS = 10
"""Earlier runs that get a verdict: the last ones."""
_OF_THE_FILE = ("log_activity", "counted_lines", "program_start")
"""Kinds of events that say nothing about one of the runs."""


def judge_earlier_runs(loaded: LoadedInputs, run: Run) -> tuple[EarlierRun, ...]:
    """The last of the earlier runs in the run's log, in order, each with its primary finding."""
    if run.appended is None:
        return ()
    path, earlier = run.appended.path, run.appended.runs[:-1][-MAX_JUDGED_RUNS:]
    rows = [
        row for row in loaded.store.all_rows()
        if isinstance(row, Event) and row.plane == "log" and row.at.path == path and row.kind not in _OF_THE_FILE
    ]  # fmt: skip
    events = _by_line([*rows, *loaded.trajectories.points(frozenset({path}))])
    lines = [event.at.line for event in events]
    judged = (
        _judge(path, part, events[bisect_left(lines, part.first) : bisect_right(lines, part.last)]) for part in earlier
    )
    return tuple(item for item in judged if item is not None)


def _by_line(events: Sequence[Event]) -> list[Event]:
    return sorted(events, key=lambda event: (event.at.line, event.at.offset))


def _judge(path: str, part: FileRun, events: Sequence[Event]) -> EarlierRun | None:
    """The verdict on one run, as if its lines were a file of their own."""
    times = [event.time for event in events if event.time is not None]
    fields = {
        "first_time": min(times, default=None),
        "last_time": max(times, default=None),
        "lines": part.last - part.first + 1,
        "last_line": events[-1].text if events else "",
        "last_line_number": part.last,
    }
    known = {name: value for name, value in fields.items() if value is not None}
    activity = Event("log_activity", Position(path, part.last), "log", parser="scan", fields=known)
    rows = [event for event in events if event.kind != "progress"]
    try:
        resolved = resolve(MemoryStore([*rows, activity], planes=["log"]), paths=[path])
    except (SeveralRuns, NoSuchRun):
        return None
    for event in events:
        if event.kind == "progress":
            resolved.store.add_event(resolved.adjust(event))
    finding = engine.verdict_of(engine.facts_of(resolved.store, resolved.run)).primary
    return EarlierRun(part.first, part.last, finding)
