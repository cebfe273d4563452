"""Throughput-bound: checkpoints at nearly every step, a slow transport, or a debug flag sets the pace.

Meaning
-------
The run advances and learns, but at a fraction of the hardware's worth, for a cause that can be named: it
saves a checkpoint at nearly every step, it talks over TCP sockets between nodes, or CUDA_LAUNCH_BLOCKING
makes every kernel launch wait.

What it looks like
------------------
Save storm: about as many saves as steps, or saves that take most of the wall time; or the first rank's GPU that idles
for seconds at each save while the others wait for it. Interconnect: NCCL says NET/Socket on a run of several nodes,
all ranks equally slow; in metrics engine near full and SM near idle while collectives advance, CUDA calls that take
many times as long as a launch, time spent in collectives; power far below its limit, and tensor pipes and memory at
rest, stand in for SM activity that was not sampled. Launch blocking: the log shows the variable in force.

Not this when
-------------
Only a handful of steps were done: any ratio over them is degenerate. Advice about CUDA_LAUNCH_BLOCKING in an
error text is not the flag. NET/Socket within one node, or with one rank, is harmless. One slow rank is a
straggler; no progress at all is a hang. The save at the end, and a save now and then, are normal.

Impact
------
Silent waste: the run completes, so nothing else says so.

Do next
-------
Save every few hundred steps or asynchronously; mend the fabric (drivers, NCCL_IB_* and NCCL_SOCKET_IFNAME,
the network plugin); unset the debug flag.

What it cannot tell
-------------------
The loss in throughput, without a figure to compare with. Whether sockets were meant, on a cluster without
a fast fabric.

References
----------
NCCL documentation, environment variables; CUDA programming guide, asynchronous launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trackside.evidence import Evidence, derived
from trackside.facts.gpu.busy_wait import PINNED, PINNED_UNSEEN, busy_wait_of
from trackside.facts.gpu.signals import NEED, STANDSTILL, watched
from trackside.facts.gpu.signals import Limits as Rest
from trackside.facts.hardware.health import CLEAN, CLEAN_SAYS, clean
from trackside.facts.logs.ending import abnormal_end, completed, disposition
from trackside.facts.pace import saving
from trackside.facts.pace.saving import SAVING, save_storm
from trackside.facts.pace.work import WORK_SAYS, learned
from trackside.facts.training.learning import number, steps_done
from trackside.family import Family
from trackside.finding import Action, Certainty, Claim, Finding, absent, action, claim, found, unknown
from trackside.model import Event, Run
from trackside.query import Query, events, metric

if TYPE_CHECKING:
    from trackside.facts.gpu.activity import GpuActivity
    from trackside.facts.gpu.duty import Duty
    from trackside.facts.pace.alone import Saver
    from trackside.facts.pace.slow_gpus import Slow


@dataclass(frozen=True)
class Limits(saving.Limits):
    """What counts as too often, and what as a collapse while saving."""

    handful: int = 6
    """Steps below which a run is mostly start-up: up to five are a handful (the catalogue's E3)."""
    readings: int = 10
    """Samples of a GPU's activity below which a mean is chance."""
    collapsed_sm: float = 0.35
    """Mean SM activity of a run that mostly waits."""


COLLECT = (
    "the log at INFO level with its checkpoint messages",
    "NCCL_DEBUG=INFO output of one start",
    "GPU engine and SM activity (DCGM PROF_GR_ENGINE_ACTIVE, PROF_SM_ACTIVE) and the collectives of the run",
)


@dataclass(frozen=True)
class Measured:
    """What the GPUs did while the run worked."""

    seen: GpuActivity
    duty: Duty
    slow: Slow | None
    """GPUs that the others wait for."""
    saver: Saver | None
    """That these are of the rank that saves, if so."""
    hanging: bool
    """It stood still in the end, which is another matter."""


def judge(evidence: Evidence, run: Run, limits: Limits) -> Finding:
    """Saves against steps, then the debug flag, then the transport."""
    measured = _measured(evidence, run, limits)
    storm = save_storm(evidence, run, limits)
    if storm is not None:
        shows, certainty = list(storm.shows), Certainty.SUPPORTED
        sm = measured.duty.sm if measured is not None else None
        if sm is not None and sm.number <= limits.collapsed_sm:
            shows.append(claim("collapsed", sm=sm))
            certainty = Certainty.ESTABLISHED
        return _found(evidence, "save-storm", certainty, "job", shows, [action("save_less")], storm.first, measured)
    if measured is not None and measured.saver is not None:  # saves now and then, but long ones
        writer = measured.saver
        certainty = Certainty.SUPPORTED if writer.share >= limits.saving_share else Certainty.POSSIBLE
        return _found(evidence, "save-storm", certainty, "job", writer.shows, [action("save_less")], writer.first,
                      measured)  # fmt: skip
    flag = _launch_blocking(evidence, measured)
    if flag is not None:
        return flag
    done = steps_done(evidence["progress"], evidence["ends"])
    if done is not None and done.number < limits.handful:
        return unknown(["enough steps: most of the time was start-up"], COLLECT)
    slow = _interconnect(evidence, run, measured)
    if slow is not None:
        return slow
    if measured is not None and measured.duty.busy is not None:
        return absent(_worked(measured, evidence))
    if done is None or done.number < limits.least_steps:
        return unknown(["enough steps to hold saves and transport against"], COLLECT)
    return absent(claim("seldom", saves=evidence["saves"].reduce("count"), steps=done))


def _measured(evidence: Evidence, run: Run, limits: Limits) -> Measured | None:
    seen = watched(evidence, run)
    if seen is None:
        return None
    from trackside.facts.gpu.duty import duty
    from trackside.facts.gpu.signals import at_end
    from trackside.facts.pace.alone import saver
    from trackside.facts.pace.lagging import Limits as Lag
    from trackside.facts.pace.slow_gpus import slow_gpus

    spent = duty(evidence, seen, limits.readings)
    if spent is None:
        return None
    still = at_end(evidence, run, seen, Rest())
    hanging = still is not None and still.sure and completed(evidence) is None
    slow = slow_gpus(evidence, run, seen, spent, Lag())
    return Measured(seen, spent, slow, saver(evidence, run, seen, slow) if slow is not None else None, hanging)


def _worked(measured: Measured, evidence: Evidence) -> Claim:
    """Why it is none of the three: the counterfactual."""
    duty, saves = measured.duty, evidence["saves"]
    assert duty.busy is not None
    if measured.slow is not None:
        return claim("one_slow", gpus=derived(measured.slow.gpus, duty.busy))
    if duty.sm is not None:
        return claim("works", busy=duty.busy, sm=duty.sm)
    return claim("works_unseen", busy=duty.busy, saves=saves.reduce("count"))


# -- flag and transport


def _launch_blocking(evidence: Evidence, measured: Measured | None) -> Finding | None:
    flags = evidence["flags"]
    waits: list[Claim] = []
    if measured is not None:
        waits = list(busy_wait_of(evidence, measured.seen, measured.duty).blocking)
    for row in flags.events:
        if row.get("name") == "CUDA_LAUNCH_BLOCKING" and str(row.get("value")).strip("'\" ") == "1":
            shows = [claim("blocking", line=flags.value(row, "text")), *waits]
            certainty = Certainty.ESTABLISHED if waits else Certainty.SUPPORTED
            return _found(evidence, "launch-blocking", certainty, "job", shows, [action("unset")], row, measured)
    if not waits:
        return None
    return _found(evidence, "launch-blocking", Certainty.SUPPORTED, "job", waits, [action("unset")], None, measured)


def _interconnect(evidence: Evidence, run: Run, measured: Measured | None) -> Finding | None:
    """GPUs that spin in collectives, all alike; without metrics, NCCL over sockets between nodes, which is only a
    suspicion: the cluster may have nothing faster."""
    sockets = _sockets(evidence, run)
    lines = [claim("sockets", line=evidence["transports"].value(sockets, "text"))] if sockets is not None else []
    if measured is not None and measured.duty.busy is not None:
        own = busy_wait_of(evidence, measured.seen, measured.duty)
        spin = own.spin(lines)
        if measured.slow is not None:
            return None
        if spin is not None and not measured.hanging:
            sure = spin.corroborated and (spin.plain or len(spin.corroborated) > 1)
            certainty = Certainty.ESTABLISHED if sure else Certainty.SUPPORTED
            if not spin.plain and not spin.corroborated:
                certainty = Certainty.POSSIBLE
            from trackside.facts.pace.slow_gpus import alike

            even = alike(evidence, measured.seen, measured.duty)
            shows = [*spin.shows, *spin.corroborated, *([even] if even is not None else []), *clean(evidence)]
            return _found(evidence, "interconnect", certainty, "infrastructure", shows, [action("fabric")], None,
                          measured)  # fmt: skip
        if measured.duty.sm is not None and measured.duty.sm.number > own.limits.doubtful_sm:
            return None  # sockets that cost little
    if sockets is None:
        return None
    return _found(evidence, "interconnect", Certainty.POSSIBLE, "infrastructure", lines, [action("fabric")], sockets,
                  measured)  # fmt: skip


def _sockets(evidence: Evidence, run: Run) -> Event | None:
    """NCCL's choice of sockets, on a run of several nodes and ranks that has nothing faster beside."""
    transports = evidence["transports"]
    chosen = [row for row in transports.events if row.get("transport") == "socket"]
    fast = any(row.get("transport") == "ib" for row in transports.events)
    nodes = max([len(run.nodes), *(int(number(row, "nnodes") or 0) for row in _sized(evidence))], default=0)
    ranks = max((int(number(row, "nranks") or 0) for row in transports.events), default=0)
    return None if not chosen or fast or nodes < 2 or ranks == 1 else chosen[0]


def _sized(evidence: Evidence) -> list[Event]:
    return [row for name in ("transports", "ready", "hosts") for row in evidence[name].events]


def _found(
    evidence: Evidence,
    variant: str,
    certainty: Certainty,
    culprit: str,
    shows: Sequence[Claim],
    actions: Sequence[Action],
    at: Event | None,
    measured: Measured | None,
) -> Finding:
    """A finding that is a warning only where the run ended badly for another reason or the evidence is a hint."""
    doubtful = certainty is Certainty.POSSIBLE and shows[0].sentence in (PINNED, PINNED_UNSEEN)
    state = disposition(evidence)
    reaped = state is not None and state.value in ("TIMEOUT", "DEADLINE")  # it may well have needed more time for this
    ended_badly = abnormal_end(evidence) is not None and not reaped
    well = completed(evidence)
    since = at.time if at is not None else measured.duty.start if measured is not None else None
    return found(
        certainty,
        "infrastructure" if culprit == "infrastructure" else "job",
        [*shows, *learned(evidence), *([claim("completed", state=well)] if well is not None else [])],
        implies=[claim("implies_sockets" if shows[0].key == "sockets" else f"implies_{variant.replace('-', '_')}")],
        cannot_decide=[claim("how_much"), *([claim("few_sms")] if doubtful else [])],
        actions=actions,
        since=since,
        at=at.at if at is not None else None,
        variant=variant,
        latent=ended_badly or certainty is Certainty.POSSIBLE or (measured is not None and measured.hanging),
    )


def _by_api(name: str) -> Query:
    return metric(name).over("run", "increase").by("api", how="sum")


FAMILY = Family(
    code="D2",
    id="throughput-bound",
    title="Throughput-bound: saves, transport or a debug flag set the pace",
    pictured=("slow-interconnect", "busy-wait"),
    asks={
        **SAVING,
        **STANDSTILL,
        **CLEAN,
        "tensor": metric("gpu_tensor_active_ratio").over("run", "avg"),
        "dram": metric("gpu_dram_active_ratio").over("run", "avg"),
        "flags": events("env_flag"),
        "transports": events("nccl_transport"),
        "ready": events("distributed_ready"),
        "hosts": events("host"),
        "waits": metric("trackside_nccl_collective_seconds_total")
        .over("run", "increase")
        .by("node", "gpu", "rank", how="sum"),
        "api_seconds": _by_api("trackside_cuda_api_seconds_total"),
        "api_calls": _by_api("trackside_cuda_api_calls_total"),
        "all_reduce": metric("training_all_reduce_seconds").over("run", "avg"),
        "step_seconds": metric("training_step_seconds").over("run", "avg"),
        "network": metric("host_network_tx_bytes_total").over("run", "increase").by("node", how="max"),
        "fabric": metric("host_infiniband_tx_bytes_total").over("run", "increase").by("node", how="max"),
    },
    needs=(("progress", *NEED),),
    says={
        **saving.SAYS,
        **CLEAN_SAYS,
        **WORK_SAYS,
        "collapsed": "SM activity was {sm} meanwhile (mean)",
        "alike": "all GPUs do so alike: {signal} from {low} to {high} (medians)",
        "completed": "the run ended well: {state}",
        "works": "the GPUs were busy {busy} of the time and their SMs {sm} (means)",
        "works_unseen": "the GPUs were busy {busy} of the time (mean), {saves} checkpoint messages were printed, "
        "and no blocking flag",
        "one_slow": "the others wait for GPU {gpus}: that is a straggler",
        "blocking": "the log shows the flag in force: {line}",
        "sockets": "NCCL chose sockets between the nodes: {line}",
        "implies_save_storm": "training stops at nearly every step to write a checkpoint; storage sets the pace",
        "implies_launch_blocking": "every kernel launch waits for the kernel's end, so the GPU idles between them",
        "implies_interconnect": "the GPUs wait for each other in collectives that are too slow, all alike; a GPU that "
        "looks busy then only waits, and utilisation does not tell",
        "implies_sockets": "collectives may go over TCP where a faster fabric was expected",
        "how_much": "how much faster it could be: that takes a throughput to compare with",
        "few_sms": "whether the GPUs wait for each other, or the model fills few of their SMs: traced collectives tell",
        "save_less": "save every few hundred steps or every half hour, asynchronously or to faster storage",
        "unset": "unset the flag: it is for debugging",
        "fabric": "check that the fast fabric's driver and NCCL plugin are found by the job, then compare throughput",
        "seldom": "{saves:checkpoint messages} in {steps}, no blocking flag, no sockets between nodes",
    },
    judge=judge,
    loses="pace",
    limits=Limits(),
    explains=("F3",),
    rivals=("D1", "D3"),
    collect=COLLECT,
)
