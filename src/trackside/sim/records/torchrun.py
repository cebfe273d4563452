"""What torchrun prints: its banner, and its summary of a failure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trackside.catalog.signals import signal_name
from trackside.sim.attempt import JobAttempt, PrintedText
from trackside.sim.simulation import Simulation

_RUN = "/home/user/venv/lib/python3.11/site-packages/torch/distributed"


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """A rank's end as its launcher saw it; ``code`` is negative for a signal."""

    rank: int
    time: float
    code: int


def banner(sim: Simulation, attempt: JobAttempt) -> Iterator[PrintedText]:
    """The notice about OMP_NUM_THREADS, once per node."""
    if len(attempt.placements) == 1:
        return
    now = attempt.start + 2.0
    for node in attempt.nodes:
        prefix = _log_prefix(sim, now, node, "W", "torch/distributed/run.py:874")
        stars = f"{prefix} *****************************************"
        advice = (
            f"{prefix} Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your "
            "system being overloaded, please further tune the variable for optimal performance in your application as needed. "
        )
        yield PrintedText(now, "\n".join((f"{prefix} ", stars, advice, stars)), None, node)


def _log_prefix(sim: Simulation, time: float, node: str, level: str, location: str) -> str:
    stamp = sim.wall_clock(time, node)
    agent = 39_000 + sum(map(ord, node)) % 900
    return f"{level}{stamp:%m%d %H:%M:%S}.{stamp.microsecond // 1000:03d}000 {agent} {location}]"


def failure(
    sim: Simulation, attempt: JobAttempt, node: str, exits: Sequence[WorkerExit], killed: Sequence[int], now: float
) -> list[PrintedText]:
    """What a node's agent prints if one of its workers failed: teardown of the others, then the summary.

    ``exits``: workers that ended without a signal of the agent, in order of time; ``killed``: ranks that the agent then ended by
    SIGTERM.
    """
    first = exits[0]
    placement = attempt.placements[first.rank]
    lines = []
    for rank in killed:
        prefix = _log_prefix(sim, now, node, "W", "torch/distributed/elastic/multiprocessing/api.py:1028")
        lines.append(f"{prefix} Sending process {sim.pid(attempt, rank)} closing signal SIGTERM")
    prefix = _log_prefix(sim, now + 0.8, node, "E", "torch/distributed/elastic/multiprocessing/api.py:1002")
    lines.append(
        f"{prefix} failed (exitcode: {first.code}) local_rank: {placement.local_rank} (pid: {sim.pid(attempt, first.rank)}) "
        "of binary: /home/user/venv/bin/python3"
    )
    lines += _trace()
    rule = "=" * 60
    lines += [rule, "train.py FAILED", "-" * 60]
    other_exits = [*exits[1:], *(WorkerExit(rank, now + 0.7, -15) for rank in killed)]
    lines.append("Failures:")
    for number, exit_ in enumerate(other_exits, 1):
        lines += _item(sim, attempt, number, exit_)
    if not other_exits:
        lines.append("  <NO_OTHER_FAILURES>")
    lines += ["-" * 60, "Root Cause (first observed failure):", *_item(sim, attempt, 0, first), rule]
    return [PrintedText(now + 0.9, "\n".join(lines), None, node, error=True)]


def _trace() -> list[str]:
    calls = (
        ("/home/user/venv/bin/torchrun", 8, "<module>", "sys.exit(main())"),
        (f"{_RUN}/elastic/multiprocessing/errors/__init__.py", 367, "wrapper", "return f(*args, **kwargs)"),
        (f"{_RUN}/run.py", 1028, "main", "run(args)"),
        (f"{_RUN}/run.py", 1019, "run", "elastic_launch("),
        (f"{_RUN}/launcher/api.py", 194, "__call__", "return launch_agent("),
        (f"{_RUN}/launcher/api.py", 383, "launch_agent", "raise ChildFailedError("),
    )
    lines = ["Traceback (most recent call last):"]
    for path, line, function, code in calls:
        lines += [f'  File "{path}", line {line}, in {function}', f"    {code}"]
    return [*lines, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "]


def _item(sim: Simulation, attempt: JobAttempt, number: int, exit_: WorkerExit) -> list[str]:
    placement = attempt.placements[exit_.rank]
    stamp = sim.wall_clock(exit_.time, placement.node)
    pid = sim.pid(attempt, exit_.rank)
    signal = signal_name(-exit_.code) if exit_.code < 0 else None
    trace = (
        f"Signal {-exit_.code} ({signal}) received by PID {pid}"
        if signal
        else "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    )
    return [
        f"[{number}]:",
        f"  time      : {stamp:%Y-%m-%d_%H:%M:%S}",
        f"  host      : {placement.node}",
        f"  rank      : {exit_.rank} (local_rank: {placement.local_rank})",
        f"  exitcode  : {exit_.code} (pid: {pid})" + (f"  ({signal})" if signal else ""),
        "  error_file: <N/A>",
        f"  traceback : {trace}",
    ]


def termination(sim: Simulation, attempt: JobAttempt, node: str, ranks: Sequence[int], now: float) -> PrintedText:
    """What a node's agent prints when something ends it by SIGTERM."""
    prefix = _log_prefix(sim, now, node, "W", "torch/distributed/elastic/agent/server/api.py:704")
    lines = [f"{prefix} Received Signals.SIGTERM death signal, shutting down workers"]
    prefix = _log_prefix(sim, now, node, "W", "torch/distributed/elastic/multiprocessing/api.py:1028")
    lines += [f"{prefix} Sending process {sim.pid(attempt, rank)} closing signal SIGTERM" for rank in ranks]
    return PrintedText(now, "\n".join(lines), None, node, error=True)
