"""Compares the logged steps of two runs, paired by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from trackside.compare.divergence import MIN_POINTS, first_divergence, rule
from trackside.compare.side import ComparedRow, Side, compare_values
from trackside.evidence import Value, derived
from trackside.facts.training.learning import cited_loss, numeric_field, printed_loss, step_seconds
from trackside.families import families
from trackside.finding import Outcome
from trackside.model import Event
from trackside.verdict import cost

TOPIC = "training"
STEP_TIME, LOOP_PER_STEP, ELAPSED_PER_STEP = (
    "median step time",
    "time per step from the first to the last logged step",
    "elapsed time per step",
)
"""Labels of the rows about a run's pace, the more precise one first."""
QUANTITIES: Sequence[tuple[str, str, str, float]] = (
    ("loss", "loss", "", 0.03),
    ("lr", "learning rate", "", 0.01),
    ("grad_norm", "gradient norm", "", 0.25),
    ("step_time_s", "step time", "s", 0.1),
    ("throughput", "throughput", "", 0.1),
)
"""(field of a logged step, label, unit, minimum difference as a share of the level)."""
MIN_SCORE_RATIO = 0.1
"""Minimum difference of an evaluation score, as a share of its level."""
Pair = tuple[Event, Event]


def rows(a: Side, b: Side) -> Iterator[ComparedRow]:
    """Loss, learning rate, gradient norm, step time and throughput at equal steps; evaluations; pace, startup time and
    checkpoint interval."""
    both = _pairs(a, b)
    for name, label, unit, share in QUANTITIES:
        yield _quantity_row(a, b, both, name, label, unit, share)
    yield from _evaluations(a, b)
    yield compare_values(
        TOPIC, STEP_TIME, _step_seconds(a), _step_seconds(b), 0.1, "too few steps behind the first, which is a warm-up"
        if any(len(side.points) == 1 for side in (a, b)) else "",
    )  # fmt: skip
    yield compare_values(TOPIC, "last logged step", _last_step(a), _last_step(b))
    loops = _loop_per_step(a), _loop_per_step(b)
    if None not in loops:
        yield compare_values(TOPIC, LOOP_PER_STEP, *loops, 0.1)
    else:
        yield compare_values(TOPIC, ELAPSED_PER_STEP, _elapsed_per_step(a), _elapsed_per_step(b), 0.1)
    yield compare_values("start", "time from the start to the first logged step", _startup(a), _startup(b), 0.5)
    yield compare_values(
        "checkpoints", "median steps between checkpoints", _checkpoint_interval(a), _checkpoint_interval(b), 0.1
    )


def _pairs(a: Side, b: Side) -> list[tuple[Event, Event]]:
    """The points of both runs at equal steps. If a step was printed twice, its last point counts."""
    steps_b = {step: row for row in b.points if (step := numeric_field(row, "step")) is not None}
    steps_a = {step: row for row in a.points if (step := numeric_field(row, "step")) is not None}
    return [(row, steps_b[step]) for step, row in sorted(steps_a.items()) if step in steps_b]


def _quantity_row(
    a: Side, b: Side, both: Sequence[Pair], name: str, label: str, unit: str, share: float
) -> ComparedRow:
    pairs = [(x, y) for x, y in both if _number_of(x, name) is not None and _number_of(y, name) is not None]
    if name == "throughput" and len({row.get("throughput_unit") for pair in pairs for row in pair}) > 1:
        return ComparedRow(TOPIC, label, differs=None, why="the runs print it in different units")
    values_a = [_number_of(row, name) or 0.0 for row, _ in pairs]
    values_b = [_number_of(row, name) or 0.0 for _, row in pairs]
    index = first_divergence(values_a, values_b, share)
    if index is None and len(pairs) < MIN_POINTS:
        return ComparedRow(TOPIC, label, differs=None, why=_too_few(a, b, name, len(pairs)))
    row_a, row_b = pairs[-1 if index is None else index]
    step = numeric_field(row_a, "step") or 0.0
    values = _cited_value(a, row_a, name, unit), _cited_value(b, row_b, name, unit)
    label_at_step = f"{label} at step {step:,.0f}"
    if index is None:
        last_label = f"{label_at_step}, the last of {len(pairs):,} that both print"
        return ComparedRow(TOPIC, last_label, *values, False, rule(share, "steps"), name=label_at_step)
    seconds, clock = _earliest_s(a, b, row_a, row_b)
    return ComparedRow(
        TOPIC, label_at_step, *values, True, rule(share, "steps"), step=step, seconds=seconds, clock=clock, name=label,
        quantity=name,
    )  # fmt: skip


def _step_seconds(side: Side) -> Value | None:
    """The seconds of a step, without the first one, which includes the warm-up; of the first one if no step follows."""
    return step_seconds(side.points[1:], side.progress)


def _evaluations(a: Side, b: Side) -> Iterator[ComparedRow]:
    """Scores and losses of evaluations at equal steps, or at equal epochs if steps are unknown."""
    frames = a.log_events("evaluation"), b.log_events("evaluation")
    scores_a, scores_b = (_by_metric(frame.events) for frame in frames)
    for metric in sorted(scores_a.keys() & scores_b.keys()):
        positions = sorted(scores_a[metric].keys() & scores_b[metric].keys())
        pairs = [(scores_a[metric][position], scores_b[metric][position]) for position in positions]
        index = first_divergence([_score(row) for row, _ in pairs], [_score(row) for _, row in pairs], MIN_SCORE_RATIO)
        if index is None and len(pairs) < MIN_POINTS:
            yield ComparedRow(TOPIC, metric, why=f"evaluations in common: only {len(pairs)}")
            continue
        shown_index = -1 if index is None else index
        kind, position = positions[shown_index]
        row_a, row_b = pairs[shown_index]
        values = frames[0].value(row_a, "value"), frames[1].value(row_b, "value")
        label = f"{metric} at {kind} {position:,.6g}"
        row = ComparedRow(TOPIC, label, *values, False, rule(MIN_SCORE_RATIO, "evaluations"), name=label)
        if index is not None:
            step, epoch = (position, "") if kind == "step" else (None, f"epoch {position:,.6g}")
            seconds, clock = _earliest_s(a, b, row_a, row_b)
            row = replace(row, differs=True, step=step, seconds=seconds, clock=clock, epoch=epoch, name=metric)
        yield row


def _score(row: Event) -> float:
    return numeric_field(row, "value") or 0.0


def _by_metric(rows: Sequence[Event]) -> dict[str, dict[tuple[str, float], Event]]:
    """metric -> (``step`` or ``epoch``, its number) -> evaluation."""
    by_metric: dict[str, dict[tuple[str, float], Event]] = {}
    for row in rows:
        for kind in ("step", "epoch"):
            position = numeric_field(row, kind)
            if position is not None and numeric_field(row, "value") is not None:
                by_metric.setdefault(str(row.get("metric") or "evaluation"), {})[kind, position] = row
                break
    return by_metric


def _cited_value(side: Side, row: Event, name: str, unit: str) -> Value:
    return cited_loss(side.progress, row) if name == "loss" else side.progress.value(row, name, unit)


def _number_of(row: Event, name: str) -> float | None:
    return printed_loss(row) if name == "loss" else numeric_field(row, name)


def _too_few(a: Side, b: Side, name: str, shared: int) -> str:
    silent = [
        letter
        for letter, side in (("A", a), ("B", b))
        if not any(numeric_field(row, name) is not None for row in side.points)
    ]
    if silent:
        return "not recognized in either run" if len(silent) > 1 else f"not recognized in run {silent[0]}"
    return f"steps in common: only {shared}" if shared else "no steps in common"


def _earliest_s(a: Side, b: Side, row_a: Event, row_b: Event) -> tuple[float | None, str]:
    """Seconds from the start, of the run that reached the point first as far as is known, and its letter; None and
    nothing if both times are unknown."""
    times_s = ((a.since_start(row_a), "A"), (b.since_start(row_b), "B"))
    return min(((seconds, letter) for seconds, letter in times_s if seconds is not None), default=(None, ""))


def _last_step(side: Side) -> Value | None:
    rows = [row for row in side.points if numeric_field(row, "step") is not None]
    return side.progress.value(rows[-1], "step") if rows else None


def _loop_per_step(side: Side) -> Value | None:
    """Seconds per step by the training loop's own clock; includes checkpoints and pauses between logged steps."""
    timed = [row for row in side.points if None not in (numeric_field(row, "step"), numeric_field(row, "elapsed_s"))]
    if len(timed) < 2:
        return None
    (first, first_s), (last, last_s) = (
        (side.progress.value(row, "step"), side.progress.value(row, "elapsed_s", "s")) for row in (timed[0], timed[-1])
    )
    if last.number <= first.number or last_s.number <= first_s.number:
        return None
    seconds = (last_s.number - first_s.number) / (last.number - first.number)
    return derived(float(f"{seconds:.4g}"), last_s, last, first_s, first, unit="s")


def _elapsed_per_step(side: Side) -> Value | None:
    """The run's time up to the fault that ended its work, else its elapsed time, divided by its steps; includes
    startup, checkpoints and pauses."""
    done, elapsed = steps_done(side), _until_fault(side) or side.record_value("elapsed_s", "s")
    if done is None or elapsed is None:
        return None
    return derived(float(f"{elapsed.number / done.number:.4g}"), elapsed, done, unit="s")


def _until_fault(side: Side) -> Value | None:
    """Seconds from the start to the fault that ended the work; None if there is none, or its time is not known."""
    kind = next((family.cost_kind for family in families() if family.code == side.primary.family), "nothing")
    if side.allocation is None or side.primary.outcome is not Outcome.FOUND or kind not in ("work", "stopped"):
        return None
    start, since = side.allocation.start, cost.onset_of(side.primary, side.allocation)
    if since is None or since.number <= start.number:
        return None
    return derived(round(since.number - start.number, 1), since, start, unit="s")


def steps_done(side: Side) -> Value | None:
    """The number of steps done; without those before the checkpoint from which the run resumed."""
    last, first = _last_step(side), side.points[0].get("step") if side.points else None
    if last is None or last.number < MIN_POINTS or not isinstance(first, (int, float)):
        return None
    done = last.number - (first if first > last.number / 2 else 0)
    return derived(done, last, unit="steps") if done > 0 else None


def _startup(side: Side) -> Value | None:
    """Seconds from the start of the job to the first logged step."""
    start = side.record_value("start", "time")
    stamped = [row for row in side.points if row.time is not None]
    if start is None or not stamped or (stamped[0].time or 0.0) < start.number:
        return None
    first = side.progress.value(stamped[0], "time", "time")
    return derived(round(first.number - start.number, 1), start, first, unit="s")


def _checkpoint_interval(side: Side) -> Value | None:
    frame = side.log_events("checkpoint_saved")
    steps = {step: row for row in frame.events if (step := numeric_field(row, "step")) is not None}
    if len(steps) < 2:
        return None
    ordered = sorted(steps)
    ends = [frame.value(steps[step], "step") for step in (ordered[0], ordered[-1])]
    return derived(median(after - before for before, after in pairwise(ordered)), *ends, unit="steps")
