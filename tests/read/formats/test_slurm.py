"""Slurm's records in every format: tests/read/slurm holds samples and the records expected of each."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from trackside.catalog.records import RECORDS
from trackside.model import Input
from trackside.query import Query
from trackside.read.detect import formats, read_source
from trackside.read.format import HEAD_BYTES, CollectingSink, InputSource
from trackside.stores.memory import MemoryStore

SAMPLES = Path(__file__).parent.parent / "slurm"
EXPECTED: dict[str, Any] = json.loads((SAMPLES / "expected.json").read_text())
SHARED = Path(__file__).resolve().parents[4] / "shared"
SCHEDULER_FORMATS = {format_.id for format_ in formats() if format_.plane == "scheduler"}


def read(path: Path) -> tuple[Input, CollectingSink]:
    data = path.read_bytes()
    sink = CollectingSink()
    return read_source(InputSource(path.name, data[:HEAD_BYTES], io.BytesIO(data), len(data)), sink), sink


def test_every_sample_has_an_expectation() -> None:
    assert {path.name for path in SAMPLES.iterdir()} - {"expected.json"} == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_records_of_a_sample(name: str) -> None:
    row, sink = read(SAMPLES / name)
    expected = EXPECTED[name]
    assert (row.format, row.status) == (expected["format"], expected["status"])
    assert expected.get("note", "") in row.note
    assert [record.kind for record in sink.records] == [record["kind"] for record in expected["records"]]
    for record, fields in zip(sink.records, expected["records"], strict=True):
        actual = {key: list(value) if isinstance(value := record.fields.get(key), tuple) else value for key in fields}
        assert {**actual, "kind": record.kind} == fields


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_fields_are_in_the_catalog_and_records_can_be_cited(name: str) -> None:
    _, sink = read(SAMPLES / name)
    store = MemoryStore(records=sink.records)
    for record in sink.records:
        assert set(record.fields) <= set(RECORDS[record.kind].fields)
        position = Query("record", record.kind).where(path=record.at.path, line=record.at.line, offset=record.at.offset)
        frame = store.ask(position)
        assert getattr(frame, "rows", None) == (record,)


def test_text_and_json_agree() -> None:
    """A job in two formats has the same fields."""
    columns = "JobID|JobName|State|ExitCode|Submit|Start|End|NodeList|ElapsedRaw|TimelimitRaw|AllocTRES"
    text = f"{columns}\n512|run|FAILED|0:11|1772618390|1772618400|1772618460|n[1-2]|60|30|gres/gpu=8\n"
    job = json.loads((SAMPLES / "sacct-old.json").read_text())
    job["jobs"][0]["exit_code"] = {"status": "SIGNALED", "return_code": None, "signal": {"signal_id": 11}}
    records = []
    for data in (text.encode(), json.dumps(job).encode()):
        sink = CollectingSink()
        read_source(InputSource("x", data, io.BytesIO(data)), sink)
        records.append(sink.records[0].fields)
    assert {key: records[1][key] for key in records[0] if key != "raw_id"} == dict(records[0])


@pytest.mark.corpus
@pytest.mark.parametrize(
    "folder", [SHARED / "slurm" / "records", SHARED / "data" / "slurm-fixtures"], ids=lambda path: path.name
)
def test_real_records_are_recognized_and_read(folder: Path) -> None:
    """Every real record is recognized and read completely; no job's output is taken for a record."""
    not_records = {"down.commands.txt", "sinfo-output-for-structured.txt", "sinfo_fallback.txt", "squeue_fallback.txt"}
    misread = []
    for path in folder.rglob("*"):
        if path.suffix in (".xz", ".md") or not path.is_file() or path.name in not_records:
            continue
        row, sink = read(path)
        is_output = path.suffix == ".out"
        is_refusal = "the command failed" in row.note or row.note.startswith("a JSON document") or row.status == "empty"
        is_expected = (
            row.format not in SCHEDULER_FORMATS
            if is_output
            else (row.format in SCHEDULER_FORMATS and row.status == "read") or is_refusal
        )
        if "awkward-fields" in str(path) and row.format == "squeue":
            is_expected = row.status == "partial"  # a line break in a name that the columns cannot show
        if not is_expected:
            misread.append(f"{path.relative_to(folder)}: {row.format} {row.status} {row.note}")
        assert all(set(record.fields) <= set(RECORDS[record.kind].fields) for record in sink.records)
    assert not misread, "\n".join(misread[:20])


@pytest.mark.corpus
def test_real_json_and_text_hold_the_same_attempts() -> None:
    """sacct's JSON and its text hold the same attempts."""
    pairs = [(path, path.with_name("sacct.psv")) for path in (SHARED / "slurm" / "records").rglob("sacct*.json")]
    assert pairs
    for path, text_path in pairs:
        keys = [
            sorted(
                (
                    record.kind,
                    str(record.get("id")),
                    str(record.get("state")),
                    str(record.get("start")),
                    str(record.get("nodes")),
                )
                for record in read(records_path)[1].records
            )
            for records_path in (path, text_path)
        ]
        assert keys[0] == keys[1], path
