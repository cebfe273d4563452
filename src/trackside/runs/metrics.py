"""Which of the curves are the run's: its job, its window on their clock, its GPUs; and what they tell of the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from trackside.catalog.job_states import ALIVE
from trackside.catalog.metrics import METRICS
from trackside.catalog.natural import natural, whole_number
from trackside.errors import NoSuchRun, SeveralRuns
from trackside.evidence import Frame
from trackside.model import Record, Run
from trackside.query import Query, Row, events, record
from trackside.runs.clock import NEAR_S, REACH_S, Stretch, offset_of, shift_of
from trackside.runs.holding import Asked, Holding, held_by, occupied
from trackside.runs.places import Placed, Unit, placed
from trackside.stores.memory import MemoryStore
from trackside.stores.metric_backend import AROUND_S, MetricBackend, RunMetrics, SeriesInfo, Timing, max_windows

INTERVAL_S = 60.0
"""Taken where every curve has but one sample (Prometheus' own default scrape interval)."""
EDGE_SAMPLES = 3
"""By so many samples the node's other curves must outlast the run's, for an edge of these to be the run's own."""


@dataclass(frozen=True, slots=True)
class Window:
    """When the run was there. ``shift``: added to the curves' times. ``begun``, ``over``: the curves show that it was
    no longer, or not yet, there beyond."""

    start: float
    end: float
    shift: float = 0.0
    begun: bool = False
    over: bool = False


def run_metrics(curves: MetricBackend, run: Run, rows: MemoryStore) -> tuple[Run, RunMetrics]:
    """The run's curves among all that are held, and the run with what they tell of it.

    Raises SeveralRuns where metrics alone are given, of several jobs and none was asked for; NoSuchRun where the
    job that was asked for is not among those they name.
    """
    found = placed(_indexed(curves), run.nodes)
    if not found:
        return run, RunMetrics(curves, (), None)
    run, why_none = _identified(run, found, rows)
    ids = _ids(run)
    found = _renamed(found, run, ids)
    named = frozenset(run.nodes)
    nodes = run.nodes if any(not each.node or each.node in named for each in found) else ()
    own = [each for each in found if each.job in ids and (not nodes or not each.node or each.node in named)]
    if run.nodes and not nodes and not own:
        why_none = why_none or "the metrics given are of other nodes than the run's"
    if why_none:
        return run, RunMetrics(curves, (), None, why_none)
    lines = own or _on(found, nodes)
    interval = _interval(lines)
    window = _window(curves, run, rows, lines, bool(own), interval)
    start, end = window.start - window.shift, window.end - window.shift
    asked = Asked(nodes, ids, start, end, _detail(run, rows), run.n_gpus or run.n_ranks or None)
    holding = held_by(asked, found, curves, interval)
    of_run = _Belongs(asked, holding, _pusher(found, nodes))
    kept = [each for each in found if asked.meets(each, AROUND_S) and of_run(each)]
    if not any(asked.meets(each) for each in kept):
        return run, RunMetrics(curves, (), None, "no metric was sampled while the run was there")
    gpus = len({each.unit for each in kept if each.gpu})
    until = max(each.held.last_ms for each in kept) / 1000 + window.shift if run.disposition in ALIVE else inf
    timing = Timing(
        window.start, max(window.end, window.start), _interval(kept), window.shift, max_windows(gpus), until
    )
    return _told(run, kept, holding, window), RunMetrics(curves, tuple(each.held for each in kept), timing)


def _indexed(curves: MetricBackend) -> Sequence[SeriesInfo]:
    """All series, with the index of their GPU where only the value of a gauge tells it."""
    held = curves.series()
    gauges = [each for each in held if each.series.metric == "gpu_index" and each.series.get("gpu_uuid")]
    if not gauges:
        return held
    first, last = min(each.first_ms for each in gauges), max(each.last_ms for each in gauges)
    step = last - first + 1
    start = (first - 1) // step * step
    values, _ = curves.rollup([[each.id] for each in gauges], start, start + 2 * step, step, "max")
    told = np.fmax.reduce(values, axis=1)
    index = {
        each.series.get("gpu_uuid"): str(int(value)) for each, value in zip(gauges, told, strict=True) if value >= 0
    }
    return [_with_index(each, index) for each in held]


def _with_index(each: SeriesInfo, index: Mapping[str | None, str]) -> SeriesInfo:
    gpu = index.get(each.series.get("gpu_uuid"))
    if gpu is None or each.series.get("gpu") is not None:
        return each
    labels = tuple(sorted((*each.series.labels, ("gpu", gpu))))
    return replace(each, series=replace(each.series, labels=labels))


def _ids(run: Run) -> AbstractSet[str]:
    return frozenset(name for name in (run.id, *run.aliases) if name)


def _identified(run: Run, found: Sequence[Placed], rows: MemoryStore) -> tuple[Run, str]:
    """The run under the id that its curves bear, where nothing else names it; or why that can't be told."""
    jobs = {each.job for each in found if each.gpu and each.job}
    log = _log_window(rows)
    alone = run.start is None and not _rows(rows, events("log_activity")) and not _rows(rows, record("job"))
    if run.id is not None:
        if alone and jobs and not _ids(run) & jobs:
            raise NoSuchRun(f"no job {run.id} in the inputs; they hold {', '.join(sorted(jobs, key=natural)[:20])}")
        return run, ""
    if alone and len(jobs) > 1:
        raise SeveralRuns(sorted(jobs, key=natural))
    if log is not None and jobs:
        jobs = _fitting(found, jobs, log)
    if len(jobs) == 1:
        return replace(run, id=jobs.pop()), ""
    several = "the metrics given are of several jobs, and which of them the log is of isn't told; choose one with --job"
    return run, several if any(each.job for each in found) else ""


def _fitting(found: Iterable[Placed], jobs: AbstractSet[str], log: Stretch) -> set[str]:
    """The jobs whose labels were there when the log was written, to a zone; the one that was so for much the same time
    where there are several."""
    spans: dict[str, Stretch] = {}
    for each in found:
        if each.gpu and each.job in jobs:
            spans[each.job] = _hull([*([spans[each.job]] if each.job in spans else []), _stretch(each)])
    near = {job for job, (first, last) in spans.items() if first - REACH_S <= log[1] and last + REACH_S >= log[0]}
    if len(near) < 2:
        return near
    alike = {
        job
        for job in near
        if (shared := min(spans[job][1], log[1]) - max(spans[job][0], log[0])) > 0
        and shared >= 0.8 * (max(spans[job][1], log[1]) - min(spans[job][0], log[0]))
    }
    return alike if len(alike) == 1 else near


def _renamed(found: list[Placed], run: Run, ids: AbstractSet[str]) -> list[Placed]:
    """MetricBackend of the run's only node under the name that Slurm gives it: the job's label tells that they are one.

    Not where the node has curves under its own name: then the label is stale, or another cluster's.
    """
    theirs = {each.node for each in found if each.job in ids and each.node}
    if len(run.nodes) != 1 or len(theirs) != 1 or any(each.node == run.nodes[0] for each in found):
        return found
    old, new = theirs.pop(), run.nodes[0]
    return [_at_node(each, new) if each.node == old else each for each in found]


def _at_node(each: Placed, node: str) -> Placed:
    labels = dict(each.series.labels) | {"node": node}
    series = replace(each.series, labels=tuple(sorted(labels.items())))
    return each._replace(node=node, held=replace(each.held, series=series))


def _on(found: Sequence[Placed], nodes: Sequence[str]) -> list[Placed]:
    """The curves of these nodes: of their GPUs, where any is."""
    known = frozenset(nodes)
    there = [each for each in found if not known or not each.node or each.node in known]
    return [each for each in there if each.gpu] or there or list(found)


# -- when


def _window(
    curves: MetricBackend, run: Run, rows: MemoryStore, lines: Sequence[Placed], labelled: bool, interval: float
) -> Window:
    """The run's window as the scheduler has it, else as the log, the job's label or the memory in use do."""
    log = _log_window(rows) if run.start is None else None
    told = (run.start, run.end) if run.start is not None else log
    hull, near = _hull(map(_stretch, lines)), max(NEAR_S, 4 * interval)
    moment = log is not None and log[1] - log[0] < interval  # such as that of the scheduler's closing words alone
    if told is None or (moment and not labelled):
        return _seen(curves, lines, hull, labelled, interval)
    shift = 0.0
    if labelled and log is not None:
        shift = -offset_of(log, hull)
    elif labelled or not _covered(lines, told, near):
        shift = _shift(curves, run, lines, (told[0], told[1]), hull, labelled, interval)
    start, end = told[0], told[1] if told[1] is not None else max(told[0], hull[1] + shift)
    if log is not None and not labelled:  # it may fall silent long before the run ends
        end = max(end, _given_back(curves, lines, start - shift, near, interval) + shift)
    if log is not None and labelled and hull[0] + shift <= end + near and hull[1] + shift >= start - near:
        start, end = hull[0] + shift - interval, max(end, hull[1] + shift)
    return Window(start, end, shift)


def _covered(lines: Sequence[Placed], told: tuple[float, float | None], near: float) -> bool:
    """Whether a curve was there from the window's start to its end: then no zone is looked for."""
    start, end = told
    return any(first <= start + near and (end is None or last >= end - near) for first, last in map(_stretch, lines))


def _shift(
    curves: MetricBackend,
    run: Run,
    lines: Sequence[Placed],
    told: tuple[float, float | None],
    hull: Stretch,
    labelled: bool,
    interval: float,
) -> float:
    """By how much the curves' clock is behind the run's: the zone that makes them fit its window."""
    near = max(NEAR_S, 4 * interval)
    whole = _by_unit(lines)
    if labelled or told[1] is None:
        return shift_of(told, whole.values(), near=near) if labelled else 0.0
    taken = occupied(curves, lines, list(whole), hull[0] - interval, hull[1], interval)
    wanted = min(run.n_gpus or run.n_ranks or 1, len(whole)) // 2 + 1  # most of them: one may have died early
    flat = [each for stretches in taken.values() for each in stretches]
    shift = shift_of(told, flat, wanted, near)
    if shift or any(first <= told[1] and last >= told[0] for first, last in whole.values()):
        return shift  # where the window holds samples, only memory that came and went with the run moves them
    shift = shift_of(told, whole.values(), wanted, near)
    if shift or run.start is not None:
        return shift
    # A log may fall silent long before its run ends: then the start alone must fit.
    longer = [(first, last) for first, last in flat if last - first >= told[1] - told[0] - near]
    return shift_of((told[0], None), longer, wanted, near)


def _given_back(curves: MetricBackend, lines: Sequence[Placed], start: float, near: float, interval: float) -> float:
    """When the memory that was taken at about the start was given back, on the curves' clock; the start if none was."""
    units = _by_unit(lines)
    hull = _hull(units.values())
    taken = occupied(curves, lines, list(units), hull[0] - interval, hull[1], interval)
    return max((last for each in taken.values() for first, last in each if abs(first - start) <= near), default=start)


def _seen(curves: MetricBackend, lines: Sequence[Placed], hull: Stretch, labelled: bool, interval: float) -> Window:
    """With nothing but curves: while they bore the job's label, else while GPU memory was taken, else all of them."""
    start, end = hull[0] - interval, hull[1]
    if labelled:
        data = _hull((each.first_ms / 1000, each.last_ms / 1000) for each in curves.series())
    else:
        data = start, end
        taken = occupied(curves, lines, list(_by_unit(lines)), start, end, interval)
        flat = [each for stretches in taken.values() for each in stretches]
        # Memory that somebody held from the first sample to the last tells nothing of when the run was there.
        came = [each for each in flat if each[0] > start + interval or each[1] < end - interval]
        start, end = _hull(came or flat) if flat else (start, end)
    slack = EDGE_SAMPLES * interval
    return Window(start, end, 0.0, begun=start - data[0] >= slack, over=data[1] - end >= slack)


def _log_window(rows: MemoryStore) -> Stretch | None:
    """From the first to the last time that the logs tell."""
    times = [
        float(time)
        for row in _rows(rows, events("log_activity"))
        for name in ("first_time", "last_time")
        if isinstance(time := row.get(name), (int, float))
    ]
    return (min(times), max(times)) if len(times) > 1 else None


def _stretch(each: Placed) -> Stretch:
    return each.held.first_ms / 1000, each.held.last_ms / 1000


def _hull(stretches: Iterable[Stretch]) -> Stretch:
    listed = list(stretches)
    return min(first for first, _ in listed), max(last for _, last in listed)


def _by_unit(lines: Iterable[Placed]) -> dict[Unit, Stretch]:
    """When each GPU was sampled."""
    first: dict[Unit, int] = {}
    last: dict[Unit, int] = {}
    for each in lines:
        unit, held = each.unit, each.held
        first[unit] = min(held.first_ms, first.get(unit, held.first_ms))
        last[unit] = max(held.last_ms, last.get(unit, held.last_ms))
    return {unit: (first[unit] / 1000, last[unit] / 1000) for unit in first}


def _interval(lines: Iterable[Placed]) -> float:
    """The usual time between samples, seconds."""
    held = [each.held for each in lines if each.held.count > 1]
    if not held:
        return INTERVAL_S
    gaps = np.array([(each.last_ms - each.first_ms) / 1000 / (each.count - 1) for each in held])
    order = np.argsort(gaps)
    counts = np.cumsum(np.array([each.count for each in held])[order])  # a curve that was broken off counts for less
    return max(float(gaps[order][np.searchsorted(counts, counts[-1] / 2)]), 0.001)


# -- whose


def _rows(rows: MemoryStore, query: Query) -> Sequence[Row]:
    answer = rows.ask(query)
    return answer.rows if isinstance(answer, Frame) else ()


def _detail(run: Run, rows: MemoryStore) -> AbstractSet[str]:
    """The GPUs that the scheduler lists, where it does for this attempt's nodes."""
    for row in reversed(_rows(rows, record("job"))):
        gpus = frozenset(row.many("gpus")) if isinstance(row, Record) else frozenset()
        if gpus and (not run.nodes or {gpu.rpartition(":")[0] for gpu in gpus} <= set(run.nodes)):
            return gpus
    return frozenset()


def _pusher(found: Sequence[Placed], nodes: Sequence[str]) -> frozenset[str]:
    """Where the training's own curves come from if not from a node of the run: the one service that serves them, such
    as a push gateway, where nothing here is of another job."""
    training = {each.node for each in found if each.series.metric.startswith("training_")}
    machines = {each.node for each in found if not each.series.metric.startswith(("training_", "exporter_", "scrape_"))}
    alone = len(training) == 1 and not training & {*nodes, *machines} and len({e.job for e in found if e.job}) < 2
    return frozenset(training) if alone else frozenset()


class _Belongs:
    """Whether a curve is of what the run held: its GPUs, else its nodes, else its own process."""

    def __init__(self, asked: Asked, holding: Holding, pusher: frozenset[str] = frozenset()) -> None:
        self._ids, self._units = asked.ids, holding.units
        self._gpus = {unit[:2] for unit in holding.units}
        nodes = frozenset(asked.nodes) or frozenset(unit[0] for unit in holding.units)
        self._nodes = nodes | pusher if nodes else nodes

    def __call__(self, each: Placed) -> bool:
        foreign = bool(each.job and self._ids and each.job not in self._ids)
        if not each.gpu:
            return not foreign and (not each.node or not self._nodes or each.node in self._nodes)
        if each.unit not in self._units if each.mig else (each.node, each.gpu) not in self._gpus:
            return False
        # What another job's label says of the hardware's own counters is what they stood at before or after the run.
        return not foreign or (each.series.metric.startswith("gpu_") and METRICS[each.series.metric].kind in _LASTING)


_LASTING = ("counter", "sticky")


# -- what they tell of the run


def _told(run: Run, kept: Sequence[Placed], holding: Holding, window: Window) -> Run:
    ranks = {(each.node, each.gpu): rank for each in kept if each.gpu and (rank := whole_number(each.rank)) is not None}
    all_ranks = {rank for each in kept if (rank := whole_number(each.rank)) is not None}
    order = {node: place for place, node in enumerate(run.nodes)}
    gpus = sorted(
        {unit[:2] for unit in holding.units}, key=lambda gpu: (order.get(gpu[0], len(order)), *map(natural, gpu))
    )
    if gpus and all(gpu in ranks for gpu in gpus):
        gpus.sort(key=lambda gpu: ranks[gpu])
    nodes = run.nodes or tuple(sorted({each.node for each in kept if each.node}, key=natural))
    traced = {each.node for each in kept if whole_number(each.rank) is not None}
    whole = all_ranks and all_ranks == set(range(len(all_ranks))) and traced >= set(run.nodes)
    sure = holding.by not in (None, "all")
    return replace(
        run,
        start=window.start if run.start is None and window.begun else run.start,
        end=window.end if run.end is None and window.over else run.end,
        nodes=nodes,
        n_gpus=run.n_gpus or (len(holding.units) if sure else None),
        n_ranks=run.n_ranks or (len(all_ranks) if whole else None),
        gpus=tuple(f"{node}:{gpu}" for node, gpu in gpus),
        gpus_by=holding.by,
        metric_offset_s=window.shift,
    )
