"""On no bytes do these readers hang, raise undocumented errors, or give values outside the catalog."""

from __future__ import annotations

import io
import json
import time
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.read.nvidia import test_amd, test_csv, test_dcgmi, test_dmon, test_table, test_text, test_xml
from tests.read.nvidia.reading import read
from trackside.catalog.events import EVENTS
from trackside.catalog.metrics import METRICS
from trackside.read.detect import formats
from trackside.read.format import HEAD_BYTES, CollectingSink, Format, InputSource, InputTooLarge

IDS = {
    "nvidia-smi-csv", "nvidia-smi-q", "nvidia-smi-xml", "nvidia-smi-table", "nvidia-smi-dmon", "nvidia-smi-pmon",
    "nvidia-smi-capture", "dcgmi-dmon", "amd-smi-json", "rocm-smi-json", "rank-times",
}  # fmt: skip
READERS = [reader for reader in formats() if reader.id in IDS]
DOCUMENTED_ERRORS = (ValueError, OSError, EOFError, InputTooLarge, RecursionError, MemoryError)
SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
WHOLE = [
    "\n".join(test_csv.LOOP),
    test_text.capture(test_text.new(0), test_text.new(1)),
    test_text.capture(test_text.MIG),
    test_xml.document(test_xml.gpu(0), test_xml.gpu(1)),
    test_table.OLD,
    test_table.NEW,
    test_dmon.FULL,
    test_dmon.GPM,
    test_dmon.PMON,
    test_dcgmi.ITEMS,
    json.dumps({"card0": test_amd.CARD}),
    json.dumps([test_amd.amd(0)]),
    ",worker,gpu,time,batch_time_norm\n0,6,25,1,476\n",
]
TOKENS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["|", ",", "\n", ": ", "N/A", "[N/A]", "9" * 400, "-", "1e999", "0x", "<a>", "&b;", "GPU 0", "#", "{}",
                     "\0", "\ud7ff", "\u2028", "P99", "999999999999 MiB", "nan", "+" * 90, "Sat Nov 99 99:99:99 2026"]),
)  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Outputs with pieces removed, duplicated, swapped or overwritten."""
    text = draw(st.sampled_from(WHOLE)) + draw(st.sampled_from(["", *WHOLE]))
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 200)))
        text = (
            text[:start] + draw(TOKENS) + draw(st.sampled_from(["", text[start:end], text[start:end] * 2])) + text[end:]
        )
    return text.encode("utf-8", "surrogatepass") + draw(st.binary(max_size=20))


def source(data: bytes) -> InputSource:
    return InputSource("run/gpu.txt", data[:HEAD_BYTES], io.BufferedReader(io.BytesIO(data)), len(data), 1.79e9)  # type: ignore[arg-type]


def assert_valid(sink: CollectingSink) -> None:
    """Blocks are complete; metrics, ranges and event fields are those of the catalog."""
    for block in sink.blocks:
        assert len(block.index) == len(block.times_ms) == len(block.values)
        assert np.isfinite(block.values).all()
        for index, value in zip(block.index, block.values, strict=True):
            series = block.series[index]
            metric = METRICS[series.metric]
            assert metric.low <= value <= metric.high, series
            assert list(series.labels) == sorted(series.labels)
    for event in sink.events:
        assert set(event.fields) <= set(EVENTS[event.kind].fields)


def test_all_nvidia_and_amd_readers_are_tested() -> None:
    assert {reader.id for reader in READERS} == IDS


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.id)
@SETTINGS
@given(damaged())
def test_readers_of_damaged_output_raise_only_documented_errors(reader: Format, data: bytes) -> None:
    """Read even if not recognized: anything may follow a valid head."""
    reader.sniff(source(data))
    sink = CollectingSink()
    with suppress(*DOCUMENTED_ERRORS):
        reader.read(source(data), sink)
    assert_valid(sink)


@SETTINGS
@given(damaged())
def test_every_damaged_file_gets_its_row(data: bytes) -> None:
    result, sink = read(data)
    assert "defect" not in result.note
    assert_valid(sink)


TRAPS = {
    "spaces": lambda head: head + " " * 900_000,
    "dollars": lambda head: head + "\n" + "$ " * 300_000,
    "commas": lambda head: head + "\n" + "," * 900_000,
    "pipes": lambda head: head + "\n" + "|" * 900_000,
    "digits": lambda head: head + "\n" + "9" * 900_000,
    "colons": lambda head: head + "\n    a" + " : a" * 200_000,
    "tags": lambda head: head + "<a>" * 300_000,
    "lines": lambda head: head + "\n$ $ $ $ $ $ nvidia-smj" * 30_000,
}


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("number", range(len(WHOLE)))
def test_hostile_lines_are_read_in_linear_time(trap: str, number: int) -> None:
    """A megabyte of hostile text takes a few seconds on a loaded machine: no reader is quadratic."""
    data = TRAPS[trap](WHOLE[number]).encode()
    for reader in READERS:
        start_s = time.process_time()
        if reader.sniff(source(data)) is not None:
            with suppress(*DOCUMENTED_ERRORS):
                reader.read(source(data), CollectingSink())
        assert time.process_time() - start_s < 6.0, reader.id
