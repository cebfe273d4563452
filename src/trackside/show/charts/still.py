"""A chart as a picture: for the docs, for paper, for whoever draws without a page."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from trackside.show.charts.chart import PAINT, Drawn, Raster
from trackside.show.charts.heat_map import DARKEST, LIGHTEST, MIDDLE

Colour = tuple[int, int, int]
"""Red, green, blue: 0 to 255."""
LIGHT: Mapping[str, str] = {
    "ink": "#1b1f24", "faint": "#d5dade", "ground": "#ffffff", "accent": "#1f5fa8", "second": "#a8480b",
    "third": "#4d7a1f", "bad": "#b3161b", "warn": "#c98500", "good": "#2c7a3d", "band": "#eef1f4",
}  # fmt: skip
DARK: Mapping[str, str] = {
    "ink": "#e4e8ec", "faint": "#3a4149", "ground": "#14181d", "accent": "#74b3ff", "second": "#f2a25c",
    "third": "#a9d46f", "bad": "#ff7b72", "warn": "#f0b83d", "good": "#7bd08b", "band": "#222830",
}  # fmt: skip


def standalone(drawn: Drawn, theme: Mapping[str, str] = LIGHT) -> dict[str, Any]:
    """A specification that needs no page: its colours defined, its rasters as pictures in it.

    ``theme``: a colour as #rrggbb for each of ``PAINT``.
    """
    paint = [{"name": name, "value": theme[name]} for name in PAINT]
    ramp = palette(theme)
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


def palette(theme: Mapping[str, str]) -> list[Colour]:
    """The colours of a raster's values 0 to 254, and the ground for 255: those of the scale ``heat``."""
    ground, accent, ink = (_rgb(theme[name]) for name in ("ground", "accent", "ink"))
    colours = []
    for value in range(255):
        share = LIGHTEST + (DARKEST - LIGHTEST) * value / 254
        if share < MIDDLE:
            colours.append(_between(ground, accent, share / MIDDLE))
        else:
            colours.append(_between(accent, ink, (share - MIDDLE) / (1 - MIDDLE)))
    return [*colours, ground]


def _between(one: Colour, other: Colour, share: float) -> Colour:
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(one, other, strict=True))
    return red, green, blue


def _rgb(colour: str) -> Colour:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


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


def _picture(raster: Raster, ramp: Sequence[tuple[int, int, int]]) -> str:
    """The cells as a PNG with a palette, in a data address; those of nothing are clear."""
    lines = b"".join(
        b"\0" + raster.cells[row * raster.width : (row + 1) * raster.width] for row in range(raster.height)
    )
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", raster.width, raster.height, 8, 3, 0, 0, 0)),
        (b"PLTE", bytes(channel for colour in ramp for channel in colour)),
        (b"tRNS", b"\xff" * 255 + b"\0"),
        (b"IDAT", zlib.compress(lines)),
        (b"IEND", b""),
    )
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )
    return "data:image/png;base64," + base64.b64encode(png).decode()
