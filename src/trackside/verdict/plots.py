"""The metrics behind a finding, reduced to as many points as a line of text can show."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trackside.catalog.metrics import METRICS
from trackside.evidence import Grid, Store
from trackside.finding import Finding, PlottedMetric
from trackside.query import Query, Rollup

MAX_CURVES = 3
"""Curves of one finding."""
MAX_POINTS = 60
"""Points of one curve: it is shown in one line."""
_LEVELS: dict[str, Rollup] = {"gauge": "avg", "counter": "increase", "sticky": "last", "flags": "last"}


def curves(store: Store, finding: Finding) -> tuple[PlottedMetric, ...]:
    """The first few metrics that the finding's claims cite, over the whole run."""
    plotted = []
    for query in _cited_metrics(finding):
        answer = store.ask(query)
        if isinstance(answer, Grid):
            plotted.append(_curve(answer))
        if len(plotted) == MAX_CURVES:
            break
    return tuple(plotted)


def _cited_metrics(finding: Finding) -> Iterator[Query]:
    """Each metric that the claims cite, once, over the whole run. Times, flags and states are not plotted."""
    queries = set()
    for cite in (cite for claim in finding.shows for cite in claim.cites if cite.plane == "metric"):
        if cite.query is None:
            continue
        metric = METRICS[cite.query.kind]
        query = Query("metric", cite.query.kind, cite.query.filters).over("run", _LEVELS[metric.kind])
        if query not in queries and metric.unit not in ("time", "flags", "code", "bool", "state"):
            queries.add(query)
            yield query


def _curve(grid: Grid) -> PlottedMetric:
    window_groups = np.array_split(np.arange(len(grid.times)), min(MAX_POINTS, len(grid.times)))
    values = []
    for window_group in window_groups:
        values_in_part = grid.values[:, window_group]
        values_in_part = values_in_part[~np.isnan(values_in_part)]
        values.append(float(np.median(values_in_part)) if len(values_in_part) else None)
    window = float(grid.times[0]) - grid.step, float(grid.times[-1])
    labels = tuple((name, str(value)) for name, value in grid.query.filters)
    return PlottedMetric(grid.query.kind, labels, grid.unit, len(grid), window, tuple(values), str(grid.query))
