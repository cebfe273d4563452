"""A chart as a picture: for the docs, for paper, for whoever draws without a page."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trackside.show.charts.chart import PAINT, Drawn, Raster
from trackside.show.charts.heat_map import DARKEST, LIGHTEST, MIDDLE

LIGHT: Mapping[str, str] = {
    "ink": "#1b1f24", "faint": "#d5dade", "ground": "#ffffff", "accent": "#1f5fa8", "second": "#a8480b",
    "third": "#4d7a1f", "bad": "#b3161b", "warn": "#c98500", "good": "#2c7a3d", "band": "#eef1f4",
}  # fmt: skip


def standalone(drawn: Drawn, theme: Mapping[str, str] = LIGHT) -> dict[str, Any]:
    """A specification that needs no page: its colours defined, its rasters as pictures in it.

    ``theme``: a colour as #rrggbb for each of ``PAINT``.
    """
    paint = [{"name": name, "value": theme[name]} for name in PAINT]
    ramp = _palette(theme)
    pictures = {
        name: {"width": raster.width, "height": raster.height, "values": [], "picture": _picture(raster, ramp)}
        for name, raster in drawn.rasters.items()
    }
    spec: dict[str, Any] = _still(dict(drawn.spec))
    spec["signals"] = [*paint, *spec["signals"]]
    spec["data"] = [
        {**each, "values": [pictures[each["name"]]]} if each["name"] in pictures else each for each in spec["data"]
    ]
    return spec


def _palette(theme: Mapping[str, str]) -> bytes:
    """Red, green and blue of a raster's values 0 to 254, and the ground for 255: the colours of the scale ``heat``."""
    stops = np.array([list(bytes.fromhex(theme[name][1:])) for name in ("ground", "accent", "ink")])
    shares = LIGHTEST + (DARKEST - LIGHTEST) * np.arange(255) / 254
    colours = np.rint([np.interp(shares, (0, MIDDLE, 1), channel) for channel in stops.T]).T
    return np.vstack([colours, stops[:1]]).astype(np.uint8).tobytes()


def _still(part: Any) -> Any:
    """Without heat maps worked out by Vega, which needs a browser's canvas for them: their pictures instead."""
    if isinstance(part, Mapping):
        named = {name: _still(value) for name, value in part.items()}
        if isinstance(named.get("transform"), list):
            named["transform"] = [each for each in named["transform"] if each.get("type") != "heatmap"]
        if part.get("type") == "image":
            update = named["encode"]["update"]
            update["url"] = {"field": "picture"}
            del update["image"]
        return named
    if isinstance(part, Sequence) and not isinstance(part, str):
        return [_still(each) for each in part]
    return part


def _picture(raster: Raster, ramp: bytes) -> str:
    """The cells as a PNG with a palette, in a data address; those of nothing are clear."""
    cells = np.frombuffer(raster.cells, np.uint8).reshape(raster.height, raster.width)
    lines = np.pad(cells, ((0, 0), (1, 0))).tobytes()  # each begins with a 0: it is filtered by nothing
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", raster.width, raster.height, 8, 3, 0, 0, 0)),
        (b"PLTE", ramp),
        (b"tRNS", b"\xff" * 255 + b"\0"),
        (b"IDAT", zlib.compress(lines)),
        (b"IEND", b""),
    )
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )
    return "data:image/png;base64," + base64.b64encode(png).decode()
