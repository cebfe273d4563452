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
All ranks are slow: that is input or throughput. A single slow step. The first rank writes checkpoints while the
others wait, or works alone in a pause in which no step is done. Pipeline stages and experts are uneven by
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
Why the rank is slow. Without GPU metrics, and without times of its own that every rank printed or exported, it stays
unknown: a step's wall time is the same everywhere.

References
----------
The catalogue of failure families, D3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trackside.catalog.natural import whole_number
from trackside.evidence import Evidence, Frame, Value, derived
from trackside.facts.gpu.signals import NEED, STANDSTILL, nodes_of, watched
from trackside.facts.gpu.signals import Limits as Rest
from trackside.facts.gpus import of_ranks, ranks_at
from trackside.facts.hardware.health import CLEAN, CLEAN_SAYS, clean
from trackside.facts.logs.ending import abnormal_end, completed, disposition
from trackside.facts.pace import saving
from trackside.facts.pace.saving import SAVING
from trackside.facts.pace.work import WORK_SAYS, learned
from trackside.facts.training.learning import number, steps_done
from trackside.family import Family
from trackside.finding import Certainty, Claim, Finding, absent, action, claim, found, unknown
from trackside.model import Event, Run
from trackside.query import events, metric

if TYPE_CHECKING:
    from trackside.facts.pace.slow_gpus import Slow


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
    readings: int = 10
    """Samples of a GPU's activity below which a median is chance."""
    pressure_share: float = 0.3
    """Share of time in which tasks of a node waited for a CPU (pressure stall information)."""
    pressure_ratio: float = 2.0
    """The same over the median node's."""
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
    own_work: bool = False
    """Whether it may be the first rank at work of its own."""


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
    cpus = [] if slow_clock else _contended(evidence, nodes_of(gpus), limits)
    why = [] if slow_clock else [claim("whose_cpus" if cpus else "host_side")]
    why += [claim("own_work")] if best.own_work else []
    return found(
        certainty,
        "infrastructure" if slow_clock else "unknown",
        [*(each for lag in agree for each in lag.shows), *cpus, *learned(evidence), *clean(evidence)],
        implies=[claim("drags")],
        cannot_decide=[*why, claim("how_much")],
        actions=[action("look")],
        since=best.since,
        at=None if best.row is None else best.row.at,
        ranks=next((each.ranks for each in agree if each.ranks), ()),
        gpus=gpus,
        nodes=nodes_of(gpus),
        latent=bad or hanging or not best.lasting or certainty is Certainty.POSSIBLE,
    )


def _contended(evidence: Evidence, nodes: Sequence[str], limits: Limits) -> list[Claim]:
    """Tasks of that node that wait for a CPU, and not so on the other nodes."""
    grid = evidence.grid("cpu_pressure")
    if grid is None or len(nodes) != 1:
        return []
    mine, theirs = grid.where(node=nodes[0]).value("median"), grid.value("median")
    if mine.value is None or mine.number < limits.pressure_share * grid.step:
        return []
    if len(grid) > 2 and mine.number < limits.pressure_ratio * theirs.number:
        return []
    share, others = (derived(round(each.number / grid.step, 3), each, unit="share") for each in (mine, theirs))
    node = derived(nodes[0], mine)
    told = {"node": node, "share": share}
    return [claim("cpus_beside", **told, others=others) if len(grid) > 2 else claim("cpus", **told)]


# -- what the GPUs show


def _by_gpus(evidence: Evidence, run: Run, limits: Limits) -> tuple[Lag | None, Claim | None, bool]:
    """(those that the others wait for, why none, whether the run stood still in the end)"""
    seen = watched(evidence, run)
    if seen is None:
        return None, None, False
    from trackside.facts.gpu.duty import duty
    from trackside.facts.gpu.signals import at_end
    from trackside.facts.pace import lagging
    from trackside.facts.pace.alone import first_gpus, no_step, saver
    from trackside.facts.pace.slow_gpus import alike, slow_gpus

    spent = duty(evidence, seen, limits.readings)
    if spent is None or int(spent.rows.sum()) < 2:
        return None, None, False
    still = at_end(evidence, run, seen, Rest())
    hanging = still is not None and still.sure and completed(evidence) is None
    slow = slow_gpus(
        evidence, run, seen, spent, lagging.Limits(ratio=limits.lag_ratio, sustained=limits.sustained_share)
    )
    if slow is None:
        return None, alike(evidence, seen, spent), hanging
    saves = saver(evidence, run, seen, slow)
    if saves is not None:
        return None, saves.shows[0], hanging
    lasting = slow.end - slow.start >= limits.lasting_share * spent.seconds
    pause = no_step(evidence, seen, slow)
    if pause is not None:
        return None, pause, hanging
    first = not lasting and set(slow.gpus) <= set(first_gpus(run))  # it may do for all what only one has to do
    certainty = Certainty.POSSIBLE if first else _certainty(slow, limits)
    lag = Lag(certainty, ranks_at(run, slow.gpus), slow.gpus, slow.shows,
              slow.start + seen.step, None, lasting, slow.slow_clock, first)  # fmt: skip
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
    """Compare the ranks' own times step by step, where more than two print them."""
    frame = evidence["ranks"]
    for field in OWN_TIMES:
        times = _by_rank(frame.events, field, limits)
        if len(times) >= limits.least_ranks and len(set[float]().union(*times.values())) >= limits.least_steps:
            return _compared(frame, field, times, run, limits)
    return None, None


OWN_TIMES = ("compute_time_s", "relative_time", "step_time_s")
"""What a rank's own work took, the plainest first; a step's wall time differs only where it leaves out the wait."""


def _by_rank(rows: tuple[Event, ...], field: str, limits: Limits) -> dict[int, dict[float, Event]]:
    """rank -> step -> the point that prints its time; ranks with too few are left out."""
    times: dict[int, dict[float, Event]] = {}
    for row in rows:
        step = number(row, "step")
        if row.rank is not None and step is not None and number(row, field) is not None:
            times.setdefault(row.rank, {})[step] = row
    return {rank: own for rank, own in sorted(times.items()) if len(own) >= limits.least_steps}


def _compared(
    frame: Frame, field: str, times: dict[int, dict[float, Event]], run: Run, limits: Limits
) -> tuple[Lag | None, Claim | None]:
    import numpy as np

    from trackside.facts.gpu.activity import middle
    from trackside.facts.pace import lagging

    ranks, steps = list(times), sorted(set[float]().union(*times.values()))
    values = np.full((len(ranks), len(steps)), np.nan)
    place = {step: column for column, step in enumerate(steps)}
    for row, own in enumerate(times.values()):
        for step, point in own.items():
            values[row, place[step]] = number(point, field)
    gpus = [(of_ranks(run, (rank,)) or (f":{rank}",))[0] for rank in ranks]
    late = lagging.outliers(values, gpus, lagging.Limits(limits.lag_ratio, limits.sustained_share))
    slowest = late[0].row if late else int(np.nanargmax(middle(values, axis=1)))
    part = steps[late[0].start : late[0].stop] if late else steps
    own_points = [times[ranks[slowest]][step] for step in part if step in times[ranks[slowest]]]
    mine = _typical(frame, field, own_points)
    theirs = _typical(frame, field, [own[step] for own in times.values() for step in part if step in own])
    ratio = derived(round(mine.number / theirs.number, 2) if theirs.value else 1.0, mine, theirs)
    figures = {"rank": derived(ranks[slowest], mine), "ratio": ratio, "mine": mine, "theirs": theirs}
    if not late:
        return None, claim("even", ranks=frame.reduce("distinct", "rank"), **figures)
    counts = {"count": derived(len(part), mine, unit="steps"), "whole": derived(len(steps), mine, unit="steps")}
    shows = claim("lags", **figures), claim("lagging", **counts)
    found_ = tuple(sorted(ranks[each.row] for each in late))
    lasting = len(part) >= limits.lasting_share * len(steps)
    first = own_points[0]
    return Lag(Certainty.SUPPORTED, found_, of_ranks(run, found_), shows, first.time, first, lasting), None


def _typical(frame: Frame, field: str, points: Sequence[Event]) -> Value:
    """The time in the middle of these, as it was printed."""
    ordered = sorted(points, key=lambda row: number(row, field) or 0.0)
    return frame.value(ordered[len(ordered) // 2], field, "" if field == "relative_time" else "s")


def _by_gauge(evidence: Evidence, run: Run, limits: Limits) -> tuple[Lag | None, Claim | None]:
    """Compare step times that every rank exports: of its own work, where they differ at all."""
    grid = evidence.grid("own_step")
    if grid is None or sum(bool(rank) for (rank,) in grid.labels("rank")) < limits.least_ranks:
        return None, None
    from trackside.facts.pace import lagging

    numbered = [(place, whole_number(rank)) for place, (rank,) in enumerate(grid.labels("rank"))]
    kept = [place for place, rank in numbered if rank is not None]
    ranks = [rank for _, rank in numbered if rank is not None]
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


FAMILY = Family(
    code="D3",
    id="straggler",
    title="Straggler: one slow rank sets the pace",
    pictured=("straggler", "ranks"),
    asks={
        **STANDSTILL,
        **CLEAN,
        **SAVING,
        "ranks": events("rank_progress"),
        "own_step": metric("training_step_seconds").over("run", "avg"),
        "cpu_pressure": metric("host_pressure_seconds_total")
        .where(resource="cpu", level="some")
        .over("run", "increase")
        .by("node", how="max"),
        "waits": metric("trackside_nccl_collective_seconds_total")
        .over("run", "increase")
        .by("node", "gpu", "rank", how="sum"),
    },
    needs=(("ranks", "own_step", "waits", *NEED),),
    says={
        **CLEAN_SAYS,
        **WORK_SAYS,
        **saving.SAYS,
        "lags": "rank {rank} takes {ratio} times as long for its own part of a step as the median rank: {mine} beside "
        "{theirs}",
        "slow_sm": "GPU {gpus} works {ratio} times as much of its time as the others: SM activity {mine} beside "
        "{theirs} (medians), for {seconds}",
        "slow_busy": "GPU {gpus} is busy {mine} of its time while the others are pinned at {theirs} (medians), "
        "for {seconds}",
        "slow_wait": "GPU {gpus} spends {mine} of each {window} in collectives and the others {theirs} (medians): "
        "it is the one that they wait for",
        "peers_busy": "the others wait meanwhile: {signal} {busy} (median)",
        "equal_launches": "the work is equal: {mine} kernel launches a window beside {theirs} (medians)",
        "equal_collectives": "collectives go on in lock-step: {mine} a window beside {theirs} (medians)",
        "clock": "its SM clock is {mine} beside {theirs} (medians)",
        "cpus": "tasks of its host {node} waited for a CPU {share} of the time (median)",
        "cpus_beside": "tasks of its host {node} waited for a CPU {share} of the time, on the median host {others}",
        "drags": "every synchronous step waits for this rank, so the whole allocation runs at its pace",
        "host_side": "why the rank is slow: a sick GPU, a slow data shard, CPU contention or its NUMA placement",
        "whose_cpus": "whether the job's own workers load the CPUs of that host or something else does",
        "own_work": "whether it was work of its own, like an evaluation or a save, that the first rank does for all",
        "how_much": "how much throughput that costs: it takes a figure from a healthy run to compare with",
        "look": "check clocks, throttling and ECC of that GPU and the load of its host; rerun without the node",
        "lagging": "it does so in a stretch of {count}, of {whole} compared",
        "even": "{ranks} compute about equally long: the slowest, rank {rank}, {mine}, beside {theirs} "
        "(medians), {ratio} times as long",
        "even_gauge": "the step times that {count} ranks export lie between {low} and {high}, about {middle}, and none "
        "is late for long",
        "alike": "the GPUs work alike: {signal} from {low} to {high} (medians)",
    },
    judge=judge,
    loses="pace",
    limits=Limits(),
    explains=("F3",),
    rivals=("D1", "D2", "B3"),
    collect=COLLECT,
)
