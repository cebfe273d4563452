"""Which answers can be judged on, and which findings they carry: the engine asks here, so that no family need to.

A measurement that can't be trusted is no measurement: its answer becomes missing, and the families that need it say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from trackside.catalog.metrics import METRICS
from trackside.evidence import UNABLE, Frame, Grid, MissingAnswer
from trackside.facts.trust import coverage
from trackside.finding import Certainty, Finding, Outcome, unknown
from trackside.model import Plane
from trackside.query import Query


@dataclass(frozen=True)
class Limits:
    """When an answer says too little."""

    covered_share: float = 0.5
    """Of a level or a share of time at least half of its windows must have been seen: a median or a mean over fewer
    could be anything, whatever the rest was like."""
    readings: int = 3
    """A share of time needs three readings of each GPU: of two, neither is the usual one."""


LIMITS = Limits()
LEVELS = frozenset({"avg", "sum"})
"""Rollups that speak for the whole time, and so not of one of which little was seen."""
OF_PROCESSES = ("trackside_cuda_", "trackside_nccl_", "training_")
"""Metrics that end with the processes: that they stop is what they say."""
TRACED = ("trackside_cuda_", "trackside_nccl_")
HEALTH = "G1"


@dataclass(frozen=True, slots=True)
class Trust:
    """What preflight found out about the telemetry, as far as it limits the families.

    ``mixed``: the GPUs measured are more than the run held, and which are its own isn't told. ``untraced``: a tracer
    ran and saw no process. ``unmeasured``: nodes of the run, or GPUs, of which no GPU metric was given. ``stopped``:
    nodes of which none came any more long before the run's end. ``in_part``: planes of which not all rows came: why.
    """

    mixed: bool = False
    untraced: bool = False
    unmeasured: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    in_part: Mapping[Plane, str] = field(default_factory=dict)
    limits: Limits = LIMITS

    def checked(self, query: Query, answer: Frame | Grid | MissingAnswer) -> Frame | Grid | MissingAnswer:
        """The answer, or why it is none."""
        if not isinstance(answer, Grid):
            return answer
        doubt = self._doubt(query, answer)
        return MissingAnswer(doubt, query) if doubt else answer

    def limited(self, finding: Finding, by_silence: bool = False) -> Finding:
        """What rests on a part of what there was, as if it were all, is not known.

        ``by_silence``: see :class:`trackside.families.family.Family`.
        """
        finding = self._of_part(finding, by_silence)
        cites = [cite for claim in finding.because for cite in claim.cites]
        if finding.outcome is not Outcome.ABSENT or any(cite.plane != "metric" for cite in cites):
            return finding
        missing = [f"GPU metrics of {listed(self.unmeasured)}"] if self.unmeasured else []
        missing += [f"GPU metrics of {listed(self.stopped)} up to the run's end"] if self.stopped else []
        if not missing:
            return finding
        return _instead(finding, missing, ("GPU metrics of all of the run's nodes, from its start to its end",))

    def _of_part(self, finding: Finding, by_silence: bool) -> Finding:
        """Of rows that did not all come: how many there are rules nothing out, their end is no silence, and what looks
        healthy so far is no full proof of health."""
        cites = [cite for claim in finding.because for cite in claim.cites]
        doubted: set[Plane] = {cite.plane for cite in cites if cite.query and cite.query.reducer == "count"}
        if by_silence and "metric" not in finding.planes:
            doubted |= {plane for plane in finding.planes if plane == "log"}
        if missing := [UNABLE + self.in_part[plane] for plane in sorted(doubted & self.in_part.keys())]:
            return _instead(finding, missing)
        if finding.family == HEALTH and finding.certainty is Certainty.ESTABLISHED and "log" in self.in_part:
            return replace(finding, certainty=Certainty.SUPPORTED)
        return finding

    def _doubt(self, query: Query, grid: Grid) -> str:
        if self.mixed and query.kind.startswith("gpu_"):
            return "which of the GPUs measured are the run's isn't told"
        if self.untraced and query.kind.startswith(TRACED):
            return "the tracer was attached to no process of the run"
        if query.kind.startswith(OF_PROCESSES) or query.rollup_how in ("count", "onset"):
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


def _instead(finding: Finding, missing: Iterable[str], collect: Iterable[str] = ()) -> Finding:
    """That it can't be told."""
    return replace(unknown(missing, collect), family=finding.family, id=finding.id, title=finding.title)


def _stale_at_end(grid: Grid) -> bool:
    """Whether no series was sampled for so long before the end that its last value no longer counts."""
    seen = np.any(~np.isnan(grid.values), axis=0)
    places = np.flatnonzero(seen)
    return not len(places) or (len(seen) - 1 - int(places[-1])) * grid.step >= coverage.stale(seen, grid.step)


def listed(names: Iterable[str], most: int = 8) -> str:
    """Names as text, the first few of many."""
    known = list(names)
    return ", ".join(known[:most]) + (f" and {len(known) - most} more" if len(known) > most else "")
