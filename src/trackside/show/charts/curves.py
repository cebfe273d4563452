"""A metric of all GPUs over the run: a line for the median, a band from minimum to maximum, a line per GPU at fault."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trackside.evidence import Grid
from trackside.facts.fact import Facts
from trackside.facts.gpu.activity import Matrix
from trackside.model import TimeRange
from trackside.show.charts import reduce
from trackside.show.charts.phases import display_name, phases
from trackside.show.charts.time_axis import (
    PHASES,
    TOP,
    Json,
    at_ends,
    at_x,
    figure,
    label,
    line,
    mark,
    moment_marks,
    panel,
    readout,
    signal,
    table,
    text_of,
    title_mark,
)

HEAD = 22 + PHASES
"""Pixels between the plot and its heading above."""
CurveColumns = Mapping[str, Matrix]


@dataclass(frozen=True, slots=True)
class CurveStyle:
    """One line of a chart: the column of its values, its title and its style. The columns of its band are
    ``..._low`` and ``..._high``."""

    key: str
    title: str
    color: str
    dash: tuple[int, ...] = ()


def columns(grid: Grid, bands: Mapping[str, reduce.Band], culprit_values: Iterable[Matrix]) -> dict[str, Matrix]:
    """The columns of the dataset, a row per window of ``grid``: median, minimum and maximum of each band; the values
    of each culprit (``own0``, ...); ``alone``: points of the first band without neighbors."""
    data = {"t": np.round(reduce.times_of(grid.times - grid.step / 2) * 1000)}
    for key, band in bands.items():
        reduced = reduce.downsample_band(band)
        data |= {key: reduced.median}
        data |= {f"{key}_low": reduced.low, f"{key}_high": reduced.high} if len(grid) > 1 else {}
    data |= {f"own{index}": reduce.downsample_line(values) for index, values in enumerate(culprit_values)}
    data["alone"] = reduce.isolated_flags(data[next(iter(bands))])
    return data


def culprit_styles(gpus: Iterable[str]) -> list[CurveStyle]:
    """The lines of the culprits in the columns of :func:`columns`."""
    return [CurveStyle(f"own{index}", display_name(gpu), "bad", (1, 2)) for index, gpu in enumerate(gpus)]


def figure_of(
    title: str,
    curves: Sequence[CurveStyle],
    data: CurveColumns,
    facts: Facts,
    *,
    window: TimeRange,
    height: int,
    top: float,
    step: float,
    form: str,
    unit: str = "",
    background: Sequence[Json] = (),
    ends: Sequence[tuple[str, float, str]] = (),
    moment: tuple[float, str] | None = None,
) -> Json:
    """The Vega specification. ``top``: the value at the upper edge; ``step``: seconds of a window; ``form``: d3-format
    of the value under the cursor; ``background``: marks behind the lines; ``ends``: more labels at the right edge
    (text, value, color); ``moment``: a time to mark, and its label."""
    marks = [*background]
    for curve in curves:
        if f"{curve.key}_low" in data:
            marks.append(between(f"{curve.key}_low", f"{curve.key}_high", curve.color, 0.15))
        marks += [line("curve", curve.key, curve.color, dash=curve.dash, wide=2), _dots(curve)]
    end_labels = [*((curve.title, reduce.end_value(data[curve.key]), curve.color) for curve in curves), *ends]
    return figure(
        height,
        window,
        [
            *_bands(facts, height, None if moment is None else moment[0]),
            title_mark(title, -HEAD),
            panel(0, height, marks, (0, top), form=".0%" if form == ".0%" else ".4~g"),
            *at_ends([(text, height * (1 - value / top), color) for text, value, color in end_labels], height),
            *(moment_marks(*moment, height, "bad", y=-5 - PHASES) if moment else []),
            readout(_cursor_text(curves, data["t"], step, form) + (f" + {text_of(unit)}" if unit else ""), -HEAD),
        ],
        data=[table("curve", data, 4)],
        top=TOP + PHASES,
        zoned=facts.run.has_time_zone,
    )


def between(low: str, high: str, color: str, opacity: float) -> Json:
    """The band between two columns."""
    edges = {"y": {"scale": "y", "field": high}, "y2": {"scale": "y", "field": low}}
    is_sampled = signal(f"isValid(datum.{low}) && isValid(datum.{high})")
    style = {"fill": signal(color), "fillOpacity": opacity, "defined": is_sampled}
    return mark("area", {"x": at_x("t"), **edges, **style}, "curve")


def _dots(curve: CurveStyle) -> Json:
    """Dots for points without neighbors, through which no line is drawn."""
    shown = signal(f"datum.alone && isValid(datum.{curve.key}) ? 1 : 0")
    position = {"x": at_x("t"), "y": {"scale": "y", "field": curve.key}}
    return mark("symbol", {**position, "fill": signal(curve.color), "size": 26, "opacity": shown}, "curve")


def _bands(facts: Facts, height: float, marked: float | None) -> list[Json]:
    """The phases other than training, shaded, each with its name above the plot if there is room; the name starts
    to the right of the marked moment's line if that would cross it."""
    bands = []
    for phase in phases(facts):
        if phase.training:
            continue
        left, right = (f"clamp(scale('x', {edge * 1000!r}), 0, width)" for edge in (phase.start, phase.end))
        box = {"x": signal(left), "x2": signal(right), "y": -PHASES, "y2": height, "fill": signal("band")}
        bands.append(mark("rect", box))
        name_px = 6.5 * len(phase.name) + 8
        start = left
        if marked is not None:
            line_x = f"scale('x', {marked * 1000!r})"
            start = f"(inrange({line_x}, [{left} - 2, {left} + {name_px}]) ? {line_x} : {left})"
        text = signal(f"{right} - {start} > {name_px} ? {text_of(phase.name)} : ''")
        bands.append(label(text, signal(f"{start} + 4"), -4, opacity=0.85, fontSize=11))
    return bands


def _cursor_text(curves: Iterable[CurveStyle], middles: Matrix, window_s: float, form: str) -> str:
    """Vega expression: the title and value of each curve in the window under the cursor. ``middles``: the middles of
    the windows, milliseconds; ``window_s``: the length of a window, used if there is only one."""
    step = float(middles[1] - middles[0]) if len(middles) > 1 else window_s * 1000
    index = f"clamp(ceil((moment - {float(middles[0]) + step / 2!r}) / {step!r}), 0, {len(middles) - 1})"
    parts = (f"{text_of(curve.title + ' ')} + format(data('curve')[{index}].{curve.key}, '{form}')" for curve in curves)
    return " + '   ' + ".join(parts)
