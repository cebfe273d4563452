r"""Sampling of the run's GPUs: which of the measured GPUs are the run's, which of the run's were measured, and the
gaps.

If GPU metrics of a node stop while its other metrics continue, the exporter failed, not the node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

import numpy as np

from trackside.evidence import NO_METRIC_INPUT, Evidence, Grid, Value, derived
from trackside.facts.fact import fact
from trackside.facts.logs.ending import Ending
from trackside.facts.trust.coverage import SampledWindows, SampleGap, by_node, sample_gaps, sampled_windows
from trackside.finding import Claim, Sentence
from trackside.model import Run, TimeRange
from trackside.query import Query, metric

GPU_WITNESSES = (
    "gpu_utilization_ratio", "gpu_memory_used_bytes", "gpu_power_watts", "gpu_temperature_celsius",
    "gpu_engine_active_ratio", "gpu_sm_active_ratio", "gpu_sm_clock_hertz",
)  # fmt: skip
"""Metrics that show whether a GPU was sampled; those that every exporter has come first."""
NODE_WITNESSES = (
    "host_load1", "host_memory_available_bytes", "host_cpu_busy_ratio", "host_time_seconds",
    "host_boot_time_seconds", "host_cpu_seconds_total", "trackside_collector_success",
)  # fmt: skip
SAMPLING: Mapping[str, Query] = {
    **{name: metric(name).over("run", "count") for name in (*GPU_WITNESSES, *NODE_WITNESSES)},
    "sm": metric("gpu_sm_active_ratio").over("run", "avg"),
}
"""The queries behind :class:`Sampling`."""
FEW_READINGS = 12
"""With a dozen readings, one is 8 % of the run: shares of time are no more precise."""

NO_GPU_METRIC = Sentence("no GPU metrics were given: what the GPUs did is unknown")
METRICS_ELSEWHERE = Sentence(
    "metrics were given, but of no GPU known to belong to the run: what its GPUs did is unknown"
)
GPUS_GUESSED = Sentence(
    "the run used {allocated} of the {measured} GPUs measured, but which ones is unknown: GPU metrics are not used"
)
GPUS_UNSURE = Sentence("which GPUs the run used is unknown: all {measured} measured GPUs are assumed to be its own")
GPUS_BY_MEMORY = Sentence("the run's GPUs are those whose memory was in use during the run: {gpus}")
METRIC_CLOCK = Sentence("metric times were shifted by {offset} to match the run's")
NODES_UNMEASURED = Sentence("no GPU metrics of {nodes} were given: faults there cannot be ruled out")
GPUS_UNMEASURED = Sentence("{measured} of the run's {allocated} GPUs were measured")
LATE = Sentence("GPU metrics start {late} after the run")
EARLY = Sentence("GPU metrics end {early} before the run does", running="the newest GPU metrics are {early} old")
EXPORTER_DEAD = Sentence(
    "the GPU metrics of {nodes} stop at {when} while its other metrics continue: the exporter died, not the node"
)
NODE_SILENT = Sentence("all metrics of {nodes} stop at {when}: its exporters stopped, or the node itself")
GAPS = Sentence("{share} of the GPU metrics of {nodes} are missing; the longest gap is {length}, from {when}")
COARSE = Sentence(
    "GPU metrics have {readings:samples} per GPU in the whole run: short events can be missed",
    running="GPU metrics have {readings:samples} per GPU so far: short events can be missed",
)
NO_SM = Sentence("SM activity was not measured: utilization alone does not distinguish computing from busy-waiting")


@dataclass(frozen=True, eq=False)
class Sampling:
    """When each GPU and each node of the run was sampled."""

    run: Run
    gpus: Sequence[SampledWindows]
    """The GPUs that were sampled; empty if none was."""
    nodes: Sequence[SampledWindows]
    has_metrics: bool
    """Whether any metrics were given."""
    answered: bool
    """Whether their source responded."""
    sm: bool
    """Whether SM activity was measured."""
    accounted: Sequence[Value]
    """The scheduler's values for the run's size and start, to be cited."""

    @property
    def n_gpus(self) -> int | None:
        """Number of GPUs allocated to the run, as far as known."""
        return self.run.n_gpus or self.run.n_ranks

    @property
    def mixed(self) -> bool:
        """Whether more GPUs were measured than the run had, and it is unknown which ones are its own."""
        every = self.run.gpus_by == "all" and self.n_gpus is not None and self.n_gpus < len(self.run.gpus)
        return every and bool(self.gpus)

    @cached_property
    def unmeasured(self) -> tuple[str, ...]:
        """Nodes of the run without GPU metrics."""
        measured = {line.node for line in self.gpus}
        return tuple(node for node in self.run.nodes if node not in measured) if measured - {""} else ()

    @cached_property
    def stopped(self) -> tuple[str, ...]:
        """Nodes whose GPU metrics stopped long before the run's end."""
        return tuple(hole.node or "a node" for hole in self._early)

    @property
    def claims(self) -> list[Claim]:
        """Which GPUs were measured, and which of the run's were not, or not all the time."""
        if not self.gpus:
            return [METRICS_ELSEWHERE() if self.has_metrics else NO_GPU_METRIC()] if self.answered else []
        return [*self._whose(), *self._unmeasured(), *self._gaps()]

    @property
    def readings(self) -> list[Claim]:
        """What was sampled too rarely, or not at all."""
        if not self.gpus:
            return []
        grid = self.gpus[0].grid
        count = float(np.nanmedian(np.nansum(grid.values, axis=1)))
        few = [COARSE(readings=derived(int(count), grid.value("sum")))] if count < FEW_READINGS else []
        return few if self.sm else [*few, NO_SM()]

    def _whose(self) -> Iterator[Claim]:
        run, count = self.run, self.gpus[0].grid.value("count")
        measured = derived(len(run.gpus), count)
        if self.mixed:
            yield GPUS_GUESSED(measured=measured, allocated=derived(self.n_gpus, *(self.accounted or [count])))
        elif run.gpus_by == "all":
            yield GPUS_UNSURE(measured=measured)
        elif run.gpus_by == "occupancy":
            yield GPUS_BY_MEMORY(gpus=derived(tuple(gpu.removeprefix(":") for gpu in run.gpus), count))
        if run.metric_offset_s:
            yield METRIC_CLOCK(offset=derived(run.metric_offset_s, count, *self.accounted, unit="s"))

    def _unmeasured(self) -> Iterator[Claim]:
        run, count = self.run, self.gpus[0].grid.value("count")
        instances = any(mig for line in self.gpus for (mig,) in line.grid.labels("mig"))
        if self.unmeasured:
            yield NODES_UNMEASURED(nodes=derived(self.unmeasured, count, *self.accounted))
        elif self.n_gpus is not None and run.n_gpus and len(run.gpus) < self.n_gpus and not instances:
            n_gpus = derived(self.n_gpus, *(self.accounted or [count]))
            yield GPUS_UNMEASURED(measured=derived(len(run.gpus), count), allocated=n_gpus)

    @property
    def _span(self) -> TimeRange:
        grid = self.gpus[0].grid
        return float(grid.times[0]) - grid.step, float(grid.times[-1])

    @cached_property
    def _holes(self) -> Mapping[str, Sequence[SampleGap]]:
        """The sample gaps of the GPUs of each node."""
        return {node: sample_gaps(own) for node, own in by_node(self.gpus).items()}

    @cached_property
    def _early(self) -> Sequence[SampleGap]:
        """The gaps that last to the run's end."""
        return [hole for own in self._holes.values() for hole in own if hole.end >= self._span[1]]

    def _gaps(self) -> Iterator[Claim]:
        """Gaps of all nodes at the run's ends, of single nodes to its end, and in between."""
        first, last = self._span
        every = [hole for own in self._holes.values() for hole in own]
        late, early = [hole for hole in every if hole.start <= first], self._early
        if len(late) == len(self._holes):
            least = min(late, key=attrgetter("length"))
            yield LATE(late=derived(least.length, least.samples, unit="s"))
        if len(early) == len(self._holes):
            least = min(early, key=attrgetter("length"))
            yield EARLY(early=derived(least.length, least.samples, unit="s"))
        else:
            yield from self._stopped()
        if between := [hole for hole in every if hole.start > first and hole.end < last]:
            yield self._between(between)

    def _stopped(self) -> Iterator[Claim]:
        """Nodes whose metrics stopped while those of others continued."""
        alive = {line.node for line in self.nodes if not any(h.end >= line.grid.times[-1] for h in sample_gaps([line]))}
        for sentence, own in (
            (EXPORTER_DEAD, [hole for hole in self._early if hole.node in alive]),
            (NODE_SILENT, [hole for hole in self._early if hole.node not in alive]),
        ):
            if own:
                cites = [hole.samples for hole in own]
                when = derived(min(hole.start for hole in own), *cites, unit="time")
                yield sentence(nodes=derived(tuple(hole.node for hole in own), *cites), when=when)

    def _between(self, between: Sequence[SampleGap]) -> Claim:
        nodes = tuple(dict.fromkeys(hole.node for hole in between))
        grid = next(line.grid for line in self.gpus if line.node in nodes)
        share = sum(hole.length for hole in between) / len(nodes) / (len(grid.times) * grid.step)
        longest = max(between, key=attrgetter("length"))
        return GAPS(
            share=derived(share, *(hole.samples for hole in between), unit="share"),
            nodes=derived(nodes, longest.samples),
            length=derived(longest.length, longest.samples, unit="s"),
            when=derived(longest.start, longest.samples, unit="time"),
        )


@fact(SAMPLING, lazy=True)
def sampling(evidence: Evidence, ending: Ending, run: Run) -> Sampling:
    """Covers counts of samples; empty if there are none."""
    first = evidence.missing(GPU_WITNESSES[0])
    has_metrics, answered = not (first and first.reason == NO_METRIC_INPUT), not (first and first.source)
    if not (has_metrics and answered):
        return Sampling(run, (), (), has_metrics, answered, False, ())
    gpus = sampled_windows(_until_all(evidence, GPU_WITNESSES, run.gpus), "gpu")
    nodes = sampled_windows(_until_all(evidence, NODE_WITNESSES, ()), "node")
    jobs = ending.jobs
    accounted = [
        jobs.value(row, name) for row in jobs.records[-1:] for name in ("n_gpus", "start") if row.get(name) is not None
    ]
    return Sampling(run, gpus, nodes, has_metrics, answered, evidence.grid("sm") is not None, accounted)


def _until_all(evidence: Evidence, names: Sequence[str], gpus: Sequence[str]) -> Iterator[Grid]:
    """Grids of counts, until every GPU of the run was seen; for nodes one is enough."""
    remaining = set(gpus)
    for name in names:
        if (grid := evidence.grid(name)) is not None:
            yield grid
            remaining -= {f"{node}:{gpu}" for node, gpu in grid.labels("node", "gpu")}
            if not remaining:
                return
