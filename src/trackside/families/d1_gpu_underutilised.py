"""GPU under-utilised: the training loop waits for its input.

Meaning
-------
Each step spends most of its time waiting for the next batch. The GPU works in bursts and idles between them,
because reading, decoding or tokenising cannot keep up.

What it looks like
------------------
Progress lines that split the step: seconds of data wait above seconds of compute and communication, at most points
after the warm-up. Or a gauge of data wait that grows during the run while throughput falls with it, however busy the
GPUs look: utilisation counts a kernel that only spins for the rank that waits. Warnings of the DataLoader about too
few or too many workers corroborate. In metrics: kernel launches go on, but the engine's duty cycle is low with gaps of
a step's length: seconds of each step are idle, and readings of utilisation, which are of the last second, find the
GPUs at rest about as often.

Not this when
-------------
The first points are slow only because caches and workers warm up. The model is small and fills no large GPU: its
gaps are between kernels, no reading finds it at rest, and without a baseline that is at most a suspicion. The engine
is pinned while collectives advance: that is the interconnect. There are too few points or steps.

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
from typing import TYPE_CHECKING

from trackside.evidence import Evidence, Frame, Value, derived
from trackside.facts import maths
from trackside.facts.gpu.signals import NEED, STANDSTILL, watched
from trackside.facts.gpu.signals import Limits as Rest
from trackside.facts.hardware.health import CLEAN, CLEAN_SAYS, clean
from trackside.facts.logs.ending import ENDING, abnormal_end, completed, disposition
from trackside.facts.logs.silence import LIFE
from trackside.facts.pace.pace import PACE
from trackside.facts.pace.saving import SAVING, save_storm
from trackside.facts.pace.work import WORK_SAYS, advancing, learned
from trackside.facts.training.learning import LEARNING, number, steps_done, training_points
from trackside.family import Family
from trackside.finding import Certainty, Claim, Finding, absent, action, claim, found, unknown
from trackside.model import Event, Run
from trackside.query import events, metric

if TYPE_CHECKING:
    from trackside.facts.gpu.duty import Duty


@dataclass(frozen=True)
class Limits:
    """What counts as starved."""

    least_steps: int = 6
    """Steps below which a run is mostly start-up: up to five are a handful (the catalogue's E3)."""
    least_points: int = 8
    """Points after the warm-up below which a share is chance."""
    warm_up_share: float = 0.1
    """Points left out at the start, at least one: first batches wait for workers and caches."""
    starved_share: float = 0.5
    """Median share of data wait from which the step is mostly waiting. A real eight-GPU run that was judged
    only mildly starved shows 0.1 to 0.2."""
    noticeable_share: float = 0.25
    """From here it is worth a warning."""
    readings: int = 10
    """Samples of a GPU's activity below which a mean is chance."""
    idle_duty: float = 0.25
    """Mean engine activity at or under which the GPU idles most of its time, whatever the model is."""
    low_duty: float = 0.6
    """Mean engine activity under which it idles noticeably: half of all samples of two clusters of language-model
    training stand at 0.98 and more (AcmeTrace)."""
    busy_duty: float = 0.85
    """Mean engine activity from which the GPU is fed, if its SMs work as well."""
    working_sm: float = 0.4
    stalls: int = 5
    """Stretches without any GPU work that come again and again."""
    stalled_share: float = 0.2
    """Share of the time that they take from which they are hard stalls."""
    idle_step_s: float = 2.0
    """Seconds without work in every step that are a hard stall ('multi-second', the catalogue's D1): a model too small
    for its GPU leaves gaps of microseconds to milliseconds between kernels."""
    at_rest: float = 0.1
    """Utilisation, which the driver takes over the last second at most, of a GPU that did nothing."""
    as_often: float = 0.5
    """Share of windows with such a reading, over the share to expect of readings at random moments: stalls shorter than
    the second of a reading leave few."""
    saturated_cpu: float = 0.9
    """Share of CPU time not idle, mean over the time of work."""
    pressure_share: float = 0.3
    """Share of time in which tasks waited for CPU or storage (pressure stall information)."""


NOTHING = "no line splits the step into data wait and compute, and neither engine activity nor utilisation was given"
COLLECT = (
    "seconds of data wait a step, as most loops can print it",
    "GPU engine and SM activity (DCGM fields PROF_GR_ENGINE_ACTIVE, PROF_SM_ACTIVE) and CPU and disk load of the hosts",
)


@dataclass(frozen=True)
class Wait:
    """Share of the step that is data wait, as the job itself states it."""

    share: Value
    claim: Claim
    counter: Claim
    row: Event | None


def judge(evidence: Evidence, run: Run, limits: Limits) -> Finding:
    """The share of data wait in the step, as the log or a gauge states it; and how long the GPUs idle meanwhile."""
    wait = _logged(evidence, limits) or _gauged(evidence, limits)
    done = steps_done(evidence["progress"], evidence["ends"])
    if done is not None and done.number < limits.least_steps:
        return unknown(["enough steps: most of the time was start-up"], COLLECT)
    duty, hanging = _duty(evidence, run, limits)
    if evidence.has("loading") and (finding := _by_growth(evidence, run, hanging)) is not None:
        return finding
    if duty is None or duty.busy is None:
        return _by_wait(evidence, wait, limits)
    busy = duty.busy.number
    told = claim("duty", busy=duty.busy, seconds=derived(duty.seconds, duty.busy, unit="s"))
    seen_fed = evidence.has("engine") and busy >= limits.busy_duty  # utilisation proves no work
    fed = seen_fed and (duty.sm is None or duty.sm.number >= limits.working_sm)
    share = wait.share.number if wait is not None else 0.0
    if busy >= limits.low_duty and (wait is None or share < limits.noticeable_share or fed):
        return absent(claim("busy", busy=duty.busy), *([wait.counter] if wait is not None else []))
    other = _other_cause(evidence, run)
    if other is not None:
        return absent(other)
    hints = _hints(evidence, duty, limits)
    stalls = duty.stalls >= limits.stalls and duty.stalled >= limits.stalled_share
    low = busy < limits.low_duty
    hard = _hard_stalls(evidence, duty, limits) if low else []
    severe = busy <= limits.idle_duty or (low and (stalls or bool(hard)))
    shows = [told] if low else []
    shows += [claim("sm", sm=duty.sm)] if low and duty.sm is not None else []
    if stalls:
        shows.append(
            claim("stalls", count=derived(duty.stalls, duty.busy), share=derived(duty.stalled, duty.busy, unit="share"))
        )
    shows += hard
    starved = wait is not None and share >= limits.noticeable_share
    shows += [wait.claim] if wait is not None and starved else []
    certainty = Certainty.POSSIBLE
    if severe or (low and (starved or hints)) or share >= limits.starved_share:
        certainty = Certainty.SUPPORTED
    if low and wait is not None and share >= limits.noticeable_share and (severe or share >= limits.starved_share):
        certainty = Certainty.ESTABLISHED
    works = [*advancing(evidence, duty.start, duty.end), *learned(evidence), *clean(evidence)]
    return _found(evidence, certainty, [*shows, *hints, *works], duty.start, None if wait is None else wait.row,
                  starved or bool(hints), hanging)  # fmt: skip


def _by_growth(evidence: Evidence, run: Run, hanging: bool) -> Finding | None:
    """Data wait that grew while the run slowed down with it, whatever the GPUs looked like meanwhile."""
    from trackside.facts.pace.data_wait import grown

    growth = grown(evidence)
    if growth is None or _other_cause(evidence, run) is not None:
        return None
    told = claim(f"slower_{growth.pace.kind}", before=growth.pace.before, during=growth.pace.during)
    shows = [claim("wait_grew", before=growth.before, after=growth.after), told, *_advice(evidence), *learned(evidence)]
    return _found(evidence, Certainty.SUPPORTED, [*shows, *clean(evidence)], growth.since, None, True, hanging)


def _by_wait(evidence: Evidence, wait: Wait | None, limits: Limits) -> Finding:
    """Without GPU activity: what the job itself states."""
    if wait is None:
        return unknown([NOTHING], COLLECT)
    share = wait.share.number
    if share < limits.noticeable_share:
        return absent(wait.counter)
    certainty = Certainty.SUPPORTED if share >= limits.starved_share else Certainty.POSSIBLE
    since = wait.row.time if wait.row is not None else None
    return _found(evidence, certainty, [wait.claim, *_advice(evidence)], since, wait.row, True, False)


def _found(
    evidence: Evidence, certainty: Certainty, shows: list[Claim], since: float | None, row: Event | None,
    starved: bool, hanging: bool,
) -> Finding:  # fmt: skip
    bad = abnormal_end(evidence)
    state = disposition(evidence)
    reaped = state is not None and state.value in ("TIMEOUT", "DEADLINE")  # it may well have needed more time for this
    return found(
        certainty,
        "job",
        shows,
        implies=[claim("input_bound" if starved else "idles")],
        cannot_decide=[claim("no_baseline")] + ([] if starved else [claim("cause")]),
        actions=[action("feed")],
        since=since,
        at=None if row is None else row.at,
        latent=certainty is Certainty.POSSIBLE or hanging or (bad is not None and not reaped),
    )


def _duty(evidence: Evidence, run: Run, limits: Limits) -> tuple[Duty | None, bool]:
    """How long the GPUs idled while the run worked; and whether it stood still in the end, which is another matter."""
    seen = watched(evidence, run)
    if seen is None:
        return None, False
    from trackside.facts.gpu.duty import duty
    from trackside.facts.gpu.signals import at_end

    still = at_end(evidence, run, seen, Rest())
    hanging = still is not None and still.sure and completed(evidence) is None
    return duty(evidence, seen, limits.readings), hanging


def _hard_stalls(evidence: Evidence, duty: Duty, limits: Limits) -> list[Claim]:
    """Readings of the last second that find the GPUs at rest about as often as they idle: gaps between kernels that are
    no stalls, however many, leave every such reading somewhere in between. And how long they idle in each step."""
    grid = evidence.grid("lowest")
    if grid is None or duty.busy is None or (duty.idle is not None and duty.idle.number < limits.idle_step_s):
        return []
    part = grid.during(duty.start, duty.end)
    low = part.value("median")
    known, whole = int((part.values >= 0).sum()), int((grid.values >= 0).sum())
    if low.value is None or not known:
        return []
    share = float((part.values <= limits.at_rest).sum() / known)
    if share < limits.as_often * (1 - duty.busy.number ** (grid.samples / whole)):  # any one of a window's readings
        return []
    at_rest = claim(
        "at_rest", share=derived(round(share, 3), low, unit="share"), window=derived(grid.step, low, unit="s")
    )
    return [at_rest, *([claim("idle_steps", idle=duty.idle)] if duty.idle is not None else [])]


def _other_cause(evidence: Evidence, run: Run) -> Claim | None:
    """A named cause of idle GPUs that is not the input: saves at nearly every step, a flag that serialises launches."""
    storm = save_storm(evidence, run)
    if storm is not None:
        return claim("saving", saves=storm.count)
    flags = evidence["flags"]
    for row in flags.events:
        if row.get("name") == "CUDA_LAUNCH_BLOCKING" and str(row.get("value")).strip("'\" ") == "1":
            return claim("blocking", line=flags.value(row, "text"))
    return None


# -- data wait


def _logged(evidence: Evidence, limits: Limits) -> Wait | None:
    progress = evidence["progress"]
    shares = [(part, row) for row in training_points(progress) if (part := _data_share(row)) is not None]
    kept = shares[max(1, int(len(shares) * limits.warm_up_share)) :]
    if len(kept) < limits.least_points:
        return None
    level = maths.median([part for part, _ in kept])
    typical = min(kept, key=lambda pair: abs(pair[0] - level))[1]
    wait, step = _sides(progress, typical)
    share = derived(round(level, 3), wait, step, unit="share")
    points = progress.reduce("count", "data_time_s", unit="points")
    return Wait(share, claim("starved", share=share, wait=wait, step=step, points=points),
                claim("fed", share=share, wait=wait, points=points), kept[0][1])  # fmt: skip


def _gauged(evidence: Evidence, limits: Limits) -> Wait | None:
    grid = evidence.grid("loading")
    if grid is None or len(grid.times) < limits.readings:
        return None
    share = grid.value("median", unit="share")
    if share.value is None:
        return None
    return Wait(share, claim("starved_gauge", share=share), claim("fed_gauge", share=share), None)


# -- what the host says


def _hints(evidence: Evidence, duty: Duty, limits: Limits) -> list[Claim]:
    """What else speaks for input that can't keep up."""
    found = _advice(evidence)
    cpu, idle = evidence.grid("cpu_busy"), evidence.grid("cpu_idle")
    if cpu is not None:
        busy = cpu.during(duty.start, duty.end).value("median", unit="share")
        if busy.value is not None and busy.number >= limits.saturated_cpu:
            found.append(claim("cpu", busy=busy))
    elif idle is not None:
        spare = idle.during(duty.start, duty.end).value("median")
        if spare.value is not None and 1 - spare.number / idle.step >= limits.saturated_cpu:
            found.append(claim("cpu", busy=derived(round(1 - spare.number / idle.step, 3), spare, unit="share")))
    for name in ("cpu_pressure", "io_pressure"):
        grid = evidence.grid(name)
        waited = grid.during(duty.start, duty.end).value("median") if grid is not None else None
        if grid is not None and waited is not None and waited.value is not None:
            share = waited.number / grid.step
            if share >= limits.pressure_share:
                found.append(claim(name, share=derived(round(share, 3), waited, unit="share")))
    return found


def _advice(evidence: Evidence) -> list[Claim]:
    hints = [row for row in evidence["advice"].events if "loader" in str(row.get("about")).lower()]
    return [claim("advised", line=evidence["advice"].value(row, "text")) for row in hints[:1]]


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
    pictured=("starved-input", "busy-wait"),
    asks={
        **LEARNING,
        **ENDING,
        **LIFE,
        **STANDSTILL,
        **SAVING,
        **CLEAN,
        **PACE,
        "advice": events("advice"),
        "flags": events("env_flag"),
        "lowest": metric("gpu_utilization_ratio").over("run", "min"),
        "loading": metric("training_data_loading_ratio").over("run", "avg"),
        "cpu_busy": metric("host_cpu_busy_ratio").over("run", "avg"),
        "cpu_idle": metric("host_cpu_seconds_total").where(mode="idle").over("run", "increase").by("node", how="avg"),
        "cpu_pressure": metric("host_pressure_seconds_total")
        .where(resource="cpu", level="some")
        .over("run", "increase")
        .by("node", how="max"),
        "io_pressure": metric("host_pressure_seconds_total")
        .where(resource="io", level="some")
        .over("run", "increase")
        .by("node", how="max"),
    },
    needs=(("progress", *NEED),),
    says={
        **CLEAN_SAYS,
        **WORK_SAYS,
        "starved": "the step waits for data {share} of its time (median of {points}; typically {wait} of wait "
        "beside {step})",
        "starved_gauge": "the step waits for data {share} of its time (median of the run)",
        "wait_grew": "waiting for data grew from {before} to {after} of the step (medians)",
        "slower_step": "a step then took {during}, and {before} until then",
        "slower_throughput": "throughput was {during} then, and {before} until then (medians)",
        "slower_launches": "a GPU was then given {during:plain} kernel launches a window, and {before:plain} before",
        "duty": "the GPUs were busy {busy} of the time over {seconds} of work (mean)",
        "sm": "their SM activity was {sm} (mean)",
        "stalls": "they stood still {count:times}, {share} of that time in all",
        "at_rest": "of all windows of {window}, {share} hold a reading of the last second that found them at rest",
        "idle_steps": "of each step they did nothing for {idle}",
        "advised": "the loader was warned about: {line}",
        "cpu": "the CPUs of the hosts were {busy} busy (median)",
        "cpu_pressure": "tasks of the hosts waited for a CPU {share} of the time (median)",
        "io_pressure": "tasks of the hosts waited for storage {share} of the time (median)",
        "input_bound": "the input pipeline, not the GPU, sets the pace; the run is slower than it has to be",
        "idles": "the GPUs idle between bursts of work, most often because their input can't keep up",
        "no_baseline": "how fast this workload could be: that takes a throughput to compare with",
        "cause": "whether the input starves them, or saves or other work of the host hold them up, or the model is too "
        "small for such a GPU",
        "feed": "use more loader workers and prefetch, put the data on faster or local storage, "
        "and decode or tokenise ahead of training",
        "fed": "data wait is {share} of the step (typically {wait}; {points})",
        "fed_gauge": "data wait is {share} of the step (median of the run)",
        "busy": "the GPUs were busy {busy} of the time (mean)",
        "saving": "the GPUs idle while {saves} checkpoints are saved",
        "blocking": "the log shows a flag in force that makes the GPU wait for each launch: {line}",
    },
    judge=judge,
    loses="pace",
    limits=Limits(),
    explains=("F3",),
    rivals=("D2", "D3"),
    collect=COLLECT,
)
