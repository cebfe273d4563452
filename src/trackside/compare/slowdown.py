"""What the slower of two runs took longer for the same steps, in GPU-hours. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trackside.compare.setup import sizes, unlike
from trackside.compare.side import Row, Side
from trackside.compare.training import STEP_TIME, TIME_HELD, steps_done
from trackside.evidence import Value, derived
from trackside.facts.logs.ending import BAD_STATES


@dataclass(frozen=True, slots=True)
class Slowdown:
    """``gpus`` x ``steps`` x (``slow`` - ``fast``) seconds; ``letter``: the run that took longer; ``held``: whether the
    time of a step is that held over the steps done, so that its stops count."""

    letter: str
    gpus: Value
    steps: Value
    slow: Value
    fast: Value
    hours: float
    held: bool


def pace(rows: Sequence[Row]) -> Row | None:
    """The row that tells best how long a step took; None where neither does."""
    for label in (STEP_TIME, TIME_HELD):
        row = next((row for row in rows if row.label == label and row.differs is not None), None)
        if row is not None and row.a is not None and row.b is not None and row.a.number > 0 and row.b.number > 0:
            return row
    return None


def slowdown(a: Side, b: Side, rows: Sequence[Row]) -> Slowdown | None:
    """None where none took longer, or a step of one is not the work of a step of the other."""
    row = pace(rows)
    if row is None or not row.differs or row.a is None or row.b is None or unlike(rows) or sizes(rows):
        return None
    letter, side, slow, fast = ("B", b, row.b, row.a) if row.b.number > row.a.number else ("A", a, row.a, row.b)
    steps = steps_done(side)
    if row.label == TIME_HELD and side.run.disposition in BAD_STATES:
        return None  # what it lost by failing is told of it by itself
    if side.allocation is None or steps is None:
        return None
    slow, fast = (derived(float(f"{each.number:.4g}"), each, unit="s") for each in (slow, fast))
    gpus = side.allocation.gpus
    hours = round(gpus.number * steps.number * (slow.number - fast.number) / 3600, 3)
    return Slowdown(letter, gpus, steps, slow, fast, hours, row.label == TIME_HELD)
