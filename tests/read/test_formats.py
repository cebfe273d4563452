"""At least one real layout of every metric format: the recognized format and the content of each file in ``samples/``.

``pytest tests/read/test_formats.py --rewrite`` writes ``expected.json`` again: check the diff.
"""

from __future__ import annotations

import datetime as dt
import io
import json
from pathlib import Path
from typing import Any

import pytest

from trackside.catalog.metrics import DESCRIPTIVE_LABELS
from trackside.model import Input, Series
from trackside.read.detect import formats, read_source
from trackside.read.format import HEAD_BYTES, CollectingSink, InputSource

SAMPLES = Path(__file__).parent / "samples"
GOLDEN = SAMPLES / "expected.json"
NAMES = sorted(path.name for path in SAMPLES.iterdir() if path != GOLDEN)
MODIFIED_S = dt.datetime(2025, 11, 21, 13, 0, tzinfo=dt.UTC).timestamp()
"""The modification time of the files that readers get."""
OTHER_PLANE_FORMATS = {"rank-times"}
"""Formats of measurements that belong to the log plane."""


def read(name: str) -> tuple[Input, CollectingSink]:
    data = (SAMPLES / name).read_bytes()
    sink = CollectingSink()
    return read_source(InputSource(name, data[:HEAD_BYTES], io.BytesIO(data), len(data), MODIFIED_S), sink), sink


def series_key(series: Series) -> str:
    """Metric and identity, as ``gpu_power_watts{gpu=0, node=n1}``."""
    labels = (f"{name}={value}" for name, value in series.labels if name == "job" or name not in DESCRIPTIVE_LABELS)
    return series.metric + "{" + ", ".join(labels) + "}"


def gpu_description(series: Series) -> str:
    """The GPU of a series: all labels in the file that describe it."""
    return ", ".join(f"{name}={value}" for name, value in series.labels if name in ("gpu", "mig", *DESCRIPTIVE_LABELS))


def contents(name: str) -> dict[str, Any]:
    """The row of a file, its series as (time, value), and its events."""
    row, sink = read(name)
    curves: dict[str, list[list[Any]]] = {}
    for block in sink.blocks:
        for index, time, value in zip(
            block.index.tolist(), block.times_ms.tolist(), block.values.tolist(), strict=True
        ):
            stamp = dt.datetime.fromtimestamp(time / 1000, dt.UTC).isoformat(timespec="milliseconds")
            point = [stamp.removesuffix("+00:00") + "Z", float(f"{value:.12g}")]
            curves.setdefault(series_key(block.series[index]), []).append(point)
    events = [{"kind": event.kind, "rank": event.rank, **event.fields} for event in sink.events]
    gpus = sorted({gpu_description(series) for block in sink.blocks for series in block.series} - {""})
    header = {"format": row.format, "status": row.status, "rows": row.rows, "note": row.note}
    extra = ({"events": events} if events else {}) | ({"gpus": gpus} if gpus else {})
    return header | extra | {"curves": {key: curves[key] for key in sorted(curves)}}


def as_lines(answers: dict[str, dict[str, Any]]) -> str:
    """JSON with one line for each series and each event."""
    lines = json.dumps(answers, indent=1).splitlines()
    parts, depth = [], 0
    for line in lines:
        previous_depth = depth
        depth += line.count("[") - line.count("]")
        parts.append((" " if previous_depth else "\n") + (line.strip() if previous_depth else line))
    return "".join(parts).replace("[ ", "[").replace(" ]", "]").strip() + "\n"


def test_contents_of_every_sample(rewrite: bool) -> None:
    answers = {name: contents(name) for name in NAMES}
    if rewrite:
        GOLDEN.write_text(as_lines(answers), "utf-8")
    expected = json.loads(GOLDEN.read_text("utf-8"))
    assert list(expected) == NAMES
    for name in NAMES:
        assert answers[name] == expected[name], name


def test_every_format_has_a_sample() -> None:
    expected = {format_.id for format_ in formats() if format_.plane == "metric"} | OTHER_PLANE_FORMATS
    assert {row["format"] for row in json.loads(GOLDEN.read_text("utf-8")).values()} == expected


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
def test_truncated_samples(name: str, share: float) -> None:
    """A truncated file gives no more samples than the whole one."""
    complete = {(series, time, value) for series, curve in contents(name)["curves"].items() for time, value in curve}
    data = (SAMPLES / name).read_bytes()
    part = data[: int(len(data) * share)]
    sink = CollectingSink()
    row = read_source(InputSource(name, part[:HEAD_BYTES], io.BytesIO(part), len(part), MODIFIED_S), sink)
    assert "defect" not in row.note
    assert row.note or row.status == "read"
    assert len(complete) >= sum(map(len, sink.blocks))
