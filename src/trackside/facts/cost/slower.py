"""How much longer did a slow run take than its own good phase would have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from trackside.evidence import Evidence, Grid, Store, Value, derived
from trackside.facts.cost.asked import Asked
from trackside.facts.cost.held import Held, hour, hours, length
from trackside.facts.cost.parts import KINDS
from trackside.facts.pace.pace import PACE, Pace, pace
from trackside.facts.trust.trust import Trust
from trackside.finding import Claim, Loss, claim
from trackside.model import Event

WORKING = 0.5
"""Of the usual level of the good phase: below it the run has not begun yet."""
LEAST = 1.1
"""Times as long, below which the two phases are the same: paces vary by a few hundredths."""

PACE_SAYS: Mapping[str, str] = {
    "slow": "the time that the same work took longer, from when it slowed down",
    "by_pace": "{gpus} x {longer:plain} s longer / {hour:plain} s an hour = {hours:plain} GPU-hours, where "
    "{longer:plain} s of the {seconds:plain} s, {since} to {until}, are what it took longer: {seconds:plain} s x "
    "({one:plain} - {fast:plain} / {slow:plain}), medians of {measure} before and after",
    "by_rate": "{gpus} x {longer:plain} s longer / {hour:plain} s an hour = {hours:plain} GPU-hours, where "
    "{longer:plain} s of the {seconds:plain} s, {since} to {until}, are what it took longer: {seconds:plain} s x "
    "({one:plain} - {slow:plain} / {fast:plain}), medians of {measure} after and before",
    "no_good_phase": "the slow-down: the run has no good phase before it to be compared with; compare it with a good "
    "run (trackside compare)",
    "not_slower": "the slow-down: the run went no faster before the fault was seen; compare it with a good run "
    "(trackside compare)",
}
"""Sentences."""
MEASURES: Mapping[str, str] = {
    "step": "seconds a step", "throughput": "throughput", "launches": "kernel launches in {window:g} s",
    "work": "SM activity",
}  # fmt: skip
"""What was compared; ``window``: seconds in which launches were counted."""


def slower(
    store: Store, trust: Trust, held: Held, since: Value | None, until: Value | None, points: Sequence[Event]
) -> Iterator[Loss | Claim]:
    """The slow-down from a moment on, by the pace before it."""
    if until is None:
        return  # all of it was thrown away, and counts as that
    if since is None or until.number <= since.number:
        yield claim("no_good_phase")
        return
    evidence = Evidence(Asked(store, trust, PACE))
    begun = _begun(evidence, held.start.number, since.number, points)
    if begun is None:
        yield claim("no_good_phase")
        return
    found = pace(evidence, (begun, since.number), (since.number, until.number))
    if found is None:
        yield claim("no_good_phase")
    elif found.slowdown < LEAST:
        yield claim("not_slower")
    else:
        grid = evidence.grid("launches") if found.kind == "launches" else None
        measure = MEASURES[found.kind].format(window=0.0 if grid is None else grid.step)
        yield _loss(held, since, until, found, measure)


def _loss(held: Held, since: Value, until: Value, found: Pace, measure: str) -> Loss:
    seconds = length(since, until)
    longer = derived(round(seconds.number * (1 - 1 / found.slowdown)), seconds, found.before, found.during, unit="s")
    lost = hours(held.gpus, longer)
    formula = claim(
        "by_pace" if found.kind == "step" else "by_rate",
        gpus=held.gpus, seconds=seconds, since=since, until=until, longer=longer, one=derived(1, longer),
        hour=hour(longer), hours=lost, slow=found.during, fast=found.before, measure=derived(measure, found.before),
    )  # fmt: skip
    kind, assumed = KINDS["slow"]
    return Loss(kind, lost, claim("slow"), formula, claim(assumed))


def _begun(evidence: Evidence, start: float, since: float, points: Sequence[Event]) -> float | None:
    """When work began: at the first training point, else when the GPUs first did what they mostly did before the
    fault. None where that was not before it."""
    stamped = [row.time for row in points if row.time is not None]
    if stamped:
        return stamped[0] if stamped[0] < since else None
    for name in ("launches", "step_seconds", "tokens", "samples", "sm"):
        grid = evidence.grid(name)
        if grid is not None and (found := _first(grid, start, since)) is not None:
            return found
    return None


def _first(grid: Grid, start: float, since: float) -> float | None:
    part = grid.during(start, since)
    if not len(part.times):
        return None
    level = np.array([np.nanmedian(column) if np.any(~np.isnan(column)) else np.nan for column in part.values.T])
    if not np.any(level > 0):
        return None
    working = level >= WORKING * np.nanmedian(level[level > 0])
    return float(part.times[np.argmax(working)]) - part.step
