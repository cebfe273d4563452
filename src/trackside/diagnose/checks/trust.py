"""Which answers can be judged on, and which findings they carry: the engine asks here, so that no family need to.

A measurement that can't be trusted is no measurement: its ask becomes Missing, and the families that need it say so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from trackside.catalog.metrics import METRICS
from trackside.diagnose.checks import coverage
from trackside.model import Finding, Outcome
from trackside.query import Frame, Grid, Missing, Query


@dataclass(frozen=True)
class Limits:
    """When an answer says too little."""

    covered_share: float = 0.5
    """Of a level or a share of time at least half of its windows must have been seen: a median or a mean over fewer
    could be anything, whatever the rest was like."""
    readings: int = 3
    """A share of time needs three readings of each GPU: of two, neither is the usual one."""


LIMITS = Limits()
LEVELS = frozenset({"avg", "sum", "stddev", "p05", "p50", "p95"})
"""Rollups that speak for the whole time, and so not of one of which little was seen."""
OF_PROCESSES = ("trackside_cuda_", "trackside_nccl_", "training_")
"""Metrics that end with the processes: that they stop is what they say."""
TRACED = ("trackside_cuda_", "trackside_nccl_")


@dataclass(frozen=True, slots=True)
class Trust:
    """What preflight found out about the telemetry, as far as it limits the families.

    ``mixed``: the GPUs measured are more than the run held, and which are its own isn't told. ``untraced``: a tracer
    ran and saw no process. ``unmeasured``: nodes of the run, or GPUs, of which no GPU metric was given. ``stopped``:
    nodes of which none came any more long before the run's end.
    """

    mixed: bool = False
    untraced: bool = False
    unmeasured: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    limits: Limits = LIMITS

    def checked(self, query: Query, answer: Frame | Grid | Missing) -> Frame | Grid | Missing:
        """The answer, or why it is none."""
        if not isinstance(answer, Grid):
            return answer
        doubt = self._doubt(query, answer)
        return Missing(query, doubt) if doubt else answer

    def limited(self, finding: Finding) -> Finding:
        """What was ruled out by metrics of a part of the run alone is not ruled out."""
        cites = [cite for claim in finding.because for cite in claim.cites]
        if finding.outcome is not Outcome.ABSENT or any(cite.plane != "metric" for cite in cites):
            return finding
        missing = [f"GPU metrics of {listed(self.unmeasured)}"] if self.unmeasured else []
        missing += [f"GPU metrics of {listed(self.stopped)} up to the run's end"] if self.stopped else []
        if not missing:
            return finding
        collect = ("GPU metrics of all of the run's nodes, from its start to its end",)
        return replace(finding, outcome=Outcome.UNKNOWN, because=(), missing=tuple(missing), collect=collect)

    def _doubt(self, query: Query, grid: Grid) -> str:
        if self.mixed and query.kind.startswith("gpu_"):
            return "which of the GPUs measured are the run's isn't told"
        if self.untraced and query.kind.startswith(TRACED):
            return "the tracer was attached to no process of the run"
        if query.kind.startswith(OF_PROCESSES) or query.rollup_how in ("count", "onset") or query.group_how == "count":
            return ""
        metric = METRICS[query.kind]
        if query.span == "tail" and metric.kind == "gauge" and _stale_at_end(grid):
            return f"{query.kind} was no longer sampled at the run's end"
        if metric.unit == "ratio" and np.max((~np.isnan(grid.values)).sum(axis=1), initial=0) < self.limits.readings:
            return f"{query.kind} was sampled too few times to tell a share of time"
        levels = query.rollup_how in LEVELS or metric.unit == "ratio"
        if query.span != "around" and metric.kind == "gauge" and levels and self._little(grid):
            return f"{query.kind} was sampled for less than half of the time asked for"
        return ""

    def _little(self, grid: Grid) -> bool:
        return coverage.share(grid.values) < self.limits.covered_share


def _stale_at_end(grid: Grid) -> bool:
    """Whether no series was sampled for so long before the end that its last value no longer counts."""
    seen = np.any(~np.isnan(grid.values), axis=0)
    places = np.flatnonzero(seen)
    return not len(places) or (len(seen) - 1 - int(places[-1])) * grid.step >= coverage.stale(seen, grid.step)


def listed(names: Iterable[str], most: int = 8) -> str:
    """Names as text, the first few of many."""
    known = list(names)
    return ", ".join(known[:most]) + (f" and {len(known) - most} more" if len(known) > most else "")
