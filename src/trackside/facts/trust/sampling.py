"""Sampling of the run's GPUs: which of the measured GPUs are the run's, which of the run's were measured, and the
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

GPU_PRESENCE_METRICS = (
    "gpu_utilization_ratio", "gpu_memory_used_bytes", "gpu_power_watts", "gpu_temperature_celsius",
    "gpu_engine_active_ratio", "gpu_sm_active_ratio", "gpu_sm_clock_hertz",
)  # fmt: skip
"""Metrics that show whether a GPU was sampled; those that every exporter has come first."""
NODE_PRESENCE_METRICS = (
    "host_load1", "host_memory_available_bytes", "host_cpu_busy_ratio", "host_time_seconds",
    "host_boot_time_seconds", "host_cpu_seconds_total", "trackside_collector_success",
)  # fmt: skip
SAMPLING: Mapping[str, Query] = {
    **{name: metric(name).over("run", "count") for name in (*GPU_PRESENCE_METRICS, *NODE_PRESENCE_METRICS)},
    "sm": metric("gpu_sm_active_ratio").over("run", "avg"),
}
"""The queries behind :class:`Sampling`."""
MIN_READINGS = 12
"""With a dozen readings, one is 8% of the run: shares of time are no more precise."""

NO_GPU_METRICS = Sentence("no GPU metrics were given: what the GPUs did is unknown")
METRICS_ELSEWHERE = Sentence(
    "metrics were given, but of no GPU known to belong to the run: what its GPUs did is unknown"
)
GPUS_GUESSED = Sentence(
    "the run used {allocated} of the {measured} GPUs measured, but which ones is unknown: GPU metrics are not used"
)
GPUS_UNSURE = Sentence("which GPUs the run used is unknown: all {measured} measured GPUs are assumed to be its own")
GPU_UNSURE = Sentence("which GPUs the run used is unknown: {gpus}, the only one measured, is assumed to be its own")
GPUS_BY_MEMORY = Sentence("the run's GPUs are those whose memory was in use during the run: {gpus}")
GPU_BY_MEMORY = Sentence("the run's GPU is the only one whose memory was in use during the run: {gpus}")
METRIC_CLOCK = Sentence("metric times were shifted by {offset} to match the run's")
NODES_UNMEASURED = Sentence("no GPU metrics of {nodes} were given: GPU faults there may be missing here")
GPUS_UNMEASURED = Sentence("only {measured} of the run's {allocated} GPUs were measured")
METRICS_START_LATE = Sentence("GPU metrics start {late} after the run")
METRICS_END_EARLY = Sentence(
    "GPU metrics end {early} before the run does", running="the newest GPU metrics are {early} old"
)
EXPORTER_DEAD = Sentence(
    "the GPU metrics of {nodes} stop at {when} while its other metrics continue: the exporter died, not the node"
)
EXPORTERS_DEAD = Sentence(
    "the GPU metrics of {nodes} stop from {when} to {until} while their other metrics continue: the exporters died, "
    "not the nodes"
)
NODES_SILENT = Sentence(
    "all metrics of {nodes} stop from {when} to {until}: their exporters stopped, or the nodes themselves"
)
NODE_SILENT = Sentence("all metrics of {nodes} stop at {when}: its exporters stopped, or the node itself")
METRICS_MISSING = Sentence(
    "{share} of the GPU metrics of {nodes} are missing; the longest gap is {length}, from {when}"
)
FEW_SAMPLES = Sentence(
    "GPU metrics have {readings:samples} per GPU in the whole run: short events can be missed",
    running="GPU metrics have {readings:samples} per GPU so far: short events can be missed",
)
SM_NOT_MEASURED = Sentence(
    "SM activity was not measured: utilization alone does not distinguish computing from busy-waiting"
)


@dataclass(frozen=True, eq=False)
class Sampling:
    """When each GPU and each node of the run was sampled."""

    run: Run
    gpus: Sequence[SampledWindows]
    """The GPUs that were sampled; empty if none was."""
    nodes: Sequence[SampledWindows]
    has_metrics: bool
    """Whether any metrics were given."""
    source_answered: bool
    """Whether their source responded."""
    sm: bool
    """Whether SM activity was measured."""
    scheduler_values: Sequence[Value]
    """The scheduler's values for the run's size and start, to be cited."""

    @property
    def n_gpus(self) -> int | None:
        """Number of GPUs allocated to the run, as far as known."""
        return self.run.n_gpus or self.run.n_ranks

    @property
    def mixed(self) -> bool:
        """Whether more GPUs were measured than the run had, and it is unknown which ones are its own."""
        too_many = self.run.gpus_by == "all" and self.n_gpus is not None and self.n_gpus < len(self.run.gpus)
        return too_many and bool(self.gpus)

    @cached_property
    def unmeasured(self) -> tuple[str, ...]:
        """Nodes of the run without GPU metrics."""
        measured = {entry.node for entry in self.gpus}
        return tuple(node for node in self.run.nodes if node not in measured) if measured - {""} else ()

    @cached_property
    def silent_nodes(self) -> tuple[str, ...]:
        """Nodes whose GPU metrics stopped long before the run's end."""
        return tuple(gap.node or "a node" for gap in self._final_gaps)

    @property
    def claims(self) -> list[Claim]:
        """Which GPUs were measured, and which of the run's were not, or not all the time."""
        if not self.gpus:
            return [METRICS_ELSEWHERE() if self.has_metrics else NO_GPU_METRICS()] if self.source_answered else []
        return [*self._allocation_claims(), *self._unmeasured_claims(), *self._gap_claims()]

    @property
    def coarse_claims(self) -> list[Claim]:
        """What was sampled too rarely, or not at all."""
        if not self.gpus:
            return []
        grid = self.gpus[0].grid
        count = float(np.nanmedian(np.nansum(grid.values, axis=1)))
        few = [FEW_SAMPLES(readings=derived(int(count), grid.value("sum")))] if count < MIN_READINGS else []
        return few if self.sm else [*few, SM_NOT_MEASURED()]

    def _allocation_claims(self) -> Iterator[Claim]:
        run, count = self.run, self.gpus[0].grid.value("count")
        measured = derived(len(run.gpus), count)
        gpus = derived(tuple(f"GPU {gpu[1:]}" if gpu.startswith(":") else gpu for gpu in run.gpus), count)
        if self.mixed:
            yield GPUS_GUESSED(measured=measured, allocated=derived(self.n_gpus, *(self.scheduler_values or [count])))
        elif run.gpus_by == "all":
            yield GPU_UNSURE(gpus=gpus) if len(run.gpus) == 1 else GPUS_UNSURE(measured=measured)
        elif run.gpus_by == "occupancy":
            yield (GPU_BY_MEMORY if len(run.gpus) == 1 else GPUS_BY_MEMORY)(gpus=gpus)
        if run.metric_offset_s:
            yield METRIC_CLOCK(offset=derived(run.metric_offset_s, count, *self.scheduler_values, unit="s"))

    def _unmeasured_claims(self) -> Iterator[Claim]:
        run, count = self.run, self.gpus[0].grid.value("count")
        instances = any(mig for entry in self.gpus for (mig,) in entry.grid.labels("mig"))
        if self.unmeasured:
            yield NODES_UNMEASURED(nodes=derived(self.unmeasured, count, *self.scheduler_values))
        elif self.n_gpus is not None and run.n_gpus and len(run.gpus) < self.n_gpus and not instances:
            n_gpus = derived(self.n_gpus, *(self.scheduler_values or [count]))
            yield GPUS_UNMEASURED(measured=derived(len(run.gpus), count), allocated=n_gpus)

    @property
    def _time_range(self) -> TimeRange:
        grid = self.gpus[0].grid
        return float(grid.times[0]) - grid.step, float(grid.times[-1])

    @cached_property
    def _gaps_by_node(self) -> Mapping[str, Sequence[SampleGap]]:
        """The sample gaps of the GPUs of each node."""
        return {node: sample_gaps(windows) for node, windows in by_node(self.gpus).items()}

    @cached_property
    def _final_gaps(self) -> Sequence[SampleGap]:
        """The gaps that last to the run's end."""
        return [gap for gaps in self._gaps_by_node.values() for gap in gaps if gap.end >= self._time_range[1]]

    def _gap_claims(self) -> Iterator[Claim]:
        """Gaps of all nodes at the run's ends, of single nodes to its end, and in between."""
        first, last = self._time_range
        all_gaps = [gap for gaps in self._gaps_by_node.values() for gap in gaps]
        late, early = [gap for gap in all_gaps if gap.start <= first], self._final_gaps
        if len(late) == len(self._gaps_by_node):
            least = min(late, key=attrgetter("length_s"))
            yield METRICS_START_LATE(late=derived(least.length_s, least.samples, unit="s"))
        if len(early) == len(self._gaps_by_node):
            least = min(early, key=attrgetter("length_s"))
            yield METRICS_END_EARLY(early=derived(least.length_s, least.samples, unit="s"))
        else:
            yield from self._stopped_claims()
        if between := [gap for gap in all_gaps if gap.start > first and gap.end < last]:
            yield self._inner_gap_claim(between)

    def _stopped_claims(self) -> Iterator[Claim]:
        """Nodes whose metrics stopped while those of others continued."""
        alive = {
            entry.node
            for entry in self.nodes
            if not any(gap.end >= entry.grid.times[-1] for gap in sample_gaps([entry]))
        }
        for sentence, one_by_one, gaps in (
            (EXPORTER_DEAD, EXPORTERS_DEAD, [gap for gap in self._final_gaps if gap.node in alive]),
            (NODE_SILENT, NODES_SILENT, [gap for gap in self._final_gaps if gap.node not in alive]),
        ):
            if gaps:
                cites = [gap.samples for gap in gaps]
                nodes = derived(tuple(gap.node for gap in gaps), *cites)
                first, last = (derived(pick(gap.start for gap in gaps), *cites, unit="time") for pick in (min, max))
                if first.number == last.number:
                    yield sentence(nodes=nodes, when=first)
                else:
                    yield one_by_one(nodes=nodes, when=first, until=last)

    def _inner_gap_claim(self, between: Sequence[SampleGap]) -> Claim:
        nodes = tuple(dict.fromkeys(gap.node for gap in between))
        grid = next(entry.grid for entry in self.gpus if entry.node in nodes)
        share = sum(gap.length_s for gap in between) / len(nodes) / (len(grid.times) * grid.step)
        longest = max(between, key=attrgetter("length_s"))
        return METRICS_MISSING(
            share=derived(share, *(gap.samples for gap in between), unit="share"),
            nodes=derived(nodes, longest.samples),
            length=derived(longest.length_s, longest.samples, unit="s"),
            when=derived(longest.start, longest.samples, unit="time"),
        )


@fact(SAMPLING, lazy=True)
def sampling(evidence: Evidence, ending: Ending, run: Run) -> Sampling:
    """Needs no particular input; empty without counts of samples."""
    first = evidence.missing(GPU_PRESENCE_METRICS[0])
    has_metrics, source_answered = not (first and first.reason == NO_METRIC_INPUT), not (first and first.source)
    if not (has_metrics and source_answered):
        return Sampling(run, (), (), has_metrics, source_answered, False, ())
    gpus = sampled_windows(_until_all(evidence, GPU_PRESENCE_METRICS, run.gpus), "gpu")
    nodes = sampled_windows(_until_all(evidence, NODE_PRESENCE_METRICS, ()), "node")
    jobs = ending.jobs
    scheduler_values = [
        jobs.value(row, name) for row in jobs.records[-1:] for name in ("n_gpus", "start") if row.get(name) is not None
    ]
    return Sampling(run, gpus, nodes, has_metrics, source_answered, evidence.grid("sm") is not None, scheduler_values)


def _until_all(evidence: Evidence, names: Sequence[str], gpus: Sequence[str]) -> Iterator[Grid]:
    """Grids of counts, until every GPU of the run was seen; for nodes one is enough."""
    remaining = set(gpus)
    for name in names:
        if (grid := evidence.grid(name)) is not None:
            yield grid
            remaining -= {f"{node}:{gpu}" for node, gpu in grid.labels("node", "gpu")}
            if not remaining:
                return
