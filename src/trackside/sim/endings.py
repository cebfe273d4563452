"""How runs fail: ranks that die, peers that wait for them, watchdogs, launchers and Slurm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trackside.sim.attempt import JobAttempt, JobOutcome
from trackside.sim.records import torchrun
from trackside.sim.simulation import Simulation
from trackside.sim.timeline import RankState

TracebackFrame = tuple[str, int, str, str]
"""(file, line, function, code)"""
CODE = "/home/user/train/train.py"
SITE = "/home/user/venv/lib/python3.11/site-packages"
MAIN: TracebackFrame = (CODE, 212, "<module>", "main()")
TEARDOWN_S = 9.0
"""Seconds until a job's other nodes are ended after one node's launcher gave up."""


@dataclass(frozen=True, slots=True)
class RankDeath:
    """A rank that ends after ``delay`` seconds. ``output`` is printed first; ``code`` is negative for a signal."""

    rank: int
    delay: float = 0.0
    code: int = 1
    output: str = ""


def traceback(sim: Simulation, rank: int, exception: str, frames: Sequence[TracebackFrame] = ()) -> str:
    """A traceback as Python prints it; torch prefixes each line with the rank once a process group exists."""
    lines = ["Traceback (most recent call last):"]
    for path, number, function, code in (MAIN, *frames):
        lines += [f'  File "{path}", line {number}, in {function}', f"    {code}"]
    lines += exception.split("\n")
    prefix = f"[rank{rank}]: " if len(sim.placements) > 1 else ""
    return "\n".join(prefix + line for line in lines)


def c10d(sim: Simulation, rank: int, time: float, level: str, location: str, text: str) -> str:
    """A line of torch's C++ log."""
    placement = sim.placements[rank]
    stamp = sim.wall_clock(time, placement.node)
    stamp_text = f"{stamp.month}{stamp.day:02d} {stamp:%H:%M:%S}.{stamp.microsecond:06d}{rank % 1000:03d}"
    return f"[rank{rank}]:[{level}{stamp_text} {location}] {text}"


def crash(
    sim: Simulation, time: float, deaths: Sequence[RankDeath], peers: RankState = RankState.SPIN, state: str = "FAILED"
) -> None:
    """Let ranks die at ``time`` and after; their launcher ends the other ranks, Slurm the job."""
    attempt = sim.attempt
    attempt.truncate(time)
    first_death = min(deaths, key=lambda death: death.delay)
    gave_up = time + first_death.delay + 1.4
    ends = {death.rank: time + death.delay for death in deaths}
    home = attempt.placements[first_death.rank].node
    for placement in attempt.placements:
        if placement.rank not in ends:
            ends[placement.rank] = gave_up + (0.6 if placement.node == home else TEARDOWN_S)
    dying = {death.rank for death in deaths}
    for moment in sorted(set(ends.values())):
        ranks = [rank for rank, end in ends.items() if end == moment]
        for group, activity in (
            ([r for r in ranks if r in dying], RankState.IDLE),
            ([r for r in ranks if r not in dying], peers),
        ):
            if group:
                in_flight = 1.0 if activity is RankState.SPIN else 0.0
                attempt.add_activity(group, time, moment, activity, in_flight=in_flight)
                attempt.release(group, moment)
    for death in deaths:
        if death.output:
            attempt.log(time + death.delay, death.output, death.rank, error=True, marked=True)
    launchers_end = _launchers(sim, attempt, time, deaths, gave_up)
    has_no_launcher = sim.scenario.job.launcher == "python" and first_death.code < 0
    finish(sim, max(launchers_end, *ends.values()) + 2.0, state, 128 - first_death.code if has_no_launcher else 1)


def _launchers(sim: Simulation, attempt: JobAttempt, time: float, deaths: Sequence[RankDeath], gave_up: float) -> float:
    """Log what launchers and srun print about the deaths; return when the last launcher ended."""
    launcher, last = sim.scenario.job.launcher, gave_up
    by_node: dict[str, list[RankDeath]] = {}
    for death in sorted(deaths, key=lambda death: death.delay):
        by_node.setdefault(attempt.placements[death.rank].node, []).append(death)
    if launcher == "python":
        for death in (death for death in deaths if death.code < 0):
            script = f"/var/spool/slurmd/job{attempt.job}/slurm_script: line 9:"
            pid = sim.pid(attempt, death.rank)
            attempt.log(time + death.delay + 0.1, f"{script} {pid} {_exit_text(death.code):<23} python train.py")
        return last
    for number, node in enumerate(attempt.nodes):
        node_deaths = by_node.get(node)
        if launcher == "srun":
            for death in node_deaths or ():
                attempt.log(
                    time + death.delay + 0.3,
                    f"srun: error: {node}: task {death.rank}: {_exit_text(death.code)}",
                    node=node,
                )
            continue
        alive = [
            placement.rank
            for placement in attempt.placements
            if placement.node == node and placement.rank not in {d.rank for d in deaths}
        ]
        if node_deaths is not None:
            now = time + node_deaths[0].delay + 1.4
            exits = [torchrun.WorkerExit(death.rank, time + death.delay, death.code) for death in node_deaths]
            attempt.entries += torchrun.failure(sim, attempt, node, exits, alive, now)
        else:
            now = gave_up + TEARDOWN_S
            attempt.entries.append(torchrun.termination(sim, attempt, node, alive, now))
        attempt.log(now + 1.2, f"srun: error: {node}: task {number}: Exited with exit code 1", node=node)
        last = max(last, now + 1.2)
    if launcher == "srun":
        slurm_notice(sim, attempt, gave_up, step=True)
    return last


def _exit_text(code: int) -> str:
    texts = {
        -9: "Killed",
        -6: "Aborted (core dumped)",
        -11: "Segmentation fault (core dumped)",
        -7: "Bus error (core dumped)",
    }
    return texts.get(code, f"Exited with exit code {code}")


def finish(sim: Simulation, time: float, state: str, code: int = 0, signal: int = 0, canceled_by: str = "") -> None:
    """Record how the job ended."""
    sim.attempt.outcome = JobOutcome(time, state, code, signal, canceled_by)


def hang(
    sim: Simulation,
    time: float,
    stuck_ranks: Iterable[int],
    activity: RankState = RankState.IDLE,
    *,
    dead: bool = False,
    watchdog_s: float | None = None,
    until: float | None = None,
) -> float:
    """Ranks ``stuck_ranks`` never enter the next collective; all others wait in it forever. Returns when it ended.

    ``dead``: the stuck ranks' processes are gone. The watchdog ends the hang after its timeout; without one it lasts
    until ``until`` or the time limit.
    """
    attempt, job = sim.attempt, sim.scenario.job
    stuck = sorted(stuck_ranks)
    waiting = attempt.other_ranks(stuck)
    limit_s = job.watchdog_s if watchdog_s is None else watchdog_s
    attempt.truncate(time)
    has_watchdog = bool(limit_s and waiting)
    end = time + limit_s + 0.4 if has_watchdog else (until or attempt.start + sim.time_limit + 120.0)
    if dead:
        attempt.release(stuck, time + 0.2)
        attempt.add_activity(stuck, time, end + 3, RankState.OFF)
    else:
        attempt.add_activity(stuck, time, end + 3, activity)
        attempt.release(stuck, end + 3)
    attempt.add_activity(waiting, time, end + 2, RankState.SPIN, in_flight=1.0)
    attempt.release(waiting, end + 2)
    if not has_watchdog:
        finish(sim, end + 4, "COMPLETED")  # whatever ends it sets the real outcome
        return end
    fire_watchdogs(sim, time, limit_s, waiting, stuck, dead)
    return end


def fire_watchdogs(
    sim: Simulation, time: float, limit: float, waiting: Sequence[int], stuck: Sequence[int], dead: bool
) -> None:
    """The watchdogs of the waiting ranks give up, and their launchers with them."""
    attempt, fired_at = sim.attempt, time + limit + 0.4
    completed = max(0, attempt.steps_done - attempt.first_step) * sim.scenario.job.collectives_per_step + 7
    for placement in (attempt.placements[rank] for rank in waiting):
        _watchdog(sim, attempt, placement.rank, fired_at + 0.003 * placement.local_rank, limit, completed)
    last = fired_at
    for number, node in enumerate(attempt.nodes):
        waiting_here = [rank for rank in waiting if attempt.placements[rank].node == node]
        alive_stuck = [rank for rank in stuck if attempt.placements[rank].node == node and not dead]
        reported_at = fired_at + 2.5
        if sim.scenario.job.launcher == "torchrun":
            if waiting_here:
                exits = [torchrun.WorkerExit(rank, fired_at + 1.9, -6) for rank in waiting_here]
                attempt.entries += torchrun.failure(sim, attempt, node, exits, alive_stuck, reported_at)
            elif alive_stuck:
                attempt.entries.append(torchrun.termination(sim, attempt, node, alive_stuck, reported_at + TEARDOWN_S))
        for rank in waiting_here if sim.scenario.job.launcher == "srun" else ():
            attempt.log(reported_at, f"srun: error: {node}: task {rank}: Aborted (core dumped)", node=node)
        if sim.scenario.job.launcher == "torchrun":
            attempt.log(reported_at + 1.5, f"srun: error: {node}: task {number}: Exited with exit code 1", node=node)
        last = max(last, reported_at + 1.5)
    finish(sim, last + 3.0, "FAILED", 1)


def _watchdog(sim: Simulation, attempt: JobAttempt, rank: int, now: float, limit: float, completed: int) -> None:
    timeout_ms = int(limit * 1000)
    work = f"WorkNCCL(SeqNum={completed + 1}, OpType=ALLREDUCE, NumelIn=25165824, NumelOut=25165824, Timeout(ms)={timeout_ms})"
    caught = f"Watchdog caught collective operation timeout: {work} ran for {timeout_ms + 30 + rank % 60} milliseconds before timing out."
    group = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
    lines = (
        (0.0, "ProcessGroupNCCL.cpp:616", f"[Rank {rank}] {caught}"),
        (
            0.2,
            "ProcessGroupNCCL.cpp:1785",
            f"{group} Exception (either an error or timeout) detected by watchdog at work: {completed + 1}, "
            f"last enqueued NCCL work: {completed + 3}, last completed NCCL work: {completed}.",
        ),
        (
            1.1,
            "ProcessGroupNCCL.cpp:630",
            f"[Rank {rank}] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, "
            "subsequent GPU operations might run on corrupted/incomplete data.",
        ),
        (
            1.1,
            "ProcessGroupNCCL.cpp:636",
            f"[Rank {rank}] To avoid data inconsistency, we are taking the entire process down.",
        ),
        (
            1.2,
            "ProcessGroupNCCL.cpp:1552",
            f"{group} Process group watchdog thread terminated with exception: [Rank {rank}] {caught}",
        ),
    )
    for delay, location, text in lines:
        attempt.log(now + delay, c10d(sim, rank, now + delay, "E", location, text), rank, error=True, marked=True)


def slurm_notice(sim: Simulation, attempt: JobAttempt, time: float, reason: str = "", step: bool = False) -> None:
    """Log Slurm's notice that it ends a job or a step; ``reason`` follows the time: DUE TO ..."""
    target = f"STEP {attempt.job}.0" if step else f"JOB {attempt.job}"
    stamp = f"{sim.local_time(time):%Y-%m-%dT%H:%M:%S}"
    tail = f" {reason}" if reason else ""
    attempt.log(time, f"slurmstepd: error: *** {target} ON {attempt.nodes[0]} CANCELLED AT {stamp}{tail} ***")


def cancel_job(
    sim: Simulation, time: float, reason: str, state: str, code: int = 0, signal: int = 0, canceled_by: str = ""
) -> None:
    """Let Slurm end the job from outside; ``reason`` follows the time in its notice: DUE TO ..."""
    attempt = sim.attempt
    attempt.truncate(time)
    end = time + 1.5
    attempt.add_activity(None, time, end, RankState.IDLE)
    attempt.release(None, end)
    if sim.scenario.job.launcher != "python":
        slurm_notice(sim, attempt, time + 0.3, reason, step=True)
    slurm_notice(sim, attempt, time + 0.31, reason)
    if sim.scenario.job.launcher == "torchrun":
        for node in attempt.nodes:
            ranks = [placement.rank for placement in attempt.placements if placement.node == node]
            attempt.entries.append(torchrun.termination(sim, attempt, node, ranks, time + 0.5))
    finish(sim, end + 1.5, state, code, signal, canceled_by)
