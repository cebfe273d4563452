"""What two runs' training points tell beside each other, paired by step. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from trackside.compare.divergence import LEAST, parting, rule
from trackside.compare.side import Row, Side, either
from trackside.evidence import Value, derived
from trackside.facts.training.learning import number, step_seconds
from trackside.model import Event

TOPIC = "training"
STEP_TIME, TIME_HELD = "time of a step, median", "time held for each step"
"""Labels of the rows that tell a run's pace, the better one first."""
CURVES: Sequence[tuple[str, str, str, float]] = (
    ("loss", "loss", "", 0.03),
    ("lr", "learning rate", "", 0.01),
    ("grad_norm", "gradient norm", "", 0.25),
    ("step_time_s", "time of a step", "s", 0.1),
    ("throughput", "throughput", "", 0.1),
)
"""Field of a training point, what it is called, its unit, and the share of its level that counts as apart."""
SCORES = 0.1
"""The same of the figures of an evaluation."""
Pair = tuple[Event, Event]


def rows(a: Side, b: Side) -> Iterator[Row]:
    """Loss, learning rate, gradient norm and pace, at equal steps; then the pace, the start and the checkpoints."""
    both = _paired(a, b)
    for name, label, unit, share in CURVES:
        yield _curve(a, b, both, name, label, unit, share)
    yield from _evaluations(a, b)
    yield either(TOPIC, STEP_TIME, step_seconds(a.points, a.progress),
                 step_seconds(b.points, b.progress), 0.1)  # fmt: skip
    yield either(TOPIC, "last step", _last(a), _last(b))
    yield either(TOPIC, TIME_HELD, _held(a), _held(b), 0.1)
    yield either("start", "from the start to the first training point", _begun(a), _begun(b), 0.5)
    yield either("checkpoints", "steps between checkpoints, median", _interval(a), _interval(b), 0.1)


def _paired(a: Side, b: Side) -> list[tuple[Event, Event]]:
    """Points of equal step, the last of each step that was printed twice."""
    steps = {step: row for row in b.points if (step := number(row, "step")) is not None}
    mine = {step: row for row in a.points if (step := number(row, "step")) is not None}
    return [(row, steps[step]) for step, row in sorted(mine.items()) if step in steps]


def _curve(a: Side, b: Side, both: Sequence[Pair], name: str, label: str, unit: str, share: float) -> Row:
    held = [(x, y) for x, y in both if _told(x, name) is not None and _told(y, name) is not None]
    if name == "throughput" and len({row.get("throughput_unit") for pair in held for row in pair}) > 1:
        return Row(TOPIC, label, differs=None, why="the runs print it in different units")
    place = parting([_told(x, name) or 0.0 for x, _ in held], [_told(y, name) or 0.0 for _, y in held], share)
    if place is None and len(held) < LEAST:
        return Row(TOPIC, label, differs=None, why=_too_few(a, b, name, len(held)))
    one, other = held[-1 if place is None else place]
    step = number(one, "step") or 0.0
    values = _value(a, one, name, unit), _value(b, other, name, unit)
    at = f"{label} at step {step:,.0f}"
    if place is None:
        last = f"{at}, the last of {len(held):,} that both print"
        return Row(TOPIC, last, *values, False, rule(share, "steps"), name=at)
    seconds = _seconds(a, b, one, other)
    return Row(TOPIC, at, *values, True, rule(share, "steps"), step=step, seconds=seconds, name=label, of=name)


def _evaluations(a: Side, b: Side) -> Iterator[Row]:
    """Scores and losses of evaluations at equal steps, or epochs where steps aren't told."""
    frames = a.printed("evaluation"), b.printed("evaluation")
    told = [_scores(frame.events) for frame in frames]
    for metric in sorted(told[0].keys() & told[1].keys()):
        places = sorted(told[0][metric].keys() & told[1][metric].keys())
        held = [(told[0][metric][place], told[1][metric][place]) for place in places]
        place = parting([_score(row) for row, _ in held], [_score(row) for _, row in held], SCORES)
        if place is None and len(held) < LEAST:
            yield Row(TOPIC, metric, why=f"only {len(held)} evaluations are told by both")
            continue
        index = -1 if place is None else place
        kind, where = places[index]
        one, other = held[index]
        values = frames[0].value(one, "value"), frames[1].value(other, "value")
        label = f"{metric} at {kind} {where:,.6g}"
        compared = Row(TOPIC, label, *values, False, rule(SCORES, "evaluations"), name=label)
        if place is not None:
            step, epoch = (where, "") if kind == "step" else (None, f"epoch {where:,.6g}")
            seconds = _seconds(a, b, one, other)
            compared = replace(compared, differs=True, step=step, seconds=seconds, place=epoch, name=metric)
        yield compared


def _score(row: Event) -> float:
    return number(row, "value") or 0.0


def _scores(rows: Sequence[Event]) -> dict[str, dict[tuple[str, float], Event]]:
    """metric -> (step or epoch) -> its evaluation."""
    found: dict[str, dict[tuple[str, float], Event]] = {}
    for row in rows:
        for kind in ("step", "epoch"):
            at = number(row, kind)
            if at is not None and number(row, "value") is not None:
                found.setdefault(str(row.get("metric") or "evaluation"), {})[kind, at] = row
                break
    return found


def _value(side: Side, row: Event, name: str, unit: str) -> Value:
    """As printed; a loss that is hidden for not being a number, by the gradient norm that shows it."""
    told = _told(row, name)
    if told is not None and math.isnan(told) and number(row, name) == 0:
        return derived(told, side.progress.value(row, "grad_norm"))
    return side.progress.value(row, name, unit)


def _told(row: Event, name: str) -> float | None:
    value = number(row, name)
    if value == 0 and name == "loss" and math.isnan(number(row, "grad_norm") or 0.0):
        return math.nan  # how Transformers prints a loss that is none
    return value


def _too_few(a: Side, b: Side, name: str, shared: int) -> str:
    for letter, side in (("A", a), ("B", b)):
        if not any(number(row, name) is not None for row in side.points):
            return f"run {letter} prints none"
    return f"only {shared} steps are told by both" if shared else "no step is told by both"


def _seconds(a: Side, b: Side, one: Event, other: Event) -> float | None:
    """Since the start, of the run that came there first; None where neither tells a time."""
    told = (a.since_start(one), b.since_start(other))
    return min((seconds for seconds in told if seconds is not None), default=None)


def _last(side: Side) -> Value | None:
    rows = [row for row in side.points if number(row, "step") is not None]
    return side.progress.value(rows[-1], "step") if rows else None


def _held(side: Side) -> Value | None:
    """The whole time of the run over its steps: start-up, saves and pauses are in it."""
    done, elapsed = steps_done(side), side.recorded("elapsed_s", "s")
    if done is None or elapsed is None:
        return None
    return derived(float(f"{elapsed.number / done.number:.4g}"), elapsed, done, unit="s")


def steps_done(side: Side) -> Value | None:
    """How many steps it did, the earlier ones of a run that goes on from a checkpoint left out."""
    last, first = _last(side), side.points[0].get("step") if side.points else None
    if last is None or last.number < LEAST or not isinstance(first, (int, float)):
        return None
    done = last.number - (first if first > last.number / 2 else 0)
    return derived(done, last, unit="steps") if done > 0 else None


def _begun(side: Side) -> Value | None:
    start = side.recorded("start", "time")
    stamped = [row for row in side.points if row.time is not None]
    if start is None or not stamped or (stamped[0].time or 0.0) < start.number:
        return None
    first = side.progress.value(stamped[0], "time", "time")
    return derived(round(first.number - start.number, 1), start, first, unit="s")


def _interval(side: Side) -> Value | None:
    frame = side.printed("checkpoint_saved")
    steps = {step: row for row in frame.events if (step := number(row, "step")) is not None}
    if len(steps) < 2:
        return None
    ordered = sorted(steps)
    ends = [frame.value(steps[step], "step") for step in (ordered[0], ordered[-1])]
    return derived(median(after - before for before, after in pairwise(ordered)), *ends, unit="steps")
