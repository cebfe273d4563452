"""Curves built by hand for tests of families: a small cluster, its samples, and a judge that checks every citation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trackside.families import find_family
from trackside.finding import Finding
from trackside.model import Event, Plane, Position, Record, Role, Run, Samples, Series
from trackside.runs.metrics import run_metrics
from trackside.show.wording import said
from trackside.stores.memory import MemoryStore
from trackside.stores.memory_curves import MemoryCurves
from trackside.verdict import engine
from trackside.verify import check

START, END = 1000.0, 5000.0
Row = Event | Record
Curve = ArrayLike
"""A level, or one value for each of the cluster's sample times; NaN where it was not sampled."""


class Cluster:
    """Nodes with GPUs that are sampled every ``interval`` seconds from ``start`` to ``end``.

    ``times`` are the sample times (T,). Every method that puts samples gives the cluster back, so calls chain:

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
        self._curves = MemoryCurves()
        self._random = np.random.default_rng(7)

    # -- shapes

    def noisy(self, level: Curve, share: float = 0.03) -> NDArray[np.float64]:
        """A level with noise, a share of it."""
        return self._full(level) * (1 + share * self._random.standard_normal(len(self.times)))

    def after(self, time: float, late: Curve, early: Curve = 0.0) -> NDArray[np.float64]:
        """``early`` up to ``time``, ``late`` from then on."""
        return np.where(self.times >= time, self._full(late), self._full(early))

    def between(self, start: float, end: float, inside: Curve, outside: Curve = 0.0) -> NDArray[np.float64]:
        """``inside`` from ``start`` until before ``end``."""
        return np.where((self.times >= start) & (self.times < end), self._full(inside), self._full(outside))

    def until(self, time: float, values: Curve) -> NDArray[np.float64]:
        """Sampled up to ``time`` only."""
        return self.between(-np.inf, time, values, np.nan)

    def growing(self, per_second: Curve, start: float = 0.0) -> NDArray[np.float64]:
        """A counter that grows at a rate (a curve of rates, a second) from a value."""
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
        kept = ~np.isnan(curve)
        times = np.round(self.times[kept] * 1000).astype(np.int64)
        self._curves.add(Samples([series], np.zeros(len(times), np.int32), times, curve[kept]))
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
        """The run that held the whole cluster from start to end."""
        known = {"id": "7", "start": self._start, "end": self._end, "nodes": self.nodes, "n_gpus": len(self.gpus)}
        return Run(**{**known, **fields})

    def store(
        self, *rows: Row, run: Run | None = None, planes: tuple[Plane, ...] = ("log", "scheduler")
    ) -> tuple[Run, MemoryStore]:
        """The run as resolved from its metrics, and everything that is known of it."""
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
        """One family's finding on this cluster; every sentence must fill and every citation must hold again."""
        flat = [row for part in rows for row in (part if isinstance(part, list) else [part])]
        resolved, store = self.store(*flat, run=run, planes=planes)
        family = find_family(code)
        assert family is not None
        finding = engine.judge_all(store, resolved, [family])[0]
        claims = (*finding.shows, *finding.implies, *finding.cannot_decide, *finding.because)
        for each in claims:
            assert said(each, family.says)
        cites = {str(i): cite for i, cite in enumerate(cite for each in claims for cite in each.cites)}
        for checked in check(cites, store):
            assert checked.holds, (
                f"{checked.cite.query}: {checked.cite.value!r} then, {checked.now!r} now; {checked.problem}"
            )
        for act in finding.actions:
            assert act.key in family.says
            assert act.command is None or act.command in family.says
        return finding


def event(kind: str, line: int = 1, **fields: Any) -> Event:
    """A log event; text, time, rank, node, role, plane and path are not fields of its own."""
    known = {name: fields.pop(name) for name in ("time", "rank", "node", "role") if name in fields}
    plane: Plane = fields.pop("plane", "log")
    path, text = fields.pop("path", "train.log"), fields.pop("text", kind)
    return Event(kind, Position(path, line, line * 100), plane, text=text, fields=fields, **known)


def job(state: str, **fields: Any) -> Record:
    """The scheduler's record of the run."""
    fields = {"id": "7", "state": state, "start": START, "end": END, "elapsed_s": END - START, **fields}
    return Record("job", Position("sacct.txt", 2), "scheduler", fields)


def points(count: int = 20, first: float = START + 60, every: float = 60.0, loss: float = 4.0) -> list[Event]:
    """Training points of a model that learns, ``every`` so many seconds."""
    return [
        event("progress", 10 + i, step=i + 1, loss=loss - i * loss / (2 * count), time=first + every * i)
        for i in range(count)
    ]


def named(text: str, **run: Any) -> tuple[Run, MemoryStore]:
    """A run with every chart whose nodes, GPUs, states, units and log lines all say the same text."""
    rows: list[Row] = [
        event("exception", 7, time=START + 900, node=text, text=text * 50, role=Role.ROOT, type="E"),
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


def keys(finding: Finding) -> list[str]:
    """Which sentences it says: shown, or the reasons why it is not there."""
    return [each.key for each in (*finding.shows, *finding.because)]


def worded(finding: Finding) -> str:
    """What it shows, or why it is absent, as text."""
    family = find_family(finding.family)
    assert family is not None
    return "; ".join(said(each, family.says) for each in (*finding.shows, *finding.because))
