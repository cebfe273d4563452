"""The charts of a page: what the template says of each, and the data that the script draws."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from trackside.facts.fact import Facts
from trackside.finding import Verdict
from trackside.show.charts.chart import NARROW_LEFT, NARROW_RIGHT, Chart, Drawn, Raster, drawings
from trackside.show.inert import visible

_MARKUP = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}
_ESCAPE = re.compile(r"\\(?:u00([01][0-9a-f])|[\s\S])")


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart that was drawn."""

    chart: Chart
    drawn: Drawn

    @property
    def timed(self) -> bool:
        """Whether it has an axis to be zoomed and read with the keyboard."""
        return any(signal["name"] == "shown" for signal in self.drawn.spec.get("signals", ()))

    @property
    def data(self) -> Mapping[str, Any]:
        """What the script draws it from."""
        return {
            "slug": self.chart.slug,
            "axis": self.drawn.axis,
            "timed": self.timed,
            "narrow": {"left": NARROW_LEFT, "right": NARROW_RIGHT},
            "spec": self.drawn.spec,
            "rasters": {name: _packed(raster) for name, raster in self.drawn.rasters.items()},
        }


def figures(verdict: Verdict, facts: Facts) -> Iterator[Figure]:
    """What there is to see of a run, in the order of a page."""
    for chart, drawn in drawings(verdict, facts):
        yield Figure(chart, drawn)


def _packed(raster: Raster) -> Mapping[str, Any]:
    return {
        "width": raster.width,
        "height": raster.height,
        "cells": base64.b64encode(zlib.compress(raster.cells)).decode(),  # level 9: 2 % smaller, ten times as long
    }


def script_data(value: Any) -> str:
    """JSON that can stand in a script element: nothing in it ends the element, and its texts are visible."""
    text = msgspec.json.encode(value).decode()
    return visible(_ESCAPE.sub(_unescaped, text)).translate(_MARKUP)


def _unescaped(escape: re.Match[str]) -> str:
    """A control character, which JSON can only hold as an escape, shown; any other escape as it is."""
    code = escape[1]
    return escape[0] if code is None else visible(chr(int(code, 16)))
