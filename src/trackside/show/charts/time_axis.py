"""What charts over time share: the axis, zoom and cursor, panels, and inline data."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trackside.show.charts.chart import LEFT, NARROW_RIGHT, RIGHT, WIDTH

Json = dict[str, Any]
AxisRange = tuple[float, float]
"""From and to: POSIX seconds, or steps."""
TOP, BOTTOM = 38, 42
"""Pixels above and below the plot."""
NARROW_PX = 480
"""Maximum width in pixels of a plot whose heading and value under the cursor do not fit on one line."""
LABEL_GAP_PX = 10
"""Pixels from the end of a line to the middle of a label above or below it."""
PHASES = 16
"""Additional pixels above a plot for the names of its phases."""
_FORMATS = {
    "year": "%Y", "quarter": "%b %Y", "month": "%b %Y", "week": "%-d %b", "date": "%-d %b", "day": "%-d %b",
    "hours": "%H:%M", "minutes": "%H:%M", "seconds": "%H:%M:%S", "milliseconds": ":%S.%L",
}  # fmt: skip
_AXES: Json = {
    "domain": False, "ticks": False, "labelOverlap": "greedy", "labelColor": {"signal": "ink"},
    "titleColor": {"signal": "ink"}, "gridColor": {"signal": "faint"}, "labelFontSize": 12, "titleFontSize": 12,
}  # fmt: skip
"""The style of every axis: figures and faint lines."""
LETTER_PX = 7.9
"""Average width of a bold letter in pixels."""
MAX_CLICK_PX = 4
"""Pixels that the mouse may move during a click without dragging."""


def figure(
    height: int,
    span: AxisRange,
    marks: Sequence[Json],
    *,
    data: Sequence[Json] = (),
    scales: Sequence[Json] = (),
    signals: Sequence[Json] = (),
    axis: Literal["time", "step"] = "time",
    top: int = TOP,
    title: str = "",
    grid: bool = True,
    zoned: bool = True,
) -> Json:
    """A chart: ``marks`` over the scale ``x``, whose domain is the signal ``shown``; in front of them the range that
    the mouse drags, and the cursor. ``zoned``: whether the time zone is known."""
    full = [span[0] * 1000, span[1] * 1000] if axis == "time" else [span[0], span[1]]
    scale: Json = {"name": "x", "type": "utc" if axis == "time" else "linear", "domain": signal("shown")}
    edges = {"x": signal("drag ? drag[0] : 0"), "x2": signal("drag ? drag[1] : 0")}
    dragged = mark("rect", {**edges, "y": 0, "y2": height, "fill": signal("accent"), "fillOpacity": 0.15})
    return {
        "width": WIDTH,
        "height": height,
        "autosize": "none",
        "padding": {"left": LEFT, "right": RIGHT, "top": top, "bottom": BOTTOM},
        "background": signal("ground"),
        "config": {"axis": _AXES},
        "signals": [{"name": "narrow", "value": False}, *_zoom(full), *signals],
        "data": list(data),
        "scales": [{**scale, "range": [0, signal("width")], "zero": False}, *scales],
        "axes": [_x_axis(span, axis, title, grid, zoned)],
        "marks": [*marks, dragged, rule("moment", height, "ink", dash=(2, 2))],
    }


def _zoom(full: list[float]) -> list[Json]:
    """The signals of zoom and cursor. The order matters: a signal sees later ones as they were before the event."""
    min_range = (full[1] - full[0]) / 2000 or 1
    wheel = "pow(1.002, clamp(event.deltaY, -200, 200))"
    pointer = "toNumber(invert('x', clamp(x(), 0, width)))"  # a time scale would give a date
    ends = "[toNumber(invert('x', min(drag[0], drag[1]))), toNumber(invert('x', max(drag[0], drag[1])))]"
    return [
        {"name": "full", "value": full},
        {
            "name": "shown",
            "value": full,
            "on": [
                {"events": "dblclick", "update": "full"},
                {
                    "events": "window:pointerup",
                    "update": f"drag && abs(drag[1] - drag[0]) > {MAX_CLICK_PX} ? {ends} : shown",
                },
                {
                    "events": "wheel![event.ctrlKey || event.metaKey || event.shiftKey]",
                    "update": f"(shown[1] - shown[0]) * {wheel} < {min_range!r} ? shown : "
                    f"[max(full[0], {pointer} - ({pointer} - shown[0]) * {wheel}),"
                    f" min(full[1], {pointer} + (shown[1] - {pointer}) * {wheel})]",
                },
            ],
        },
        {
            "name": "moment",
            "value": None,
            "on": [
                {"events": "pointermove", "update": f"inrange(x(), [0, width]) ? {pointer} : null"},
                {"events": "view:pointerout", "update": "null"},
            ],
        },
        {
            "name": "drag",
            "value": None,
            "on": [
                {"events": "pointerdown", "update": "inrange(x(), [0, width]) ? [x(), x()] : null"},
                {
                    "events": "[pointerdown, window:pointerup] > window:pointermove!",
                    "update": "drag && [drag[0], clamp(x(), 0, width)]",
                },
                {"events": "window:pointerup", "update": "null"},
            ],
        },
    ]


def _x_axis(span: AxisRange, axis: str, title: str, grid: bool, zoned: bool) -> Json:
    days = f"{_day(span[0])}, {'UTC' if zoned else 'time zone not given'}" if axis == "time" else "step"
    return {
        "scale": "x",
        "orient": "bottom",
        "grid": grid,
        "labelPadding": 6,
        "gridOpacity": 0.6,
        "titleFontWeight": "normal",
        "titleAlign": "left",
        "titleAnchor": "start",
        "title": title or days,
        "labelFlush": 12,
        "tickCount": signal("max(2, floor(width / 110))"),
        **({"format": _FORMATS, "formatType": "utc"} if axis == "time" else {"format": ",.6~f"}),
    }


def _day(seconds: float) -> str:
    try:
        day = dt.datetime.fromtimestamp(seconds, dt.UTC)
    except (OverflowError, OSError, ValueError):
        return ""
    return f"from {day.day} {day:%B %Y}"


# -- parts


def signal(expression: str) -> Json:
    """The value of an expression."""
    return {"signal": expression}


def text_of(value: str) -> str:
    """A text as a string literal in an expression."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return "'" + escaped.replace("\u2028", " ").replace("\u2029", " ") + "'"


def mark(kind: str, encode: Mapping[str, Any], data: str | None = None, **more: Any) -> Json:
    """A mark that ignores mouse events unless ``interactive`` is set; plain values are wrapped."""
    channels = {name: _channel(value) for name, value in encode.items()}
    source = {"from": {"data": data}} if data else {}
    return {"type": kind, **source, "encode": {"update": channels}, "interactive": False, **more}


def _channel(value: Any) -> Any:
    return value if isinstance(value, (dict, list)) else {"value": value}


def at_x(field: str, **more: Any) -> Json:
    """A field on the horizontal axis."""
    return {"scale": "x", "field": field, **more}


def rule(x: str, height: float, color: str, *, dash: Sequence[int] = (), y: Any = 0, wide: float = 1) -> Json:
    """A vertical line at the position ``x`` (an expression) on the horizontal axis; hidden if that is not in sight."""
    inside = f"isValid({x}) && {x} >= shown[0] && {x} <= shown[1]"
    x_px = signal(f"isValid({x}) ? scale('x', {x}) : 0")
    style = {
        "stroke": signal(color),
        "strokeDash": {"value": list(dash)},
        "strokeWidth": wide,
        "opacity": signal(f"{inside} ? 1 : 0"),
    }
    return mark("rule", {"x": x_px, "y": y, "y2": height, **style})


def moment_marks(
    seconds: float, text: str, height: float, color: str, *, axis: str = "time", y: float = -5
) -> list[Json]:
    """A vertical line at a moment (or step), with its name above it on the side that has room."""
    position = repr(seconds * 1000 if axis == "time" else seconds)
    x_px = f"scale('x', {position})"
    inside = f"{position} >= shown[0] && {position} <= shown[1]"
    left = f"{x_px} > 0.6 * width"
    max_x = f"width + {NARROW_RIGHT - 2} - {LETTER_PX * len(text):.0f}"  # the text ends at the edge of a narrow page
    return [
        rule(position, height, color, dash=(5, 3), y=signal(f"narrow ? {y + 3} : {y - 6}"), wide=1.5),
        label(
            signal(f"{inside} ? {text_of(text)} : ''"),
            signal(f"narrow ? max(2 - padding.left, min({x_px} + 4, {max_x})) : {x_px} + ({left} ? -4 : 4)"),
            y,
            color,
            align=signal(f"{left} && !narrow ? 'right' : 'left'"),
            limit=signal(f"narrow ? width + padding.left + {NARROW_RIGHT - 4} : 0"),
            fontWeight="bold",
        ),
    ]


def label(text: Any, x: Any, y: Any, color: str = "ink", **more: Any) -> Json:
    """A text mark; ``text``: the text itself, or an expression made by :func:`signal`."""
    return mark("text", {"text": text, "x": x, "y": y, "fill": signal(color), "fontSize": 12, **more})


def title_mark(text: str, y: float = -22) -> Json:
    """The title of a panel, above its left edge; on a narrow chart the value under the cursor replaces it."""
    text_expression = f"isValid(moment) && width < {NARROW_PX} ? '' : {text_of(text)}"
    return label(signal(text_expression), 0, y, fontWeight="bold", fontSize=13)


def readout(expression: str, y: float = -22) -> Json:
    """The value under the cursor, above the right edge of a panel: a mark whose name begins with ``reading``."""
    text_mark = label(signal(f"isValid(moment) ? ({expression}) : ''"), signal("width"), y, align="right")
    return {**text_mark, "name": f"reading{y:.0f}"}


def line(data: str, field: str, color: str, *, dash: Sequence[int] = (), wide: float = 1.5) -> Json:
    """A line through a dataset with the column ``t``."""
    is_sampled = signal(f"isValid(datum.{field})")
    style = {"stroke": signal(color), "strokeWidth": wide, "strokeDash": {"value": list(dash)}, "defined": is_sampled}
    return mark("line", {"x": at_x("t"), "y": {"scale": "y", "field": field}, **style}, data)


def at_ends(names: Sequence[tuple[str, float, str]], height: float, y: float = 0) -> list[Json]:
    """Labels (text, y in pixels, color) at the right edge of a panel, without overlap; on a narrow page inside the
    panel, above the ends of the lines."""
    outer_y = spread([y_px for _, y_px, _ in names], height)
    inner_y = spread(
        [y_px - LABEL_GAP_PX if y_px > 2 * LABEL_GAP_PX else y_px + LABEL_GAP_PX for _, y_px, _ in names],
        height - LABEL_GAP_PX,
    )
    labels = []
    for (text, _, color), outer, inner in zip(names, outer_y, inner_y, strict=True):
        y_px = signal(f"{y} + (narrow ? {inner!r} : {outer!r})")
        style = {"baseline": "middle", "align": signal("narrow ? 'right' : 'left'"),
                "limit": signal(f"narrow ? width - 8 : {RIGHT - 10}")}  # fmt: skip
        x = signal("narrow ? width - 3 : width + 8")
        halo = {"stroke": signal("ground"), "strokeWidth": 4, "strokeJoin": "round"}
        labels.append(label(signal(f"narrow ? {text_of(text)} : ''"), x, y_px, "ground", **style, **halo))
        labels.append(label(text, x, y_px, color, **style))
    return labels


def panel(
    y: float,
    height: int,
    marks: Sequence[Json],
    domain: AxisRange,
    *,
    log: bool = False,
    ticks: int = 4,
    form: str = ".4~g",
) -> Json:  # fmt: skip
    """A plot with its own scale ``y`` on the chart's horizontal axis; marks are clipped to it. ``form``: d3-format of
    the axis."""
    size = {"width": signal("width"), "height": {"value": height}}
    scale = {
        "name": "y",
        "type": "log" if log else "linear",
        "domain": list(domain),
        "range": [height, 0],
        "zero": False,
    }
    axis = {"scale": "y", "orient": "left", "grid": True, "labelPadding": 8, "tickCount": ticks, "format": form}
    return {
        "type": "group",
        "encode": {"update": {"y": {"value": y}, **size}},
        "scales": [scale],
        "axes": [axis],
        "marks": [{"type": "group", "clip": True, "encode": {"update": size}, "marks": list(marks)}],
    }


def spread(positions: Sequence[float], height: float, min_gap: float = 14) -> list[float]:
    """Label positions moved apart so that none overlap; the order is kept."""
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    moved = list(positions)
    for before, after in pairwise(order):
        moved[after] = max(moved[after], moved[before] + min_gap)
    for rank, index in enumerate(reversed(order)):
        moved[index] = min(moved[index], height - min_gap * rank)
    return moved


# -- data


def table(name: str, columns: Mapping[str, Sequence[float] | NDArray[np.float64]], digits: int = 5) -> Json:
    """A dataset of numbers as comma-separated text, a third of the size of objects; non-finite values are empty."""
    rows = zip(*([number(float(value), digits) for value in values] for values in columns.values()), strict=True)
    text = "\n".join([",".join(columns), *map(",".join, rows)])
    return {"name": name, "values": text, "format": {"type": "csv", "parse": dict.fromkeys(columns, "number")}}


def number(value: float, digits: int = 5) -> str:
    """A number with at most ``digits`` digits; a whole number is written in full. Empty if it is not finite."""
    if not math.isfinite(value):
        return ""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:.{digits}g}"


def clock(expression: str) -> str:
    """An expression: a moment in milliseconds as a date and time of day."""
    return f"utcFormat({expression}, '%-d %b %H:%M:%S')"
