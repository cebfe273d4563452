"""What goes into a store once stays once: unchanged files are skipped, changed ones replaced, nothing is half kept."""

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

from tests.stores.embedded.runs import SACCT, TRACEBACK, ingest, kept, of_files, of_store, sacct, scrape, steps, write
from trackside.cli import main
from trackside.ingest import HashedStream
from trackside.runs.locator import inputs_of
from trackside.session import StoreRequest, open_session
from trackside.stores.embedded.layout import Directory, StoreError
from trackside.stores.embedded.retention import compact
from trackside.stores.embedded.rows import StoredInput
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.embedded.tables import TABLES, connect
from trackside.stores.embedded.writer import Writer


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def points(store: Path) -> int:
    progress = of_store(store)["progress"]
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


def test_given_twice_it_is_skipped(folder: Path, store: Path) -> None:
    first = run("ingest", folder, "--store", store)
    assert first.exit_code == 0
    assert first.stdout == (f"{store}: 3 inputs read, 0 of them updated, 0 skipped; 23 new rows, 80 new samples\n")
    before, manifest = kept(store), Directory(store).read_newest()
    for way in (folder, f"{folder}/.", folder / "slurm-41.out"):
        again = ingest([way], store)
        assert (again.inputs, again.replaced, again.samples) == ([], [], 0)
        assert {row.note for row in again.skipped} == {"already in the store"}
    assert kept(store) == before
    assert Directory(store).read_newest() == manifest
    (store.parent / "alias").symlink_to(folder)
    aliased = ingest([store.parent / "alias"], store)
    assert aliased.inputs == []
    assert of_store(store) == of_files(folder)


def test_a_growing_log_is_replaced(folder: Path, store: Path) -> None:
    log = folder / "slurm-41.out"
    log.write_text(steps(20))
    ingest([folder], store)
    assert points(store) == 20
    for way, upto in ((folder, 30), (log, 40), (folder, 50)):
        with log.open("a") as file:
            file.write(steps(10, upto - 9))
        summary = ingest([way], store)
        assert summary.replaced == ["slurm-41.out"]
        assert points(store) == upto
        assert of_store(store) == of_files(folder)
    assert [each.path for each in _inputs(store)] == ["gpu.prom", "sacct.txt", "slurm-41.out"]


def test_a_part_of_a_folder_given_again_from_further_down(store: Path) -> None:
    top = write(store.parent / "site", {"a/logs/slurm-41.out": steps(20), "a/sacct.txt": SACCT + sacct("41")})
    ingest([top], store)
    with (top / "a/logs/slurm-41.out").open("a") as file:
        file.write(steps(5, 21))
    assert ingest([top / "a/logs"], store).replaced == ["a/logs/slurm-41.out"]
    assert of_store(store) == of_files(top)
    assert ingest([top], store).inputs == []


def test_the_same_text_of_another_run_is_kept(store: Path) -> None:
    """Two runs die of the same mistake with the same short log."""
    for job in ("51", "52"):
        text = {"sacct.txt": SACCT + sacct(job), "train.log": TRACEBACK.format(module="flash_attn")}
        assert ingest([write(store.parent / f"run-{job}", text)], store).skipped == []
    for job in ("51", "52"):
        assert of_store(store, job, [f"run-{job}/"]) == of_files(store.parent / f"run-{job}")


def test_a_file_that_was_moved_within_its_folder(folder: Path, store: Path) -> None:
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
def test_what_was_read_is_worth_more_than_nothing_in_its_place(text: str, folder: Path, store: Path) -> None:
    wanted = of_files(folder)
    ingest([folder], store)
    (folder / "slurm-41.out").write_text(text)
    again = run("ingest", folder, "--store", store)
    assert "slurm-41.out: skipped: " in again.stderr
    assert "what was read from it earlier is kept" in again.stderr
    assert of_store(store) == wanted


def test_what_can_not_be_read_is_listed_and_tried_again(folder: Path, store: Path) -> None:
    (folder / "core").write_bytes(bytes(range(256)) * 20)
    first = run("ingest", folder, "--store", store)
    assert "core: unrecognised: " in first.stderr
    assert of_store(store) == of_files(folder)
    (folder / "core").write_text(steps(3))
    assert ingest([folder], store).replaced == ["core"]
    assert of_store(store) == of_files(folder)


def test_archives_and_their_members(folder: Path, store: Path) -> None:
    archive = store.parent / "run.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, "run")
    ingest([archive], store)
    assert of_store(store) == of_files(archive)
    assert ingest([archive], store).inputs == []
    (folder / "slurm-41.out").write_text(steps(7))
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, "run")
    assert ingest([archive], store).replaced == ["run.tar.gz!run/slurm-41.out"]
    assert of_store(store) == of_files(archive)


def test_what_is_cut_off_is_kept_as_far_as_it_goes(folder: Path, store: Path) -> None:
    whole = gzip.compress((folder / "slurm-41.out").read_bytes() + os.urandom(4000).hex().encode())
    (folder / "slurm-41.out").unlink()
    (folder / "slurm-41.out.gz").write_bytes(whole[: len(whole) // 2])
    ingest([folder], store)
    assert of_store(store) == of_files(folder)
    (folder / "slurm-41.out.gz").write_bytes(whole)
    assert ingest([folder], store).replaced == ["slurm-41.out.gz"]
    assert of_store(store) == of_files(folder)


def test_files_of_one_name_are_told_apart(store: Path) -> None:
    for number in range(4):
        folder = write(store.parent / str(number) / "run", {"sacct.txt": SACCT + sacct(str(61 + number))})
        ingest([folder], store)
    assert [each.path for each in _inputs(store)] == [
        "sacct.txt",
        "run/sacct.txt",
        "run/sacct.txt#2",
        "run/sacct.txt#3",
    ]


def test_a_file_that_grows_while_it_is_read() -> None:
    """What comes after the reader has seen the end is not taken for read."""

    class Growing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            if not data:
                place = self.tell()
                self.write(b"the last words\n")
                self.seek(place)
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


def test_a_reader_that_goes_back_and_forth_is_hashed_once() -> None:
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


def test_clear_words_for_what_is_no_store(folder: Path, store: Path) -> None:
    for command in (("runs",), ("diagnose",), ("compact",)):
        gone = run(*command, "--store", store)
        assert gone.exit_code == 2
        assert gone.stderr == f"trackside: {store} does not exist; 'trackside ingest PATH --store {store}' makes one\n"
        assert not store.exists()
        assert "is not a Trackside store" in run(*command, "--store", folder).stderr
    assert "give a new folder" in run("ingest", folder, "--store", folder).stderr
    assert sorted(os.listdir(folder)) == ["gpu.prom", "sacct.txt", "slurm-41.out"]
    assert "no such file or folder" in run("ingest", folder / "gone", "--store", store).stderr
    (store.parent / "file").write_text("")
    assert "cannot be made into a store: " in run("ingest", folder, "--store", store.parent / "file").stderr
    run("ingest", folder, "--store", store)
    assert run("diagnose", store).stdout == run("diagnose", "--store", store).stdout
    assert "is a store" in run("ingest", store, "--store", store.parent / "another").stderr
    assert "give PATHS, --store DIR, or --job ID" in run("diagnose").stderr


def test_an_empty_store_answers(tmp_path: Path, store: Path) -> None:
    (tmp_path / "nothing").mkdir()
    ingest([tmp_path / "nothing"], store)
    assert run("runs", "--store", store).exit_code == 0
    assert run("compact", "--store", store).exit_code == 0
    assert of_store(store)["primary"]["family"] == "U0"
    assert "no job 5 in the store" in run("diagnose", "--store", store, "--job", "5").stderr


def test_other_tools_can_read_the_segments(folder: Path, store: Path) -> None:
    import duckdb

    ingest([folder], store)
    found = duckdb.sql(f"SELECT metric, count(*), max(value) FROM '{store}/segments/samples-*.parquet' GROUP BY 1")
    assert found.fetchall() == [("gpu_utilization_ratio", 80, 0.51)]


def _inputs(store: Path) -> list[StoredInput]:
    with Snapshot.open(store) as snapshot:
        return inputs_of(snapshot)


def test_a_path_that_is_no_store_is_not_locked(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a Trackside store"):
        Snapshot.open(tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("above", ["job=7", "input=9", "path=zzz", "a[b]*c?"])
def test_what_the_folders_above_a_store_are_called_changes_no_row(folder: Path, tmp_path: Path, above: str) -> None:
    store = tmp_path / above / "store"
    plain = tmp_path / "plain"
    for each in (store, plain):
        result = run("ingest", folder, "--store", each)
        assert result.exit_code == 0, result.output
        with Writer.open(each) as writer:
            compact(writer, 1_772_438_400 + 9 * 86_400, raw_days=1)
    assert run("runs", "--store", store, "--json").stdout == run("runs", "--store", plain, "--json").stdout
    assert of_store(store) == of_store(plain)
    with Snapshot.open(store) as ours, Snapshot.open(plain) as theirs:
        for table in TABLES:
            columns = "* EXCLUDE (read_at)" if table == "inputs" else "*"
            found = [each.rows(f"SELECT {columns} FROM {each.table(table)} ORDER BY ALL") for each in (ours, theirs)]
            assert found[0] == found[1]


def test_logs_alone_load_no_series(folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ingest([folder], store)
    looked: list[str] = []
    table = Snapshot.table

    def noted(snapshot: Snapshot, name: str, *arguments: Any) -> str:
        looked.append(name)
        return table(snapshot, name, *arguments)

    monkeypatch.setattr(Snapshot, "table", noted)
    ingest([write(folder, {"slurm-42.out": steps(5)})], store)
    assert "series" not in looked
    ingest([write(folder, {"more.prom": scrape("gpu017", 900, 50)})], store)
    assert "series" in looked


def test_what_is_spilled_is_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    one, other = connect(), connect()
    folders = [Path(each.execute("SELECT current_setting('temp_directory')").fetchall()[0][0]) for each in (one, other)]
    assert folders[0] != folders[1]
    for path in folders:
        assert path.parent == tmp_path
        assert path.stat().st_mode & 0o777 == 0o700
    del one, other
    assert os.listdir(tmp_path) == []


def test_a_temporary_store_is_closed_before_it_is_removed(
    folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest([folder], store)
    ends: list[str] = []
    for name in ("close", "remove"):
        monkeypatch.setattr(Writer, name, _noted(ends, name, getattr(Writer, name)))
    with open_session(StoreRequest(store, None, [write(folder.parent / "more", {"slurm-41.err": "killed\n"})])):
        ends.clear()
    assert ends == ["close", "remove"]


def _noted(ends: list[str], name: str, method: Callable[[Writer], None]) -> Callable[[Writer], None]:
    def noted(writer: Writer) -> None:
        ends.append(name)
        method(writer)

    return noted
