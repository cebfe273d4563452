"""Which rank never entered the collective that the others wait in, by PyTorch's Flight Recorder.

Each rank's dump shows which collectives it had enqueued and completed, per group. Point-to-point groups are skipped:
the sequence numbers of their members do not advance in lockstep.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from trackside.evidence import Evidence, Frame, derived
from trackside.facts.fact import fact
from trackside.facts.ranks import AbsentRanks
from trackside.finding import Sentence
from trackside.model import Record
from trackside.query import record

NEVER_ENTERED = Sentence("{ranks} never entered {op} {seq}, in which the rest wait (Flight Recorder)")
NEVER_LEFT = Sentence(
    "{ranks} entered the collective like all other ranks and never left it: the GPU or the link stopped responding"
)

_POINT_TO_POINT = re.compile(r"(?:send|recv|isend|irecv|coalesced)\b")


@dataclass(frozen=True, slots=True)
class PendingCollective:
    """One process group in which some ranks wait for others.

    ``missing`` never entered the collective ``op`` number ``seq``. ``rows`` are the records that show it: of the
    missing ranks first, then of the waiting ones.
    """

    group: str
    op: str
    seq: int
    missing: tuple[int, ...]
    waiting: tuple[int, ...]
    rows: tuple[Record, ...]


def pending_collectives(records: Iterable[Record]) -> list[PendingCollective]:
    """The groups with a pending collective that a member with a dump has not entered; smallest group first."""
    pending = [
        collective for rows in _by_group(records).values() if (collective := _pending_collective(rows)) is not None
    ]
    return sorted(pending, key=lambda collective: (len(collective.waiting) + len(collective.missing), collective.group))


def missing_ranks(records: Iterable[Record]) -> tuple[int, ...]:
    """The ranks at fault: missing from a collective and not waiting themselves.

    A missing rank that waits in another group is a victim of that group's missing ranks. Empty if every missing rank
    waits for another (a mismatch or a deadlock), or if none is missing.
    """
    pending = pending_collectives(records)
    victims = {rank for collective in pending for rank in collective.waiting}
    return tuple(sorted({rank for collective in pending for rank in collective.missing} - victims))


def unfinished_ranks(records: Iterable[Record]) -> tuple[int, ...]:
    """The ranks that wait in a collective which another member has completed: they took part, but it never completed
    for them.

    That indicates a GPU that stopped responding (or its watchdog), not a rank with a different code path.
    """
    unfinished: set[int] = set()
    for rows in _by_group(records).values():
        done = max((_number(row, "last_completed", -1) for row in rows), default=-1)
        waits = [row for row in rows if row.get("pending_seq") is not None]
        if not any(_POINT_TO_POINT.match(str(row.get("pending_op"))) for row in waits):
            unfinished.update(_number(row, "rank") for row in waits if _number(row, "pending_seq") <= done)
    return tuple(sorted(unfinished))


def _by_group(records: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    """Rows by group; groups with the same name but other members are different groups."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for row in records:
        if row.kind == "flight_recorder_group" and isinstance(row.get("rank"), int):
            groups[str(row.get("group")), str(row.get("ranks"))].append(row)
    return groups


def _pending_collective(rows: Sequence[Record]) -> PendingCollective | None:
    latest = {_number(row, "rank"): row for row in rows}
    waiting = {rank: row for rank, row in latest.items() if row.get("pending_seq") is not None}
    if not waiting or any(_POINT_TO_POINT.match(str(row.get("pending_op"))) for row in waiting.values()):
        return None
    entered = {rank: _number(row, "last_enqueued", -1) for rank, row in latest.items()}
    behind = min(entered.values())
    blocked = {rank: row for rank, row in waiting.items() if _number(row, "pending_seq") > behind}
    if not blocked:
        return None
    seq = min(_number(row, "pending_seq") for row in blocked.values())
    missing = tuple(sorted(rank for rank, last in entered.items() if last < seq))
    first = next(row for _, row in sorted(blocked.items()) if _number(row, "pending_seq") == seq)
    return PendingCollective(
        group=str(first.get("group")),
        op=str(first.get("pending_op")),
        seq=seq,
        missing=missing,
        waiting=tuple(sorted(blocked)),
        rows=(*(latest[rank] for rank in missing), *(row for _, row in sorted(blocked.items()))),
    )


def _number(row: Record, field: str, default: int = 0) -> int:
    value = row.get(field)
    return int(value) if isinstance(value, (int, float)) else default


@dataclass(frozen=True, eq=False)
class FlightRecords:
    """The Flight Recorder's records of the run's ranks."""

    frame: Frame

    @cached_property
    def absent_ranks(self) -> AbsentRanks | None:
        """The ranks that did not enter a collective, or did not leave it."""
        records, frame = self.frame.records, self.frame
        ranks = missing_ranks(records)
        if ranks:
            pending = pending_collectives(records)[0]
            rows = [frame.value(row, "last_enqueued") for row in pending.rows]
            op, seq = derived(pending.op, *rows), derived(pending.seq, *rows)
            return AbsentRanks(ranks, NEVER_ENTERED(ranks=derived(ranks, *rows), op=op, seq=seq))
        unfinished = unfinished_ranks(records)
        if not unfinished:
            return None
        rows = [frame.value(row, "last_completed") for row in records if row.get("rank") in unfinished]
        return AbsentRanks(unfinished, NEVER_LEFT(ranks=derived(unfinished, *rows)))


@fact({"dumps": record("flight_recorder_group")}, needs=("dumps",))
def flight_records(evidence: Evidence) -> FlightRecords:
    """Needs a dump of the Flight Recorder; otherwise missing."""
    return FlightRecords(evidence["dumps"])
