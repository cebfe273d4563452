"""Slurm's records in every dress: tests/read/slurm holds samples and what has to be read from each."""

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
from trackside.read.format import HEAD_BYTES, CollectingSink, Source
from trackside.stores.memory import MemoryStore

SAMPLES = Path(__file__).parent.parent / "slurm"
EXPECTED: dict[str, Any] = json.loads((SAMPLES / "expected.json").read_text())
SHARED = Path(__file__).resolve().parents[4] / "shared"
OURS = {each.id for each in formats() if each.plane == "scheduler"}


def read(path: Path) -> tuple[Input, CollectingSink]:
    data = path.read_bytes()
    found = CollectingSink()
    return read_source(Source(path.name, data[:HEAD_BYTES], io.BytesIO(data), len(data)), found), found


def test_every_sample_is_expected() -> None:
    assert {path.name for path in SAMPLES.iterdir()} - {"expected.json"} == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_sample(name: str) -> None:
    row, found = read(SAMPLES / name)
    expected = EXPECTED[name]
    assert (row.format, row.status) == (expected["format"], expected["status"])
    assert expected.get("note", "") in row.note
    assert [record.kind for record in found.records] == [record["kind"] for record in expected["records"]]
    for record, fields in zip(found.records, expected["records"], strict=True):
        got = {key: list(value) if isinstance(value := record.fields.get(key), tuple) else value for key in fields}
        assert {**got, "kind": record.kind} == fields


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_cataloged_and_citable(name: str) -> None:
    _, found = read(SAMPLES / name)
    store = MemoryStore(records=found.records)
    for record in found.records:
        assert set(record.fields) <= set(RECORDS[record.kind].fields)
        place = Query("record", record.kind).where(path=record.at.path, line=record.at.line, offset=record.at.offset)
        frame = store.ask(place)
        assert getattr(frame, "rows", None) == (record,)


def test_text_and_json_agree() -> None:
    """Two dresses of one job give the same fields."""
    columns = "JobID|JobName|State|ExitCode|Submit|Start|End|NodeList|ElapsedRaw|TimelimitRaw|AllocTRES"
    text = f"{columns}\n512|run|FAILED|0:11|1772618390|1772618400|1772618460|n[1-2]|60|30|gres/gpu=8\n"
    job = json.loads((SAMPLES / "sacct-old.json").read_text())
    job["jobs"][0]["exit_code"] = {"status": "SIGNALED", "return_code": None, "signal": {"signal_id": 11}}
    records = []
    for data in (text.encode(), json.dumps(job).encode()):
        found = CollectingSink()
        read_source(Source("x", data, io.BytesIO(data)), found)
        records.append(found.records[0].fields)
    assert {key: records[1][key] for key in records[0] if key != "raw_id"} == dict(records[0])


@pytest.mark.corpus
@pytest.mark.parametrize(
    "folder", [SHARED / "slurm" / "records", SHARED / "data" / "slurm-fixtures"], ids=lambda each: each.name
)
def test_real_files(folder: Path) -> None:
    """Every real record is recognized and read whole, and no job's output is taken for a record."""
    other = {"down.commands.txt", "sinfo-output-for-structured.txt", "sinfo_fallback.txt", "squeue_fallback.txt"}
    wrong = []
    for path in folder.rglob("*"):
        if path.suffix in (".xz", ".md") or not path.is_file() or path.name in other:
            continue
        row, found = read(path)
        log = path.suffix == ".out"
        refused = "the command failed" in row.note or row.note.startswith("a JSON document") or row.status == "empty"
        fine = row.format not in OURS if log else (row.format in OURS and row.status == "read") or refused
        if "awkward-fields" in str(path) and row.format == "squeue":
            fine = row.status == "partial"  # a line break in a name that the columns cannot show
        if not fine:
            wrong.append(f"{path.relative_to(folder)}: {row.format} {row.status} {row.note}")
        assert all(set(record.fields) <= set(RECORDS[record.kind].fields) for record in found.records)
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.corpus
def test_real_json_agrees_with_text() -> None:
    """The attempts that sacct's JSON tells are those of its text."""
    pairs = [(path, path.with_name("sacct.psv")) for path in (SHARED / "slurm" / "records").rglob("sacct*.json")]
    assert pairs
    for path, text in pairs:
        keys = [
            sorted(
                (
                    record.kind,
                    str(record.get("id")),
                    str(record.get("state")),
                    str(record.get("start")),
                    str(record.get("nodes")),
                )
                for record in read(each)[1].records
            )
            for each in (path, text)
        ]
        assert keys[0] == keys[1], path
