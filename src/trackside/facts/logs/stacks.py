"""Where each rank stands, by stacks that were taken on the spot because a run did not move. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trackside.evidence import Evidence, Frame, Value, derived
from trackside.facts.logs.absentee import Absentee
from trackside.facts.logs.order import followed_by
from trackside.facts.ranks import named, rank_of
from trackside.finding import Claim, claim
from trackside.model import Event

SAYS: Mapping[str, str] = {
    "wait_in": "{ranks} waited in {call}, at {place}",
    "wait_in_some": "{who} waited in {call}, at {place}",
    "wait_gpu": "{ranks} waited for a backward pass or the GPU, at {place}",
    "wait_gpu_some": "{who} waited for a backward pass or the GPU, at {place}",
    "elsewhere": "{ranks} did not come to it, and stood at {place}",
    "elsewhere_some": "{who} did not come to it, and stood at {place}",
    "parted": "{ranks} waited in another collective than the others: {call}, at {place}",
    "stood": "{ranks} stood at {place}",
    "stood_some": "{who} stood at {place}",
}
"""Sentences of the claims that are made here, in their order: who waits, and who does not."""
STILL_SAYS: Mapping[str, str] = {
    key: text.replace("waited", "wait").replace("did not come", "do not come").replace("stood", "stand")
    for key, text in SAYS.items()
}
"""The same of a run that goes on."""
AGENT = "hang-report"
"""The parser of the agent's lines."""
SPAN_S = 120.0
"""In which the stacks of one process are taken, once."""
MOST_PLACES = 4
"""Of one kind that are told, those of the most ranks first."""


@dataclass(frozen=True, slots=True)
class Stood:
    """The threads that matter, one a process: those that wait for others, those that don't, and of the former the few
    that wait in another collective than most."""

    stacks: Frame
    waiting: tuple[Event, ...]
    away: tuple[Event, ...]
    parted: tuple[Event, ...] = ()

    @property
    def suspected(self) -> bool:
        """Whether the agent took them, because it saw the run stand still; anybody may take those of one that works."""
        return any(row.parser == AGENT for row in (*self.waiting, *self.away))

    @property
    def ranks_away(self) -> tuple[int, ...]:
        """The ranks that others wait for, where these are known."""
        told = {rank_of(row) for row in self.away or self.parted}
        return tuple(sorted(rank for rank in told if rank is not None))

    @property
    def ranks(self) -> frozenset[int]:
        """All ranks of which a stack was taken."""
        return frozenset(rank for row in (*self.waiting, *self.away) if (rank := rank_of(row)) is not None)

    def absentee(self) -> Absentee | None:
        """Who did not take part."""
        ranks, rows = self.ranks_away, self.away or self.parted
        if not self.waiting or not ranks:
            return None
        key = "elsewhere" if self.away else "parted"
        return Absentee(ranks, _told(self.stacks, rows, key, key)[0])

    def shows(self) -> list[Claim]:
        """What is to be said of all of them, but for what :meth:`absentee` says."""
        inside = [row for row in self.waiting if row.get("collective") is not None and row not in self.parted]
        busy = [row for row in self.waiting if row.get("collective") is None and row not in self.parted]
        found = _told(self.stacks, inside, "wait_in", "wait_in_some")
        found += _told(self.stacks, busy, "wait_gpu", "wait_gpu_some")
        key = "elsewhere" if self.waiting else "stood"
        away = _told(self.stacks, self.away or self.parted, key if self.away else "parted", f"{key}_some")
        return found + (away[1:] if self.absentee() is not None else away)

    def place(self) -> Value | None:
        """The line of code to look at: where those stand that others wait for, else where one stands at all."""
        rows = [row for row in (*self.away, *self.parted, *self.waiting) if row.get("place") is not None]
        return self.stacks.value(rows[0], "place") if rows else None

    def lines(self, ranks: Iterable[int]) -> list[Claim]:
        """Where these ranks stood, who were told by another witness to have stayed away."""
        wanted = set(ranks)
        rows = [row for row in (*self.away, *self.parted) if rank_of(row) in wanted]
        return _told(self.stacks, rows, "stood", "stood_some")


def stood(evidence: Evidence, points: Sequence[Event]) -> Stood | None:
    """Where the run's processes stood; None where no stack was taken, or it went on after that."""
    stacks = evidence["stacks"]
    rows = [row for row in stacks.events if row.get("resumed_s") is None and followed_by(row, points) is None]
    by_process: dict[object, list[Event]] = {}
    for row in rows:
        rank = rank_of(row)
        by_process.setdefault((row.node, rank) if rank is not None else (row.at.path, row.get("pid")), []).append(row)
    chosen = [one for each in by_process.values() if (one := _telling(each)) is not None]
    if not chosen:
        return None
    inside = [row for row in chosen if row.get("collective") is not None]
    busy = [row for row in chosen if row.get("collective") is None and row.get("waits") is not None]
    # One alone in a backward pass may be at work, unless it was seen to do none.
    met = inside or len(busy) > 1 or (len(chosen) > 1 and any(row.parser == AGENT for row in busy))
    waiting = [*inside, *busy] if met else []
    away = [row for row in chosen if row not in waiting]
    return Stood(stacks, tuple(waiting), tuple(away), () if away else _parted(waiting))


def _telling(rows: Sequence[Event]) -> Event | None:
    """The thread that trains: of the last time that stacks were taken, one in a collective, else the main thread."""
    newest = max(rows, key=lambda row: (row.time or 0.0, row.at.line))
    began = (newest.time or 0.0) - SPAN_S
    ordered = [row for row in rows if row.get("pid") == newest.get("pid") and (row.time or 0.0) >= began]
    main = [row for row in ordered if row.get("thread") in (None, "MainThread") or row.get("tid") == row.get("pid")]
    inside = [row for row in ordered if row.get("collective") is not None]
    if main and (main[0].get("collective") is not None or not inside):
        return main[0]
    return inside[0] if inside else None


def _parted(waiting: Sequence[Event]) -> tuple[Event, ...]:
    """The few that wait in another collective than more than half of all do."""
    inside = [row for row in waiting if row.get("collective") is not None and row.get("place") is not None]
    groups: dict[tuple[object, object], list[Event]] = {}
    for row in inside:
        groups.setdefault((row.get("collective"), row.get("place")), []).append(row)
    most = max(groups.values(), key=len, default=[])
    if len(groups) < 2 or len(inside) < len(waiting) or len(most) * 2 <= len(waiting):
        return ()
    return tuple(row for row in inside if row not in most)


def _told(stacks: Frame, rows: Iterable[Event], key: str, some: str) -> list[Claim]:
    """A claim for each place, those of the most processes first."""
    places: dict[tuple[object, object], list[Event]] = {}
    for row in rows:
        places.setdefault((row.get("collective"), row.get("place") or row.get("top")), []).append(row)
    found = []
    for group in sorted(places.values(), key=len, reverse=True)[:MOST_PLACES]:
        first = group[0]
        values = {"place": stacks.value(first, "place" if first.get("place") is not None else "top")}
        if key in ("wait_in", "parted"):
            values["call"] = stacks.value(first, "collective")
        ranks = named(stacks, group)
        if ranks is not None:
            found.append(claim(key, ranks=ranks, **values))
        else:
            pids = tuple(f"process {row.get('pid')}" for row in group)
            found.append(claim(some, who=derived(pids, *(stacks.value(row, "pid") for row in group)), **values))
    return found
