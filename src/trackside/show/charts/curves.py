"""A metric of all GPUs over the run: their middle and the room that they take, the culprits by themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trackside.evidence import Grid
from trackside.facts.fact import Facts
from trackside.facts.gpu.activity import Matrix
from trackside.show.charts import reduce
from trackside.show.charts.phases import phases, titled
from trackside.show.charts.time_axis import (
    PHASES,
    TOP,
    Json,
    Span,
    at_ends,
    at_x,
    figure,
    heading,
    label,
    line,
    mark,
    named_moment,
    panel,
    readout,
    signal,
    table,
    text_of,
)

HEAD = 22 + PHASES
"""Pixels from the plot up to its heading."""
Columns = Mapping[str, Matrix]


@dataclass(frozen=True, slots=True)
class Curve:
    """One line: its column, and how it is called and drawn. The room round it has the columns ``..._low`` and
    ``..._high``."""

    key: str
    title: str
    colour: str
    dash: tuple[int, ...] = ()


def columns(grid: Grid, levels: Mapping[str, reduce.Level], own: Iterable[Matrix]) -> dict[str, Matrix]:
    """A data set of the windows of ``grid``: of each level its middle, least and most; of each of the culprits
    its own; ``alone``: where a point of the first level has none on either side."""
    found = {"t": np.round(reduce.times_of(grid.times - grid.step / 2) * 1000)}
    for key, whole in levels.items():
        fewer = reduce.level(whole)
        found |= {key: fewer.middle}
        found |= {f"{key}_low": fewer.low, f"{key}_high": fewer.high} if len(grid) > 1 else {}
    found |= {f"own{place}": reduce.line(values) for place, values in enumerate(own)}
    found["alone"] = reduce.alone(found[next(iter(levels))])
    return found


def of_culprits(gpus: Iterable[str]) -> list[Curve]:
    """The lines of those that :func:`columns` has by themselves."""
    return [Curve(f"own{place}", titled(gpu), "bad", (1, 2)) for place, gpu in enumerate(gpus)]


def drawn(
    title: str,
    curves: Sequence[Curve],
    data: Columns,
    facts: Facts,
    *,
    window: Span,
    height: int,
    top: float,
    step: float,
    form: str,
    unit: str = "",
    behind: Sequence[Json] = (),
    ends: Sequence[tuple[str, float, str]] = (),
    moment: tuple[float, str] | None = None,
) -> Json:
    """The chart. ``top``: the value at the upper edge; ``step``: seconds of a window; ``form``: of a value under
    the cursor (d3-format); ``behind``: marks behind the lines; ``ends``: more labels at the right edge (text, value,
    colour); ``moment``: to be marked, and its name."""
    marks = [*behind]
    for each in curves:
        if f"{each.key}_low" in data:
            marks.append(between(f"{each.key}_low", f"{each.key}_high", each.colour, 0.15))
        marks += [line("curve", each.key, each.colour, dash=each.dash, wide=2), _dots(each)]
    named = [*((each.title, reduce.settled(data[each.key]), each.colour) for each in curves), *ends]
    return figure(
        height,
        window,
        [
            *_bands(facts, height),
            heading(title, -HEAD),
            panel(0, height, marks, (0, top)),
            *at_ends([(text, height * (1 - value / top), colour) for text, value, colour in named], height),
            *(named_moment(*moment, height, "bad", y=-5 - PHASES) if moment else []),
            readout(_at_cursor(curves, data["t"], step, form) + (f" + {text_of(unit)}" if unit else ""), -HEAD),
        ],
        data=[table("curve", data, 4)],
        top=TOP + PHASES,
    )


def between(low: str, high: str, colour: str, opacity: float) -> Json:
    """The room between two columns."""
    edges = {"y": {"scale": "y", "field": high}, "y2": {"scale": "y", "field": low}}
    known = signal(f"isValid(datum.{low}) && isValid(datum.{high})")
    look = {"fill": signal(colour), "fillOpacity": opacity, "defined": known}
    return mark("area", {"x": at_x("t"), **edges, **look}, "curve")


def _dots(curve: Curve) -> Json:
    """Dots where points have none on either side, so that no line goes through them."""
    shown = signal(f"datum.alone && isValid(datum.{curve.key}) ? 1 : 0")
    place = {"x": at_x("t"), "y": {"scale": "y", "field": curve.key}}
    return mark("symbol", {**place, "fill": signal(curve.colour), "size": 26, "opacity": shown}, "curve")


def _bands(facts: Facts, height: float) -> list[Json]:
    """The phases that are no training, shaded, each with its name above the plot where there is room."""
    found = []
    for phase in phases(facts):
        if phase.training:
            continue
        left, right = (f"clamp(scale('x', {edge * 1000!r}), 0, width)" for edge in (phase.start, phase.end))
        box = {"x": signal(left), "x2": signal(right), "y": -PHASES, "y2": height, "fill": signal("band")}
        found.append(mark("rect", box))
        text = signal(f"{right} - {left} > {6 * len(phase.name) + 8} ? {text_of(phase.name)} : ''")
        found.append(label(text, signal(f"{left} + 4"), -4, opacity=0.8, fontSize=10))
    return found


def _at_cursor(curves: Iterable[Curve], middles: Matrix, window_s: float, form: str) -> str:
    """Expression: what each is in the window under the cursor, after its title. ``middles``: of the windows,
    milliseconds; ``window_s``: their length where there is but one."""
    step = float(middles[1] - middles[0]) if len(middles) > 1 else window_s * 1000
    place = f"clamp(ceil((moment - {float(middles[0]) + step / 2!r}) / {step!r}), 0, {len(middles) - 1})"
    told = (f"{text_of(each.title + ' ')} + format(data('curve')[{place}].{each.key}, '{form}')" for each in curves)
    return " + '   ' + ".join(told)
