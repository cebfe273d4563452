"""What a chart is: asked of a judged run, told as a Vega specification, a caption and a table.

A page draws the specification; who can't see it reads the caption and the table, which say the same. Colours are
signals that the page sets for its theme (``PAINT``), never literals.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from trackside.facts.fact import Facts, questions
from trackside.facts.pace.run_phases import RunPhases
from trackside.finding import Verdict
from trackside.query import Query

PAINT = ("ink", "faint", "ground", "accent", "second", "third", "bad", "warn", "good", "band")
"""Signals with the colours of the page: text, grid lines, background; series in their order; what marks a fault, a
warning, good health; the shading of a phase."""
WIDTH, HEIGHT = 860, 220
"""Pixels of a chart's plot that nobody has fitted to its page."""
LEFT, RIGHT = 118, 138
"""Pixels beside the plot of every chart, for labels: the signal ``width`` is a page's width less these, and what stands
below one another lines up."""
NARROW_LEFT, NARROW_RIGHT = 96, 14
"""The same on a narrow page, which sets the signal ``narrow``: labels that stood at the right stand in the plot."""


@dataclass(frozen=True, slots=True)
class Raster:
    """A grid of cells, a byte each: 0 to 254 from ``low`` to ``high``, 255 where nothing was sampled; row by row.
    ``title``: what it is called; ``form``: how its values are written (d3-format)."""

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
class Drawn:
    """A chart of one run.

    ``spec``: Vega (not Vega-Lite), its data inline, width as the signal ``width``. A chart over time has the signals
    ``full`` (from its first moment to its last: [from, to], milliseconds), ``shown`` (the part that is zoomed to) and
    ``moment`` (milliseconds or null). The chart sets these from the mouse: moving it, dragging a stretch, the wheel
    with a modifier key, a double click to see all again; the page sets them from the keyboard and its other charts.
    What is read at ``moment`` stands in text marks whose names begin with ``reading``.
    Every chart has the signal ``narrow``, which a page sets together with the padding ``NARROW_LEFT, NARROW_RIGHT``.
    A chart over steps has the same, in steps: ``axis`` says which, and only those over time go together.
    ``caption``: one or two sentences that say what is seen. ``columns`` and ``rows``: the same as a table of text, at
    most some fifty rows. ``rasters``: by the name of the data set that the page fills with ``{width, height, values}``,
    and a value of the signal ``choice``.
    """

    spec: Mapping[str, Any]
    caption: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    rasters: Mapping[str, Raster] = field(default_factory=dict)
    axis: Literal["time", "step"] = "time"


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart. ``order``: its place on a page. ``draw``: None where the run gives nothing to draw; raises nothing
    for what a run may lack. ``asks``: what it asks, so that the questions of all charts go together."""

    slug: str
    title: str
    order: int
    draw: Callable[[Verdict, Facts], Drawn | None]
    asks: tuple[Query, ...] = ()


def drawings(verdict: Verdict, facts: Facts) -> Iterator[tuple[Chart, Drawn]]:
    """What there is to see of a run, in the order of a page. ``facts``: of unchecked answers, as what can't be judged
    on can be looked at."""
    facts.ask([*questions(RunPhases), *(query for chart in charts() for query in chart.asks)])
    for chart in charts():
        if (drawn := chart.draw(verdict, facts)) is not None:
            yield chart, drawn


@lru_cache(maxsize=1)
def charts() -> tuple[Chart, ...]:
    """Every chart, in the order of a page: the ``CHART`` of each other module here."""
    import trackside.show.charts as room

    names = [each.name for each in pkgutil.iter_modules(room.__path__)]
    modules = [importlib.import_module(f"{room.__name__}.{name}") for name in names]
    found = [module.CHART for module in modules if hasattr(module, "CHART")]
    return tuple(sorted(found, key=lambda chart: chart.order))
