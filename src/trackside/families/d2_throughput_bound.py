"""Slow training: checkpoint saves, interconnect or a debug flag.

Meaning
-------
The run advances and learns, but at a fraction of the hardware's speed, for a known cause: it saves a checkpoint
at nearly every step, it communicates over TCP sockets between nodes, or CUDA_LAUNCH_BLOCKING makes every kernel
launch wait.

What it looks like
------------------
Save storm: about as many saves as steps, or saves that take most of the wall time; or the first rank's GPU
idles for seconds at each save while the others wait for it. Interconnect: NCCL reports NET/Socket on a run of
several nodes, and all ranks are equally slow; in metrics the engines are busy nearly all the time with little SM
activity while collectives advance, CUDA calls take many times as long as a launch, and ranks spend their time in
collectives. If SM activity is not measured, power far below its limit together with idle tensor cores and memory
shows the same. Launch blocking: the log shows the variable set.

Not this family when
--------------------
- Only a few steps were completed: ratios over them mean nothing.
- CUDA_LAUNCH_BLOCKING appears only as advice in an error text.
- NCCL uses sockets within one node, or there is one rank: that is harmless.
- One rank is slow: that is a straggler.
- Nothing progresses at all: that is a hang.
- The run saves at its end, or now and then: that is normal.
- It saves often, and steps with a save before them take no longer than the others.

Impact
------
Silent waste: the run completes, so nothing else reports it.

Do next
-------
Save every few hundred steps or asynchronously; fix the fabric (drivers, NCCL_IB_* and NCCL_SOCKET_IFNAME, the
network plugin); unset the debug flag.

What it cannot decide
---------------------
The loss in throughput, without a known-good figure. Whether sockets were intended, on a cluster without a fast
fabric.

References
----------
- [NCCL: environment variables](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html)
- [NCCL: troubleshooting](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html)
- [CUDA: asynchronous concurrent execution](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#asynchronous-concurrent-execution)
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trackside.evidence import Missing, derived
from trackside.facts.fact import Maybe, all_missing, or_none
from trackside.facts.gpu.activity import (
    NEVER_WORKED,
    TITLES,
    TOO_FEW_STEPS,
    GpuActivity,
    missing_activity,
    never_worked,
)
from trackside.facts.gpu.busy_wait import BusyWait
from trackside.facts.gpu.duty import DutyCycle
from trackside.facts.gpu.last_part import LastPart
from trackside.facts.hardware.health import HardwareHealth
from trackside.facts.logs.ending import ENDED_WELL, Ending
from trackside.facts.pace.leader_work import LeaderWork
from trackside.facts.pace.saving import FrequentSaves, Saving
from trackside.facts.pace.slow_gpus import AFFECTED_ALIKE, SlowGpus
from trackside.facts.pace.slow_settings import SlowSetting, SlowSettings
from trackside.facts.run_names import MAX_NAME_CHARS
from trackside.facts.training.learning import Trajectory
from trackside.family import Family
from trackside.finding import Certainty, Claim, Culprit, Finding, Sentence, ShellCommand, absent, action, present
from trackside.model import Event, Run
from trackside.witness import Witness, raise_certainty, weigh


@dataclass(frozen=True)
class Limits:
    """Minimum number of steps, and thresholds while saving."""

    min_steps: int = 6
    """Minimum number of steps: up to five are mostly startup."""
    saving_share: float = 0.5
    """Saves set the pace if the other ranks wait for them at least this share of the time."""
    collapsed_sm: float = 0.35
    """Mean SM activity of a run that mostly waits."""


SAVES_SLOW = Sentence("checkpoint saves slow the training down")
FREQUENT_SAVES_SLOW = Sentence("checkpoint saves slow the training down: {saves:checkpoints} in {steps}")
LONG_SAVES_SLOW = Sentence("checkpoint saves slow the training down: they took {share} of the wall time")
FLAG_SLOWS = Sentence("CUDA_LAUNCH_BLOCKING slows the training down: every kernel launch blocks")
LAUNCHES_BLOCK = Sentence("every kernel launch blocks and slows the training down, as with CUDA_LAUNCH_BLOCKING")
SLOW_TRANSPORT = Sentence("slow interconnect: the GPUs wait in collectives instead of computing")
TCP_TRANSPORT = Sentence("slow interconnect: NCCL uses TCP sockets between the nodes")
LOW_SM = Sentence("SM activity was {sm} (median GPU, averaged over {seconds} of training)")
FLAG_SET = Sentence("the flag is set: {line}")
USES_SOCKETS = Sentence("NCCL uses TCP sockets between the nodes: {line}")
NO_INFINIBAND = Sentence("NCCL found no InfiniBand device: {line}")
GPUS_WORKED = Sentence(
    "the GPUs computed while they were busy: {signal} {busy:share}, SM activity {sm} (median GPU, averaged over "
    "{seconds} of training)"
)
GPUS_BUSY = Sentence(
    "the GPUs were busy {busy:share} of the time (median GPU, averaged over {seconds} of training); "
    "{saves:recognized checkpoint messages} in the log, no blocking flag"
)
IS_STRAGGLER = Sentence("the others wait for {gpus}: this is a straggler")
FEW_SAVES_ON_NODE = Sentence("{saves:recognized checkpoint messages} in {steps}, and no blocking flag")
FEW_SAVES = Sentence("{saves:recognized checkpoint messages} in {steps}, no blocking flag, no sockets between nodes")
SPEEDUP_UNKNOWN = Sentence(
    "the possible speed-up: a comparison with a known-good run would show it (trackside compare)"
)
SAVE_TIME_UNKNOWN = Sentence("how long a save takes: the log times neither the saves nor steps with and without one")
WAIT_OR_FEW_SMS = Sentence(
    "whether the GPUs wait for each other, or the model uses few SMs: traced collectives would show it"
)
SAVES_LIMIT_SPEED = Sentence("training stops at nearly every step to write a checkpoint; saving limits the speed")
WAITS_FOR_SAVES = Sentence("training waits while checkpoints are saved; saving limits the speed")
LAUNCHES_WAIT = Sentence("every kernel launch waits for the kernel's end, so the GPU idles between them")
GPUS_WAIT = Sentence("all GPUs wait in slow collectives; they look busy, and utilization does not show it")
MAYBE_OVER_TCP = Sentence("collectives may go over TCP where a faster fabric was expected")
SAVE_LESS = Sentence("save every few hundred steps or every half hour, asynchronously, or to faster storage")
UNSET_DEBUG_FLAG = Sentence(
    "remove CUDA_LAUNCH_BLOCKING, which is for debugging, from the job script and the environment that submits it"
)
SHOW_FLAG = (
    ShellCommand("grep -n CUDA_LAUNCH_BLOCKING {script}; env | grep CUDA_LAUNCH_BLOCKING"),
    ShellCommand("grep -n CUDA_LAUNCH_BLOCKING JOB_SCRIPT; env | grep CUDA_LAUNCH_BLOCKING"),
)
CHECK_FABRIC = Sentence(
    "check that the InfiniBand ports of the nodes are up; then put `env | grep NCCL` and NCCL_DEBUG=INFO into the job "
    "script, to see whether NCCL_IB_DISABLE is set and which network NCCL chooses"
)
CHECK_INFINIBAND = Sentence(
    "check that the InfiniBand ports of the nodes are up, and that the job, or its container, sees /dev/infiniband; "
    "put `env | grep NCCL` into the job script, to see whether a variable such as NCCL_IB_DISABLE restricts the network"
)
"""The same if the log shows which network NCCL chose."""
SHOW_FABRIC = (
    ShellCommand(
        "srun --nodelist={run_nodes} --ntasks-per-node=1 --label ibstat",
        running="srun --jobid={job} --overlap --nodelist={run_nodes} --ntasks-per-node=1 --label ibstat",
    ),
    ShellCommand("{on_node} ibstat"),
)
COMMANDS = {UNSET_DEBUG_FLAG: SHOW_FLAG, CHECK_FABRIC: SHOW_FABRIC, CHECK_INFINIBAND: SHOW_FABRIC}
REMEDIES: dict[str, tuple[Culprit, Sentence]] = {
    "save-storm": ("job", SAVE_LESS),
    "launch-blocking": ("job", UNSET_DEBUG_FLAG),
    "interconnect": ("infrastructure", CHECK_FABRIC),
}
"""Variant -> owner and remedy."""


@dataclass(frozen=True)
class _Cause(Witness):
    """What sets the pace, what that means, and where the log first shows it."""

    implies: Sentence
    headline: Claim
    row: Event | None = None
    cannot_decide: tuple[Claim, ...] = ()


def judge(
    saving: Saving, settings: SlowSettings, activity: Maybe[GpuActivity], duty: Maybe[DutyCycle],
    wait: Maybe[BusyWait], slow: Maybe[SlowGpus], leader: Maybe[LeaderWork], health: HardwareHealth,
    trajectory: Maybe[Trajectory], ending: Ending, last: LastPart, run: Run, limits: Limits,
) -> Finding | Missing:  # fmt: skip
    """Saves compared with steps, then the debug flag, then the transport: the first one with evidence is the cause."""
    if (missing := all_missing(trajectory, missing_activity(activity))) is not None:
        return missing
    training, duty_cycle = or_none(trajectory), or_none(duty)
    duty_cycle = duty_cycle if duty_cycle is not None and duty_cycle.sampled else None
    waits = or_none(wait) if duty_cycle is not None else None
    done = None if training is None else training.done
    too_few_steps = done is not None and done.number < limits.min_steps
    cause = weigh(
        _saves(saving, or_none(leader), duty_cycle, limits),
        _blocking_launches(settings.blocking, waits),
        None if too_few_steps or last.hung else _spinning(settings, waits, or_none(slow), health),
        None if too_few_steps else _sockets(settings, waits, or_none(slow)),
    )
    if cause is not None:
        loss_claims = () if training is None else training.loss_fell_claims
        return _finding(cause, duty_cycle, loss_claims, ending, last, run)
    if too_few_steps:
        return TOO_FEW_STEPS
    if duty_cycle is not None and duty_cycle.busy is not None:
        return absent(_why_absent(duty_cycle, saving, or_none(slow)))
    if done is None and never_worked(activity):
        return NEVER_WORKED
    if done is None or done.number < saving.limits.min_steps:
        return Missing("too few steps to judge how much time saves and communication take")
    if saving.no_slowdown is not None:
        return absent(saving.no_slowdown)
    return absent((FEW_SAVES_ON_NODE if len(run.nodes) == 1 else FEW_SAVES)(saves=saving.total, steps=done))


def _saves(saving: Saving, leader: LeaderWork | None, duty: DutyCycle | None, limits: Limits) -> _Cause | None:
    """A save storm, or occasional long saves that the others wait for."""
    storm, sm = saving.storm, None if duty is None else duty.sm
    if storm is not None:
        headline, meaning = _storm_headline(storm), WAITS_FOR_SAVES if storm.steps is None else SAVES_LIMIT_SPEED
        if duty is None or sm is None or sm.number > limits.collapsed_sm:
            untimed = () if storm.is_timed else (SAVE_TIME_UNKNOWN(),)
            return _Cause("save-storm", Certainty.SUPPORTED, storm.claims, meaning, headline, storm.first, untimed)
        claims = (*storm.claims, LOW_SM(sm=sm, seconds=derived(duty.seconds, sm, unit="s")))
        return _Cause("save-storm", Certainty.ESTABLISHED, claims, meaning, headline, storm.first)
    saver = None if leader is None else leader.saver
    if saver is None:
        return None
    certainty = Certainty.SUPPORTED if saver.share >= limits.saving_share else Certainty.POSSIBLE
    return _Cause("save-storm", certainty, saver.claims, WAITS_FOR_SAVES, SAVES_SLOW(), saver.first)


def _storm_headline(storm: FrequentSaves) -> Claim:
    """The headline with the count of saves that were printed, else with the time that they took."""
    if storm.steps is not None and storm.count.number:
        return FREQUENT_SAVES_SLOW(saves=storm.count, steps=storm.steps)
    return SAVES_SLOW() if storm.share is None else LONG_SAVES_SLOW(share=storm.share)


def _blocking_launches(flag: SlowSetting | None, waits: BusyWait | None) -> _Cause | None:
    """The flag in the log, or launches that take as long as kernels; both together are certain."""
    launches = () if waits is None else waits.blocking
    if flag is None:
        if not launches:
            return None
        return _Cause("launch-blocking", Certainty.SUPPORTED, launches, LAUNCHES_WAIT, LAUNCHES_BLOCK())
    certainty = raise_certainty(Certainty.SUPPORTED, int(bool(launches)))
    claims = (FLAG_SET(line=flag.line), *launches)
    return _Cause("launch-blocking", certainty, claims, LAUNCHES_WAIT, FLAG_SLOWS(), flag.row)


def _spinning(
    settings: SlowSettings, waits: BusyWait | None, slow: SlowGpus | None, health: HardwareHealth
) -> _Cause | None:
    """GPUs that all spin in collectives; each additional sign of waiting makes it more certain."""
    sockets = settings.sockets
    spin = None if waits is None else waits.spin(() if sockets is None else (USES_SOCKETS(line=sockets.line),))
    if spin is None or (slow is not None and slow.group is not None):
        return None
    certainty = raise_certainty(Certainty.SUPPORTED if spin.plain else Certainty.POSSIBLE, len(spin.corroborated))
    alike = () if slow is None else slow.range_claims(AFFECTED_ALIKE)
    claims = (
        *_with_infiniband(spin.corroborated, settings),
        *spin.shows,
        *alike,
        *health.unchanged,
    )  # the transport first
    headline = (SLOW_TRANSPORT if sockets is None else TCP_TRANSPORT)()
    doubt = (WAIT_OR_FEW_SMS(),) if certainty is Certainty.POSSIBLE else ()
    return _Cause("interconnect", certainty, claims, GPUS_WAIT, headline, None, doubt)


def _with_infiniband(claims: Iterable[Claim], settings: SlowSettings) -> Iterator[Claim]:
    """The claims, with the one that NCCL found no InfiniBand device after the one that it uses sockets."""
    for claim in claims:
        yield claim
        if claim.sentence is USES_SOCKETS and settings.no_infiniband is not None:
            yield NO_INFINIBAND(line=settings.no_infiniband.line)


def _sockets(settings: SlowSettings, waits: BusyWait | None, slow: SlowGpus | None) -> _Cause | None:
    """Sockets between the nodes are a suspicion: the cluster may have nothing faster. None if they cost little, or if
    the GPUs wait for one of them."""
    sockets = settings.sockets
    if sockets is None:
        return None
    if waits is not None and waits.duty.busy is not None:
        sm = waits.duty.sm
        works = sm is not None and sm.number > waits.limits.doubtful_sm
        if works or (slow is not None and slow.group is not None):
            return None
    return _Cause(
        "interconnect",
        Certainty.POSSIBLE,
        tuple(_with_infiniband([USES_SOCKETS(line=sockets.line)], settings)),
        MAYBE_OVER_TCP,
        TCP_TRANSPORT(),
        sockets.row,
    )


def _why_absent(duty: DutyCycle, saving: Saving, slow: SlowGpus | None) -> Claim:
    """Why none of the three causes applies."""
    assert duty.busy is not None
    seconds = derived(duty.seconds, duty.busy, unit="s")
    if slow is not None and slow.group is not None:
        return IS_STRAGGLER(gpus=derived(slow.group.gpus, duty.busy))
    if duty.sm is not None:
        signal = derived(TITLES[duty.busy_by], duty.busy)
        return GPUS_WORKED(signal=signal, busy=duty.busy, sm=duty.sm, seconds=seconds)
    return GPUS_BUSY(busy=duty.busy, saves=saving.total, seconds=seconds)


def _finding(
    cause: _Cause, duty: DutyCycle | None, loss_claims: tuple[Claim, ...], ending: Ending, last: LastPart, run: Run
) -> Finding:
    """Only a warning if the run ended badly for another reason, or if the evidence is a hint."""
    culprit, remedy = REMEDIES[cause.variant]
    remedy = CHECK_INFINIBAND if any(claim.sentence is USES_SOCKETS for claim in cause.claims) else remedy
    good_end, row = ending.completed, cause.row
    start = None if duty is None else duty.start
    names, source = ",".join(run.nodes), next(iter(cause.claims[0].values.values()))
    nodes = {"run_nodes": derived(shlex.quote(names), source)} if 0 < len(names) <= MAX_NAME_CHARS else {}
    return present(
        cause.certainty,
        culprit,
        [*cause.claims, *loss_claims, *([] if good_end is None else [ENDED_WELL(state=good_end)])],
        headline=cause.headline,
        implies=[cause.implies()],
        cannot_decide=[SPEEDUP_UNKNOWN(), *cause.cannot_decide],
        actions=[action(remedy, *COMMANDS.get(remedy, ()), **nodes)],
        since=start if row is None else row.time,
        at=None if row is None else row.at,
        variant=cause.variant,
        latent=last.not_by_pace or cause.certainty is Certainty.POSSIBLE,
    )


FAMILY = Family(
    code="D2",
    id="throughput-bound",
    title="Slow training: checkpoint saves, interconnect or a debug flag",
    example=("slow-interconnect", "busy-wait"),
    judge=judge,
    cost_kind="slow",
    often_from_start=True,
    limits=Limits(),
    explains=("F3",),
    rivals=("D1", "D3"),
    collect=(
        "the log at INFO level with its checkpoint messages",
        "NCCL_DEBUG=INFO output of one start",
        "GPU engine and SM activity (DCGM PROF_GR_ENGINE_ACTIVE, PROF_SM_ACTIVE) and the collectives of the run",
    ),
)
