"""Straggler: one rank is slower than all others and sets the pace.

Meaning
-------
Synchronous training waits for the slowest rank at every step. One rank that computes persistently longer than
the rest drags the whole allocation to its pace; nothing crashes or hangs.

What it looks like
------------------
The same steps and collectives on every rank, and on one rank compute or step times far above the cross-rank
median, sustained. In metrics: that rank's SM duty cycle is far above the others', which spin in the all-reduce.

Not this when
-------------
All ranks are slow: that is input or throughput. A single slow step. Pipeline stages and experts are uneven by
design: compare within the same parallel position. Fewer than twenty steps. The wall time of a step is the same
on every rank by construction, and says nothing; only the time a rank computes itself does.

Impact
------
The share by which the slow rank exceeds the median, times the whole allocation.

Do next
-------
Look at that rank's GPU (clocks, throttling, ECC), its data shard, and its CPU and NUMA binding; swap the node
and compare.

What it cannot tell
-------------------
Why the rank is slow. No log parser tells the times of single ranks apart yet: without GPU metrics it stays unknown.

References
----------
The catalogue of failure families, D3.
"""

from __future__ import annotations

from dataclasses import dataclass

from trackside.diagnose import maths
from trackside.diagnose.ending import ENDING, abnormal_end
from trackside.diagnose.family import Evidence, Family, absent, action, claim, found, unknown
from trackside.diagnose.learning import number
from trackside.model import Certainty, Event, Finding, Run
from trackside.query import derived, events, metric


@dataclass(frozen=True)
class Limits:
    """What counts as lagging."""

    least_steps: int = 20
    """Steps that every compared rank must have printed (design of the families)."""
    least_ranks: int = 3
    """With two ranks there is no median to lag behind."""
    lag_ratio: float = 1.3
    """Compute time over the cross-rank median. Ranks of healthy jobs differ by a few per cent."""
    sustained_share: float = 0.7
    """Share of steps at which the rank must lag so far."""


COLLECT = (
    "step or compute times printed by every rank, at the same steps",
    "per-GPU SM activity (DCGM PROF_SM_ACTIVE) and clock-throttle reasons over the run",
)


def judge(evidence: Evidence, run: Run, limits: Limits) -> Finding:
    """Compare the compute times of the ranks step by step, where more than two ranks print them."""
    times = _by_rank(evidence["ranks"].events)
    steps = set.intersection(*(set(own) for own in times.values())) if times else set()
    if len(times) < limits.least_ranks or len(steps) < limits.least_steps:
        return unknown(["no per-rank compute times over enough steps, and no per-GPU activity"], COLLECT)
    middles = {
        step: maths.median([number(own[step], "compute_time_s") or 0.0 for own in times.values()]) for step in steps
    }
    lag: dict[int, float] = {}
    for rank, own in times.items():
        ratios = [_compute(own[step]) / middles[step] for step in steps if middles[step] > 0]
        late = sum(ratio >= limits.lag_ratio for ratio in ratios)
        lag[rank] = maths.median(ratios) if ratios and late >= limits.sustained_share * len(ratios) else 0.0
    rank = max(lag, key=lambda each: lag[each])
    frame = evidence["ranks"]
    last = times[rank][max(steps)]
    other = times[next(each for each in times if each != rank)][max(steps)]
    mine, theirs = frame.value(last, "compute_time_s", "s"), frame.value(other, "compute_time_s", "s")
    ranks = frame.reduce("distinct", "rank")
    if lag[rank] < limits.lag_ratio or sum(value > 0 for value in lag.values()) > max(1, len(times) // 4):
        return absent(claim("even", ranks=ranks, one=mine, other=theirs))
    return found(
        Certainty.SUPPORTED,
        "unknown",
        [
            claim(
                "lags",
                rank=frame.value(last, "rank"),
                mine=mine,
                theirs=theirs,
                ratio=derived(round(lag[rank], 2), mine, theirs),
            )
        ],
        implies=[claim("drags")],
        cannot_decide=[claim("host_side")],
        actions=[action("look")],
        since=last.time,
        at=last.at,
        ranks=(rank,),
        latent=abnormal_end(evidence) is not None,
    )


def _compute(row: Event) -> float:
    return number(row, "compute_time_s") or 0.0


def _by_rank(rows: tuple[Event, ...]) -> dict[int, dict[float, Event]]:
    """rank -> step -> the point that prints its compute time."""
    times: dict[int, dict[float, Event]] = {}
    for row in rows:
        step = number(row, "step")
        if row.rank is not None and step is not None and number(row, "compute_time_s") is not None:
            times.setdefault(row.rank, {})[step] = row
    return times


FAMILY = Family(
    code="D3",
    id="straggler",
    title="Straggler: one slow rank sets the pace",
    asks={
        **ENDING,
        "ranks": events("rank_progress"),
        "sm": metric("gpu_sm_active_ratio").over("run", "avg"),
        "engine": metric("gpu_engine_active_ratio").over("run", "avg"),
    },
    needs=(("ranks", "sm"),),
    says={
        "lags": "rank {rank} computes {ratio} times as long as the median rank: {mine} beside {theirs}",
        "drags": "every synchronous step waits for this rank, so the whole allocation runs at its pace",
        "host_side": "why the rank is slow: a sick GPU, a slow data shard, CPU contention or its NUMA placement",
        "look": "check clocks, throttling and ECC of that GPU and the load of its host; rerun without the node",
        "even": "{ranks} compute about equally long, for instance {one} and {other}",
    },
    judge=judge,
    limits=Limits(),
    explains=(),
    rivals=("D1", "D2", "B3"),
    collect=COLLECT,
)
