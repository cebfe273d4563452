"""Health of the metric sources: exporters that did not respond, collectors that failed, counters that were reset,
tracers that were attached to no process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trackside.evidence import Evidence, Grid, Value, derived
from trackside.facts.fact import fact
from trackside.facts.hardware.counters import last_before
from trackside.facts.trust.sampling import MIN_READINGS
from trackside.finding import Claim, Sentence
from trackside.query import metric

EXPORTER_DOWN = Sentence("exporters of {nodes} answered {share} of the scrapes")
EXPORTERS_DOWN = Sentence("exporters of {nodes} answered from {share} to {most} of the scrapes")
COLLECTOR_FAILED = Sentence("the collectors {collectors} of {nodes} failed")
BOOTED = Sentence("{nodes} rebooted at {when}, so that counters there restarted")
BOOTED_ONE_BY_ONE = Sentence("{nodes} rebooted from {when} to {until}, so that counters there restarted")
COUNTERS_RESET = Sentence("counters of {nodes} restarted at {when}: a driver or an exporter was restarted")
TRACER_SAW_NOTHING = Sentence(
    "the tracer was not attached to any process on {nodes}, so missing launches there prove nothing"
)
LOST_EVENTS = Sentence("the tracer lost {lost}: counts of launches and collectives are too low")


@dataclass(frozen=True)
class Limits:
    """When a counter was reset."""

    boot_s: float = 120.0
    """Minimum change of the boot time: it is recomputed from clock and uptime, and clocks are adjusted."""
    max_boots: int = 3
    """Maximum number of nodes that rebooted at different times and are named one by one."""
    reset_share: float = 0.5
    """Minimum share of a node's GPUs whose counters must fall at once: a single GPU's reset concerns that GPU."""


@dataclass(frozen=True, slots=True)
class Exporters:
    """Failures of the metric sources."""

    failures: tuple[Claim, ...]
    """Exporters and collectors that failed."""
    restarts: tuple[Claim, ...]
    """Counters that were reset."""
    tracers: tuple[Claim, ...]
    """Tracers that saw no process, or lost events."""
    untraced: bool
    """Whether a tracer ran on every node that has one and saw no process on any."""


@fact({
    "up": metric("scrape_up").over("run", "avg"),
    "worked": metric("trackside_collector_success").over("run", "max"),
    "boots": metric("host_boot_time_seconds").over("run", "last"),
    "energy": metric("gpu_energy_joules_total").over("run", "last"),
    "attached": metric("trackside_tracer_attached").over("run", "max"),
    "lost": metric("trackside_tracer_lost_events_total").over("run", "increase"),
}, limits=Limits())  # fmt: skip
def exporters(evidence: Evidence, limits: Limits) -> Exporters:
    """Needs no particular input; empty for what was not sampled."""
    attached, lost = evidence.grid("attached"), evidence.grid("lost")
    untraced = [] if attached is None else list(_untraced_nodes(attached))
    tracers = []
    if untraced:
        nodes = tuple(node or "a node" for node, _ in untraced)
        tracers.append(TRACER_SAW_NOTHING(nodes=derived(nodes, *(value for _, value in untraced))))
    if lost is not None and (total := lost.value("sum")).value:
        tracers.append(LOST_EVENTS(lost=derived(total.value, total, unit="events")))
    return Exporters(
        tuple(_failure_claims(evidence.grid("up"), evidence.grid("worked"))),
        tuple(_restart_claims(evidence.grid("boots"), evidence.grid("energy"), limits)),
        tuple(tracers),
        attached is not None and len(untraced) == len(dict.fromkeys(attached.labels("node"))),
    )


def _failure_claims(up: Grid | None, collectors: Grid | None) -> Iterator[Claim]:
    if up is not None:
        shares = np.nanmean(np.where(np.isnan(up.values), 1.0, up.values), axis=1)
        down = [int(row) for row in np.flatnonzero(shares < 1 - 1 / MIN_READINGS)]
        if down:
            values = [up.one(row).value("avg") for row in down]
            least, most = (pick(values, key=lambda value: value.number) for pick in (min, max))
            share, nodes = derived(least.number, least, unit="share"), derived(_nodes(up, down), *values)
            if round(least.number, 2) == round(most.number, 2):
                yield EXPORTER_DOWN(nodes=nodes, share=share)
            else:
                yield EXPORTERS_DOWN(nodes=nodes, share=share, most=derived(most.number, most, unit="share"))
    if collectors is not None:
        rows = [row for row in range(len(collectors)) if np.nanmax(collectors.values[row], initial=0.0) == 0]
        if rows:
            values = [collectors.one(row).value("max") for row in rows]
            names = tuple(dict.fromkeys(collectors.series[row].get("collector") or "" for row in rows))
            yield COLLECTOR_FAILED(collectors=derived(names, *values), nodes=derived(_nodes(collectors, rows), *values))


def _nodes(grid: Grid, rows: Iterable[int]) -> tuple[str, ...]:
    series = (grid.series[row] for row in rows)
    return tuple(dict.fromkeys(item.get("node") or item.get("target") or "a node" for item in series))


def _restart_claims(boots: Grid | None, energy: Grid | None, limits: Limits) -> Iterator[Claim]:
    """Nodes that rebooted, and nodes whose energy counters (which only rise) fell."""
    already: tuple[str, ...] = ()
    if boots is not None:
        booted = [row for row in range(len(boots)) if _change(boots.values[row]) > limits.boot_s]
        already = _nodes(boots, booted)
        if booted:
            yield from _boot_claims(boots, booted, limits)
    if energy is not None:
        yield from _reset_claims(energy, already, limits)


def _boot_claims(boots: Grid, rows: Sequence[int], limits: Limits) -> Iterator[Claim]:
    """When nodes rebooted: a claim for each if they are few, else one with the first and the last time."""
    ends = {row: [boots.one(row).value(how) for how in ("min", "max")] for row in rows}
    times = {row: values[1].number for row, values in ends.items()}
    if len(rows) <= limits.max_boots or max(times.values()) - min(times.values()) <= limits.boot_s:
        groups: list[list[int]] = []
        for row in sorted(rows, key=times.__getitem__):
            if groups and times[row] - times[groups[-1][0]] <= limits.boot_s:
                groups[-1].append(row)
            else:
                groups.append([row])
        for group in groups:
            cites = [value for row in sorted(group) for value in ends[row]]
            when = derived(max(times[row] for row in group), *cites, unit="time")
            yield BOOTED(nodes=derived(_nodes(boots, sorted(group)), *cites), when=when)
        return
    cites = [value for row in rows for value in ends[row]]
    first, last = (derived(pick(times.values()), *cites, unit="time") for pick in (min, max))
    yield BOOTED_ONE_BY_ONE(nodes=derived(_nodes(boots, rows), *cites), when=first, until=last)


def _change(values: NDArray[np.float64]) -> float:
    sampled = values[~np.isnan(values)]
    return float(sampled.max() - sampled.min()) if len(sampled) else 0.0


def _reset_claims(energy: Grid, already: Sequence[str], limits: Limits) -> Iterator[Claim]:
    falls = energy.values < last_before(energy.values)
    nodes = [node for (node,) in energy.labels("node")]
    for node in dict.fromkeys(nodes):
        rows = [row for row, name in enumerate(nodes) if name == node]
        windows = np.flatnonzero(falls[rows].mean(axis=0) >= limits.reset_share)
        if node in already or not len(windows):
            continue
        window = int(windows[0])
        first, end = float(energy.times[0]) - energy.step, float(energy.times[window])
        counter = energy.one(next(row for row in rows if falls[row, window]))
        cites = [
            counter.during(first, end - energy.step).value("last"),
            counter.during(end - energy.step, end).value("last"),
        ]
        yield COUNTERS_RESET(nodes=derived((node or "a node",), *cites), when=derived(end, *cites, unit="time"))


def _untraced_nodes(attached: Grid) -> Iterator[tuple[str, Value]]:
    """Nodes on which a tracer ran and saw no process."""
    for (node,) in dict.fromkeys(attached.labels("node")):
        highest = (attached.where(node=node) if node else attached).value("max")
        if highest.value == 0:
            yield node, highest
