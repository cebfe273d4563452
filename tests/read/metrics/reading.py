"""Read a metric file from memory as ``trackside`` does, and get its samples."""

from __future__ import annotations

import io

import trackside.read.detect as detect
from trackside.model import Input
from trackside.read.format import HEAD_BYTES, CollectingSink, InputSource

Labels = tuple[tuple[str, str], ...]
Curve = list[tuple[int, float]]
"""(ms, value) in order of time."""
T0 = 1_763_729_760_000
"""2025-11-21T12:56:00Z in milliseconds."""


def read(
    data: bytes | str, path: str = "scrape.prom", modified: float | None = T0 / 1000
) -> tuple[Input, CollectingSink]:
    """The ``inputs`` row of the file, and a sink with its content."""
    raw = data.encode() if isinstance(data, str) else data
    sink = CollectingSink()
    source = InputSource(path, raw[:HEAD_BYTES], io.BytesIO(raw), len(raw), modified)
    return detect.read_source(source, sink), sink


def curves(sink: CollectingSink) -> dict[tuple[str, Labels], Curve]:
    """Samples by metric and labels."""
    samples: dict[tuple[str, Labels], Curve] = {}
    for block in sink.blocks:
        for index, time, value in zip(
            block.index.tolist(), block.times_ms.tolist(), block.values.tolist(), strict=True
        ):
            series = block.series[index]
            samples.setdefault((series.metric, series.labels), []).append((time, value))
    return {key: sorted(curve) for key, curve in samples.items()}


def metric(sink: CollectingSink, name: str) -> dict[Labels, Curve]:
    """The curves of one of our metrics."""
    return {labels: curve for (metric_name, labels), curve in curves(sink).items() if metric_name == name}


def only(sink: CollectingSink, name: str) -> Curve:
    """The one curve of a metric."""
    (curve,) = metric(sink, name).values()
    return curve
