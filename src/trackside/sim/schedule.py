"""A start of the job as it goes when nothing stops it: phases, steps and what interrupts them."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from trackside.sim.act import Act, Ending, Mark
from trackside.sim.learning import Curve
from trackside.sim.scenario import Job
from trackside.sim.stage import Pause, Stage
from trackside.sim.timeline import State, Track

END_S = 6.0
"""From the last step to the end of the process."""
DRIFT_STEPS = 12
"""Steps in a row that take the same."""
AHEAD_S = 0.5
"""How far the host's launches run ahead of the GPU."""


@dataclass(slots=True)
class Anatomy:
    """One step of every track: a pattern each, all of the same period."""

    period: float
    patterns: list[dict[State, float]] = field(default_factory=list)
    blocking: list[float] = field(default_factory=list)


def first_act(stage: Stage) -> Act:
    """The job's first start, with nothing played yet."""
    job = stage.scenario.job
    act = Act(job.id, stage.places, stage.start - job.queue_s, stage.start)
    act.last_step = stage.steps or _steps_that_fit(act, stage)
    act.curve = curve_of(stage, act.last_step)
    return act


def curve_of(stage: Stage, steps: int) -> Curve:
    """How the job learns if it is given so many steps."""
    job = stage.scenario.job
    return Curve(
        job.loss_start,
        job.loss_floor,
        tau=max(2.0, 0.02 * steps),
        rate=job.learning_rate,
        warmup=max(1, steps // 20),
        total=job.planned_steps or steps,
        seed=stage.scenario.seed,
    )


def _steps_that_fit(act: Act, stage: Stage) -> int:
    """Into the duration that the scenario asks for, at what a step costs from the start on."""
    job = stage.scenario.job
    leaders = _group(act, stage)
    before = job.launch_s + job.import_s + job.rendezvous_s + job.load_s + job.compile_s + END_S
    each = anatomy(act, stage, leaders, stage.start + before).period
    before += (job.first_step_factor - 1) * each
    for every, length in (
        (job.eval_every, job.eval_s),
        (job.checkpoint_every, job.checkpoint_s),
        (job.shuffle_every, job.shuffle_s),
    ):
        each += length / every if every else 0.0
    return max(1, int((job.duration_s - before) / each))


def play(act: Act, stage: Stage) -> None:
    """Fill in the act's phases, tracks, steps and ending; it may still be cut afterwards."""
    job = stage.scenario.job
    leaders = _group(act, stage)
    now = _start_up(act, stage, job)
    now = _train(act, stage, job, leaders, now)
    end = now + END_S
    act.phases["end"] = (now, end)
    act.spend(None, now, end - 2, State.IDLE)
    act.release(None, end - 2)
    act.ending = Ending(end)


def _group(act: Act, stage: Stage) -> list[int]:
    """Ranks that every regime treats alike share a track; returns one rank of each."""
    job, groups = stage.scenario.job, defaultdict[tuple[object, float], list[int]](list)
    for rank in range(len(act.places)):
        alike = tuple(regime.ranks is None or rank in regime.ranks for regime in stage.regimes)
        alike += tuple(rank in pause.ranks for pause in stage.pauses)
        groups[alike, _stage_factor(job, rank, len(act.places))].append(rank)
    act.of = np.zeros(len(act.places), dtype=np.intp)
    act.tracks = []
    for members in groups.values():
        act.of[members] = len(act.tracks)
        act.tracks.append(Track())
    return [members[0] for members in groups.values()]


def _stage_factor(job: Job, rank: int, ranks: int) -> float:
    if not job.stage_compute:
        return 1.0
    return job.stage_compute[rank * len(job.stage_compute) // ranks]


def _start_up(act: Act, stage: Stage, job: Job) -> float:
    """Everything before the first step. Returns when training begins."""
    model = stage.model
    context, weights = float(model.context_mib), job.weights_share * model.memory_mib
    lengths = {
        "launch": job.launch_s,
        "import": job.import_s,
        "rendezvous": job.rendezvous_s if len(act.places) > 1 else 0.5,
        "load": job.load_s,
        "compile": job.compile_s,
    }
    now = act.start
    for name, length in lengths.items():
        act.phases[name] = (now, now + length)
        now += length
    begin = {name: span[0] for name, span in act.phases.items()}
    attached = begin["load"] - 0.5
    for track in act.tracks:
        track.add(act.start, begin["import"], State.OFF)
        track.add(begin["import"], begin["load"], State.IDLE)
        track.add(begin["load"], begin["compile"], State.LOAD)
        track.add(begin["compile"], now, State.COMPILE)
        track.processes.append((attached, math.inf))
        track.memory += [(attached, 0.0), (attached + 0.4, context), (begin["load"] + 1, context)]
        track.memory += [(begin["compile"], max(context, weights)), (now, max(context, weights))]
        track.resident += [(begin["import"], 0.0), (begin["load"], 0.5 * job.rss_gib)]
        track.resident += [(begin["compile"] - 1, job.rss_gib + job.load_rss_gib), (now, job.rss_gib)]
    return now


def anatomy(act: Act, stage: Stage, leaders: list[int], now: float) -> Anatomy:
    """What a step costs every track: each rank's own work, then waiting for the slowest, then the exchange."""
    job, ranks = stage.scenario.job, len(act.places)
    shared = 1 - job.compute_share - job.data_share - job.gap_share
    if ranks == 1:
        shared = 0.0
    active = [regime for regime in stage.regimes if regime.start <= now < regime.end]
    own, blocking, saves = [], [], []
    for leader in leaders:
        mine = [regime for regime in active if regime.holds(leader, now)]
        factor = math.prod(regime.compute for regime in mine) * _stage_factor(job, leader, ranks)
        own.append(
            {
                State.DATA: job.data_share * job.step_s + sum(regime.data_s for regime in mine),
                State.GAP: job.gap_share * job.step_s + sum(regime.gap_s for regime in mine),
                State.COMPUTE: job.compute_share * job.step_s * factor,
            }
        )
        blocking.append(max((regime.blocking for regime in mine), default=0.0))
        saves.append(sum(regime.save_s for regime in mine))
    exchange = shared * job.step_s * math.prod(regime.communication for regime in active if regime.ranks is None)
    slowest = max(sum(pattern.values()) for pattern in own)
    save = max(saves)
    found = Anatomy(slowest + exchange + save, blocking=blocking)
    for pattern in own:
        late = slowest - sum(pattern.values())
        found.patterns.append({**pattern, State.WAIT: late, State.COLLECTIVE: exchange, State.SAVE: save})
    return found


def _train(act: Act, stage: Stage, job: Job, leaders: list[int], now: float) -> float:
    begin, step, ends = now, act.first_step, []
    edges, pauses = stage.edges(), [pause for pause in stage.pauses if pause.start >= now]
    rng = stage.rng(f"steps/{act.job}/{act.restarts}")
    every = {"eval": job.eval_every, "checkpoint": job.checkpoint_every, "shuffle": job.shuffle_every}
    chunk = max(DRIFT_STEPS, (act.last_step - act.first_step) // 400)
    lengths = {"eval": job.eval_s, "checkpoint": job.checkpoint_s, "shuffle": job.shuffle_s}
    while step < act.last_step:
        while pauses and pauses[0].start <= now:
            now = _pause(act, pauses.pop(0), now)
        cost = anatomy(act, stage, leaders, now)
        count = (
            min(min(((step // n + 1) * n for n in every.values() if n), default=act.last_step), act.last_step) - step
        )
        ahead = next((edge for edge in edges if edge > now), math.inf)
        if ahead < math.inf:
            count = min(count, max(1, math.ceil((ahead - now) / cost.period)))
        if step == act.first_step:
            count = 1
            _first_step(cost, job)
        count = min(count, chunk)
        _drift(cost, 1 + 0.02 * float(np.clip(rng.normal(), -3, 3)))
        length = count * cost.period
        _spells(act, stage, cost, now, now + length)
        jitter = rng.normal(0.0, 0.012, count)
        ends.append(now + np.cumsum(cost.period * (1 + jitter - jitter.mean())))
        now += length
        if step == act.first_step:
            _settle_memory(act, stage, job, begin, now)
        step += count
        for kind, n in every.items():
            if n and step % n == 0 and (kind != "shuffle" or step < act.last_step):
                now = _interrupt(act, stage, kind, step, now, lengths[kind])
    act.step_ends = np.concatenate(ends) if ends else np.zeros(0)
    act.phases["train"] = (begin, now)
    return now


def _pause(act: Act, pause: Pause, now: float) -> float:
    end = now + pause.length
    act.spend(pause.ranks, now, end, State.IDLE)
    act.spend(act.others(pause.ranks), now, end, State.WAIT, in_flight=1.0, held_up=0.5)
    return end


def _drift(cost: Anatomy, factor: float) -> None:
    """Steps get a little longer and shorter, so that they never keep in step with the scrapes."""
    cost.period *= factor
    cost.patterns = [{state: length * factor for state, length in pattern.items()} for pattern in cost.patterns]


def _first_step(cost: Anatomy, job: Job) -> None:
    """Kernels are loaded and tuned, buffers allocated: mostly the host's time."""
    extra = (job.first_step_factor - 1) * cost.period
    cost.period += extra
    for pattern in cost.patterns:
        pattern[State.GAP] += extra


def _settle_memory(act: Act, stage: Stage, job: Job, begin: float, now: float) -> None:
    """The caching allocator reaches its high-water mark in the first step and keeps it."""
    peak = job.memory_share * stage.model.memory_mib
    for track in act.tracks:
        track.memory += [(begin + 0.45 * (now - begin), peak * 0.93), (now, peak * 0.985), (now + 60, peak)]
        track.resident.append((now, job.rss_gib))


def _spells(act: Act, stage: Stage, cost: Anatomy, start: float, end: float) -> None:
    job, many = stage.scenario.job, len(act.places) > 1
    for track, pattern, blocking in zip(act.tracks, cost.patterns, cost.blocking, strict=True):
        track.add(
            start,
            end,
            pattern,
            launches=float(job.launches_per_step),
            collectives=float(job.collectives_per_step) if many else 0.0,
            steps=1.0,
            blocking=blocking,
            held_up=held_up(pattern),
        )


def held_up(pattern: dict[State, float]) -> float:
    """The host runs ahead of its GPU by some kernels; only what is longer than that blocks it."""
    waiting = pattern.get(State.WAIT, 0.0) + pattern.get(State.COLLECTIVE, 0.0)
    return 0.42 * max(0.0, waiting - AHEAD_S) / waiting if waiting else 0.0


def _interrupt(act: Act, stage: Stage, kind: str, step: int, now: float, length: float) -> float:
    """An evaluation, a checkpoint or a shuffle of the data between two steps."""
    job, many = stage.scenario.job, len(act.places) > 1
    act.marks.append(Mark(kind, step, now, now + length))
    if kind == "eval":
        pattern = {State.DATA: 0.06, State.EVAL: 0.38, State.COLLECTIVE: 0.02 if many else 0.0}
        launches = job.launches_per_step / 3 / job.step_s * sum(pattern.values())
        act.spend(None, now, now + length, pattern, launches=launches, collectives=1.0 if many else 0.0)
    else:
        state = State.SAVE if kind == "checkpoint" else State.DATA
        act.spend(None, now, now + length, state)
    return now + length
