"""One real layout of every format of metrics at least: what each file in ``formats/`` is taken for, and all it says.

``pytest tests/read/test_formats.py --rewrite`` writes ``expected.json`` anew: look at what changed.
"""

from __future__ import annotations

import datetime as dt
import io
import json
from pathlib import Path
from typing import Any

import pytest

from trackside.catalog.metrics import DESCRIPTIVE
from trackside.model import Input, Series
from trackside.read.detect import formats, read_source
from trackside.read.format import HEAD_BYTES, CollectingSink, Source

SAMPLES = Path(__file__).parent / "samples"
GOLDEN = SAMPLES / "expected.json"
NAMES = sorted(path.name for path in SAMPLES.iterdir() if path != GOLDEN)
WRITTEN = dt.datetime(2025, 11, 21, 13, 0, tzinfo=dt.UTC).timestamp()
"""When the files were last written, as far as their readers are told."""
BESIDE = {"rank-times"}
"""Formats of measurements that are read as the log's."""


def read(name: str) -> tuple[Input, CollectingSink]:
    data = (SAMPLES / name).read_bytes()
    found = CollectingSink()
    return read_source(Source(name, data[:HEAD_BYTES], io.BytesIO(data), len(data), WRITTEN), found), found


def named(series: Series) -> str:
    """Metric and identity, as ``gpu_power_watts{gpu=0, node=n1}``."""
    labels = (f"{name}={value}" for name, value in series.labels if name == "job" or name not in DESCRIPTIVE)
    return series.metric + "{" + ", ".join(labels) + "}"


def described(series: Series) -> str:
    """Which GPU it is of, in all words that the file has for it."""
    return ", ".join(f"{name}={value}" for name, value in series.labels if name in ("gpu", "mig", *DESCRIPTIVE))


def said(name: str) -> dict[str, Any]:
    """The row of a file, its curves as (time, value), and its events."""
    row, found = read(name)
    curves: dict[str, list[list[Any]]] = {}
    for block in found.blocks:
        for place, time, value in zip(
            block.index.tolist(), block.times_ms.tolist(), block.values.tolist(), strict=True
        ):
            stamp = dt.datetime.fromtimestamp(time / 1000, dt.UTC).isoformat(timespec="milliseconds")
            point = [stamp.removesuffix("+00:00") + "Z", float(f"{value:.12g}")]
            curves.setdefault(named(block.series[place]), []).append(point)
    events = [{"kind": event.kind, "rank": event.rank, **event.fields} for event in found.events]
    gpus = sorted({described(series) for block in found.blocks for series in block.series} - {""})
    told = {"format": row.format, "status": row.status, "rows": row.rows, "note": row.note}
    more = ({"events": events} if events else {}) | ({"gpus": gpus} if gpus else {})
    return told | more | {"curves": {key: curves[key] for key in sorted(curves)}}


def written(answers: dict[str, dict[str, Any]]) -> str:
    """As JSON with a line for each curve and each event."""
    lines = json.dumps(answers, indent=1).splitlines()
    parts, depth = [], 0
    for line in lines:
        inside = depth
        depth += line.count("[") - line.count("]")
        parts.append((" " if inside else "\n") + (line.strip() if inside else line))
    return "".join(parts).replace("[ ", "[").replace(" ]", "]").strip() + "\n"


def test_golden(rewrite: bool) -> None:
    answers = {name: said(name) for name in NAMES}
    if rewrite:
        GOLDEN.write_text(written(answers), "utf-8")
    expected = json.loads(GOLDEN.read_text("utf-8"))
    assert list(expected) == NAMES
    for name in NAMES:
        assert answers[name] == expected[name], name


def test_every_format_has_a_sample() -> None:
    wanted = {each.id for each in formats() if each.plane == "metric"} | BESIDE
    assert {row["format"] for row in json.loads(GOLDEN.read_text("utf-8")).values()} == wanted


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
def test_cut_off(name: str, share: float) -> None:
    """A file that ends early keeps what it held, and nothing that it did not hold."""
    whole = {(series, time, value) for series, curve in said(name)["curves"].items() for time, value in curve}
    data = (SAMPLES / name).read_bytes()
    part = data[: int(len(data) * share)]
    found = CollectingSink()
    row = read_source(Source(name, part[:HEAD_BYTES], io.BytesIO(part), len(part), WRITTEN), found)
    assert "defect" not in row.note
    assert row.note or row.status == "read"
    assert len(whole) >= sum(map(len, found.blocks))
