"""What waits to be sent: nothing that was taken is lost or reordered, whatever ends the process or fills the disk."""

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

from trackside.agent.out.spool import Batch, InUse, Spool, SpoolOptions

QUIET = lambda text: None  # noqa: E731


def opened(folder: Path | None, **options: float) -> Spool:
    return Spool(folder, SpoolOptions(**options), QUIET)  # type: ignore[arg-type]


def all_of(spool: Spool, most_bytes: int = 1 << 20) -> list[bytes]:
    """Take everything out."""
    found: list[bytes] = []
    while (batch := spool.batch(most_bytes, 100)) is not None:
        found += batch.records
        spool.done(batch)
    return found


def record(number: int, size: int = 100) -> bytes:
    return f"{number:08d}".encode() + random.Random(number).randbytes(size - 8)


def numbers(records: list[bytes]) -> list[int]:
    return [int(record[:8]) for record in records]


def test_what_goes_in_comes_out_in_order_and_once(tmp_path: Path) -> None:
    spool = opened(tmp_path / "s")
    for number in range(500):
        assert spool.append(record(number, 5000), 3)
    assert spool.waiting.count == 1500
    assert numbers(all_of(spool, 20_000)) == list(range(500))
    assert spool.waiting.count == 0
    assert spool.waiting.lost == {}
    assert all_of(spool) == []
    spool.close()


def test_text_takes_a_fraction_of_its_size(tmp_path: Path) -> None:
    spool = opened(tmp_path / "s")
    text = b"".join(b'gpu_power_watts{gpu="%d",node="n1"} 312.5\n' % gpu for gpu in range(2000))
    spool.append(text, 2000)
    assert spool.waiting.disk_bytes < len(text) / 8
    assert all_of(spool) == [text]
    spool.close()


def test_files_go_once_the_receiver_has_them(tmp_path: Path) -> None:
    spool = opened(tmp_path / "s", most_bytes=1 << 20)  # files of 64 KiB
    for number in range(100):
        spool.append(record(number, 5000), 1)
    assert len(list((tmp_path / "s").glob("*.spool"))) > 5
    all_of(spool)
    assert len(list((tmp_path / "s").glob("*.spool"))) == 1
    spool.close()


def test_another_process_goes_on_where_the_last_was(tmp_path: Path) -> None:
    first = opened(tmp_path / "s", most_bytes=1 << 20)
    for number in range(60):
        first.append(record(number, 3000), 1)
    batch = first.batch(30_000, 100)
    assert batch is not None
    first.done(batch)
    sent = len(batch.records)
    lost_on_the_way = first.batch(30_000, 100)
    assert lost_on_the_way is not None
    first.close()
    second = opened(tmp_path / "s", most_bytes=1 << 20)
    assert second.waiting.count == 60 - sent
    second.append(record(60), 1)
    assert numbers(all_of(second)) == list(range(sent, 61))
    second.close()
    third = opened(tmp_path / "s")
    assert all_of(third) == []
    third.append(record(61), 1)
    assert numbers(all_of(third)) == [61]
    third.close()
    fourth = opened(tmp_path / "s")
    assert all_of(fourth) == []
    fourth.close()


def test_two_processes_never_share_a_folder(tmp_path: Path) -> None:
    spool = opened(tmp_path / "s")
    with pytest.raises(InUse, match=r"is used by another agent.*spool\.path"):
        opened(tmp_path / "s")
    spool.close()
    opened(tmp_path / "s").close()


def test_where_the_position_is_lost_all_is_sent_again(tmp_path: Path) -> None:
    spool = opened(tmp_path / "s")
    for number in range(10):
        spool.append(record(number), 1)
    batch = spool.batch(1, 4)
    assert batch is not None
    spool.done(batch)
    spool.close()
    (tmp_path / "s" / "position").write_bytes(b"rubbish of some length, but no place")
    again = opened(tmp_path / "s")
    assert numbers(all_of(again)) == list(range(10))
    again.close()


@pytest.mark.parametrize(
    "tail", [b"\x10\x00", b"\x40\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00abc", bytes(4096), b"\xff" * 600]
)
def test_what_a_crash_left_at_the_end_is_passed_over(tmp_path: Path, tail: bytes) -> None:
    """Half a head, half a record, the zeros of a power cut, rubbish."""
    spool = opened(tmp_path / "s")
    for number in range(5):
        spool.append(record(number), 1)
    spool.close()
    with (tmp_path / "s" / "00000001.spool").open("ab") as file:
        file.write(tail)
    again = opened(tmp_path / "s")
    again.append(record(5), 1)
    assert numbers(all_of(again)) == [0, 1, 2, 3, 4, 5]
    assert again.waiting.count == 0
    again.close()
    assert len(list((tmp_path / "s").glob("*.spool"))) == 1


def test_a_damaged_record_is_passed_over_and_counted_once(tmp_path: Path) -> None:
    spool = opened(tmp_path / "s")
    for number in range(5):
        spool.append(record(number), 7)
    path = tmp_path / "s" / "00000001.spool"
    data = bytearray(path.read_bytes())
    data[2 * len(data) // 5 + 40] ^= 1
    path.write_bytes(data)
    for _ in range(3):  # tried again and again, as while the receiver is away
        batch = spool.batch(1 << 20, 100)
        assert batch is not None
        assert numbers(batch.records) == [0, 1, 3, 4]
        spool.released(batch)
    spool.done(batch)
    assert spool.waiting.lost == {"damaged": 7}
    assert spool.waiting.count == 0
    spool.close()


def test_beyond_its_bound_the_oldest_goes_and_is_counted(tmp_path: Path) -> None:
    spool = opened(tmp_path / "s", most_bytes=1 << 18)
    for number in range(400):
        spool.append(record(number, 2000), 2)
    waiting = spool.waiting
    assert waiting.disk_bytes <= 1 << 18
    assert sum(path.stat().st_size for path in (tmp_path / "s").glob("*.spool")) <= 1 << 18
    left = numbers(all_of(spool))
    assert left == list(range(left[0], 400))
    assert len(left) > 100
    assert waiting.lost == {"spool_full": 2 * left[0]}
    spool.close()


def test_what_is_being_sent_is_not_dropped(tmp_path: Path) -> None:
    spool = opened(tmp_path / "s", most_bytes=1 << 18)
    for number in range(100):
        spool.append(record(number, 2000), 1)
    batch = spool.batch(10_000, 100)
    assert batch is not None
    for number in range(100, 400):
        spool.append(record(number, 2000), 1)
    spool.done(batch)
    lost = spool.waiting.lost["spool_full"]
    rest = numbers(batch.records) + numbers(all_of(spool))
    assert rest == sorted(rest)
    assert rest[:5] == [0, 1, 2, 3, 4]
    assert rest[-1] == 399
    assert len(rest) + lost == 400
    spool.close()


def test_without_a_folder_it_keeps_to_memory_within_its_bound() -> None:
    spool = opened(None, memory_bytes=1 << 16)
    for number in range(100):
        assert not spool.append(record(number, 2000), 1)
    assert spool.waiting.memory_bytes <= 1 << 16
    left = numbers(all_of(spool))
    assert left == list(range(100 - len(left), 100))
    assert spool.waiting.lost == {"memory_full": 100 - len(left)}
    spool.close()


def test_a_folder_that_can_t_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said: list[str] = []
    spool = Spool(tmp_path / "file" / "spool", SpoolOptions(), said.append)
    assert len(said) == 1
    assert "data waits in memory only" in said[0]
    spool.append(b"x", 1)
    assert all_of(spool) == [b"x"]
    spool.close()


def test_a_disk_that_hangs_holds_up_no_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trackside.agent.out.spool.BLOCKED_S", 0.05)
    spool = opened(tmp_path / "s")
    hung, go_on = threading.Event(), threading.Event()
    write = os.write

    def hang(descriptor: int, data: bytes) -> int:
        hung.set()
        go_on.wait(10)
        return write(descriptor, data)

    monkeypatch.setattr("trackside.agent.out.segments.os.write", hang)
    first = threading.Thread(target=spool.append, args=(record(0), 1))
    first.start()
    hung.wait(5)
    begin = time.monotonic()
    assert not spool.append(record(1), 3)
    assert time.monotonic() - begin < 5
    go_on.set()
    first.join()
    assert spool.waiting.lost == {"blocked": 3}
    assert numbers(all_of(spool)) == [0]
    spool.close()


def test_a_file_that_somebody_cut_off_wedges_nothing(tmp_path: Path) -> None:
    spool = opened(tmp_path / "s")
    for number in range(10):
        spool.append(record(number), 1)
    os.truncate(tmp_path / "s" / "00000001.spool", 300)
    first = numbers(all_of(spool))
    assert first == [0, 1]
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
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], timeout=10, check=True)


def fill(path: Path) -> None:
    """Take all the room that there is."""
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def test_on_a_full_disk_it_goes_on_in_memory_and_comes_back(small_disk: Path) -> None:
    said: list[str] = []
    spool = Spool(small_disk / "s", SpoolOptions(), said.append)
    for number in range(20):
        assert spool.append(record(number, 5000), 1)
    filler = small_disk / "checkpoint.pt"
    fill(filler)
    for number in range(20, 60):
        spool.append(record(number, 5000), 1)
    assert spool.waiting.memory_bytes > 100_000
    assert [text for text in said if "No space left" in text] == said
    assert len(said) == 1
    first = spool.batch(200_000, 100)  # the receiver is there: a full disk costs it nothing
    assert first is not None
    spool.done(first)
    filler.unlink()
    for number in range(60, 70):
        assert spool.append(record(number, 5000), 1)
    assert spool.waiting.memory_bytes == 0
    assert "can be written again" in said[-1]
    assert numbers(first.records) + numbers(all_of(spool)) == list(range(70))
    assert spool.waiting.lost == {}
    spool.close()


def test_on_a_full_disk_with_the_receiver_away_the_oldest_goes(small_disk: Path) -> None:
    spool = Spool(small_disk / "s", SpoolOptions(most_bytes=1 << 30, memory_bytes=1 << 17), QUIET)
    for number in range(1000):
        spool.append(record(number, 5000), 1)
    waiting = spool.waiting
    assert waiting.memory_bytes <= 1 << 17
    left = numbers(all_of(spool))
    assert left == list(range(left[0], 1000))
    assert len(left) * 5000 > 1 << 16
    assert sum(waiting.lost.values()) == left[0]
    spool.close()


def test_while_something_in_memory_is_being_sent_nothing_overtakes_it(small_disk: Path) -> None:
    spool = Spool(small_disk / "s", SpoolOptions(), QUIET)
    filler = small_disk / "full"
    fill(filler)
    for number in range(5):
        spool.append(record(number, 3000), 1)
    batch = spool.batch(1 << 20, 3)
    assert batch is not None
    filler.unlink()
    spool.append(record(5, 3000), 1)  # there is room again, but 0 to 2 are under way
    spool.released(batch)
    spool.append(record(6, 3000), 1)
    assert numbers(all_of(spool)) == list(range(7))
    spool.close()


_WRITER = """
import os, sys
from pathlib import Path
from trackside.agent.out.spool import Spool, SpoolOptions
spool = Spool(Path(sys.argv[1]), SpoolOptions(most_bytes=1 << 22), lambda text: None)
number = int(sys.argv[2])
sent = os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while True:
    for _ in range(7):
        assert spool.append(b"%08d" % number + bytes(number * 37 % 3000), 1)
        os.write(1, b"%d\\n" % number)
        number += 1
    batch = spool.batch(20_000, 5)
    if batch is not None:
        os.write(sent, b"".join(each[:8] + b"\\n" for each in batch.records))
        spool.done(batch)
"""


def test_killed_at_any_moment_it_loses_nothing_that_it_took(tmp_path: Path) -> None:
    """What it said that it took is sent by it or by who comes after it: in order, and twice only where it was killed
    between the sending and the note of it."""
    dice, number, taken = random.Random(6), 0, 0
    for _ in range(12):
        process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path / "s"), str(number), str(tmp_path / "sent")],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(dice.uniform(0, 0.08))
        process.send_signal(signal.SIGKILL)
        told = process.stdout.read().split()
        process.wait()
        process.stdout.close()
        taken = int(told[-1]) if told else number
        number = taken + 2  # the one after the last told may be there or not
    spool = opened(tmp_path / "s", most_bytes=1 << 22)
    found = [int(line) for line in (tmp_path / "sent").read_text().split()] + numbers(all_of(spool))
    assert spool.waiting.lost == {}
    spool.close()
    assert taken > 500
    steps = [after - before for before, after in pairwise(found)]
    again = [step for step in steps if step <= 0]
    assert len(again) <= 12
    assert all(step >= -5 for step in again)  # one batch
    holes = [step for step in steps if step > 2]
    assert holes == []
    assert found[-1] == taken or found[-1] == taken + 1
    assert len(set(found)) >= taken + 1 - 12


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
def test_it_is_a_queue(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]) -> None:
    folder = tmp_path_factory.mktemp("queue")
    spool, model, number = opened(folder), deque[bytes](), 0
    for what, size in steps:
        if what == "append":
            model.append(record(number, size + 8))
            spool.append(model[-1], 2)
            number += 1
        elif what == "reopen":
            spool.close()
            spool = opened(folder)
        else:
            batch: Batch | None = spool.batch(size, 10)
            assert (batch is None) == (not model)
            if batch is not None:
                assert batch.records == list(model)[: len(batch.records)]
                if what == "fail":
                    spool.released(batch)
                else:
                    spool.done(batch)
                    for _ in batch.records:
                        model.popleft()
        assert spool.waiting.count == 2 * len(model)
    assert all_of(spool) == list(model)
    spool.close()
