"""Which of the curves are the run's: by job label, else by node, GPU and time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from trackside.model import Run, Series
from trackside.query import Frame, events
from trackside.stores.curves import AROUND_S, Curves, Held, Kept, RunMetrics, Timing
from trackside.stores.memory import MemoryStore


def run_metrics(curves: Curves, run: Run, rows: MemoryStore) -> tuple[Run, RunMetrics]:
    """The run's curves among all that are held, and the run with the GPUs that they show."""
    held = [(each, _placed(each.series, run)) for each in curves.held()]
    mine = {run.id, *run.aliases} - {None}
    labelled = {_gpu(series) for _, series in held if series.get("job") in mine} - {None}
    start, end = _window(run, rows)
    kept = []
    for each, series in held:
        job, gpu = series.get("job"), _gpu(series)
        if job is not None and mine and job not in mine:
            continue
        if gpu is not None and labelled and gpu not in labelled:
            continue
        if not _on(series.get("node"), run.nodes) or not _while(each, start, end):
            continue
        kept.append(Kept(series, each))
    if not kept:
        return run, RunMetrics(curves, (), None)
    first = start if start is not None else min(each.held.first_ms for each in kept) / 1000
    last = end if end is not None else max(each.held.last_ms for each in kept) / 1000
    gpus = tuple(dict.fromkeys(gpu for each in sorted(kept, key=_order(run.nodes)) if (gpu := _gpu(each.series))))
    timing = Timing(first, max(last, first), _interval(each.held for each in kept))
    return replace(run, gpus=gpus), RunMetrics(curves, tuple(kept), timing)


def _gpu(series: Series) -> str | None:
    gpu = series.get("gpu")
    return None if gpu is None else f"{series.get('node') or ''}:{gpu}"


def _placed(series: Series, run: Run) -> Series:
    """The series with its node in the scheduler's spelling; the run's only node where it names none."""
    node = series.get("node")
    match = next((name for name in run.nodes if _same_host(node, name)), None) if node else None
    if node is None and len(run.nodes) == 1:
        match = run.nodes[0]
    if match is None or match == node:
        return series
    labels = dict(series.labels) | {"node": match}
    return replace(series, labels=tuple(sorted(labels.items())))


def _same_host(one: str | None, other: str) -> bool:
    return one is not None and one.partition(".")[0].lower() == other.partition(".")[0].lower()


def _on(node: str | None, nodes: Sequence[str]) -> bool:
    return node is None or not nodes or node in nodes


def _window(run: Run, rows: MemoryStore) -> tuple[float | None, float | None]:
    """Start and end as the scheduler has them, else as the log's times do."""
    if run.start is not None:
        return run.start, run.end
    logs = rows.ask(events("log_activity"))
    times = [
        time
        for row in (logs.events if isinstance(logs, Frame) else ())
        for name in ("first_time", "last_time")
        if isinstance(time := row.get(name), (int, float))
    ]
    return (min(times), run.end if run.end is not None else max(times)) if len(times) > 1 else (None, run.end)


def _while(held: Held, start: float | None, end: float | None) -> bool:
    after = start is None or held.last_ms >= (start - AROUND_S) * 1000
    return after and (end is None or held.first_ms <= (end + AROUND_S) * 1000)


def _interval(held: Iterable[Held]) -> float:
    """The usual time between samples, seconds."""
    gaps = [(each.last_ms - each.first_ms) / 1000 / (each.count - 1) for each in held if each.count > 1]
    return float(np.median(gaps)) if gaps else 60.0


def _order(nodes: Sequence[str]):  # type: ignore[no-untyped-def]
    place = {node: index for index, node in enumerate(nodes)}

    def key(kept: Kept) -> tuple[int, str, int, str]:
        node, gpu = kept.series.get("node") or "", kept.series.get("gpu") or ""
        return place.get(node, len(place)), node, int(gpu) if gpu.isdecimal() else -1, gpu

    return key
