"""One sender, or one job, leaves the others room; what nobody sends any more is no longer counted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.serve.receiving import T0_MS, flushed, gpu, opened, write_request
from trackside.serve.protocols import remote_write
from trackside.serve.protocols.series_key import labels_of
from trackside.stores.receiver import arrivals, pending
from trackside.stores.receiver.arrivals import Arrivals, IntakeResult
from trackside.stores.receiver.intake import Intake
from trackside.stores.receiver.lines import LineFiles, line_files
from trackside.stores.receiver.options import ReceiverLimits
from trackside.stores.receiver.pending import LineStream
from trackside.stores.receiver.shares import ACTIVE_S, Shares
from trackside.stores.receiver.write_ahead import Header


def test_a_share_is_three_quarters_of_the_limit() -> None:
    shares = Shares(100)
    shares.add("a", "1", 70)
    assert shares.excess("a", "2", 5) == ""
    assert shares.excess("a", "2", 6) == "of the sender"
    assert shares.excess("b", "1", 6) == "of the job"
    assert shares.excess("b", "2", 30) == ""
    assert shares.excess("b", "2", 31) == "of all"
    shares.add("", "", 20)
    assert shares.excess("", "", 10) == ""  # nobody in particular
    assert Shares(1).excess("a", "1") == ""


def take(recent: Arrivals, sender: str, numbers: range, job: str = "") -> IntakeResult:
    job_label = {"hpc_job": job} if job else {}
    series = [(gpu(node=f"{sender}-{number}", **job_label), [(T0_MS, 1.0)]) for number in numbers]
    return recent.take(remote_write.decode(write_request(series), 1), sender)


def test_series_of_one_sender_leave_room_for_others() -> None:
    recent = Arrivals(labels_of, ReceiverLimits(series=100))
    assert take(recent, "10.0.0.1", range(1000)).refused == {"series_of_sender": 925}
    assert take(recent, "10.0.0.2", range(20)).refused == {}
    assert take(recent, "10.0.0.1", range(75)).refused == {}  # known ones
    assert take(recent, "10.0.0.3", range(10)).refused == {"series": 5}


def test_series_of_one_job_leave_room_for_others() -> None:
    recent = Arrivals(labels_of, ReceiverLimits(series=100))
    for number in range(10):
        result = take(recent, f"10.0.0.{number}", range(10), job="4242")
    assert result.refused == {"series_of_job": 10}
    assert take(recent, "10.0.0.11", range(10), job="4243").refused == {}


def test_series_without_samples_for_an_hour_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(arrivals.time, "monotonic", lambda: now)
    recent = Arrivals(labels_of, ReceiverLimits(series=100))
    take(recent, "a", range(75))
    take(recent, "b", range(25))
    assert not recent.has_old_series
    now += ACTIVE_S + 1
    take(recent, "a", range(70))
    assert recent.has_old_series
    take(recent, "b", range(25))
    assert not recent.has_old_series  # 5 of 100: not worth translating all again


def push(intake: Intake, sender: str, streams: range) -> IntakeResult:
    body = b"[]"
    labels = [{"host": "n1", "slurm_job_id": f"{sender.rpartition('.')[2]}{number}"} for number in streams]
    decoded = [LineStream(stream, [T0_MS * 1_000_000], ["step 1"]) for stream in labels]
    return intake.accept(Header("lines", sender=sender, received_ns=1), body, decoded).result(10)


def test_streams_of_one_sender_leave_room_for_others_and_old_ones_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(pending.time, "monotonic", lambda: now)
    intake = opened(tmp_path / "store", ReceiverLimits(streams=8))
    assert push(intake, "10.0.0.1", range(100)).refused == {"streams_of_sender": 94}
    assert push(intake, "10.0.0.2", range(2)).refused == {}
    assert push(intake, "10.0.0.3", range(1)).refused == {"streams": 1}
    now += ACTIVE_S + 1
    assert push(intake, "10.0.0.1", range(1)).refused == {}
    flushed(intake, read=False)
    assert intake.queue.streams == 1
    assert push(intake, "10.0.0.3", range(6)).refused == {}
    intake.close()


def test_a_job_that_prints_most_loses_its_own_oldest_files(tmp_path: Path) -> None:
    files = LineFiles(tmp_path / "logs")
    for age, name, size in [(9, "job-1/a", 100), (8, "job-2/a", 400), (7, "job-2/b", 400), (6, "part-2/job-2/a", 400)]:
        path = files.folder / f"{name}.log.zst"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
        os.utime(path, (1000.0 - age, 1000.0 - age))
    (files.folder / "job-2" / "open.log").write_bytes(bytes(10))
    files.delete_old_files(None, 600)
    assert sorted(name for name, _ in line_files(files.folder)) == [
        "job-1/a.log.zst",
        "job-2/open.log",
        "part-2/job-2/a.log.zst",
    ]
    assert files.bytes == 510
    files.delete_old_files(1000.0 - 8.5, 600)
    assert sorted(name for name, _ in line_files(files.folder)) == ["job-2/open.log", "part-2/job-2/a.log.zst"]
    files.delete_old_files(None, 0)
    assert (files.bytes, [name for name, _ in line_files(files.folder)]) == (10, ["job-2/open.log"])
