"""Did the run stand still before it was ended: silence against its own rhythm. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from trackside.evidence import Evidence, Value, derived
from trackside.facts.logs.ending import ENDING, LIFE, LIVE_STATES, last_job, silence_s
from trackside.facts.maths import finite
from trackside.facts.training.learning import LEARNING, number, step_seconds, steps_done, training_points
from trackside.finding import Claim, claim
from trackside.model import Run
from trackside.query import Query, events

SILENCE: Mapping[str, Query] = {**LIFE, **LEARNING, **ENDING, "hosts": events("host")}
"""What tells whether a run went silent, and how many processes it had."""

REAPED = ("TIMEOUT", "DEADLINE", "CANCELLED", "RUNNING")
"""States of runs that did not end by themselves."""


@dataclass(frozen=True)
class Quiet:
    """When silence is no longer the rhythm of the run."""

    intervals: float = 10.0
    """Printed intervals without a word; evaluation and saves take a few."""
    least_s: float = 600.0
    """NCCL's default time-out; evaluations and saves of healthy runs stay under it."""
    share: float = 0.25
    """Of the run's duration, where that is shorter than ``least_s`` would tell."""
    unstamped_share: float = 0.6
    """Of the run's duration that its steps do not account for, where lines carry no time: start-up and saves
    may take the rest."""
    open_share: float = 0.35
    """The same, from which it is open what the run did then: start-up, saves and evaluations take a third at most of
    runs that are well."""


def stood_still(evidence: Evidence, run: Run, limits: Quiet) -> tuple[Value, bool] | None:
    """(seconds of standing still, whether time stamps prove it); None where it worked on or nothing tells."""
    progress = evidence["progress"]
    points = training_points(progress)
    seconds = duration(evidence)
    if points and points[-1].time is None:
        left = _left(evidence, seconds) if seconds is not None else None
        if left is None or seconds is None or left.number < limits.unstamped_share * seconds.number:
            return None
        return left, False
    quiet = silence_s(evidence, run)
    if quiet is None:
        return None
    length = quiet.number
    times = [row.time for row in points if row.time is not None]
    gaps = sorted(finite([after - before for before, after in pairwise(times) if after > before]))
    rhythm = gaps[len(gaps) // 2] if gaps else 0.0
    long = length >= limits.least_s or (seconds is not None and length >= limits.share * seconds.number)
    return (quiet, True) if long and length >= limits.intervals * rhythm else None


def duration(evidence: Evidence) -> Value | None:
    """The run's elapsed seconds by its accounting record."""
    jobs = evidence["jobs"]
    row = last_job(jobs)
    if row is None:
        return None
    start, end = row.get("start"), row.get("end")
    if isinstance(row.get("elapsed_s"), (int, float)):
        return jobs.value(row, "elapsed_s", "s")
    if isinstance(start, (int, float)) and isinstance(end, (int, float)):
        return derived(end - start, jobs.value(row, "start", "time"), jobs.value(row, "end", "time"), unit="s")
    return None


def unaccounted(evidence: Evidence, limits: Quiet) -> Value | None:
    """Seconds that the steps done, at their printed pace, don't account for, where lines carry no time and that is
    more than saves and start-up usually take: what the run did then is open."""
    points = training_points(evidence["progress"])
    seconds = duration(evidence)
    if not points or points[-1].time is not None or seconds is None:
        return None
    left = _left(evidence, seconds)
    return left if left is not None and left.number >= max(limits.least_s, limits.open_share * seconds.number) else None


def _left(evidence: Evidence, seconds: Value) -> Value | None:
    """Seconds of the run that the steps done, at their printed pace, leave."""
    progress = evidence["progress"]
    last = training_points(progress)[-1]
    spent = number(last, "elapsed_s")
    if spent is not None:
        sources: tuple[Value, ...] = (seconds, progress.value(last, "elapsed_s", "s"))
        return derived(round(seconds.number - spent, 1), *sources, unit="s")
    pace = step_seconds(training_points(progress), progress)
    done = steps_done(progress, evidence["ends"])
    if pace is None or done is None:
        return None
    return derived(round(seconds.number - done.number * pace.number, 1), seconds, done, pace, unit="s")


def several_ranks(evidence: Evidence, run: Run) -> bool:
    """Whether more than one process took part, as far as anything tells: training scripts run one for each GPU."""
    if len(run.nodes) > 1 or (run.n_ranks or 0) > 1 or (run.n_ranks is None and (run.n_gpus or 0) > 1):
        return True
    for name in ("hosts", "inits", "ready", "communicators"):
        for row in evidence[name].events:
            sizes = (row.get("world_size"), row.get("nranks"), row.get("nnodes"))
            if any(isinstance(size, int) and size > 1 for size in sizes) or row.get("command") == "torchrun":
                return True
    return False


def ended(state: Value) -> Claim:
    """How the run ended, or that it did not."""
    return claim("running" if state.value in LIVE_STATES else "ended", state=state)
