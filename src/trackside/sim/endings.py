"""How runs come apart: ranks that die, peers that wait for them, watchdogs, launchers and Slurm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trackside.sim.act import Act, Ending
from trackside.sim.records import torchrun
from trackside.sim.stage import Stage
from trackside.sim.timeline import State

Frame = tuple[str, int, str, str]
"""(file, line, function, code)"""
CODE = "/home/user/train/train.py"
SITE = "/home/user/venv/lib/python3.11/site-packages"
MAIN: Frame = (CODE, 212, "<module>", "main()")
TEARDOWN_S = 9.0
"""Until the other nodes of a job are ended after one node's launcher gave up."""


@dataclass(frozen=True, slots=True)
class Death:
    """A rank that ends ``delay`` seconds in. ``said`` is printed first; ``code`` is negative for a signal."""

    rank: int
    delay: float = 0.0
    code: int = 1
    said: str = ""


def traceback(stage: Stage, rank: int, exception: str, frames: Sequence[Frame] = ()) -> str:
    """As Python prints it; torch puts the rank before each line once a group was asked for."""
    lines = ["Traceback (most recent call last):"]
    for path, number, function, code in (MAIN, *frames):
        lines += [f'  File "{path}", line {number}, in {function}', f"    {code}"]
    lines += exception.split("\n")
    lead = f"[rank{rank}]: " if len(stage.places) > 1 else ""
    return "\n".join(lead + line for line in lines)


def c10d(stage: Stage, rank: int, time: float, level: str, where: str, text: str) -> str:
    """A line of torch's C++ log."""
    place = stage.places[rank]
    stamp = stage.wall(time, place.node)
    lead = f"{stamp.month}{stamp.day:02d} {stamp:%H:%M:%S}.{stamp.microsecond:06d}{rank % 1000:03d}"
    return f"[rank{rank}]:[{level}{lead} {where}] {text}"


def crash(stage: Stage, at: float, deaths: Sequence[Death], peers: State = State.SPIN, state: str = "FAILED") -> None:
    """Ranks die at ``at`` and after; their launcher ends the rest, Slurm the job."""
    act = stage.act
    act.cut(at)
    first = min(deaths, key=lambda death: death.delay)
    gave_up = at + first.delay + 1.4
    ends = {death.rank: at + death.delay for death in deaths}
    home = act.places[first.rank].node
    for place in act.places:
        if place.rank not in ends:
            ends[place.rank] = gave_up + (0.6 if place.node == home else TEARDOWN_S)
    dying = {death.rank for death in deaths}
    for moment in sorted(set(ends.values())):
        ranks = [rank for rank, end in ends.items() if end == moment]
        for group, doing in (
            ([r for r in ranks if r in dying], State.IDLE),
            ([r for r in ranks if r not in dying], peers),
        ):
            if group:
                in_flight = 1.0 if doing is State.SPIN else 0.0
                act.spend(group, at, moment, doing, in_flight=in_flight)
                act.release(group, moment)
    for death in deaths:
        if death.said:
            act.say(at + death.delay, death.said, death.rank, error=True, marked=True)
    last = _launchers(stage, act, at, deaths, gave_up)
    alone = stage.scenario.job.launcher == "python" and first.code < 0
    finish(stage, max(last, max(ends.values())) + 2.0, state, 128 - first.code if alone else 1)


def _launchers(stage: Stage, act: Act, at: float, deaths: Sequence[Death], gave_up: float) -> float:
    """What launchers and srun print of it. Returns when the last one ended."""
    launcher, last = stage.scenario.job.launcher, gave_up
    by_node: dict[str, list[Death]] = {}
    for death in sorted(deaths, key=lambda death: death.delay):
        by_node.setdefault(act.places[death.rank].node, []).append(death)
    if launcher == "python":
        for death in (death for death in deaths if death.code < 0):
            script = f"/var/spool/slurmd/job{act.job}/slurm_script: line 9:"
            pid = stage.pid(act, death.rank)
            act.say(at + death.delay + 0.1, f"{script} {pid} {_ended(death.code):<23} python train.py")
        return last
    for number, node in enumerate(act.nodes):
        mine = by_node.get(node)
        if launcher == "srun":
            for death in mine or ():
                act.say(
                    at + death.delay + 0.3, f"srun: error: {node}: task {death.rank}: {_ended(death.code)}", node=node
                )
            continue
        alive = [
            place.rank for place in act.places if place.node == node and place.rank not in {d.rank for d in deaths}
        ]
        if mine is not None:
            now = at + mine[0].delay + 1.4
            exits = [torchrun.Exit(death.rank, at + death.delay, death.code) for death in mine]
            act.entries += torchrun.failure(stage, act, node, exits, alive, now)
        else:
            now = gave_up + TEARDOWN_S
            act.entries.append(torchrun.terminated(stage, act, node, alive, now))
        act.say(now + 1.2, f"srun: error: {node}: task {number}: Exited with exit code 1", node=node)
        last = max(last, now + 1.2)
    if launcher == "srun":
        notice(stage, act, gave_up, step=True)
    return last


def _ended(code: int) -> str:
    words = {
        -9: "Killed",
        -6: "Aborted (core dumped)",
        -11: "Segmentation fault (core dumped)",
        -7: "Bus error (core dumped)",
    }
    return words.get(code, f"Exited with exit code {code}")


def finish(stage: Stage, at: float, state: str, code: int = 0, signal: int = 0, by: str = "") -> None:
    """The job ends."""
    stage.act.ending = Ending(at, state, code, signal, by)


def hang(
    stage: Stage,
    at: float,
    stuck: Iterable[int],
    doing: State = State.IDLE,
    *,
    dead: bool = False,
    watchdog_s: float | None = None,
    until: float | None = None,
) -> float:
    """Ranks ``stuck`` never enter the next collective; all others wait in it for ever.

    ``dead``: the stuck ones' processes are gone. The watchdog ends it after its time; without one it lasts until
    ``until`` or the time limit. Returns when it ended.
    """
    act, job = stage.act, stage.scenario.job
    lost = sorted(stuck)
    waiting = act.others(lost)
    limit = job.watchdog_s if watchdog_s is None else watchdog_s
    act.cut(at)
    watched = bool(limit and waiting)
    over = at + limit + 0.4 if watched else (until or act.start + stage.time_limit + 120.0)
    if dead:
        act.release(lost, at + 0.2)
        act.spend(lost, at, over + 3, State.OFF)
    else:
        act.spend(lost, at, over + 3, doing)
        act.release(lost, over + 3)
    act.spend(waiting, at, over + 2, State.SPIN, in_flight=1.0)
    act.release(waiting, over + 2)
    if not watched:
        finish(stage, over + 4, "COMPLETED")  # whoever ends it says how
        return over
    expire(stage, at, limit, waiting, lost, dead)
    return over


def expire(stage: Stage, at: float, limit: float, waiting: Sequence[int], lost: Sequence[int], dead: bool) -> None:
    """The watchdogs of the waiting ranks give up, and their launchers with them."""
    act, over = stage.act, at + limit + 0.4
    done = max(0, act.steps_done - act.first_step) * stage.scenario.job.collectives_per_step + 7
    for place in (act.places[rank] for rank in waiting):
        _watchdog(stage, act, place.rank, over + 0.003 * place.local, limit, done)
    last = over
    for number, node in enumerate(act.nodes):
        mine = [rank for rank in waiting if act.places[rank].node == node]
        kill = [rank for rank in lost if act.places[rank].node == node and not dead]
        now = over + 2.5
        if stage.scenario.job.launcher == "torchrun":
            if mine:
                exits = [torchrun.Exit(rank, over + 1.9, -6) for rank in mine]
                act.entries += torchrun.failure(stage, act, node, exits, kill, now)
            elif kill:
                act.entries.append(torchrun.terminated(stage, act, node, kill, now + TEARDOWN_S))
        for rank in mine if stage.scenario.job.launcher == "srun" else ():
            act.say(now, f"srun: error: {node}: task {rank}: Aborted (core dumped)", node=node)
        if stage.scenario.job.launcher == "torchrun":
            act.say(now + 1.5, f"srun: error: {node}: task {number}: Exited with exit code 1", node=node)
        last = max(last, now + 1.5)
    finish(stage, last + 3.0, "FAILED", 1)


def _watchdog(stage: Stage, act: Act, rank: int, now: float, limit: float, done: int) -> None:
    millis = int(limit * 1000)
    work = f"WorkNCCL(SeqNum={done + 1}, OpType=ALLREDUCE, NumelIn=25165824, NumelOut=25165824, Timeout(ms)={millis})"
    caught = f"Watchdog caught collective operation timeout: {work} ran for {millis + 30 + rank % 60} milliseconds before timing out."
    group = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
    lines = (
        (0.0, "ProcessGroupNCCL.cpp:616", f"[Rank {rank}] {caught}"),
        (
            0.2,
            "ProcessGroupNCCL.cpp:1785",
            f"{group} Exception (either an error or timeout) detected by watchdog at work: {done + 1}, "
            f"last enqueued NCCL work: {done + 3}, last completed NCCL work: {done}.",
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
    for delay, where, text in lines:
        act.say(now + delay, c10d(stage, rank, now + delay, "E", where, text), rank, error=True, marked=True)


def notice(stage: Stage, act: Act, at: float, why: str = "", step: bool = False) -> None:
    """Slurm's word in the job's output that it ends a job or a step; ``why`` stands after the time: DUE TO ..."""
    what = f"STEP {act.job}.0" if step else f"JOB {act.job}"
    stamp = f"{stage.local(at):%Y-%m-%dT%H:%M:%S}"
    tail = f" {why}" if why else ""
    act.say(at, f"slurmstepd: error: *** {what} ON {act.nodes[0]} CANCELLED AT {stamp}{tail} ***")


def cancelled(stage: Stage, at: float, why: str, state: str, code: int = 0, signal: int = 0, by: str = "") -> None:
    """Slurm ends the job from outside; ``why`` stands after the time: DUE TO ..."""
    act = stage.act
    act.cut(at)
    stop = at + 1.5
    act.spend(None, at, stop, State.IDLE)
    act.release(None, stop)
    if stage.scenario.job.launcher != "python":
        notice(stage, act, at + 0.3, why, step=True)
    notice(stage, act, at + 0.31, why)
    if stage.scenario.job.launcher == "torchrun":
        for node in act.nodes:
            ranks = [place.rank for place in act.places if place.node == node]
            act.entries.append(torchrun.terminated(stage, act, node, ranks, at + 0.5))
    finish(stage, stop + 1.5, state, code, signal, by)
