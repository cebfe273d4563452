"""Several processes and one store: readers during writes, one writer at a time, and killed writers."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.stores.embedded.runs import (
    SACCT,
    TRACEBACK,
    ingest,
    sacct,
    scrape,
    segment_names,
    steps,
    verdict_of_files,
    verdict_of_store,
    write,
)
from trackside.cli import main
from trackside.session import StoreRequest, open_session
from trackside.session.choice import choose_run
from trackside.stores.embedded import layout
from trackside.stores.embedded.layout import Directory, StoreBusy
from trackside.stores.embedded.retention import compact
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.embedded.writer import Writer

pytestmark = pytest.mark.slow  # real processes that write, read and die

WRITER = """
import sys
import trackside.stores.embedded.writer as writer
from trackside.ingest import ingest
writer.COMMIT_S = 0.0
writer.SAMPLES, writer.ROWS = 200, 20
print("ready", flush=True)
sys.stdin.readline()
ingest([sys.argv[1]], sys.argv[2])
print("done", flush=True)
"""
"""An ingest in many small commits; it starts when it reads a line from stdin."""


def manifest_segments(store: Path) -> set[str]:
    """The segments that the store's manifests name."""
    return {
        segment["name"] for path in Directory(store).manifests() for segment in json.loads(path.read_text())["segments"]
    }


def generation(store: Path) -> int:
    """The number of commits so far."""
    manifests = sorted(store.glob("manifest-*.json"))
    return int(manifests[-1].stem.partition("-")[2]) if manifests else 0


def start_writer(*arguments: object) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def exit_code(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=60)
    return process.returncode


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {"a-sacct.txt": SACCT + sacct("41"), "slurm-41.out": steps(200) + TRACEBACK.format(module="flash_attn")}
    for number in range(10):
        begin_s = number * 60
        files[f"gpu-{number}.prom"] = "".join(scrape("gpu017", begin_s + s, 50 + s % 7) for s in range(0, 60, 2))
    return write(tmp_path / "run", files)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_an_ingest_killed_at_any_moment_can_be_repeated(folder: Path, store: Path) -> None:
    expected = verdict_of_files(folder)
    chance, input_counts = random.Random(11), set()
    for number, process in enumerate([start_writer(folder, store) for _ in range(3)]):
        begin(process)
        commits = generation(store) + number
        while generation(store) < commits and process.poll() is None:
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.03))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if Directory(store).exists:
            with Snapshot.open(store) as snapshot:
                input_counts.add(sum(segment.rows for segment in snapshot.manifest.of("inputs")))
                for segment in snapshot.manifest.segments:
                    assert snapshot.fault(segment) == ""
            assert CliRunner().invoke(main, ["runs", "--store", str(store)]).exit_code == 0
    assert len(input_counts) > 1, "each writer was killed at the same moment"
    ingest([folder], store)
    assert verdict_of_store(store) == expected
    assert ingest([folder], store).inputs == []
    assert segment_names(store) <= manifest_segments(store)
    with Writer.open(store) as writer:
        compact(writer, time.time())
        compact(writer, time.time())
    assert segment_names(store) <= manifest_segments(store)
    assert len(list(store.iterdir())) <= 5
    assert verdict_of_store(store) == expected


def test_leftovers_of_killed_writers_are_deleted(folder: Path, store: Path) -> None:
    ingest([folder], store)
    for name in ("samples-0123456789abcdef.parquet", ".events-0123456789abcdef.parquet.new"):
        (store / "segments" / name).write_bytes(b"half")
    (store / "manifest.new").write_bytes(b'{"version": 1, "gen')
    expected = verdict_of_store(store)
    ingest([folder], store)
    assert segment_names(store) <= manifest_segments(store)
    assert verdict_of_store(store) == expected


def test_a_store_that_a_killed_writer_began_can_be_completed(folder: Path, store: Path) -> None:
    (store / "segments").mkdir(parents=True)
    ingest([folder], store)
    assert verdict_of_store(store) == verdict_of_files(folder)


def test_readers_see_what_was_committed_when_they_began(folder: Path, store: Path) -> None:
    """A reader sees what was committed when it began, for as long as it reads."""
    ingest([folder / "a-sacct.txt"], store)
    early_snapshot = Snapshot.open(store)
    process = start_writer(folder, store)
    begin(process)
    counts = []
    command = [sys.executable, "-m", "trackside", "runs", "--store", str(store), "--json"]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE)
    while process.poll() is None:
        with Snapshot.open(store) as snapshot:
            rows = snapshot.rows(f"SELECT count(DISTINCT input), sum(count) FROM {snapshot.table('spans')}")
            samples = snapshot.rows(f"SELECT count(DISTINCT input), count(*) FROM {snapshot.table('samples')}")
            assert rows[0][1] in (samples[0][1], None)
            counts.append(samples[0][1])
    assert exit_code(process) == 0
    assert counts == sorted(counts)
    assert json.loads(reader.communicate()[0])[0]["id"] == "41"
    with Writer.open(store) as writer:
        compact(writer, time.time())
    assert early_snapshot.rows(f"SELECT path FROM {early_snapshot.table('inputs')}") == [("a-sacct.txt",)]
    early_snapshot.close()
    ingest([folder], store)
    assert segment_names(store) <= manifest_segments(store)
    assert verdict_of_store(store) == verdict_of_files(folder)


def test_a_second_writer_is_refused(folder: Path, store: Path) -> None:
    ingest([folder / "a-sacct.txt"], store)
    other = subprocess.Popen(
        [sys.executable, "-c", "import sys; from trackside.stores.embedded.writer import Writer; w = Writer.open(sys.argv[1]);"
         " print('open', flush=True); sys.stdin.readline()", str(store)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert other.stdout is not None
    assert other.stdout.readline() == "open\n"
    for command in (["ingest", str(folder)], ["compact"]):
        result = CliRunner().invoke(main, [*command, "--store", str(store)])
        assert result.exit_code == 2
        assert result.stderr == (
            f"trackside: {store} is in use by process {other.pid}: wait for it to end and try again\n"
        )
    (store / "received").mkdir()  # a receiver's
    result = CliRunner().invoke(main, ["compact", "--store", str(store)])
    assert (
        "wait for it to end; if it is the receiver, which also compacts the store, send data to it or stop it"
        in result.stderr
    )
    (store / "received").rmdir()
    assert verdict_of_store(store)["run"]["id"] == "41"
    other.communicate("\n")
    assert len(ingest([folder], store).inputs) == 11
    with Writer.open(store), pytest.raises(StoreBusy, match=f"process {os.getpid()}:"):
        Writer.open(store)


def test_a_file_system_without_locks_refuses_writers_only(
    folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest([folder], store)

    def flock(handle: int, how: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    result = CliRunner().invoke(main, ["ingest", str(folder), "--store", str(store)])
    assert "cannot be locked (No locks available): put the store on a file system with locks" in result.stderr
    assert verdict_of_store(store) == verdict_of_files(folder)


def test_a_compaction_does_not_disturb_readers(folder: Path, store: Path) -> None:
    for path in sorted(folder.iterdir()):
        ingest([path], store)
    old = time.time() - 2 * layout.MANIFEST_KEPT_S
    for path in Directory(store).manifests():  # nothing was written for two days
        os.utime(path, (old, old))
    expected = verdict_of_files(folder)
    with open_session(StoreRequest(store, "41")) as session, Writer.open(store) as writer:
        loaded = session.loaded
        for _ in range(3):
            assert loaded.metric_backend is not None
            compact(writer, time.time())
            writer.replace((), ())
            writer.directory.delete_unreferenced_files()
        run, rows = choose_run(loaded)
        from trackside.verdict import engine

        engine.verdict_of(engine.facts_of(rows, run), loaded.inputs)
        assert len(Directory(store).manifests()) > 2
    with Writer.open(store) as writer:
        assert len(Directory(store).manifests()) == 2
    assert segment_names(store) <= manifest_segments(store)
    assert verdict_of_store(store) == expected


def test_old_manifests_are_deleted_in_spite_of_readers(folder: Path, store: Path) -> None:
    ingest([folder], store)
    with Snapshot.open(store):
        for number in range(3):
            (folder / "slurm-41.out").write_text(steps(number + 5))
            ingest([folder], store)
        assert len(Directory(store).manifests()) > 2
        old = time.time() - 2 * layout.MANIFEST_KEPT_S
        for path in Directory(store).manifests():
            os.utime(path, (old, old))
        with Writer.open(store):
            assert len(Directory(store).manifests()) == 2
    assert segment_names(store) <= manifest_segments(store)


FULL = """
import resource, sys
import trackside.stores.embedded.writer
from trackside.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
main(sys.argv[2:])
"""


@pytest.mark.parametrize("limit", [200, 3000])
def test_a_full_disk_is_reported_and_loses_nothing(limit: int, folder: Path, store: Path) -> None:
    """No file may grow beyond the limit: 200 bytes allow hardly any file, 3,000 no large segment."""
    ingest([folder / "a-sacct.txt"], store)
    expected = verdict_of_store(store)
    command = [sys.executable, "-c", FULL, str(limit), "ingest", str(folder), "--store", str(store)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2, result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith(f"trackside: {store}/")
    assert "cannot be written: File too large; " in result.stderr
    assert verdict_of_store(store) == expected
    ingest([folder], store)
    assert verdict_of_store(store) == verdict_of_files(folder)
    assert segment_names(store) <= manifest_segments(store)


@pytest.fixture
def unprivileged() -> Iterator[None]:
    """Drop root privileges, so that file permissions are enforced."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def read_only_store(folder: Path) -> Iterator[Path]:
    """A store that can be read but not written."""
    expected = verdict_of_files(folder)
    with tempfile.TemporaryDirectory() as top:
        os.chmod(top, 0o755)
        store = Path(top) / "store"
        ingest([folder], store)
        assert verdict_of_store(store) == expected
        for path in (*store.rglob("*"), store):
            path.chmod(0o555 if path.is_dir() else 0o444)
        yield store
        for path in (store, store / "segments"):
            path.chmod(0o755)


def test_a_read_only_store_can_be_read(read_only_store: Path, unprivileged: None) -> None:
    assert verdict_of_store(read_only_store)["run"]["id"] == "41"
    assert CliRunner().invoke(main, ["runs", "--store", str(read_only_store)]).exit_code == 0
    result = CliRunner().invoke(main, ["compact", "--store", str(read_only_store)])
    assert result.exit_code == 2
    assert result.stderr == f"trackside: cannot create the store {read_only_store}: Permission denied\n"


class SimulatedKill(BaseException):
    """Stands for a kill of the process: a BaseException that no cleanup catches."""


@pytest.mark.parametrize("step", range(6))
def test_a_compaction_killed_at_any_step_loses_nothing(
    step: int, folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kill comes before a file is renamed: the file is left over, or the manifest is not there yet."""
    for part in ("a-sacct.txt", "gpu-0.prom", "gpu-3.prom", "gpu-7.prom", "slurm-41.out"):
        ingest([folder / part], store)
    expected = verdict_of_store(store)
    renames_left, rename = iter(range(step, -1, -1)), os.rename

    def failing_rename(source: Path, target: Path) -> None:
        if next(renames_left) == 0:
            raise SimulatedKill
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing_rename)
    with pytest.raises(SimulatedKill), Writer.open(store) as writer:
        compact(writer, time.time(), raw_days=1)
    monkeypatch.undo()
    documents = verdict_of_store(store)
    assert documents["primary"] == expected["primary"]
    assert documents["inputs"] == expected["inputs"]
    assert segment_names(store) - manifest_segments(store), "nothing was left over, so nothing is tested"
    with Writer.open(store) as writer:
        compact(writer, time.time(), raw_days=1)
        assert not writer.manifest.of("samples")
        counted = writer.snapshot().rows(f"SELECT sum(count) FROM {writer.snapshot().table('minutes')}")
        assert counted == [(3 * 30 * 2,)]
    assert segment_names(store) <= manifest_segments(store)
    assert verdict_of_store(store)["primary"] == expected["primary"]
