"""Can the run's metrics be trusted: whose they are, what they leave out, which counters began anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trackside.evidence import NOT_GIVEN, Frame, Grid, MissingAnswer, Store, Value, derived
from trackside.facts.hardware.counters import last_before
from trackside.facts.trust import coverage, time_skew
from trackside.facts.trust.coverage import Hole, Line
from trackside.facts.trust.trust import Trust
from trackside.finding import Claim
from trackside.model import Run
from trackside.query import Query, metric, record

SAYS: dict[str, str] = {
    "no_gpu_metric": "no GPU metrics were given: what the GPUs did is not known",
    "metrics_elsewhere": "metrics were given, but of no GPU known to be the run's: what its GPUs did is not known",
    "gpus_guessed": "which {held} of the {measured} GPUs measured the run held is not told: nothing is judged by them",
    "gpus_unsure": "which GPUs the run held is not told: the {measured} that were measured are taken for its own",
    "gpus_by_memory": "the run's GPUs are told by the memory that was taken while it was there: {gpus}",
    "metric_clock": "times of the metrics were moved by {offset} to fit the run's",
    "nodes_unmeasured": "no GPU metrics of {nodes} were given: faults there can't be ruled out",
    "gpus_unmeasured": "{measured} of the run's {held} GPUs were measured",
    "late": "GPU metrics begin {late} after the run's start",
    "early": "GPU metrics end {early} before the run does",
    "exporter_dead": "the GPU metrics of {nodes} stop at {when} while its other metrics go on: the exporter died, not "
    "the node",
    "node_silent": "all metrics of {nodes} stop at {when}: its exporters stopped, or the node itself",
    "gaps": "{share} of the GPU metrics of {nodes} are missing; the longest gap is {length}, from {when}",
    "exporter_down": "exporters of {nodes} answered {share} of the scrapes",
    "collector_failed": "the collectors {collectors} of {nodes} failed",
    "coarse": "a GPU was sampled {readings:times} in the whole run: short events are not seen",
    "no_sm": "SM activity was not measured: utilisation alone can't tell work from a busy-wait",
    "booted": "{nodes} booted again at {when}: its counters began anew",
    "counters_reset": "counters of {nodes} began anew at {when}: its driver or exporter was restarted",
    "untraced": "the tracer was attached to no process of {nodes}: that no launches were seen there proves nothing",
    "lost_events": "the tracer lost {lost}: counts of launches and collectives are too low",
    **time_skew.SAYS,
}
GOING: dict[str, str] = {
    "early": "the newest GPU metrics are {early} old",
    "coarse": "a GPU was sampled {readings:times} so far: short events are not seen",
}
"""The same of a run that goes on."""

GPU_WITNESSES = (
    "gpu_utilization_ratio", "gpu_memory_used_bytes", "gpu_power_watts", "gpu_temperature_celsius",
    "gpu_engine_active_ratio", "gpu_sm_active_ratio", "gpu_sm_clock_hertz",
)  # fmt: skip
"""Metrics that tell whether a GPU was sampled: those that every exporter has come first."""
NODE_WITNESSES = (
    "host_load1", "host_memory_available_bytes", "host_cpu_busy_ratio", "host_time_seconds",
    "host_boot_time_seconds", "host_cpu_seconds_total", "trackside_collector_success",
)  # fmt: skip
FEW_READINGS = 12
"""Of a dozen readings one is 8 % of the run: a share of time is told no finer."""
BOOT_S = 120.0
"""By so much the boot time must move: it is worked out anew from clock and uptime, and clocks are set."""
RESET_SHARE = 0.5
"""Of a node's GPUs so many must lose their counts at once: one GPU's reset is that GPU's."""


@dataclass(frozen=True, slots=True)
class Examined:
    """What limits the metric plane: the sentences, and what the families may make of it."""

    claims: tuple[Claim, ...]
    trust: Trust


def examine(store: Store, run: Run) -> Examined:
    """Look over the run's metrics before anything is judged on them."""
    first = store.ask(_count(GPU_WITNESSES[0]))
    if isinstance(first, MissingAnswer) and first.source:
        return Examined((), Trust())  # that it did not answer is said by itself
    given = not (isinstance(first, MissingAnswer) and first.reason == NOT_GIVEN)
    gpus = coverage.lines(_witnesses(store, GPU_WITNESSES, run.gpus), "gpu") if given else []
    if not gpus:
        return Examined((Claim("metrics_elsewhere" if given else "no_gpu_metric"),), Trust())
    nodes = coverage.lines(_witnesses(store, NODE_WITNESSES, ()), "node")
    held = run.n_gpus or run.n_ranks
    mixed = run.gpus_by == "all" and held is not None and held < len(run.gpus)
    measured = {line.node for line in gpus}
    unmeasured = tuple(node for node in run.nodes if node not in measured) if measured != {""} else ()
    untraced = list(_untraced(store))
    claims = [
        *_whose(store, run, gpus, mixed, held),
        *_unmeasured(store, run, gpus, unmeasured, held),
        *_holes(gpus, nodes),
        *_exporters(store),
        *_readings(store, gpus),
        *_restarts(store),
        *time_skew.told(store, run),
        *_tracer(store, untraced),
    ]
    traced = store.ask(_ATTACHED)
    stopped = tuple(hole.node or "a node" for hole in _early(_node_holes(gpus), gpus))
    return Examined(tuple(claims), Trust(mixed, _all_untraced(traced, untraced), unmeasured, stopped))


_ATTACHED = metric("trackside_tracer_attached").over("run", "max")


def _count(name: str) -> Query:
    return metric(name).over("run", "count")


def _witnesses(store: Store, names: Sequence[str], gpus: Sequence[str]) -> Iterator[Grid]:
    """Grids of counts, until every GPU of the run was seen; one of nodes is enough."""
    left = set(gpus)
    for name in names:
        grid = _grid(store, _count(name))
        if grid is not None:
            yield grid
            left -= {f"{node}:{gpu}" for node, gpu in grid.labels("node", "gpu")}
            if not left:
                return


def _grid(store: Store, query: Query) -> Grid | None:
    answer = store.ask(query)
    return answer if isinstance(answer, Grid) else None


# -- whose


def _whose(store: Store, run: Run, gpus: Sequence[Line], mixed: bool, held: int | None) -> Iterator[Claim]:
    count = gpus[0].grid.value("count")
    measured = derived(len(run.gpus), count)
    if mixed:
        yield Claim("gpus_guessed", {"measured": measured, "held": derived(held, *(_accounted(store) or [count]))})
    elif run.gpus_by == "all":
        yield Claim("gpus_unsure", {"measured": measured})
    elif run.gpus_by == "occupancy":
        yield Claim("gpus_by_memory", {"gpus": derived(tuple(gpu.removeprefix(":") for gpu in run.gpus), count)})
    if run.metric_offset_s:
        yield Claim("metric_clock", {"offset": derived(run.metric_offset_s, count, *_accounted(store), unit="s")})


def _accounted(store: Store) -> list[Value]:
    """The scheduler's word on the run's size and start, to be cited."""
    answer = store.ask(record("job"))
    if not isinstance(answer, Frame) or not answer:
        return []
    row = answer.records[-1]
    return [answer.value(row, name) for name in ("n_gpus", "start") if row.get(name) is not None]


def _unmeasured(
    store: Store, run: Run, gpus: Sequence[Line], unmeasured: tuple[str, ...], held: int | None
) -> Iterator[Claim]:
    count = gpus[0].grid.value("count")
    if unmeasured:
        yield Claim("nodes_unmeasured", {"nodes": derived(unmeasured, count, *_accounted(store))})
    elif held is not None and run.n_gpus and len(run.gpus) < held and not any(_instances(gpus)):
        yield Claim("gpus_unmeasured", {"measured": derived(len(run.gpus), count),
                                        "held": derived(held, *(_accounted(store) or [count]))})  # fmt: skip


def _instances(gpus: Iterable[Line]) -> Iterator[str]:
    return (mig for line in gpus for (mig,) in line.grid.labels("mig") if mig)


# -- when


def _holes(gpus: Sequence[Line], nodes: Sequence[Line]) -> Iterator[Claim]:
    """What was not sampled: of all nodes at the run's ends, of single nodes to its end, and in between."""
    found = _node_holes(gpus)
    first, last = float(gpus[0].grid.times[0]) - gpus[0].grid.step, float(gpus[0].grid.times[-1])
    late = [hole for holes in found.values() for hole in holes if hole.start <= first]
    if len(late) == len(found):
        least = min(late, key=lambda hole: hole.length)
        yield Claim("late", {"late": derived(least.length, least.samples, unit="s")})
    early = _early(found, gpus)
    if len(early) == len(found):
        least = min(early, key=lambda hole: hole.length)
        yield Claim("early", {"early": derived(least.length, least.samples, unit="s")})
    else:
        yield from _stopped(early, nodes)
    between = [hole for holes in found.values() for hole in holes if hole.start > first and hole.end < last]
    if between:
        yield _gaps(between, gpus)


def _node_holes(gpus: Sequence[Line]) -> dict[str, list[Hole]]:
    """What was not sampled of the GPUs of each node."""
    return {node: coverage.holes(own) for node, own in coverage.by_node(gpus).items()}


def _early(found: Mapping[str, Sequence[Hole]], gpus: Sequence[Line]) -> list[Hole]:
    """The holes that last to the run's end."""
    last = float(gpus[0].grid.times[-1])
    return [hole for holes in found.values() for hole in holes if hole.end >= last]


def _stopped(early: Sequence[Hole], nodes: Sequence[Line]) -> Iterator[Claim]:
    """Nodes of which nothing more came while others went on."""
    alive = {line.node for line in nodes if not any(hole.end >= line.grid.times[-1] for hole in coverage.holes([line]))}
    for key, stopped in (
        ("exporter_dead", [hole for hole in early if hole.node in alive]),
        ("node_silent", [hole for hole in early if hole.node not in alive]),
    ):
        if stopped:
            cites = [hole.samples for hole in stopped]
            when = derived(min(hole.start for hole in stopped), *cites, unit="time")
            yield Claim(key, {"nodes": derived(tuple(hole.node for hole in stopped), *cites), "when": when})


def _gaps(between: Sequence[Hole], gpus: Sequence[Line]) -> Claim:
    nodes = tuple(dict.fromkeys(hole.node for hole in between))
    own = [line for line in gpus if line.node in nodes]
    missing = sum(hole.length for hole in between) / len(nodes)
    whole = len(own[0].grid.times) * own[0].grid.step
    longest = max(between, key=lambda hole: hole.length)
    return Claim(
        "gaps",
        {
            "share": derived(missing / whole, *(hole.samples for hole in between), unit="share"),
            "nodes": derived(nodes, longest.samples),
            "length": derived(longest.length, longest.samples, unit="s"),
            "when": derived(longest.start, longest.samples, unit="time"),
        },
    )


def _readings(store: Store, gpus: Sequence[Line]) -> Iterator[Claim]:
    grid = gpus[0].grid
    readings = float(np.nanmedian(np.nansum(grid.values, axis=1)))
    if readings < FEW_READINGS:
        yield Claim("coarse", {"readings": derived(int(readings), grid.value("sum"))})
    if _grid(store, metric("gpu_sm_active_ratio").over("run", "avg")) is None:
        yield Claim("no_sm")


# -- exporters, counters, clocks, tracers


def _exporters(store: Store) -> Iterator[Claim]:
    up = _grid(store, metric("scrape_up").over("run", "avg"))
    if up is not None:
        shares = np.nanmean(np.where(np.isnan(up.values), 1.0, up.values), axis=1)
        down = [int(row) for row in np.flatnonzero(shares < 1 - 1 / FEW_READINGS)]
        if down:
            values = [up.one(row).value("avg") for row in down]
            nodes = tuple(dict.fromkeys(_named(up, row) for row in down))
            least = min(values, key=lambda value: value.number)
            yield Claim("exporter_down", {"nodes": derived(nodes, *values),
                                          "share": derived(least.number, least, unit="share")})  # fmt: skip
    worked = _grid(store, metric("trackside_collector_success").over("run", "max"))
    if worked is not None:
        rows = [row for row in range(len(worked)) if np.nanmax(worked.values[row], initial=0.0) == 0]
        if rows:
            values = [worked.one(row).value("max") for row in rows]
            names = [worked.series[row].get("collector") or "" for row in rows]
            yield Claim("collector_failed", {"collectors": derived(tuple(dict.fromkeys(names)), *values),
                                             "nodes": derived(_nodes(worked, rows), *values)})  # fmt: skip


def _named(grid: Grid, row: int) -> str:
    return grid.series[row].get("node") or grid.series[row].get("target") or "a node"


def _nodes(grid: Grid, rows: Iterable[int]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_named(grid, row) for row in rows))


def _restarts(store: Store) -> Iterator[Claim]:
    """Nodes that booted, and nodes whose energy counters (which only ever rise) fell."""
    boots = _grid(store, metric("host_boot_time_seconds").over("run", "last"))
    booted = () if boots is None else tuple(row for row in range(len(boots)) if _moved(boots.values[row]))
    if boots is not None and booted:
        ends = [boots.one(row).value(how) for row in booted for how in ("min", "max")]
        when = derived(max(value.number for value in ends), *ends, unit="time")
        yield Claim("booted", {"nodes": derived(_nodes(boots, booted), *ends), "when": when})
    energy = _grid(store, metric("gpu_energy_joules_total").over("run", "last"))
    if energy is not None:
        already = _nodes(boots, booted) if boots is not None else ()
        yield from _resets(energy, already)


def _moved(values: np.typing.NDArray[np.float64]) -> bool:
    known = values[~np.isnan(values)]
    return bool(len(known) and known.max() - known.min() > BOOT_S)


def _resets(energy: Grid, already: Sequence[str]) -> Iterator[Claim]:
    falls = energy.values < last_before(energy.values)
    nodes = [node for (node,) in energy.labels("node")]
    for node in dict.fromkeys(nodes):
        rows = [row for row, name in enumerate(nodes) if name == node]
        windows = np.flatnonzero(falls[rows].mean(axis=0) >= RESET_SHARE)
        if node in already or not len(windows):
            continue
        window = int(windows[0])
        first, end = float(energy.times[0]) - energy.step, float(energy.times[window])
        one = energy.one(next(row for row in rows if falls[row, window]))
        cites = [one.during(first, end - energy.step).value("last"), one.during(end - energy.step, end).value("last")]
        yield Claim("counters_reset", {"nodes": derived((node or "a node",), *cites),
                                       "when": derived(end, *cites, unit="time")})  # fmt: skip


def _untraced(store: Store) -> Iterator[tuple[str, Value]]:
    """Nodes on which a tracer ran and saw no process."""
    attached = _grid(store, _ATTACHED)
    if attached is None:
        return
    for (node,) in dict.fromkeys(attached.labels("node")):
        part = attached.where(node=node) if node else attached
        most = part.value("max")
        if most.value == 0:
            yield node, most


def _all_untraced(answer: Frame | Grid | MissingAnswer, untraced: Sequence[tuple[str, Value]]) -> bool:
    return isinstance(answer, Grid) and len(untraced) == len(dict.fromkeys(answer.labels("node")))


def _tracer(store: Store, untraced: Sequence[tuple[str, Value]]) -> Iterator[Claim]:
    if untraced:
        nodes = tuple(node or "a node" for node, _ in untraced)
        yield Claim("untraced", {"nodes": derived(nodes, *(value for _, value in untraced))})
    lost = _grid(store, metric("trackside_tracer_lost_events_total").over("run", "increase"))
    if lost is not None and (total := lost.value("sum")).value:
        yield Claim("lost_events", {"lost": derived(total.value, total, unit="events")})
