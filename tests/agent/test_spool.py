"""The spool loses and reorders nothing that it accepted, whatever ends the process or fills the disk."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trackside.agent.delivery.spool import Batch, Spool, SpoolBusy, SpoolOptions

QUIET = lambda text: None  # noqa: E731


def open_spool(folder: Path | None, **options: float) -> Spool:
    return Spool(folder, SpoolOptions(**options), QUIET)  # type: ignore[arg-type]


def drain(spool: Spool, max_bytes: int = 1 << 20) -> list[bytes]:
    """Remove and return all records."""
    records: list[bytes] = []
    while (batch := spool.batch(max_bytes, 100)) is not None:
        records += batch.records
        spool.confirm(batch)
    return records


def record(number: int, size: int = 100) -> bytes:
    return f"{number:08d}".encode() + random.Random(number).randbytes(size - 8)


def numbers(records: list[bytes]) -> list[int]:
    return [int(record[:8]) for record in records]


def test_records_come_out_once_and_in_order(tmp_path: Path) -> None:
    spool = open_spool(tmp_path / "s")
    for number in range(500):
        assert spool.append(record(number, 5000), 3)
    assert spool.waiting.count == 1500
    assert numbers(drain(spool, 20_000)) == list(range(500))
    assert spool.waiting.count == 0
    assert spool.waiting.lost == {}
    assert drain(spool) == []
    spool.close()


def test_text_is_compressed(tmp_path: Path) -> None:
    spool = open_spool(tmp_path / "s")
    text = b"".join(b'gpu_power_watts{gpu="%d",node="n1"} 312.5\n' % gpu for gpu in range(2000))
    spool.append(text, 2000)
    assert spool.waiting.disk_bytes < len(text) / 8
    assert drain(spool) == [text]
    spool.close()


def test_files_are_deleted_after_their_records_are_sent(tmp_path: Path) -> None:
    spool = open_spool(tmp_path / "s", max_disk_bytes=1 << 20)  # files of 64 KiB
    for number in range(100):
        spool.append(record(number, 5000), 1)
    assert len(list((tmp_path / "s").glob("*.spool"))) > 5
    drain(spool)
    assert len(list((tmp_path / "s").glob("*.spool"))) == 1
    spool.close()


def test_a_reopened_spool_continues_after_the_last_confirmed_record(tmp_path: Path) -> None:
    first = open_spool(tmp_path / "s", max_disk_bytes=1 << 20)
    for number in range(60):
        first.append(record(number, 3000), 1)
    batch = first.batch(30_000, 100)
    assert batch is not None
    first.confirm(batch)
    sent_count = len(batch.records)
    unconfirmed = first.batch(30_000, 100)
    assert unconfirmed is not None
    first.close()
    second = open_spool(tmp_path / "s", max_disk_bytes=1 << 20)
    assert second.waiting.count == 60 - sent_count
    second.append(record(60), 1)
    assert numbers(drain(second)) == list(range(sent_count, 61))
    second.close()
    third = open_spool(tmp_path / "s")
    assert drain(third) == []
    third.append(record(61), 1)
    assert numbers(drain(third)) == [61]
    third.close()
    fourth = open_spool(tmp_path / "s")
    assert drain(fourth) == []
    fourth.close()


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    spool = open_spool(tmp_path / "s")
    with pytest.raises(SpoolBusy, match=r"is used by another agent.*spool\.path"):
        open_spool(tmp_path / "s")
    spool.close()
    open_spool(tmp_path / "s").close()


def test_a_damaged_position_sends_everything_again(tmp_path: Path) -> None:
    spool = open_spool(tmp_path / "s")
    for number in range(10):
        spool.append(record(number), 1)
    batch = spool.batch(1, 4)
    assert batch is not None
    spool.confirm(batch)
    spool.close()
    (tmp_path / "s" / "position").write_bytes(b"rubbish of some length, but no place")
    reopened = open_spool(tmp_path / "s")
    assert numbers(drain(reopened)) == list(range(10))
    reopened.close()


@pytest.mark.parametrize(
    "tail", [b"\x10\x00", b"\x40\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00abc", bytes(4096), b"\xff" * 600]
)
def test_an_incomplete_end_after_a_crash_is_skipped(tmp_path: Path, tail: bytes) -> None:
    """Half a header, half a record, zeros after a power failure, garbage."""
    spool = open_spool(tmp_path / "s")
    for number in range(5):
        spool.append(record(number), 1)
    spool.close()
    with (tmp_path / "s" / "00000001.spool").open("ab") as file:
        file.write(tail)
    reopened = open_spool(tmp_path / "s")
    reopened.append(record(5), 1)
    assert numbers(drain(reopened)) == [0, 1, 2, 3, 4, 5]
    assert reopened.waiting.count == 0
    reopened.close()
    assert len(list((tmp_path / "s").glob("*.spool"))) == 1


def test_a_damaged_record_is_skipped_and_counted_once(tmp_path: Path) -> None:
    spool = open_spool(tmp_path / "s")
    for number in range(5):
        spool.append(record(number), 7)
    path = tmp_path / "s" / "00000001.spool"
    data = bytearray(path.read_bytes())
    data[2 * len(data) // 5 + 40] ^= 1
    path.write_bytes(data)
    for _ in range(3):  # repeated attempts, as while the receiver is unreachable
        batch = spool.batch(1 << 20, 100)
        assert batch is not None
        assert numbers(batch.records) == [0, 1, 3, 4]
        spool.release(batch)
    spool.confirm(batch)
    assert spool.waiting.lost == {"damaged": 7}
    assert spool.waiting.count == 0
    spool.close()


def test_beyond_the_limit_the_oldest_records_are_dropped_and_counted(tmp_path: Path) -> None:
    spool = open_spool(tmp_path / "s", max_disk_bytes=1 << 18)
    for number in range(400):
        spool.append(record(number, 2000), 2)
    waiting = spool.waiting
    assert waiting.disk_bytes <= 1 << 18
    assert sum(path.stat().st_size for path in (tmp_path / "s").glob("*.spool")) <= 1 << 18
    remaining = numbers(drain(spool))
    assert remaining == list(range(remaining[0], 400))
    assert len(remaining) > 100
    assert waiting.lost == {"spool_full": 2 * remaining[0]}
    spool.close()


def test_a_batch_in_flight_is_not_dropped(tmp_path: Path) -> None:
    spool = open_spool(tmp_path / "s", max_disk_bytes=1 << 18)
    for number in range(100):
        spool.append(record(number, 2000), 1)
    batch = spool.batch(10_000, 100)
    assert batch is not None
    for number in range(100, 400):
        spool.append(record(number, 2000), 1)
    spool.confirm(batch)
    dropped_count = spool.waiting.lost["spool_full"]
    remaining = numbers(batch.records) + numbers(drain(spool))
    assert remaining == sorted(remaining)
    assert remaining[:5] == [0, 1, 2, 3, 4]
    assert remaining[-1] == 399
    assert len(remaining) + dropped_count == 400
    spool.close()


def test_without_a_folder_records_wait_in_bounded_memory() -> None:
    spool = open_spool(None, max_memory_bytes=1 << 16)
    for number in range(100):
        assert not spool.append(record(number, 2000), 1)
    assert spool.waiting.memory_bytes <= 1 << 16
    remaining = numbers(drain(spool))
    assert remaining == list(range(100 - len(remaining), 100))
    assert spool.waiting.lost == {"memory_full": 100 - len(remaining)}
    spool.close()


def test_an_uncreatable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    messages: list[str] = []
    spool = Spool(tmp_path / "file" / "spool", SpoolOptions(), messages.append)
    assert len(messages) == 1
    assert "data waits in memory only" in messages[0]
    spool.append(b"x", 1)
    assert drain(spool) == [b"x"]
    spool.close()


def test_a_hanging_disk_does_not_block_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trackside.agent.delivery.spool.BLOCKED_S", 0.05)
    spool = open_spool(tmp_path / "s")
    is_hanging, release = threading.Event(), threading.Event()
    write = os.write

    def hang(descriptor: int, data: bytes) -> int:
        is_hanging.set()
        release.wait(10)
        return write(descriptor, data)

    monkeypatch.setattr("trackside.agent.delivery.segments.os.write", hang)
    first = threading.Thread(target=spool.append, args=(record(0), 1))
    first.start()
    is_hanging.wait(5)
    begin = time.monotonic()
    assert not spool.append(record(1), 3)
    assert time.monotonic() - begin < 5
    release.set()
    first.join()
    assert spool.waiting.lost == {"blocked": 3}
    assert numbers(drain(spool)) == [0]
    spool.close()


def test_a_truncated_file_does_not_block_the_spool(tmp_path: Path) -> None:
    spool = open_spool(tmp_path / "s")
    for number in range(10):
        spool.append(record(number), 1)
    os.truncate(tmp_path / "s" / "00000001.spool", 300)
    remaining = numbers(drain(spool))
    assert remaining == [0, 1]
    assert spool.waiting.count == 0
    assert not spool.wait(0.0)
    assert spool.waiting.lost == {"damaged": 8}
    spool.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    result = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], timeout=10, check=True)


def fill(path: Path) -> None:
    """Fill the disk."""
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def test_on_a_full_disk_records_wait_in_memory_until_there_is_space(small_disk: Path) -> None:
    messages: list[str] = []
    spool = Spool(small_disk / "s", SpoolOptions(), messages.append)
    for number in range(20):
        assert spool.append(record(number, 5000), 1)
    filler = small_disk / "checkpoint.pt"
    fill(filler)
    for number in range(20, 60):
        spool.append(record(number, 5000), 1)
    assert spool.waiting.memory_bytes > 100_000
    assert [text for text in messages if "No space left" in text] == messages
    assert len(messages) == 1
    first = spool.batch(200_000, 100)  # a full disk does not stop the sending
    assert first is not None
    spool.confirm(first)
    filler.unlink()
    for number in range(60, 70):
        assert spool.append(record(number, 5000), 1)
    assert spool.waiting.memory_bytes == 0
    assert "can be written again" in messages[-1]
    assert numbers(first.records) + numbers(drain(spool)) == list(range(70))
    assert spool.waiting.lost == {}
    spool.close()


def test_on_a_full_disk_without_a_receiver_the_oldest_records_are_dropped(small_disk: Path) -> None:
    spool = Spool(small_disk / "s", SpoolOptions(max_disk_bytes=1 << 30, max_memory_bytes=1 << 17), QUIET)
    for number in range(1000):
        spool.append(record(number, 5000), 1)
    waiting = spool.waiting
    assert waiting.memory_bytes <= 1 << 17
    remaining = numbers(drain(spool))
    assert remaining == list(range(remaining[0], 1000))
    assert len(remaining) * 5000 > 1 << 16
    assert sum(waiting.lost.values()) == remaining[0]
    spool.close()


def test_records_do_not_overtake_a_batch_from_memory(small_disk: Path) -> None:
    spool = Spool(small_disk / "s", SpoolOptions(), QUIET)
    filler = small_disk / "full"
    fill(filler)
    for number in range(5):
        spool.append(record(number, 3000), 1)
    batch = spool.batch(1 << 20, 3)
    assert batch is not None
    filler.unlink()
    spool.append(record(5, 3000), 1)  # there is space again, but records 0 to 2 are in flight
    spool.release(batch)
    spool.append(record(6, 3000), 1)
    assert numbers(drain(spool)) == list(range(7))
    spool.close()


_WRITER = """
import os, sys
from pathlib import Path
from trackside.agent.delivery.spool import Spool, SpoolOptions
spool = Spool(Path(sys.argv[1]), SpoolOptions(max_disk_bytes=1 << 22), lambda text: None)
number = int(sys.argv[2])
sent = os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while True:
    for _ in range(7):
        assert spool.append(b"%08d" % number + bytes(number * 37 % 3000), 1)
        os.write(1, b"%d\\n" % number)
        number += 1
    batch = spool.batch(20_000, 5)
    if batch is not None:
        os.write(sent, b"".join(record[:8] + b"\\n" for record in batch.records))
        spool.confirm(batch)
"""


def test_a_process_killed_at_any_moment_loses_no_accepted_record(tmp_path: Path) -> None:
    """Each record that the spool accepted is sent in order, by this process or the next one.

    It is sent twice only if the process is killed between sending it and saving the position.
    """
    rng, number, last_appended = random.Random(6), 0, 0
    for _ in range(12):
        process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path / "s"), str(number), str(tmp_path / "sent")],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.uniform(0, 0.08))
        process.send_signal(signal.SIGKILL)
        printed_numbers = process.stdout.read().split()
        process.wait()
        process.stdout.close()
        last_appended = int(printed_numbers[-1]) if printed_numbers else number
        number = last_appended + 2  # the record after the last printed number may exist or not
    spool = open_spool(tmp_path / "s", max_disk_bytes=1 << 22)
    sent_numbers = [int(line) for line in (tmp_path / "sent").read_text().split()] + numbers(drain(spool))
    assert spool.waiting.lost == {}
    spool.close()
    assert last_appended > 500
    steps = [after - before for before, after in pairwise(sent_numbers)]
    repeats = [step for step in steps if step <= 0]
    assert len(repeats) <= 12
    assert all(step >= -5 for step in repeats)  # one batch
    gaps = [step for step in steps if step > 2]
    assert gaps == []
    assert sent_numbers[-1] == last_appended or sent_numbers[-1] == last_appended + 1
    assert len(set(sent_numbers)) >= last_appended + 1 - 12


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 6000)),
            st.tuples(st.just("send"), st.integers(1, 20_000)),
            st.tuples(st.just("fail"), st.integers(1, 20_000)),
            st.tuples(st.just("reopen"), st.just(0)),
        ),
        max_size=60,
    )
)
@settings(max_examples=60)
def test_the_spool_behaves_like_a_queue(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]) -> None:
    folder = tmp_path_factory.mktemp("queue")
    spool, model, number = open_spool(folder), deque[bytes](), 0
    for action, size in steps:
        if action == "append":
            model.append(record(number, size + 8))
            spool.append(model[-1], 2)
            number += 1
        elif action == "reopen":
            spool.close()
            spool = open_spool(folder)
        else:
            batch: Batch | None = spool.batch(size, 10)
            assert (batch is None) == (not model)
            if batch is not None:
                assert batch.records == list(model)[: len(batch.records)]
                if action == "fail":
                    spool.release(batch)
                else:
                    spool.confirm(batch)
                    for _ in batch.records:
                        model.popleft()
        assert spool.waiting.count == 2 * len(model)
    assert drain(spool) == list(model)
    spool.close()
