"""The output of VictoriaMetrics' ``/api/v1/export``: one JSON object per line, a series with all its values and
times."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from trackside.catalog.dialect import BLANK
from trackside.read.blocks import Blocks
from trackside.read.format import Format, InputSource, Match, Result, Sink
from trackside.read.measurements import Measurements

MAX_LINE_BYTES = 64 << 20
"""Longest line, bytes: about three million samples of one series."""
_LINE = re.compile(rb'\s*\{\s*"metric"\s*:\s*\{[^\n]*?\}\s*,\s*"(?:values|timestamps)"\s*:\s*\[')


class _PlainLine(msgspec.Struct, gc=False):
    metric: dict[str, str]
    values: list[float]
    timestamps: list[float]


class _LineWithText(msgspec.Struct, gc=False):
    """A line with values that are not JSON numbers: infinities, and NaN from some tools, as text; null for NaN and for
    the end of a series."""

    metric: dict[str, str]
    values: list[float | str | None]
    timestamps: list[float]


_plain_decoder = msgspec.json.Decoder(_PlainLine)
_text_decoder = msgspec.json.Decoder(_LineWithText)


def _sniff(source: InputSource) -> Match | None:
    return Match(0.95, "a VictoriaMetrics export") if _LINE.match(source.head[: 16 << 10]) else None


def _read(source: InputSource, sink: Sink) -> Result:
    measurements, blocks = Measurements(source.path, sink, nan_is_blank=False), Blocks(source.stream, MAX_LINE_BYTES)
    series_by_labels: dict[tuple[tuple[str, str], ...], int] = {}  # a series may span several lines
    broken_lines = first_broken = unnamed_series = 0
    for line, offset, text in _lines(blocks):
        try:
            metric, times, values = _decode(text)
        except (msgspec.DecodeError, ValueError):
            broken_lines, first_broken = broken_lines + 1, first_broken or line
            continue
        key = tuple(metric.items())
        series = series_by_labels.get(key)
        if series is None:
            name = metric.pop("__name__", None)
            unnamed_series += name is None
            series = -1 if name is None else measurements.series(name, metric, line, offset, len(text))
        if series >= 0:
            series_by_labels[key] = series
            measurements.points(series, times, values)
    notes = [
        f"{broken_lines:,} lines are malformed or truncated (first: line {first_broken:,})" if broken_lines else "",
        f"{blocks.too_long:,} lines longer than {MAX_LINE_BYTES >> 20} MiB" if blocks.too_long else "",
        f"{unnamed_series:,} series without a name, dropped" if unnamed_series else "",
    ]
    return measurements.result(notes, lost=any(notes))


def _lines(blocks: Blocks) -> Iterator[tuple[int, int, bytes]]:
    """Yield number, offset and text of each non-blank line."""
    for block in blocks:
        offset = block.offset
        for number, text in enumerate(block.data.split(b"\n"), start=block.line):
            if text.strip():
                yield number, offset, text
            offset += len(text) + 1


def _decode(text: bytes) -> tuple[dict[str, str], Sequence[float], Sequence[float]]:
    """Labels, times and values of a line. Raises msgspec.DecodeError, or ValueError if their numbers differ or a text
    value is not a number."""
    try:
        plain = _plain_decoder.decode(text)
        metric, times, values = plain.metric, plain.timestamps, plain.values
    except msgspec.ValidationError:
        row = _text_decoder.decode(text)
        metric, times = row.metric, row.timestamps
        values = [BLANK if value is None else float(value) for value in row.values]
    if len(times) != len(values):
        raise ValueError("times and values differ in number")
    return metric, times, values


FORMAT = Format("victoria-export", "VictoriaMetrics export, JSON lines (/api/v1/export)", "metric", _sniff, _read)
