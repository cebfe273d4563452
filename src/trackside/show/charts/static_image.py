"""A chart as a static picture, for the docs and for print."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trackside.show.charts.chart import PAINT, Drawing, Raster
from trackside.show.charts.heat_map import DARKEST, LIGHTEST, MIDDLE

LIGHT: Mapping[str, str] = {
    "ink": "#1c2024", "faint": "#dde1e6", "ground": "#ffffff", "accent": "#1d5fbf", "second": "#a8510a",
    "third": "#6a4aa8", "bad": "#b0183f", "warn": "#855600", "good": "#0b6a66", "band": "#f1f4f7",
}  # fmt: skip
"""The colors of a report in its light theme."""


def standalone(drawing: Drawing, theme: Mapping[str, str] = LIGHT) -> dict[str, Any]:
    """A self-contained specification: colors are defined, rasters are embedded as images.

    ``theme``: a color as #rrggbb for each name of ``PAINT``.
    """
    paint = [{"name": name, "value": theme[name]} for name in PAINT]
    ramp = _palette(theme)
    pictures = {
        name: {"width": raster.width, "height": raster.height, "values": [], "picture": _picture(raster, ramp)}
        for name, raster in drawing.rasters.items()
    }
    spec: dict[str, Any] = _without_heat_maps(dict(drawing.spec))
    spec["signals"] = [*paint, *spec["signals"]]
    spec["data"] = [
        {**data_set, "values": [pictures[data_set["name"]]]} if data_set["name"] in pictures else data_set
        for data_set in spec["data"]
    ]
    return spec


def _palette(theme: Mapping[str, str]) -> bytes:
    """RGB bytes for the raster values 0 to 254 on the scale ``heat``, and the background for 255."""
    stops = np.array([list(bytes.fromhex(theme[name][1:])) for name in ("ground", "accent", "ink")])
    shares = LIGHTEST + (DARKEST - LIGHTEST) * np.arange(255) / 254
    colors = np.rint([np.interp(shares, (0, MIDDLE, 1), channel) for channel in stops.T]).T
    return np.vstack([colors, stops[:1]]).astype(np.uint8).tobytes()


def _without_heat_maps(part: Any) -> Any:
    """Replace Vega's heat-map transforms, which need a browser's canvas, by embedded images."""
    if isinstance(part, Mapping):
        copied = {name: _without_heat_maps(value) for name, value in part.items()}
        if isinstance(copied.get("transform"), list):
            copied["transform"] = [step for step in copied["transform"] if step.get("type") != "heatmap"]
        if part.get("type") == "image":
            update = copied["encode"]["update"]
            update["url"] = {"field": "picture"}
            del update["image"]
        return copied
    if isinstance(part, Sequence) and not isinstance(part, str):
        return [_without_heat_maps(item) for item in part]
    return part


def _picture(raster: Raster, ramp: bytes) -> str:
    """The cells as a palette PNG in a data URL; cells without samples are transparent."""
    cells = np.frombuffer(raster.cells, np.uint8).reshape(raster.height, raster.width)
    lines = np.pad(cells, ((0, 0), (1, 0))).tobytes()  # each PNG line begins with its filter type, 0: none
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
