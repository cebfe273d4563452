"""Charts of a diagnosed run. A chart is a Vega specification, a caption and a table.

A page draws the specification; the caption and the table give the same information as text. Colors are signals that the
page sets for its theme (``PAINT``), never literals.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from trackside.facts.fact import Facts, queries_of
from trackside.facts.pace.run_phases import RunPhases
from trackside.finding import Verdict
from trackside.query import Query

PAINT = ("ink", "faint", "ground", "accent", "second", "third", "bad", "warn", "good", "band")
"""Signals with the colors of the page: text, grid lines, background; first, second and third series; fault, warning,
healthy; the shading of a phase."""
WIDTH, HEIGHT = 860, 220
"""Default size of a plot in pixels."""
LEFT, RIGHT = 118, 138
"""Margins of every plot in pixels, for labels. The signal ``width`` is the page's width minus these, so that charts
line up."""
NARROW_LEFT, NARROW_RIGHT = 104, 14
"""The margins where a chart is narrow (signal ``narrow``): labels of the right margin move into the plot."""
NARROW_AXIS_LEFT = 58
"""The left margin of a narrow chart that has only figures there."""


@dataclass(frozen=True, slots=True)
class Raster:
    """A grid of cells, row by row, a byte each: 0 to 254 from ``low`` to ``high``; 255: not sampled. ``form``: the
    d3-format of a value."""

    title: str
    width: int
    height: int
    cells: bytes
    low: float
    high: float
    unit: str
    form: str

    def __post_init__(self) -> None:
        assert len(self.cells) == self.width * self.height


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart of one run.

    ``spec``: Vega (not Vega-Lite), its data inline, width as the signal ``width``. A chart over time has the signals
    ``full`` (from its first moment to its last: [from, to], milliseconds), ``shown`` (the visible part) and
    ``moment`` (the cursor: milliseconds or null). The chart sets them from the mouse (move, drag, wheel with a modifier
    key, double click to reset); the page sets them from the keyboard and its other charts. Text marks whose names begin
    with ``reading`` show the values at ``moment``.
    Every chart has the signal ``narrow``, which a page sets together with the padding ``narrow_left, NARROW_RIGHT``.
    A chart over steps has the same signals, in steps (``axis``); only charts over time are linked.
    ``caption``: one or two sentences that describe the chart. ``columns`` and ``rows``: the same as a table of text, of
    about fifty rows at most. ``rasters``: by the name of their dataset, which the page fills with ``{width, height,
    values}``; the signal ``choice`` selects one.
    """

    spec: Mapping[str, Any]
    caption: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    rasters: Mapping[str, Raster] = field(default_factory=dict)
    axis: Literal["time", "step"] = "time"
    unit: str = "step"
    """What a position of a chart over steps counts."""
    narrow_left: int = NARROW_LEFT


@dataclass(frozen=True, slots=True)
class Chart:
    """One kind of chart. ``order``: its position on a page. ``draw``: returns None if the run lacks the data.
    ``queries``: its queries, so that those of all charts can be sent in one batch."""

    slug: str
    title: str
    order: int
    draw: Callable[[Verdict, Facts], Drawing | None]
    queries: tuple[Query, ...] = ()


def drawings(verdict: Verdict, facts: Facts) -> Iterator[tuple[Chart, Drawing]]:
    """Yield each chart that a run has data for, in page order. ``facts``: built on unchecked answers, because data too
    poor for a verdict can still be shown."""
    facts.ask([*queries_of(RunPhases), *(query for chart in charts() for query in chart.queries)])
    for chart in charts():
        if (drawing := chart.draw(verdict, facts)) is not None:
            yield chart, drawing


@lru_cache(maxsize=1)
def charts() -> tuple[Chart, ...]:
    """All charts in page order: the ``CHART`` of each module of this package."""
    import trackside.show.charts as package

    names = [module.name for module in pkgutil.iter_modules(package.__path__)]
    modules = [importlib.import_module(f"{package.__name__}.{name}") for name in names]
    definitions = [module.CHART for module in modules if hasattr(module, "CHART")]
    return tuple(sorted(definitions, key=lambda chart: chart.order))
