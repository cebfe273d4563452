"""Who never entered the collective that the others wait in, from Flight Recorder records. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trackside.model import Record

_POINT_TO_POINT = re.compile(r"(?:send|recv|isend|irecv|coalesced)\b")


@dataclass(frozen=True, slots=True)
class Stall:
    """One process group in which some ranks wait for others.

    ``missing`` never entered the collective ``op`` number ``seq``; ``without_dump`` are members that no dump was
    given for. ``rows`` are the records that say so: of the missing ranks first, then of those that wait.
    """

    group: str
    description: str | None
    op: str
    seq: int
    missing: tuple[int, ...]
    waiting: tuple[int, ...]
    without_dump: tuple[int, ...]
    rows: tuple[Record, ...]


def stalls(records: Iterable[Record]) -> list[Stall]:
    """The groups with a pending collective that a member with a dump has not entered; smallest group first.

    Point-to-point groups are left out: their members' sequence numbers do not run in step.
    """
    found = [stall for rows in _by_group(records).values() if (stall := _stall(rows)) is not None]
    return sorted(found, key=lambda stall: (len(stall.waiting) + len(stall.missing), stall.group))


def missing_ranks(records: Iterable[Record]) -> tuple[int, ...]:
    """The ranks at fault: missing from a collective and themselves waiting for nobody.

    A missing rank that waits in another group is a victim of that group's missing ranks. Where every missing
    rank waits for another (a mismatch or a deadlock), or none is missing, the answer is empty.
    """
    found = stalls(records)
    victims = {rank for stall in found for rank in stall.waiting}
    return tuple(sorted({rank for stall in found for rank in stall.missing} - victims))


def unfinished_ranks(records: Iterable[Record]) -> tuple[int, ...]:
    """The ranks that wait in a collective which another member has finished: they took part, and never saw its end.

    That is a GPU that stopped answering (or its watchdog), not a rank that went elsewhere.
    """
    found: set[int] = set()
    for rows in _by_group(records).values():
        done = max((_number(row, "last_completed", -1) for row in rows), default=-1)
        waits = [row for row in rows if row.get("pending_seq") is not None]
        if not any(_POINT_TO_POINT.match(str(row.get("pending_op"))) for row in waits):
            found.update(_number(row, "rank") for row in waits if _number(row, "pending_seq") <= done)
    return tuple(sorted(found))


def _by_group(records: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    """Rows of ranks by group; groups of one name but other members are different ones."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.kind == "flight_recorder_group" and isinstance(record.get("rank"), int):
            groups[str(record.get("group")), str(record.get("ranks"))].append(record)
    return groups


def _stall(rows: Sequence[Record]) -> Stall | None:
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
    members = {int(rank) for rank in first.many("ranks")}
    return Stall(
        group=str(first.get("group")),
        description=None if first.get("description") is None else str(first.get("description")),
        op=str(first.get("pending_op")),
        seq=seq,
        missing=missing,
        waiting=tuple(sorted(blocked)),
        without_dump=tuple(sorted(members - latest.keys())),
        rows=(*(latest[rank] for rank in missing), *(row for _, row in sorted(blocked.items()))),
    )


def _number(row: Record, field: str, default: int = 0) -> int:
    value = row.get(field)
    return int(value) if isinstance(value, (int, float)) else default
