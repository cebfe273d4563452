"""Answers of the Prometheus HTTP API (``/api/v1/query_range``, ``/api/v1/query``), which many stores speak, as files.

Several answers may stand one after the other, as ``curl`` appends them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from trackside.catalog.dialect import BLANK
from trackside.read.format import Format, Match, Result, Sink, Source
from trackside.read.measurements import Measurements

_BEGIN = re.compile(rb'\s*\{\s*"status"\s*:\s*"(success|error)"')
_NEXT = re.compile(rb'\}\s*(?=\{\s*"status"\s*:\s*")')
"""Between two answers. No text of a label can hold it: its quotes would be escaped."""
_KIND = re.compile(rb'"resultType"\s*:\s*"(matrix|vector|scalar|string|streams)"')

Point = tuple[float, str]
"""(seconds, value as text)"""


class _Curve(msgspec.Struct, gc=False):
    """Curves and their ``values`` stay undecoded until their turn: as objects they take five times the file's size."""

    metric: dict[str, str] = {}
    value: msgspec.Raw = msgspec.Raw()
    values: msgspec.Raw = msgspec.Raw()


class _Data(msgspec.Struct, rename={"kind": "resultType"}):
    kind: str
    result: msgspec.Raw


class _Answer(msgspec.Struct, rename={"error_type": "errorType", "partial": "isPartial"}):
    status: str
    data: _Data | None = None
    error: str = ""
    error_type: str = ""
    warnings: list[str] = []
    partial: bool = False


_answer = msgspec.json.Decoder(_Answer)
_each = msgspec.json.Decoder(list[msgspec.Raw])
_curve = msgspec.json.Decoder(_Curve)
_points = msgspec.json.Decoder(list[Point])
_point = msgspec.json.Decoder(Point)


def _sniff(source: Source) -> Match | None:
    begin = _BEGIN.match(source.head)
    if begin is None:
        return None
    kind = _KIND.search(source.head)
    if begin[1] == b"error":
        return Match(0.9, "an error of the Prometheus API") if b'"errorType"' in source.head else None
    if kind is None or kind[1] == b"streams":  # streams are log lines
        return None
    return Match(0.95, f"an answer of the Prometheus API ({kind[1].decode()})")


def _read(source: Source, sink: Sink) -> Result:
    data = source.whole()
    found = Measurements(source.path, sink, holes=False)
    notes: list[str] = []
    unnamed = counted = 0
    line = 1
    for start, end in _answers(data):
        line, counted = line + data.count(b"\n", counted, start), start
        try:
            answer = _answer.decode(memoryview(data)[start:end])
            unnamed += _take(answer, found, line)
        except msgspec.DecodeError as error:
            notes.append(f"an answer is cut off or broken (line {line:,}): {error}")
            continue
        if answer.status != "success":
            notes.append(f"an error instead of an answer: {answer.error_type}: {answer.error[:300]}")
        if answer.partial:
            notes.append("an answer that the store itself calls partial")
        notes.extend(f"warning of the store: {text[:300]}" for text in answer.warnings[:3])
        if answer.data is not None and answer.data.kind not in ("matrix", "vector"):
            notes.append(f"a {answer.data.kind} belongs to no series")
    if unnamed:
        notes.append(f"{unnamed:,} series without a name, not kept: the answer to an expression; query metrics by name")
    return found.result(list(dict.fromkeys(notes)), lost=bool(notes))


def _answers(data: bytes) -> Iterator[tuple[int, int]]:
    """Beginning and end of each answer."""
    start = 0
    for gap in _NEXT.finditer(data):
        yield start, gap.start() + 1
        start = gap.end()
    yield start, len(data)


def _take(answer: _Answer, found: Measurements, line: int) -> int:
    """Hand on the answer's values; how many of its series have no name."""
    unnamed = 0
    if answer.data is None or answer.data.kind not in ("matrix", "vector"):
        return 0
    for ordinal, undecoded in enumerate(_each.decode(answer.data.result), start=line):
        curve = _curve.decode(undecoded)
        name = curve.metric.pop("__name__", None)
        if name is None:
            unnamed += 1
            continue
        number = found.series(name, curve.metric, ordinal)
        if number < 0:
            continue
        points = _points.decode(curve.values) if bytes(curve.values) else []
        if bytes(curve.value):
            points.append(_point.decode(curve.value))
        found.points(number, [time for time, _ in points], [_number(text) for _, text in points])
    return unnamed


def _number(text: str) -> float:
    """A value as the API writes it."""
    try:
        return float(text)
    except ValueError:
        return BLANK


FORMAT = Format("prometheus-json", "answers of the Prometheus HTTP API (query, query_range)", "metric", _sniff, _read)
