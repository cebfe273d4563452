"""GPU under-utilised: the training loop waits for its input.

Meaning
-------
Each step spends most of its time waiting for the next batch. The GPU works in bursts and idles between them,
because reading, decoding or tokenising cannot keep up.

What it looks like
------------------
Progress lines that split the step: seconds of data wait above seconds of compute and communication, at most
points after the warm-up. Warnings of the DataLoader about too few or too many workers corroborate. In
metrics: kernel launches go on, but the engine's duty cycle is low with gaps of a step's length.

Not this when
-------------
The first points are slow only because caches and workers warm up. The model is small and fills no large GPU:
without a baseline that is at most a suspicion. The engine is pinned while collectives advance: that is the
interconnect. There are too few points.

Impact
------
The run completes, so nothing else says so; the share of wall time that is data wait is the waste.

Do next
-------
More loader workers and prefetch, data on local or faster storage, decoding and tokenising ahead of training.

What it cannot tell
-------------------
How fast it could be: that takes a throughput to compare with. Where no line splits the step and no metric
was collected, nothing at all.

References
----------
The catalogue of failure families, D1.
"""

from __future__ import annotations

from dataclasses import dataclass

from trackside.diagnose import maths
from trackside.diagnose.ending import ENDING, abnormal_end
from trackside.diagnose.family import Evidence, Family, absent, action, claim, found, unknown
from trackside.diagnose.learning import number, training_points
from trackside.model import Certainty, Event, Finding, Run, Value
from trackside.query import Frame, derived, events, metric


@dataclass(frozen=True)
class Limits:
    """What counts as starved."""

    least_points: int = 8
    """Points after the warm-up below which a share is chance."""
    warm_up_share: float = 0.1
    """Points left out at the start, at least one: first batches wait for workers and caches."""
    starved_share: float = 0.5
    """Median share of data wait from which the step is mostly waiting. A real eight-GPU run that was judged
    only mildly starved shows 0.1 to 0.2."""
    noticeable_share: float = 0.25
    """From here it is worth a warning."""


COLLECT = (
    "seconds of data wait a step, as most loops can print it",
    "GPU engine and SM activity at a second's resolution (DCGM fields PROF_GR_ENGINE_ACTIVE, PROF_SM_ACTIVE)",
)


def judge(evidence: Evidence, run: Run, limits: Limits) -> Finding:
    """The median share of data wait in the step, as the log itself states it."""
    progress = evidence["progress"]
    shares = [(part, row) for row in training_points(progress) if (part := _data_share(row)) is not None]
    kept = shares[max(1, int(len(shares) * limits.warm_up_share)) :]
    if len(kept) < limits.least_points:
        return unknown(["no line splits the step into data wait and compute, and no GPU activity was given"], COLLECT)
    level = maths.median([part for part, _ in kept])
    typical = min(kept, key=lambda pair: abs(pair[0] - level))[1]
    wait, step = _sides(progress, typical)
    share = derived(round(level, 3), wait, step)
    points = progress.reduce("count", "data_time_s", unit="points")
    if level < limits.noticeable_share:
        return absent(claim("fed", share=share, wait=wait, points=points))
    hints = [row for row in evidence["advice"].events if "loader" in str(row.get("about")).lower()]
    shows = [claim("starved", share=share, wait=wait, step=step, points=points)]
    shows += [claim("advised", line=evidence["advice"].value(row, "text")) for row in hints[:1]]
    severe = level >= limits.starved_share
    return found(
        Certainty.SUPPORTED if severe else Certainty.POSSIBLE,
        "job",
        shows,
        implies=[claim("input_bound")],
        cannot_decide=[claim("no_baseline")],
        actions=[action("feed")],
        since=kept[0][1].time,
        at=kept[0][1].at,
        latent=not severe or abnormal_end(evidence) is not None,
    )


def _data_share(row: Event) -> float | None:
    """Data wait over the whole step: over the step's time where printed, else over the sum of its parts."""
    wait = number(row, "data_time_s")
    parts = [value for name in ("compute_time_s", "comm_time_s") if (value := number(row, name)) is not None]
    step = number(row, "step_time_s")
    whole = max(step or 0.0, wait or 0.0) if step is not None else (wait or 0.0) + sum(parts)
    if wait is None or wait < 0 or whole <= 0 or (step is None and not parts):
        return None
    return wait / whole


def _sides(frame: Frame, row: Event) -> tuple[Value, Value]:
    """The data wait of one point, and the step's time or the compute beside it."""
    names = ("step_time_s", "compute_time_s", "comm_time_s")
    rest = next(name for name in names if number(row, name) is not None)
    return frame.value(row, "data_time_s", "s"), frame.value(row, rest, "s")


FAMILY = Family(
    code="D1",
    id="gpu-underutilised",
    title="GPU under-utilised: the loop waits for its input",
    asks={
        **ENDING,
        "progress": events("progress"),
        "advice": events("advice"),
        "engine": metric("gpu_engine_active_ratio").over("run", "avg"),
        "sm": metric("gpu_sm_active_ratio").over("run", "avg"),
    },
    needs=(("progress", "engine"),),
    says={
        "starved": "the step waits for data {share} of its time (median of {points}; typically {wait} of wait "
        "beside {step})",
        "advised": "the loader was warned about: {line}",
        "input_bound": "the input pipeline, not the GPU, sets the pace; the run is slower than it has to be",
        "no_baseline": "how fast this workload could be: that takes a throughput to compare with",
        "feed": "use more loader workers and prefetch, put the data on faster or local storage, "
        "and decode or tokenise ahead of training",
        "fed": "data wait is {share} of the step (typically {wait}; {points})",
    },
    judge=judge,
    limits=Limits(),
    rivals=("D2", "D3"),
    collect=COLLECT,
)
