"""Records of jobs of all batch systems: each file of schedulers/ and what is read from it.

``pytest tests/read/test_schedulers.py --rewrite`` writes ``expected.json`` again: check the diff.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest

from trackside.catalog.records import RECORDS
from trackside.model import Input
from trackside.read.detect import formats, read_source
from trackside.read.format import HEAD_BYTES, CollectingSink, InputSource

SAMPLES = Path(__file__).parent / "schedulers"
GOLDEN = SAMPLES / "expected.json"
NAMES = sorted(path.name for path in SAMPLES.iterdir() if path != GOLDEN)
MODIFIED_S = dt.datetime(2026, 5, 20, tzinfo=dt.UTC).timestamp()
"""When the files were written: completes dates without a year."""


def read(name: str, data: bytes) -> tuple[Input, CollectingSink]:
    sink = CollectingSink()
    return read_source(InputSource(name, data[:HEAD_BYTES], io.BytesIO(data), len(data), MODIFIED_S), sink), sink


def contents(name: str) -> dict[str, Any]:
    row, sink = read(name, (SAMPLES / name).read_bytes())
    rows = [{"kind": record.kind, "line": record.at.line, **record.fields} for record in sink.records]
    rows += [{"kind": event.kind, "line": event.at.line, **event.fields} for event in sink.events]
    return {"format": row.format, "status": row.status, "note": row.note, "rows": json.loads(json.dumps(rows))}


def test_records_of_every_sample(rewrite: bool) -> None:
    answers = {name: contents(name) for name in NAMES}
    if rewrite:
        GOLDEN.write_text(json.dumps(answers, indent=1) + "\n", "utf-8")
    expected = json.loads(GOLDEN.read_text("utf-8"))
    assert list(expected) == NAMES
    for name in NAMES:
        assert answers[name] == expected[name], name


@pytest.mark.parametrize("name", NAMES)
def test_fields_are_in_the_catalog(name: str) -> None:
    _, sink = read(name, (SAMPLES / name).read_bytes())
    for record in sink.records:
        assert set(record.fields) <= set(RECORDS[record.kind].fields)


@pytest.mark.parametrize("name", NAMES)
def test_damaged_files_raise_nothing(name: str) -> None:
    data = (SAMPLES / name).read_bytes()
    source = random.Random(7)
    pieces = [data[: source.randrange(len(data))] for _ in range(12)] + [
        data[source.randrange(len(data)) :] for _ in range(12)
    ]
    pieces += [data.replace(b" ", b""), data.replace(b"\n", b"\r\n"), data.replace(b"\n", b""), data * 40]
    for piece in pieces:
        row, _ = read(name, piece)
        assert "a bug in this reader" not in row.note


def test_every_batch_system_has_a_sample() -> None:
    read_here = {row["format"] for row in json.loads(GOLDEN.read_text("utf-8")).values()}
    batch_systems = {
        "lsf-jobs",
        "pbs-jobs",
        "qacct",
        "htcondor",
        "kubernetes",
        "sagemaker-job",
        "flux-eventlog",
        "job-reports",
    }
    assert batch_systems <= read_here <= {format_.id for format_ in formats()}
