"""Throughput-bound: checkpoints at nearly every step, a slow transport, or a debug flag sets the pace.

Meaning
-------
The run advances and learns, but at a fraction of the hardware's worth, for a cause that can be named: it
saves a checkpoint at nearly every step, it talks over TCP sockets between nodes, or CUDA_LAUNCH_BLOCKING
makes every kernel launch wait.

What it looks like
------------------
Save storm: about as many saves as steps, or saves that take most of the wall time. Interconnect: NCCL says
NET/Socket on a run of several nodes, all ranks equally slow; in metrics engine near full and SM near idle
while collectives advance. Launch blocking: the log shows the variable in force.

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
from itertools import pairwise

from trackside.diagnose.ending import ENDING, abnormal_end
from trackside.diagnose.family import Evidence, Family, absent, action, claim, found, unknown
from trackside.diagnose.learning import LEARNING, number, step_seconds, steps_done, training_points
from trackside.model import Action, Certainty, Claim, Event, Finding, Run, Value
from trackside.query import derived, events, metric


@dataclass(frozen=True)
class Limits:
    """What counts as too often."""

    least_steps: int = 10
    """Below this a ratio of saves to steps is degenerate (the catalogue's E3)."""
    saves_a_step: float = 0.45
    """A save at every step or every second one: 'nearly every step' of the catalogue's D2."""
    saving_share: float = 0.5
    """Share of wall time spent in saves from which saving sets the pace."""


COLLECT = (
    "the log at INFO level with its checkpoint messages",
    "NCCL_DEBUG=INFO output of one start",
    "GPU engine and SM activity and the NCCL traffic of the run",
)


def judge(evidence: Evidence, run: Run, limits: Limits) -> Finding:
    """Saves against steps, then the debug flag, then the transport."""
    storm = _save_storm(evidence, limits)
    if storm is not None:
        return storm
    flag = _launch_blocking(evidence)
    if flag is not None:
        return flag
    sockets = _sockets(evidence, run)
    if sockets is not None:
        return sockets
    done = steps_done(evidence["progress"], evidence["ends"])
    if done is None or done.number < limits.least_steps:
        return unknown(["enough steps to hold saves and transport against"], COLLECT)
    return absent(claim("seldom", saves=evidence["saves"].reduce("count"), steps=done))


# -- saves


def _save_storm(evidence: Evidence, limits: Limits) -> Finding | None:
    saves = _distinct(evidence["saves"].events)
    done = _steps_seen(evidence)
    if done is None or not isinstance(done.value, (int, float)) or done.value < limits.least_steps:
        return None
    often = _often(evidence, saves, done, limits)
    seconds = sum(number(row, "seconds") or 0.0 for row in saves)
    wall = _wall(evidence)
    total = evidence["saves"].reduce("count")
    share = None
    if seconds and wall is not None and isinstance(wall.value, (int, float)) and len(saves) > 2:
        share = derived(round(seconds / wall.value, 2), total, wall)
    slow = share is not None and isinstance(share.value, float) and share.value >= limits.saving_share
    if often is None and not slow:
        return None
    shows = [] if often is None else [often]
    if share is not None:
        shows.append(claim("saving_time", share=share))
    at = saves[0] if saves else None
    return _found(evidence, "save-storm", Certainty.SUPPORTED, "job", shows, [action("save_less")], at)


def _distinct(saves: Sequence[Event]) -> list[Event]:
    """One event a checkpoint: shards, ranks and messages of the same step or path count once."""
    seen: set[object] = set()
    kept = []
    for row in saves:
        key = row.get("step") if row.get("step") is not None else row.get("path") or (row.at.path, row.at.line)
        if key not in seen:
            seen.add(key)
            kept.append(row)
    return kept


def _steps_seen(evidence: Evidence) -> Value | None:
    """Steps done in this run: from the first point's step to the last's, for a run that continued another."""
    progress = evidence["progress"]
    done = steps_done(progress, evidence["ends"])
    saved = [row for row in evidence["saves"].events if number(row, "step") is not None]
    if done is None and saved:  # points without a step: the checkpoints' own count
        done = evidence["saves"].value(saved[-1], "step", "steps")
    points = training_points(progress)
    first = number(points[0], "step") if points else None
    if done is None or first is None or first <= 20 or not isinstance(done.value, (int, float)):
        return done
    return derived(done.value - first, done, progress.value(points[0], "step"), unit="steps")


def _often(evidence: Evidence, saves: Sequence[Event], done: Value, limits: Limits) -> Claim | None:
    """Counted saves near the number of steps; or a plan that says so."""
    if not isinstance(done.value, (int, float)):
        return None
    total = evidence["saves"].reduce("count")
    if len(saves) >= limits.saves_a_step * done.value:
        return claim("saves_counted", saves=derived(len(saves), total), steps=done)
    steps = sorted({step for row in saves if (step := number(row, "step")) is not None})
    gaps = sorted(after - before for before, after in pairwise(steps))
    if len(gaps) >= limits.least_steps and gaps[len(gaps) // 2] <= 2:
        return claim("saves_counted", saves=derived(len(saves), total), steps=done)
    plans = evidence["plans"]
    for row in plans.events:
        every = number(row, "save_steps")
        if every is not None and 0 < every <= 2 and not saves:
            return claim("saves_planned", every=plans.value(row, "save_steps"), steps=done)
    return None


def _wall(evidence: Evidence) -> Value | None:
    """Wall seconds from the first to the last stamped point, or steps times the printed step time."""
    progress = evidence["progress"]
    stamped = [row for row in training_points(progress) if row.time is not None]
    if len(stamped) > 1 and (stamped[-1].time or 0.0) > (stamped[0].time or 0.0):
        ends = [progress.value(row, "time") for row in (stamped[0], stamped[-1])]
        return derived((stamped[-1].time or 0.0) - (stamped[0].time or 0.0), *ends, unit="s")
    each, done = step_seconds(training_points(progress), progress), steps_done(progress, evidence["ends"])
    if each is None or done is None:
        return None
    return derived(each.number * done.number, each, done, unit="s")


# -- flag and transport


def _launch_blocking(evidence: Evidence) -> Finding | None:
    flags = evidence["flags"]
    for row in flags.events:
        if row.get("name") == "CUDA_LAUNCH_BLOCKING" and str(row.get("value")).strip("'\" ") == "1":
            shows = [claim("blocking", line=flags.value(row, "text"))]
            return _found(evidence, "launch-blocking", Certainty.SUPPORTED, "job", shows, [action("unset")], row)
    return None


def _sockets(evidence: Evidence, run: Run) -> Finding | None:
    """NCCL over sockets between nodes. From logs alone only a suspicion: the cluster may have nothing faster."""
    transports = evidence["transports"]
    chosen = [row for row in transports.events if row.get("transport") == "socket"]
    fast = any(row.get("transport") == "ib" for row in transports.events)
    nodes = max([len(run.nodes), *(int(number(row, "nnodes") or 0) for row in _sized(evidence))], default=0)
    ranks = max((int(number(row, "nranks") or 0) for row in transports.events), default=0)
    if not chosen or fast or nodes < 2 or ranks == 1:
        return None
    shows = [claim("sockets", line=transports.value(chosen[0], "text"))]
    return _found(evidence, "interconnect", Certainty.POSSIBLE, "infrastructure", shows, [action("fabric")], chosen[0])


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
) -> Finding:
    """A finding that is a warning only where the run did not end well or the evidence is a hint."""
    ended_badly = abnormal_end(evidence) is not None
    return found(
        certainty,
        "infrastructure" if culprit == "infrastructure" else "job",
        shows,
        implies=[claim(f"implies_{variant.replace('-', '_')}")],
        cannot_decide=[claim("how_much")],
        actions=actions,
        since=at.time if at is not None else None,
        at=at.at if at is not None else None,
        variant=variant,
        latent=ended_badly or certainty is Certainty.POSSIBLE,
    )


FAMILY = Family(
    code="D2",
    id="throughput-bound",
    title="Throughput-bound: saves, transport or a debug flag set the pace",
    asks={
        **LEARNING,
        **ENDING,
        "saves": events("checkpoint_saved"),
        "flags": events("env_flag"),
        "transports": events("nccl_transport"),
        "ready": events("distributed_ready"),
        "hosts": events("host"),
        "engine": metric("gpu_engine_active_ratio").over("run", "avg"),
        "sm": metric("gpu_sm_active_ratio").over("run", "avg"),
    },
    needs=(("progress", "engine"),),
    says={
        "saves_counted": "{saves} checkpoints were saved in {steps}",
        "saves_planned": "a checkpoint is saved every {every} steps, over {steps}",
        "saving_time": "saving took {share} of the wall time",
        "blocking": "the log shows the flag in force: {line}",
        "sockets": "NCCL chose sockets between the nodes: {line}",
        "implies_save_storm": "training stops at nearly every step to write a checkpoint; storage sets the pace",
        "implies_launch_blocking": "every kernel launch waits for the kernel's end, so the GPU idles between them",
        "implies_interconnect": "collectives may go over TCP where a faster fabric was expected",
        "how_much": "how much faster it could be: that takes a throughput to compare with",
        "save_less": "save every few hundred steps or every half hour, asynchronously or to faster storage",
        "unset": "unset the flag: it is for debugging",
        "fabric": "check that the fast fabric's driver and NCCL plugin are found by the job, then compare throughput",
        "seldom": "{saves} checkpoint messages in {steps}, no blocking flag, no sockets between nodes",
    },
    judge=judge,
    limits=Limits(),
    rivals=("D1", "D3"),
    collect=COLLECT,
)
