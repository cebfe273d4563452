"""What VictoriaMetrics' ``/api/v1/export`` gives: a JSON object a line, each a series with all its values and times."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from trackside.catalog.dialect import BLANK
from trackside.read.blocks import Blocks
from trackside.read.format import Format, Match, Result, Sink, Source
from trackside.read.measurements import Measurements

LONGEST = 64 << 20
"""Bytes of a line: some three million samples of one series."""
_LINE = re.compile(rb'\s*\{\s*"metric"\s*:\s*\{[^\n]*?\}\s*,\s*"(?:values|timestamps)"\s*:\s*\[')


class _Plain(msgspec.Struct, gc=False):
    metric: dict[str, str]
    values: list[float]
    timestamps: list[float]


class _Any(msgspec.Struct, gc=False):
    """A line with values that JSON has no number for: infinities are written as text, and so is NaN by some; null is
    NaN as well, and what marks that a series ended."""

    metric: dict[str, str]
    values: list[float | str | None]
    timestamps: list[float]


_plain = msgspec.json.Decoder(_Plain)
_any = msgspec.json.Decoder(_Any)


def _sniff(source: Source) -> Match | None:
    return Match(0.95, "an export of VictoriaMetrics") if _LINE.match(source.head[: 16 << 10]) else None


def _read(source: Source, sink: Sink) -> Result:
    found, blocks = Measurements(source.path, sink, holes=False), Blocks(source.stream, LONGEST)
    known: dict[tuple[tuple[str, str], ...], int] = {}  # a series may come in several lines
    broken = first_broken = unnamed = 0
    for line, offset, text in _lines(blocks):
        try:
            metric, times, values = _decoded(text)
        except (msgspec.DecodeError, ValueError):
            broken, first_broken = broken + 1, first_broken or line
            continue
        key = tuple(metric.items())
        series = known.get(key)
        if series is None:
            name = metric.pop("__name__", None)
            unnamed += name is None
            series = -1 if name is None else found.series(name, metric, line, offset, len(text))
        if series >= 0:
            known[key] = series
            found.points(series, times, values)
    notes = [
        f"{broken:,} lines are broken or cut off (first: line {first_broken:,})" if broken else "",
        f"{blocks.too_long:,} lines longer than {LONGEST >> 20} MiB" if blocks.too_long else "",
        f"{unnamed:,} series without a name, not kept" if unnamed else "",
    ]
    return found.result(notes, lost=any(notes))


def _lines(blocks: Blocks) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset and text of each line that holds anything."""
    for block in blocks:
        offset = block.offset
        for number, text in enumerate(block.data.split(b"\n"), start=block.line):
            if text.strip():
                yield number, offset, text
            offset += len(text) + 1


def _decoded(text: bytes) -> tuple[dict[str, str], Sequence[float], Sequence[float]]:
    """Labels, times and values of a line. Raises msgspec.DecodeError, or ValueError where they don't go together or a
    text as value is no number."""
    try:
        plain = _plain.decode(text)
        metric, times, values = plain.metric, plain.timestamps, plain.values
    except msgspec.ValidationError:
        row = _any.decode(text)
        metric, times = row.metric, row.timestamps
        values = [BLANK if each is None else float(each) for each in row.values]
    if len(times) != len(values):
        raise ValueError("not a time for each value")
    return metric, times, values


FORMAT = Format("victoria-export", "VictoriaMetrics export, JSON lines (/api/v1/export)", "metric", _sniff, _read)
