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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trackside.diagnose import maths
from trackside.diagnose.ending import abnormal_end, disposition
from trackside.diagnose.family import Evidence, Family, absent, action, claim, found, unknown
from trackside.diagnose.gpus import of_ranks
from trackside.diagnose.health import CLEAN, CLEAN_SAYS, clean
from trackside.diagnose.learning import number, steps_done
from trackside.diagnose.signals import NEED, STANDSTILL, nodes_of, ranks_at, watched
from trackside.diagnose.signals import Limits as Rest
from trackside.model import Certainty, Claim, Event, Finding, Run
from trackside.query import derived, events, metric

if TYPE_CHECKING:
    from trackside.diagnose.slow_gpus import Slow


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
    plain_ratio: float = 1.5
    """SM activity over the cross-rank median that no division of equal work explains."""
    spinning: float = 0.7
    """Engine activity of ranks that wait in a collective for most of their time."""
    windows: int = 10
    """Windows of GPU activity below which a median is chance."""
    lasting_share: float = 0.2
    """Share of the time of work below which it was an episode, worth a warning."""


COLLECT = (
    "step or compute times printed by every rank, at the same steps",
    "per-GPU SM activity (DCGM PROF_SM_ACTIVE) and clock-throttle reasons over the run",
)


@dataclass(frozen=True)
class Lag:
    """Ranks that lag, by one witness."""

    certainty: Certainty
    ranks: tuple[int, ...]
    gpus: tuple[str, ...]
    shows: tuple[Claim, ...]
    since: float | None
    row: Event | None = None
    lasting: bool = True
    slow_clock: bool = False


def judge(evidence: Evidence, run: Run, limits: Limits) -> Finding:
    """GPUs that the others wait for, by what they show; ranks that lag, by the times that they print or export."""
    done = steps_done(evidence["progress"], evidence["ends"])
    if done is not None and done.number < limits.least_steps:
        return unknown(["enough steps to compare the ranks over"], COLLECT)
    shown, alike, hanging = _by_gpus(evidence, run, limits)
    printed, even = _by_log(evidence, run, limits)
    exported, level = _by_gauge(evidence, run, limits)
    lags = [each for each in (shown, exported, printed) if each is not None]
    if lags:
        return _found(evidence, lags, hanging, limits)
    reasons = [each for each in (alike, level, even) if each is not None]
    if reasons:
        return absent(*reasons)
    return unknown(["no per-rank compute times over enough steps, and no per-GPU activity"], COLLECT)


def _found(evidence: Evidence, lags: Sequence[Lag], hanging: bool, limits: Limits) -> Finding:
    """The surest witness names the ranks; another that names the same makes it sure."""
    best = max(lags, key=lambda each: each.certainty.strength)
    agree = [
        each for each in lags if each is best or set(each.ranks) & set(best.ranks) or set(each.gpus) & set(best.gpus)
    ]
    certainty = Certainty.ESTABLISHED if len(agree) > 1 and best.certainty.strength else best.certainty
    state = disposition(evidence)
    reaped = state is not None and state.value in ("TIMEOUT", "DEADLINE")  # it may well have needed more time for this
    bad = abnormal_end(evidence) is not None and not reaped
    slow_clock = any(each.slow_clock for each in agree)
    gpus = next((each.gpus for each in agree if each.gpus), ())
    return found(
        certainty,
        "infrastructure" if slow_clock else "unknown",
        [*(each for lag in agree for each in lag.shows), *clean(evidence)],
        implies=[claim("drags")],
        cannot_decide=[claim("host_side" if not slow_clock else "how_much")],
        actions=[action("look")],
        since=best.since,
        at=None if best.row is None else best.row.at,
        ranks=next((each.ranks for each in agree if each.ranks), ()),
        gpus=gpus,
        nodes=nodes_of(gpus),
        latent=bad or hanging or not best.lasting or certainty is Certainty.POSSIBLE,
    )


# -- what the GPUs show


def _by_gpus(evidence: Evidence, run: Run, limits: Limits) -> tuple[Lag | None, Claim | None, bool]:
    """(those that the others wait for, why none, whether the run stood still in the end)"""
    seen = watched(evidence, run)
    if seen is None:
        return None, None, False
    from trackside.diagnose import lagging
    from trackside.diagnose.duty import duty
    from trackside.diagnose.slow_gpus import alike, slow_gpus
    from trackside.diagnose.standstill import at_end

    spent = duty(evidence, seen, limits.windows)
    if spent is None or int(spent.rows.sum()) < 2:
        return None, None, False
    still = at_end(evidence, run, seen, Rest())
    hanging = still is not None and still.sure
    slow = slow_gpus(
        evidence, run, seen, spent, lagging.Limits(ratio=limits.lag_ratio, sustained=limits.sustained_share)
    )
    if slow is None:
        return None, alike(evidence, seen, spent), hanging
    lasting = slow.end - slow.start >= limits.lasting_share * spent.seconds
    lag = Lag(_certainty(slow, limits), ranks_at(evidence, run, slow.gpus), slow.gpus, slow.shows,
              slow.start + seen.step, None, lasting, slow.slow_clock)  # fmt: skip
    return lag, None, hanging


def _certainty(slow: Slow, limits: Limits) -> Certainty:
    """Established where it can only be waiting: the others are pinned, and the work was equal or the waits differ."""
    whole = len(nodes_of(slow.gpus)) == 1 and len(slow.gpus) > 1
    if slow.equal is False or (whole and slow.sign == "sm" and not slow.slow_clock and not slow.waits_least):
        return Certainty.POSSIBLE  # other work, or a stage of its own
    waited = slow.peers_busy is not None and slow.peers_busy >= limits.spinning
    if slow.sign == "sm" and not waited and not slow.waits_least:
        return Certainty.POSSIBLE  # the others idle: nothing shows that they wait for it
    if slow.sign == "sm" and slow.ratio >= limits.plain_ratio and (slow.equal or slow.waits_least):
        return Certainty.ESTABLISHED
    return Certainty.ESTABLISHED if slow.sign == "busy" and slow.waits_least else Certainty.SUPPORTED


# -- what the ranks print and export


def _by_log(evidence: Evidence, run: Run, limits: Limits) -> tuple[Lag | None, Claim | None]:
    """Compare the compute times of the ranks step by step, where more than two ranks print them."""
    times = _by_rank(evidence["ranks"].events)
    steps = set.intersection(*(set(own) for own in times.values())) if times else set()
    if len(times) < limits.least_ranks or len(steps) < limits.least_steps:
        return None, None
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
    if lag[rank] < limits.lag_ratio or sum(value > 0 for value in lag.values()) > max(1, len(times) // 4):
        return None, claim("even", ranks=frame.reduce("distinct", "rank"), one=mine, other=theirs)
    told = claim("lags", rank=frame.value(last, "rank"), mine=mine, theirs=theirs,
                 ratio=derived(round(lag[rank], 2), mine, theirs))  # fmt: skip
    return Lag(Certainty.SUPPORTED, (rank,), of_ranks(run, (rank,)), (told,), last.time, last), None


def _by_gauge(evidence: Evidence, run: Run, limits: Limits) -> tuple[Lag | None, Claim | None]:
    """Compare step times that every rank exports: of its own work, where they differ at all."""
    grid = evidence.grid("own_step")
    if grid is None or sum(bool(rank) for (rank,) in grid.labels("rank")) < limits.least_ranks:
        return None, None
    from trackside.diagnose import lagging

    kept = [place for place, (rank,) in enumerate(grid.labels("rank")) if rank.isdecimal()]
    ranks = [int(grid.series[place].get("rank") or 0) for place in kept]
    gpus = [(of_ranks(run, (rank,)) or (f":{rank}",))[0] for rank in ranks]
    own = lagging.Limits(ratio=limits.lag_ratio, sustained=limits.sustained_share)
    found_ = lagging.outliers(grid.values[kept], gpus, own)
    theirs = grid.value("median")
    if not found_:
        high, low = grid.value("max"), grid.value("min")
        return None, claim("even_gauge", count=derived(len(ranks), theirs), middle=theirs, high=high, low=low)
    first = found_[0]
    start, end = float(grid.times[first.start]) - grid.step, float(grid.times[first.stop - 1])
    late = tuple(sorted(ranks[each.row] for each in found_))
    part = grid.during(start, end)
    mine, theirs = part.where(rank=str(ranks[first.row])).value("median"), part.value("median")
    told = claim("lags", rank=derived(ranks[first.row], mine), mine=mine, theirs=theirs,
                 ratio=derived(round(first.ratio, 2), mine, theirs))  # fmt: skip
    lasting = first.stop - first.start >= limits.lasting_share * len(grid.times)
    return Lag(Certainty.SUPPORTED, late, of_ranks(run, late), (told,), start + grid.step, None, lasting), None


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
        **STANDSTILL,
        **CLEAN,
        "ranks": events("rank_progress"),
        "own_step": metric("training_step_seconds").over("run", "avg"),
        "waits": metric("trackside_nccl_collective_seconds_total")
        .over("run", "increase")
        .by("node", "gpu", "rank", how="sum"),
    },
    needs=(("ranks", "own_step", "waits", *NEED),),
    says={
        **CLEAN_SAYS,
        "lags": "rank {rank} computes {ratio} times as long as the median rank: {mine} beside {theirs}",
        "slow_sm": "GPU {gpus} works {ratio} times as much of its time as the others: SM activity {mine} beside "
        "{theirs} (medians), for {seconds}",
        "slow_busy": "GPU {gpus} is busy {mine} of its time while the others are pinned at {theirs} (medians), "
        "for {seconds}",
        "slow_wait": "GPU {gpus} spends {mine} of each {window} in collectives and the others {theirs} (medians): "
        "it is the one that they wait for",
        "peers_busy": "the others wait meanwhile: {signal} activity {busy} (median)",
        "equal": "the work is equal: {mine} kernel launches a window beside {theirs} (medians)",
        "clock": "its SM clock is {mine} beside {theirs} (medians)",
        "drags": "every synchronous step waits for this rank, so the whole allocation runs at its pace",
        "host_side": "why the rank is slow: a sick GPU, a slow data shard, CPU contention or its NUMA placement",
        "how_much": "how much throughput that costs: it takes a figure from a healthy run to compare with",
        "look": "check clocks, throttling and ECC of that GPU and the load of its host; rerun without the node",
        "even": "{ranks} compute about equally long, for instance {one} and {other}",
        "even_gauge": "the step times that {count} ranks export lie between {low} and {high}, about {middle}, and none "
        "is late for long",
        "alike": "the GPUs work alike: {signal} activity from {low} to {high} (medians)",
    },
    judge=judge,
    limits=Limits(),
    explains=("F3",),
    rivals=("D1", "D2", "B3"),
    collect=COLLECT,
)
