"""On no bytes may a reader, the scan or the walk hang or raise an error that is not documented."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from trackside.catalog.events import EVENTS
from trackside.catalog.records import RECORDS
from trackside.logs.line import FileContext
from trackside.logs.pattern import parsers
from trackside.logs.scan import scan
from trackside.model import Event, Plane
from trackside.read.detect import formats, read_source
from trackside.read.format import HEAD_BYTES, CollectingSink, Format, InputSource, InputTooLarge
from trackside.read.walk import walk

pytestmark = pytest.mark.fuzz

DOCUMENTED_ERRORS = (ValueError, OSError, EOFError, InputTooLarge, RecursionError, MemoryError)
SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

EXAMPLES = [line for parser in parsers() for pattern in parser.patterns for line in pattern.matches]
PHRASES = [
    "Traceback (most recent call last):",
    '  File "/a/b.py", line 3, in main',
    "ValueError: x",
    "[rank3]: ",
    "{'loss': nan, 'epoch': 1e999}",
    "JobID|State|ExitCode|Start",
    "JobId=7 JobState=FAILED ExitCode=9:0",
    "[171167.620236] NVRM: Xid (PCI:0000:3b:00): 79, pid=1",
    "Nov 21 08:00:01 n1 kernel: ",
    "0: ",
    "\r",
    "\0" * 40,
    "\x1b[31m",
    "9" * 400,
    "\ud7ff\U0010ffff\u2028",
]
LINES = st.lists(
    st.one_of(
        st.sampled_from(PHRASES + EXAMPLES), st.text(max_size=40), st.sampled_from(["", " ", "|", ",", "[", "{"])
    ),
    max_size=30,
).map("\n".join)
KEYS = (
    "dmesg msg time log_history global_step step loss entries pg_config pg_status nccl_version process_group pg_id "
    "jobs steps nodes state exit_code meta MESSAGE __REALTIME_TIMESTAMP current_steps total_steps job_id"
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS.split()), inner, max_size=5),
    max_leaves=25,
)
HEADS = [
    b"JobID|JobName|State|ExitCode|Start|End|Elapsed|NodeList\n7|a|FAILED|1:0|2026-11-21T08:00:00|Unknown|00:01:00|n1\n",
    b"JobId=7 JobName=a\n   JobState=FAILED Reason=None Dependency=(null)\n   NodeList=n[1-2] ExitCode=1:0\n",
    b"NodeName=n1 Arch=x86_64\n   State=DOWN+DRAIN ThreadsPerCore=1 Reason=x [root@2026-11-21T08:00:00]\n",
    b'{"jobs": [{"job_id": 7, "job_state": ["FAILED"], "name": "a"}], "meta": {"slurm": {}}}',
    b'{"jobs": [{"job_id": 7, "state": {"current": ["FAILED"]}, "time": {"start": 1}, "steps": [',
    b"[2026-11-21T08:00:00.123] sched: Allocate JobId=7 NodeList=n1 #CPUs=1 Partition=p\n",
    b'{"best_metric": null, "global_step": 5, "log_history": [{"step": 5, "loss": 2.5}',
    b'{"current_steps": 5, "total_steps": 9, "loss": 1.0}\n',
    b"epoch,step,train_loss\n0,9,2.5\n",
    b'{"__REALTIME_TIMESTAMP":"1795248001250000","_TRANSPORT":"kernel","_HOSTNAME":"n1","MESSAGE":"NVRM: Xid"}\n',
    b'{\n "dmesg": [\n {\n "time": 1.5,\n "msg": "NVRM: Xid"\n},\n',
    b'{"dmesg": [{"time": 1.5, "msg": "NVRM: Xid"}',
    b"n1:81:82 [0] NCCL INFO Bootstrap : Using eth0\n",
    b'[hang] job 7 rank 3 pid 1 thread 1 "MainThread" idle at a.py:1 in f: f (a.py:1) | native: x\n[hang] ',
    b"[171167.620236] NVRM: Xid (PCI:0000:3b:00): 79, pid=1\n",
    b'{"pg_config": {"0": {"ranks": "[0, 1]"}}, "pg_status": {"0": {}}, "nccl_version": "2", "entries": [',
    b"\x80\x02}(X\x09\0\0\0pg_configq\0}X\x09\0\0\0pg_statusq\1}u.",
]
"""Heads that a reader recognizes, so that it reads what follows."""
DATA = st.one_of(
    st.binary(max_size=2000),
    st.tuples(st.sampled_from(HEADS), LINES, st.binary(max_size=99)).map(lambda p: p[0] + p[1].encode() + p[2]),
    st.tuples(st.sampled_from(HEADS), JSON).map(lambda p: p[0] + json.dumps(p[1]).encode() + b"]}"),
    LINES.map(lambda text: text.encode("utf-8", "replace")),
    st.tuples(LINES, st.binary(max_size=60)).map(lambda both: both[0].encode("utf-8", "replace") + both[1]),
    JSON.map(lambda value: json.dumps(value).encode()),
    JSON.map(lambda value: json.dumps(value, indent=1).encode()),
)
SEEDS = [
    b'{"jobs": ' + b"[" * 50_000,
    b'{"log_history": [' + b'{"step": ' * 50_000,
    b'{"dmesg": [{"msg": "' + b"\\ud800" * 500,
    b"JobID|State\n" + b"|" * 50_000,
    b"JobId=1 " + b"A=" * 20_000,
    b"epoch,step,train_loss\n" + b'"' * 50_000,
    b'{"MESSAGE": [' + b"300," * 9000,
    b'{"current_steps": ' + b"9" * 5000 + b', "total_steps": 1}',
    b"\x80\x02}X\x09\0\0\0pg_config",
    b'[hang] job 7 thread 1 "a" idle at ' + b"a: | native: " * 9000,
    b"[hang] job 7 rank 3 pid 1 flight recorder a1b2c3d4 piece 1/1: eJwDAAAAAAE=\n" * 3000,
]


def source(data: bytes, path: str = "dir/rank3.log") -> InputSource:
    return InputSource(path, data[:HEAD_BYTES], io.BufferedReader(io.BytesIO(data)), len(data), 1.79e9)  # type: ignore[arg-type]


def assert_cataloged(sink: CollectingSink) -> None:
    """All kinds and fields of events and records are in the catalog."""
    for event in sink.events:
        assert set(event.fields) <= set(EVENTS[event.kind].fields), event
        assert event.at.line >= 0
    for record in sink.records:
        assert set(record.fields) <= set(RECORDS[record.kind].fields), record


@pytest.mark.parametrize("reader", formats(), ids=lambda reader: reader.id)
@SETTINGS
@given(DATA)
def test_readers_raise_only_documented_errors(reader: Format, data: bytes) -> None:
    """Sniffing never raises; reading raises only errors that read_source turns into a row."""
    if reader.sniff(source(data)) is None:
        return
    sink = CollectingSink()
    with suppress(*DOCUMENTED_ERRORS):
        reader.read(source(data), sink)
    assert_cataloged(sink)


@pytest.mark.parametrize("number", range(len(SEEDS)))
def test_readers_survive_known_hostile_inputs(number: int) -> None:
    """Each reader that recognizes the input survives it; the input gets a row in any case."""
    data = SEEDS[number]
    for reader in formats():
        sink = CollectingSink()
        if reader.sniff(source(data)) is not None:
            with suppress(*DOCUMENTED_ERRORS):
                reader.read(source(data), sink)
        assert_cataloged(sink)
    row = read_source(source(data), CollectingSink())
    assert row.note or row.status == "read"
    assert "defect" not in row.note


@SETTINGS
@given(DATA)
def test_every_input_gets_its_row(data: bytes) -> None:
    row = read_source(source(data), CollectingSink())
    assert row.note or row.status == "read"
    assert "defect" not in row.note


@pytest.mark.parametrize("plane", ["log", "kernel"])
@SETTINGS
@given(data=DATA)
@example(data=b"\r" * 5000)
@example(data=b"\n" * 5000)
def test_no_parser_fails_on_any_line(plane: Plane, data: bytes) -> None:
    events: list[Event] = []
    result = scan(io.BytesIO(data), events.append, FileContext("a.log", plane))
    assert result.defects == {}
    assert_cataloged(CollectingSink(events))


@SETTINGS
@given(st.binary(max_size=300), st.sampled_from(["gzip", "tar", "zip", "xz", "zstd", "bzip2"]), st.data())
def test_damaged_archives_never_raise(tmp_path_factory: Any, noise: bytes, kind: str, data: st.DataObject) -> None:
    archive = bytearray(ARCHIVES[kind])
    for _ in range(data.draw(st.integers(0, 6))):
        archive[data.draw(st.integers(0, len(archive) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(archive)))
    path: Path = tmp_path_factory.mktemp("walk") / "a"
    path.write_bytes(bytes(archive[:cut]) + noise)
    for item in walk([path]):
        row = read_source(item, CollectingSink()) if isinstance(item, InputSource) else item
        assert row.path.startswith("a")
        assert "defect" not in row.note


def _archives() -> dict[str, bytes]:
    import bz2
    import gzip
    import lzma
    import tarfile
    import zipfile

    import zstandard

    text = b"step 1 loss 2.5\n" * 40
    tar, zipped = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in ("a.log", "n" * 120, "é.log"):
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as zip_archive:
        zip_archive.writestr("a.log", text)
        zip_archive.writestr("b.log", text)
    return {
        "gzip": gzip.compress(text),
        "bzip2": bz2.compress(text),
        "xz": lzma.compress(text),
        "zstd": zstandard.ZstdCompressor().compress(text),
        "tar": tar.getvalue(),
        "zip": zipped.getvalue(),
    }


ARCHIVES = _archives()
