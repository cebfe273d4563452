"""A heat map over time in Vega: an image whose metric can be switched, with labels. If rows are only pixels high, the
marked rows are repeated enlarged on top."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trackside.show.charts.chart import LEFT, NARROW_LEFT, Raster
from trackside.show.charts.time_axis import (
    Json,
    clock,
    figure,
    label,
    mark,
    moment_marks,
    rule,
    signal,
    text_of,
)

MAX_ROW_PX, MAX_ROWS_PX, MAX_IMAGE_PX = 16, 480, 1280
"""Maximum height of a row, of all rows, and of all rows if each is one pixel high."""
MIN_LABELED_ROW_PX = 9
"""Height in pixels from which each row has its label."""
ENLARGED_PX, ENLARGED_GAP_PX, MAX_ENLARGED = 14, 3, 8
"""Height of an enlarged row and of the gap below it in pixels; maximum number of enlarged rows."""
LIGHTEST, MIDDLE, DARKEST = 0.06, 0.62, 0.85
"""Positions on the color scale from background (0) to ink (1): the lightest cell, the accent, the darkest cell."""
KEY_PX = 96
"""Width in pixels of the color scale."""


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The contents of a heat map. ``names`` and ``ranks`` by row; ``marked``: the rows to point out; ``rasters`` by
    metric, each of ``len(names)`` rows and ``columns`` columns of ``step`` seconds from ``start`` on; ``onset``: a time
    to mark, and its label."""

    names: tuple[str, ...]
    ranks: tuple[str, ...]
    marked: tuple[int, ...]
    rasters: Mapping[str, Raster]
    start: float
    step: float
    columns: int
    onset: tuple[float, str] | None
    choice: str
    """The metric that is shown first."""
    zoned: bool = True
    """Whether the time zone is known."""

    @property
    def row_px(self) -> float:
        """Height in pixels of a row."""
        rows = len(self.names)
        return max(1, min(MAX_ROW_PX, MAX_ROWS_PX // rows)) if rows <= MAX_IMAGE_PX else MAX_IMAGE_PX / rows

    @property
    def enlarged_rows(self) -> tuple[int, ...]:
        """Rows that are also drawn enlarged, above the map."""
        return self.marked[:MAX_ENLARGED] if self.row_px < MIN_LABELED_ROW_PX else ()

    @property
    def enlarged_px(self) -> int:
        """Height in pixels of the enlarged rows."""
        return len(self.enlarged_rows) * (ENLARGED_PX + ENLARGED_GAP_PX) + 6 if self.enlarged_rows else 0

    @property
    def height(self) -> int:
        """Height in pixels of the plot."""
        return self.enlarged_px + round(self.row_px * len(self.names))

    @property
    def end(self) -> float:
        """POSIX seconds at which the last column ends."""
        return self.start + self.step * self.columns


def heat_map(heat: HeatMap) -> Json:
    """The Vega specification."""
    marks = [_rows(heat, 0, heat.enlarged_px, heat.row_px * len(heat.names), heat.row_px)]
    for index, row in enumerate(heat.enlarged_rows):
        marks.append(_rows(heat, row, index * (ENLARGED_PX + ENLARGED_GAP_PX), ENLARGED_PX, ENLARGED_PX))
    marks += [*_labels(heat), *_key(), _hover_frame(heat)]
    if heat.onset is not None:
        marks.append(rule(repr(heat.onset[0] * 1000), heat.height, "ground", wide=4))  # it stands out from the cells
        marks += moment_marks(*heat.onset, heat.height, "bad")
    return figure(
        heat.height,
        (heat.start, heat.end),
        marks,
        data=_data(heat),
        scales=[
            {"name": "heat", "type": "linear", "domain": [0, MIDDLE, 1], "range": signal("[ground, accent, ink]"),
             "interpolate": "rgb"},
        ],
        signals=_signals(heat),
        top=54,
        grid=False,
        zoned=heat.zoned,
    )  # fmt: skip


def _data(heat: HeatMap) -> list[Json]:
    """One dataset per raster, which the page fills, and the image of the chosen raster in colors."""
    sources = [
        {"name": key, "values": [], "transform": [{"type": "formula", "as": "key", "expr": f"'{key}'"}]}
        for key in heat.rasters
    ]
    shade = f"datum.value === 255 ? ground : scale('heat', {LIGHTEST} + {DARKEST - LIGHTEST} * datum.value / 254)"
    ramp = {
        "name": "ramp",
        "transform": [
            {"type": "sequence", "start": 0, "stop": 256, "as": "value"},
            {"type": "formula", "as": "color", "expr": shade},
        ],
    }
    cells = {
        "name": "cells",
        "source": list(heat.rasters),
        "transform": [
            {"type": "filter", "expr": "datum.key === choice"},
            {
                "type": "heatmap",
                "color": {"expr": "data('ramp')[datum.$value].color"},  # looked up: computed once, not for every cell
                "opacity": {"expr": "ground && accent && ink ? 1 : 1"},  # so that new colors draw it anew
            },
        ],
    }
    steps = {"name": "shades", "transform": [{"type": "sequence", "start": 0, "stop": KEY_PX, "step": 2, "as": "x"}]}
    return [*sources, ramp, cells, steps]


def _signals(heat: HeatMap) -> list[Json]:
    layers = {
        key: {"title": raster.title, "low": raster.low, "high": raster.high, "form": raster.form,
              "unit": f" {raster.unit}" if raster.unit else ""}
        for key, raster in heat.rasters.items()
    }  # fmt: skip
    enlarged_row = f"inrange(y(), [0, {heat.enlarged_px - 7}]) ? enlarged[floor(y() / {ENLARGED_PX + ENLARGED_GAP_PX})]"
    top = heat.enlarged_px
    whole = f"inrange(y(), [{top}, {heat.height - 0.01!r}]) ? floor((y() - {top}) / {heat.row_px!r})"
    row = f"{enlarged_row} : {whole} : null" if heat.enlarged_rows else f"{whole} : null"
    column = f"floor((moment / 1000 - {heat.start!r}) / {heat.step!r})"
    index = f"row * {heat.columns} + column"
    names = [f"{name}, rank {rank}" if rank else name for name, rank in zip(heat.names, heat.ranks, strict=True)]
    return [
        {"name": "choice", "value": heat.choice},
        {"name": "layers", "value": layers},
        {"name": "layer", "update": "layers[choice]"},
        {"name": "names", "value": names},
        {"name": "enlarged", "value": list(heat.enlarged_rows)},
        {
            "name": "row",
            "value": None,
            "on": [
                {"events": "pointermove", "update": row},
                {"events": "view:pointerout", "update": "null"},
            ],
        },
        {"name": "column", "update": f"isValid(moment) ? clamp({column}, 0, {heat.columns - 1}) : null"},
        {
            "name": "cell",
            "update": f"choice && isValid(row) && isValid(column) && length(data('cells')) ? "
            f"data('cells')[0].values[{index}] : null",
        },
        {
            "name": "cellText",
            "update": "!isValid(cell) ? '' : cell === 255 ? 'not sampled' : "
            "format(layer.low + cell / 254 * (layer.high - layer.low), layer.form) + layer.unit",
        },
    ]


def _rows(heat: HeatMap, row: int, y: float, height: float, row_px: float) -> Json:
    """A window on the image: ``height`` pixels at ``y``, from ``row`` on. A row is ``row_px`` pixels tall."""
    first, last = (f"scale('x', {edge * 1000!r})" for edge in (heat.start, heat.end))
    image = {
        "image": {"field": "image"},
        "x": signal(first),
        "width": signal(f"{last} - {first}"),
        "y": -row * row_px,
        "height": row_px * len(heat.names),
        "aspect": False,
        "smooth": False,
    }
    return {
        "type": "group",
        "clip": True,
        "encode": {"update": {"y": {"value": y}, "width": signal("width"), "height": {"value": height}}},
        "marks": [mark("image", image, "cells")],
    }


def _labels(heat: HeatMap) -> list[Json]:
    """Row labels at the left: every name, or only the nodes if there are too many rows; always the marked rows."""
    marked, labels = set(heat.marked), []
    for index, row in enumerate(heat.enlarged_rows):
        labels.append(_label(heat.names[row], index * (ENLARGED_PX + ENLARGED_GAP_PX) + ENLARGED_PX / 2, bad=True))
        if heat.ranks[row]:
            y = index * (ENLARGED_PX + ENLARGED_GAP_PX) + ENLARGED_PX / 2
            # On a narrow page only the name under the cursor has the rank.
            rank = signal(f"narrow ? '' : {text_of(f'rank {heat.ranks[row]}')}")
            labels.append(label(rank, signal("width + 8"), y, "bad", baseline="middle"))
    last_label_y = -100.0
    before = ""
    for row, name in enumerate(heat.names):
        y = heat.enlarged_px + (row + 0.5) * heat.row_px
        node = name.rpartition(":")[0]
        if heat.row_px >= MIN_LABELED_ROW_PX:
            labels.append(_label(name, y, bad=row in marked))
        elif node != before and y - last_label_y >= 13:
            labels.append(_label(node, y + 4, bad=False))
            last_label_y = y
        if row in marked:
            labels += _pointers(y, 4 if heat.row_px >= MIN_LABELED_ROW_PX else 3)
        before = node
    return labels


def _label(text: str, y: float, *, bad: bool) -> Json:
    style: dict[str, Any] = {"fontWeight": "bold"} if bad else {"opacity": 0.85}
    color = "bad" if bad else "ink"
    max_px = signal(f"(narrow ? {NARROW_LEFT} : {LEFT}) - 14")
    return label(text, -13, y, color, align="right", baseline="middle", fontSize=11, limit=max_px, **style)


def _pointers(y: float, size: float) -> list[Json]:
    """Triangles on both sides of a row, pointing at it."""
    path = f"M0,{-size} L{size * 1.6},0 L0,{size} Z"
    shape = {"path": path, "fill": signal("bad"), "y": y}
    return [
        mark("path", {**shape, "x": -2 - size * 1.6}),
        mark("path", {**shape, "x": signal(f"width + {2 + size * 1.6!r}"), "scaleX": -1}),
    ]


def _key() -> list[Json]:
    """Above the plot: the title, the color scale, and the value under the cursor."""
    y, edge = -48, -NARROW_LEFT + 4
    x, wide = "(narrow ? 60 : 190)", f"(narrow ? {KEY_PX / 2} : {KEY_PX})"
    value = "format(layer.{}, layer.form)"
    shade = signal(f"scale('heat', {LIGHTEST} + {DARKEST - LIGHTEST} * datum.x / {KEY_PX})")
    shades = {"x": signal(f"{x} + datum.x * {wide} / {KEY_PX}"), "y": y, "width": 2.5, "height": 10, "fill": shade}
    pointed = "isValid(row) && isValid(moment)"
    words = f"names[row] + '   ' + {clock('moment')} + '   ' + cellText"
    read = signal(f"{pointed} ? {words} : isValid(moment) ? {clock('moment')} : ''")
    return [
        label(signal("layer.title"), signal(f"narrow ? {edge} : 0"), y + 9, fontWeight="bold", fontSize=13),
        mark("rect", shades, "shades"),
        label(signal(value.format("low")), signal(f"{x} - 6"), y + 9, align="right"),
        label(signal(value.format("high") + " + layer.unit"), signal(f"{x} + {wide} + 6"), y + 9),
        {**label(read, signal(f"narrow ? {edge} : 0"), -20), "name": "reading"},
    ]


def _hover_frame(heat: HeatMap) -> Json:
    """A frame around the row under the pointer."""
    box = {
        "x": 0,
        "x2": signal("width"),
        "y": signal(f"isValid(row) ? {heat.enlarged_px} + row * {heat.row_px} - 1 : 0"),
        "height": heat.row_px + 2,
        "stroke": signal("ink"),
        "opacity": signal("isValid(row) ? 0.7 : 0"),
        "fillOpacity": 0,
    }
    return mark("rect", box)
