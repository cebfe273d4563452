"""A container's output as JSON lines: what the program printed, with the record's time and number."""

from __future__ import annotations

import io
import json

import pytest

from trackside.model import Input
from trackside.read.detect import read_source
from trackside.read.format import HEAD_BYTES, CollectingSink, InputSource

LINES = ["starting", "Traceback (most recent call last):", '  File "a.py", line 1, in <module>', "KeyError: 'k'"]


def read(records: list[object]) -> tuple[Input, CollectingSink]:
    data = "".join(f"{json.dumps(record)}\n" for record in records).encode()
    sink = CollectingSink()
    return read_source(InputSource("out.json", data[:HEAD_BYTES], io.BytesIO(data), len(data), 0.0), sink), sink


@pytest.mark.parametrize(
    "record",
    [
        lambda line: {"log": f"{line}\n", "stream": "stderr", "time": "2026-01-02T03:04:05.678901234Z"},
        lambda line: {"log": line, "kubernetes": {"pod_name": "train-0"}, "date": 1767323045.678},
        lambda line: {"textPayload": line, "timestamp": "2026-01-02T03:04:05.678Z", "insertId": "x"},
        lambda line: {"message": line, "timestamp": 1767323045678, "ingestionTime": 1767323046000},
    ],
)
def test_the_printed_lines_are_read(record: object) -> None:
    row, sink = read([record(line) for line in LINES])  # type: ignore[operator]
    exception = next(event for event in sink.events if event.kind == "exception")
    assert row.format == "container-json"
    assert (exception.get("type"), exception.at.line) == ("KeyError", 4)
    assert exception.time == pytest.approx(1767323045.678)


@pytest.mark.parametrize(
    "record",
    [
        {"step": 1, "loss": 2.5, "time": "2026-01-02T03:04:05Z", "message": "train"},
        {"message": "loss 2.5"},
        {"log": {"loss": 2.5}, "time": 1767323045},
        ["log", "time"],
    ],
)
def test_a_programs_own_records_are_not(record: object) -> None:
    assert read([record] * 5)[0].format != "container-json"
