"""Reads a text as one input, and returns its samples in a form that tests can write by hand."""

from __future__ import annotations

import datetime as dt
import io

from trackside.model import Input
from trackside.read.detect import read_source
from trackside.read.format import HEAD_BYTES, CollectingSink, InputSource

WRITTEN = 1_795_248_600.0
"""When the files of these tests were last written: 2026-11-21 08:10:00 UTC."""
Key = tuple[str, str]
"""(metric, labels as ``gpu=0 reason=x`` without descriptive ones)"""
Points = list[tuple[float, float]]


def utc(text: str) -> float:
    """POSIX seconds of an ISO date and time in UTC."""
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp()


def read(
    text: str | bytes, path: str = "run/gpu.txt", written: float | None = WRITTEN, crlf: bool = False
) -> tuple[Input, CollectingSink]:
    data = text.encode() if isinstance(text, str) else text
    if crlf:
        data = data.replace(b"\n", b"\r\n")
    source = InputSource(path, data[:HEAD_BYTES], io.BufferedReader(io.BytesIO(data)), len(data), written)  # type: ignore[arg-type]
    sink = CollectingSink()
    return read_source(source, sink), sink


DESCRIPTIVE = ("gpu_uuid", "gpu_model", "pci")


def points(sink: CollectingSink) -> dict[Key, Points]:
    """Samples by curve, in order of time; values to twelve digits."""
    curves: dict[Key, Points] = {}
    for block in sink.blocks:
        for index, time, value in zip(block.index, block.times_ms, block.values, strict=True):
            series = block.series[index]
            labels = " ".join(f"{name}={label}" for name, label in series.labels if name not in DESCRIPTIVE)
            curves.setdefault((series.metric, labels), []).append((int(time) / 1000, float(f"{value:.12g}")))
    return {key: sorted(curve) for key, curve in curves.items()}


def last(sink: CollectingSink) -> dict[Key, float]:
    """The last value of each curve."""
    return {key: curve[-1][1] for key, curve in points(sink).items()}


def of_gpu(sink: CollectingSink, gpu: str) -> dict[str, float]:
    """The last value of each metric of a GPU without further labels."""
    return {metric: value for (metric, labels), value in last(sink).items() if labels == f"gpu={gpu}"}


def label_sets(sink: CollectingSink) -> set[tuple[tuple[str, str], ...]]:
    """The distinct labels of all series."""
    return {series.labels for block in sink.blocks for series in block.series}
