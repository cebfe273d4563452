"""Heat map of every GPU of the run over time, one row each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from trackside.catalog.natural import natural_key
from trackside.evidence import Grid
from trackside.facts.fact import Facts
from trackside.facts.gpu.activity import Matrix, gpus_of, nan_median
from trackside.facts.gpus import align, ranks_of_gpus
from trackside.finding import Verdict
from trackside.model import Run
from trackside.query import Query, metric
from trackside.show.charts import reduce
from trackside.show.charts.chart import Chart, Drawing, Raster
from trackside.show.charts.heat_map import HeatMap, heat_map
from trackside.show.charts.memory import CAPACITY, capacity_bytes
from trackside.show.charts.phases import culprits, display_name, finding_onset, plottable_samples
from trackside.wording import moment, word

MAX_CELL_BYTES = 900_000
"""Bytes of all rasters together: with 512 GPUs, a day in five-minute windows of six metrics."""
MIN_DIFFERENCE_RATIO, MIN_ADVANTAGE_RATIO = 0.15, 0.15
"""Minimum difference of culprits from the others, as a share of the range, to count as distinct; and how much more
distinct another metric must be to be shown first."""
ACTIVE = ("sm", "engine", "utilization")
"""Layers that show GPU activity."""
MAX_TABLE_ROWS = 50
"""Rows of the table."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One metric that can be shown. ``aggregate``: which sample of a window a cell shows. ``scale``: factor to the
    display unit. ``color_range``: the range of its colors; None: the measured range. ``form``: d3-format of a value."""

    key: str
    title: str
    query: Query
    aggregate: Literal["avg", "max"]
    unit: str
    scale: float = 1.0
    color_range: tuple[float, float] | None = None
    form: str = ".2f"


def _layer(key: str, title: str, name: str, aggregate: Literal["avg", "max"], unit: str = "", **more: Any) -> Layer:
    return Layer(key, title, metric(name).over("run", aggregate), aggregate, unit, **more)


LAYERS = (
    _layer("sm", "SM activity", "gpu_sm_active_ratio", "avg", color_range=(0.0, 1.0), form=".0%"),
    _layer("engine", "engine activity", "gpu_engine_active_ratio", "avg", color_range=(0.0, 1.0), form=".0%"),
    _layer("utilization", "utilization (NVML)", "gpu_utilization_ratio", "avg", color_range=(0.0, 1.0), form=".0%"),
    _layer("memory", "memory used", "gpu_memory_used_bytes", "max", "GiB", scale=2.0**-30, form=".1f"),
    _layer("temperature", "temperature", "gpu_temperature_celsius", "max", "\N{DEGREE SIGN}C", form=".0f"),
    _layer("clock", "SM clock", "gpu_sm_clock_hertz", "avg", "MHz", scale=1e-6, form=",.0f"),
    _layer("power", "power", "gpu_power_watts", "avg", "W", form=",.0f"),
)


@dataclass(frozen=True, slots=True, eq=False)
class LayerValues:
    """The values of a layer, (rows, columns), in its display unit."""

    layer: Layer
    values: Matrix
    capacity: float | None = None
    """For memory: the capacity of the GPU, where the color scale ends."""

    @property
    def bounds(self) -> tuple[float, float]:
        """The values of the lightest and the darkest color."""
        if self.layer.color_range is not None:
            return self.layer.color_range
        low, high = float(np.nanmin(self.values)), float(np.nanmax(self.values))
        if self.layer.key == "memory":
            low, high = 0.0, max(high, self.capacity or 0.0)
        return (low, high) if high > low else (low - 0.5, low + 0.5)

    @property
    def raster(self) -> Raster:
        """The values as one byte per cell."""
        (low, high), layer = self.bounds, self.layer
        shares = np.nan_to_num((self.values - low) / (high - low))
        cells = np.where(np.isnan(self.values), 255, np.clip(np.rint(shares * 254), 0, 254)).astype(np.uint8)
        rows, columns = cells.shape
        return Raster(layer.title, columns, rows, cells.tobytes(), low, high, layer.unit, layer.form)

    def format_value(self, value: float) -> str:
        """A value as text, with its unit."""
        return "not sampled" if np.isnan(value) else f"{value:{self.layer.form}} {self.layer.unit}".strip()


def draw(verdict: Verdict, facts: Facts) -> Drawing | None:
    """The chart; None if no GPU was sampled."""
    grids = [(layer, grid) for layer in LAYERS if (grid := plottable_samples(facts, layer.query)) is not None]
    if any(layer.key == "engine" for layer, _ in grids):  # a less precise measure of the same
        grids = [(layer, grid) for layer, grid in grids if layer.key != "utilization"]
    gpus = _rows(verdict, [grid for _, grid in grids])
    if not gpus:
        return None
    times = grids[0][1].times
    max_columns = max(1, MAX_CELL_BYTES // (len(gpus) * len(grids)))
    layer_values = []
    for layer, grid in grids:
        values = align(grid, gpus, times, gpus_of(grid, verdict.run)) * layer.scale
        if not np.isnan(values).all():
            size_bytes = capacity_bytes(facts, grid) if layer.key == "memory" else None
            capacity = None if size_bytes is None else size_bytes * layer.scale
            layer_values.append(
                LayerValues(layer, reduce.downsample_cells(values, max_columns, layer.aggregate), capacity)
            )
    if not layer_values:
        return None
    columns = layer_values[0].values.shape[1]
    step = grids[0][1].step * -(-len(times) // columns)
    start = float(times[0]) - grids[0][1].step
    marked = tuple(gpus.index(gpu) for gpu in culprits(verdict, gpus))
    ranks = dict(zip(verdict.run.gpus, map(str, ranks_of_gpus(verdict.run, verdict.run.gpus)), strict=False))
    onset = finding_onset(verdict, facts)
    onset_column = 0 if onset is None else max(0, int((onset[0] - start) // step))
    drawn = HeatMap(
        tuple(display_name(gpu) for gpu in gpus), tuple(ranks.get(gpu, "") for gpu in gpus), marked,
        {entry.layer.key: entry.raster for entry in layer_values}, start, step, columns,
        onset,
        _first(layer_values, verdict, marked, onset_column),
        verdict.run.has_time_zone,
    )  # fmt: skip
    return Drawing(
        heat_map(drawn),
        _caption(layer_values, drawn, verdict.run),
        ("", "GPU", "rank", *(f"{entry.layer.title}, median over time" for entry in layer_values)),
        _table(layer_values, drawn),
        drawn.rasters,
    )


def _rows(verdict: Verdict, grids: Sequence[Grid]) -> list[str]:
    """The run's GPUs in rank order, then any others that were sampled with it, node by node."""
    run = verdict.run
    sampled = {gpu for grid in grids for gpu in gpus_of(grid, run)} - {""}
    sampled_run_gpus = [gpu for gpu in run.gpus if gpu in sampled]
    return sampled_run_gpus + sorted(sampled.difference(sampled_run_gpus), key=natural_key)


def _first(layer_values: Sequence[LayerValues], verdict: Verdict, marked: Sequence[int], onset_column: int) -> str:
    """The layer to show first: the first that the finding cites for its culprits; otherwise the most distinct of those
    that it cites, or of the activity layers."""
    at_culprits, cited = _cited_layers(verdict)
    keys = [entry.layer.key for entry in layer_values]
    candidates = [entry for entry in layer_values if entry.layer.key in cited] or [
        entry for entry in layer_values if entry.layer.key in ACTIVE
    ]
    return next((key for key in at_culprits if key in keys), None) or _most_distinct(
        candidates or layer_values, marked, onset_column
    )


def _cited_layers(verdict: Verdict) -> tuple[list[str], list[str]]:
    """(layers that the primary finding cites for the GPUs it names, all layers that it cites), in order."""
    primary, layers = verdict.primary, {layer.query.kind: layer.key for layer in LAYERS}
    at_culprits, every = [], []
    for cite in (cite for claim in primary.shows for cite in claim.cites):
        query = cite.query
        if query is not None and query.subject == "metric" and query.kind in layers:
            every.append(layers[query.kind])
            filters = dict(query.filters)
            if f"{filters.get('node') or ''}:{filters.get('gpu') or ''}" in primary.gpus:
                at_culprits.append(layers[query.kind])
    return at_culprits, every


def _most_distinct(layer_values: Sequence[LayerValues], marked: Sequence[int], onset_column: int) -> str:
    """The layer in which the culprits differ most from the others after the onset; without culprits, the layer in
    which all GPUs changed most at the onset. The first layer if no difference is large."""
    best, threshold = layer_values[0].layer.key, MIN_DIFFERENCE_RATIO
    rows = np.zeros(len(layer_values[0].values), dtype=bool)
    rows[list(marked)] = True
    for entry in layer_values:
        low, high = entry.bounds
        late = entry.values[:, onset_column:]
        these, those = (late[rows], late[~rows]) if marked else (late, entry.values[:, :onset_column])
        difference = abs(float(nan_median(these) - nan_median(those))) / (high - low)  # NaN where either is empty
        if difference > threshold:
            best, threshold = entry.layer.key, difference + MIN_ADVANTAGE_RATIO
    return best


# -- in words


def _caption(layer_values: Sequence[LayerValues], drawn: HeatMap, run: Run) -> str:
    means = [entry.layer.title for entry in layer_values if entry.layer.aggregate == "avg"]
    peaks = [entry.layer.title for entry in layer_values if entry.layer.aggregate == "max"]
    text = f"{word(len(drawn.names), 'GPUs')}, one row each; a cell covers {word(drawn.step, 's')}: "
    if means:
        text += "its mean" + (f"; for {_name_list(peaks)}, its maximum." if peaks else ".")
    else:
        text += "its maximum."
    if len(run.attempts) > 1 and run.start is not None:
        started = moment(run.start, run.has_time_zone)
        text += f" Blank: not sampled, or before attempt {run.attempts[-1].number}, which started at {started}."
    else:
        text += " Blank: not sampled."
    if drawn.marked:
        names = word(tuple(drawn.names[row] for row in drawn.marked))
        text += f" Marked: {names}, named by the verdict."
    return text


def _name_list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def _table(layer_values: Sequence[LayerValues], drawn: HeatMap) -> list[tuple[str, ...]]:
    """The median and a row per GPU; if there are many, only the culprits and the GPUs that differ most."""
    middles = [nan_median(entry.values, axis=1) for entry in layer_values]
    count, picked = len(drawn.names), list(drawn.marked[: MAX_TABLE_ROWS - 2])
    others: list[int] = [index for index in range(count) if index not in set(picked)]
    if count >= MAX_TABLE_ROWS:
        distances = _distances(middles, count)
        others.sort(key=lambda index: -distances[index])
    rows = [
        ("marked" if index in drawn.marked else "", drawn.names[index], drawn.ranks[index],
         *(entry.format_value(float(values[index])) for entry, values in zip(layer_values, middles, strict=True)))
        for index in [*picked, *others[: MAX_TABLE_ROWS - 1 - len(picked)]]
    ]  # fmt: skip
    medians = (
        entry.format_value(float(nan_median(values))) for entry, values in zip(layer_values, middles, strict=True)
    )
    return [("", f"all {count:,}, median", "", *medians), *rows]


def _distances(middles: Sequence[Matrix], count: int) -> Matrix:
    """(rows,) The largest distance of each GPU from the median in any layer, as a share of the layer's range."""
    distances = np.zeros(count)
    for values in middles:
        sampled = values[~np.isnan(values)]
        width = float(np.ptp(sampled)) if len(sampled) else 0.0
        if width > 0:
            distances = np.fmax(distances, np.abs(values - np.median(sampled)) / width)
    return distances


CHART = Chart("ranks", "Every GPU over time", 20, draw, (*(layer.query for layer in LAYERS), *CAPACITY))
