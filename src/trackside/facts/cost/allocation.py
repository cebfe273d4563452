"""Allocation: how many GPUs the run had, and for how long.

The sources, best first: the scheduler's record, the time over which its GPUs were measured, the timestamps of its log
(one GPU per rank).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trackside.catalog.job_states import is_active
from trackside.evidence import Evidence, Frame, Grid, Missing, Value, derived
from trackside.facts.fact import Maybe, fact
from trackside.facts.logs.ending import Ending
from trackside.facts.logs.silence import Silence
from trackside.facts.training.learning import numeric_field, step_seconds
from trackside.finding import Claim, Sentence
from trackside.model import Event, Run
from trackside.query import metric

SAMPLED = ("gpu_utilization_ratio", "gpu_memory_used_bytes", "gpu_power_watts")
"""Metrics whose samples show how long the GPUs were allocated if the scheduler's record does not."""

FORMULA = Sentence("{gpus} x {seconds:plain} s / {hour:plain} s/h = {hours:plain} GPU-hours")
FORMULA_OF_ATTEMPTS = Sentence(
    "{gpus} x {seconds:plain} s in {attempts:plain} attempts / {hour:plain} s/h = {hours:plain} GPU-hours"
)
BY_SCHEDULER = Sentence("the scheduler's allocation, from start to end")
BY_METRICS = Sentence("the time for which the run's GPUs were measured")
BY_LOG = Sentence("one GPU per rank, from the first to the last timestamp in the log")
NO_GPUS = "the number of allocated GPUs: no scheduler record, metric or recognized log line shows it"
NO_DURATION = (
    "how long the GPUs were allocated: no scheduler record or metric shows it, and no two timestamps were recognized "
    "in the log"
)
MEASURED_TOO_BRIEFLY = (
    "how long the GPUs were allocated: they were measured too briefly, and no scheduler record or timestamp in the "
    "log shows it"
)
STEPS_AFTER_STAMPS = (
    "how long the GPUs were allocated: no scheduler record or metric shows it, and the log has many logged steps "
    "after its last timestamp"
)
STEPS_OUTLAST_STAMPS = (
    "how long the GPUs were allocated: no scheduler record or metric shows it, and the log's steps took longer than "
    "its timestamps show"
)


@dataclass(frozen=True)
class Limits:
    """Tolerances when sources are compared."""

    same_s: float = 2.0
    """Two sources may differ by this much on the start of one attempt."""
    sampled_share: float = 0.5
    """Minimum share of the run's windows with a sample."""
    max_share_after: float = 0.1
    """Maximum share of the logged steps below the log's last timestamp."""
    outlast_ratio: float = 1.2
    """The log's steps may take this many times as long as its timestamps show: printed step times are rounded."""


LIMITS = Limits()


@dataclass(frozen=True, eq=False)
class Allocation:
    """GPUs and the start and end (POSIX seconds) of the last attempt; ``hours`` covers all attempts."""

    gpus: Value
    start: Value
    end: Value
    hours: Value
    formula: Claim
    assumption: Claim
    running: bool = False
    """Whether the GPUs are still allocated; then ``end`` is the present."""

    @property
    def at_least(self) -> bool:
        """Whether they were allocated for longer than ``hours``: a log's timestamps show only part of it."""
        return self.assumption.sentence is BY_LOG

    @property
    def seconds(self) -> float:
        """Duration of the last attempt."""
        return self.end.number - self.start.number

    def during(self, start: Value, end: Value) -> Allocation:
        """The allocation of these GPUs over the time of another attempt."""
        return replace(self, start=start, end=end)


@fact({name: metric(name).over("run", "count") for name in SAMPLED}, limits=LIMITS)
def allocation(evidence: Evidence, ending: Ending, silence: Silence, run: Run, limits: Limits) -> Maybe[Allocation]:
    """Needs a number of GPUs and a duration, from any of the sources; otherwise missing."""
    gpus = _gpus(evidence, ending, silence, run)
    if gpus is None:
        return Missing(NO_GPUS)
    sources: Sequence[tuple[Sentence, Callable[[], tuple[Value, Value] | None]]] = (
        (BY_SCHEDULER, lambda: _times_by_records(ending, run)),
        (BY_METRICS, lambda: _times_by_metrics(evidence, run, limits)),
        (BY_LOG, lambda: times_by_logs(silence.signs["logs"], run)),
    )
    for sentence, times_of in sources:
        times = times_of()
        if times is not None and times[1].number > times[0].number:
            earlier = _earlier(ending.jobs, run) if sentence is BY_SCHEDULER else []
            contradiction = _contradiction(silence, times, limits) if sentence is BY_LOG else ""
            return Missing(contradiction) if contradiction else _allocation(run, gpus, times, earlier, sentence())
    return Missing(MEASURED_TOO_BRIEFLY if _grid(evidence, limits) is not None else NO_DURATION)


def gpu_hours(gpus: Value, seconds: Value, *sources: Value) -> Value:
    """GPU-hours, rounded to three decimals."""
    return derived(round(gpus.number * seconds.number / 3600, 3), gpus, seconds, *sources, unit="GPU h")


def seconds_between(start: Value, end: Value) -> Value:
    """Seconds between two times, each floored to the second as displayed, so that adjacent parts add up to the
    total."""
    return derived(max(0, math.floor(end.number) - math.floor(start.number)), start, end, unit="s")


def hour(source: Value) -> Value:
    """3600 seconds, as a formula displays them."""
    return derived(3600, source)


def times_of_attempt(jobs: Frame, start: float | None) -> tuple[Value, Value] | None:
    """Start and end, from the job records, of the attempt that began at ``start``."""
    for row in jobs.records:
        attempt_start, end = numeric_field(row, "start"), numeric_field(row, "end")
        if (
            start is not None
            and attempt_start is not None
            and abs(attempt_start - start) <= LIMITS.same_s
            and end is not None
        ):
            return jobs.value(row, "start", "time"), jobs.value(row, "end", "time")
    return None


def _allocation(
    run: Run, gpus: Value, times: tuple[Value, Value], earlier: Sequence[Value], assumption: Claim
) -> Allocation:
    seconds = seconds_between(*times)
    if not earlier:
        hours = gpu_hours(gpus, seconds)
        formula = FORMULA(gpus=gpus, seconds=seconds, hour=hour(gpus), hours=hours)
    else:
        total = derived(seconds.number + sum(value.number for value in earlier), seconds, *earlier, unit="s")
        hours, attempts = gpu_hours(gpus, total), derived(len(earlier) + 1, total)
        formula = FORMULA_OF_ATTEMPTS(gpus=gpus, seconds=total, hour=hour(gpus), attempts=attempts, hours=hours)
    return Allocation(gpus, *times, hours, formula, assumption, is_active(run.disposition))


def _earlier(jobs: Frame, run: Run) -> list[Value]:
    """Seconds of each attempt before the last."""
    return [
        seconds_between(*times)
        for attempt in run.attempts[:-1]
        if (times := times_of_attempt(jobs, attempt.start)) is not None
    ]


def _gpus(evidence: Evidence, ending: Ending, silence: Silence, run: Run) -> Value | None:
    job, jobs = ending.job, ending.jobs
    if job is not None:
        rows = [job, *(row for row in reversed(jobs.records) if row is not job)]
        if (counted := next((row for row in rows if numeric_field(row, "n_gpus")), None)) is not None:
            return jobs.value(counted, "n_gpus", "GPUs")
    if run.n_gpus and run.gpus_by != "all":
        for name in SAMPLED:
            if (grid := evidence.grid(name)) is not None:
                return derived(run.n_gpus, grid.value("count"), unit="GPUs")
    return None if job is not None or not run.n_ranks else _world(silence, run.n_ranks)


def _world(silence: Silence, ranks: int) -> Value | None:
    """The log line that states this number of ranks."""
    for frame in (silence.hosts, *(silence.signs[name] for name in ("inits", "ready", "communicators"))):
        field = "nranks" if frame.query.kind == "nccl_init" else "world_size"
        for event in frame.events:
            if event.get(field) == ranks:
                return frame.value(event, field, "GPUs")
    return None


def _times_by_records(ending: Ending, run: Run) -> tuple[Value, Value] | None:
    jobs, job = ending.jobs, ending.job
    if job is None or numeric_field(job, "start") is None:
        return None
    start, elapsed = jobs.value(job, "start", "time"), numeric_field(job, "elapsed_s")
    if numeric_field(job, "end") is not None and not is_active(run.disposition):
        return start, jobs.value(job, "end", "time")
    if elapsed is not None:
        return start, derived(start.number + elapsed, start, jobs.value(job, "elapsed_s", "s"), unit="time")
    return None if run.end is None else (start, derived(run.end, start, unit="time"))


def _times_by_metrics(evidence: Evidence, run: Run, limits: Limits) -> tuple[Value, Value] | None:
    if not run.n_gpus or run.gpus_by == "all":
        return None
    grid = _grid(evidence, limits)
    if grid is None or len(grid.times) < 2:  # the length of a single window is that of the query
        return None
    count = grid.value("count")
    ends = float(grid.times[0]) - grid.step, float(grid.times[-1])
    return derived(ends[0], count, unit="time"), derived(ends[1], count, unit="time")


def _grid(evidence: Evidence, limits: Limits) -> Grid | None:
    """The first metric that was sampled most of the time."""
    grids = (grid for name in SAMPLED if (grid := evidence.grid(name)) is not None)
    return next((grid for grid in grids if np.mean(~np.isnan(grid.values)) >= limits.sampled_share), None)


def times_by_logs(logs: Frame, run: Run) -> tuple[Value, Value] | None:
    """The first and the last timestamp of the run's logs; None if they are not stamped."""
    rows = [row for row in logs.events if not run.log_paths or row.at.path in run.log_paths]
    firsts, lasts = (
        [logs.value(row, name, "time") for row in rows if numeric_field(row, name) is not None]
        for name in ("first_time", "last_time")
    )
    if not firsts or not lasts:
        return None
    return min(firsts, key=lambda value: value.number), max(lasts, key=lambda value: value.number)


def _contradiction(silence: Silence, times: tuple[Value, Value], limits: Limits) -> str:
    """Why the log's timestamps do not show how long it ran; empty if nothing contradicts them."""
    points, frame = silence.points, silence.signs["progress"]
    last_stamps = {row.at.path: _last_stamped_line(row) for row in silence.signs["logs"].events}
    after = sum(row.time is None and row.at.line > last_stamps.get(row.at.path, row.at.line) for row in points)
    if after > limits.max_share_after * len(points):
        return STEPS_AFTER_STAMPS
    shown = [number for row in points[-1:] if (number := numeric_field(row, "elapsed_s")) is not None]
    pace = step_seconds(points, frame)
    if pace is not None:
        part = numeric_field(points[-1], "run_part")
        numbers = [numeric_field(row, "step") for row in points if numeric_field(row, "run_part") == part]
        counted = [number for number in numbers if number is not None]
        shown += [(counted[-1] - counted[0]) * pace.number] if counted else []
    seconds = times[1].number - times[0].number
    return STEPS_OUTLAST_STAMPS if max(shown, default=0.0) > limits.outlast_ratio * seconds else ""


def _last_stamped_line(log: Event) -> int:
    """The number of a log's last line with a time, as far as its activity shows it."""
    unstamped = log.get("unstamped_lines")
    return log.at.line - (unstamped if isinstance(unstamped, int) else 0)
