"""Ingesting again: unchanged files are skipped, changed files replaced, and nothing is stored in part."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

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
from trackside.errors import StoreError
from trackside.ingest import HashedStream
from trackside.runs.locator import inputs_of
from trackside.session import StoreRequest, open_session
from trackside.stores.embedded.layout import Directory
from trackside.stores.embedded.retention import compact
from trackside.stores.embedded.rows import StoredInput
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.embedded.tables import TABLES, connect
from trackside.stores.embedded.writer import Writer


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def points(store: Path) -> int:
    progress = verdict_of_store(store)["progress"]
    return progress["points"] if progress else 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(
        tmp_path / "run",
        {
            "sacct.txt": SACCT + sacct("41"),
            "slurm-41.out": steps(20) + TRACEBACK.format(module="flash_attn"),
            "gpu.prom": "".join(scrape("gpu017", seconds, 50) for seconds in range(0, 600, 15)),
        },
    )


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_an_unchanged_input_is_skipped(folder: Path, store: Path) -> None:
    first = run("ingest", folder, "--store", store)
    assert first.exit_code == 0
    assert first.stdout == (f"{store}: 3 inputs read, 0 replaced, 0 skipped; 24 new rows, 80 new samples\n")
    before, manifest = segment_names(store), Directory(store).read_newest()
    for path in (folder, f"{folder}/.", folder / "slurm-41.out"):
        again = ingest([path], store)
        assert (again.inputs, again.replaced, again.samples) == ([], [], 0)
        assert {row.note for row in again.skipped} == {"already in the store"}
    assert segment_names(store) == before
    assert Directory(store).read_newest() == manifest
    (store.parent / "alias").symlink_to(folder)
    aliased = ingest([store.parent / "alias"], store)
    assert aliased.inputs == []
    assert verdict_of_store(store) == verdict_of_files(folder)


def test_a_log_that_grew_is_replaced(folder: Path, store: Path) -> None:
    log = folder / "slurm-41.out"
    log.write_text(steps(20))
    ingest([folder], store)
    assert points(store) == 20
    for path, upto in ((folder, 30), (log, 40), (folder, 50)):
        with log.open("a") as file:
            file.write(steps(10, upto - 9))
        summary = ingest([path], store)
        assert summary.replaced == ["slurm-41.out"]
        assert points(store) == upto
        assert verdict_of_store(store) == verdict_of_files(folder)
    assert [row.path for row in _inputs(store)] == ["gpu.prom", "sacct.txt", "slurm-41.out"]


def test_a_file_is_recognized_when_ingested_from_a_subfolder(store: Path) -> None:
    top = write(store.parent / "site", {"a/logs/slurm-41.out": steps(20), "a/sacct.txt": SACCT + sacct("41")})
    ingest([top], store)
    with (top / "a/logs/slurm-41.out").open("a") as file:
        file.write(steps(5, 21))
    assert ingest([top / "a/logs"], store).replaced == ["a/logs/slurm-41.out"]
    assert verdict_of_store(store) == verdict_of_files(top)
    assert ingest([top], store).inputs == []


def test_identical_logs_of_two_runs_are_both_stored(store: Path) -> None:
    """Two runs fail with the same error and the same short log."""
    for job in ("51", "52"):
        text = {"sacct.txt": SACCT + sacct(job), "train.log": TRACEBACK.format(module="flash_attn")}
        assert ingest([write(store.parent / f"run-{job}", text)], store).skipped == []
    for job in ("51", "52"):
        assert verdict_of_store(store, job, [f"run-{job}/"]) == verdict_of_files(store.parent / f"run-{job}")


def test_a_file_moved_within_its_folder_is_skipped(folder: Path, store: Path) -> None:
    ingest([folder], store)
    (folder / "old").mkdir()
    (folder / "slurm-41.out").rename(folder / "old" / "slurm-41.out")
    again = ingest([folder], store)
    assert again.inputs == []
    assert "already in the store, as slurm-41.out" in {row.note for row in again.skipped}
    assert run("ingest", folder, "--store", store).stderr == (
        "slurm-41.out: skipped: already in the store, as slurm-41.out\n"
    )


@pytest.mark.parametrize("text", ["", "\x00\x01\x02\x03"])
def test_a_file_that_became_unreadable_keeps_its_earlier_content(text: str, folder: Path, store: Path) -> None:
    expected = verdict_of_files(folder)
    ingest([folder], store)
    (folder / "slurm-41.out").write_text(text)
    again = run("ingest", folder, "--store", store)
    assert "slurm-41.out: skipped: " in again.stderr
    assert "what was read from it earlier is kept" in again.stderr
    assert verdict_of_store(store) == expected


def test_an_unrecognized_file_is_listed_and_read_once_it_changes(folder: Path, store: Path) -> None:
    (folder / "core").write_bytes(bytes(range(256)) * 20)
    first = run("ingest", folder, "--store", store)
    assert "core: not recognized: " in first.stderr
    assert verdict_of_store(store) == verdict_of_files(folder)
    (folder / "core").write_text(steps(3))
    assert ingest([folder], store).replaced == ["core"]
    assert verdict_of_store(store) == verdict_of_files(folder)


def test_changed_members_of_an_archive_are_replaced(folder: Path, store: Path) -> None:
    archive = store.parent / "run.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, "run")
    ingest([archive], store)
    assert verdict_of_store(store) == verdict_of_files(archive)
    assert ingest([archive], store).inputs == []
    (folder / "slurm-41.out").write_text(steps(7))
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, "run")
    assert ingest([archive], store).replaced == ["run.tar.gz!run/slurm-41.out"]
    assert verdict_of_store(store) == verdict_of_files(archive)


def test_a_truncated_file_is_stored_up_to_its_end(folder: Path, store: Path) -> None:
    whole = gzip.compress((folder / "slurm-41.out").read_bytes() + os.urandom(4000).hex().encode())
    (folder / "slurm-41.out").unlink()
    (folder / "slurm-41.out.gz").write_bytes(whole[: len(whole) // 2])
    ingest([folder], store)
    assert verdict_of_store(store) == verdict_of_files(folder)
    (folder / "slurm-41.out.gz").write_bytes(whole)
    assert ingest([folder], store).replaced == ["slurm-41.out.gz"]
    assert verdict_of_store(store) == verdict_of_files(folder)


def test_files_of_the_same_name_get_distinct_paths(store: Path) -> None:
    for number in range(4):
        folder = write(store.parent / str(number) / "run", {"sacct.txt": SACCT + sacct(str(61 + number))})
        ingest([folder], store)
    assert [row.path for row in _inputs(store)] == [
        "sacct.txt",
        "run/sacct.txt",
        "run/sacct.txt#2",
        "run/sacct.txt#3",
    ]


def test_text_appended_during_a_read_is_not_hashed() -> None:
    """Text appended after the reader reached the end does not count as read."""

    class Growing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            if not data:
                position = self.tell()
                self.write(b"the last words\n")
                self.seek(position)
            return data

    def digest(content: bytes) -> str:
        stream = HashedStream(io.BytesIO(content))
        return stream.digest()

    grown = HashedStream(Growing(b"step 1\n"))
    buffer = bytearray(100)
    assert grown.readinto(buffer) == 7
    assert grown.readinto(buffer) == 0
    assert grown.digest() == digest(b"step 1\n")
    assert grown.digest() != digest(b"step 1\nthe last words\n")


def test_bytes_that_are_read_twice_are_hashed_once() -> None:
    content = bytes(range(256)) * 1000
    plain = HashedStream(io.BytesIO(content)).digest()
    stream = HashedStream(io.BytesIO(content))
    whole = io.BufferedReader(stream, 5000)
    whole.read(70_000)
    whole.seek(100)
    whole.read(3)
    whole.seek(250_000)
    whole.read(10)
    assert stream.digest() == plain
    stream.seek(0)
    assert io.BufferedReader(stream).read() == content
    assert stream.digest() == plain


def test_a_path_that_is_not_a_store_is_refused_with_a_reason(folder: Path, store: Path) -> None:
    for command in (("runs",), ("diagnose",), ("compact",)):
        result = run(*command, "--store", store)
        assert result.exit_code == 2
        assert result.stderr == f"trackside: {store} is not a store: no such folder\n"
        assert not store.exists()
        assert "is not a Trackside store" in run(*command, "--store", folder).stderr
    assert "give a new folder" in run("ingest", folder, "--store", folder).stderr
    assert sorted(os.listdir(folder)) == ["gpu.prom", "sacct.txt", "slurm-41.out"]
    assert "no such file or folder" in run("ingest", folder / "gone", "--store", store).stderr
    (store.parent / "file").write_text("")
    assert "cannot create the store " in run("ingest", folder, "--store", store.parent / "file").stderr
    run("ingest", folder, "--store", store)
    assert run("diagnose", store).stdout == run("diagnose", "--store", store).stdout
    assert "is a store" in run("ingest", store, "--store", store.parent / "another").stderr
    assert "give PATHS, --store DIR, or --job ID" in run("diagnose").stderr


def test_an_empty_store_gives_an_unknown_verdict(tmp_path: Path, store: Path) -> None:
    (tmp_path / "nothing").mkdir()
    ingest([tmp_path / "nothing"], store)
    assert run("runs", "--store", store).exit_code == 0
    assert run("compact", "--store", store).exit_code == 0
    assert verdict_of_store(store)["primary"]["family"] == "U0"
    assert "no job 5 in the store" in run("diagnose", "--store", store, "--job", "5").stderr


def test_other_tools_can_read_the_segments(folder: Path, store: Path) -> None:
    import duckdb

    ingest([folder], store)
    rows = duckdb.sql(f"SELECT metric, count(*), max(value) FROM '{store}/segments/samples-*.parquet' GROUP BY 1")
    assert rows.fetchall() == [("gpu_utilization_ratio", 80, 0.51)]


def _inputs(store: Path) -> list[StoredInput]:
    with Snapshot.open(store) as snapshot:
        return inputs_of(snapshot)


def test_a_path_that_is_not_a_store_is_not_locked(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a Trackside store"):
        Snapshot.open(tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("above", ["job=7", "input=9", "path=zzz", "a[b]*c?"])
def test_names_of_parent_folders_do_not_change_the_rows(folder: Path, tmp_path: Path, above: str) -> None:
    store = tmp_path / above / "store"
    plain = tmp_path / "plain"
    for path in (store, plain):
        result = run("ingest", folder, "--store", path)
        assert result.exit_code == 0, result.output
        with Writer.open(path) as writer:
            compact(writer, 1_772_438_400 + 9 * 86_400, raw_days=1)
    assert run("runs", "--store", store, "--json").stdout == run("runs", "--store", plain, "--json").stdout
    assert verdict_of_store(store) == verdict_of_store(plain)
    with Snapshot.open(store) as store_snapshot, Snapshot.open(plain) as plain_snapshot:
        for table in TABLES:
            columns = "* EXCLUDE (read_at)" if table == "inputs" else "*"
            contents = [
                snapshot.rows(f"SELECT {columns} FROM {snapshot.table(table)} ORDER BY ALL")
                for snapshot in (store_snapshot, plain_snapshot)
            ]
            assert contents[0] == contents[1]


def test_ingesting_logs_alone_reads_no_series(folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ingest([folder], store)
    tables_read: list[str] = []
    table = Snapshot.table

    def record_table(snapshot: Snapshot, name: str, *arguments: Any) -> str:
        tables_read.append(name)
        return table(snapshot, name, *arguments)

    monkeypatch.setattr(Snapshot, "table", record_table)
    ingest([write(folder, {"slurm-42.out": steps(5)})], store)
    assert "series" not in tables_read
    ingest([write(folder, {"more.prom": scrape("gpu017", 900, 50)})], store)
    assert "series" in tables_read


def test_each_connection_spills_to_its_own_private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first, second = connect(), connect()
    folders = [
        Path(connection.execute("SELECT current_setting('temp_directory')").fetchall()[0][0])
        for connection in (first, second)
    ]
    assert folders[0] != folders[1]
    for path in folders:
        assert path.parent == tmp_path
        assert path.stat().st_mode & 0o777 == 0o700
    del first, second
    assert os.listdir(tmp_path) == []


def test_a_temporary_store_is_closed_before_it_is_removed(
    folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest([folder], store)
    calls: list[str] = []
    for name in ("close", "remove"):
        monkeypatch.setattr(Writer, name, _recording(calls, name, getattr(Writer, name)))
    with open_session(StoreRequest(store, None, [write(folder.parent / "more", {"slurm-41.err": "killed\n"})])):
        calls.clear()
    assert calls == ["close", "remove"]


def _recording(calls: list[str], name: str, method: Callable[[Writer], None]) -> Callable[[Writer], None]:
    def recorded(writer: Writer) -> None:
        calls.append(name)
        method(writer)

    return recorded
