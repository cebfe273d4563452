"""Every GPU of the run over time, one row each: who works, who waits, who is hot, who is slow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from trackside.catalog.natural import natural
from trackside.evidence import Grid
from trackside.facts.fact import Facts
from trackside.facts.gpu.activity import Matrix, gpus_of, nan_median
from trackside.facts.gpus import aligned, ranks_at
from trackside.finding import Verdict
from trackside.query import Query, metric
from trackside.show.charts import reduce
from trackside.show.charts.chart import Chart, Drawn, Raster
from trackside.show.charts.heat_map import Map, heat_map
from trackside.show.charts.phases import culprits, first_cause, sampled, titled
from trackside.show.wording import word

CELLS = 900_000
"""Bytes of all rasters together: with 512 GPUs, a day in five-minute windows of six metrics."""
OUTSTANDING, CLEARLY = 0.15, 0.15
"""Share of the range by which culprits differ from the others where they stand out, and by how much more they must in
another metric for that one to be shown first."""
ACTIVE = ("sm", "engine", "utilisation")
"""Layers that tell what a GPU does."""
LISTED = 50
"""Rows of the table."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One metric to look at. ``how`` says which of a window's readings a cell shows. ``scale``: to the unit that is
    shown. ``whole``: the range of its colours, where it isn't what was measured."""

    key: str
    title: str
    query: Query
    how: Literal["avg", "max"]
    unit: str
    scale: float = 1.0
    whole: tuple[float, float] | None = None
    form: str = ".2f"


def _layer(key: str, title: str, name: str, how: Literal["avg", "max"], unit: str = "", **more: Any) -> Layer:
    return Layer(key, title, metric(name).over("run", how), how, unit, **more)


LAYERS = (
    _layer("sm", "SM activity", "gpu_sm_active_ratio", "avg", whole=(0.0, 1.0)),
    _layer("engine", "engine activity", "gpu_engine_active_ratio", "avg", whole=(0.0, 1.0)),
    _layer("utilisation", "utilisation (NVML)", "gpu_utilization_ratio", "avg", whole=(0.0, 1.0)),
    _layer("memory", "memory used", "gpu_memory_used_bytes", "max", "GiB", scale=2.0**-30, form=".1f"),
    _layer("temperature", "temperature", "gpu_temperature_celsius", "max", "\N{DEGREE SIGN}C", form=".0f"),
    _layer("clock", "SM clock", "gpu_sm_clock_hertz", "avg", "MHz", scale=1e-6, form=",.0f"),
    _layer("power", "power", "gpu_power_watts", "avg", "W", form=",.0f"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """A layer's values, (rows, columns), in the unit that is shown."""

    layer: Layer
    values: Matrix

    @property
    def bounds(self) -> tuple[float, float]:
        """What the least and the most colour stand for."""
        if self.layer.whole is not None:
            return self.layer.whole
        low, high = float(np.nanmin(self.values)), float(np.nanmax(self.values))
        if self.layer.key == "memory":
            low = 0.0
        return (low, high) if high > low else (low - 0.5, low + 0.5)

    @property
    def raster(self) -> Raster:
        """A byte a cell."""
        (low, high), layer = self.bounds, self.layer
        known = np.nan_to_num((self.values - low) / (high - low))
        cells = np.where(np.isnan(self.values), 255, np.clip(np.rint(known * 254), 0, 254)).astype(np.uint8)
        rows, columns = cells.shape
        return Raster(layer.title, columns, rows, cells.tobytes(), low, high, layer.unit, layer.form)

    def told(self, value: float) -> str:
        """A value as text, with its unit."""
        return "not sampled" if np.isnan(value) else f"{value:{self.layer.form}} {self.layer.unit}".strip()


def draw(verdict: Verdict, facts: Facts) -> Drawn | None:
    """None where no GPU was sampled."""
    grids = [(layer, grid) for layer in LAYERS if (grid := sampled(facts, layer.query)) is not None]
    if any(layer.key == "engine" for layer, _ in grids):  # the same, measured worse
        grids = [(layer, grid) for layer, grid in grids if layer.key != "utilisation"]
    gpus = _rows(verdict, [grid for _, grid in grids])
    if not gpus:
        return None
    times = grids[0][1].times
    most = max(1, CELLS // (len(gpus) * len(grids)))
    seen = []
    for layer, grid in grids:
        values = aligned(grid, gpus, times, gpus_of(grid, verdict.run)) * layer.scale
        if not np.isnan(values).all():
            seen.append(Seen(layer, reduce.cells(values, most, layer.how)))
    if not seen:
        return None
    columns = seen[0].values.shape[1]
    step = grids[0][1].step * -(-len(times) // columns)
    start = float(times[0]) - grids[0][1].step
    marked = tuple(gpus.index(gpu) for gpu in culprits(verdict, gpus))
    ranks = dict(zip(verdict.run.gpus, map(str, ranks_at(verdict.run, verdict.run.gpus)), strict=False))
    cause = first_cause(verdict, facts)
    begun = 0 if cause is None else max(0, int((cause[0] - start) // step))
    drawn = Map(
        tuple(titled(gpu) for gpu in gpus), tuple(ranks.get(gpu, "") for gpu in gpus), marked,
        {each.layer.key: each.raster for each in seen}, start, step, columns, None if cause is None else cause[0],
        _first(seen, verdict, marked, begun),
    )  # fmt: skip
    return Drawn(
        heat_map(drawn),
        _caption(seen, drawn),
        ("", "GPU", "rank", *(f"{each.layer.title}, median over time" for each in seen)),
        _table(seen, drawn),
        drawn.rasters,
    )


def _rows(verdict: Verdict, grids: Sequence[Grid]) -> list[str]:
    """The run's GPUs in rank order, then any others that were sampled with it, node by node."""
    run = verdict.run
    sampled = {gpu for grid in grids for gpu in gpus_of(grid, run)} - {""}
    own = [gpu for gpu in run.gpus if gpu in sampled]
    return own + sorted(sampled.difference(own), key=natural)


def _first(seen: Sequence[Seen], verdict: Verdict, marked: Sequence[int], begun: int) -> str:
    """The layer to begin with: the first that the finding cites of its culprits; else, of those that it cites, or of
    those that tell activity, the one that tells most."""
    at_culprits, cited = _cited(verdict)
    held = [each.layer.key for each in seen]
    some = [each for each in seen if each.layer.key in cited] or [each for each in seen if each.layer.key in ACTIVE]
    return next((key for key in at_culprits if key in held), None) or _telling(some or seen, marked, begun)


def _cited(verdict: Verdict) -> tuple[list[str], list[str]]:
    """The layers that the primary finding cites of the GPUs that it names, and all that it cites, in its order."""
    primary, layers = verdict.primary, {layer.query.kind: layer.key for layer in LAYERS}
    at_culprits, every = [], []
    for cite in (cite for claim in primary.shows for cite in claim.cites):
        query = cite.query
        if query is not None and query.subject == "metric" and query.kind in layers:
            every.append(layers[query.kind])
            of = dict(query.filters)
            if f"{of.get('node') or ''}:{of.get('gpu') or ''}" in primary.gpus:
                at_culprits.append(layers[query.kind])
    return at_culprits, every


def _telling(seen: Sequence[Seen], marked: Sequence[int], begun: int) -> str:
    """The layer in which the culprits stand out from the others since it began, in that column, if so; where there are
    none in particular, the one in which all changed then."""
    best, most = seen[0].layer.key, OUTSTANDING
    rows = np.zeros(len(seen[0].values), dtype=bool)
    rows[list(marked)] = True
    for each in seen:
        low, high = each.bounds
        late = each.values[:, begun:]
        these, those = (late[rows], late[~rows]) if marked else (late, each.values[:, :begun])
        away = abs(float(nan_median(these) - nan_median(those))) / (high - low)  # NaN where either is empty
        if away > most:
            best, most = each.layer.key, away + CLEARLY
    return best


# -- in words


def _caption(seen: Sequence[Seen], drawn: Map) -> str:
    means = [each.layer.title for each in seen if each.layer.how == "avg"]
    peaks = [each.layer.title for each in seen if each.layer.how == "max"]
    told = f"{word(len(drawn.names), 'GPUs')} over time, a row each; a cell is {word(drawn.step, 's')}."
    if means:
        told += f" Of {_listed(means)} a cell shows the mean"
        told += f", of {_listed(peaks)} the highest reading." if peaks else "."
    elif peaks:
        told += f" Of {_listed(peaks)} a cell shows the highest reading."
    told += " Blank: not sampled."
    if drawn.marked:
        names = word(tuple(drawn.names[row] for row in drawn.marked))
        told += f" Marked: {names}, the culprit{'' if len(drawn.marked) == 1 else 's'}."
    return told


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def _table(seen: Sequence[Seen], drawn: Map) -> list[tuple[str, ...]]:
    """All GPUs where they are few; else the culprits, those farthest from the others in anything, and the median."""
    middles = [nan_median(each.values, axis=1) for each in seen]
    count, picked = len(drawn.names), list(drawn.marked[: LISTED - 2])
    others: list[int] = [place for place in range(count) if place not in set(picked)]
    if count >= LISTED:
        away = _away(middles, count)
        others.sort(key=lambda place: -away[place])
    rows = [
        ("culprit" if place in drawn.marked else "", drawn.names[place], drawn.ranks[place],
         *(each.told(float(values[place])) for each, values in zip(seen, middles, strict=True)))
        for place in [*picked, *others[: LISTED - 1 - len(picked)]]
    ]  # fmt: skip
    whole = (each.told(float(nan_median(values))) for each, values in zip(seen, middles, strict=True))
    return [("", f"all {count:,}, median", "", *whole), *rows]


def _away(middles: Sequence[Matrix], count: int) -> Matrix:
    """(rows,) How far each is from the others, as a share of the range, in what it is farthest in."""
    away = np.zeros(count)
    for values in middles:
        known = values[~np.isnan(values)]
        width = float(np.ptp(known)) if len(known) else 0.0
        if width > 0:
            away = np.fmax(away, np.abs(values - np.median(known)) / width)
    return away


CHART = Chart("ranks", "Every GPU over time", 20, draw, tuple(layer.query for layer in LAYERS))
