"""Which ranks are involved, and how many there are. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trackside.evidence import Frame, Value, derived
from trackside.finding import Claim
from trackside.model import Event, Run

SIGTERM = 15


@dataclass(frozen=True, slots=True)
class AbsentRanks:
    """The ranks that did not take part in a collective, and the claim with the evidence."""

    ranks: tuple[int, ...]
    claim: Claim


def rank_of(event: Event, launchers: Frame | None = None) -> int | None:
    """The global rank of an event: its own, the launcher's, or that of the launcher's row with the same pid."""
    rank = event.rank if event.rank is not None else event.get("global_rank")
    if isinstance(rank, int):
        return rank
    pid = event.get("pid")
    if launchers is not None and isinstance(pid, int):
        for row in launchers.events:
            if row.get("pid") == pid and isinstance(row.get("global_rank"), int):
                return rank_of(row)
    return None


def ranks_of(events: Iterable[Event], launchers: Frame | None = None) -> tuple[int, ...]:
    """The distinct ranks of events, sorted; events of unknown rank are skipped."""
    return tuple(sorted({rank for event in events if (rank := rank_of(event, launchers)) is not None}))


def cited_ranks(frame: Frame, events: Iterable[Event], launchers: Frame | None = None) -> Value | None:
    """The ranks of some of a frame's events, citing the first event of each; None if unknown."""
    first: dict[int, Event] = {}
    for event in events:
        rank = rank_of(event, launchers)
        if rank is not None:
            first.setdefault(rank, event)
    if not first:
        return None
    fields = ((row, "rank" if row.rank is not None else "text") for row in first.values())
    return derived(tuple(sorted(first)), *(frame.value(row, field) for row, field in fields))


def ranks_in_summary(events: Iterable[Event], launchers: Frame) -> Value | None:
    """The ranks that launcher summaries next to these unlabeled tracebacks name, if there are as many as tracebacks.

    A rank that printed its own traceback may still be listed as ended by the launcher's SIGTERM.
    """
    events = list(events)
    paths = {event.at.path for event in events}
    rows = [row for row in launchers.events if row.at.path in paths and row.get("signal") in (None, SIGTERM)]
    ranks = {int(rank): row for row in rows if isinstance(rank := row.get("global_rank"), int)}
    if not ranks or len(ranks) != len(events):
        return None
    return derived(tuple(sorted(ranks)), *(launchers.value(row, "global_rank") for row in ranks.values()))


def world_size(run: Run, *frames: Frame) -> int | None:
    """Number of ranks: the largest world size in the frames' rows, else the run's own count."""
    values = [row.get(name) for frame in frames for row in frame.rows for name in ("world_size", "nranks")]
    sizes = [size for size in values if isinstance(size, int) and size > 0]
    return max(sizes) if sizes else run.n_ranks
