"""Tables that no reader can use are reported, not read as job output; tables that jobs print remain job output."""

from __future__ import annotations

import pytest

from tests.read.metrics.reading import read

ROWS = "1,2,3,4\n" * 5


@pytest.mark.parametrize(
    "heading", ["time,foo,bar,baz", "gpu,power,heat,noise", ",cluster,unit,value", '"timestamp","a b","c (%)","d/s"']
)
def test_the_note_says_what_is_missing(heading: str) -> None:
    row, sink = read(f"{heading}\n{ROWS}", "export.csv")
    assert (row.format, row.status, row.plane) == ("other-table", "unrecognised", "metric")
    assert heading.replace('"', "").strip(",").split(",")[-1] in row.note
    assert "metrics need a time column (timestamp, time, ts ...) and names as in docs/metrics.md" in row.note
    assert not sink.events


def test_a_long_list_of_columns_is_shortened() -> None:
    names = ",".join(f"c{number}" for number in range(30))
    row, _ = read(f"{names}\n" + (",".join("1" * 30) + "\n") * 5, "export.csv")
    assert "c0, c1, c2, c3, c4, c5 and 24 more;" in row.note


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (f"epoch,train_loss,val_loss,lr\n{ROWS}", "metrics.csv"),  # the log scan's
        (f"node,gpu,power,heat\n{ROWS}", "slurm-42.out"),
        (f"node,gpu,power,heat\n{ROWS}1,2,3\n", "export.csv"),
        (f"one, two and three\n{ROWS}", "notes.txt"),
        ("a,b,c,d\n1,2,3,4\n", "export.csv"),
        ("\n" * 100, "export.csv"),
        ("x" * 70_000, "export.csv"),
        (f"a,a,b,c\n{ROWS}", "export.csv"),
    ],
)
def test_other_text_is_not_recognized(text: str, name: str) -> None:
    assert read(text, name)[0].format != "other-table"
