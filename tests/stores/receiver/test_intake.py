"""A store that is sent to: on disk before the answer, in segments once, whatever happens in between."""

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
    expected,
    flushed,
    gpu,
    key,
    lines,
    opened,
    said,
    samples,
    sent,
    spoken,
    tick,
    write_request,
)
from trackside.catalog import settling
from trackside.evidence import UNANSWERED, MissingAnswer
from trackside.query import events, metric
from trackside.runs.listing import RunSummary, listing
from trackside.serve import diagnoser as diagnosers
from trackside.serve.diagnoser import Diagnoser, lags
from trackside.serve.protocols import remote_write
from trackside.serve.protocols.series_key import labels_of
from trackside.serve.reading import LineReader
from trackside.session import StoreRequest, open_session
from trackside.show.document import document
from trackside.stores.embedded import retention
from trackside.stores.embedded.layout import Directory, LogPosition, StoreBusy, StoreError
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.embedded.writer import Writer
from trackside.stores.receiver import arrivals
from trackside.stores.receiver import flush as flushing
from trackside.stores.receiver import lines as line_files
from trackside.stores.receiver.arrivals import Arrivals, IntakeResult
from trackside.stores.receiver.intake import Intake, NotStored, QueueFull
from trackside.stores.receiver.options import Limits, RetentionOptions
from trackside.stores.receiver.pending import Decoded
from trackside.stores.receiver.write_ahead import Entry, Header, WriteAhead

pytestmark = pytest.mark.slow

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
        assert sent(intake, tick(number)).result(10) == IntakeResult(4)
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
        assert len(snapshot.manifest.segments) < 4 * retention.MANY_SEGMENTS
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
    of_files, of_store = trackside.diagnose([tmp_path / "run"]), trackside.diagnose(store=store)
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
    assert sent(intake, tick(0, gpus=4)).result(10) == IntakeResult(2, {"series": 2})
    assert sent(intake, [(gpu(number=7, a="b", c="d"), [(T0_MS, 1.0)])]).result(10).refused == {"labels": 1}
    assert sent(intake, [(gpu(number=8, a="x" * 11), [(T0_MS, 1.0)])]).result(10).refused == {"labels": 1}
    assert sent(intake, tick(1, gpus=2)).result(10) == IntakeResult(2)
    intake.close()
    assert len(held(store)) == 4


# -- units that only size tells


def test_a_unit_is_not_guessed_from_small_values(intake: Intake, store: Path) -> None:
    """Percent while the GPUs are idle: 1 is one percent, as the first busy GPU shows."""
    for number in range(5):
        sent(intake, tick(number, gpus=2, name=RATIO, value=0.0)).result(10)
        flushed(intake)
        assert intake.unsettled == {RATIO: 2 * (number + 1)}
        assert held(store) == set()
    sent(intake, tick(5, gpus=2, name=RATIO, value=80.0)).result(10)
    flushed(intake)
    assert intake.unsettled == {}
    idle = {row for number in range(5) for row in expected(tick(number, gpus=2, value=0.0))}
    assert held(store) == idle | expected(tick(5, gpus=2, value=80.0))


def test_a_unit_stays_settled_after_a_restart_and_waiting_values_wait_on(intake: Intake, store: Path) -> None:
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


def test_a_unit_that_nothing_tells_is_settled_after_a_day(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day since the first value: neither a restart nor a compaction begins it anew, and nothing need come then."""
    intake = opened(store)
    sent(intake, tick(0, gpus=2, name=RATIO, value=0.0)).result(10)
    flushed(intake)
    intake.close()
    began = opened(store)
    began._flush.samples.reset()
    assert began.unsettled == {RATIO: 2}
    began.close()
    late = time.time() + 86_500
    monkeypatch.setattr("trackside.stores.receiver.received.time.time", lambda: late)
    again = opened(store)
    flushed(again)
    again._flush._cleaned_up_at = 0.0
    flushed(again)
    assert again.unsettled == {}
    again.close()
    assert held(store) == expected(tick(0, gpus=2, value=0.0), 1.0)


def test_a_unit_that_nothing_tells_is_settled_by_many_values(
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
    assert held(store) == {row for number in range(5) for row in expected(tick(number, gpus=2, value=0.0), 1.0)}


def asked(store: Path, *names: str) -> tuple[list[str | float], list[str]]:
    """The mean of each metric of job 4242, or why there is none; and what the preflight says did not answer."""
    with open_session(StoreRequest(store, "4242")) as session:
        answers = [session.ask(metric(name).over("run", "avg")) for name in names]
        doc = document(session.verdict())
    told = [
        answer.reason if isinstance(answer, MissingAnswer) else float(np.nanmean(answer.values)) for answer in answers
    ]
    return told, [claim.text for claim in doc.preflight if "did not answer" in claim.text]


def of_job(name: str, *values: float, number: int = 0) -> tuple[bytes, list[tuple[int, float]]]:
    """Samples of a GPU of job 4242."""
    times = [(T0_MS + at * 15_000, value) for at, value in enumerate(values)]
    return gpu(name, number, slurm_job_id="4242"), times


UNTOLD = (
    f"gpu_sm_active_ratio was received as {RATIO}, and its unit is not known yet: a larger value settles it, or"
    " one day of waiting"
)


@pytest.mark.parametrize("others", [True, False], ids=["beside others", "alone"])
def test_a_metric_whose_unit_is_not_told_is_no_absence(others: bool, intake: Intake, store: Path) -> None:
    said(intake, JOB, [(0, "step 1 loss 2.0")]).result(10)
    if others:
        sent(intake, [of_job(UTIL, 50.0, 50.0, 50.0)]).result(10)
    sent(intake, [of_job(RATIO, 0.5, 0.6, 0.7)]).result(10)
    flushed(intake)
    (active, clock), silent = asked(store, "gpu_sm_active_ratio", "gpu_sm_clock_hertz")
    assert active == f"unable to check: {UNTOLD}"
    assert str(clock).startswith("gpu_sm_clock_hertz was not measured")
    assert silent == [f"store: gpu_sm_active_ratio did not answer completely: {UNTOLD}"]
    sent(intake, [of_job(RATIO, *[0.5] * 3, 60.0)]).result(10)
    flushed(intake)
    (active,), silent = asked(store, "gpu_sm_active_ratio")
    assert isinstance(active, float)
    assert silent == []


def test_a_unit_that_is_not_told_is_nothing_to_other_jobs_nor_where_another_name_measures_the_same(
    intake: Intake, store: Path
) -> None:
    said(intake, JOB, [(0, "step 1 loss 2.0")]).result(10)
    sent(intake, [of_job("DCGM_FI_PROF_SM_ACTIVE", 0.5, 0.5), of_job(RATIO, 0.5, 0.5)]).result(10)
    sent(intake, [(gpu("dcgm_prof_dram_active", node="n9", slurm_job_id="7"), [(T0_MS, 0.5)])]).result(10)
    flushed(intake)
    assert intake.unsettled == {RATIO: 2, "dcgm_prof_dram_active": 1}
    (active, memory), silent = asked(store, "gpu_sm_active_ratio", "gpu_dram_active_ratio")
    assert active == 0.5
    assert str(memory).startswith("gpu_dram_active_ratio was not measured")
    assert silent == []
    sent(intake, [of_job(RATIO, 0.5, 0.5, number=1)]).result(10)
    flushed(intake)
    (active,), silent = asked(store, "gpu_sm_active_ratio")
    assert active == f"unable to check: {UNTOLD}", "one GPU's figures are not the run's"
    assert len(silent) == 1


# -- lines


def test_lines_are_files_that_are_read(intake: Intake, store: Path) -> None:
    text = [
        (0, "step 1 loss 2.0"),
        (1, "step 2 loss 1.5"),
        (2, 'Traceback (most recent call last):\n  File "t.py", line 1\nValueError: bad'),
    ]
    assert said(intake, JOB, text).result(10) == IntakeResult(3)
    flushed(intake)
    ((path, found),) = lines(store).items()
    assert path == "job-4242/slurm-4242.rank3@n1.log"
    assert found[0] == "2026-03-02T08:00:00.000000000Z stdout F step 1 loss 2.0"
    assert len(found) == 5
    verdict = trackside.diagnose(store=store, job="4242")
    assert verdict.run.id == "4242"
    assert verdict.primary is not None
    assert "ValueError: bad" in str(verdict)


def test_a_job_is_listed_as_it_was_measured_once_its_lines_are_there_too(intake: Intake, store: Path) -> None:
    """Neither the lines nor the order of arrival take away what is known."""
    sent(
        intake, [(gpu(node=node, slurm_job_id="4242"), [(T0_MS, 50.0), (T0_MS + 60_000, 50.0)]) for node in ("a", "b")]
    ).result(10)
    flushed(intake)
    start = T0_MS / 1000
    with Snapshot.open(store) as snapshot:
        (before,) = listing(snapshot)
    assert before == RunSummary("4242", None, None, start, start + 60, ("a", "b"), 2, ("metric",))
    said(intake, JOB, [(0, "step 1 loss 2.0")]).result(10)
    flushed(intake)
    with Snapshot.open(store) as snapshot:
        (after,) = listing(snapshot)
    assert after == replace(before, planes=("log", "metric"))


class Slow:
    """Reads one file of lines at each time that it is asked."""

    def __init__(self, folder: Path) -> None:
        self._reader = LineReader(folder)

    def read(self, writer: Writer, all_: bool, within_s: float) -> Sequence[str]:
        return self._reader.read(writer, all_, -1.0)

    def sizes(self) -> Mapping[str, int]:
        return self._reader.sizes()


def judged(diagnoser: Diagnoser, job: str) -> str:
    with diagnoser.session(job) as session:
        return str(session.verdict())


def test_lines_that_are_not_read_yet_make_the_answer_unknown(store: Path) -> None:
    """A verdict says which planes it cannot tell of, and why."""
    intake = Intake(store, spoken, labels_of, keeping=RetentionOptions(flush_s=3600.0), reader=Slow)
    diagnoser = Diagnoser(store, lambda: lags(intake, 30))
    sent(intake, [(gpu(slurm_job_id="4242"), [(T0_MS, 50.0)])]).result(10)
    assert "not read yet" not in judged(diagnoser, "4242")
    said(intake, JOB, [(0, "step 1 loss 2.0")]).result(10)
    with diagnoser.session("4242") as session:
        for question in (events("exception"), events("xid")):
            answer = session.ask(question)
            assert isinstance(answer, MissingAnswer)
            assert answer.reason == "unable to check: 1 file of received lines is not read yet; try again"
    assert "1 file of received lines is not read yet" in judged(diagnoser, "4242")
    intake.close()


def test_unread_lines_of_other_jobs_do_not_concern_a_run(store: Path) -> None:
    """Those of the run and of the nodes are; those of an array may be of any of its tasks."""
    intake = Intake(store, spoken, labels_of, keeping=RetentionOptions(flush_s=3600.0), reader=Slow)
    diagnoser = Diagnoser(store, lambda: lags(intake, 30))
    jobs = ("4242", "4243", "60_3")
    sent(intake, [(gpu(number=at, slurm_job_id=job), [(T0_MS, 50.0)]) for at, job in enumerate(jobs)]).result(10)

    def unread(job: str) -> str:
        with diagnoser.session(job) as session:
            answer = session.ask(events("exception"))
            return answer.reason.removeprefix("unable to check: ") if isinstance(answer, MissingAnswer) else ""

    for label in ("4242", "60"):
        said(intake, {"slurm_job_id": label, "host": "n1"}, [(0, "step 1 loss 2.0")]).result(10)
    one = "1 file of received lines is not read yet; try again"
    assert [unread(job) for job in jobs] == [one, "no log input was given", one]
    assert "not read yet" not in judged(diagnoser, "4243")
    said(intake, {"host": "n1", "source": "kernel"}, [(0, "kernel: all is well")]).result(10)
    two = "2 files of received lines are not read yet; try again"
    assert [unread(job) for job in jobs] == [two, one, two]
    intake.close()


@pytest.mark.parametrize("broken", ["write", "read"])
def test_what_could_not_be_written_is_no_absence(
    broken: str, intake: Intake, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent(intake, [(gpu(slurm_job_id="4242"), [(T0_MS, 50.0)])]).result(10)
    flushed(intake)

    def fails(*_: object) -> int:
        raise StoreError("the disk is full")

    monkeypatch.setattr(intake._flush if broken == "write" else intake._flush._reader, broken, fails)
    with Diagnoser(store, lambda: lags(intake, 30)).session("4242") as session:
        told = {row.plane: row.text for row in session.store.all_rows() if row.kind == UNANSWERED}
    assert set(told) == {"log", "kernel"} | ({"metric"} if broken == "write" else set())
    assert all("the disk is full" in each for each in told.values())


def test_listings_do_not_write_each_time(store: Path, intake: Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    diagnoser = Diagnoser(store, lambda: calls.append(1) or ())
    for _ in range(3):
        diagnoser.runs()
    assert len(calls) == 1
    monkeypatch.setattr(diagnosers, "LISTED_S", -1.0)
    diagnoser.runs()
    assert len(calls) == 2


def test_lines_sent_twice_are_there_once(intake: Intake, store: Path) -> None:
    """In one flush, in the next, after a restart; but equal lines of other times are all there."""
    text = [(number, f"line {number // 2}") for number in range(6)]
    said(intake, JOB, text)
    said(intake, JOB, text).result(10)
    flushed(intake)
    assert said(intake, JOB, [*text[3:], (9, "last")]).result(10) == IntakeResult(4)
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
    monkeypatch.setattr(line_files, "MAX_PART_BYTES", 300)
    intake = opened(store, keeping=RetentionOptions(flush_s=3600.0, log_days=1.0))
    for number in range(30):
        said(intake, JOB, [(number, f"step {number} loss 1.0")]).result(10)
        flushed(intake)
    stem = "job-4242/slurm-4242.rank3@n1.log"
    # the first care came before there was a second part
    monkeypatch.setattr(flushing, "CLEANUP_INTERVAL_S", 0.0)
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
    again = opened(store, keeping=RetentionOptions(flush_s=3600.0, log_days=1.0))
    flushed(again)
    again.close()
    assert [path.name for path in top.rglob("*.zst")] == []
    assert len(lines(store)[f"part-6/{stem}"]) == 1
    assert trackside.diagnose(store=store, job="4242").run.id == "4242"


# -- crashes


def test_dead_at_any_step(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is copied before each file that is synced, renamed or deleted: each copy is what a kill may leave."""
    copies: list[tuple[Path, int, int]] = []
    acknowledged = [0, 0]
    monkeypatch.setattr(line_files, "MAX_PART_BYTES", 400)

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


def in_log(folder: Path, files: int = 1) -> list[Path]:
    """A log of ``files`` files of three bodies each: one0, two0, three0, one1 ..."""
    log = WriteAhead(folder, LogPosition(), file_bytes=1)
    for number in range(files):
        log.append([(Header("a"), b"%s%d" % (word, number)) for word in (b"one", b"two", b"three")])
    log.close()
    return sorted(folder.glob("*.log"))


def flipped(path: Path, content: bytes, before: int = 0) -> None:
    """One bit, of a body or so many bytes before it."""
    data = bytearray(path.read_bytes())
    data[data.index(content) - before] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("before", [0, 17, 13, 9])
def test_a_flipped_bit_costs_one_body(before: int, tmp_path: Path) -> None:
    """In the body, in the frame's length, in its checksum, in its header."""
    for files in (1, 3):
        folder = tmp_path / str(files)
        first = in_log(folder, files)[0]
        flipped(first, b"two0", before)
        damaged = first.read_bytes()
        for _ in range(2):  # no less the next time
            again = WriteAhead(folder, LogPosition())
            bodies = [body.decode() for (_, body), _ in again.replay()]
            written = [f"{word}{number}" for number in range(files) for word in ("one", "two", "three")]
            assert bodies == [each for each in written if each != "two0"]
            assert (again.torn_bytes, again.damaged) == (0, [first.with_suffix(".damaged")])
            assert again.damaged_bytes == 21, "its frame"
        again.forget(again.end)
        assert first.with_suffix(".damaged").read_bytes() == damaged
        assert not list(folder.glob("*.log"))


def test_a_file_that_is_being_replayed_is_not_forgotten(tmp_path: Path) -> None:
    """What was replayed so far may be flushed meanwhile; the rest is in this file alone."""
    (path,) = in_log(tmp_path)
    again = WriteAhead(tmp_path, LogPosition())
    for place, _ in enumerate(again.replay()):
        again.forget(again.end)
        assert path.exists() == (place < 2)


def test_only_the_end_of_the_last_file_is_cut_off(tmp_path: Path) -> None:
    first, last = in_log(tmp_path, 2)
    for path in (first, last):
        os.truncate(path, path.stat().st_size - 3)
    size = first.stat().st_size
    again = WriteAhead(tmp_path, LogPosition())
    assert [body for (_, body), _ in again.replay()] == [b"one0", b"two0", b"one1", b"two1"]
    assert again.torn_bytes == again.damaged_bytes > 0
    assert first.stat().st_size == size > last.stat().st_size
    assert again.damaged == [first.with_suffix(".damaged")]


def test_damage_in_the_log_is_told_of(
    intake: Intake, store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(5):
        sent(intake, tick(number)).result(10)
    copy = crashed(intake, store, tmp_path / "copy")
    path = copy / "received/wal/00000001.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    again = opened(copy)
    assert (again.counts.replayed, again.counts.torn_bytes) == (4, 0)
    assert again.counts.damaged_bytes > 0
    again.close()
    assert f"kept as {path.with_suffix('.damaged')}" in caplog.text
    assert held(copy) == {row for number in (0, 1, 3, 4) for row in expected(tick(number))}


def test_searching_a_damaged_file_ends(tmp_path: Path) -> None:
    """A body may hold as many beginnings of frames as its sender likes."""
    log = WriteAhead(tmp_path, LogPosition())
    frame = (1 << 20).to_bytes(4, "little") + b"0000" + b"\x10\x00\x95" + b"x"
    log.append([(Header("a"), frame * 200_000), (Header("a"), b"two")])
    log.close()
    (path,) = tmp_path.glob("*.log")
    data = bytearray(path.read_bytes())
    data[3] ^= 1  # so that the next frame has to be looked for
    path.write_bytes(data)
    begin = time.monotonic()
    again = WriteAhead(tmp_path, LogPosition())
    list(again.replay())
    assert time.monotonic() - begin < 10


def test_log_files_are_turned_over_and_forgotten(tmp_path: Path) -> None:
    log = WriteAhead(tmp_path, LogPosition(), file_bytes=200)
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


def test_a_disk_that_fills_up_takes_no_more(store: Path) -> None:
    with (
        closing(opened(store, keeping=RetentionOptions(flush_s=3600.0, free_bytes=1 << 60))) as intake,
        pytest.raises(NotStored, match=r"bytes free, .* must stay free \(serve.keeping.free_bytes\)"),
    ):
        sent(intake, tick(0))


def test_files_of_lines_that_are_as_large_as_may_be_take_no_more(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until they fell silent: then the oldest are closed and deleted, long before their day is over."""
    intake = opened(store, keeping=RetentionOptions(flush_s=3600.0, log_bytes=1000))
    monkeypatch.setattr(flushing, "CROWDED_CLEANUP_INTERVAL_S", 0.0)
    said(intake, JOB, [(number, f"step {number} loss 2.0") for number in range(30)]).result(10)
    flushed(intake)
    assert intake.files.bytes == sum(path.stat().st_size for path in intake.files.folder.rglob("*.log")) > 1000
    with pytest.raises(NotStored, match=r"serve\.keeping\.log_bytes"):
        said(intake, JOB, [(40, "step 40 loss 2.0")])
    assert sent(intake, tick(0)).result(10) == IntakeResult(4), "samples take none of that room"
    monkeypatch.setattr(flushing, "CROWDED_QUIET_S", -1.0)
    flushed(intake)
    assert intake.files.bytes < 1000
    assert said(intake, JOB, [(40, "step 40 loss 2.0")]).result(10) == IntakeResult(1)
    intake.close()


def test_a_log_that_can_not_be_written_keeps_nothing(
    intake: Intake, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent(intake, tick(0)).result(10)
    real = os.write

    def full(handle: int, data: memoryview) -> int:
        real(handle, bytes(data[: len(data) // 2]))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(NotStored, match="No space left on device; nothing of this request was kept"):
        sent(intake, tick(1)).result(10)
    monkeypatch.undo()
    sent(intake, tick(2)).result(10)
    intake.close()
    assert held(store) == expected([*tick(0), *tick(2)])


def test_a_full_disk_while_flushing_loses_nothing(intake: Intake, store: Path) -> None:
    """Segments cannot be written, the log can: it is said, tried again, and nothing is there twice."""
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
    assert "File too large" in intake.last_error
    assert intake.counts.failures == 1
    sent(intake, tick(3)).result(10)
    flushed(intake)
    assert intake.last_error == ""
    assert held(store) == {row for number in range(4) for row in expected(tick(number))}
    assert [len(told) for told in lines(store).values()] == [3]
    named = {segment.name for segment in Directory(store).read().segments}
    assert {name for name in os.listdir(store / "segments") if not name.startswith(".")} >= named


def test_no_more_is_taken_than_there_is_room_for(store: Path) -> None:
    intake = opened(store, Limits(pending_samples=8))
    sent(intake, tick(0)).result(10)
    sent(intake, tick(1)).result(10)
    with pytest.raises(QueueFull, match="8 samples wait to be written") as told:
        sent(intake, tick(2))
    assert told.value.retry_after_s > 0
    flushed(intake)
    sent(intake, tick(2)).result(10)
    intake.close()
    assert len(held(store)) == 12


def test_it_flushes_by_itself(store: Path) -> None:
    intake = opened(store, keeping=RetentionOptions(flush_s=0.1))
    sent(intake, tick(0)).result(10)
    end = time.monotonic() + 10
    while not samples(store) and time.monotonic() < end:
        time.sleep(0.02)
    assert held(store) == expected(tick(0))
    intake.close()


def test_samples_of_thinned_days_are_not_added_to(store: Path) -> None:
    intake = opened(store, keeping=RetentionOptions(flush_s=3600.0, raw_days=2.0))
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


def test_a_body_that_the_log_cannot_hold_ends_nobody(intake: Intake, store: Path) -> None:
    body = b""
    block = remote_write.decode(body, 1)
    with pytest.raises(NotStored, match="header takes"):
        intake.accept(Header("remote_write", "x" * 70_000), body, block).result(10)
    assert sent(intake, tick(0)).result(10).accepted == 4
    intake.close()
    assert held(store) == expected(tick(0))


def test_a_sender_that_is_gone_ends_nobody(intake: Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[Future[IntakeResult]] = []
    append = WriteAhead.append

    def slow(log: WriteAhead, entries: Sequence[Entry]) -> LogPosition:
        assert gone.pop().cancel()
        return append(log, entries)

    monkeypatch.setattr(WriteAhead, "append", slow)
    with intake._log_lock:
        gone.append(sent(intake, tick(0)))
    wait(gone, 1)
    monkeypatch.undo()
    assert sent(intake, tick(1)).result(10).accepted == 4
    assert intake.queue.samples == 8


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("which", ["log", "flush"])
def test_a_thread_that_ends_is_told_of(
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
    with pytest.raises(NotStored, match="start the receiver again"):
        sent(intake, tick(2))
    with pytest.raises(QueueFull, match="start the receiver again"):
        intake.flush()
    intake.close()
    again = opened(store)
    again.close()
    assert held(store) == expected(tick(0))


def test_an_error_without_words_is_trouble_too(intake: Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    sent(intake, tick(0)).result(10)

    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(line_files.LineFiles, "append", full)
    with pytest.raises(MemoryError):
        flushed(intake)
    assert intake.last_error == "MemoryError"
    monkeypatch.undo()


def test_a_body_that_breaks_its_reader_keeps_no_other_from_being_read_again(
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
        return spoken(entry)

    monkeypatch.setattr("tests.serve.receiving.spoken", broken)
    again = opened(tmp_path / "copy")
    assert again.counts.left_out["undecodable"] == 1
    again.close()
    assert held(tmp_path / "copy") == expected(tick(0)) | expected(tick(2))


def test_long_labels_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "MAX_KEY_BYTES", 100_000)
    found = Arrivals(labels_of, Limits(series=10))

    def told(keys: list[bytes]) -> IntakeResult:
        return found.take(remote_write.decode(write_request([(key, [(T0_MS, 1.0)]) for key in keys]), 1))

    strangers = [key("nobody_asks_for_this", pad=f"{number}" * 9_000) for number in range(20)]
    assert sum(told(strangers).refused.values()) == 20
    assert found.has_too_many_keys
    assert sum(map(len, found._keys)) < 200_000
    assert told([gpu()]).accepted == 1
    long = {f"pad{number}": "x" * 4_000 for number in range(14)}
    assert told([gpu(UTIL, 0, f"n{number}", **long) for number in range(9)]).accepted == 9
    many = Arrivals(labels_of, Limits(series=40))
    monkeypatch.setattr(arrivals, "MEAN_KEY_BYTES", 100)
    block = remote_write.decode(write_request([(gpu(UTIL, 0, f"n{n}", **long), [(T0_MS, 1.0)]) for n in range(9)]), 1)
    assert many.take(block).refused == {"series": 7}


def test_a_name_longer_than_a_file_may_have(intake: Intake, store: Path) -> None:
    labels = {
        "slurm_job_id": "123456789012_12345678",
        "rank": "1234",
        "host": "h" * 120,
        "filename": f"/var/{'d' * 50}node07777/{'f' * 120}.log",
    }
    said(intake, labels, [(0, "step 1")]).result(10)
    wide = {**labels, "slurm_job_id": "\N{MATHEMATICAL BOLD DIGIT ONE}" * 12, "rank": "\N{ARABIC-INDIC DIGIT ONE}" * 4}
    said(intake, wide, [(0, "step 1")]).result(10)
    said(intake, JOB, [(0, "step 1")]).result(10)
    flushed(intake)
    assert sorted(map(len, lines(store).values())) == [1, 1, 1]
    assert not [path for path in lines(store) if not path.isascii()]


def test_an_entry_of_very_many_lines_is_taken_in_linear_time(intake: Intake) -> None:
    begin = time.monotonic()
    assert said(intake, JOB, [(0, "\n" * 300_000)]).result(60).accepted == 1
    assert time.monotonic() - begin < 10
