"""The curves behind a finding, as few points as a line of text can show: what a person would look at first."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trackside.catalog.metrics import METRICS
from trackside.evidence import Grid, Store
from trackside.finding import Curve, Finding
from trackside.query import Query, Rollup

MOST = 3
"""Curves of one finding."""
POINTS = 60
"""Points of one curve: it is one line."""
_LEVELS: dict[str, Rollup] = {"gauge": "avg", "counter": "increase", "sticky": "last", "flags": "last"}


def curves(store: Store, finding: Finding) -> tuple[Curve, ...]:
    """The first few metrics that its claims cite, over the whole run."""
    found = []
    for query in _cited(finding):
        answer = store.ask(query)
        if isinstance(answer, Grid):
            found.append(_curve(answer))
        if len(found) == MOST:
            break
    return tuple(found)


def _cited(finding: Finding) -> Iterator[Query]:
    """What its claims cite, once each, asked over the run. Times, flags and states make no curve."""
    seen = set()
    for cite in (cite for claim in finding.shows for cite in claim.cites if cite.plane == "metric"):
        if cite.query is None:
            continue
        metric = METRICS[cite.query.kind]
        whole = Query("metric", cite.query.kind, cite.query.filters).over("run", _LEVELS[metric.kind])
        if whole not in seen and metric.unit not in ("time", "flags", "code", "bool", "state"):
            seen.add(whole)
            yield whole


def _curve(grid: Grid) -> Curve:
    parts = np.array_split(np.arange(len(grid.times)), min(POINTS, len(grid.times)))
    values = []
    for part in parts:
        known = grid.values[:, part]
        known = known[~np.isnan(known)]
        values.append(float(np.median(known)) if len(known) else None)
    window = float(grid.times[0]) - grid.step, float(grid.times[-1])
    labels = tuple((name, str(value)) for name, value in grid.query.filters)
    return Curve(grid.query.kind, labels, grid.unit, len(grid), window, tuple(values), str(grid.query))
