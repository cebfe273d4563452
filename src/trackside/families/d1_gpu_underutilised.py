"""GPU starvation: the input pipeline is too slow.

Meaning
-------
Each step spends most of its time waiting for the next batch. The GPU works in bursts and idles between them,
because reading, decoding or tokenizing is too slow.

What it looks like
------------------
Progress lines that split the step: more seconds of data wait than of compute and communication, in most logged steps
after the warm-up. Or a gauge of data wait grows during the run while throughput falls, even if the GPUs look busy:
utilization also counts a kernel that only waits for a slow rank. DataLoader warnings about too few or too many
workers corroborate. In metrics: kernel launches continue, but the GPUs idle for seconds in each step, and
utilization readings, which cover the last second, are zero about as often.

Not this family when
--------------------
- Only the first logged steps are slow: caches and workers warm up.
- The model is too small for the GPU: the gaps are between kernels and no reading is zero; without a baseline that
  is at most a suspicion.
- The engines are busy all the time while collectives advance: that is slow communication.
- The idle GPUs are those that the others wait for, and no line reports a wait for data: that is a straggler.
- Too few steps were logged or completed.

Impact
------
The run completes, so nothing else reports it; the share of wall time spent waiting for data is wasted.

Do next
-------
More loader workers and prefetch if CPUs are free, else more CPUs; data on local or faster storage; decoding and
tokenizing before training.

What it cannot decide
---------------------
The possible speed-up, which needs a known-good throughput. Anything, if no line splits the step and no
metric was collected.

References
----------
- [PyTorch: data loading](https://docs.pytorch.org/docs/stable/data.html)
- [NVIDIA DCGM: profiling metrics](https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/feature-overview.html#profiling-metrics)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trackside.evidence import Missing, derived
from trackside.facts.fact import Maybe, all_missing, or_none
from trackside.facts.gpu.activity import NEVER_WORKED, TOO_FEW_STEPS, GpuActivity, missing_activity, never_worked
from trackside.facts.gpu.duty import DutyCycle
from trackside.facts.gpu.last_part import LastPart
from trackside.facts.hardware.health import HardwareHealth
from trackside.facts.logs.ending import Ending
from trackside.facts.pace.data_wait import DataWait, WaitShare
from trackside.facts.pace.host_load import HostLoad
from trackside.facts.pace.leader_work import LeaderWork
from trackside.facts.pace.saving import Saving
from trackside.facts.pace.slow_gpus import SlowGpus
from trackside.facts.pace.slow_settings import SlowSettings
from trackside.facts.training.learning import Trajectory
from trackside.family import Family
from trackside.finding import Certainty, Claim, Finding, Sentence, absent, action, present
from trackside.witness import raise_certainty


@dataclass(frozen=True)
class Limits:
    """Thresholds for a starved loop."""

    min_steps: int = 6
    """Minimum number of steps: up to five are mostly startup."""
    starved_share: float = 0.5
    """The step mostly waits if the median share of data wait is at least this. A real eight-GPU run that was only
    mildly starved shows 0.1 to 0.2."""
    noticeable_share: float = 0.25
    """A share of at least this is worth a warning."""
    idle_duty: float = 0.25
    """The GPU idles most of its time if its mean engine activity is at most this, whatever the model is."""
    low_duty: float = 0.6
    """It idles noticeably if its mean engine activity is lower: half of all samples of two clusters of language-model
    training are at 0.98 or more (AcmeTrace)."""
    busy_duty: float = 0.85
    """The GPU is fed if its mean engine activity is at least this and its SMs work as well."""
    working_sm: float = 0.4
    """The SMs work as well if their mean activity is at least this: GPUs that only wait in collectives stay below
    it."""
    min_stalls: int = 5
    """Minimum number of recurring time spans without any GPU work."""
    stalled_share: float = 0.2
    """They are hard stalls if they take at least this share of the time."""
    idle_step_s: float = 2.0
    """Idle seconds per step that are a hard stall: a model too small for its GPU
    leaves gaps of microseconds to milliseconds between kernels."""
    min_idle_ratio: float = 0.5
    """Minimum ratio of readings near zero to the number expected at random times: stalls of less than the second that a
    reading covers leave few."""


STARVED_FOR = Sentence("GPU starvation: each step waits for data {share} of its time")
STARVED = Sentence("GPU starvation: the input pipeline is too slow")
STARVED_BUSY = Sentence("GPU starvation: GPUs busy {busy:share} of the time, most likely because input is too slow")
IDLE_IN_BURSTS = Sentence("GPUs idle between bursts of work")
IDLE_IN_BURSTS_BUSY = Sentence("GPUs idle between bursts of work: busy {busy:share} of the time")
GROUP_STARVED = Sentence(
    "GPU starvation: {gpus} busy {busy:share} of the time (the others: {others:share}), most likely because input is "
    "too slow"
)
GROUP_IDLE_IN_BURSTS = Sentence(
    "{gpus} idle between bursts of work: busy {busy:share} of the time (the others: {others:share})"
)
BUSY_DURING = Sentence("the GPUs were busy {busy:share} of the time (median GPU, averaged over {seconds} of training)")
GROUPS_BUSY = Sentence(
    "{gpus} were busy {busy:share} of the time, the other GPUs {others:share} (median GPU of each group, averaged over "
    "{seconds} of training)"
)
SM_ACTIVITY = Sentence("SM activity was {sm} (median GPU, averaged over {seconds} of training)")
GPUS_STALLED = Sentence("the GPUs stalled {count:times}, {share} of the time in total")
IDLE_READINGS = Sentence(
    "in {share} of the {window} intervals a GPU's utilization dropped to about zero (median of its lowest reading in "
    "each interval: {lowest})"
)
IDLE_STEPS = Sentence("the GPUs are idle for {idle} of each {step} step")
INPUT_BOUND = Sentence("the input pipeline limits the speed, not the GPU; the run is slower than necessary")
INPUT_LIKELY_BOUND = Sentence(
    "most likely the input pipeline limits the speed, not the GPU; the run is slower than necessary"
)
USUALLY_INPUT = Sentence("the GPUs idle between bursts of work, usually because the input pipeline cannot keep up")
SPEEDUP_UNKNOWN = Sentence(
    "the possible speed-up: a comparison with a known-good run would show it (trackside compare)"
)
CAUSE_UNKNOWN = Sentence(
    "the cause: slow input, checkpoint saves, other work on the host, or a model too small for this GPU"
)
MORE_CPUS = Sentence(
    "request more CPUs (--cpus-per-task), or decode and tokenize before training: the CPUs are already busy, so more "
    "data-loader workers alone do not help"
)
SPEED_UP_INPUT = Sentence(
    "use more data-loader workers and prefetch, put the data on faster or local storage, and decode or "
    "tokenize before training"
)
TOO_FEW_READINGS = Missing("no line with the data wait of a step was recognized, and too few GPU readings show work")
NO_READINGS = Missing(
    "no line with the data wait of a step was recognized, and no usable readings of engine activity or utilization "
    "were given"
)
IDLE_WHILE_SAVING = Sentence("the log shows {saves} saved checkpoints, which explain idle GPUs")
LAUNCHES_BLOCK = Sentence("a debug flag makes every kernel launch block: {line}")


def judge(
    wait: DataWait, duty: Maybe[DutyCycle], hosts: HostLoad, saving: Saving, settings: SlowSettings,
    slow: Maybe[SlowGpus], leader: Maybe[LeaderWork], health: HardwareHealth, trajectory: Maybe[Trajectory],
    activity: Maybe[GpuActivity], last: LastPart, ending: Ending, limits: Limits,
) -> Finding | Missing:  # fmt: skip
    """The share of data wait in the step, from the log or a gauge, and how long the GPUs idle."""
    if (missing := all_missing(trajectory, missing_activity(activity))) is not None:
        return missing
    training, duty_cycle, share = or_none(trajectory), or_none(duty), wait.share
    if training is not None and training.done is not None and training.done.number < limits.min_steps:
        return TOO_FEW_STEPS
    other_cause = _other_cause(saving, settings)
    sound = (*(() if training is None else training.loss_fell_claims), *health.unchanged)
    if wait.growth is not None and other_cause is None:
        claims = (*wait.growth.claims, *wait.advice, *sound)
        return _finding(Certainty.SUPPORTED, claims, wait.growth.since, None, True, last)
    if duty_cycle is None or duty_cycle.busy is None or not duty_cycle.sampled:
        return _by_wait(wait, activity, last, ending, limits)
    if _is_fed(duty_cycle, share, activity, limits):
        seconds = derived(duty_cycle.seconds, duty_cycle.busy, unit="s")
        return absent(BUSY_DURING(busy=duty_cycle.busy, seconds=seconds), *(() if share is None else (share.fed,)))
    if other_cause is not None:
        return absent(other_cause)
    lag = _lag(duty_cycle, share, or_none(slow), or_none(leader), limits)
    if lag is not None:
        return absent(lag)
    idle, idles, signals = _idleness(duty_cycle, limits)
    starved = share if share is not None and share.share.number >= limits.noticeable_share else None
    hints = (*wait.advice, *hosts.saturated(duty_cycle.start, duty_cycle.end))
    certainty = _certainty(idle, starved, hints, limits)
    advancing = activity.advancing(duty_cycle.start, duty_cycle.end) if isinstance(activity, GpuActivity) else ()
    waits = () if starved is None else (starved.starved,)
    claims = (*idles, *waits, *hints, *signals, *advancing, *sound)
    return _finding(
        certainty, claims, duty_cycle.start, share, starved is not None or bool(hints), last, duty_cycle,
        MORE_CPUS if hosts.lacks_cpus(duty_cycle.start, duty_cycle.end) else SPEED_UP_INPUT,
    )  # fmt: skip


def _by_wait(
    wait: DataWait, activity: Maybe[GpuActivity], last: LastPart, ending: Ending, limits: Limits
) -> Finding | Missing:
    """Without enough GPU activity: by the job's own reports. In a log alone they are a remark about its pace: nothing
    measures whether the GPUs idled, and a loop that does not wait for the GPU counts its work as something else."""
    share = wait.share
    if share is None and never_worked(activity):
        return NEVER_WORKED
    if share is None:
        sampled = isinstance(activity, GpuActivity) and activity.busy is not None
        return TOO_FEW_READINGS if sampled else NO_READINGS
    if share.share.number < limits.noticeable_share:
        return absent(share.fed)
    certainty = Certainty.SUPPORTED if share.share.number >= limits.starved_share else Certainty.POSSIBLE
    since = None if share.row is None else share.row.time
    finding = _finding(certainty, (share.starved, *wait.advice), since, share, True, last)
    return finding if ending.jobs else replace(finding, latent=True)


def _other_cause(saving: Saving, settings: SlowSettings) -> Claim | None:
    """A known cause of idle GPUs other than the input: saves at nearly every step, a flag that serializes launches."""
    if saving.storm is not None:
        return IDLE_WHILE_SAVING(saves=saving.storm.count)
    return None if settings.blocking is None else LAUNCHES_BLOCK(line=settings.blocking.line)


def _lag(
    duty: DutyCycle, share: WaitShare | None, slow: SlowGpus | None, leader: LeaderWork | None, limits: Limits
) -> Claim | None:
    """The claim that the idle GPUs are those that the others wait for, most of the time: stragglers, unless they save
    for all, or the job reports that its steps wait for data."""
    group = None if slow is None else slow.group
    if group is None or group.signal != "busy" or (share is not None and share.share.number >= limits.noticeable_share):
        return None
    if leader is None or leader.saver is not None or leader.pause is not None:
        return None
    fed = group.peers_busy is not None and group.peers_busy >= limits.busy_duty
    return group.claims[0] if fed and group.end - group.start >= 0.5 * duty.seconds else None


def _is_fed(duty: DutyCycle, share: WaitShare | None, activity: Maybe[GpuActivity], limits: Limits) -> bool:
    """Whether the GPUs are busy, and the job reports no wait, or one that engine and SM activity refute; utilization
    proves no work."""
    assert duty.busy is not None
    if duty.busy.number < limits.low_duty:
        return False
    if share is None or share.share.number < limits.noticeable_share:
        return True
    by_engine = isinstance(activity, GpuActivity) and activity.busy_by == "engine"
    works = duty.sm is None or duty.sm.number >= limits.working_sm
    return by_engine and duty.busy.number >= limits.busy_duty and works


def _idleness(duty: DutyCycle, limits: Limits) -> tuple[Certainty | None, list[Claim], list[Claim]]:
    """(how certainly the GPUs idled during the run: possible if noticeable, more certain if most of the time or for
    seconds of each step; None if they did not; how much they idled; further signals of it), by the duty cycle, time
    spans without any work, and idle readings."""
    assert duty.busy is not None
    busy, is_low = duty.busy, duty.busy.number < limits.low_duty
    claims: list[Claim] = []
    signals: list[Claim] = []
    if is_low and duty.less_busy is not None:
        claims.append(GROUPS_BUSY(**vars(duty.less_busy), seconds=derived(duty.seconds, busy, unit="s")))
    elif is_low:
        claims.append(BUSY_DURING(busy=busy, seconds=derived(duty.seconds, busy, unit="s")))
        signals += (
            [] if duty.sm is None else [SM_ACTIVITY(sm=duty.sm, seconds=derived(duty.seconds, duty.sm, unit="s"))]
        )
    stalls = duty.stalls >= limits.min_stalls and duty.stalled_share >= limits.stalled_share
    if stalls:
        share = derived(duty.stalled_share, busy, unit="share")
        claims.append(GPUS_STALLED(count=derived(duty.stalls, busy), share=share))
    at_rest, step = _idle_reading_claim(duty, limits) if is_low else None, duty.step_seconds
    if at_rest is not None:
        signals.append(at_rest)
        claims += [] if duty.idle is None or step is None else [IDLE_STEPS(idle=duty.idle, step=step)]
    severe = busy.number <= limits.idle_duty or stalls or at_rest is not None
    return raise_certainty(Certainty.POSSIBLE, int(severe)) if is_low else None, claims, signals


def _idle_reading_claim(duty: DutyCycle, limits: Limits) -> Claim | None:
    """Readings that find the GPUs idle about as often as they idle, for seconds of each step."""
    readings = duty.idle_readings
    if readings is None or readings.share.number < limits.min_idle_ratio * readings.expected:
        return None
    if duty.idle is not None and duty.idle.number < limits.idle_step_s:
        return None
    return IDLE_READINGS(share=readings.share, window=readings.window, lowest=readings.lowest)


def _certainty(
    idle: Certainty | None, starved: WaitShare | None, hints: tuple[Claim, ...], limits: Limits
) -> Certainty:
    """The more certain of idle GPUs and reported wait, one level higher if both agree; hints corroborate a possible
    finding."""
    mostly = starved is not None and starved.share.number >= limits.starved_share
    wait = raise_certainty(Certainty.POSSIBLE, int(mostly))
    if idle is None:
        return wait
    if starved is not None:
        return raise_certainty(max(wait, idle, key=lambda certainty: certainty.strength))
    return Certainty.SUPPORTED if hints else idle


def _finding(
    certainty: Certainty, shows: tuple[Claim, ...], since: float | None, share: WaitShare | None, starved: bool,
    last: LastPart, duty: DutyCycle | None = None, remedy: Sentence = SPEED_UP_INPUT,
) -> Finding:  # fmt: skip
    """The finding; ``starved``: evidence points to the input."""
    row, by_hints = None if share is None else share.row, share is None and duty is not None
    return present(
        certainty,
        "job",
        shows,
        headline=_headline(share, starved, duty),
        implies=[(USUALLY_INPUT if not starved else INPUT_LIKELY_BOUND if by_hints else INPUT_BOUND)()],
        cannot_decide=[SPEEDUP_UNKNOWN()] if starved else [SPEEDUP_UNKNOWN(), CAUSE_UNKNOWN()],
        actions=[action(remedy)],
        since=since,
        at=None if row is None else row.at,
        latent=certainty is Certainty.POSSIBLE or last.not_by_pace,
    )


def _headline(share: WaitShare | None, starved: bool, duty: DutyCycle | None) -> Claim:
    """The headline by the share of the steps that waits for data, else by the share of time in which the GPUs are
    busy."""
    if starved and share is not None:
        return STARVED_FOR(share=share.share)
    if duty is None or duty.busy is None:
        return (STARVED if starved else IDLE_IN_BURSTS)()
    if duty.less_busy is not None:
        return (GROUP_STARVED if starved else GROUP_IDLE_IN_BURSTS)(**vars(duty.less_busy))
    return (STARVED_BUSY if starved else IDLE_IN_BURSTS_BUSY)(busy=duty.busy)


FAMILY = Family(
    code="D1",
    id="gpu-underutilised",
    title="GPU starvation: the input pipeline is too slow",
    example=("starved-input", "busy-wait"),
    judge=judge,
    cost_kind="slow",
    often_from_start=True,
    limits=Limits(),
    explains=("F3",),
    rivals=("D2", "D3"),
    collect=(
        "a log that prints the data wait of each step, in seconds",
        "GPU engine and SM activity (DCGM fields PROF_GR_ENGINE_ACTIVE, PROF_SM_ACTIVE) and CPU and disk load of the "
        "hosts",
    ),
)
