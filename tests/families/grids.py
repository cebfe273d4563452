"""A small cluster with metrics built by hand, for tests of families, and a judge that checks every citation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tests.families.rows import END, GIB, START, Row, claims, event, job, judge_store, points, sentence_name
from trackside.finding import Finding
from trackside.model import Event, EventRole, Plane, Position, Record, Run, Samples, Series
from trackside.runs.metrics import run_metrics
from trackside.show.document import citation
from trackside.stores.memory import MemoryStore
from trackside.stores.memory_backend import MemoryBackend
from trackside.verify import check

Curve = ArrayLike
"""A level, or one value for each of the cluster's sample times; NaN where it was not sampled."""


class Cluster:
    """Nodes with GPUs that are sampled every ``interval`` seconds from ``start`` to ``end``.

    ``times`` are the sample times (T,). Every method that adds samples returns the cluster, so calls chain:

        cluster = Cluster(nodes=2, gpus=8)
        cluster.per_gpu("gpu_sm_active_ratio", 0.9, but={"n1:3": 0.2}).per_node("scrape_up", 1)
    """

    def __init__(
        self, *, start: float = START, end: float = END, interval: float = 15.0, nodes: int = 2, gpus: int = 8,
        job: str | None = None,
    ) -> None:  # fmt: skip
        self.times: NDArray[np.float64] = np.arange(start, end + interval / 2, interval)
        self.nodes = tuple(f"n{i + 1}" for i in range(nodes))
        self.gpus = tuple(f"{node}:{gpu}" for node in self.nodes for gpu in range(gpus))
        self._start, self._end = start, end
        self._job = job
        self._curves = MemoryBackend()
        self._random = np.random.default_rng(7)

    # -- shapes

    def noisy(self, level: Curve, share: float = 0.03) -> NDArray[np.float64]:
        """A level with normal noise; ``share`` is its standard deviation relative to the level."""
        return self._full(level) * (1 + share * self._random.standard_normal(len(self.times)))

    def after(self, time: float, late: Curve, early: Curve = 0.0) -> NDArray[np.float64]:
        """``early`` up to ``time``, ``late`` from then on."""
        return np.where(self.times >= time, self._full(late), self._full(early))

    def between(self, start: float, end: float, inside: Curve, outside: Curve = 0.0) -> NDArray[np.float64]:
        """``inside`` from ``start`` until before ``end``."""
        return np.where((self.times >= start) & (self.times < end), self._full(inside), self._full(outside))

    def until(self, time: float, values: Curve) -> NDArray[np.float64]:
        """Samples up to ``time`` only."""
        return self.between(-np.inf, time, values, np.nan)

    def growing(self, per_second: Curve, start: float = 0.0) -> NDArray[np.float64]:
        """A counter that grows from ``start``, by ``per_second`` (a rate, or a curve of rates)."""
        gaps = np.diff(self.times, prepend=self.times[0])
        return np.cumsum(self._full(per_second) * gaps) + start

    def _full(self, values: Curve) -> NDArray[np.float64]:
        return np.broadcast_to(np.asarray(values, dtype=np.float64), self.times.shape).copy()

    # -- samples

    def put(self, metric: str, values: Curve, **labels: str) -> Cluster:
        """One series."""
        curve = self._full(values)
        if self._job is not None and "gpu" in labels:
            labels = {"job": self._job, **labels}
        series = Series(metric, tuple(sorted(labels.items())), Position("metrics.txt", 1))
        sampled = ~np.isnan(curve)
        times = np.round(self.times[sampled] * 1000).astype(np.int64)
        self._curves.add(Samples([series], np.zeros(len(times), np.int32), times, curve[sampled]))
        return self

    def per_gpu(self, metric: str, values: Curve, but: Mapping[str, Curve] | None = None, **labels: str) -> Cluster:
        """A series for every GPU; ``but``: other values for some, as ``node:index``."""
        for name in self.gpus:
            node, _, gpu = name.partition(":")
            self.put(metric, (but or {}).get(name, values), node=node, gpu=gpu, **labels)
        return self

    def per_node(self, metric: str, values: Curve, but: Mapping[str, Curve] | None = None, **labels: str) -> Cluster:
        """A series for every node; ``but``: other values for some."""
        for node in self.nodes:
            self.put(metric, (but or {}).get(node, values), node=node, **labels)
        return self

    # -- questions

    def run(self, **fields: Any) -> Run:
        """A run on the whole cluster, from start to end."""
        known = {"id": "7", "start": self._start, "end": self._end, "nodes": self.nodes, "n_gpus": len(self.gpus)}
        return Run(**{**known, **fields})

    def store(
        self, *rows: Row, run: Run | None = None, planes: tuple[Plane, ...] = ("log", "scheduler")
    ) -> tuple[Run, MemoryStore]:
        """The run as resolved from its metrics, and a store with all its rows and metrics."""
        events = [row for row in rows if isinstance(row, Event)]
        store = MemoryStore(events, [row for row in rows if isinstance(row, Record)], (*planes, "metric"))
        resolved, store.metrics = run_metrics(self._curves, run if run is not None else self.run(), store)
        return resolved, store

    def judge(
        self,
        code: str,
        *rows: Row | list[Event],
        run: Run | None = None,
        planes: tuple[Plane, ...] = ("log", "scheduler"),
    ) -> Finding:
        """One family's finding on this cluster; checks that every sentence fills and every citation holds."""
        flat = [row for part in rows for row in (part if isinstance(part, list) else [part])]
        resolved, store = self.store(*flat, run=run, planes=planes)
        finding = judge_store(code, store, resolved)
        cites = [citation(cite) for claim in claims(finding) for cite in claim.cites]
        for checked in check({str(i): cite for i, cite in enumerate(cites)}, store):
            assert checked.holds, (
                f"{checked.cite.query}: {checked.cite.value!r} then, {checked.now!r} now; {checked.problem}"
            )
        return finding


def named(text: str, **run: Any) -> tuple[Run, MemoryStore]:
    """A run with every chart, whose nodes, GPUs, states, units and log lines are all the same text."""
    rows: list[Row] = [
        event("exception", 7, time=START + 900, node=text, text=text * 50, role=EventRole.ROOT, type="E"),
        event("checkpoint_saved", 8, time=START + 950, text=text, path=text),
        event("progress", 9, step=1, loss=3.0, throughput=2.0, throughput_unit=text, framework=text, time=START + 100),
        event("progress", 10, step=2, loss=2.0, throughput=2.0, throughput_unit=text, framework=text, time=START + 200),
        job(text),
    ]
    cluster = Cluster(nodes=1, gpus=1)
    for gpu, level in (("0", 0.2), (text, 0.9), ("2", 0.2), ("3", 0.2)):
        for name in ("gpu_sm_active_ratio", "gpu_engine_active_ratio"):
            cluster.put(name, level, node=text, gpu=gpu)
        cluster.put("gpu_memory_used_bytes", level * 80 * 2.0**30, node=text, gpu=gpu)
    return cluster.store(*rows, run=cluster.run(nodes=(text,), n_gpus=4, disposition=text, **run))


# -- kinds of clusters

Make = Callable[[Cluster], Any]
NO_LOG: tuple[Plane, ...] = ("scheduler",)
SICK = "n2:3"
"""The faulty GPU."""
STOP = 3000.0
"""When a hung run stops."""
TRACER = "trackside_"
AWAY, RANK = "n2:3", 11
"""The GPU that the others wait for, and its rank of sixteen."""
DISTRIBUTED_INIT = event("distributed_init", time=1010.0, text="Initializing distributed process group")


def working(**shape: Any) -> Cluster:
    """A cluster whose GPUs work from start to end."""
    cluster = Cluster(**shape)
    return cluster.per_gpu("gpu_sm_active_ratio", cluster.noisy(0.8)).per_gpu("gpu_memory_used_bytes", 60 * GIB)


def raised_late(**fields: Any) -> Event:
    """An unhandled exception as the run ends."""
    fields = {"type": "ValueError", "message": "no such option", "about": "application", "time": 4900.0, **fields}
    return event("exception", 50, role=EventRole.ROOT, **fields)


def idle_contexts() -> Cluster:
    """GPUs with only a CUDA context and no kernel launches."""
    cluster = Cluster().per_gpu("gpu_memory_used_bytes", GIB // 2).per_gpu("gpu_memory_total_bytes", 80 * GIB)
    return cluster.per_gpu("trackside_cuda_kernel_launches_total", 0)


def until_stop(count: int = 30) -> list[Any]:
    """Training points up to ``STOP``."""
    return points(count, START + 60, (STOP - START - 100) / count)


def hung(
    sm: float = 0.03, was: float = 0.7, away: str | None = AWAY, since: float = STOP, until: float = 9e9,
    give: tuple[str, ...] = ("sm", "engine", "memory"), **shape: Any,
) -> Cluster:  # fmt: skip
    """All GPUs work until ``since``; then they spin at ``sm``, and ``away`` does nothing. Work resumes at ``until``."""
    cluster = Cluster(**shape)
    for name, metric, usual, then, cold in (
        ("sm", "gpu_sm_active_ratio", was, sm, 0.0),
        ("engine", "gpu_engine_active_ratio", 0.97, 1.0, 0.0),
        ("utilization", "gpu_utilization_ratio", 0.97, 1.0, 0.0),
        ("power", "gpu_power_watts", 520.0, 190.0, 75.0),
        ("memory", "gpu_memory_used_bytes", 60.0 * GIB, 60.0 * GIB, 60.0 * GIB),
    ):
        if name in give:
            spin = cluster.between(since, until, then, usual)
            rest = cluster.between(since, until, cold, usual)
            cluster.per_gpu(metric, spin, {away: rest} if away else {})
    return cluster


def traced(cluster: Cluster, launches: float = 0.0, but: dict[str, Any] | None = None) -> Cluster:
    """Kernel launches of every GPU: 5000 per second until ``STOP``, then ``launches`` per second."""
    return cluster.per_gpu("trackside_cuda_kernel_launches_total", cluster.growing(cluster.after(STOP, launches, 5000)),
                           but)  # fmt: skip


def judged(cluster: Cluster, code: str, *rows: Row | list[Any], planes: tuple[Plane, ...] = ("log", "scheduler")) -> Finding:  # fmt: skip
    """A family's finding on a cluster in which every GPU has a rank."""
    return cluster.judge(code, *rows, run=cluster.run(n_ranks=len(cluster.gpus)), planes=planes)


def cold(**shape: Any) -> Cluster:
    """Idle GPUs with a tracer attached."""
    cluster = Cluster(**shape).per_gpu("gpu_sm_active_ratio", 0.0).per_gpu("gpu_engine_active_ratio", 0.0)
    cluster.per_gpu("gpu_memory_used_bytes", 0.5 * GIB).per_gpu("gpu_memory_total_bytes", 80.0 * GIB)
    return cluster.per_gpu("trackside_tracer_attached", 1)


def uniform(engine: float, sm: float | None = None, **shape: Any) -> Cluster:
    """GPUs with the same constant activity."""
    cluster = Cluster(**shape)
    cluster.per_gpu("gpu_engine_active_ratio", cluster.noisy(engine))
    return cluster if sm is None else cluster.per_gpu("gpu_sm_active_ratio", cluster.noisy(sm))


def steps(seconds: float, count: int = 40, **fields: Any) -> list[Event]:
    """Points of a learning model; each prints its step time."""
    return [
        event(
            "progress",
            10 + i,
            step=10 * (i + 1),
            loss=4 - i / 20,
            time=START + 60 + 90 * i,
            step_time_s=seconds,
            **fields,
        )
        for i in range(count)
    ]


def counted(cluster: Cluster, rate: float = 100.0, but: dict[str, float] | None = None) -> Cluster:
    """Kernel launches and collectives of every GPU; ``rate`` is launches per second."""
    rates = {name: cluster.growing(rate_of_gpu) for name, rate_of_gpu in (but or {}).items()}
    cluster.per_gpu(f"{TRACER}cuda_kernel_launches_total", cluster.growing(rate), rates)
    return cluster.per_gpu(f"{TRACER}nccl_collectives_completed_total", cluster.growing(2.0), op="AllReduce")


def figure(finding: Finding, key: str, name: str) -> float:
    """The value of a placeholder in one of the finding's sentences."""
    return (
        next(claim for claim in (*finding.shows, *finding.because) if sentence_name(claim) == key).values[name].number
    )


def waiting(cluster: Cluster, share: float, but: dict[str, float] | None = None) -> Cluster:
    """The share of time that every rank spends in collectives."""
    rates = {name: cluster.growing(share_of_gpu) for name, share_of_gpu in (but or {}).items()}
    return cluster.per_gpu(f"{TRACER}nccl_collective_seconds_total", cluster.growing(share), rates, op="AllReduce")


def restarted() -> Event:
    """The launcher restarts the workers."""
    return event("launcher_restart", 21, time=2000.5, attempt=1)


def later() -> list[Event]:
    """Points after the restart."""
    return [event("progress", 30 + i, step=i + 1, loss=4 - i / 10, time=2100.0 + 60 * i) for i in range(10)]
