"""Rows of cells over time as Vega draws them: one image whose metric can be switched, labels, and the rows that matter
once more on top, where a row of the whole is but a pixel."""

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
    named_moment,
    rule,
    signal,
    text_of,
)

TALLEST, ROOM, MOST_ROOM = 16, 480, 1280
"""Pixels of a row at most, and of all rows; these may take more, so that a row is a pixel, but not more than that."""
LABELLED = 9
"""Pixels of a row from which on each has its label."""
LENS, GAP, MOST_LENSES = 14, 3, 8
"""Pixels of a row that is shown once more and below it, and how many such rows there are at most."""
LIGHTEST, MIDDLE, DARKEST = 0.06, 0.62, 0.85
"""On the way from the ground to the ink: where the colours of cells begin, where the accent stands, where they end."""
RAMP = 96
"""Pixels of the key to the colours."""


@dataclass(frozen=True, slots=True)
class Map:
    """What is drawn. ``names`` and ``ranks`` by row; ``marked``: the rows to point out; ``rasters`` by what can be
    chosen, each of ``len(names)`` rows and ``columns`` columns of ``step`` seconds from ``start`` on; ``since``: a
    moment to mark."""

    names: tuple[str, ...]
    ranks: tuple[str, ...]
    marked: tuple[int, ...]
    rasters: Mapping[str, Raster]
    start: float
    step: float
    columns: int
    since: float | None
    choice: str
    """What is chosen at first."""

    @property
    def tall(self) -> float:
        """Pixels of a row."""
        rows = len(self.names)
        return max(1, min(TALLEST, ROOM // rows)) if rows <= MOST_ROOM else MOST_ROOM / rows

    @property
    def lenses(self) -> tuple[int, ...]:
        """Rows that are shown once more."""
        return self.marked[:MOST_LENSES] if self.tall < LABELLED else ()

    @property
    def head(self) -> int:
        """Pixels above the whole, for these."""
        return len(self.lenses) * (LENS + GAP) + 6 if self.lenses else 0

    @property
    def height(self) -> int:
        """Pixels of the plot."""
        return self.head + round(self.tall * len(self.names))

    @property
    def end(self) -> float:
        """Of the last column, POSIX seconds."""
        return self.start + self.step * self.columns


def heat_map(drawn: Map) -> Json:
    """The specification."""
    marks = [_rows(drawn, 0, drawn.head, drawn.tall * len(drawn.names), drawn.tall)]
    for place, row in enumerate(drawn.lenses):
        marks.append(_rows(drawn, row, place * (LENS + GAP), LENS, LENS))
    marks += [*_labels(drawn), *_key(), _hovered(drawn)]
    if drawn.since is not None:
        marks.append(rule(repr(drawn.since * 1000), drawn.height, "ground", wide=4))  # it stands out from the cells
        marks += named_moment(drawn.since, "first cause", drawn.height, "bad")
    return figure(
        drawn.height,
        (drawn.start, drawn.end),
        marks,
        data=_data(drawn),
        scales=[
            {"name": "heat", "type": "linear", "domain": [0, MIDDLE, 1], "range": signal("[ground, accent, ink]"),
             "interpolate": "rgb"},
        ],
        signals=_signals(drawn),
        top=54,
        grid=False,
    )  # fmt: skip


def _data(drawn: Map) -> list[Json]:
    """A data set of each raster, for the page to fill; of these the chosen one, coloured."""
    given = [
        {"name": key, "values": [], "transform": [{"type": "formula", "as": "key", "expr": f"'{key}'"}]}
        for key in drawn.rasters
    ]
    shade = f"datum.value === 255 ? ground : scale('heat', {LIGHTEST} + {DARKEST - LIGHTEST} * datum.value / 254)"
    ramp = {
        "name": "ramp",
        "transform": [
            {"type": "sequence", "start": 0, "stop": 256, "as": "value"},
            {"type": "formula", "as": "colour", "expr": shade},
        ],
    }
    cells = {
        "name": "cells",
        "source": list(drawn.rasters),
        "transform": [
            {"type": "filter", "expr": "datum.key === choice"},
            {
                "type": "heatmap",
                "color": {"expr": "data('ramp')[datum.$value].colour"},  # looked up: it is asked for every cell
                "opacity": {"expr": "ground && accent && ink ? 1 : 1"},  # so that new colours draw it anew
            },
        ],
    }
    steps = {"name": "shades", "transform": [{"type": "sequence", "start": 0, "stop": RAMP, "step": 2, "as": "x"}]}
    return [*given, ramp, cells, steps]


def _signals(drawn: Map) -> list[Json]:
    layers = {
        key: {"title": raster.title, "low": raster.low, "high": raster.high, "form": raster.form,
              "unit": f" {raster.unit}" if raster.unit else ""}
        for key, raster in drawn.rasters.items()
    }  # fmt: skip
    lens = f"inrange(y(), [0, {drawn.head - 7}]) ? lenses[floor(y() / {LENS + GAP})]"
    whole = f"inrange(y(), [{drawn.head}, {drawn.height - 0.01!r}]) ? floor((y() - {drawn.head}) / {drawn.tall!r})"
    row = f"{lens} : {whole} : null" if drawn.lenses else f"{whole} : null"
    column = f"floor((moment / 1000 - {drawn.start!r}) / {drawn.step!r})"
    place = f"row * {drawn.columns} + column"
    names = [f"{name}, rank {rank}" if rank else name for name, rank in zip(drawn.names, drawn.ranks, strict=True)]
    return [
        {"name": "choice", "value": drawn.choice},
        {"name": "layers", "value": layers},
        {"name": "layer", "update": "layers[choice]"},
        {"name": "names", "value": names},
        {"name": "lenses", "value": list(drawn.lenses)},
        {
            "name": "row",
            "value": None,
            "on": [
                {"events": "pointermove", "update": row},
                {"events": "view:pointerout", "update": "null"},
            ],
        },
        {"name": "column", "update": f"isValid(moment) ? clamp({column}, 0, {drawn.columns - 1}) : null"},
        {
            "name": "cell",
            "update": f"choice && isValid(row) && isValid(column) && length(data('cells')) ? "
            f"data('cells')[0].values[{place}] : null",
        },
        {
            "name": "told",
            "update": "!isValid(cell) ? '' : cell === 255 ? 'not sampled' : "
            "format(layer.low + cell / 254 * (layer.high - layer.low), layer.form) + layer.unit",
        },
    ]


def _rows(drawn: Map, row: int, y: float, height: float, tall: float) -> Json:
    """The image, drawn so tall that a row takes ``tall`` pixels, and of it what is to be seen from ``row`` on."""
    first, last = (f"scale('x', {edge * 1000!r})" for edge in (drawn.start, drawn.end))
    image = {
        "image": {"field": "image"},
        "x": signal(first),
        "width": signal(f"{last} - {first}"),
        "y": -row * tall,
        "height": tall * len(drawn.names),
        "aspect": False,
        "smooth": False,
    }
    return {
        "type": "group",
        "clip": True,
        "encode": {"update": {"y": {"value": y}, "width": signal("width"), "height": {"value": height}}},
        "marks": [mark("image", image, "cells")],
    }


def _labels(drawn: Map) -> list[Json]:
    """Names at the left; of many rows those of the nodes, as far as there is room; the marked ones always."""
    marked, found = set(drawn.marked), []
    for place, row in enumerate(drawn.lenses):
        found.append(_label(drawn.names[row], place * (LENS + GAP) + LENS / 2, bad=True))
        if drawn.ranks[row]:
            y = place * (LENS + GAP) + LENS / 2
            rank = signal(f"narrow ? '' : {text_of(f'rank {drawn.ranks[row]}')}")  # its name under the cursor says it
            found.append(label(rank, signal("width + 8"), y, "bad", baseline="middle"))
    free = -100.0
    before = ""
    for row, name in enumerate(drawn.names):
        y = drawn.head + (row + 0.5) * drawn.tall
        node = name.rpartition(":")[0]
        if drawn.tall >= LABELLED:
            found.append(_label(name, y, bad=row in marked))
        elif node != before and y - free >= 13:
            found.append(_label(node, y + 4, bad=False))
            free = y
        if row in marked:
            found += _pointers(y, 4 if drawn.tall >= LABELLED else 3)
        before = node
    return found


def _label(text: str, y: float, *, bad: bool) -> Json:
    look: dict[str, Any] = {"fontWeight": "bold"} if bad else {"opacity": 0.85}
    colour = "bad" if bad else "ink"
    room = signal(f"(narrow ? {NARROW_LEFT} : {LEFT}) - 14")
    return label(text, -13, y, colour, align="right", baseline="middle", fontSize=10, limit=room, **look)


def _pointers(y: float, size: float) -> list[Json]:
    """Triangles on both sides of a row, pointing at it."""
    path = f"M0,{-size} L{size * 1.6},0 L0,{size} Z"
    look = {"path": path, "fill": signal("bad"), "y": y}
    return [
        mark("path", {**look, "x": -2 - size * 1.6}),
        mark("path", {**look, "x": signal(f"width + {2 + size * 1.6!r}"), "scaleX": -1}),
    ]


def _key() -> list[Json]:
    """What is shown and what its colours mean, above the plot; and what is under the cursor."""
    y, edge = -48, -NARROW_LEFT + 4
    x, wide = "(narrow ? 60 : 190)", f"(narrow ? {RAMP / 2} : {RAMP})"
    value = "format(layer.{}, layer.form)"
    shade = signal(f"scale('heat', {LIGHTEST} + {DARKEST - LIGHTEST} * datum.x / {RAMP})")
    shades = {"x": signal(f"{x} + datum.x * {wide} / {RAMP}"), "y": y, "width": 2.5, "height": 10, "fill": shade}
    pointed = "isValid(row) && isValid(moment)"
    words = f"names[row] + '   ' + {clock('moment')} + '   ' + told"
    read = signal(f"{pointed} ? {words} : isValid(moment) ? {clock('moment')} : ''")
    return [
        label(signal("layer.title"), signal(f"narrow ? {edge} : 0"), y + 9, fontWeight="bold", fontSize=12),
        mark("rect", shades, "shades"),
        label(signal(value.format("low")), signal(f"{x} - 6"), y + 9, align="right"),
        label(signal(value.format("high") + " + layer.unit"), signal(f"{x} + {wide} + 6"), y + 9),
        {**label(read, signal(f"narrow ? {edge} : 0"), -20), "name": "reading"},
    ]


def _hovered(drawn: Map) -> Json:
    """A frame round the row under the pointer."""
    box = {
        "x": 0,
        "x2": signal("width"),
        "y": signal(f"isValid(row) ? {drawn.head} + row * {drawn.tall} - 1 : 0"),
        "height": drawn.tall + 2,
        "stroke": signal("ink"),
        "opacity": signal("isValid(row) ? 0.7 : 0"),
        "fillOpacity": 0,
    }
    return mark("rect", box)
