"""What VictoriaMetrics' ``/api/v1/export`` gives: a JSON object a line, each a series with all its values and times."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from trackside.catalog.dialect import BLANK
from trackside.read.blocks import Block, Blocks
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


class _Reading:
    """One export on its way through. A series may come in several lines."""

    def __init__(self, found: Measurements) -> None:
        self._found = found
        self._known: dict[tuple[tuple[str, str], ...], int] = {}
        self._broken = self._first_broken = self._unnamed = 0

    def take(self, block: Block) -> None:
        """Read the lines of a block."""
        offset = 0
        for number, text in enumerate(block.data.split(b"\n"), start=block.line):
            if text.strip() and not self._line(text, number, block.offset + offset):
                self._broken += 1
                self._first_broken = self._first_broken or number
            offset += len(text) + 1

    def _line(self, text: bytes, line: int, offset: int) -> bool:
        try:
            row = _decoded(text)
        except (msgspec.DecodeError, ValueError):  # a text as value that is no number
            return False
        metric, times, values = row
        if len(times) != len(values):
            return False
        key = tuple(metric.items())
        series = self._known.get(key)
        if series is None:
            name = metric.pop("__name__", None)
            self._unnamed += name is None
            series = -1 if name is None else self._found.series(name, metric, line, offset, len(text))
            if series >= 0:
                self._known[key] = series
        if series >= 0:
            self._found.points(series, times, values)
        return True

    def finish(self, blocks: Blocks) -> Result:
        """Say what was lost."""
        broken = f"{self._broken:,} lines are broken or cut off (first: line {self._first_broken:,})"
        notes = [
            broken if self._broken else "",
            f"{blocks.too_long:,} lines longer than {LONGEST >> 20} MiB" if blocks.too_long else "",
            f"{self._unnamed:,} series without a name, not kept" if self._unnamed else "",
        ]
        return self._found.result(notes, lost=any(notes))


def _decoded(text: bytes) -> tuple[dict[str, str], Sequence[float], Sequence[float]]:
    """Labels, times and values of a line. Raises msgspec.DecodeError or ValueError."""
    try:
        plain = _plain.decode(text)
        return plain.metric, plain.timestamps, plain.values
    except msgspec.ValidationError:
        row = _any.decode(text)
        return row.metric, row.timestamps, [BLANK if each is None else float(each) for each in row.values]


def _read(source: Source, sink: Sink) -> Result:
    reading, blocks = _Reading(Measurements(source.path, sink, holes=False)), Blocks(source.stream, LONGEST)
    for block in blocks:
        reading.take(block)
    return reading.finish(blocks)


FORMAT = Format("victoria-export", "VictoriaMetrics export, JSON lines (/api/v1/export)", "metric", _sniff, _read)
