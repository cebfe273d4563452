"""Two runs beside each other: every thing that is told of both, and the first point where they part."""

from __future__ import annotations

from dataclasses import dataclass

from trackside.compare import facts, training
from trackside.compare.side import MEASURED, Row, Side

SETUP = ("setup", "place")
"""Topics of what was so before the run began."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """``rows``: all that was compared. ``partings``: where they part, the earliest first."""

    a: Side
    b: Side
    rows: tuple[Row, ...]
    partings: tuple[Row, ...]

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
    rows = [*facts.rows(a, b), *training.rows(a, b)]
    if any(side.evidence.grid(name) is not None for side in (a, b) for name in MEASURED):
        from trackside.compare import measured  # arrays: only where something was measured

        rows += measured.rows(a, b)
    partings = sorted([row for row in (*rows, *facts.onset(a, b)) if row.parts], key=lambda row: _moment(a, b, row))
    return Comparison(a, b, tuple(rows), tuple(partings))


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
