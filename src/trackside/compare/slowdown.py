"""The extra GPU-hours that the slower of two runs took for the same steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trackside.compare.setup import size_differences, workload_differences
from trackside.compare.side import ComparedRow, Side
from trackside.compare.training import ELAPSED_PER_STEP, LOOP_PER_STEP, STEP_TIME, steps_done
from trackside.evidence import Value, derived
from trackside.facts.logs.ending import BAD_STATES


@dataclass(frozen=True, slots=True)
class Slowdown:
    """``gpus`` x ``steps`` x (``slow`` - ``fast``) seconds. ``letter``: the slower run. ``measure``: the label of the
    row about the step time."""

    letter: str
    gpus: Value
    steps: Value
    slow: Value
    fast: Value
    hours: float
    measure: str


def pace(rows: Sequence[ComparedRow]) -> ComparedRow | None:
    """The best row about the step time; None if it is unknown."""
    for label in (STEP_TIME, LOOP_PER_STEP, ELAPSED_PER_STEP):
        row = next((row for row in rows if row.label == label and row.differs is not None), None)
        if row is not None and row.a is not None and row.b is not None and row.a.number > 0 and row.b.number > 0:
            return row
    return None


def slowdown(a: Side, b: Side, rows: Sequence[ComparedRow]) -> Slowdown | None:
    """The extra GPU-hours; None if neither run is slower, or their steps are not the same amount of work."""
    row = pace(rows)
    if (
        row is None
        or not row.differs
        or row.a is None
        or row.b is None
        or workload_differences(rows)
        or size_differences(rows)
    ):
        return None
    letter, side, slow, fast = ("B", b, row.b, row.a) if row.b.number > row.a.number else ("A", a, row.a, row.b)
    steps = steps_done(side)
    if row.label != STEP_TIME and side.run.disposition in BAD_STATES:
        return None  # the verdict already counts what a failed run lost
    if side.allocation is None or steps is None:
        return None
    slow, fast = (derived(float(f"{value.number:.4g}"), value, unit="s") for value in (slow, fast))
    gpus = side.allocation.gpus
    hours = round(gpus.number * steps.number * (slow.number - fast.number) / 3600, 3)
    return Slowdown(letter, gpus, steps, slow, fast, hours, row.label)
