"""The comparison of two runs: every quantity known of both, and the first point of divergence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trackside.compare import facts, measured, training
from trackside.compare.setup import with_causes
from trackside.compare.side import ComparedRow, Side
from trackside.compare.slowdown import Slowdown, slowdown
from trackside.families import families
from trackside.finding import Outcome

SETUP = ("setup", "place")
"""Topics of rows that are fixed before the run starts."""
SIMULTANEOUS_S = 60.0
"""Differences that begin within this many seconds count as simultaneous: a scrape or print interval."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """``rows``: everything compared. ``divergences``: rows that differ from some point on, the earliest first;
    ``following``: those that a different setup may explain."""

    a: Side
    b: Side
    rows: tuple[ComparedRow, ...]
    divergences: tuple[ComparedRow, ...]
    following: tuple[ComparedRow, ...] = ()
    slowdown: Slowdown | None = None

    @property
    def first(self) -> list[ComparedRow]:
        """The first divergence and those simultaneous with it. Quantities that show the fault of a run take
        precedence over others."""
        names = {name for side in (self.a, self.b) for name in _fault_quantities(side)}
        explaining = [
            row for row in self.divergences if row.quantity in names or (not row.quantity and row.topic == "outcome")
        ]
        earliest = (explaining or list(self.divergences))[:1]
        return [
            row for row in self.divergences if row in earliest or any(_begin_together(row, first) for first in earliest)
        ]

    @property
    def differing(self) -> list[ComparedRow]:
        """The rows that differ."""
        return [row for row in self.rows if row.differs]

    @property
    def setup(self) -> list[ComparedRow]:
        """The differences in setup and hardware that are known of both runs."""
        return [row for row in self.differing if row.topic in SETUP and row.a is not None and row.b is not None]


def compare(a: Side, b: Side) -> Comparison:
    """Compare two runs."""
    rows = [*facts.rows(a, b), *training.rows(a, b), *measured.rows(a, b)]
    rows = with_causes(rows)
    names = {name for side in (a, b) for name in _fault_quantities(side)}
    divergences = sorted(
        [row for row in (*rows, *facts.onset(a, b)) if row.diverges], key=lambda row: _start_s(a, b, row)
    )
    explained = [row for row in divergences if row.follows and (row.quantity not in names or row.quantity == "lr")]
    unexplained = [row for row in divergences if row not in explained]
    return Comparison(a, b, tuple(rows), tuple(unexplained), tuple(explained), slowdown(a, b, rows))


def _fault_quantities(side: Side) -> Iterator[str]:
    """The metrics that show the fault of a run; for a fault of learning also the fields of logged steps."""
    cost_kind = next((family.cost_kind for family in families() if family.code == side.primary.family), "nothing")
    if side.primary.outcome is Outcome.FOUND and cost_kind != "nothing":
        for claim in side.primary.shows:
            for cite in claim.cites:
                query = cite.query
                if query is not None and query.subject == "metric":
                    yield query.kind
                elif query is not None and query.kind == "progress" and query.reduced and cost_kind == "spoilt":
                    yield query.reduced


def _begin_together(row: ComparedRow, other_row: ComparedRow) -> bool:
    """Whether two differences begin at the same time or step."""
    if row.seconds is None or other_row.seconds is None:
        return row.step is not None and row.step == other_row.step
    return abs(row.seconds - other_row.seconds) <= SIMULTANEOUS_S


def _start_s(a: Side, b: Side, row: ComparedRow) -> float:
    """Seconds from the start of the run to the start of a difference. If only its step is known, the time is
    interpolated, as if all steps took equally long."""
    if row.seconds is not None:
        return row.seconds
    candidates_s = []
    for side in (a, b):
        last = max(
            (float(step) for point in side.points if isinstance(step := point.get("step"), (int, float))), default=0
        )
        if last > 0 and side.run.start is not None and side.run.end is not None and row.step is not None:
            candidates_s.append(min(1.0, row.step / last) * (side.run.end - side.run.start))
    return min(candidates_s, default=row.step or 0.0)
