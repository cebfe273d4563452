"""Resolving the run: jobs, attempts, parents, logs, clocks and ranks."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tools.cases import CORPUS
from trackside.evidence import Frame
from trackside.model import Event, Position, Record, Run
from trackside.query import Query, events, record
from trackside.runs import clock
from trackside.runs.attempts import attempts_of, final_attempt, numbered_attempts
from trackside.runs.resolve import NoSuchRun, ResolvedRun, SeveralRuns, resolve
from trackside.session.choice import choose_run
from trackside.session.paths import load
from trackside.stores.memory import MemoryStore

HEADER = "JobID|JobName|State|ExitCode|Submit|Start|End|NodeList|SubmitLine"


def job(
    id_: str, state: str = "COMPLETED", start: float | None = 100.0, end: float | None = 200.0, **fields: Any
) -> Record:
    fields = {"id": id_, "state": state, "start": start, "end": end, "source": "sacct", **fields}
    known = {name: value for name, value in fields.items() if value is not None}
    return Record("job", Position("sacct.txt", int(100 * (start or 0)) + len(id_)), "scheduler", known)


def log(path: str, first: float | None = None, last: float | None = None) -> Event:
    fields = {"first_time": first, "last_time": last, "lines": 3}
    known = {name: value for name, value in fields.items() if value is not None}
    return Event("log_activity", Position(path, 3), "log", time=last, fields=known)


def note(path: str, kind: str = "scheduler_notice", plane: Any = "log", **fields: Any) -> Event:
    return Event(kind, Position(path, 2), plane, fields=fields)


def run_of(*rows: Record | Event, ask: str | None = None) -> Run:
    return resolved(*rows, ask=ask).run


def resolved(*rows: Record | Event, ask: str | None = None) -> ResolvedRun:
    store = MemoryStore(
        [row for row in rows if isinstance(row, Event)], [row for row in rows if isinstance(row, Record)], ["log"]
    )
    return resolve(store, ask)


def test_times_are_of_a_known_zone_if_a_record_or_a_log_gives_it() -> None:
    local = log("slurm-7.out", 150.0, 160.0)
    zoned = replace(local, fields={**local.fields, "zoned": True})
    as_text, queried = job("7"), job("7", zoned=True)
    assert run_of(log("train.log")).has_time_zone  # no time at all
    assert not run_of(local).has_time_zone
    assert run_of(zoned).has_time_zone
    assert not run_of(as_text, local).has_time_zone
    assert run_of(as_text, zoned).has_time_zone
    assert run_of(queried, local).has_time_zone
    hours_off = replace(zoned, fields={**zoned.fields, "first_time": 7350.0, "last_time": 7360.0})
    assert not run_of(as_text, hours_off).has_time_zone  # shifted to the scheduler's local time
    kernel = replace(local, kind="kernel_log", plane="kernel", time=160.0)
    assert not run_of(kernel).has_time_zone  # dmesg -T
    assert run_of(replace(kernel, fields={**kernel.fields, "zoned": True})).has_time_zone


# -- choosing the job


def test_a_single_log_is_the_run() -> None:
    assert run_of(log("train.log")) == Run(log_paths=("train.log",))
    assert run_of(log("train.log"), ask="7").id == "7"


@pytest.mark.parametrize(
    ("path", "id_"),
    [
        ("slurm-123.out", "123"),
        ("a/slurm-60_3.err", "60_3"),
        ("llama-sft-48563.out", "48563"),
        ("train.o48563", "48563"),
        ("logs/49005_2cby87dw/attempt_0/1/stderr.log", "49005"),
        ("train-20260304.out", None),
        ("rank0003.out", None),
        ("checkpoint-4000.log", None),
    ],
)
def test_job_ids_are_read_from_file_names(path: str, id_: str | None) -> None:
    assert run_of(log(path)).id == id_


def test_a_job_id_is_read_from_the_log() -> None:
    assert run_of(log("train.log"), note("train.log", job="815", reason="time_limit")).id == "815"
    assert run_of(log("train.log"), note("train.log", kind="oom_kill", step="815.batch")).id == "815"


def test_a_single_job_gets_all_logs() -> None:
    run = run_of(job("5"), log("a/rank0.log"), log("a/rank1.log"), log("train.log"))
    assert run.log_paths == ("a/rank0.log", "a/rank1.log", "train.log")


def test_several_jobs_are_an_error_that_lists_them() -> None:
    with pytest.raises(SeveralRuns, match="12, 100") as error:
        run_of(job("100", start=5.0), job("12"))
    assert error.value.jobs == ("12", "100")


def test_a_job_is_selected_by_any_of_its_ids() -> None:
    tasks = [
        job("60_0", raw_id="61", array_id="60"),
        job("60_1", raw_id="62", array_id="60"),
        job("60_2", raw_id="60", array_id="60"),
    ]
    assert run_of(*tasks, ask="60_1").id == run_of(*tasks, ask="62").id == run_of(*tasks, ask="60_1.batch").id == "60_1"
    with pytest.raises(SeveralRuns):
        run_of(*tasks, ask="60")
    assert run_of(job("73+0", raw_id="73"), job("73+1", raw_id="74"), ask="73").id == "73+0"
    with pytest.raises(NoSuchRun):
        run_of(*tasks, ask="9")


def test_one_log_selects_its_job_in_the_accounting_of_a_cluster() -> None:
    rows = [job(str(number)) for number in range(400, 420)]
    run = run_of(*rows, log("slurm-407.out"), log("rank1.log"))
    assert (run.id, run.log_paths) == ("407", ("slurm-407.out", "rank1.log"))


def test_a_listing_does_not_compete_with_accounting() -> None:
    queued = [job(str(number), source="squeue") for number in range(500, 505)]
    assert run_of(job("7"), *queued).id == "7"
    assert run_of(*queued[:1]).id == "500"


def test_logs_are_matched_by_the_paths_in_the_records() -> None:
    rows = [job("31", std_out="/x/a-%j.txt", name="a"), job("32", start=150.0, std_out="/x/b.txt")]
    run = run_of(*rows, log("a-31.txt"), log("b.txt"), ask="32")
    assert run.log_paths == ("b.txt",)


def test_logs_of_other_jobs_are_left_out() -> None:
    rows = [job("4001"), job("4002", start=300.0), log("4001/out.log"), log("4002/out.log"), log("4002/rank1/err.log")]
    runs = resolved(*rows, ask="4002")
    assert runs.run.log_paths == ("4002/out.log", "4002/rank1/err.log")
    frame = runs.store.ask(events("log_activity"))
    assert isinstance(frame, Frame)
    assert {event.at.path for event in frame.events} == set(runs.run.log_paths)


# -- attempts


def test_attempts_of_a_requeued_job() -> None:
    rows = [
        job("8", "PREEMPTED", 100.0, 200.0, submit=90.0, nodes=("n1",)),
        job("8", "COMPLETED", 300.0, 400.0, submit=201.0, nodes=("n2",), exit_code=0),
        job("8", "PENDING", None, None, submit=201.0, source="squeue"),
        job("8", "RUNNING", 300.0, None, submit=201.0, source="scontrol", time_limit_s=3600.0),
    ]
    run = run_of(*rows)
    assert [(attempt.number, attempt.state, attempt.nodes) for attempt in run.attempts] == [
        (1, "PREEMPTED", ("n1",)),
        (2, "COMPLETED", ("n2",)),
    ]
    assert (run.disposition, run.start, run.end, run.submit, run.time_limit_s) == (
        "COMPLETED",
        300.0,
        400.0,
        90.0,
        3600.0,
    )
    assert (run.parent, run.parent_by) == ("8", "requeue")


def test_a_job_waiting_for_its_next_attempt_keeps_its_last_state() -> None:
    rows = [job("8", "NODE_FAIL", 100.0, 200.0, submit=90.0), job("8", "PENDING", None, None, submit=201.0)]
    assert run_of(*rows).disposition == "NODE_FAIL"
    rows[1] = job("8", "CANCELLED", None, 260.0, submit=201.0)
    assert run_of(*rows).disposition == "CANCELLED"


def test_without_duplicates_the_restart_count_numbers_the_attempt() -> None:
    assert [attempt.number for attempt in run_of(job("8", restarts=2)).attempts] == [3]


def test_local_time_and_utc_are_one_attempt() -> None:
    rows = [
        job("8", start=7300.0, end=7400.0, elapsed_s=100.0),
        job("8", start=100.0, end=200.0, elapsed_s=100.0, source="scontrol"),
    ]
    assert len(attempts_of(rows)) == 1


def test_a_reused_job_id_is_a_new_run() -> None:
    run = run_of(job("110", "RUNNING", 100.0, None, name="lost"), job("110", "COMPLETED", 300.0, 400.0, name="after"))
    assert (run.name, run.disposition, len(run.attempts), run.parent) == ("after", "COMPLETED", 1, None)


@pytest.mark.parametrize(
    ("recorded", "other_code", "signals", "code", "signal"),
    [
        ((0, 11), None, (), 0, 11),
        ((11, 0), None, (), 11, None),
        ((11, 0), 139, (), 139, None),
        ((11, 0), None, (11,), 139, None),
        ((119, 0), None, (9,), 247, None),
        ((1, 0), None, (9, 15), 1, None),
        ((0, 125), None, (9,), None, None),
        ((0, 53), None, (), None, None),
    ],
)
def test_exit_codes(
    recorded: tuple[int, int], other_code: int | None, signals: tuple[int, ...], code: int | None, signal: int | None
) -> None:
    """sacct subtracts 128; another source or the log shows it; Slurm's internal codes are neither code nor signal."""
    rows = [job("8", "FAILED", exit_code=recorded[0], signal=recorded[1])]
    if other_code is not None:
        rows.append(job("8", "FAILED", exit_code=other_code, signal=0, source="scontrol"))
    exits = [note("t.log", "process_exit", signal=number) for number in signals]
    run = run_of(*rows, log("t.log"), *exits)
    assert (run.exit_code, run.signal) == (code, signal)
    assert (run.attempts[-1].exit_code, run.attempts[-1].signal) == (code, signal)


def test_an_unstarted_job_has_no_attempt() -> None:
    attempts = attempts_of([job("8", "CANCELLED", None, 50.0, submit=20.0)])
    last = final_attempt(attempts)
    assert numbered_attempts(attempts) == ()
    assert last is not None
    assert last.state == "CANCELLED"


# -- parents


def chain(*, third: bool = True) -> list[Record | Event]:
    rows: list[Record | Event] = [
        job("41", "FAILED", 100.0, 200.0),
        job("42", "FAILED", 201.0, 300.0, parents=("41",), dependency="afterany:41"),
        log("slurm-41.out"),
        log("slurm-42.out"),
    ]
    return [*rows, job("43", start=301.0, end=400.0, parents=("42",)), log("slurm-43.out")] if third else rows


def test_the_last_of_a_chain_is_the_run() -> None:
    run = run_of(*chain())
    assert (run.id, run.parent, run.parent_by, run.log_paths, run.parent_log_paths) == (
        "43", "42", "dependency", ("slurm-43.out",), ("slurm-42.out",),
    )  # fmt: skip
    assert run_of(*chain(), ask="42").parent == "41"


def test_a_chain_whose_end_never_started() -> None:
    rows = [*chain(third=False), job("43", "PENDING", None, None, parents=("42",))]
    assert run_of(*rows).id == "42"


def test_parallel_children_are_not_a_chain() -> None:
    rows = [job("41"), job("42", start=201.0, parents=("41",)), job("43", start=201.0, parents=("41",))]
    with pytest.raises(SeveralRuns):
        run_of(*rows)


def test_only_the_runs_own_records_stay() -> None:
    runs = resolved(*chain())
    frame = runs.store.ask(record("job"))
    assert isinstance(frame, Frame)
    assert [row.get("id") for row in frame.records] == ["43"]


def test_consecutive_jobs_of_the_same_name_are_parent_and_child() -> None:
    rows = [
        job("41", start=100.0, end=200.0, submit=50.0, name="lm"),
        job("42", start=202.0, end=300.0, submit=60.0, name="lm"),
        log("slurm-41.out"),
        log("slurm-42.out"),
    ]
    run = run_of(*rows)
    assert (run.id, run.parent, run.parent_by) == ("42", "41", "order")
    with pytest.raises(SeveralRuns):  # submitted by hand, hours later
        run_of(rows[0], job("42", start=9000.0, end=9100.0, submit=8990.0, name="lm"), *rows[2:])


def test_a_parent_without_inputs_is_named() -> None:
    run = run_of(job("42", parents=("41",)))
    assert (run.parent, run.parent_log_paths) == ("41", ())


# -- remaining rows


def test_states_of_other_jobs_are_dropped_and_those_of_nodes_kept() -> None:
    rows = [
        job("42"),
        note("slurmctld.log", "job_state", "scheduler", job="42", state="failed"),
        note("slurmctld.log", "job_state", "scheduler", job="77", state="failed"),
        note("slurmctld.log", "node_state", "scheduler", job="77", state="down"),
        Event("log_activity", Position("slurmctld.log", 9), "scheduler"),
        Record("step", Position("sacct.txt", 3), "scheduler", {"id": "77.0", "job": "77"}),
        Record("node", Position("sinfo.txt", 2), "scheduler", {"name": "n9", "state": "down"}),
    ]
    remaining = [(row.kind, row.get("job")) for row in resolved(*rows).store.all_rows()]
    assert sorted(remaining, key=str) == [("job", None), ("job_state", "42"), ("node", None), ("node_state", "77")]


def test_citations_hold_on_the_narrowed_store() -> None:
    runs = resolved(*chain())
    for row in runs.store.all_rows():
        subject = "events" if isinstance(row, Event) else "record"
        frame = runs.store.ask(Query(subject, row.kind).where(path=row.at.path, line=row.at.line))  # type: ignore[arg-type]
        assert isinstance(frame, Frame)
        assert row in frame.rows


# -- clock


@pytest.mark.parametrize(
    ("times", "span", "offset"),
    [
        ([1000.0, 1900.0], (990.0, 2000.0), 0.0),
        ([1000.0 + 3600, 1900.0 + 3600], (990.0, 2000.0), -3600.0),
        ([1000.0 - 19800, 1900.0 - 19800], (990.0, 2000.0), 19800.0),
        ([1300.0], (990.0, 1100.0), 0.0),
        ([1000.0 + 90000], (990.0, 2000.0), 0.0),
        ([1000.0 - 7200], (990.0, None), 7200.0),
        ([5000.0], None, 0.0),
    ],
    ids=["fits", "hour ahead", "half hours", "skewed clock", "another day", "still running", "no record"],
)
def test_clock_offset(times: list[float], span: tuple[float, float | None] | None, offset: float) -> None:
    assert clock.offset_of(times, span) == offset


@pytest.mark.parametrize(("end", "time"), [(1772439152.0, 1772439148.405), (1772442752.0, None), (None, None)])
def test_a_signal_is_dated_with_the_year_of_the_run_s_end(end: float | None, time: float | None) -> None:
    """A time far from the end may be of another time zone."""
    stop = Event(
        "signal_received",
        Position("a.out", 3),
        "log",
        text="W0302 08:12:28.405000 39477 api.py:704] Received Signals.SIGTERM",
    )
    assert clock.date_stop(stop, (1772438400.0, end)).time == time


def test_the_offset_moves_the_logs_times() -> None:
    runs = resolved(job("5", start=100000.0, end=101000.0), log("t.log", 107210.0, 108190.0))
    frame = runs.store.ask(events("log_activity"))
    assert isinstance(frame, Frame)
    assert runs.run.clock_offset_s == -7200.0
    assert [(row.time, row.get("first_time")) for row in frame.events] == [(100990.0, 100010.0)]


def test_a_time_that_fits_is_not_shifted() -> None:
    """The container writes UTC, the step daemon local time, into one file."""
    span = (100000.0, 101000.0)
    local = Event("scheduler_notice", Position("t.log", 5), "log", time=100999.0)
    assert clock.shift_event(local, -7200.0, span) == local


# -- ranks


def worker(folder: str, local: int, rank: int | None = None, text: str = "") -> list[Event]:
    path = f"{folder}/attempt_0/{local}/stderr.log"
    position = Position(path, 3)
    rows = [Event("log_activity", position, "log", rank=local)]
    return rows if rank is None else [*rows, Event("exception", position, "log", rank=rank, text=text)]


def ranks_by_path(*rows: Event) -> dict[str, int | None]:
    frame = resolved(*rows).store.ask(events("log_activity"))
    assert isinstance(frame, Frame)
    return {event.at.path.replace("/attempt_0/", ":").removesuffix("/stderr.log"): event.rank for event in frame.events}


def test_local_ranks_of_two_nodes() -> None:
    workers = [*worker("a", 0), *worker("a", 1), *worker("b", 0, 2, "[rank2]: x"), *worker("b", 1)]
    assert ranks_by_path(*workers) == {"a:0": 0, "a:1": 1, "b:0": 2, "b:1": 3}


def test_ambiguous_ranks_are_unknown() -> None:
    workers = [*worker("a", 0), *worker("a", 1), *worker("b", 0), *worker("b", 1)]
    assert set(ranks_by_path(*workers).values()) == {None}
    assert ranks_by_path(*worker("a", 0), *worker("a", 1)) == {"a:0": 0, "a:1": 1}


def of_task(task: str, kind: str = "exception", **fields: Any) -> Event:
    return note("out/slurm-7.out", kind, task=task, **fields)


def ranks_of(n_gpus: int, *rows: Event, **fields: Any) -> list[int | None]:
    record = job("7", "FAILED", n_gpus=n_gpus, **fields)
    store = resolved(record, log("out/slurm-7.out"), *rows).store
    return [row.rank for row in store.all_rows() if isinstance(row, Event) and row.get("task") is not None]


def test_tasks_are_ranks_if_each_gpu_has_one() -> None:
    exits = [of_task("4-7", "process_exit", source="srun"), of_task("2", "process_exit", source="srun")]
    assert ranks_of(8, of_task("4"), of_task("5"), *exits) == [4, 5, None, 2]
    assert ranks_of(8, of_task("5")) == [5]  # more than half: as many tasks as GPUs
    assert ranks_of(8, of_task("3")) == [None]  # there may be four tasks of two GPUs each
    assert ranks_of(8, of_task("3"), n_tasks=8) == [3]
    assert ranks_of(8, of_task("1"), n_tasks=2) == [None]
    assert ranks_of(8, of_task("7"), n_tasks=2) == [7]  # srun started more tasks than the job had requested
    assert ranks_of(4, of_task("5")) == [None]


@pytest.mark.parametrize(
    "launcher",
    [note("out/slurm-7.out", "launcher_restart"), note("out/slurm-7.out", "host", command="torchrun"),
     note("out/slurm-7.out", "process_exit", source="torchrun", task="1")],
)  # fmt: skip
def test_tasks_that_are_launchers_are_not_ranks(launcher: Event) -> None:
    assert 5 not in ranks_of(8, of_task("5"), launcher)


# -- real cases


def cases() -> list[Path]:
    return sorted((CORPUS / "runs").glob("*/case.json"))


@pytest.mark.corpus
@pytest.mark.parametrize("case", cases(), ids=lambda path: path.parent.name)
def test_corpus(case: Path, tmp_path: Path) -> None:
    expected = json.loads(case.read_text())
    inputs = tmp_path / "inputs"
    shutil.copytree(case.parent, inputs, ignore=shutil.ignore_patterns("case.json"))
    run, _ = choose_run(load([inputs]))
    parent = expected.get("parent")
    assert run.id == str(expected["jobid"])
    assert run.disposition == expected["slurm_state"]
    assert run.nodes == tuple(expected["nodelist"])
    assert (run.start, run.end, run.clock_offset_s) == (expected["start_ts"], expected["end_ts"], 0.0)
    assert run.exit_code == (None if expected["slurm_state"] == "OUT_OF_MEMORY" else expected["exit_code"])
    assert run.parent == (str(parent["jobid"]) if parent else None)
    assert run.parent_log_paths == ((parent["log"],) if parent else ())


_REQUEUED = {
    "requeue",
    "requeue-hold",
    "special-exit",
    "node-fail-requeue",
    "torchrun-node-crash",
    "timeout-signal-requeue",
}
_CASES = CORPUS.parent / "slurm" / "records"


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("case", "disposition", "attempts"),
    [
        *((name, "COMPLETED", 2) for name in sorted(_REQUEUED | {"drain-prolog", "preempt-requeue"})),
        ("requeue-exit", "COMPLETED", 3),
        ("node-fail-crash-head", "NODE_FAIL", 1),
        ("node-reboot", "NODE_FAIL", 1),
        ("oom-batch", "OUT_OF_MEMORY", 1),
        ("cancelled-pending", "CANCELLED", 0),
        ("timeout", "TIMEOUT", 1),
        ("preempt-cancel", "PREEMPTED", 1),
        ("het-job", "COMPLETED", 1),
        ("dependency-afterany", "COMPLETED", 1),
        ("failed-segv-child", "FAILED", 1),
        ("output-missing", None, 1),
    ],
)
def test_real_records(case: str, disposition: str | None, attempts: int) -> None:
    folders = [folder for folder in _CASES.glob(f"*/{case}") if folder.is_dir()]
    assert folders
    for folder in folders:
        run, _ = choose_run(load([folder]))
        assert run.disposition == (disposition or run.disposition), folder
        assert len(run.attempts) == attempts, folder
        assert case != "failed-segv-child" or run.exit_code == 139
