"""Trust in the run's metrics: whose they are, what they omit, which counters were reset.

The answer of an untrustworthy measurement becomes missing, and the facts and families that need it report that. It
is checked here, so that families do not have to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trackside.catalog.metrics import METRICS
from trackside.evidence import Answer, Grid, Missing, MissingAnswer, Store
from trackside.facts.fact import Facts, fact
from trackside.facts.trust import coverage
from trackside.facts.trust.clock_skew import ClockSkew
from trackside.facts.trust.exporters import Exporters
from trackside.facts.trust.sampling import Sampling
from trackside.finding import Claim
from trackside.model import Run
from trackside.query import Query
from trackside.wording import percent

LEVEL_ROLLUPS = frozenset({"avg", "sum"})
"""Rollups that describe the whole time, so that a mostly unsampled time makes them invalid."""
PROCESS_METRICS = ("trackside_cuda_", "trackside_nccl_", "training_")
"""Metrics that end with the processes: their end is information."""
TRACER_METRICS = ("trackside_cuda_", "trackside_nccl_")


@dataclass(frozen=True)
class Limits:
    """When an answer has too little data."""

    min_covered_share: float = 0.5
    """Minimum share of sampled windows for a level or a share of time: a median or a mean over fewer is arbitrary."""
    min_readings: int = 3
    """Minimum readings of each GPU for a share of time."""


@dataclass(frozen=True, slots=True)
class TelemetryTrust:
    """What limits the run's metrics: the claims, and which answers can be used."""

    claims: tuple[Claim, ...] = ()
    has_other_gpus: bool = False
    """Whether more GPUs were measured than the run had, and it is unknown which ones are its own."""
    untraced: bool = False
    """Whether a tracer ran and saw no process."""
    unmeasured: tuple[str, ...] = ()
    """Nodes of the run without GPU metrics."""
    silent_nodes: tuple[str, ...] = ()
    """Nodes whose GPU metrics stopped long before the run's end."""
    limits: Limits = Limits()

    def checked(self, query: Query, answer: Answer) -> Answer:
        """The answer, or why it cannot be used."""
        if not isinstance(answer, Grid):
            return answer
        doubt = self._doubt(query, answer)
        return MissingAnswer(doubt, query) if doubt else answer

    def _doubt(self, query: Query, grid: Grid) -> str:
        if self.has_other_gpus and query.kind.startswith("gpu_"):
            return "nothing shows which of the measured GPUs are the run's"
        if self.untraced and query.kind.startswith(TRACER_METRICS):
            return "the tracer was attached to no process of the run"
        if query.kind.startswith(PROCESS_METRICS) or query.rollup_how in ("count", "onset"):
            return ""
        metric = METRICS[query.kind]
        if query.span == "tail" and metric.kind == "gauge" and _stale_at_end(grid):
            return f"{query.kind} was no longer sampled at the run's end"
        if (
            metric.unit == "ratio"
            and np.max((~np.isnan(grid.values)).sum(axis=1), initial=0) < self.limits.min_readings
        ):
            return f"{query.kind} was sampled too rarely for a share of time"
        levels = query.span != "around" and (query.rollup_how in LEVEL_ROLLUPS or metric.unit == "ratio")
        if levels and metric.kind == "gauge" and coverage.sampled_share(grid.values) < self.limits.min_covered_share:
            return (
                f"{query.kind} was sampled for less than {percent(self.limits.min_covered_share)} of the queried time"
            )
        return ""


@fact(limits=Limits())
def telemetry_trust(sampling: Sampling, exporters: Exporters, skew: ClockSkew, limits: Limits) -> TelemetryTrust:
    """Needs no particular input; reads unchecked answers, because the check is built from it."""
    if not sampling.gpus:
        return TelemetryTrust(tuple(sampling.claims))
    claims = (
        *sampling.claims,
        *exporters.failures,
        *sampling.coarse_claims,
        *exporters.restarts,
        *skew.claims,
        *exporters.tracers,
    )
    return TelemetryTrust(
        claims, sampling.mixed, exporters.untraced, sampling.unmeasured, sampling.silent_nodes, limits
    )


def trusted_facts(store: Store, run: Run) -> Facts:
    """The facts of a run, derived from checked answers."""
    trust = Facts(store, run).get(TelemetryTrust)
    if isinstance(trust, Missing):
        return Facts(store, run)
    return Facts(store, run, trust.checked, {TelemetryTrust: trust})


def _stale_at_end(grid: Grid) -> bool:
    """Whether no series was sampled for so long before the end that the last value is stale."""
    sampled = np.any(~np.isnan(grid.values), axis=0)
    indices = np.flatnonzero(sampled)
    return not len(indices) or (len(sampled) - 1 - int(indices[-1])) * grid.step >= coverage.stale_after_s(
        sampled, grid.step
    )
