"""How many GPUs did the run hold, and for how long? Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from trackside.catalog.job_states import goes_on
from trackside.evidence import Evidence, Frame, Value, derived
from trackside.facts.logs.ending import last_job
from trackside.facts.training.learning import number
from trackside.facts.trust.trust import LIMITS
from trackside.finding import Claim, claim
from trackside.model import Record, Run
from trackside.query import Query, Row, events, metric, record

HELD_BY = ("gpu_utilization_ratio", "gpu_memory_used_bytes", "gpu_power_watts")
"""Metrics whose being sampled shows for how long GPUs were there, where the scheduler doesn't say."""
SAME_S = 2.0
"""Seconds by which two sources may differ on the start of one attempt."""
_WORLDS = (("hosts", "world_size"), ("inits", "world_size"), ("ready", "world_size"), ("communicators", "nranks"))

HOLDING: Mapping[str, Query] = {
    "jobs": record("job"),
    "logs": events("log_activity"),
    "hosts": events("host"),
    "inits": events("distributed_init"),
    "ready": events("distributed_ready"),
    "communicators": events("nccl_init"),
    **{name: metric(name).over("run", "count") for name in HELD_BY},
}
"""What tells."""
SAYS: Mapping[str, str] = {
    "held": "{gpus} x {seconds:plain} s / {hour:plain} s an hour = {hours:plain} GPU-hours",
    "held_by_attempt": "{gpus} x {seconds:plain} s in {attempts:plain} attempts / {hour:plain} s an hour = "
    "{hours:plain} GPU-hours",
    "by_scheduler": "as the scheduler has it, from start to end",
    "by_metrics": "for as long as its GPUs were measured",
    "by_log": "one GPU a rank, from the first to the last time stamp of its log",
    "no_gpus": "how many GPUs it held: no scheduler record, no metric and no line of its log tells",
    "no_span": "how long it held them: no scheduler record, no metric and no time stamp of its log tells",
}


@dataclass(frozen=True, slots=True)
class Held:
    """GPUs, and from when to when, POSIX seconds, the last attempt held them; the hours are those of all attempts."""

    gpus: Value
    start: Value
    end: Value
    hours: Value
    formula: Claim
    assumption: Claim
    going: bool = False
    """Whether it still holds them: ``end`` is the present."""

    @property
    def seconds(self) -> float:
        """Of the last attempt."""
        return self.end.number - self.start.number

    def during(self, start: Value, end: Value) -> Held:
        """The same GPUs, held by another attempt."""
        return replace(self, start=start, end=end)


def held(evidence: Evidence, run: Run) -> Held | Claim:
    """What the run held, or the sentence that says why that isn't known: by the scheduler's record, else by how long
    its GPUs were measured, else by its log."""
    jobs = evidence["jobs"]
    row = last_job(jobs)
    gpus = _gpus(evidence, run, jobs, row)
    if gpus is None:
        return claim("no_gpus")
    ways: Mapping[str, Callable[[Evidence, Run], tuple[Value, Value] | None]] = {
        "by_scheduler": _recorded, "by_metrics": _measured, "by_log": _logged
    }  # fmt: skip
    for way, told in ways.items():
        span = told(evidence, run)
        if span is not None and span[1].number > span[0].number:
            return _of(jobs, run, gpus, *span, way)
    return claim("no_span")


def hours(gpus: Value, seconds: Value, *sources: Value) -> Value:
    """GPU-hours, to the thousandth."""
    return derived(round(gpus.number * seconds.number / 3600, 3), gpus, seconds, *sources, unit="GPU h")


def length(start: Value, end: Value) -> Value:
    """Seconds between two moments, each counted to the second as it is shown: parts that meet add up to the whole."""
    return derived(max(0, math.floor(end.number) - math.floor(start.number)), start, end, unit="s")


def hour(source: Value) -> Value:
    """The seconds of an hour, as a formula names them."""
    return derived(3600, source)


def _of(jobs: Frame, run: Run, gpus: Value, start: Value, end: Value, way: str) -> Held:
    seconds = length(start, end)
    earlier = _earlier(jobs, run) if way == "by_scheduler" else []
    told = {"gpus": gpus, "seconds": seconds, "hour": hour(gpus)}
    key = "held"
    if earlier:
        total = derived(seconds.number + sum(each.number for each in earlier), seconds, *earlier, unit="s")
        told |= {"seconds": total, "attempts": derived(len(earlier) + 1, total)}
        key = "held_by_attempt"
    total_hours = hours(gpus, told["seconds"])
    formula = claim(key, **told, hours=total_hours)
    return Held(gpus, start, end, total_hours, formula, claim(way), goes_on(run.disposition))


def _earlier(jobs: Frame, run: Run) -> list[Value]:
    """Seconds of each attempt before the last."""
    return [length(*span) for attempt in run.attempts[:-1] if (span := attempt_span(jobs, attempt.start)) is not None]


def attempt_span(jobs: Frame, start: float | None) -> tuple[Value, Value] | None:
    """Start and end of the attempt that began at a time, as a record tells them."""
    for row in jobs.records:
        began = number(row, "start")
        if start is not None and began is not None and abs(began - start) <= SAME_S and number(row, "end") is not None:
            return jobs.value(row, "start", "time"), jobs.value(row, "end", "time")
    return None


def _gpus(evidence: Evidence, run: Run, jobs: Frame, row: Record | None) -> Value | None:
    if row is not None:
        rows = [row, *(each for each in reversed(jobs.records) if each is not row)]
        if (told := next((each for each in rows if number(each, "n_gpus")), None)) is not None:
            return jobs.value(told, "n_gpus", "GPUs")
    if run.n_gpus and run.gpus_by != "all":
        for name in HELD_BY:
            if (grid := evidence.grid(name)) is not None:
                return derived(run.n_gpus, grid.value("count"), unit="GPUs")
    return None if row is not None or not run.n_ranks else _world(evidence, run.n_ranks)


def _world(evidence: Evidence, ranks: int) -> Value | None:
    """The line that tells of so many ranks."""
    for name, field in _WORLDS:
        frame = evidence[name]
        for event in frame.events:
            if event.get(field) == ranks:
                return frame.value(event, field, "GPUs")
    return None


def _recorded(evidence: Evidence, run: Run) -> tuple[Value, Value] | None:
    jobs = evidence["jobs"]
    row = last_job(jobs)
    if row is None or number(row, "start") is None:
        return None
    start, end, elapsed = jobs.value(row, "start", "time"), number(row, "end"), number(row, "elapsed_s")
    if end is not None and not goes_on(run.disposition):
        return start, jobs.value(row, "end", "time")
    if elapsed is not None:
        return start, derived(start.number + elapsed, start, jobs.value(row, "elapsed_s", "s"), unit="time")
    return None if run.end is None else (start, derived(run.end, start, unit="time"))


def _measured(evidence: Evidence, run: Run) -> tuple[Value, Value] | None:
    if not run.n_gpus or run.gpus_by == "all":
        return None
    for name in HELD_BY:
        grid = evidence.grid(name)
        if grid is not None and np.mean(~np.isnan(grid.values)) >= LIMITS.covered_share:
            count = grid.value("count")
            ends = float(grid.times[0]) - grid.step, float(grid.times[-1])
            return derived(ends[0], count, unit="time"), derived(ends[1], count, unit="time")
    return None


def _logged(evidence: Evidence, run: Run) -> tuple[Value, Value] | None:
    logs = evidence["logs"]
    rows = [row for row in logs.events if not run.log_paths or row.at.path in run.log_paths]
    first = min((row for row in rows if number(row, "first_time") is not None), key=_first, default=None)
    last = max((row for row in rows if number(row, "last_time") is not None), key=_last, default=None)
    if first is None or last is None:
        return None
    return logs.value(first, "first_time", "time"), logs.value(last, "last_time", "time")


def _first(row: Row) -> float:
    return number(row, "first_time") or 0.0


def _last(row: Row) -> float:
    return number(row, "last_time") or 0.0
