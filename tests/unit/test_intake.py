"""A store that is sent to: on disk before the answer, in segments once, whatever happens in between."""

from __future__ import annotations

import os
import random
import resource
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest

from tests.unit.receiving import (
    T0_MS,
    UTIL,
    expected,
    flushed,
    gpu,
    key,
    lines,
    opened,
    said,
    samples,
    sent,
    tick,
)
from trackside import api
from trackside.stores import intake as intakes
from trackside.stores import lines as line_files
from trackside.stores import received, retention
from trackside.stores.arrivals import Taken
from trackside.stores.intake import Busy, Intake, NotKept
from trackside.stores.layout import Directory, StoreBusy
from trackside.stores.receiving import Keeping, Limits
from trackside.stores.snapshot import Snapshot
from trackside.stores.write_ahead import Header, Mark, WriteAhead
from trackside.stores.writer import Writer

RATIO = "dcgm_prof_sm_active"
"""0 to 1 or percent: only the size of its values tells."""
JOB = {"job_id": "4242", "rank": "3", "host": "n1"}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def intake(store: Path) -> Iterator[Intake]:
    found = opened(store)
    yield found
    found.close()


def held(store: Path) -> set[tuple[str, int, float]]:
    """(GPU, time, value) of all samples; none is there twice."""
    found = samples(store)
    assert set(found.values()) <= {1}
    return {(number, time_ms, value) for _, number, time_ms, value in found}


def crashed(intake: Intake, store: Path, to: Path) -> Path:
    """The store as a kill would leave it now."""
    shutil.copytree(store, to)
    return to


# -- samples


def test_what_is_sent_is_found(intake: Intake, store: Path) -> None:
    for number in range(3):
        assert sent(intake, tick(number)).result(10) == Taken(4)
    flushed(intake)
    assert held(store) == {row for number in range(3) for row in expected(tick(number))}
    with Snapshot.open(store) as snapshot:
        rows = snapshot.rows(f"SELECT path, format, status, rows, planes FROM {snapshot.table('inputs')}")
        day = time.strftime("%Y-%m-%d", time.gmtime())
        assert rows == [(f"received/metrics/{day}", "received", "read", 12, "metric")]


def test_a_day_of_flushes_is_one_input_and_few_segments(intake: Intake, store: Path) -> None:
    for number in range(80):
        sent(intake, tick(number)).result(10)
        flushed(intake)
    assert held(store) == {row for number in range(80) for row in expected(tick(number))}
    with Snapshot.open(store) as snapshot:
        ((inputs, rows),) = snapshot.rows(f"SELECT count(*), sum(rows) FROM {snapshot.table('inputs')}")
        assert rows == 320
        assert inputs <= 4, "one, and another each time that their rows were merged"
        assert len(snapshot.manifest.segments) < 4 * retention.MANY
        spans = snapshot.rows(f"SELECT series, sum(count) FROM {snapshot.table('spans')} GROUP BY series")
        assert [count for _, count in sorted(spans)] == [80] * 4
        assert snapshot.rows(f"SELECT count(*) FROM {snapshot.table('spans')}")[0][0] < 4 * 80


def test_the_verdict_is_that_on_the_same_in_files(intake: Intake, store: Path, tmp_path: Path) -> None:
    names = {UTIL: 97.0, "DCGM_FI_DEV_GPU_TEMP": 60.0, "DCGM_FI_DEV_SM_CLOCK": 1400.0}
    text = ""
    for number in range(240):
        for name, value in names.items():
            scrape = tick(number, name=name, value=value)
            sent(intake, scrape).result(10)
            text += "".join(
                f'{name}{{gpu="{each}",Hostname="gpu017"}} {told[0][1]} {told[0][0]}\n'
                for each, (_, told) in enumerate(scrape)
            )
    flushed(intake)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.prom").write_text(text)
    of_files, of_store = api.diagnose([tmp_path / "run"]), api.diagnose_stored(store)
    assert of_store.run == of_files.run
    assert of_store.primary == of_files.primary
    for part in ("consequences", "warnings", "ruled_out", "unknown"):
        assert [each.family for each in getattr(of_store, part)] == [each.family for each in getattr(of_files, part)]


def test_a_body_sent_twice_counts_once(intake: Intake, store: Path) -> None:
    """In one flush, in the next, and after a restart."""
    sent(intake, tick(0))
    sent(intake, tick(0)).result(10)
    flushed(intake)
    sent(intake, [*tick(0), *tick(1)]).result(10)
    flushed(intake)
    assert intake.counts.left_out["duplicate"] == 8
    intake.close()
    again = opened(store)
    sent(again, tick(1)).result(10)
    again.close()
    assert again.counts.left_out["duplicate"] == 4
    assert held(store) == expected([*tick(0), *tick(1)])


def test_late_samples_and_other_values_of_the_same_time_are_kept(intake: Intake, store: Path) -> None:
    sent(intake, tick(5)).result(10)
    flushed(intake)
    sent(intake, tick(2))
    sent(intake, tick(5, value=20.0)).result(10)
    flushed(intake)
    assert held(store) == expected([*tick(5), *tick(2), *tick(5, value=20.0)])


def test_what_says_nothing_is_counted_and_not_kept(intake: Intake, store: Path) -> None:
    odd = [
        (gpu(number=0), [(T0_MS, float("nan")), (T0_MS + 1, 1e9), (T0_MS + 2, 40.0), (5, 40.0)]),
        (key("site_made_this_up", a="b"), [(T0_MS, 1.0), (T0_MS + 1, 1.0)]),
        (key("go_goroutines"), [(T0_MS, 1.0)]),
    ]
    assert sent(intake, odd).result(10).refused == {"unknown:site_made_this_up": 2, "unneeded": 1}
    flushed(intake)
    counted = intake.counts.left_out
    assert (counted["blank"], counted["implausible"], counted["untimely"]) == (1, 1, 1)
    assert held(store) == {("0", T0_MS + 2, 0.4)}


def test_limits_keep_series_out_and_take_the_others(store: Path) -> None:
    intake = opened(store, Limits(series=2, labels=3, label_value_bytes=10))
    assert sent(intake, tick(0, gpus=4)).result(10) == Taken(2, {"series": 2})
    assert sent(intake, [(gpu(number=7, a="b", c="d"), [(T0_MS, 1.0)])]).result(10).refused == {"labels": 1}
    assert sent(intake, [(gpu(number=8, a="x" * 11), [(T0_MS, 1.0)])]).result(10).refused == {"labels": 1}
    assert sent(intake, tick(1, gpus=2)).result(10) == Taken(2)
    intake.close()
    assert len(held(store)) == 4


# -- units that only size tells


def test_a_unit_is_not_guessed_from_small_values(intake: Intake, store: Path) -> None:
    """Percent while the GPUs are idle: 1 is one percent, as the first busy GPU shows."""
    for number in range(5):
        sent(intake, tick(number, gpus=2, name=RATIO, value=0.0)).result(10)
        flushed(intake)
        assert intake.waiting == {RATIO: 2 * (number + 1)}
        assert held(store) == set()
    sent(intake, tick(5, gpus=2, name=RATIO, value=80.0)).result(10)
    flushed(intake)
    assert intake.waiting == {}
    idle = {row for number in range(5) for row in expected(tick(number, gpus=2, value=0.0))}
    assert held(store) == idle | expected(tick(5, gpus=2, value=80.0))


def test_a_unit_stays_settled_after_a_restart_and_waiting_values_wait_on(intake: Intake, store: Path) -> None:
    sent(intake, tick(0, gpus=2, name=RATIO, value=0.0)).result(10)
    other = "dcgm_prof_sm_occupancy"
    sent(intake, tick(0, name=other, value=60.0)).result(10)
    flushed(intake)
    intake.close()
    again = opened(store)
    assert again.waiting == {RATIO: 2}
    sent(again, tick(1, name=other, value=0.5)).result(10)
    sent(again, tick(1, name=RATIO, value=70.0)).result(10)
    flushed(again)
    assert again.waiting == {}
    again.close()
    found = samples(store)
    assert {value for metric, _, time_ms, value in found if "occupancy" in metric and time_ms > T0_MS} == {
        0.005, 0.015, 0.025, 0.035
    }  # fmt: skip
    assert {value for metric, _, time_ms, value in found if "active" in metric and time_ms == T0_MS} == {
        0.0, 0.01
    }  # fmt: skip
    with Snapshot.open(store) as snapshot:
        assert snapshot.manifest.received.factors == {RATIO: 0.01, other: 0.01}
        assert snapshot.rows(f"SELECT count(*) FROM {snapshot.table('waiting')}") == [(0,)]


def test_a_unit_that_nothing_tells_is_settled_by_many_values(
    intake: Intake, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(received, "LOOK", 10)
    for number in range(3):
        sent(intake, tick(number, name=RATIO, value=0.0, gpus=2)).result(10)
        sent(intake, tick(number, name="dcgm_prof_dram_active", value=0.1, gpus=1)).result(10)
        flushed(intake)
    assert intake.waiting == {RATIO: 6, "dcgm_prof_dram_active": 3}
    for number in range(3, 5):
        sent(intake, tick(number, name=RATIO, value=0.0, gpus=2)).result(10)
        flushed(intake)
    assert intake.waiting == {"dcgm_prof_dram_active": 3}
    assert held(store) == {row for number in range(5) for row in expected(tick(number, gpus=2, value=0.0), 1.0)}


# -- lines


def test_lines_are_files_that_are_read(intake: Intake, store: Path) -> None:
    text = [
        (0, "step 1 loss 2.0"),
        (1, "step 2 loss 1.5"),
        (2, 'Traceback (most recent call last):\n  File "t.py", line 1\nValueError: bad'),
    ]
    assert said(intake, JOB, text).result(10) == Taken(3)
    flushed(intake)
    ((path, found),) = lines(store).items()
    assert path == "job-4242/slurm-4242.rank3@n1.log"
    assert found[0] == "2026-03-02T08:00:00.000000000Z stdout F step 1 loss 2.0"
    assert len(found) == 5
    verdict = api.diagnose_stored(store, "4242")
    assert verdict.run.id == "4242"
    assert verdict.primary is not None
    assert "ValueError: bad" in str(verdict)


def test_lines_sent_twice_are_there_once(intake: Intake, store: Path) -> None:
    """In one flush, in the next, after a restart; but equal lines of other times are all there."""
    text = [(number, f"line {number // 2}") for number in range(6)]
    said(intake, JOB, text)
    said(intake, JOB, text).result(10)
    flushed(intake)
    assert said(intake, JOB, [*text[3:], (9, "last")]).result(10) == Taken(4)
    flushed(intake)
    intake.close()
    again = opened(store)
    said(again, JOB, [*text, (9, "last"), (4, "late")]).result(10)
    again.close()
    (found,) = lines(store).values()
    assert [line.rpartition(" F ")[2] for line in found] == ["line 0"] * 2 + ["line 1"] * 2 + ["line 2"] * 2 + [
        "last",
        "late",
    ]
    assert again.counts.left_out["repeated_line"] == 7


def test_a_store_that_was_moved_receives_on(intake: Intake, store: Path) -> None:
    """Nothing is read into it again; what follows belongs to what there was."""
    said(intake, JOB, [(0, "step 1 loss 2.0")]).result(10)
    sent(intake, tick(0)).result(10)
    flushed(intake)
    intake.close()
    moved = store.rename(store.with_name("moved"))
    again = opened(moved)
    sent(again, tick(1)).result(10)
    flushed(again)
    with Snapshot.open(moved) as snapshot:
        assert snapshot.rows(f"SELECT count(*) FROM {snapshot.table('inputs')} WHERE is_log") == [(1,)]
    said(again, JOB, [(1, "step 2 loss 1.0")]).result(10)
    flushed(again)
    again.close()
    with Snapshot.open(moved) as snapshot:
        rows = snapshot.rows(f"SELECT path, rows FROM {snapshot.table('inputs')} WHERE is_log")
    assert [path for path, _ in rows] == ["job-4242/slurm-4242.rank3@n1.log"]
    assert len(held(moved)) == 8


def test_large_files_have_parts_which_are_compressed_and_forgotten(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_files, "PART_BYTES", 300)
    intake = opened(store, keeping=Keeping(flush_s=3600.0, log_days=1.0))
    for number in range(30):
        said(intake, JOB, [(number, f"step {number} loss 1.0")]).result(10)
        flushed(intake)
    stem = "job-4242/slurm-4242.rank3@n1.log"
    # the first care came before there was a second part
    monkeypatch.setattr(intakes, "CARE_S", 0.0)
    flushed(intake)
    top = store / "received" / "logs"
    names = sorted(str(path.relative_to(top)) for path in top.rglob("*") if path.is_file())
    assert names == sorted(
        [f"{stem}.zst", f"part-2/{stem}.zst", f"part-3/{stem}.zst", f"part-4/{stem}.zst", f"part-5/{stem}"]
    )
    said(intake, JOB, [(40, "step 40 loss 1.0")]).result(10)
    flushed(intake)
    intake.close()
    with Snapshot.open(store) as snapshot:
        rows = snapshot.rows(f"SELECT path, rows FROM {snapshot.table('inputs')} WHERE is_log ORDER BY place")
    assert [path for path, _ in rows] == [stem, *(f"part-{number}/{stem}" for number in range(2, 7))]
    old = time.time() - 2 * 86400
    for path in top.rglob("*.zst"):
        os.utime(path, (old, old))
    again = opened(store, keeping=Keeping(flush_s=3600.0, log_days=1.0))
    flushed(again)
    again.close()
    assert [path.name for path in top.rglob("*.zst")] == []
    assert len(lines(store)[f"part-6/{stem}"]) == 1
    assert api.diagnose_stored(store, "4242").run.id == "4242"


# -- crashes


def test_dead_at_any_step(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is copied before each file that is synced, renamed or deleted: each copy is what a kill may leave."""
    copies: list[tuple[Path, int, int]] = []
    acknowledged = [0, 0]
    monkeypatch.setattr(line_files, "PART_BYTES", 400)

    def watched(name: str) -> None:
        real = getattr(os, name)

        def call(*arguments: Any, **more: Any) -> Any:
            where = arguments[0]
            told = os.readlink(f"/proc/self/fd/{where}") if isinstance(where, int) else os.fspath(where)
            if str(store) in told and len(copies) < 400:
                to = tmp_path / f"copy-{len(copies)}"
                shutil.copytree(store, to)
                copies.append((to, *acknowledged))
            return real(*arguments, **more)

        monkeypatch.setattr(os, name, call)

    for name in ("fsync", "fdatasync", "rename", "unlink"):
        watched(name)
    intake = opened(store)
    rounds = 6
    for number in range(rounds):
        sent(intake, [*tick(number), *tick(number, name=RATIO, value=40.0 * (number > 2))]).result(10)
        acknowledged[0] = number + 1
        said(intake, JOB, [(number * 100 + each, f"step {number}{each} loss 1.0") for each in range(4)]).result(10)
        acknowledged[1] = number + 1
        if number % 2:
            flushed(intake, read=False)
    intake.close()
    monkeypatch.undo()
    assert len(copies) > 40
    for copy, of_samples, of_lines in copies:
        if not (copy / "writer").exists():
            continue
        again = opened(copy)
        again.close()
        found = samples(copy)
        assert set(found.values()) <= {1}, copy
        ticks = {time_ms for metric, _, time_ms, _ in found if metric == "gpu_utilization_ratio"}
        assert {T0_MS + number * 15_000 for number in range(of_samples)} <= ticks, copy
        with Snapshot.open(copy) as snapshot:
            ((waiting,),) = snapshot.rows(f"SELECT count(*) FROM {snapshot.table('waiting')}")
        active = sum(metric == "gpu_sm_active_ratio" for metric, *_ in found) + waiting
        assert active == len(ticks) * 4, copy
        steps = [line.split(" F ")[1] for told in lines(copy).values() for line in told]
        assert len(steps) == len(set(steps)), copy
        assert {f"step {number}{each} loss 1.0" for number in range(of_lines) for each in range(4)} <= set(steps), copy
        shutil.rmtree(copy)


def test_a_torn_tail_is_cut_off(intake: Intake, store: Path, tmp_path: Path) -> None:
    sent(intake, tick(0)).result(10)
    sent(intake, tick(1)).result(10)
    end = intake.log.end.offset
    for cut in (*range(end - 30, end, 7), end - 1):
        copy = crashed(intake, store, tmp_path / f"cut-{cut}")
        os.truncate(copy / "received/wal/00000001.log", cut)
        again = opened(copy)
        assert again.counts.replayed == 1
        assert again.counts.torn_bytes > 0
        sent(again, tick(1)).result(10)
        again.close()
        assert held(copy) == expected([*tick(0), *tick(1)])


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    log = WriteAhead(tmp_path, Mark())
    log.append([(Header("a"), b"one"), (Header("b"), b"two"), (Header("c"), b"three")])
    log.close()
    path = tmp_path / "00000001.log"
    data = bytearray(path.read_bytes())
    data[data.index(b"two")] ^= 1
    path.write_bytes(data)
    again = WriteAhead(tmp_path, Mark())
    assert [body for (_, body), _ in again.replay()] == [b"one"]
    assert again.torn_bytes > 0
    assert [body for (_, body), _ in WriteAhead(tmp_path, Mark()).replay()] == [b"one"]


def test_log_files_are_turned_over_and_forgotten(tmp_path: Path) -> None:
    log = WriteAhead(tmp_path, Mark(), file_bytes=200)
    marks = [log.append([(Header("a"), bytes([65 + number]) * 60)]) for number in range(10)]
    assert len(list(tmp_path.iterdir())) == 5
    log.forget(marks[6])
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["00000004.log", "00000005.log"]
    log.close()
    again = WriteAhead(tmp_path, marks[6])
    assert [body[:1] for (_, body), _ in again.replay()] == [b"H", b"I", b"J"]
    assert again.append([(Header("a"), b"")]).file == 6
    again.close()


def test_two_receivers_and_readers_beside_one(intake: Intake, store: Path) -> None:
    with pytest.raises(StoreBusy, match=f"process {os.getpid()}:"):
        opened(store)
    sent(intake, tick(0)).result(10)
    flushed(intake)
    with Snapshot.open(store) as early:
        for number in range(1, 40):
            sent(intake, tick(number)).result(10)
            flushed(intake)
        assert early.rows(f"SELECT count(*) FROM {early.table('samples')}") == [(4,)]
    assert len(held(store)) == 160


def test_many_senders_share_a_sync(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fdatasync

    def slow(handle: int) -> None:
        time.sleep(0.02)
        real(handle)

    monkeypatch.setattr(os, "fdatasync", slow)
    intake = opened(store)
    answers = [sent(intake, tick(number)) for number in range(50)]
    assert not wait(answers, 20).not_done
    assert intake.counts.syncs < 10
    intake.close()
    assert len(held(store)) == 200


# -- trouble


def test_a_log_that_can_not_be_written_keeps_nothing(
    intake: Intake, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent(intake, tick(0)).result(10)
    real = os.write

    def full(handle: int, data: memoryview) -> int:
        real(handle, bytes(data[: len(data) // 2]))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(NotKept, match="No space left on device; nothing of this was kept"):
        sent(intake, tick(1)).result(10)
    monkeypatch.undo()
    sent(intake, tick(2)).result(10)
    intake.close()
    assert held(store) == expected([*tick(0), *tick(2)])


def test_a_full_disk_while_flushing_loses_nothing(intake: Intake, store: Path) -> None:
    """Segments can't be written, the log can: it is said, tried again, and nothing is there twice."""
    for number in range(3):
        sent(intake, tick(number)).result(10)
        said(intake, JOB, [(number, f"step {number} loss 1.0")]).result(10)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, hard))
    try:
        with pytest.raises(Exception, match="File too large"):
            flushed(intake)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "File too large" in intake.trouble
    assert intake.counts.failures == 1
    sent(intake, tick(3)).result(10)
    flushed(intake)
    assert intake.trouble == ""
    assert held(store) == {row for number in range(4) for row in expected(tick(number))}
    assert [len(told) for told in lines(store).values()] == [3]
    named = {each.name for each in Directory(store).read().segments}
    assert {name for name in os.listdir(store / "segments") if not name.startswith(".")} >= named


def test_no_more_is_taken_than_there_is_room_for(store: Path) -> None:
    intake = opened(store, Limits(pending_samples=8))
    sent(intake, tick(0)).result(10)
    sent(intake, tick(1)).result(10)
    with pytest.raises(Busy, match="8 samples wait to be written") as told:
        sent(intake, tick(2))
    assert told.value.retry_after_s > 0
    flushed(intake)
    sent(intake, tick(2)).result(10)
    intake.close()
    assert len(held(store)) == 12


def test_it_flushes_by_itself(store: Path) -> None:
    intake = opened(store, keeping=Keeping(flush_s=0.1))
    sent(intake, tick(0)).result(10)
    end = time.monotonic() + 10
    while not samples(store) and time.monotonic() < end:
        time.sleep(0.02)
    assert held(store) == expected(tick(0))
    intake.close()


def test_samples_of_thinned_days_are_not_added_to(store: Path) -> None:
    intake = opened(store, keeping=Keeping(flush_s=3600.0, raw_days=2.0))
    sent(intake, tick(0)).result(10)
    fresh = int(time.time() * 1000) - 60_000
    sent(intake, [(gpu(), [(fresh, 30.0)])]).result(10)
    flushed(intake)
    assert intake.counts.left_out["too_old"] == 4
    intake.close()
    assert held(store) == {("0", fresh, 0.3)}


def test_compacted_between_two_runs(intake: Intake, store: Path) -> None:
    chance = random.Random(5)
    order = list(range(30))
    chance.shuffle(order)
    for number in order[:15]:
        sent(intake, tick(number)).result(10)
        flushed(intake)
    intake.close()
    with Writer.open(store) as writer:
        retention.compact(writer, time.time())
    again = opened(store)
    for number in order[10:]:
        sent(again, tick(number)).result(10)
        flushed(again)
    assert again.counts.left_out["duplicate"] == 20
    again.close()
    assert held(store) == {row for number in range(30) for row in expected(tick(number))}
