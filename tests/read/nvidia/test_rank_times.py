"""Step times of every rank: recognized columns, units, and tables that are not read."""

from __future__ import annotations

import pytest

from tests.read.nvidia.reading import read
from trackside.catalog.events import EVENTS
from trackside.model import Event


def events(text: str, path: str = "run/times.csv") -> tuple[list[Event], str, str]:
    result, sink = read(text, path=path)
    assert result.format == "rank-times"
    for event in sink.events:
        assert set(event.fields) <= set(EVENTS[event.kind].fields)
    return sink.events, result.status, result.note


def test_normalized_times_of_workers() -> None:
    text = ",worker,gpu,time,batch_time_norm\n0,6,25,1,476\n1,7,25,1,1000\n2,6,25,11,480\n"
    step_times, status, note = events(text)
    assert [(event.rank, event.fields) for event in step_times] == [
        (6, {"step": 1, "relative_time": 476.0}),
        (7, {"step": 1, "relative_time": 1000.0}),
        (6, {"step": 11, "relative_time": 480.0}),
    ]
    assert step_times[2].at.line == 4
    assert text[step_times[2].at.offset :].startswith("2,6,25,11,480")
    assert status == "read"
    assert note.endswith("; normalized times: only ratios between ranks are meaningful")


@pytest.mark.parametrize(
    ("column", "cell", "field", "value"),
    [
        ("step_time", "0.5", "step_time_s", 0.5),
        ("step_time_ms", "500", "step_time_s", 0.5),
        ("batch_time_s", "0.5", "step_time_s", 0.5),
        ("compute_time_us", "500000", "compute_time_s", 0.5),
        ("data_time", "0.5", "data_time_s", 0.5),
        ("comm_time_ms", "500", "comm_time_s", 0.5),
        ("iter_time_normalized", "0.5", "relative_time", 0.5),
    ],
)
def test_column_names_give_kind_and_unit(column: str, cell: str, field: str, value: float) -> None:
    step_times, _, _ = events(f"rank,step,{column}\n3,7,{cell}\n")
    assert [(event.rank, event.fields) for event in step_times] == [(3, {"step": 7, field: value})]


def test_invalid_rows_are_skipped_and_counted() -> None:
    step_times, status, note = events(
        "rank,step,step_time\n0,1,0.5\n0,2\nx,3,0.5\n-1,4,0.5\n0,5,nan\n0,6,-1\n0,7,0.7\n0,8,0."
    )
    assert [event.fields["step"] for event in step_times] == [1, 7, 8]
    assert status == "partial"
    assert note.endswith("; 5 rows could not be read")


def test_a_table_of_several_jobs_is_recognized_and_not_read() -> None:
    result, sink = read(",0,1,2,3,4\njob_00,0.05,0.04,,0.1,\njob_01,0.02,0.05,0.06,,\n")
    assert (result.format, result.status) == ("rank-times", "unrecognised")
    assert "not of a single run" in result.note
    assert not sink.events


@pytest.mark.parametrize(
    "text", ["epoch,step,train_loss\n0,9,2.5\n", "rank,step,loss\n0,1,2\n", "step,step_time\n1,2\n"]
)
def test_other_tables_are_not_recognized(text: str) -> None:
    result, _ = read(text, path="a.csv")
    assert result.format != "rank-times"
