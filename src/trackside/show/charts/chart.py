"""What a chart is: asked of a judged run, told as a Vega specification, a caption and a table.

A page draws the specification; who can't see it reads the caption and the table, which say the same. Colours are
signals that the page sets for its theme (``PAINT``), never literals.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from trackside.model import Verdict
from trackside.query import Store

PAINT = ("ink", "faint", "ground", "accent", "second", "third", "bad", "warn", "good", "band")
"""Signals with the colours of the page: text, grid lines, background; series in their order; what marks a fault, a
warning, good health; the shading of a phase."""
WIDTH, HEIGHT = 860, 220
"""Pixels of a chart that nobody has fitted to its page."""


@dataclass(frozen=True, slots=True)
class Raster:
    """A grid of cells, a byte each: 0 to 254 from ``low`` to ``high``, 255 where nothing was sampled; row by row."""

    width: int
    height: int
    cells: bytes
    low: float
    high: float
    unit: str

    def __post_init__(self) -> None:
        assert len(self.cells) == self.width * self.height


@dataclass(frozen=True, slots=True)
class Drawn:
    """A chart of one run.

    ``spec``: Vega (not Vega-Lite), its data inline, width as the signal ``width``. A chart over time has the signals
    ``shown`` (what is zoomed to: [from, to], milliseconds) and ``cursor`` (milliseconds or null), which the page sets
    from the mouse, the keyboard and its other charts. ``caption``: one or two sentences that say what is seen.
    ``columns`` and ``rows``: the same as a table of text, at most some fifty rows. ``rasters``: by the name of the
    data set that the page fills with ``{width, height, values}``. ``choices``: of a chart that can be switched, the
    label of each value of the signal ``choice``.
    """

    spec: Mapping[str, Any]
    caption: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    rasters: Mapping[str, Raster] = field(default_factory=dict)
    choices: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart. ``order``: its place on a page. ``draw``: None where the run gives nothing to draw; raises nothing
    for what a run may lack."""

    slug: str
    title: str
    order: int
    draw: Callable[[Verdict, Store], Drawn | None]


@lru_cache(maxsize=1)
def charts() -> tuple[Chart, ...]:
    """Every chart, in the order of a page: the ``CHART`` of each other module here."""
    import trackside.show.charts as room

    names = [each.name for each in pkgutil.iter_modules(room.__path__)]
    modules = [importlib.import_module(f"{room.__name__}.{name}") for name in names]
    found = [module.CHART for module in modules if hasattr(module, "CHART")]
    return tuple(sorted(found, key=lambda chart: chart.order))
