"""What a page embeds: style, script, chart data, and Vega, which ships inside vl-convert-python."""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from trackside.cache import cache_file, write_cache_file
from trackside.show.charts.chart import NARROW_RIGHT, Chart, Drawing, Raster
from trackside.show.sanitize import spell_unsafe

HERE = Path(__file__).parent
SNIPPET = "window.vegaEmbed=vegaEmbed;"
"""A bundle of vl-convert-python 1.9 exports Vega-Embed, but not Vega itself. Vega-Embed includes the interpreter that
evaluates expressions without ``eval``."""
_MARKUP = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}
_ESCAPE = re.compile(r"\\(?:u00([01][0-9a-f])|[\s\S])")


@cache
def vega() -> str:
    """Vega's script. Bundling takes a second, so the result is cached in the user's cache folder."""
    cached = cache_file(f"{version('vl-convert-python')} {SNIPPET}", ".js")
    try:
        digest, _, script = cached.read_bytes().partition(b"\n")
    except OSError:
        digest = script = b""
    if hashlib.sha256(script).hexdigest().encode() == digest:
        return script.decode()
    import vl_convert

    bundle = vl_convert.javascript_bundle(SNIPPET)
    # The function scope keeps its thousands of short names out of the page's globals.
    wrapped = f"(()=>{{{bundle}}})();"
    script = wrapped.replace("</script", "<\\/script").replace("<!--", "<\\!--").encode()
    write_cache_file(cached, hashlib.sha256(script).hexdigest().encode() + b"\n" + script)
    return script.decode()


def policy(scripts: Sequence[str], style: str) -> str:
    """The content security policy of a page: only these scripts and this style run, and nothing is loaded."""
    rules = {
        "default-src": "'none'",
        "script-src": " ".join(map(_source_hash, scripts)),
        "style-src": _source_hash(style),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {allowed}" for name, allowed in rules.items())


def _source_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def chart_data(chart: Chart, drawing: Drawing) -> Mapping[str, Any]:
    """The data from which the page's script draws a chart."""
    return {
        "slug": chart.slug,
        "axis": drawing.axis,
        "unit": drawing.unit,
        "narrow": {"left": drawing.narrow_left, "right": NARROW_RIGHT},
        "spec": drawing.spec,
        "rasters": {name: _raster(raster) for name, raster in drawing.rasters.items()},
    }


def _raster(raster: Raster) -> Mapping[str, Any]:
    return {"width": raster.width, "height": raster.height, "cells": compress(raster.cells)}


def compress(content: bytes) -> str:
    """Compressed, as text; the page's script unpacks it."""
    return base64.b64encode(zlib.compress(content)).decode()  # level 9: 2% smaller, ten times as long


def script_data(value: Any) -> str:
    """JSON for a script element: it cannot end the element, and control characters are made visible."""
    text = msgspec.json.encode(value).decode()
    return spell_unsafe(_ESCAPE.sub(_reveal_control, text)).translate(_MARKUP)


def _reveal_control(escape: re.Match[str]) -> str:
    """An escaped control character, made visible; any other escape unchanged."""
    code = escape[1]
    return escape[0] if code is None else spell_unsafe(chr(int(code, 16)))
