"""Asking the receiver to read what it has accepted, from another process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.serve.receiving import end_all, flushed, opened, push_lines, served
from trackside.cli import main
from trackside.stores.receiver.lag import IntakeLag, lags_without_receiver, unread_lag
from trackside.stores.receiver.refresh import answer_refreshes, refresh

JOB = {"slurm_job_id": "4242", "host": "n1", "filename": "/logs/slurm-4242.out"}
LAG = IntakeLag(("log", "kernel"), "1 file of received lines is not read yet; try again", ("job-7/a.log",))


def store_folder(folder: Path) -> Path:
    (folder / "received").mkdir(parents=True)
    return folder


@pytest.mark.parametrize("depth", [1, 12])
def test_the_answer_is_what_could_not_be_read(tmp_path: Path, depth: int) -> None:
    """Also if the path is longer than the address of a socket may be."""
    store = store_folder(tmp_path.joinpath(*["a-folder-name"] * depth))
    with answer_refreshes(store, lambda: (LAG,)):
        assert refresh(store) == (LAG,)
    assert not (store / "received" / "refresh").exists()


def test_one_reading_answers_all_who_wait(tmp_path: Path) -> None:
    store, readings, is_free = store_folder(tmp_path), [0], threading.Event()

    def read_all() -> Sequence[IntakeLag]:
        readings[0] += 1
        if readings[0] == 1:
            is_free.wait(10)
        return ()

    with answer_refreshes(store, read_all), ThreadPoolExecutor(8) as pool:
        first = pool.submit(refresh, store)
        while not readings[0]:
            time.sleep(0.01)
        others = [pool.submit(refresh, store) for _ in range(6)]
        time.sleep(0.3)
        is_free.set()
        assert [answer.result(10) for answer in (first, *others)] == [()] * 7
    assert readings[0] < 7


def test_clients_that_give_up_stop_nobody(tmp_path: Path) -> None:
    store = store_folder(tmp_path)
    with answer_refreshes(store, lambda: (LAG,) * 100_000):
        for _ in range(3):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(store / "received" / "refresh"))
        assert len(refresh(store)) == 100_000


def test_a_receiver_that_does_not_answer_is_a_lag(tmp_path: Path) -> None:
    store = store_folder(tmp_path)
    is_free = threading.Event()
    with answer_refreshes(store, lambda: (is_free.wait(10), ())[1]):
        (lag,) = refresh(store, within_s=0.2)
        is_free.set()
    assert "did not answer within 0.2 s" in lag.reason
    assert "metric" in lag.planes


def test_a_broken_answer_is_a_lag(tmp_path: Path) -> None:
    store = store_folder(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(store / "received" / "refresh"))
        server.listen()
        threading.Thread(target=lambda: server.accept()[0].close(), daemon=True).start()
        (lag,) = refresh(store)
    assert "cannot be asked" in lag.reason


def test_without_a_receiver_what_it_left_is_a_lag(tmp_path: Path) -> None:
    """A file of lines that was not read; then bytes in the write-ahead log, as after a crash; and a dead socket."""
    store = tmp_path / "store"
    intake = opened(store)
    push_lines(intake, JOB, [(0, "step 1 loss 2.0")]).result(10)
    flushed(intake)
    push_lines(intake, JOB, [(1, "step 2 loss 1.0")]).result(10)
    (lag,) = lags_without_receiver(store)
    assert "bytes wait in" in lag.reason
    intake.flush(read=False).result(10)
    assert lags_without_receiver(store) == (unread_lag(("job-4242/slurm-4242.out@n1.log",)),)
    intake.close()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(store / "received" / "refresh"))
    assert refresh(store) == ()


@pytest.mark.service
def test_lines_are_judged_as_soon_as_they_are_accepted(tmp_path: Path) -> None:
    """Beside a running receiver, the command line sees what was pushed a moment ago, and does not call it healthy
    before the job's data has settled."""
    import urllib3

    store = tmp_path / "store"
    process, url = served(f"store={str(store)!r}")
    try:
        steps = [f"step {step} loss {4 - step / 50:.3f} lr 0.0001" for step in range(1, 101)]
        now = time.time_ns()
        values = [[str(now + number), line] for number, line in enumerate([*steps, "Training complete."])]
        body = {"streams": [{"stream": JOB, "values": values}]}
        assert urllib3.request("POST", f"{url}/loki/api/v1/push", json=body).status == 204
        result = CliRunner().invoke(main, ["diagnose", "--store", str(store), "--job", "4242", "--exit-code"])
        assert "Not settled yet: the last data of the job arrived at" in result.stdout
        assert "100 logged steps" in result.stdout
        assert "G1" in result.stdout
        assert result.exit_code == 11
        process.terminate()
        process.communicate(timeout=30)
    finally:
        end_all()
