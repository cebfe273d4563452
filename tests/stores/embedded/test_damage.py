"""Damaged files are reported with a remedy, never with a traceback; stores of other versions."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

import trackside
from tests.stores.embedded.runs import (
    SACCT,
    STORED_TRACEBACK,
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
from trackside.runs.locator import LOST_ROWS
from trackside.session import StoreRequest, open_session
from trackside.stores.embedded import layout
from trackside.stores.embedded.layout import Directory
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.embedded.tables import ROW_GROUP_ROWS, TABLES, write_columns
from trackside.stores.embedded.writer import Writer

pytestmark = pytest.mark.slow

STORES = Path(__file__).parent
FILES = {
    "gpu.prom": "".join(scrape("gpu017", seconds, 50) for seconds in range(0, 600, 15)),
    "sacct.txt": SACCT + sacct("41"),
    "slurm-41.out": steps(20) + STORED_TRACEBACK.format(module="flash_attn"),
}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "run", FILES)


@pytest.fixture
def store(folder: Path) -> Path:
    ingest([folder], folder.parent / "store")
    return folder.parent / "store"


def segment(store: Path, table: str) -> Path:
    """The only segment of a table."""
    (name,) = [segment["name"] for segment in Directory(store).read_newest()["segments"] if segment["table"] == table]
    return store / "segments" / name


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def scramble(path: Path) -> None:
    path.write_bytes(bytes(len(path.read_bytes())))


def scramble_within(path: Path) -> None:
    """Damage the middle of a file; its ends, which are checked first, stay as they were."""
    content = path.read_bytes()
    path.write_bytes(content[:8] + bytes(byte ^ 0x5A for byte in content[8:200]) + content[200:])


def swap(path: Path) -> None:
    """Another table's segment, of the same size, in its place."""
    other = next(file for file in path.parent.iterdir() if file.name.split("-")[0] != path.name.split("-")[0])
    path.write_bytes(other.read_bytes()[: path.stat().st_size].ljust(path.stat().st_size, b"\0"))


@pytest.mark.parametrize("table", ["inputs", "events", "series", "samples"])
@pytest.mark.parametrize("damage", [scramble, swap, Path.unlink])
def test_a_damaged_segment_is_named_with_its_remedy(damage: Any, table: str, store: Path) -> None:
    path = segment(store, table)
    damage(path)
    result = run("diagnose", "--store", store, "--job", "41")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith(f"trackside: {path} is {'missing' if damage is Path.unlink else 'damaged ('}")
    assert f"'trackside check --store {store} --repair'" in result.stderr
    checked = run("check", "--store", store)
    assert checked.exit_code == 1
    assert checked.stdout.startswith(f"{path.name} is {'missing' if damage is Path.unlink else 'damaged ('}")


@pytest.mark.parametrize("table", [table for table in TABLES if table not in ("minutes", "waiting")])
def test_the_content_of_a_damaged_segment_is_ingested_again(table: str, folder: Path, store: Path) -> None:
    path, expected = segment(store, table), verdict_of_files(folder)
    cut(path)
    repaired = run("check", "--store", store, "--repair")
    assert repaired.exit_code == 0, repaired.output
    assert f"{path.name} is damaged (" in repaired.stdout
    assert "are lost; ingest again:\n  " in repaired.stdout
    assert table == "inputs" or f"\n  {folder}/" in repaired.stdout, "the place of the file"
    intact = run("check", "--store", store, "--repair")
    assert (intact.exit_code, intact.stdout.endswith(" files are intact; nothing was changed\n")) == (0, True)
    assert run("diagnose", "--store", store).exit_code == 0
    ingest([folder], store)
    again = verdict_of_store(store)
    for document in (again, expected):
        document["inputs"].sort(key=lambda row: row["path"])
    assert again == expected
    assert ingest([folder], store).inputs == []


@pytest.mark.parametrize("table", ["events", "points", "samples", "series"])
def test_what_lost_rows_shows_no_health(table: str, tmp_path: Path) -> None:
    """A finished run whose lines or samples are lost is no healthy one, and the verdict names the input."""
    files = {**FILES, "sacct.txt": SACCT + sacct("41", "COMPLETED"), "slurm-41.out": steps(200) + "Training complete\n"}
    store = tmp_path / "store"
    ingest([write(tmp_path / "run", files)], store)
    before = verdict_of_store(store)
    cut(segment(store, table))
    assert run("check", "--store", store, "--repair").exit_code == 0
    after = verdict_of_store(store)
    (lost,) = [row["path"] for row in after["inputs"] if LOST_ROWS in row["note"]]
    assert lost == ("slurm-41.out" if table in ("events", "points") else "gpu.prom")
    assert f"{lost} gave no complete answer" in json.dumps(after["preflight"])
    assert after["primary"]["certainty"] in ("possible", "supported")
    ingest([tmp_path / "run"], store)
    assert verdict_of_store(store)["primary"] == before["primary"]


def test_each_flipped_bit_is_noticed(store: Path) -> None:
    """Most of them would decode to another value, because Parquet files as written here have no page checksums."""
    rng = random.Random(7)
    segments = Directory(store).read().segments
    for item in segments:
        path = store / "segments" / item.name
        content = path.read_bytes()
        for _ in range(20):
            place, bit = rng.randrange(len(content)), 1 << rng.randrange(8)
            path.write_bytes(content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :])
            with Snapshot.open(store) as snapshot, pytest.raises(StoreError, match=f"{item.name} is damaged"):
                snapshot.rows(f"SELECT * FROM {snapshot.table(item.table)}")
        path.write_bytes(content)
    assert run("check", "--store", store).exit_code == 0


def test_each_flipped_bit_of_the_manifest_is_noticed_or_harmless(store: Path) -> None:
    path = Directory(store).manifests()[-1]
    content, intact = path.read_bytes(), Directory(store).read()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with contextlib.suppress(StoreError):
            assert Directory(store).read() == intact


@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_intact_rows_of_a_damaged_segment_are_kept(share: float, tmp_path: Path) -> None:
    """Samples that were pushed exist nowhere else: one flipped bit costs the rows around it only."""
    n_samples = 1_000_000
    with Writer.open(tmp_path / "store") as writer:
        times_ms = np.arange(n_samples) + 1_772_438_400_000
        values = np.random.default_rng(3).random(n_samples)
        columns = {
            "code": np.zeros(n_samples, np.int32),
            "series": np.ones(n_samples, np.int32),
            "time_ms": times_ms,
            "value": values,
            "input": np.ones(n_samples, np.int32),
        }
        names = {name: column for name, column in columns.items() if name != "code"}
        added = write_columns(writer.connection, writer.directory, "samples", {"code": columns["code"], **names}, ["m"])
        writer.replace([added], ())
    path = segment(tmp_path / "store", "samples")
    content = bytearray(path.read_bytes())
    content[int(len(content) * share)] ^= 4
    path.write_bytes(content)
    repaired = run("check", "--store", tmp_path / "store", "--repair")
    assert repaired.exit_code == 0, repaired.output
    with Snapshot.open(tmp_path / "store") as snapshot:
        rows = snapshot.arrays(f"SELECT time_ms, value FROM {snapshot.table('samples')}")
    indices = rows["time_ms"] - times_ms[0]
    assert n_samples - 2 * ROW_GROUP_ROWS <= len(indices) < n_samples
    assert np.array_equal(rows["value"], values[indices])


def test_a_segment_without_checksums_gets_them_when_the_store_is_compacted(store: Path) -> None:
    """As a store of an earlier version has them."""
    with Writer.open(store) as writer:
        plain = [msgspec.structs.replace(item, checksums=()) for item in writer.manifest.segments]
        writer.replace(plain, writer.manifest.segments)
    assert "have no checksums yet" in run("check", "--store", store).stdout
    assert run("compact", "--store", store).exit_code == 0
    assert run("check", "--store", store).stdout.endswith(" bytes) are intact\n")


def test_damage_within_a_segment_is_detected_when_it_is_read(store: Path) -> None:
    path = segment(store, "samples")
    scramble_within(path)
    assert f"trackside: {path} is damaged (" in run("diagnose", "--store", store).stderr


@pytest.mark.parametrize(
    "text", ["", "[]", '{"version": 0}', '{"version": 2, "segments": [{"table": 5}]}', "\x00" * 50]
)
def test_a_damaged_manifest_is_named_with_its_remedy(text: str, folder: Path, store: Path) -> None:
    expected = verdict_of_store(store)
    before = {path: path.read_bytes() for path in (store / "segments").iterdir()}
    (folder / "slurm-41.out").write_text(steps(3))
    ingest([folder], store)
    newest = Directory(store).manifests()[-1]
    newest.write_text(text)
    for command in (("runs",), ("ingest", folder)):
        result = run(*command, "--store", store)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"trackside: {newest} is damaged (")
        assert "delete it and the store is as before its last commit; then ingest again" in result.stderr
    newest.unlink()
    assert verdict_of_store(store) == expected
    assert all(path.read_bytes() == content for path, content in before.items())
    ingest([folder], store)
    assert verdict_of_store(store) == verdict_of_files(folder)


def test_a_reader_that_finds_a_damaged_manifest_releases_its_lock(store: Path) -> None:
    """Otherwise the process would keep old segments from being deleted until it ends."""
    Directory(store).manifests()[-1].write_text("[]")
    with pytest.raises(StoreError, match="is damaged") as failure:
        Snapshot.open(store)
    assert failure.value  # keeps the frames, and so the files they opened, alive
    with open(store / "readers", "rb") as readers:
        fcntl.flock(readers, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_store_of_a_later_version_is_refused(folder: Path, store: Path) -> None:
    newest = Directory(store).manifests()[-1]
    newest.write_text(json.dumps({"version": 9, "unheard": ["of"]}))
    files = segment_names(store)
    for command in (("diagnose",), ("runs",), ("compact",), ("ingest", folder)):
        result = run(*command, "--store", store)
        assert result.exit_code == 2
        assert result.stderr == (
            f"trackside: {newest} was written by a later Trackside (version 9, this one knows {layout.VERSION}):"
            " update it\n"
        )
    assert segment_names(store) == files


def downgrade(store: Path) -> bytes:
    """Rewrite the manifest as the version before spelled it; returns its bytes."""
    path = Directory(store).manifests()[-1]
    raw = json.loads(path.read_text())
    raw["inputs_so_far"] = raw.pop("next_input") - 1
    for segment in raw["segments"]:
        segment["kind"] = segment.pop("table")
    path.write_text(json.dumps(raw))
    return path.read_bytes()


def to_current_version(path: Path, raw: dict[str, Any]) -> dict[str, Any]:
    raw["next_input"] = raw.pop("inputs_so_far") + 1
    for segment in raw["segments"]:
        segment["table"] = segment.pop("kind")
    return raw


def test_compact_updates_a_store_of_an_earlier_version(
    folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = verdict_of_store(store)
    old_manifest = downgrade(store)
    monkeypatch.setattr(layout, "VERSION", layout.VERSION + 1)
    monkeypatch.setattr(layout, "MIGRATIONS", (*layout.MIGRATIONS, to_current_version))
    for command in ("diagnose", "runs"):
        assert run(command, "--store", store).stderr == (
            f"trackside: {store} has version {layout.VERSION - 1} and this Trackside reads {layout.VERSION};"
            f" 'trackside compact --store {store}' updates it\n"
        )
    assert run("compact", "--store", store).exit_code == 0
    assert Directory(store).read_newest()["version"] == layout.VERSION
    assert verdict_of_store(store) == expected
    assert old_manifest in [path.read_bytes() for path in Directory(store).manifests()]
    assert ingest([folder], store).inputs == []


def test_an_interrupted_migration_changes_nothing(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, old_manifest = verdict_of_store(store), downgrade(store)
    monkeypatch.setattr(layout, "VERSION", layout.VERSION + 1)

    def failing_migration(path: Path, raw: dict[str, Any]) -> dict[str, Any]:
        (path / "segments" / "samples-of-the-next-version.parquet").write_bytes(b"half")
        raise StoreError("the disk is full")

    monkeypatch.setattr(layout, "MIGRATIONS", (*layout.MIGRATIONS, failing_migration))
    assert run("compact", "--store", store).stderr == "trackside: the disk is full\n"
    assert Directory(store).manifests()[-1].read_bytes() == old_manifest
    monkeypatch.setattr(layout, "MIGRATIONS", (*layout.MIGRATIONS[:-1], to_current_version))
    with Writer.open(store):
        pass
    assert "samples-of-the-next-version.parquet" not in segment_names(store)
    assert verdict_of_store(store) == expected


def without_notes(document: dict[str, Any]) -> dict[str, Any]:
    """A verdict document without the notes on its inputs: they have the words of the version that ingested them."""
    return {**document, "inputs": [{**row, "note": ""} for row in document["inputs"]]}


def test_stores_of_all_versions_can_be_read(folder: Path, tmp_path: Path, rewrite: bool) -> None:
    """The stores in this folder were written by the versions in their names and never change."""
    current = STORES / f"version-{layout.VERSION}"
    if rewrite and not current.exists():
        ingest([write(Path("/tmp/run"), FILES)], current)
    expected = verdict_of_files(folder)
    assert current.is_dir(), "write it with pytest --rewrite once the version is final"
    for path in sorted(STORES.glob("version-*")):
        copy = tmp_path / path.name
        shutil.copytree(path, copy)
        ingest([write(tmp_path / "more", {"sacct-2.txt": SACCT + sacct("42", node="gpu018")})], copy)
        assert without_notes(verdict_of_store(copy, "41")) == without_notes(expected)
        assert trackside.diagnose(store=copy, job="42").run.disposition == "FAILED"


def test_a_store_moved_while_it_is_read_is_reported_as_missing(store: Path) -> None:
    with open_session(StoreRequest(store, "41")) as session:
        loaded = session.loaded
        assert loaded.metric_backend is not None
        infos = loaded.metric_backend.series()
        os.rename(store, store.parent / "moved")
        with pytest.raises(StoreError, match="is missing: restore it"):
            loaded.metric_backend.rollup([[infos[0].id]], 0, 60_000_000_000_000, 60_000_000_000, "avg")
