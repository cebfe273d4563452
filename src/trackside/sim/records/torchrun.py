"""What torchrun prints: its banner, and its summary of a failure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trackside.catalog.signals import signal_name
from trackside.sim.act import Act, Entry
from trackside.sim.stage import Stage

_RUN = "/home/user/venv/lib/python3.11/site-packages/torch/distributed"


@dataclass(frozen=True, slots=True)
class Exit:
    """A rank's end as its launcher saw it; ``code`` is negative for a signal."""

    rank: int
    time: float
    code: int


def banner(stage: Stage, act: Act) -> Iterator[Entry]:
    """The advice on OMP_NUM_THREADS, once a node."""
    if len(act.places) == 1:
        return
    now = act.start + 2.0
    for node in act.nodes:
        head = _head(stage, now, node, "W", "torch/distributed/run.py:874")
        stars = f"{head} *****************************************"
        advice = (
            f"{head} Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your "
            "system being overloaded, please further tune the variable for optimal performance in your application as needed. "
        )
        yield Entry(now, "\n".join((f"{head} ", stars, advice, stars)), None, node)


def _head(stage: Stage, time: float, node: str, level: str, where: str) -> str:
    stamp = stage.wall(time, node)
    agent = 39_000 + sum(map(ord, node)) % 900
    return f"{level}{stamp:%m%d %H:%M:%S}.{stamp.microsecond // 1000:03d}000 {agent} {where}]"


def failure(stage: Stage, act: Act, node: str, exits: Sequence[Exit], killed: Sequence[int], now: float) -> list[Entry]:
    """What a node's agent prints when a worker of its own failed: teardown of the others, then the summary.

    ``exits``: workers that ended by themselves, the first first; ``killed``: ranks that it then ended by SIGTERM.
    """
    first = exits[0]
    place = act.places[first.rank]
    said = []
    for rank in killed:
        head = _head(stage, now, node, "W", "torch/distributed/elastic/multiprocessing/api.py:1028")
        said.append(f"{head} Sending process {stage.pid(act, rank)} closing signal SIGTERM")
    head = _head(stage, now + 0.8, node, "E", "torch/distributed/elastic/multiprocessing/api.py:1002")
    said.append(
        f"{head} failed (exitcode: {first.code}) local_rank: {place.local} (pid: {stage.pid(act, first.rank)}) "
        "of binary: /home/user/venv/bin/python3"
    )
    said += _trace()
    rule = "=" * 60
    said += [rule, "train.py FAILED", "-" * 60]
    rest = [*exits[1:], *(Exit(rank, now + 0.7, -15) for rank in killed)]
    said.append("Failures:")
    for number, one in enumerate(rest, 1):
        said += _item(stage, act, number, one)
    if not rest:
        said.append("  <NO_OTHER_FAILURES>")
    said += ["-" * 60, "Root Cause (first observed failure):", *_item(stage, act, 0, first), rule]
    return [Entry(now + 0.9, "\n".join(said), None, node, error=True)]


def _trace() -> list[str]:
    calls = (
        ("/home/user/venv/bin/torchrun", 8, "<module>", "sys.exit(main())"),
        (f"{_RUN}/elastic/multiprocessing/errors/__init__.py", 367, "wrapper", "return f(*args, **kwargs)"),
        (f"{_RUN}/run.py", 1028, "main", "run(args)"),
        (f"{_RUN}/run.py", 1019, "run", "elastic_launch("),
        (f"{_RUN}/launcher/api.py", 194, "__call__", "return launch_agent("),
        (f"{_RUN}/launcher/api.py", 383, "launch_agent", "raise ChildFailedError("),
    )
    said = ["Traceback (most recent call last):"]
    for path, line, function, code in calls:
        said += [f'  File "{path}", line {line}, in {function}', f"    {code}"]
    return [*said, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "]


def _item(stage: Stage, act: Act, number: int, one: Exit) -> list[str]:
    place = act.places[one.rank]
    stamp = stage.wall(one.time, place.node)
    pid = stage.pid(act, one.rank)
    signal = signal_name(-one.code) if one.code < 0 else None
    trace = (
        f"Signal {-one.code} ({signal}) received by PID {pid}"
        if signal
        else "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    )
    return [
        f"[{number}]:",
        f"  time      : {stamp:%Y-%m-%d_%H:%M:%S}",
        f"  host      : {place.node}",
        f"  rank      : {one.rank} (local_rank: {place.local})",
        f"  exitcode  : {one.code} (pid: {pid})" + (f"  ({signal})" if signal else ""),
        "  error_file: <N/A>",
        f"  traceback : {trace}",
    ]


def terminated(stage: Stage, act: Act, node: str, ranks: Sequence[int], now: float) -> Entry:
    """What a node's agent prints when somebody ends it by SIGTERM."""
    head = _head(stage, now, node, "W", "torch/distributed/elastic/agent/server/api.py:704")
    said = [f"{head} Received Signals.SIGTERM death signal, shutting down workers"]
    head = _head(stage, now, node, "W", "torch/distributed/elastic/multiprocessing/api.py:1028")
    said += [f"{head} Sending process {stage.pid(act, rank)} closing signal SIGTERM" for rank in ranks]
    return Entry(now, "\n".join(said), None, node, error=True)
