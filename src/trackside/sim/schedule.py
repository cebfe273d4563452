"""One attempt of the job if nothing stops it: phases, steps and interruptions between steps."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from trackside.sim.attempt import Interruption, JobAttempt, JobOutcome
from trackside.sim.learning import LearningCurve
from trackside.sim.scenario import JobSpec
from trackside.sim.simulation import Simulation, StepPause
from trackside.sim.timeline import RankState, Track

END_S = 6.0
"""Seconds from the last step to the end of the process."""
DRIFT_STEPS = 12
"""Number of consecutive steps with the same length."""
RUN_AHEAD_S = 0.5
"""How far the host's launches run ahead of the GPU."""


@dataclass(slots=True)
class StepCost:
    """One step of every track: one pattern per track, all with the same period."""

    period: float
    patterns: list[dict[RankState, float]] = field(default_factory=list)
    blocking: list[float] = field(default_factory=list)


def first_attempt(sim: Simulation) -> JobAttempt:
    """The first attempt, without its phases and steps."""
    job = sim.scenario.job
    attempt = JobAttempt(job.id, sim.placements, sim.start - job.queue_s, sim.start)
    attempt.last_step = sim.steps or _steps_that_fit(attempt, sim)
    attempt.curve = learning_curve(sim, attempt.last_step)
    return attempt


def learning_curve(sim: Simulation, steps: int) -> LearningCurve:
    """The learning curve of the job for a number of steps."""
    job = sim.scenario.job
    return LearningCurve(
        job.loss_start,
        job.loss_floor,
        tau=max(2.0, 0.02 * steps),
        rate=job.learning_rate,
        warmup=max(1, steps // 20),
        total=job.planned_steps or steps,
        seed=sim.scenario.seed,
    )


def _steps_that_fit(attempt: JobAttempt, sim: Simulation) -> int:
    """The number of steps that fit into the scenario's duration, at the initial cost of a step."""
    job = sim.scenario.job
    leaders = _group_ranks(attempt, sim)
    startup_s = job.launch_s + job.import_s + job.rendezvous_s + job.load_s + job.compile_s + END_S
    step_s = step_cost(attempt, sim, leaders, sim.start + startup_s).period
    startup_s += (job.first_step_factor - 1) * step_s
    for every, length in (
        (job.eval_every, job.eval_s),
        (job.checkpoint_every, job.checkpoint_s),
        (job.shuffle_every, job.shuffle_s),
    ):
        step_s += length / every if every else 0.0
    return max(1, int((job.duration_s - startup_s) / step_s))


def simulate_attempt(attempt: JobAttempt, sim: Simulation) -> None:
    """Fill in the attempt's phases, tracks, steps and outcome; it may still be truncated afterwards."""
    job = sim.scenario.job
    leaders = _group_ranks(attempt, sim)
    now = _start_up(attempt, sim, job)
    now = _train(attempt, sim, job, leaders, now)
    end = now + END_S
    attempt.phases["end"] = (now, end)
    attempt.add_activity(None, now, end - 2, RankState.IDLE)
    attempt.release(None, end - 2)
    attempt.outcome = JobOutcome(end)


def _group_ranks(attempt: JobAttempt, sim: Simulation) -> list[int]:
    """Give ranks that every cost rule treats alike a common track; returns one rank of each track."""
    job, groups = sim.scenario.job, defaultdict[tuple[object, float], list[int]](list)
    for rank in range(len(attempt.placements)):
        rule_flags = tuple(rule.ranks is None or rank in rule.ranks for rule in sim.cost_rules)
        rule_flags += tuple(rank in pause.ranks for pause in sim.pauses)
        groups[rule_flags, _stage_factor(job, rank, len(attempt.placements))].append(rank)
    attempt.track_index = np.zeros(len(attempt.placements), dtype=np.intp)
    attempt.tracks = []
    for members in groups.values():
        attempt.track_index[members] = len(attempt.tracks)
        attempt.tracks.append(Track())
    return [members[0] for members in groups.values()]


def _stage_factor(job: JobSpec, rank: int, ranks: int) -> float:
    if not job.stage_compute:
        return 1.0
    return job.stage_compute[rank * len(job.stage_compute) // ranks]


def _start_up(attempt: JobAttempt, sim: Simulation, job: JobSpec) -> float:
    """Add everything before the first step. Returns when training begins."""
    model = sim.model
    context, weights = float(model.context_mib), job.weights_share * model.memory_mib
    lengths = {
        "launch": job.launch_s,
        "import": job.import_s,
        "rendezvous": job.rendezvous_s if len(attempt.placements) > 1 else 0.5,
        "load": job.load_s,
        "compile": job.compile_s,
    }
    now = attempt.start
    for name, length in lengths.items():
        attempt.phases[name] = (now, now + length)
        now += length
    begin = {name: span[0] for name, span in attempt.phases.items()}
    attached = begin["load"] - 0.5
    for track in attempt.tracks:
        track.add(attempt.start, begin["import"], RankState.OFF)
        track.add(begin["import"], begin["load"], RankState.IDLE)
        track.add(begin["load"], begin["compile"], RankState.LOAD)
        track.add(begin["compile"], now, RankState.COMPILE)
        track.processes.append((attached, math.inf))
        track.memory += [(attached, 0.0), (attached + 0.4, context), (begin["load"] + 1, context)]
        track.memory += [(begin["compile"], max(context, weights)), (now, max(context, weights))]
        track.resident += [(begin["import"], 0.0), (begin["load"], 0.5 * job.rss_gib)]
        track.resident += [(begin["compile"] - 1, job.rss_gib + job.load_rss_gib), (now, job.rss_gib)]
    return now


def step_cost(attempt: JobAttempt, sim: Simulation, leaders: list[int], now: float) -> StepCost:
    """What a step costs every track: each rank's own work, then waiting for the slowest, then the exchange."""
    job, ranks = sim.scenario.job, len(attempt.placements)
    shared = 1 - job.compute_share - job.data_share - job.gap_share
    if ranks == 1:
        shared = 0.0
    active = [rule for rule in sim.cost_rules if rule.start <= now < rule.end]
    own_patterns, blocking, saves = [], [], []
    for leader in leaders:
        active_rules = [rule for rule in active if rule.applies_to(leader, now)]
        factor = math.prod(rule.compute for rule in active_rules) * _stage_factor(job, leader, ranks)
        own_patterns.append(
            {
                RankState.DATA: job.data_share * job.step_s + sum(rule.data_s for rule in active_rules),
                RankState.GAP: job.gap_share * job.step_s + sum(rule.gap_s for rule in active_rules),
                RankState.COMPUTE: job.compute_share * job.step_s * factor,
            }
        )
        blocking.append(max((rule.blocking for rule in active_rules), default=0.0))
        saves.append(sum(rule.save_s for rule in active_rules))
    exchange = shared * job.step_s * math.prod(rule.communication for rule in active if rule.ranks is None)
    slowest = max(sum(pattern.values()) for pattern in own_patterns)
    save = max(saves)
    cost = StepCost(slowest + exchange + save, blocking=blocking)
    for pattern in own_patterns:
        wait_s = slowest - sum(pattern.values())
        cost.patterns.append({**pattern, RankState.WAIT: wait_s, RankState.COLLECTIVE: exchange, RankState.SAVE: save})
    return cost


def _train(attempt: JobAttempt, sim: Simulation, job: JobSpec, leaders: list[int], now: float) -> float:
    begin, step, ends = now, attempt.first_step, []
    edges, pauses = sim.edges(), [pause for pause in sim.pauses if pause.start >= now]
    rng = sim.rng(f"steps/{attempt.job}/{attempt.restarts}")
    every = {"eval": job.eval_every, "checkpoint": job.checkpoint_every, "shuffle": job.shuffle_every}
    chunk = max(DRIFT_STEPS, (attempt.last_step - attempt.first_step) // 400)
    lengths = {"eval": job.eval_s, "checkpoint": job.checkpoint_s, "shuffle": job.shuffle_s}
    while step < attempt.last_step:
        while pauses and pauses[0].start <= now:
            now = _add_pause(attempt, pauses.pop(0), now)
        cost = step_cost(attempt, sim, leaders, now)
        count = (
            min(
                min(
                    ((step // interval + 1) * interval for interval in every.values() if interval),
                    default=attempt.last_step,
                ),
                attempt.last_step,
            )
            - step
        )
        next_edge = next((edge for edge in edges if edge > now), math.inf)
        if next_edge < math.inf:
            count = min(count, max(1, math.ceil((next_edge - now) / cost.period)))
        if step == attempt.first_step:
            count = 1
            _lengthen_first_step(cost, job)
        count = min(count, chunk)
        _vary(cost, 1 + 0.02 * float(np.clip(rng.normal(), -3, 3)))
        length = count * cost.period
        _add_steps(attempt, sim, cost, now, now + length)
        jitter = rng.normal(0.0, 0.012, count)
        ends.append(now + np.cumsum(cost.period * (1 + jitter - jitter.mean())))
        now += length
        if step == attempt.first_step:
            _add_memory_peak(attempt, sim, job, begin, now)
        step += count
        for kind, interval in every.items():
            if interval and step % interval == 0 and (kind != "shuffle" or step < attempt.last_step):
                now = _add_interruption(attempt, sim, kind, step, now, lengths[kind])
    attempt.step_ends = np.concatenate(ends) if ends else np.zeros(0)
    attempt.phases["train"] = (begin, now)
    return now


def _add_pause(attempt: JobAttempt, pause: StepPause, now: float) -> float:
    """Add a pause of some ranks, for which the others wait. Returns when it ends."""
    end = now + pause.length
    attempt.add_activity(pause.ranks, now, end, RankState.IDLE)
    attempt.add_activity(attempt.other_ranks(pause.ranks), now, end, RankState.WAIT, in_flight=1.0, host_blocked=0.5)
    return end


def _vary(cost: StepCost, factor: float) -> None:
    """Make steps slightly longer or shorter, so that they never stay synchronized with the scrapes."""
    cost.period *= factor
    cost.patterns = [{state: length * factor for state, length in pattern.items()} for pattern in cost.patterns]


def _lengthen_first_step(cost: StepCost, job: JobSpec) -> None:
    """Make the first step longer: kernels are loaded and tuned, buffers allocated; mostly host time."""
    extra = (job.first_step_factor - 1) * cost.period
    cost.period += extra
    for pattern in cost.patterns:
        pattern[RankState.GAP] += extra


def _add_memory_peak(attempt: JobAttempt, sim: Simulation, job: JobSpec, begin: float, now: float) -> None:
    """The caching allocator reaches its high-water mark in the first step and keeps it."""
    peak = job.memory_share * sim.model.memory_mib
    for track in attempt.tracks:
        track.memory += [(begin + 0.45 * (now - begin), peak * 0.93), (now, peak * 0.985), (now + 60, peak)]
        track.resident.append((now, job.rss_gib))


def _add_steps(attempt: JobAttempt, sim: Simulation, cost: StepCost, start: float, end: float) -> None:
    job, has_peers = sim.scenario.job, len(attempt.placements) > 1
    for track, pattern, blocking in zip(attempt.tracks, cost.patterns, cost.blocking, strict=True):
        track.add(
            start,
            end,
            pattern,
            launches=float(job.launches_per_step),
            collectives=float(job.collectives_per_step) if has_peers else 0.0,
            steps=1.0,
            blocking=blocking,
            host_blocked=host_blocked(pattern),
        )


def host_blocked(pattern: dict[RankState, float]) -> float:
    """The share of waiting in collectives in which the host is blocked too: it runs ahead of its GPU by some
    kernels, so only longer waits block it."""
    waiting = pattern.get(RankState.WAIT, 0.0) + pattern.get(RankState.COLLECTIVE, 0.0)
    return 0.42 * max(0.0, waiting - RUN_AHEAD_S) / waiting if waiting else 0.0


def _add_interruption(attempt: JobAttempt, sim: Simulation, kind: str, step: int, now: float, length: float) -> float:
    """Add an evaluation, a checkpoint or a data shuffle between two steps. Returns when it ends."""
    job, has_peers = sim.scenario.job, len(attempt.placements) > 1
    attempt.interruptions.append(Interruption(kind, step, now, now + length))
    if kind == "eval":
        pattern = {RankState.DATA: 0.06, RankState.EVAL: 0.38, RankState.COLLECTIVE: 0.02 if has_peers else 0.0}
        launches = job.launches_per_step / 3 / job.step_s * sum(pattern.values())
        attempt.add_activity(None, now, now + length, pattern, launches=launches, collectives=1.0 if has_peers else 0.0)
    else:
        state = RankState.SAVE if kind == "checkpoint" else RankState.DATA
        attempt.add_activity(None, now, now + length, state)
    return now + length
