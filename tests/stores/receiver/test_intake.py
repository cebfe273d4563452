"""A store that receives data: on disk before the answer, stored in segments once, whatever fails in between."""

from __future__ import annotations

import os
import random
import resource
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trackside
from tests.serve.receiving import (
    T0_MS,
    UTIL,
    decode_entry,
    expected,
    flushed,
    gpu,
    key,
    lines,
    opened,
    push_lines,
    samples,
    sent,
    tick,
    write_request,
)
from trackside.catalog import settling
from trackside.errors import StoreError
from trackside.evidence import SOURCE_UNANSWERED, MissingAnswer
from trackside.query import events, metric
from trackside.runs.listing import RunSummary, list_runs
from trackside.serve import diagnoser as diagnosers
from trackside.serve.diagnoser import Diagnoser
from trackside.serve.line_file_reader import StoreLineFileReader
from trackside.serve.protocols import remote_write
from trackside.serve.protocols.series_key import labels_of
from trackside.session import StoreRequest, open_session
from trackside.show.document import document
from trackside.stores.embedded import retention
from trackside.stores.embedded.layout import Directory, LogPosition, StoreBusy
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.embedded.writer import Writer
from trackside.stores.receiver import arrivals
from trackside.stores.receiver import flush as flushing
from trackside.stores.receiver import lines as line_files
from trackside.stores.receiver.arrivals import Arrivals, IntakeResult
from trackside.stores.receiver.intake import DataNotStored, Intake, IntakeUnavailable
from trackside.stores.receiver.lag import lags
from trackside.stores.receiver.options import ReceiverLimits, RetentionOptions
from trackside.stores.receiver.pending import Decoded
from trackside.stores.receiver.write_ahead import Entry, Header, WriteAhead

pytestmark = pytest.mark.slow

RATIO = "dcgm_prof_sm_active"
"""0 to 1 or percent: only the size of its values shows which."""
JOB = {"job_id": "4242", "rank": "3", "host": "n1"}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def intake(store: Path) -> Iterator[Intake]:
    receiver = opened(store)
    yield receiver
    receiver.close()


def stored_samples(store: Path) -> set[tuple[str, int, float]]:
    """(GPU, time, value) of all samples; asserts that none is stored twice."""
    sample_counts = samples(store)
    assert set(sample_counts.values()) <= {1}
    return {(number, time_ms, value) for _, number, time_ms, value in sample_counts}


def copy_as_killed(intake: Intake, store: Path, to: Path) -> Path:
    """The store as a kill would leave it now."""
    shutil.copytree(store, to)
    return to


# -- samples


def test_sent_samples_are_stored(intake: Intake, store: Path) -> None:
    for number in range(3):
        assert sent(intake, tick(number)).result(10) == IntakeResult(4)
    flushed(intake)
    assert stored_samples(store) == {row for number in range(3) for row in expected(tick(number))}
    with Snapshot.open(store) as snapshot:
        rows = snapshot.rows(f"SELECT path, format, status, rows, planes FROM {snapshot.table('inputs')}")
        day = time.strftime("%Y-%m-%d", time.gmtime())
        assert rows == [(f"received/metrics/{day}", "received", "read", 12, "metric")]


def test_a_day_of_flushes_gives_one_input_and_few_segments(intake: Intake, store: Path) -> None:
    for number in range(80):
        sent(intake, tick(number)).result(10)
        flushed(intake)
    assert stored_samples(store) == {row for number in range(80) for row in expected(tick(number))}
    with Snapshot.open(store) as snapshot:
        ((inputs, rows),) = snapshot.rows(f"SELECT count(*), sum(rows) FROM {snapshot.table('inputs')}")
        assert rows == 320
        assert inputs <= 4, "one, and another after each merge of rows"
        assert len(snapshot.manifest.segments) < 4 * retention.MANY_SEGMENTS
        spans = snapshot.rows(f"SELECT series, sum(count) FROM {snapshot.table('spans')} GROUP BY series")
        assert [count for _, count in sorted(spans)] == [80] * 4
        assert snapshot.rows(f"SELECT count(*) FROM {snapshot.table('spans')}")[0][0] < 4 * 80


def test_the_verdict_is_the_same_as_from_files(intake: Intake, store: Path, tmp_path: Path) -> None:
    names = {UTIL: 97.0, "DCGM_FI_DEV_GPU_TEMP": 60.0, "DCGM_FI_DEV_SM_CLOCK": 1400.0}
    text = ""
    for number in range(240):
        for name, value in names.items():
            scrape = tick(number, name=name, value=value)
            sent(intake, scrape).result(10)
            text += "".join(
                f'{name}{{gpu="{index}",Hostname="gpu017"}} {points[0][1]} {points[0][0]}\n'
                for index, (_, points) in enumerate(scrape)
            )
    flushed(intake)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.prom").write_text(text)
    of_files, of_store = trackside.diagnose([tmp_path / "run"]), trackside.diagnose(store=store)
    assert of_store.run == of_files.run
    assert of_store.primary == of_files.primary
    for part in ("consequences", "warnings", "ruled_out", "unknown"):
        assert [finding.family for finding in getattr(of_store, part)] == [
            finding.family for finding in getattr(of_files, part)
        ]


def test_a_body_sent_twice_is_stored_once(intake: Intake, store: Path) -> None:
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
    assert stored_samples(store) == expected([*tick(0), *tick(1)])


def test_late_samples_and_other_values_of_the_same_time_are_kept(intake: Intake, store: Path) -> None:
    sent(intake, tick(5)).result(10)
    flushed(intake)
    sent(intake, tick(2))
    sent(intake, tick(5, value=20.0)).result(10)
    flushed(intake)
    assert stored_samples(store) == expected([*tick(5), *tick(2), *tick(5, value=20.0)])


def test_useless_samples_are_counted_and_not_stored(intake: Intake, store: Path) -> None:
    odd = [
        (gpu(number=0), [(T0_MS, float("nan")), (T0_MS + 1, 1e9), (T0_MS + 2, 40.0), (5, 40.0)]),
        (key("site_made_this_up", a="b"), [(T0_MS, 1.0), (T0_MS + 1, 1.0)]),
        (key("go_goroutines"), [(T0_MS, 1.0)]),
    ]
    assert sent(intake, odd).result(10).refused == {"unknown:site_made_this_up": 2, "unneeded": 1, "untimely": 1}
    flushed(intake)
    left_out = intake.counts.left_out
    assert (left_out["blank"], left_out["implausible"]) == (1, 1)
    assert stored_samples(store) == {("0", T0_MS + 2, 0.4)}


def test_samples_of_the_future_are_refused(intake: Intake, store: Path) -> None:
    now_ms = int(time.time() * 1000)
    times = [now_ms - 1000, now_ms + 3_600_000, now_ms + 2 * 86_400_000, 4_102_444_800_001, 2**62]
    result = sent(intake, [(gpu(), [(time_ms, 1.0) for time_ms in times])]).result(10)
    assert result == IntakeResult(2, {"untimely": 3})


def test_series_over_a_limit_are_refused_and_the_others_stored(store: Path) -> None:
    intake = opened(store, ReceiverLimits(series=2, labels=3, label_value_bytes=10))
    assert sent(intake, tick(0, gpus=4)).result(10) == IntakeResult(2, {"series": 2})
    assert sent(intake, [(gpu(number=7, a="b", c="d"), [(T0_MS, 1.0)])]).result(10).refused == {"labels": 1}
    assert sent(intake, [(gpu(number=8, a="x" * 11), [(T0_MS, 1.0)])]).result(10).refused == {"labels": 1}
    assert sent(intake, tick(1, gpus=2)).result(10) == IntakeResult(2)
    intake.close()
    assert len(stored_samples(store)) == 4


# -- units that only the size of values shows


def test_a_unit_is_not_guessed_from_small_values(intake: Intake, store: Path) -> None:
    """Percent while the GPUs are idle: 1 is one percent, as the first busy GPU shows."""
    for number in range(5):
        sent(intake, tick(number, gpus=2, name=RATIO, value=0.0)).result(10)
        flushed(intake)
        assert intake.unsettled == {RATIO: 2 * (number + 1)}
        assert stored_samples(store) == set()
    sent(intake, tick(5, gpus=2, name=RATIO, value=80.0)).result(10)
    flushed(intake)
    assert intake.unsettled == {}
    idle = {row for number in range(5) for row in expected(tick(number, gpus=2, value=0.0))}
    assert stored_samples(store) == idle | expected(tick(5, gpus=2, value=80.0))


def test_a_restart_keeps_settled_units_and_waiting_values(intake: Intake, store: Path) -> None:
    sent(intake, tick(0, gpus=2, name=RATIO, value=0.0)).result(10)
    other = "dcgm_prof_sm_occupancy"
    sent(intake, tick(0, name=other, value=60.0)).result(10)
    flushed(intake)
    intake.close()
    again = opened(store)
    assert again.unsettled == {RATIO: 2}
    sent(again, tick(1, name=other, value=0.5)).result(10)
    sent(again, tick(1, name=RATIO, value=70.0)).result(10)
    flushed(again)
    assert again.unsettled == {}
    again.close()
    stored = samples(store)
    assert {value for metric, _, time_ms, value in stored if "occupancy" in metric and time_ms > T0_MS} == {
        0.005, 0.015, 0.025, 0.035
    }  # fmt: skip
    assert {value for metric, _, time_ms, value in stored if "active" in metric and time_ms == T0_MS} == {
        0.0, 0.01
    }  # fmt: skip
    with Snapshot.open(store) as snapshot:
        assert snapshot.manifest.received.factors == {RATIO: 0.01, other: 0.01}
        assert snapshot.rows(f"SELECT count(*) FROM {snapshot.table('waiting')}") == [(0,)]


def test_an_unknown_unit_is_settled_after_a_day(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day after the first value; a restart or a compaction does not start it again, and no new value is needed."""
    intake = opened(store)
    sent(intake, tick(0, gpus=2, name=RATIO, value=0.0)).result(10)
    flushed(intake)
    intake.close()
    restarted = opened(store)
    restarted._flush.samples.reset()
    assert restarted.unsettled == {RATIO: 2}
    restarted.close()
    late = time.time() + 86_500
    monkeypatch.setattr("trackside.stores.receiver.received.time.time", lambda: late)
    again = opened(store)
    flushed(again)
    again._flush._cleaned_up_at = 0.0
    flushed(again)
    assert again.unsettled == {}
    again.close()
    assert stored_samples(store) == expected(tick(0, gpus=2, value=0.0), 1.0)


def test_an_unknown_unit_is_settled_by_many_values(
    intake: Intake, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "MAX_UNDECIDED_VALUES", 10)
    for number in range(3):
        sent(intake, tick(number, name=RATIO, value=0.0, gpus=2)).result(10)
        sent(intake, tick(number, name="dcgm_prof_dram_active", value=0.1, gpus=1)).result(10)
        flushed(intake)
    assert intake.unsettled == {RATIO: 6, "dcgm_prof_dram_active": 3}
    for number in range(3, 5):
        sent(intake, tick(number, name=RATIO, value=0.0, gpus=2)).result(10)
        flushed(intake)
    assert intake.unsettled == {"dcgm_prof_dram_active": 3}
    assert stored_samples(store) == {
        row for number in range(5) for row in expected(tick(number, gpus=2, value=0.0), 1.0)
    }


def answers_of(store: Path, *names: str) -> tuple[list[str | float], list[str]]:
    """(mean of each metric of job 4242, or the reason why it is missing; preflight claims on sources that did not answer)"""
    with open_session(StoreRequest(store, "4242")) as session:
        answers = [session.ask(metric(name).over("run", "avg")) for name in names]
        doc = document(session.verdict())
    values = [
        answer.reason if isinstance(answer, MissingAnswer) else float(np.nanmean(answer.values)) for answer in answers
    ]
    return values, [claim.text for claim in doc.preflight if "gave no complete answer" in claim.text]


def of_job(name: str, *values: float, number: int = 0) -> tuple[bytes, list[tuple[int, float]]]:
    """Samples of a GPU of job 4242."""
    times = [(T0_MS + index * 15_000, value) for index, value in enumerate(values)]
    return gpu(name, number, slurm_job_id="4242"), times


UNIT_UNKNOWN = (
    f"gpu_sm_active_ratio was received as {RATIO}, and its unit is not known yet: a larger value settles it, or"
    " one day of waiting"
)


@pytest.mark.parametrize("others", [True, False], ids=["with other metrics", "alone"])
def test_a_metric_of_unknown_unit_is_not_reported_as_absent(others: bool, intake: Intake, store: Path) -> None:
    push_lines(intake, JOB, [(0, "step 1 loss 2.0")]).result(10)
    if others:
        sent(intake, [of_job(UTIL, 50.0, 50.0, 50.0)]).result(10)
    sent(intake, [of_job(RATIO, 0.5, 0.6, 0.7)]).result(10)
    flushed(intake)
    (active, clock), silent = answers_of(store, "gpu_sm_active_ratio", "gpu_sm_clock_hertz")
    assert active == f"unable to check: {UNIT_UNKNOWN}"
    assert str(clock).startswith("gpu_sm_clock_hertz was not measured")
    assert silent == [
        f"store: gpu_sm_active_ratio gave no complete answer, so the verdict lacks some of its data: {UNIT_UNKNOWN}"
    ]
    sent(intake, [of_job(RATIO, *[0.5] * 3, 60.0)]).result(10)
    flushed(intake)
    (active,), silent = answers_of(store, "gpu_sm_active_ratio")
    assert isinstance(active, float)
    assert silent == []


def test_an_unknown_unit_affects_neither_other_jobs_nor_other_names_of_the_metric(intake: Intake, store: Path) -> None:
    push_lines(intake, JOB, [(0, "step 1 loss 2.0")]).result(10)
    sent(intake, [of_job("DCGM_FI_PROF_SM_ACTIVE", 0.5, 0.5), of_job(RATIO, 0.5, 0.5)]).result(10)
    sent(intake, [(gpu("dcgm_prof_dram_active", node="n9", slurm_job_id="7"), [(T0_MS, 0.5)])]).result(10)
    flushed(intake)
    assert intake.unsettled == {RATIO: 2, "dcgm_prof_dram_active": 1}
    (active, memory), silent = answers_of(store, "gpu_sm_active_ratio", "gpu_dram_active_ratio")
    assert active == 0.5
    assert str(memory).startswith("gpu_dram_active_ratio was not measured")
    assert silent == []
    sent(intake, [of_job(RATIO, 0.5, 0.5, number=1)]).result(10)
    flushed(intake)
    (active,), silent = answers_of(store, "gpu_sm_active_ratio")
    assert active == f"unable to check: {UNIT_UNKNOWN}", "the values of one GPU do not represent the run"
    assert len(silent) == 1


# -- lines


def test_sent_lines_become_log_files(intake: Intake, store: Path) -> None:
    text = [
        (0, "step 1 loss 2.0"),
        (1, "step 2 loss 1.5"),
        (2, 'Traceback (most recent call last):\n  File "t.py", line 1\nValueError: bad'),
    ]
    assert push_lines(intake, JOB, text).result(10) == IntakeResult(3)
    flushed(intake)
    ((path, file_lines),) = lines(store).items()
    assert path == "job-4242/slurm-4242.rank3@n1.log"
    assert file_lines[0] == "2026-03-02T08:00:00.000000000Z stdout F step 1 loss 2.0"
    assert len(file_lines) == 5
    verdict = trackside.diagnose(store=store, job="4242")
    assert verdict.run.id == "4242"
    assert verdict.primary is not None
    assert "ValueError: bad" in str(verdict)


def test_lines_do_not_change_the_listing_of_a_measured_job(intake: Intake, store: Path) -> None:
    """Neither the lines nor the order of arrival remove known fields."""
    sent(
        intake, [(gpu(node=node, slurm_job_id="4242"), [(T0_MS, 50.0), (T0_MS + 60_000, 50.0)]) for node in ("a", "b")]
    ).result(10)
    flushed(intake)
    start = T0_MS / 1000
    with Snapshot.open(store) as snapshot:
        (before,) = list_runs(snapshot)
    assert before == RunSummary("4242", None, None, start, start + 60, ("a", "b"), 2, ("metric",))
    push_lines(intake, JOB, [(0, "step 1 loss 2.0")]).result(10)
    flushed(intake)
    with Snapshot.open(store) as snapshot:
        (after,) = list_runs(snapshot)
    assert after == replace(before, planes=("log", "metric"))


class SlowLineReader:
    """Reads one file of lines per call."""

    def __init__(self, folder: Path) -> None:
        self._reader = StoreLineFileReader(folder)

    def read(self, writer: Writer, all_: bool, within_s: float) -> Sequence[str]:
        return self._reader.read(writer, all_, -1.0)

    def sizes(self) -> Mapping[str, int]:
        return self._reader.sizes()


def verdict_text(diagnoser: Diagnoser, job: str) -> str:
    with diagnoser.session(job) as session:
        return str(session.verdict())


def test_lines_that_are_not_read_yet_make_the_answer_unknown(store: Path) -> None:
    """A verdict names the planes that it cannot judge, and why."""
    intake = Intake(store, decode_entry, labels_of, retention=RetentionOptions(flush_s=3600.0), reader=SlowLineReader)
    diagnoser = Diagnoser(store, lambda: lags(intake, 30))
    sent(intake, [(gpu(slurm_job_id="4242"), [(T0_MS, 50.0)])]).result(10)
    assert "not read yet" not in verdict_text(diagnoser, "4242")
    push_lines(intake, JOB, [(0, "step 1 loss 2.0")]).result(10)
    with diagnoser.session("4242") as session:
        for question in (events("exception"), events("xid")):
            answer = session.ask(question)
            assert isinstance(answer, MissingAnswer)
            assert answer.reason == "unable to check: 1 file of received lines is not read yet; try again"
    assert "1 file of received lines is not read yet" in verdict_text(diagnoser, "4242")
    intake.close()


def test_unread_lines_of_other_jobs_do_not_concern_a_run(store: Path) -> None:
    """Unread lines of the run and of its nodes concern it; those of an array may belong to any task."""
    intake = Intake(store, decode_entry, labels_of, retention=RetentionOptions(flush_s=3600.0), reader=SlowLineReader)
    diagnoser = Diagnoser(store, lambda: lags(intake, 30))
    jobs = ("4242", "4243", "60_3")
    sent(intake, [(gpu(number=index, slurm_job_id=job), [(T0_MS, 50.0)]) for index, job in enumerate(jobs)]).result(10)

    def unread(job: str) -> str:
        with diagnoser.session(job) as session:
            answer = session.ask(events("exception"))
            return answer.reason.removeprefix("unable to check: ") if isinstance(answer, MissingAnswer) else ""

    for label in ("4242", "60"):
        push_lines(intake, {"slurm_job_id": label, "host": "n1"}, [(0, "step 1 loss 2.0")]).result(10)
    one_file = "1 file of received lines is not read yet; try again"
    assert [unread(job) for job in jobs] == [one_file, "no log input was given", one_file]
    assert "not read yet" not in verdict_text(diagnoser, "4243")
    push_lines(intake, {"host": "n1", "source": "kernel"}, [(0, "kernel: all is well")]).result(10)
    two_files = "2 files of received lines are not read yet; try again"
    assert [unread(job) for job in jobs] == [two_files, one_file, two_files]
    intake.close()


@pytest.mark.parametrize("broken", ["write", "read"])
def test_data_that_could_not_be_written_is_not_reported_as_absent(
    broken: str, intake: Intake, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent(intake, [(gpu(slurm_job_id="4242"), [(T0_MS, 50.0)])]).result(10)
    flushed(intake)

    def fails(*_: object) -> int:
        raise StoreError("the disk is full")

    monkeypatch.setattr(intake._flush if broken == "write" else intake._flush._reader, broken, fails)
    with Diagnoser(store, lambda: lags(intake, 30)).session("4242") as session:
        reasons = {row.plane: row.text for row in session.store.all_rows() if row.kind == SOURCE_UNANSWERED}
    assert set(reasons) == {"log", "kernel"} | ({"metric"} if broken == "write" else set())
    assert all("the disk is full" in reason for reason in reasons.values())


def test_repeated_listings_flush_once_per_interval(
    store: Path, intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    diagnoser = Diagnoser(store, lambda: calls.append(1) or ())
    for _ in range(3):
        diagnoser.runs()
    assert len(calls) == 1
    monkeypatch.setattr(diagnosers, "LISTED_S", -1.0)
    diagnoser.runs()
    assert len(calls) == 2


def test_lines_sent_twice_are_stored_once(intake: Intake, store: Path) -> None:
    """In one flush, in the next, and after a restart; equal lines at other times are all stored."""
    text = [(number, f"line {number // 2}") for number in range(6)]
    push_lines(intake, JOB, text)
    push_lines(intake, JOB, text).result(10)
    flushed(intake)
    assert push_lines(intake, JOB, [*text[3:], (9, "last")]).result(10) == IntakeResult(4)
    flushed(intake)
    intake.close()
    again = opened(store)
    push_lines(again, JOB, [*text, (9, "last"), (4, "late")]).result(10)
    again.close()
    (file_lines,) = lines(store).values()
    assert [line.rpartition(" F ")[2] for line in file_lines] == ["line 0"] * 2 + ["line 1"] * 2 + ["line 2"] * 2 + [
        "last",
        "late",
    ]
    assert again.counts.left_out["repeated_line"] == 7


def test_a_moved_store_continues_to_receive(intake: Intake, store: Path) -> None:
    """Its files are not read again; new lines are appended to them."""
    push_lines(intake, JOB, [(0, "step 1 loss 2.0")]).result(10)
    sent(intake, tick(0)).result(10)
    flushed(intake)
    intake.close()
    moved = store.rename(store.with_name("moved"))
    again = opened(moved)
    sent(again, tick(1)).result(10)
    flushed(again)
    with Snapshot.open(moved) as snapshot:
        assert snapshot.rows(f"SELECT count(*) FROM {snapshot.table('inputs')} WHERE is_log") == [(1,)]
    push_lines(again, JOB, [(1, "step 2 loss 1.0")]).result(10)
    flushed(again)
    again.close()
    with Snapshot.open(moved) as snapshot:
        rows = snapshot.rows(f"SELECT path, rows FROM {snapshot.table('inputs')} WHERE is_log")
    assert [path for path, _ in rows] == ["job-4242/slurm-4242.rank3@n1.log"]
    assert len(stored_samples(moved)) == 8


def test_large_log_files_are_split_compressed_and_deleted(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_files, "MAX_PART_BYTES", 300)
    intake = opened(store, retention=RetentionOptions(flush_s=3600.0, log_days=1.0))
    for number in range(30):
        push_lines(intake, JOB, [(number, f"step {number} loss 1.0")]).result(10)
        flushed(intake)
    stem = "job-4242/slurm-4242.rank3@n1.log"
    # the first cleanup ran before there was a second part
    monkeypatch.setattr(flushing, "CLEANUP_INTERVAL_S", 0.0)
    flushed(intake)
    top = store / "received" / "logs"
    names = sorted(str(path.relative_to(top)) for path in top.rglob("*") if path.is_file())
    assert names == sorted(
        [f"{stem}.zst", f"part-2/{stem}.zst", f"part-3/{stem}.zst", f"part-4/{stem}.zst", f"part-5/{stem}"]
    )
    push_lines(intake, JOB, [(40, "step 40 loss 1.0")]).result(10)
    flushed(intake)
    intake.close()
    with Snapshot.open(store) as snapshot:
        rows = snapshot.rows(f"SELECT path, rows FROM {snapshot.table('inputs')} WHERE is_log ORDER BY place")
    assert [path for path, _ in rows] == [stem, *(f"part-{number}/{stem}" for number in range(2, 7))]
    old = time.time() - 2 * 86400
    for path in top.rglob("*.zst"):
        os.utime(path, (old, old))
    again = opened(store, retention=RetentionOptions(flush_s=3600.0, log_days=1.0))
    flushed(again)
    again.close()
    assert [path.name for path in top.rglob("*.zst")] == []
    assert len(lines(store)[f"part-6/{stem}"]) == 1
    assert trackside.diagnose(store=store, job="4242").run.id == "4242"


# -- crashes


def test_a_kill_at_any_step_loses_nothing_acknowledged(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is copied before each sync, rename and deletion: each copy is a state that a kill may leave."""
    copies: list[tuple[Path, int, int]] = []
    acknowledged = [0, 0]
    monkeypatch.setattr(line_files, "MAX_PART_BYTES", 400)

    def watched(name: str) -> None:
        real = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            target = arguments[0]
            path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else os.fspath(target)
            if str(store) in path and len(copies) < 400:
                to = tmp_path / f"copy-{len(copies)}"
                shutil.copytree(store, to)
                copies.append((to, *acknowledged))
            return real(*arguments, **options)

        monkeypatch.setattr(os, name, call)

    for name in ("fsync", "fdatasync", "rename", "unlink"):
        watched(name)
    intake = opened(store)
    rounds = 6
    for number in range(rounds):
        sent(intake, [*tick(number), *tick(number, name=RATIO, value=40.0 * (number > 2))]).result(10)
        acknowledged[0] = number + 1
        push_lines(intake, JOB, [(number * 100 + step, f"step {number}{step} loss 1.0") for step in range(4)]).result(
            10
        )
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
        sample_counts = samples(copy)
        assert set(sample_counts.values()) <= {1}, copy
        ticks = {time_ms for metric, _, time_ms, _ in sample_counts if metric == "gpu_utilization_ratio"}
        assert {T0_MS + number * 15_000 for number in range(of_samples)} <= ticks, copy
        with Snapshot.open(copy) as snapshot:
            ((waiting,),) = snapshot.rows(f"SELECT count(*) FROM {snapshot.table('waiting')}")
        active = sum(metric == "gpu_sm_active_ratio" for metric, *_ in sample_counts) + waiting
        assert active == len(ticks) * 4, copy
        steps = [line.split(" F ")[1] for file_lines in lines(copy).values() for line in file_lines]
        assert len(steps) == len(set(steps)), copy
        assert {f"step {number}{step} loss 1.0" for number in range(of_lines) for step in range(4)} <= set(steps), copy
        shutil.rmtree(copy)


def test_a_torn_tail_is_cut_off(intake: Intake, store: Path, tmp_path: Path) -> None:
    sent(intake, tick(0)).result(10)
    sent(intake, tick(1)).result(10)
    end = intake.log.end.offset
    for cut in (*range(end - 30, end, 7), end - 1):
        copy = copy_as_killed(intake, store, tmp_path / f"cut-{cut}")
        os.truncate(copy / "received/wal/00000001.log", cut)
        again = opened(copy)
        assert again.counts.replayed == 1
        assert again.counts.torn_bytes > 0
        sent(again, tick(1)).result(10)
        again.close()
        assert stored_samples(copy) == expected([*tick(0), *tick(1)])


def write_log_files(folder: Path, files: int = 1) -> list[Path]:
    """Write a log of ``files`` files with three bodies each: one0, two0, three0, one1 ..."""
    log = WriteAhead(folder, LogPosition(), file_bytes=1)
    for number in range(files):
        log.append([(Header("a"), b"%s%d" % (word, number)) for word in (b"one", b"two", b"three")])
    log.close()
    return sorted(folder.glob("*.log"))


def flip_bit(path: Path, content: bytes, before: int = 0) -> None:
    """Flip one bit of a body, or of the byte ``before`` bytes ahead of it."""
    data = bytearray(path.read_bytes())
    data[data.index(content) - before] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("before", [0, 17, 13, 9])
def test_a_flipped_bit_costs_one_body(before: int, tmp_path: Path) -> None:
    """In the body, in the frame's length, in its checksum, in its header."""
    for files in (1, 3):
        folder = tmp_path / str(files)
        first = write_log_files(folder, files)[0]
        flip_bit(first, b"two0", before)
        damaged = first.read_bytes()
        for _ in range(2):  # the same after another start
            again = WriteAhead(folder, LogPosition())
            bodies = [body.decode() for (_, body), _ in again.replay()]
            appended = [f"{word}{number}" for number in range(files) for word in ("one", "two", "three")]
            assert bodies == [body for body in appended if body != "two0"]
            assert (again.torn_bytes, again.damaged) == (0, [first.with_suffix(".damaged")])
            assert again.damaged_bytes == 21, "its frame"
        again.delete_until(again.end)
        assert first.with_suffix(".damaged").read_bytes() == damaged
        assert not list(folder.glob("*.log"))


def test_a_file_that_is_being_replayed_is_not_deleted(tmp_path: Path) -> None:
    """Bodies already replayed may be flushed meanwhile; the others exist only in this file."""
    (path,) = write_log_files(tmp_path)
    again = WriteAhead(tmp_path, LogPosition())
    for index, _ in enumerate(again.replay()):
        again.delete_until(again.end)
        assert path.exists() == (index < 2)


def test_only_the_end_of_the_last_file_is_cut_off(tmp_path: Path) -> None:
    first, last = write_log_files(tmp_path, 2)
    for path in (first, last):
        os.truncate(path, path.stat().st_size - 3)
    size = first.stat().st_size
    again = WriteAhead(tmp_path, LogPosition())
    assert [body for (_, body), _ in again.replay()] == [b"one0", b"two0", b"one1", b"two1"]
    assert again.torn_bytes == again.damaged_bytes > 0
    assert first.stat().st_size == size > last.stat().st_size
    assert again.damaged == [first.with_suffix(".damaged")]


def test_damage_in_the_write_ahead_log_is_reported(
    intake: Intake, store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(5):
        sent(intake, tick(number)).result(10)
    copy = copy_as_killed(intake, store, tmp_path / "copy")
    path = copy / "received/wal/00000001.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    again = opened(copy)
    assert (again.counts.replayed, again.counts.torn_bytes) == (4, 0)
    assert again.counts.damaged_bytes > 0
    again.close()
    assert f"kept as {path.with_suffix('.damaged')}" in caplog.text
    assert stored_samples(copy) == {row for number in (0, 1, 3, 4) for row in expected(tick(number))}


def test_searching_a_damaged_file_takes_bounded_time(tmp_path: Path) -> None:
    """A body may hold any number of bytes that look like the start of a frame."""
    log = WriteAhead(tmp_path, LogPosition())
    frame = (1 << 20).to_bytes(4, "little") + b"0000" + b"\x10\x00\x95" + b"x"
    log.append([(Header("a"), frame * 200_000), (Header("a"), b"two")])
    log.close()
    (path,) = tmp_path.glob("*.log")
    data = bytearray(path.read_bytes())
    data[3] ^= 1  # so that the next frame has to be searched
    path.write_bytes(data)
    start = time.monotonic()
    again = WriteAhead(tmp_path, LogPosition())
    list(again.replay())
    assert time.monotonic() - start < 10


def test_log_files_are_rotated_and_deleted(tmp_path: Path) -> None:
    log = WriteAhead(tmp_path, LogPosition(), file_bytes=200)
    marks = [log.append([(Header("a"), bytes([65 + number]) * 60)]) for number in range(10)]
    assert len(list(tmp_path.iterdir())) == 5
    log.delete_until(marks[6])
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["00000004.log", "00000005.log"]
    log.close()
    again = WriteAhead(tmp_path, marks[6])
    assert [body[:1] for (_, body), _ in again.replay()] == [b"H", b"I", b"J"]
    assert again.append([(Header("a"), b"")]).file == 6
    again.close()


def test_a_second_receiver_is_refused_and_readers_are_not(intake: Intake, store: Path) -> None:
    with pytest.raises(StoreBusy, match=f"process {os.getpid()}:"):
        opened(store)
    sent(intake, tick(0)).result(10)
    flushed(intake)
    with Snapshot.open(store) as early_snapshot:
        for number in range(1, 40):
            sent(intake, tick(number)).result(10)
            flushed(intake)
        assert early_snapshot.rows(f"SELECT count(*) FROM {early_snapshot.table('samples')}") == [(4,)]
    assert len(stored_samples(store)) == 160


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
    assert len(stored_samples(store)) == 200


# -- failures


def test_samples_are_refused_when_the_disk_is_nearly_full(store: Path) -> None:
    with (
        closing(opened(store, retention=RetentionOptions(flush_s=3600.0, free_bytes=1 << 60))) as intake,
        pytest.raises(DataNotStored, match=r"bytes free, .* must stay free \(serve.keeping.free_bytes\)"),
    ):
        sent(intake, tick(0))


def test_lines_are_refused_at_the_size_limit_of_log_files(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until files get no more lines: then the oldest are closed and deleted, before their retention ends."""
    intake = opened(store, retention=RetentionOptions(flush_s=3600.0, log_bytes=1000))
    monkeypatch.setattr(flushing, "CROWDED_CLEANUP_INTERVAL_S", 0.0)
    push_lines(intake, JOB, [(number, f"step {number} loss 2.0") for number in range(30)]).result(10)
    flushed(intake)
    assert intake.files.bytes == sum(path.stat().st_size for path in intake.files.folder.rglob("*.log")) > 1000
    with pytest.raises(DataNotStored, match=r"serve\.keeping\.log_bytes"):
        push_lines(intake, JOB, [(40, "step 40 loss 2.0")])
    assert sent(intake, tick(0)).result(10) == IntakeResult(4), "samples do not count against that limit"
    monkeypatch.setattr(flushing, "CROWDED_QUIET_S", -1.0)
    flushed(intake)
    assert intake.files.bytes < 1000
    assert push_lines(intake, JOB, [(40, "step 40 loss 2.0")]).result(10) == IntakeResult(1)
    intake.close()


def test_nothing_of_a_request_is_stored_if_the_log_cannot_be_written(
    intake: Intake, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent(intake, tick(0)).result(10)
    real = os.write

    def full(handle: int, data: memoryview) -> int:
        real(handle, bytes(data[: len(data) // 2]))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DataNotStored, match="No space left on device; nothing of this request was kept"):
        sent(intake, tick(1)).result(10)
    monkeypatch.undo()
    sent(intake, tick(2)).result(10)
    intake.close()
    assert stored_samples(store) == expected([*tick(0), *tick(2)])


def test_a_full_disk_while_flushing_loses_nothing(intake: Intake, store: Path) -> None:
    """Segments cannot be written but the log can: the failure is reported and retried, and nothing is stored twice."""
    for number in range(3):
        sent(intake, tick(number)).result(10)
        push_lines(intake, JOB, [(number, f"step {number} loss 1.0")]).result(10)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, hard))
    try:
        with pytest.raises(Exception, match="File too large"):
            flushed(intake)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "File too large" in intake.last_error
    assert intake.counts.failures == 1
    sent(intake, tick(3)).result(10)
    flushed(intake)
    assert intake.last_error == ""
    assert stored_samples(store) == {row for number in range(4) for row in expected(tick(number))}
    assert [len(file_lines) for file_lines in lines(store).values()] == [3]
    named = {segment.name for segment in Directory(store).read().segments}
    assert {name for name in os.listdir(store / "segments") if not name.startswith(".")} >= named


@pytest.mark.parametrize("table", ["samples", "spans", "events", "inputs"])
def test_a_damaged_file_keeps_nothing_out(
    table: str, intake: Intake, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The receiver rebuilds the store from the rest, keeps the file aside, and reads lines again."""
    sent(intake, tick(0)).result(10)
    push_lines(intake, JOB, [(0, "step 1 loss 2.0")]).result(10)
    flushed(intake)
    segment = Directory(store).read().of(table)[-1]
    path = store / "segments" / segment.name
    content = path.read_bytes()
    path.write_bytes(content[:9] + bytes([content[9] ^ 1]) + content[10:])
    sent(intake, tick(0)).result(10)  # a repetition: it is compared with what the store has
    sent(intake, tick(1)).result(10)
    push_lines(intake, JOB, [(1, "step 2 loss 1.0")]).result(10)
    flushed(intake)
    with Snapshot.open(store) as snapshot:
        rows = snapshot.rows(f"SELECT step FROM {snapshot.table('points')} ORDER BY step")
    assert rows == [(1.0,), (2.0,)]
    if table in ("samples", "inputs"):  # the other files are read when segments are merged, or for a verdict
        assert (store / "damaged" / segment.name).exists()
        assert f"{segment.name} is damaged (" in caplog.text
        assert set(expected(tick(1))) <= stored_samples(store)
        assert table == "samples" or set(expected(tick(0))) <= stored_samples(store)
    sent(intake, tick(2)).result(10)
    flushed(intake)
    assert intake.last_error == ""


def test_a_receiver_checks_its_store_once_a_day(intake: Intake, store: Path) -> None:
    sent(intake, tick(0)).result(10)
    flushed(intake)
    (segment,) = Directory(store).read().of("samples")
    (store / "segments" / segment.name).write_bytes(bytes(segment.bytes))
    intake._flush._cleaned_up_at = time.time() - 86_400
    flushed(intake)
    assert (store / "damaged" / segment.name).exists()
    assert stored_samples(store) == set()


@pytest.mark.parametrize("table", ["spans", "inputs"])
def test_a_receiver_starts_on_a_damaged_store(table: str, store: Path) -> None:
    first = opened(store)
    sent(first, tick(0)).result(10)
    flushed(first)
    first.close()
    (segment,) = Directory(store).read().of(table)
    (store / "segments" / segment.name).write_bytes(bytes(segment.bytes))
    with closing(opened(store)) as receiver:
        sent(receiver, tick(1)).result(10)
        flushed(receiver)
        assert set(expected(tick(1))) <= stored_samples(store)


def test_samples_over_the_queue_limit_are_refused(store: Path) -> None:
    intake = opened(store, ReceiverLimits(pending_samples=8))
    sent(intake, tick(0)).result(10)
    sent(intake, tick(1)).result(10)
    with pytest.raises(IntakeUnavailable, match="8 samples wait to be written") as caught:
        sent(intake, tick(2))
    assert caught.value.retry_after_s > 0
    flushed(intake)
    sent(intake, tick(2)).result(10)
    intake.close()
    assert len(stored_samples(store)) == 12


def test_samples_are_flushed_automatically(store: Path) -> None:
    intake = opened(store, retention=RetentionOptions(flush_s=0.1))
    sent(intake, tick(0)).result(10)
    end = time.monotonic() + 10
    while not samples(store) and time.monotonic() < end:
        time.sleep(0.02)
    assert stored_samples(store) == expected(tick(0))
    intake.close()


def test_samples_of_downsampled_days_are_refused(store: Path) -> None:
    intake = opened(store, retention=RetentionOptions(flush_s=3600.0, raw_days=2.0))
    sent(intake, tick(0)).result(10)
    fresh = int(time.time() * 1000) - 60_000
    sent(intake, [(gpu(), [(fresh, 30.0)])]).result(10)
    flushed(intake)
    assert intake.counts.left_out["too_old"] == 4
    intake.close()
    assert stored_samples(store) == {("0", fresh, 0.3)}


def test_duplicates_are_recognized_after_a_compaction(intake: Intake, store: Path) -> None:
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
    assert stored_samples(store) == {row for number in range(30) for row in expected(tick(number))}


def test_a_header_too_large_for_the_log_does_not_stop_the_receiver(intake: Intake, store: Path) -> None:
    body = b""
    block = remote_write.decode(body, 1)
    with pytest.raises(DataNotStored, match="header takes"):
        intake.accept(Header("remote_write", "x" * 70_000), body, block).result(10)
    assert sent(intake, tick(0)).result(10).accepted == 4
    intake.close()
    assert stored_samples(store) == expected(tick(0))


def test_a_disconnected_sender_does_not_stop_the_receiver(intake: Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    pending: list[Future[IntakeResult]] = []
    append = WriteAhead.append

    def slow(log: WriteAhead, entries: Sequence[Entry]) -> LogPosition:
        assert pending.pop().cancel()
        return append(log, entries)

    monkeypatch.setattr(WriteAhead, "append", slow)
    with intake._log_lock:
        pending.append(sent(intake, tick(0)))
    wait(pending, 1)
    monkeypatch.undo()
    assert sent(intake, tick(1)).result(10).accepted == 4
    assert intake.queue.samples == 8


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("which", ["log", "flush"])
def test_a_thread_that_ended_is_reported(
    which: str, intake: Intake, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise SystemExit

    assert sent(intake, tick(0)).result(10).accepted == 4
    if which == "log":
        monkeypatch.setattr(Intake, "_append", broken)
        sent(intake, tick(1))
    else:
        monkeypatch.setattr(Intake, "_flush_round", broken)
        intake.flush()
    for thread in intake._threads[which == "flush" :][:1]:
        thread.join(10)
    assert f"trackside-{which} ended" in intake.last_error
    with pytest.raises(DataNotStored, match="start the receiver again"):
        sent(intake, tick(2))
    with pytest.raises(DataNotStored, match="start the receiver again"):
        intake.flush()
    intake.close()
    again = opened(store)
    again.close()
    assert stored_samples(store) == expected(tick(0))


def test_an_error_without_a_message_is_reported(intake: Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    sent(intake, tick(0)).result(10)

    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(line_files.LineFiles, "append", full)
    with pytest.raises(MemoryError):
        flushed(intake)
    assert intake.last_error == "MemoryError"
    monkeypatch.undo()


def test_a_body_that_cannot_be_decoded_does_not_block_the_replay(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    intake = opened(store)
    for number in range(3):
        sent(intake, tick(number)).result(10)
    shutil.copytree(store, tmp_path / "copy")
    intake.close()
    count = iter(range(3))

    def broken(entry: Entry) -> Decoded:
        if next(count) == 1:
            raise RecursionError
        return decode_entry(entry)

    monkeypatch.setattr("tests.serve.receiving.decode_entry", broken)
    again = opened(tmp_path / "copy")
    assert again.counts.left_out["undecodable"] == 1
    again.close()
    assert stored_samples(tmp_path / "copy") == expected(tick(0)) | expected(tick(2))


def test_memory_for_long_labels_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "MAX_KEY_BYTES", 100_000)
    recent = Arrivals(labels_of, ReceiverLimits(series=1_000))

    def take(keys: list[bytes]) -> IntakeResult:
        return recent.take(remote_write.decode(write_request([(key, [(T0_MS, 1.0)]) for key in keys]), 1))

    strangers = [key("nobody_asks_for_this", pad=f"{number}" * 9_000) for number in range(20)]
    assert sum(take(strangers).refused.values()) == 20
    assert recent.has_too_many_keys
    assert sum(map(len, recent._keys)) < 200_000
    assert take([gpu()]).accepted == 1
    long = {f"pad{number}": "x" * 4_000 for number in range(14)}
    assert take([gpu(UTIL, 0, f"n{number}", **long) for number in range(9)]).accepted == 9
    larger = Arrivals(labels_of, ReceiverLimits(series=140))
    block = remote_write.decode(write_request([(gpu(UTIL, 0, f"n{n}", **long), [(T0_MS, 1.0)]) for n in range(9)]), 1)
    assert larger.take(block).refused == {"series": 7}  # each counts as 55


def test_long_labels_give_file_names_of_allowed_length(intake: Intake, store: Path) -> None:
    labels = {
        "slurm_job_id": "123456789012_12345678",
        "rank": "1234",
        "host": "h" * 120,
        "filename": f"/var/{'d' * 50}node07777/{'f' * 120}.log",
    }
    push_lines(intake, labels, [(0, "step 1")]).result(10)
    wide = {**labels, "slurm_job_id": "\N{MATHEMATICAL BOLD DIGIT ONE}" * 12, "rank": "\N{ARABIC-INDIC DIGIT ONE}" * 4}
    push_lines(intake, wide, [(0, "step 1")]).result(10)
    push_lines(intake, JOB, [(0, "step 1")]).result(10)
    flushed(intake)
    assert sorted(map(len, lines(store).values())) == [1, 1, 1]
    assert not [path for path in lines(store) if not path.isascii()]


def test_an_entry_of_very_many_lines_takes_linear_time(intake: Intake) -> None:
    start = time.monotonic()
    assert push_lines(intake, JOB, [(0, "\n" * 300_000)]).result(60).accepted == 1
    assert time.monotonic() - start < 10
