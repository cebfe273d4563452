"""The charts of a page as data that its script draws."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec

from trackside.show.charts.chart import NARROW_LEFT, NARROW_RIGHT, Chart, Drawn, Raster
from trackside.show.inert import visible

_MARKUP = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}
_ESCAPE = re.compile(r"\\(?:u00([01][0-9a-f])|[\s\S])")


def described(chart: Chart, drawn: Drawn) -> Mapping[str, Any]:
    """What the script draws a chart from."""
    return {
        "slug": chart.slug,
        "axis": drawn.axis,
        "narrow": {"left": NARROW_LEFT, "right": NARROW_RIGHT},
        "spec": drawn.spec,
        "rasters": {name: _packed(raster) for name, raster in drawn.rasters.items()},
    }


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
