"""Two runs beside each other: every thing that is told of both, and the first point where they part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trackside.compare import facts, measured, training
from trackside.compare.setup import following
from trackside.compare.side import Row, Side
from trackside.compare.slowdown import Slowdown, slowdown
from trackside.families import families
from trackside.finding import Outcome

SETUP = ("setup", "place")
"""Topics of what was so before the run began."""
TOGETHER_S = 60.0
"""Seconds between differences that are told in one breath: scrapes and printed steps are so far apart."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """``rows``: all that was compared. ``partings``: where they part, the earliest first; ``following``: where they do
    as they were set up differently."""

    a: Side
    b: Side
    rows: tuple[Row, ...]
    partings: tuple[Row, ...]
    following: tuple[Row, ...] = ()
    slowdown: Slowdown | None = None

    @property
    def first(self) -> list[Row]:
        """Where they part first: by what the fault of one was told by, else by anything."""
        names = {name for side in (self.a, self.b) for name in _told_by(side)}
        explaining = [row for row in self.partings if row.of in names or (not row.of and row.topic == "outcome")]
        chosen = (explaining or list(self.partings))[:1]
        return [row for row in self.partings if row in chosen or any(_together(row, one) for one in chosen)]

    @property
    def differing(self) -> list[Row]:
        """What differs."""
        return [row for row in self.rows if row.differs]

    @property
    def setup(self) -> list[Row]:
        """What differs of how and where they were started."""
        return [row for row in self.differing if row.topic in SETUP and row.a is not None and row.b is not None]


def compare(a: Side, b: Side) -> Comparison:
    """All that differs, and where it begins."""
    rows = [*facts.rows(a, b), *training.rows(a, b), *measured.rows(a, b)]
    rows = following(rows)
    names = {name for side in (a, b) for name in _told_by(side)}
    partings = sorted([row for row in (*rows, *facts.onset(a, b)) if row.parts], key=lambda row: _moment(a, b, row))
    along = [row for row in partings if row.follows and (row.of not in names or row.of == "lr")]
    apart = [row for row in partings if row not in along]
    return Comparison(a, b, tuple(rows), tuple(apart), tuple(along), slowdown(a, b, rows))


def _told_by(side: Side) -> Iterator[str]:
    """The metrics that show the fault of a run; where it is one of learning, the fields of training points that do."""
    loses = next((family.loses for family in families() if family.code == side.primary.family), "nothing")
    if side.primary.outcome is Outcome.FOUND and loses != "nothing":
        for claim in side.primary.shows:
            for cite in claim.cites:
                query = cite.query
                if query is not None and query.subject == "metric":
                    yield query.kind
                elif query is not None and query.kind == "progress" and query.reduced and loses == "result":
                    yield query.reduced


def _together(one: Row, other: Row) -> bool:
    """Whether two differences begin at one place."""
    if one.seconds is None or other.seconds is None:
        return one.step is not None and one.step == other.step
    return abs(one.seconds - other.seconds) <= TOGETHER_S


def _moment(a: Side, b: Side, row: Row) -> float:
    """Seconds since the start at which a difference begins; for one that only a step tells of, where that step lies if
    steps are spread evenly."""
    if row.seconds is not None:
        return row.seconds
    told = []
    for side in (a, b):
        last = max(
            (float(step) for point in side.points if isinstance(step := point.get("step"), (int, float))), default=0
        )
        if last > 0 and side.run.start is not None and side.run.end is not None and row.step is not None:
            told.append(min(1.0, row.step / last) * (side.run.end - side.run.start))
    return min(told, default=row.step or 0.0)
